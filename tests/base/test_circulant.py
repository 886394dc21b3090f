"""The circulant next to an operator, and conjugate gradients with it, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.base.circulant import Circulant, preconditioned_steps


def convolution(kernel: np.ndarray, size: int) -> np.ndarray:
    """The matrix of x -> k^T k x on lines of `size` values, without wrapping around: a Gram matrix."""
    long = np.stack([np.convolve(row, kernel) for row in np.eye(size)])
    return long @ long.conj().T


def matrix_of(circulant: Circulant, shift: float) -> np.ndarray:
    n = int(np.prod(circulant.shape))
    unit = torch.eye(n, dtype=torch.float64 if circulant.real else torch.complex128)
    return circulant.solve(unit.reshape(n, *circulant.shape), shift).reshape(n, n).T.numpy()


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_it_is_the_windowed_circulant(size, kind):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal(3) + (1j * rng.standard_normal(3) if kind == "complex" else 0)
    row, column = convolution(kernel, size), convolution(np.array([1.0, 0.5]), 6)
    a = np.kron(row, column)
    like = torch.zeros(size, 6, dtype=torch.float64 if kind == "real" else torch.complex128)
    found = Circulant.near(lambda x: torch.from_numpy((a @ x.numpy().ravel()).reshape(x.shape)), like, 2)
    assert float(found.spectrum.min()) >= 0

    def line(m: np.ndarray) -> np.ndarray:
        """The circulant of one axis: lag t of the middle column, weighted, at all t modulo n."""
        n = len(m)
        lags = {t: m[n // 2 + t, n // 2] * (1 - 2 * abs(t) / n) for t in range(-(n // 2), n - n // 2)}
        return np.array([[sum(v for t, v in lags.items() if (i - j - t) % n == 0) for j in range(n)] for i in range(n)])

    want = np.linalg.inv(np.kron(line(row), line(column)) + 0.3 * np.eye(6 * size))
    np.testing.assert_allclose(matrix_of(found, 0.3), want, atol=1e-12)


def test_axes_before_the_spatial_ones_are_each_of_their_own():
    scale = torch.tensor([1.0, 4.0], dtype=torch.float64)[:, None, None]
    found = Circulant.near(lambda x: scale * x, torch.zeros(2, 4, 6, dtype=torch.float64), 2)
    image = torch.randn(3, 2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.solve(image, 0.5), image / (scale + 0.5))


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
def test_steps_are_those_of_the_textbook(kind):
    """Against preconditioned conjugate gradients in NumPy, with a preconditioner that is no circulant."""
    rng = np.random.default_rng(1)
    n = 12
    wave = kind.is_complex

    def spd() -> np.ndarray:
        m = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if wave else 0)
        return m @ m.conj().T + np.eye(n)

    a, p, b = (
        spd(),
        np.linalg.inv(spd()),
        rng.standard_normal((2, n)) + (1j * rng.standard_normal((2, n)) if wave else 0),
    )
    start = np.zeros_like(b)

    def textbook(b: np.ndarray, steps: int) -> np.ndarray:
        x, r = np.zeros_like(b), b
        z = d = p @ r
        for _ in range(steps):
            alpha = (r.conj() @ z).real / (d.conj() @ a @ d).real
            x, new = x + alpha * d, r - alpha * (a @ d)
            w = p @ new
            d = w + (new.conj() @ w).real / (r.conj() @ z).real * d
            r, z = new, w
        return x

    def by(m: np.ndarray):
        return lambda v: torch.from_numpy(np.asarray(v.numpy().reshape(-1, n) @ m.T).reshape(v.shape))

    for steps in (1, 2, 5):
        args = (torch.from_numpy(start).reshape(2, 3, 4), torch.from_numpy(b).reshape(2, 3, 4), steps, 2)
        got = preconditioned_steps(by(a), by(p), *args).reshape(2, n).numpy()
        np.testing.assert_allclose(got, np.stack([textbook(one, steps) for one in b]), atol=1e-10)


def test_an_image_that_is_solved_stays():
    x = torch.ones(2, 3, 3)
    residual = torch.stack([torch.zeros(3, 3), torch.ones(3, 3)])
    out = preconditioned_steps(lambda v: 2 * v, lambda v: v, x, residual, 3, 2)
    torch.testing.assert_close(out, torch.stack([torch.ones(3, 3), torch.full((3, 3), 1.5)]))


def test_steps_end_where_the_residual_is_small_enough_of_every_image():
    """The residual is at the tolerance, and one step earlier it was not; of a stack the slowest image decides."""
    draw = torch.Generator().manual_seed(0)
    scale = torch.linspace(1, 40, 30, dtype=torch.float64).reshape(5, 6)
    b = torch.randn(2, 5, 6, generator=draw, dtype=torch.float64)
    b[0] = 0

    def solve(steps: int, tol: float = 0.0) -> tuple[torch.Tensor, int]:
        calls: list[int] = []
        out = preconditioned_steps(lambda v: (calls.append(1), scale * v)[1], lambda v: v, 0 * b, b, steps, 2, tol)
        return out, len(calls)

    found, count = solve(40, 0.03)
    assert 3 < count < 30
    torch.testing.assert_close(found, solve(count)[0])
    left = [float((b - scale * solve(steps)[0]).norm() / b.norm()) for steps in (count - 1, count)]
    assert left[0] > 0.03 >= left[1]
