"""`bm4d`: PyPI's call, without torch, and the same as BM4D."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import plugstream
from native_build import needs_native
from plugstream import BM4D, BM4DProfile, BM4DStages, InputError, bm4d

SIGMA = 0.1


def noisy(*shape: int) -> np.ndarray:
    clean = np.add.outer(np.arange(shape[0]), np.add.outer(np.arange(shape[1]), np.arange(shape[2]))) // 6 % 2
    return clean + SIGMA * np.random.default_rng(0).standard_normal(shape)


def test_it_is_bm4d_in_every_precision():
    z = noisy(9, 12, 10)
    for kind in (np.float64, np.float32):
        got = bm4d(z.astype(kind), SIGMA)
        assert got.dtype == kind
        assert np.array_equal(got, BM4D()(torch.from_numpy(z.astype(kind)), SIGMA).numpy())
    assert np.array_equal(bm4d(z, SIGMA, "lc"), BM4D("fast")(z, SIGMA).numpy())
    assert np.array_equal(bm4d(z, SIGMA, stage_arg=BM4DStages.HARD_THRESHOLDING), BM4D(stages=1)(z, SIGMA).numpy())
    wave = (z + 1j * z[::-1]).astype(np.complex64)
    assert bm4d(wave, SIGMA).dtype == np.complex64
    assert np.array_equal(bm4d(wave, SIGMA), BM4D()(torch.from_numpy(wave), SIGMA).numpy())


@needs_native
def test_torch_is_not_imported():
    code = "import sys, numpy as np\nfrom plugstream import bm4d\n"
    code += "bm4d(np.zeros((8, 9, 7)), 0.1)\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_native_kernels_the_torch_form_serves(monkeypatch: pytest.MonkeyPatch):
    z, small = noisy(6, 7, 8), BM4DProfile(radius=2, group1=4, group2=4)
    want = bm4d(z, SIGMA, small)
    monkeypatch.setattr(plugstream._native, "load", lambda: None)
    assert np.abs(bm4d(z, SIGMA, small) - want).max() < 2e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bm4d(np.zeros((9, 9)), 0.1), "bm3d takes images"),
        (lambda: bm4d(np.zeros((3, 9, 9)), 0.1), "at least 4 x 4 x 4"),
        (lambda: bm4d(np.full((5, 5, 5), np.inf), 0.1), "NaN or infinity"),
        (lambda: bm4d(np.zeros((5, 5, 5)), np.ones((5, 5, 5))), "not a power spectrum"),
        (lambda: bm4d(np.zeros((5, 5, 5)), -1), "sigma must be a number >= 0"),
        (lambda: bm4d(np.zeros((5, 5, 5)), "x"), "sigma_psd must be a number"),
        (lambda: bm4d(np.zeros((5, 5, 5)), 0.1, "refilter"), "no BM4D profile"),
        (lambda: bm4d(np.zeros((5, 5, 5)), 0.1, stage_arg=np.zeros((5, 5, 5))), "no estimate is taken"),
        (lambda: bm4d(np.zeros((5, 5, 5)), 0.1, blockmatches=(True, True)), "blockmatches are neither"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
