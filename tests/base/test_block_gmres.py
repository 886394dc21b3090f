"""A space that many right-hand sides share: against direct solutions, with rows that are alike, and asked twice."""

import numpy as np
import pytest
import torch

from plugstream.base.block_gmres import KrylovSpace


def _system(size, count, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    return np.eye(size) + spread * draw(size, size) / np.sqrt(2 * size), draw(count, size)


def _space(matrix, kind=torch.complex128, **options):
    a = torch.from_numpy(matrix.T).to(kind)
    return KrylovSpace(lambda v: v @ a, **options)


def _off(matrix, b, found):
    return np.linalg.norm(b - found.values.numpy() @ matrix.T, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("limit", [12, 400])
def test_solutions_are_the_direct_ones(limit):
    matrix, b = _system(60, 5)
    found = _space(matrix, limit=limit).solve(torch.from_numpy(b), tol=1e-11, max_iterations=400)
    assert np.abs(found.values.numpy() - np.linalg.solve(matrix, b.T).T).max() < 1e-9
    assert (_off(matrix, b, found) < 1.1e-11).all()
    assert np.allclose(_off(matrix, b, found), found.residuals, atol=1e-13)


def test_rows_of_any_scale_that_are_alike_or_zero():
    matrix, b = _system(40, 6, seed=1)
    b[1] *= 1e-6
    b[2] = b[0]
    b[3] = b[0] + 1e-7 * b[4]
    b[5] = 0
    found = _space(matrix).solve(torch.from_numpy(b), tol=1e-9)
    assert (found.residuals <= 1e-9).all()
    assert not found.values[5].any()
    assert (_off(matrix, b[:5], _some(found, 5)) < 1.1e-9).all()


def _some(found, count):
    return type(found)(found.values[:count], found.residuals[:count], found.iterations)


def test_rows_share_what_they_find():
    matrix, b = _system(200, 8, seed=2, spread=0.7)
    rows = torch.from_numpy(b)
    alone = max(_space(matrix).solve(row[None], tol=1e-6).iterations for row in rows)
    space = _space(matrix)
    together = space.solve(rows, tol=1e-6)
    assert together.iterations < 0.7 * alone
    mixed = torch.randn(3, 8, dtype=rows.dtype) @ rows
    after = space.solve(mixed, tol=1e-5)  # of what is known, nothing is left to do
    assert after.iterations == 0
    assert (_off(matrix, mixed.numpy(), after) < 2e-5).all()


def test_what_has_not_converged_says_so():
    matrix, b = _system(50, 2, seed=3, spread=2.0)
    found = _space(matrix).solve(torch.from_numpy(b), tol=1e-8, max_iterations=5)
    assert found.iterations == 5
    assert (found.residuals > 1e-8).all()
    singular = _space(np.zeros((50, 50))).solve(torch.from_numpy(b), tol=1e-8)
    assert np.allclose(singular.residuals, 1, rtol=1e-12)
    broken = _space(np.full((50, 50), np.nan)).solve(torch.from_numpy(b), tol=1e-8)
    assert np.allclose(broken.residuals, 1, rtol=1e-12)


@pytest.mark.parametrize("tol", [1e-3, 1e-5])
def test_single_precision_reaches_its_tolerance(tol):
    matrix, b = _system(300, 10, seed=4, spread=0.8)
    b[7] = b[3] * (1 + 1e-4)
    found = _space(matrix, torch.complex64).solve(torch.from_numpy(b).to(torch.complex64), tol=tol)
    assert (found.residuals <= tol).all()
    assert (_off(matrix, b, found) < 1.2 * tol).all()
