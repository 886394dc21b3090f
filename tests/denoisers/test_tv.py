"""Total variation: against solvers written differently, and the properties that a proximal operator has."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.sparse import csr_matrix
from torch import Tensor

from effort import effort, thorough
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.denoisers.tv import TV, differences, differences_adjoint

Floats = NDArray[np.float64]
EXACT = {"tol": 1e-7, "max_iterations": 200_000, "check": 50}
shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))
seeds = st.integers(0, 2**31)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def difference_matrix(height: int, width: int) -> csr_matrix:
    """D as a sparse matrix, (2 H W, H W), built pixel by pixel."""
    rows, columns, values = [], [], []
    for i in range(height):
        for j in range(width):
            here = i * width + j
            for part, inside, there in ((0, i + 1 < height, here + width), (1, j + 1 < width, here + 1)):
                if inside:
                    rows += [part * height * width + here] * 2
                    columns += [here, there]
                    values += [-1.0, 1.0]
    return csr_matrix((values, (rows, columns)), shape=(2 * height * width, height * width))


@functools.cache
def chambolle_pock(shape: tuple[int, int], strength: float, low: float, high: float, iterations: int = 4000) -> Floats:
    """The isotropic prox of noise by a primal-dual method for strongly convex problems, on explicit matrices."""
    z = noise(*shape).numpy()
    d = difference_matrix(*z.shape)
    x = bar = z.ravel()
    y = np.zeros(d.shape[0])
    tau = sigma = 1 / math.sqrt(8)
    for _ in range(iterations):
        y = y + sigma * (d @ bar)
        y = y / np.tile(np.maximum(1, np.hypot(*np.split(y, 2)) / strength), 2)
        before = x
        x = np.clip((x - tau * (d.T @ y) + tau * z.ravel()) / (1 + tau), low, high)
        theta = 1 / math.sqrt(1 + tau)
        tau, sigma = tau * theta, sigma / theta
        bar = x + theta * (x - before)
    return x.reshape(z.shape)


def bounded_least_squares(z: Floats, strength: float) -> Floats:
    """The anisotropic prox, without a box: its dual is min ||z - strength D^T p||^2 over -1 <= p <= 1."""
    d = difference_matrix(*z.shape)
    d = d[np.flatnonzero(np.diff(d.indptr))]
    result = lsq_linear(strength * d.T.toarray(), z.ravel(), (-1, 1), method="bvls", tol=1e-14)
    return (z.ravel() - strength * d.T @ result.x).reshape(z.shape)


def taut_string(z: Floats, strength: float) -> Floats:
    """The prox of a row, exactly: the slopes of the shortest path in a tube of radius `strength` around the sums.

    Found as the greatest convex minorant and least concave majorant meet: from each knot, the next is the point that
    the line of sight is first forced to touch.
    """
    total = np.concatenate([[0], np.cumsum(z)])
    n = len(z)
    lower, upper = total - strength, total + strength
    lower[0] = upper[0] = 0
    lower[n] = upper[n] = total[n]
    x, start, height = np.empty(n), 0, 0.0
    while start < n:
        least, most, at_least, at_most = -np.inf, np.inf, start, start
        end = n
        for k in range(start + 1, n + 1):
            down, up = (lower[k] - height) / (k - start), (upper[k] - height) / (k - start)
            if down > most:  # the string must bend down at the upper wall that it touched
                end, slope = at_most, most
                break
            if up < least:
                end, slope = at_least, least
                break
            if down >= least:
                least, at_least = down, k
            if up <= most:
                most, at_most = up, k
        else:
            slope = (total[n] - height) / (n - start)
        x[start:end] = slope
        height += slope * (end - start)
        start = end
    return x


@given(shapes, seeds)
def test_the_adjoint_is_the_adjoint(shape: tuple[int, int], seed: int) -> None:
    x, field = noise(*shape, seed=seed), noise(2, *shape, seed=seed + 1)
    forward, back = (differences(x) * field).sum(), (x * differences_adjoint(field)).sum()
    scale = x.norm() * field.norm()
    assert abs(float(forward - back)) <= 1e-12 * float(scale)


def test_differences_are_those_of_a_matrix() -> None:
    x = noise(5, 7)
    expected = (difference_matrix(5, 7) @ x.numpy().ravel()).reshape(2, 5, 7)
    np.testing.assert_allclose(differences(x).numpy(), expected, atol=1e-15)


@thorough
@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize(("low", "high"), effort([(-0.3, 0.6)], [(-math.inf, math.inf), (0.0, math.inf), (-0.3, 0.6)]))
def test_isotropic_against_chambolle_pock(low: float, high: float, native: bool | None) -> None:
    z, sigma, weight = noise(7, 8), 0.6, 1.3
    x, _ = TV(weight, low=low, high=high, **EXACT)._solve(z, sigma, None, native=native)
    expected = chambolle_pock((7, 8), weight * sigma**2, low, high)
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("native", [None, False])
def test_anisotropic_against_bounded_least_squares(native: bool | None) -> None:
    z, sigma, weight = noise(7, 9), 0.7, 0.8
    x, _ = TV(weight, isotropic=False, **EXACT)._solve(z, sigma, None, native=native)
    np.testing.assert_allclose(x.numpy(), bounded_least_squares(z.numpy(), weight * sigma**2), atol=1e-5)


@settings(deadline=None, max_examples=effort(7, 25))
@given(st.integers(1, 20), st.floats(0.05, 2.0), st.booleans(), st.booleans(), seeds)
def test_a_row_against_the_taut_string(n: int, strength: float, isotropic: bool, upright: bool, seed: int) -> None:
    z = noise(n, seed=seed)
    tv = TV(strength, isotropic=isotropic, tol=1e-7, max_iterations=200_000)
    x = tv(z[:, None] if upright else z[None, :], 1.0).flatten()
    np.testing.assert_allclose(x.numpy(), taut_string(z.numpy(), strength), atol=1e-5)


@settings(deadline=None, max_examples=effort(12, 30))
@given(shapes, st.booleans(), st.floats(0.1, 2.0), seeds)
def test_the_gap_is_never_negative_and_bounds_the_error(
    shape: tuple[int, int], isotropic: bool, sigma: float, seed: int
) -> None:
    z = noise(*shape, seed=seed)
    exact = TV(isotropic=isotropic, low=-0.5, tol=1e-7, max_iterations=200_000)(z, sigma)
    for iterations in (1, 3, 10, 40):
        tv = TV(isotropic=isotropic, low=-0.5, tol=0, max_iterations=iterations)
        x, dual = tv.denoise(z, sigma)
        gap = float(tv.gap(z, sigma**2, dual))
        assert gap >= 0
        assert float((x - exact).norm()) <= math.sqrt(2 * gap) + 1e-6 * float(z.norm())


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-4])
def test_the_tolerance_is_kept(tol: float, isotropic: bool) -> None:
    z = noise(3, 20, 15)
    exact = TV(isotropic=isotropic, tol=1e-7, max_iterations=100_000)(z, 0.5)
    x = TV(isotropic=isotropic, tol=tol)(z, 0.5)
    assert bool(((x - exact).norm(dim=(1, 2)) <= tol * z.norm(dim=(1, 2))).all())


def test_single_precision_reaches_the_tolerance_of_the_default() -> None:
    # Rounding must not keep the gap above its goal: this warns, and so fails, if it does.
    n = effort(32, 100)
    z = (noise(n, n) * 0.1 + torch.linspace(0, 1, n).round()).float()
    exact = TV(6.0, tol=1e-7, max_iterations=100_000)(z.double(), 0.1)
    assert relative(TV(6.0)(z, 0.1).double(), exact) <= 1e-4


def test_the_optimum_costs_less_than_its_neighbours() -> None:
    z, tv = noise(8, 8), TV(1.1, low=-0.4, **EXACT)
    x = tv(z, 0.5)

    def cost(v: Tensor) -> float:
        return float((v - z).square().sum() / 2 + 0.25 * tv.value(v))

    least = cost(x)
    assert all(cost((x + 0.01 * noise(8, 8, seed=k)).clamp(-0.4)) >= least for k in range(20))
    assert math.isinf(cost(x - 10))


@settings(deadline=None, max_examples=effort(10, 25))
@given(shapes, st.floats(0.0, 3.0), st.booleans(), seeds)
def test_the_box_is_respected(shape: tuple[int, int], sigma: float, isotropic: bool, seed: int) -> None:
    tv = TV(isotropic=isotropic, low=-0.2, high=0.4, tol=0, max_iterations=5)
    x = tv(3 * noise(*shape, seed=seed), sigma)
    assert float(x.min()) >= -0.2
    assert float(x.max()) <= 0.4


@settings(deadline=None, max_examples=effort(8, 30))
@given(shapes, st.floats(0.1, 2.0), st.booleans(), seeds)
@example((9, 9), 0.90625, True, 8)  # one that converges slowly: not to 1e-7 in 200,000 iterations
def test_firmly_nonexpansive(shape: tuple[int, int], sigma: float, isotropic: bool, seed: int) -> None:
    # Up to what the tolerance leaves open.
    a, b = noise(*shape, seed=seed), noise(*shape, seed=seed + 1)
    tv = TV(isotropic=isotropic, low=-1.0, tol=1e-6, max_iterations=200_000)
    change = tv(a, sigma) - tv(b, sigma)
    slack = 4e-6 * float(a.norm() + b.norm()) ** 2
    assert float(change.square().sum()) <= float((change * (a - b)).sum()) + slack
    assert float(change.norm()) <= float((a - b).norm()) + slack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_noise_returns_the_clipped_image(dtype: torch.dtype) -> None:
    z = noise(2, 9, 5, dtype=dtype)
    assert torch.equal(TV()(z, 0.0), z)
    assert torch.equal(TV(low=0.0)(z, 0.0), z.clamp_min(0))
    assert torch.equal(TV(tol=0, max_iterations=7)(z, torch.zeros(2)), z)
    assert torch.equal(TV(weight=0.0)(z, 1.0), z)
    assert torch.equal(TV()(z, 1e-25), z)  # its square is zero or denormal in float32; the step would be infinite


def test_a_constant_image_stays() -> None:
    for value in (-2.0, 0.0, 0.7):
        z = torch.full((6, 13), value)
        assert torch.equal(TV()(z, 5.0), z)


def test_the_mean_is_kept_and_strong_smoothing_leaves_only_it() -> None:
    z = noise(12, 10)
    assert float(TV()(z, 0.7).mean()) == pytest.approx(float(z.mean()), abs=1e-12)
    flat = TV(tol=1e-6, max_iterations=100_000)(z, 30.0)
    torch.testing.assert_close(flat, z.mean().expand(12, 10), atol=1e-4, rtol=0)


def test_a_warm_start_changes_only_how_soon() -> None:
    z = noise(30, 40)
    tv, exact = TV(tol=1e-4), TV(tol=1e-7, max_iterations=100_000)(z, 0.5)
    _, dual = tv.denoise(z + 0.01 * noise(30, 40, seed=1), 0.5)
    for start in (dual, 100 * noise(2, 30, 40, seed=2)):  # the second is not even a dual
        assert float((tv.denoise(z, 0.5, start)[0] - exact).norm()) <= 1e-4 * float(z.norm())
    # Few iterations reach from a near start what they cannot from zero.
    quick = TV(tol=0, max_iterations=10)
    assert relative(quick.denoise(z, 0.5, dual)[0], exact) < 0.3 * relative(quick(z, 0.5), exact)
    # And from the answer there is nothing left to do, so that even one iteration gives no warning.
    again, _ = TV(tol=1.001e-4, max_iterations=1).denoise(z, 0.5, tv.denoise(z, 0.5)[1])
    torch.testing.assert_close(again, tv(z, 0.5), atol=1e-12, rtol=0)


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("shape", [(24, 17), (1, 50), (50, 1), (66, 20)])
def test_an_image_does_not_know_its_batch(shape: tuple[int, int], native: bool | None) -> None:
    # Very different images and strengths, so that they are done at different times.
    z = noise(5, *shape, dtype=torch.float32) * torch.tensor([1.0, 0.3, 5.0, 1.0, 0.0])[:, None, None]
    sigma = torch.tensor([0.5, 0.3, 0.2, 0.05, 1.0])
    warm = noise(5, 2, *shape, seed=3, dtype=torch.float32)
    for start in (None, warm):
        tv = TV(tol=1e-3, max_iterations=5000)
        together, dual = tv._solve(z, sigma, start, native=native)
        for n in range(5):
            given_n = None if start is None else start[n]
            alone, dual_alone = tv._solve(z[n], sigma[n], given_n, native=native)
            assert torch.equal(alone, together[n])
            assert torch.equal(dual_alone, dual[n])


def test_leading_axes_and_one_sigma_for_each_image() -> None:
    z = noise(2, 3, 8, 9)
    sigma, tv = torch.linspace(0, 1, 6, dtype=torch.float64).reshape(2, 3), TV(max_iterations=20_000)
    x, dual = tv.denoise(z, sigma)
    assert x.shape == z.shape
    assert dual.shape == (2, 3, 2, 8, 9)
    for a in range(2):
        for b in range(3):
            torch.testing.assert_close(x[a, b], tv(z[a, b], float(sigma[a, b])), atol=1e-12, rtol=0)
    assert TV()(noise(0, 4, 4), 1.0).shape == (0, 4, 4)


def test_pure() -> None:
    z, warm, tv = noise(2, 20, 20), noise(2, 2, 20, 20, seed=1), TV(low=0.0)
    z_before, warm_before = z.clone(), warm.clone()
    first, dual = tv.denoise(z, 0.5, warm)
    second, dual_again = tv.denoise(z, 0.5, warm)
    assert torch.equal(z, z_before)
    assert torch.equal(warm, warm_before)
    assert torch.equal(first, second)
    assert torch.equal(dual, dual_again)
    assert dual.data_ptr() != warm.data_ptr()
    assert TV()(z, 0.0).data_ptr() != z.data_ptr()


def test_images_that_are_not_contiguous() -> None:
    z = noise(20, 30)
    torch.testing.assert_close(TV()(z.T, 0.5), TV()(z.T.contiguous(), 0.5), atol=0, rtol=0)
    torch.testing.assert_close(TV()(z[::2, 1::3], 0.5), TV()(z[::2, 1::3].clone(), 0.5), atol=0, rtol=0)


def test_a_nan_comes_out_and_stays_with_its_image() -> None:
    z = noise(2, 10, 10)
    clean = TV()(z, 0.5)
    z[0, 3, 3] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is not a matter of more iterations
        x = TV()(z, 0.5)
    assert bool(x[0].isnan().any())
    assert torch.equal(x[1], clean[1])


def test_too_few_iterations_are_told() -> None:
    with pytest.warns(PlugstreamWarning, match="short of its relative tolerance"):
        TV(tol=1e-9, max_iterations=3)(noise(20, 20), 0.5)


def test_mistakes_are_told_in_one_line() -> None:
    for wrong in ({"weight": -1.0}, {"low": 1.0, "high": 0.0}, {"max_iterations": 0}, {"check": 0}):
        with pytest.raises(InputError):
            TV(**wrong)
    with pytest.raises(InputError, match="warm start has shape"):
        TV().denoise(noise(4, 4), 0.1, noise(2, 4, 5))
    with pytest.raises(InputError, match="sigma"):
        TV()(noise(4, 4), -1.0)
