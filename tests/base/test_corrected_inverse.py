"""Guesses of an inverse that are corrected: against direct solutions, with guesses that are poor or no numbers."""

import numpy as np
import pytest
import torch

from plugstream.base.corrected_inverse import refine


def _system(size=60, count=5, seed=0):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    matrix = np.eye(size) + 0.5 * draw(size, size) / np.sqrt(2 * size)
    return matrix, np.linalg.inv(matrix), draw(size, size) / size, draw(count, size)


def _times(matrix, kind=torch.complex128):
    a = torch.from_numpy(np.ascontiguousarray(matrix.T)).to(kind)
    return lambda v, *_: v @ a


def _off(matrix, b, found):
    return np.linalg.norm(b - found.values.numpy() @ matrix.T, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("limit", [5, 400])
@pytest.mark.parametrize(("kind", "tol"), [(torch.complex128, 1e-11), (torch.complex64, 1e-4)])
def test_solutions_are_the_direct_ones(kind, tol, limit):
    matrix, inverse, noise, b = _system()
    b[1] *= 1e-6
    rows = torch.from_numpy(b).to(kind)
    found = refine(_times(matrix, kind), _times(inverse + 0.05 * noise, kind), rows, tol=tol, limit=limit)
    assert (found.residuals <= tol).all()
    assert np.allclose(_off(matrix, b, found), found.residuals, rtol=0.02, atol=1e-6 if kind == torch.complex64 else 0)
    assert found.iterations <= (10 if kind == torch.complex128 else 4)


def test_an_inverse_needs_one_product():
    matrix, inverse, _, b = _system()
    found = refine(_times(matrix), _times(inverse), torch.from_numpy(b), tol=1e-10)
    assert found.iterations == 1
    assert (_off(matrix, b, found) < 1e-10).all()


def test_combinations_leave_the_least():
    """Of one step with a guess that is a multiple of the inverse, nothing is left."""
    matrix, inverse, _, b = _system()
    found = refine(_times(matrix), _times(3 * inverse), torch.from_numpy(b), tol=1e-10, max_iterations=1)
    assert (_off(matrix, b, found) < 1e-10).all()


def test_the_last_product_may_be_left_out():
    matrix, inverse, noise, b = _system()
    guess, rows = _times(inverse + 0.02 * noise), torch.from_numpy(b)
    whole = refine(_times(matrix), guess, rows, tol=1e-3)
    trusted = refine(_times(matrix), guess, rows, tol=1e-3, measured=False)
    assert trusted.iterations == whole.iterations - 1
    assert (_off(matrix, b, trusted) < 2e-3).all()


def test_rows_that_are_alike_or_zero():
    matrix, inverse, noise, b = _system(count=6)
    b[2], b[3], b[5] = b[0], b[0] + 1e-7 * b[4], 0
    found = refine(_times(matrix), _times(inverse + 0.05 * noise), torch.from_numpy(b), tol=1e-9)
    assert (found.residuals <= 1e-9).all()
    assert (_off(matrix, b[:5], type(found)(found.values[:5], found.residuals[:5], 0)) < 1.1e-9).all()
    assert not found.values[5].any()


@pytest.mark.parametrize("guess", [0.0, np.nan, "noise"])
def test_a_guess_that_is_no_use_ends_it(guess):
    matrix, _, noise, b = _system()
    poor = noise if guess == "noise" else np.full_like(noise, guess)
    found = refine(_times(matrix), _times(poor), torch.from_numpy(b), tol=1e-6)
    assert found.iterations <= 2
    assert (found.residuals > 1e-6).all()
    assert np.allclose(_off(matrix, b, found), found.residuals)


def test_it_stops_where_it_is_told_to():
    matrix, inverse, noise, b = _system()
    found = refine(_times(matrix), _times(inverse + noise), torch.from_numpy(b), tol=1e-12, max_iterations=2)
    assert found.iterations == 2
    assert np.allclose(_off(matrix, b, found), found.residuals)
