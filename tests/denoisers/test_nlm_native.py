"""The native form of NLM does what the torch form says, on every instruction set, for any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from effort import effort, thorough
from native_build import LEVELS, needs_native
from plugstream import NLM, _native
from plugstream.denoisers.nlm import native, reference

pytestmark = [needs_native, pytest.mark.usefixtures("one_thread")]


def pictures(*shape: int, seed: int = 0) -> Tensor:
    """Edges and waves with noise, values around 0 .. 1."""
    y, x = torch.meshgrid(torch.arange(shape[-2]), torch.arange(shape[-1]), indexing="ij")
    clean = 0.5 + 0.2 * torch.sin(x / 3 + y / 5) + 0.3 * torch.sign(torch.sin(x / 6) * torch.sin(y / 7 + 1))
    return clean + 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(images: Tensor, width: Tensor, *parameters: int) -> Tensor:
    return reference.nlm(images.double(), width, *parameters)


# Widths around multiples of 4, 8 and 16 lanes and of blocks of four vectors; heights around bands of 16 rows; searches
# beyond the image and beyond a band.
@pytest.mark.parametrize(
    ("shape", "search", "patch", "balance"),
    [
        ((3, 3), 10, 2, 10),
        ((5, 7), 40, 3, 3),
        ((16, 16), 1, 2, 1),
        ((17, 31), 4, 1, 3),
        ((17, 65), 3, 0, 2),
        ((7, 130), 5, 2, 4),
        ((41, 9), 20, 2, 5),
        ((25, 32), 10, 2, 10),
    ],
)
def test_equals_its_torch_form(shape: tuple[int, int], search: int, patch: int, balance: int) -> None:
    images, width = pictures(3, *shape), torch.tensor([0.1, 0.0, 1.0])
    want = expected(images, width, search, patch, balance)
    torch.set_num_threads(2)
    for level in LEVELS:
        got = native.nlm(images, width, search, patch, balance, level=level)
        assert float((got - want).abs().max()) <= 1e-5, level
        assert torch.equal(got[1], images[1])
        matrix = native.form(images[0], 0.1, search, patch, balance, level=level)
        assert float((native.apply(matrix, images[:1], level=level) - want[:1]).abs().max()) <= 1e-5, level


@thorough
@settings(max_examples=effort(14, 25))
@given(
    st.integers(3, 24), st.integers(3, 40), st.integers(1, 8), st.integers(0, 2), st.integers(1, 4),
    st.floats(1e-30, 1e3), st.floats(1e-6, 1e6), st.integers(0, 99),
)  # fmt: skip
def test_equals_its_torch_form_on_any_scale(
    height: int, width: int, search: int, patch: int, balance: int, h: float, scale: float, seed: int
) -> None:
    images, widths = scale * pictures(1, height, width, seed=seed), torch.tensor([h * scale], dtype=torch.float64)
    want = expected(images, widths, search, patch, balance)
    got = native.nlm(images, widths, search, patch, balance)
    # Where h is tiny, affinities depend on the last digits of the differences, which single precision does not have.
    assert float((got - want).abs().max()) <= (2e-5 if h > 1e-2 else 2e-2) * scale


def test_the_matrix_is_symmetric_doubly_stochastic_and_positive() -> None:
    guide = pictures(11, 13)
    matrix = native.form(guide, 0.15, 4, 1, 5)
    dense = native.apply(matrix, torch.eye(143).reshape(143, 11, 13)).reshape(143, 143).double().numpy()
    np.testing.assert_allclose(dense, dense.T, atol=1e-7)
    np.testing.assert_allclose(dense.sum(1), 1, atol=2e-6)
    values = np.linalg.eigvalsh(dense)
    assert values.min() >= -1e-6
    assert values.max() <= 1 + 2e-6


@pytest.mark.parametrize("shape", [(1, 130, 40), (3, 64, 33), (2, 20, 20), (1, 9, 300), (1, 100, 9)])
def test_the_same_bits_for_any_number_of_threads(shape: tuple[int, int, int]) -> None:
    images, width = pictures(*shape), torch.linspace(0.05, 0.2, shape[0])
    one, matrix = native.nlm(images, width, 7, 2, 3), native.form(images[0], 0.1, 7, 2, 3)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for _ in range(3):  # who does what differs from run to run
            assert torch.equal(native.nlm(images, width, 7, 2, 3), one)
        again = native.form(images[0], 0.1, 7, 2, 3)
        assert all(torch.equal(a, b) for a, b in zip(matrix[:3], again[:3], strict=True))


def test_calls_at_the_same_time_do_not_meet() -> None:
    torch.set_num_threads(2)
    batches = [pictures(1, 40 + 9 * k, 50 - 3 * k, seed=k) for k in range(6)]
    width = torch.tensor([0.1])
    alone = [native.nlm(z, width, 5, 2, 3) for z in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            together = list(pool.map(lambda z: native.nlm(z, width, 5, 2, 3), batches))
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_huge_values_leave_nothing_behind() -> None:
    """Memory is kept between calls; what overflowed in one must not reach the next."""
    z = pictures(1, 30, 41)
    want = native.nlm(z, torch.tensor([0.1]), 5, 2, 3)
    native.nlm(3e38 * torch.sign(z - 0.5), torch.tensor([1e30]), 5, 2, 3)
    assert torch.equal(native.nlm(z, torch.tensor([0.1]), 5, 2, 3), want)


def test_it_serves_plain_single_precision_only() -> None:
    z = pictures(1, 9, 9)
    assert native.serves(z)
    assert not native.serves(z.double())
    assert not native.serves(z.to("meta"))
    assert not native.serves(z.clone().requires_grad_())
    single, double = NLM(search=3)(z, 0.1), NLM(search=3)(z.double(), 0.1)
    assert 0 < float((single - double).abs().max()) < 1e-6


def test_arrays_that_do_not_fit_are_refused() -> None:
    module = _native.load()
    assert isinstance(module, ModuleType)
    z, rate, options = np.zeros((2, 9, 8), np.float32), np.ones(2, np.float32), {"search": 3, "patch": 2, "balance": 1}
    module.nlm(z, rate, z.copy(), threads=1, **options)
    for images, rates, out in ((z[:, ::2], rate, z), (z, rate[:1], z), (z, rate, z[:1]), (z.astype(float), rate, z)):
        with pytest.raises((TypeError, ValueError)):
            module.nlm(images, rates, out, threads=1, **options)
    for name, value in (("search", 0), ("patch", -1), ("patch", 8), ("balance", 0)):
        with pytest.raises(ValueError, match=r"least|more pixels"):
            module.nlm(z, rate, z.copy(), threads=1, **{**options, name: value})
    plane, size = np.zeros((9, 8), np.float32), module.nlm_size(9, 8, 3)
    with pytest.raises(ValueError, match="nlm_size"):
        module.nlm_form(plane, 1.0, np.zeros(size - 1, np.float32), plane.copy(), plane.copy(), threads=1, **options)
    with pytest.raises(ValueError, match="shape of the images"):
        module.nlm_apply(
            np.zeros(size, np.float32), plane[:3].copy(), plane[:3].copy(), z, z.copy(), search=3, threads=1
        )
