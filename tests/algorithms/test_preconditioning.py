"""The gradient over a diagonal: SIRT where there is no denoiser, never longer than the curvature allows, resumed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import (
    SNR,
    TV,
    Box,
    Diagonal,
    Identity,
    InputError,
    LeastSquares,
    LossFidelity,
    MatrixModel,
    Poisson,
    ProximalGradient,
    ShiftedViews,
    SoftThreshold,
    add_noise,
    load_picture,
    solve,
)
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import fan_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.scans.baselines.sirt import sirt
from problems import run

SHAPE = (9, 8)


@pytest.fixture(scope="module")
def fan() -> LeastSquares:
    """A fan that leaves the corners of the image to few rays, its matrix written out, which is faster in float64."""
    rays = fan_beam(np.arange(12) * np.pi / 6, 13, 1.5, source=30, detector=20)
    pixels = torch.eye(int(np.prod(SHAPE)), dtype=torch.float64).reshape(-1, *SHAPE)
    rows = CTModel(rays, Voxels(SHAPE, 1.0), dtype=torch.float64).forward(pixels)
    model = MatrixModel(list(np.moveaxis(rows.numpy(), 0, -1)), SHAPE)
    truth = torch.rand(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fidelity = LeastSquares(model, model.forward(truth), lipschitz_tol=1e-4)
    assert fidelity.lipschitz_max > 0  # which is kept: a matrix has no bound by its signs
    model.nonnegative = True
    return fidelity


def matrix(fidelity: LeastSquares) -> np.ndarray:
    """The stacked matrix, (views, rays, pixels)."""
    stack: np.ndarray = fidelity.model._stack.numpy()
    return stack


def test_by_rows_without_a_denoiser_it_is_sirt(fan):
    for denoiser, low in ((Identity(), None), (Box(0.0), 0.0)):
        want = sirt(fan.model, fan.data(), 5, low=low)
        got = run(ProximalGradient(fan, denoiser, sigma=0.0, gradient=Diagonal(rows=True)), 5).image
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rows", [False, True])
def test_the_formula(fan, rows):
    a, y = matrix(fan), fan.data().numpy()
    sampler = ShiftedViews(5)
    algorithm = ProximalGradient(fan, Identity(), sigma=0.0, sampler=sampler, gradient=Diagonal(rows))
    lengths = a.sum(-1)
    inverse = np.divide(1.0, lengths, where=lengths > 0, out=np.zeros_like(lengths))
    rays = (lengths > 0).astype(float) if rows else lengths
    diagonal = np.einsum("vrp,vr->p", a, rays) / len(a)
    x = np.zeros(a.shape[-1])
    for k in range(4):
        views = sampler.draw(k, fan.available).views.numpy()
        residual = (a[views] @ x - y[views]) * (inverse[views] if rows else 1.0)
        x = x - np.einsum("vrp,vr->p", a[views], residual) / len(views) / np.maximum(diagonal, 1e-3 * diagonal.max())
    np.testing.assert_allclose(run(algorithm, 4).image.numpy().ravel(), x, rtol=1e-9, atol=1e-11)


def test_no_curvature_is_above_one(fan):
    """C^{1/2} A^T A C^{1/2} / I of the step 1/L, and that the plain step is much shorter where rays are few."""
    a = matrix(fan).reshape(-1, int(np.prod(SHAPE)))
    scale = Diagonal().begin(fan, torch.zeros(SHAPE, dtype=torch.float64)).mean.numpy().ravel() / fan.lipschitz_max
    root = np.sqrt(scale)
    assert np.linalg.eigvalsh(root[:, None] * (a.T @ a / fan.n_views) * root).max() <= 1 + 1e-9
    assert (scale > 1 / fan.lipschitz_max).all()
    assert scale.max() > 1.5 / fan.lipschitz_max


def test_it_is_faster_and_ends_at_its_own_fixed_point(fan):
    def error(gradient):
        state = run(ProximalGradient(fan, Box(0.0), sigma=0.0, gradient=gradient), 40)
        return float(fan.value(state.image))

    assert error(Diagonal()) < 0.7 * error("plain")
    algorithm = ProximalGradient(fan, SoftThreshold(), sigma=0.3, gradient=Diagonal())
    begin, end = algorithm.init(), run(algorithm, 60)
    assert float(algorithm.residual(end)) < 1e-4 * float(algorithm.residual(begin))
    gamma, sigma = algorithm.parameters(1)
    moved = end.image - gamma * end.mean * fan.gradient(end.image)
    want = ((end.image - algorithm.denoiser(moved, sigma)) ** 2).sum()
    assert float(algorithm.residual(end)) == pytest.approx(float(want), rel=0.1, abs=1e-12)


def test_two_and_two_steps_are_four(fan):
    algorithm = ProximalGradient(fan, Box(0.0), sigma=0.0, sampler=3, gradient=Diagonal(rows=True), momentum="bounded")
    assert torch.equal(run(algorithm, 4).image, run(algorithm, 2, run(algorithm, 2)).image)


def test_models_without_such_a_diagonal_are_refused(fan):
    signed = LeastSquares(MatrixModel([-np.ones((3, 4))], (2, 2)), np.zeros((1, 3)))
    counts = LossFidelity(fan.model, fan.data().abs() + 1, Poisson())
    for fidelity in (signed, counts):
        with pytest.raises(InputError, match="a diagonal is known for linear models without negative entries"):
            Diagonal().begin(fidelity, torch.zeros(fidelity.image_shape, dtype=fidelity.dtype))


@pytest.mark.slow
def test_a_fan_with_tv_comes_further_in_as_many_steps(shared_data):
    """What docs/algorithms.md says: House at 64 x 64, 60 views of a fan, 10 a step, Nesterov's momentum, TV."""
    rays = fan_beam(np.arange(60) * np.pi / 30, 96, 2.0, source=150, detector=150)
    model = CTModel(rays, Voxels((64, 64), 1.0))
    truth = load_picture(shared_data / "paper-images" / "house.png", 64)
    fidelity = LeastSquares(model, add_noise(model.forward(truth), 35, seed=0))

    def snr(gradient):
        algorithm = ProximalGradient(
            fidelity, TV(low=0.0), sigma=0.03, sampler=ShiftedViews(10), momentum="nesterov", gradient=gradient
        )
        return solve(algorithm, iterations=60, monitors=[SNR(truth)], every=10).history["snr"].value

    plain, diagonal = snr("plain"), snr(Diagonal())
    assert diagonal[2] > plain[2] + 0.8
    assert diagonal.max() > plain.max() + 0.4
