"""The native kernels do what their torch forms say, to the bit where that is promised."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from effort import effort, thorough
from native_build import LEVELS, across_levels, needs_native
from plugstream import _native
from plugstream.base.errors import PlugstreamWarning
from plugstream.denoisers import tv_native
from plugstream.denoisers.tv import TV

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
dtypes = st.sampled_from([torch.float32, torch.float64])


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.fixture
def kernels() -> ModuleType:
    module = _native.load()
    if module is None:
        pytest.skip("the native extension was not built")
    return module


def solve(module: ModuleType, z: Tensor, *, count: int = 13, **settings: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A call of the kernel itself, from a start that is not zero: `count` iterations of any momentum.

    z is (N, H, W), or (N, K, D, H, W) for volumes with components; an image of two axes has a depth of 1.
    """
    z = z if z.ndim == 5 else z[:, None, None]
    n, components = z.shape[:2]
    axes = 2 if z.shape[2] == 1 else 3
    warm = images(n, components, axes, *z.shape[2:], seed=9, dtype=z.dtype).clamp(-0.5, 0.5).numpy()
    out = {"x": np.zeros_like(z.numpy()), "p": np.zeros_like(warm), "gap": np.zeros(n)}
    strength = np.linspace(0.05, 0.5, n, dtype=warm.dtype)
    momentum = np.linspace(0, 0.9, count, dtype=warm.dtype)
    given = {"low": -0.5, "high": 1.5, "tol": 0.0, "check": 10, "isotropic": True, "threads": 1} | settings
    rate = (1 / (4 * axes * strength)).astype(warm.dtype)
    module.tv_solve(z.numpy(), strength, rate, momentum, None, None, warm, *out.values(), **given)
    return out


