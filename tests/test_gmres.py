"""GMRES on many right-hand sides: against direct solutions, and each of them as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.gmres import gmres


def _system(size, count, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)
    complex_ = lambda *shape: rng.standard_normal(shape) + 1j * rng.standard_normal(shape)  # noqa: E731
    return np.eye(size) + spread * complex_(size, size) / np.sqrt(2 * size), complex_(count, size)


@pytest.mark.parametrize("restart", [7, 100])
def test_solutions_are_the_direct_ones(restart):
    matrix, b = _system(60, 5)
    a = torch.from_numpy(matrix.T)
    found = gmres(lambda v: v @ a, torch.from_numpy(b), tol=1e-11, max_iterations=400, restart=restart)
    want = np.linalg.solve(matrix, b.T).T
    assert np.abs(found.values.numpy() - want).max() < 1e-9
    true = np.linalg.norm(b - found.values.numpy() @ matrix.T, axis=1) / np.linalg.norm(b, axis=1)
    assert (true < 1.1e-11).all()
    assert np.allclose(true, found.residuals, atol=1e-13)


def test_each_row_is_solved_as_if_it_were_alone():
    matrix, b = _system(40, 4, seed=1)
    b[1] *= 1e-6  # a scale of its own
    b[2] = np.linalg.eig(matrix)[1][:, 0]  # an eigenvector: one product is enough
    b[3] = 0  # and nothing to do
    a, rhs = torch.from_numpy(matrix.T), torch.from_numpy(b)
    found = gmres(lambda v: v @ a, rhs, tol=1e-5)
    alone = [gmres(lambda v: v @ a, rhs[i : i + 1], tol=1e-5) for i in range(4)]
    for i, one in enumerate(alone):
        assert found.iterations[i] == one.iterations[0]
        assert torch.allclose(found.values[i], one.values[0], rtol=1e-12, atol=1e-20)
    assert found.iterations[2] == 1
    assert found.iterations[3] == 0
    assert not found.values[3].any()
    assert (found.residuals <= 1e-5).all()


def test_what_has_not_converged_says_so():
    matrix, b = _system(50, 2, seed=2, spread=2.0)
    a = torch.from_numpy(matrix.T)
    found = gmres(lambda v: v @ a, torch.from_numpy(b), tol=1e-8, max_iterations=5)
    assert (found.iterations == 5).all()
    assert (found.residuals > 1e-8).all()


def test_single_precision_reaches_its_tolerance():
    matrix, b = _system(200, 6, seed=3)
    a = torch.from_numpy(matrix.T).to(torch.complex64)
    found = gmres(lambda v: v @ a, torch.from_numpy(b).to(torch.complex64), tol=1e-3)
    true = np.linalg.norm(b - found.values.numpy() @ matrix.T, axis=1) / np.linalg.norm(b, axis=1)
    assert (true < 1.05e-3).all()
