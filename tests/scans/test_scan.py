"""Scans in memory: which data they take, and what is refused in one line."""

import dataclasses

import numpy as np
import pytest
import torch

from plugstream import InputError, LeastSquares, MemoryScan, open_scan, save_scan
from plugstream.models import BornModel

KINDS = [np.float32, np.float64, np.complex64, np.complex128, np.int16, np.uint8, ">f4"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_in_memory_takes_real_and_numpy_data(small_geometry, tmp_path, kind):
    rng = np.random.default_rng(0)
    numbers = (40 * rng.random((7, 9))).astype(kind)
    want = torch.from_numpy(numbers.astype(np.complex64))
    scan = MemoryScan(numbers, small_geometry, rng.random((12, 10)), {"from": "here"})
    assert scan.data.dtype == torch.complex64
    assert torch.equal(scan.data, want)
    assert scan.truth.dtype == np.float32
    save_scan(scan, tmp_path / "s.zarr")
    assert torch.equal(open_scan(tmp_path / "s.zarr").read(), want)
    value = LeastSquares(BornModel(small_geometry), scan).value(torch.zeros(12, 10))
    assert float(value) == pytest.approx(float((want.abs() ** 2).sum()) / 14, rel=1e-5)
    assert dataclasses.replace(scan, truth=None).truth is None


def test_a_scan_in_memory_takes_tensors_as_before(small_geometry):
    data = torch.randn(7, 9, dtype=torch.complex128)
    assert torch.equal(MemoryScan(data, small_geometry).data, data)
    real = torch.randn(7, 9)
    scan = MemoryScan(real, small_geometry, torch.rand(12, 10))
    assert torch.equal(scan.data, real.to(torch.complex64))
    assert isinstance(scan.truth, np.ndarray)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.full((7, 9), "x"), "array of numbers"),
        (np.full((7, 9), None), "array of numbers"),
        (np.zeros((9, 7)), "7 views of 9 receivers"),
        (np.full((7, 9), np.nan), "view 0 of the scan holds NaN"),
        (np.full((7, 9), 1e300), "view 0 of the scan holds NaN or infinity"),
        ("hello", "a tensor or an array"),
    ],
)
def test_what_cannot_be_data_is_one_line(small_geometry, data, message):
    with pytest.raises(InputError, match=message) as caught:
        MemoryScan(data, small_geometry)
    assert "\n" not in str(caught.value)


def test_a_true_image_that_is_none_is_one_line(small_geometry):
    for truth, message in (
        ("x", "a tensor or an array"),
        (np.zeros((3, 3)), "its images are"),
        ([[1], []], "be read as"),
    ):
        with pytest.raises(InputError, match=message):
            MemoryScan(np.zeros((7, 9)), small_geometry, truth)