def same(a: dict[str, np.ndarray[Any, Any]], b: dict[str, np.ndarray[Any, Any]]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


@thorough
@needs_native
@settings(deadline=None, max_examples=effort(30, 60))
@given(
    st.one_of(
        st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
        st.tuples(st.just(1), st.just(1), st.integers(1, 300)),
        st.tuples(st.just(1), st.integers(1, 300), st.just(1)),
        st.tuples(st.integers(1, 3), st.integers(60, 130), st.integers(60, 130)),
    ),
    dtypes,
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_tv_equals_its_torch_form(
    shape: tuple[int, int, int], dtype: torch.dtype, isotropic: bool, boxed: bool, seed: int
) -> None:
    z = images(*shape, seed=seed, dtype=dtype)
    warm = images(shape[0], 2, *shape[1:], seed=seed + 1, dtype=dtype)
    box = {"low": -0.3, "high": 0.8} if boxed else {}
    tv = TV(0.7, isotropic=isotropic, tol=0, max_iterations=17, **box)
    for start in (None, warm):
        x, dual = tv._solve(z, 0.6, start, native=True)
        expected, dual_expected = tv._solve(z, 0.6, start, native=False)
        scale = float(z.abs().max())
        assert float((x - expected).abs().max()) <= TOLERANCE[dtype] * scale
        assert float((dual - dual_expected).abs().max()) <= TOLERANCE[dtype]


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_forms_stop_alike(dtype: torch.dtype) -> None:
    z, tv = images(3, 50, 61, dtype=dtype), TV(tol=1e-3, low=0.0)
    sigma = torch.tensor([0.2, 0.5, 1.0])
    x, dual = tv._solve(z, sigma, None, native=True)
    expected, dual_expected = tv._solve(z, sigma, None, native=False)
    torch.testing.assert_close(x, expected, atol=TOLERANCE[dtype], rtol=0)
    torch.testing.assert_close(dual, dual_expected, atol=TOLERANCE[dtype], rtol=0)


def test_the_gap_of_the_kernel_is_that_of_the_formula(kernels: ModuleType) -> None:
    for isotropic in (True, False):
        z = images(3, 37, 45, dtype=torch.float64)
        out = solve(kernels, z, isotropic=isotropic)
        strength = torch.linspace(0.05, 0.5, 3, dtype=torch.float64)[:, None, None]
        dual = torch.from_numpy(out["p"])[:, 0, :, 0]
        expected = TV(isotropic=isotropic, low=-0.5, high=1.5).gap(z, strength, dual)
        np.testing.assert_allclose(out["gap"], expected.numpy(), rtol=1e-12)


@thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", [(1, 256, 256), (3, 130, 70), (5, 20, 20), (1, 3, 9000), (1, 9000, 3), (2, 200, 97)])
def test_the_same_bits_for_any_number_of_threads(
    kernels: ModuleType, shape: tuple[int, int, int], isotropic: bool, dtype: torch.dtype
) -> None:
    z = images(*shape, dtype=dtype)
    one = solve(kernels, z, isotropic=isotropic, threads=1)
    for threads in (2, 3, 8):
        for _ in range(effort(2, 3)):  # who does what differs from run to run
            assert same(one, solve(kernels, z, isotropic=isotropic, threads=threads))


@across_levels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isotropic", [True, False])
def test_the_same_bits_on_every_instruction_set(kernels: ModuleType, isotropic: bool, dtype: torch.dtype) -> None:
    z = images(2, 61, 83, dtype=dtype)
    expected = solve(kernels, z, isotropic=isotropic, level=LEVELS[-1])
    for level in LEVELS:
        assert same(expected, solve(kernels, z, isotropic=isotropic, level=level))


# Volumes, components of images, and both: many planes, few, and fewer than threads; rows short and long.
COUPLED = [
    (1, 1, 40, 30, 50),
    (3, 1, 9, 40, 33),
    (1, 2, 1, 130, 70),
    (2, 3, 1, 40, 33),
    (1, 4, 12, 20, 30),
    (1, 2, 3, 9, 999),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", COUPLED)
def test_volumes_and_components_have_the_same_bits_for_any_threads_and_level(
    kernels: ModuleType, shape: tuple[int, ...], isotropic: bool, dtype: torch.dtype
) -> None:
    z = images(*shape, dtype=dtype)
    one = solve(kernels, z, isotropic=isotropic, level=LEVELS[-1])
    for level in LEVELS:
        assert same(one, solve(kernels, z, isotropic=isotropic, level=level))
    for threads in (2, 3, 8):
        assert same(one, solve(kernels, z, isotropic=isotropic, threads=threads))


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", COUPLED)
def test_the_gap_of_volumes_and_components_is_that_of_the_formula(
    kernels: ModuleType, shape: tuple[int, ...], isotropic: bool
) -> None:
    z = images(*shape, dtype=torch.float64)
    out = solve(kernels, z, isotropic=isotropic)
    strength = torch.linspace(0.05, 0.5, shape[0], dtype=torch.float64)[:, None, None, None, None]
    dual, ndim = torch.from_numpy(out["p"]), 2 if shape[2] == 1 else 3
    if ndim == 2:
        z, dual, strength = z[:, :, 0], dual[:, :, :, 0], strength[..., 0]
    tv = TV(isotropic=isotropic, low=-0.5, high=1.5, ndim=ndim, channels=True)
    np.testing.assert_allclose(out["gap"], tv.gap(z, strength, dual).numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("kernels", "one_thread")
def test_denoise_has_the_same_bits_for_any_number_of_torch_threads() -> None:
    z, results = images(2, 100, 120), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(TV().denoise(z, 0.4))
    for x, dual in results[1:]:
        assert torch.equal(x, results[0][0])
        assert torch.equal(dual, results[0][1])


@needs_native
def test_an_image_stops_by_itself_whatever_the_batch() -> None:
    z, tv = images(5, 90, 70), TV(tol=1e-2, check=3)
    z[1] = 0.3  # done before the first iteration
    sigma = torch.tensor([0.1, 0.2, 0.4, 0.8, 1.6])
    together, duals = tv._solve(z, sigma, None, native=True)
    for k in range(5):
        x, dual = tv._solve(z[k], sigma[k], None, native=True)
        assert torch.equal(together[k], x)
        assert torch.equal(duals[k], dual)
    assert torch.equal(together[1], z[1])
    with pytest.warns(PlugstreamWarning, match="short of its relative tolerance"):
        TV(tol=1e-6, max_iterations=4)._solve(z, sigma, None, native=True)


@thorough
@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 7), (3, 129), (300, 40), (64, 257), (5, 9, 130), (20, 3, 8)])
def test_the_mean_that_is_left_out_is_that_of_the_torch_form(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """With an offset of 1000 a mean that is off by one unit in its last place would show in x."""
    z = 1000 + 1e-3 * images(*shape, dtype=dtype)
    tv = TV(tol=0, max_iterations=2, ndim=len(shape), low=1000.0, high=1000.001)
    x, _ = tv._solve(z, 1e-3, None, native=True)
    expected, _ = tv._solve(z, 1e-3, None, native=False)
    torch.testing.assert_close(x, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(
        tv._solve(torch.full(shape, 0.1, dtype=dtype), 1.0, None, native=True)[1].abs().max(), x.new_zeros(())
    )


def test_arrays_that_do_not_fit_are_refused(kernels: ModuleType) -> None:
    z = images(2, 1, 1, 8, 9).numpy()
    dual, ones, gap = np.zeros((2, 1, 2, 1, 8, 9), z.dtype), np.ones(2, z.dtype), np.zeros(2)
    options = {"low": 0.0, "high": 1.0, "tol": 0.0, "check": 10, "isotropic": True, "threads": 1}
    bound = np.ones((1, 8, 9), z.dtype)
    good = [z, ones, ones, ones, bound, bound, dual, z.copy(), dual.copy(), gap]
    kernels.tv_solve(*good, **options)
    wrong = {
        0: z[..., ::2],
        1: ones[:1],
        2: ones[:1],
        4: bound[:, :7].copy(),
        5: None,
        6: dual[:1].copy(),
        7: z[:, :, :, :7].copy(),
        8: dual.astype(np.float64),
        9: gap[:1],
    }
    for position, array in wrong.items():
        with pytest.raises((TypeError, ValueError)):
            kernels.tv_solve(*good[:position], array, *good[position + 1 :], **options)
    with pytest.raises((TypeError, ValueError)):
        kernels.tv_solve(*good, **options | {"check": 0})
    with pytest.raises(ValueError, match="instruction set"):
        kernels.tv_solve(*good, level="abacus", **options)


def test_the_kernel_is_for_plain_cpu_tensors(kernels: ModuleType) -> None:
    z = images(4, 4)
    assert tv_native.serves(z, None)
    assert not tv_native.serves(z.half())
    assert not tv_native.serves(z.to("meta"))
    assert not tv_native.serves(z.clone().requires_grad_())
    with torch.no_grad():
        assert tv_native.serves(z.clone().requires_grad_())


def test_everything_works_without_the_extension() -> None:
    code = (
        "import torch; from plugstream import _native; from plugstream.denoisers.tv import TV;"
        "assert _native.load() is None; print(float(TV()(torch.eye(4), 0.5).sum()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PLUGSTREAM_NATIVE": "0", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(4, abs=1e-4)


def test_a_build_for_newer_processors_says_so_once_and_what_to_do(kernels: ModuleType) -> None:
    code = (
        "from plugstream._native import _kernels; _kernels.levels = list\n"
        "from plugstream.cli import main; main(['denoisers']); main(['denoisers'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = " ".join(done.stderr.split()).split("warning: ")[1:]
    assert f"built for {kernels.built}, which this processor lacks" in line
    assert "pip install --force-reinstall --no-deps ." in line
    assert "native" not in done.stdout
