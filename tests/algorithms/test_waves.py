"""Inexact ADMM and falling sigmas for intensities of waves: against SciPy, differences of gradients, and the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from plugstream import TV, All, Amplitude, FromFunction, Huber, InexactADMM, InputError, LossFidelity, Poisson
from plugstream.algorithms import FallingWaveSearch
from plugstream.models.matrix import MatrixModel
from plugstream.models.ptychography import PtychographyModel

SIDE, PROBE = 10, 6
PLACES = np.array([[r, c] for r in (0.0, 2.3, 4.0) for c in (0.0, 1.6, 4.0)])


def waves(seed, *shape):
    draw = np.random.default_rng(seed)
    return draw.standard_normal(shape) + 1j * draw.standard_normal(shape)


def toward_mean(z, sigma):
    """The prox of sigma^2 / 2 times the squared distance of each part to its mean."""
    return (z + sigma**2 * z.mean((-2, -1), keepdim=True)) / (1 + sigma**2)


def fidelity(loss, photons=50.0, modes=1, noisy=True):
    """A small object seen by nine beams, and what it is."""
    probe = waves(0, modes, PROBE, PROBE)
    model = PtychographyModel(PLACES, probe * math.sqrt(photons) / PROBE, (SIDE, SIDE), dtype=torch.float64)
    truth = torch.from_numpy(1 + 0.3 * waves(1, SIDE, SIDE))
    intensities = model.forward(truth).abs().square().sum(-3)
    counts = np.random.default_rng(2).poisson(intensities.numpy()) if noisy else intensities.numpy()
    return LossFidelity(model, torch.from_numpy(counts).double(), loss), truth


@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize("loss", [Amplitude(), Poisson(floor=1e-9)])
def test_at_a_fit_the_curvature_is_that_of_differences_of_gradients(loss, modes):
    d, truth = fidelity(loss, modes=modes, noisy=False)
    v, views, weights, h = torch.from_numpy(waves(3, SIDE, SIDE)), torch.tensor([1, 4, 8]), torch.ones(3) / 4, 1e-5
    gradient, curvature = d.quadratic(truth, views, weights)
    torch.testing.assert_close(gradient, d.gradient(truth, views, weights))
    far, near = d.gradient(truth + h * v, views, weights), d.gradient(truth - h * v, views, weights)
    torch.testing.assert_close(curvature(v), (far - near) / (2 * h), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", [Amplitude(), Poisson(floor=0.02)])
def test_the_curvature_is_symmetric_and_not_negative(loss):
    d, truth = fidelity(loss)
    _, curvature = d.quadratic(truth)
    u, v = (torch.from_numpy(waves(seed, SIDE, SIDE)) for seed in (4, 5))
    assert float((u.conj() * curvature(v)).sum().real) == pytest.approx(float((curvature(u).conj() * v).sum().real))
    assert float((u.conj() * curvature(u)).sum().real) > 0
    across = 1j * truth  # a global phase, which no intensity sees
    assert float(curvature(across).abs().max()) < 1e-10 * float(curvature(truth).abs().max())


@pytest.mark.parametrize("loss", [Amplitude(), Poisson(floor=0.02)])
def test_steps_of_one_prox_come_to_the_minimum_that_scipy_finds(loss):
    """Of one point, whatever the denoiser does."""
    d, truth = fidelity(loss)
    first, gamma = truth + 0.05 * torch.from_numpy(waves(6, SIDE, SIDE)), 0.01
    algorithm = InexactADMM(d, TV(), sigma=1.0, step_size=gamma, sampler=All())
    start_state = state = algorithm.init(first)
    for _ in range(40):
        state = algorithm.step(replace(start_state, z=state.z))

    def cost(flat):
        z = torch.view_as_complex(torch.from_numpy(flat).reshape(SIDE, SIDE, 2))
        away = z - first
        slope = d.gradient(z) + away / gamma
        value = float(d.value(z)) + float(away.abs().square().sum()) / (2 * gamma)
        return value, torch.view_as_real(slope.resolve_conj()).flatten().numpy()

    start = torch.view_as_real(first).flatten().numpy().copy()
    best = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9})
    found = torch.view_as_real(state.z.resolve_conj()).flatten().numpy()
    np.testing.assert_allclose(found, best.x, atol=1e-4)


@pytest.mark.parametrize("loss", [Amplitude(), Poisson(floor=0.02)])
def test_its_fixed_points_are_those_of_a_gradient_step_and_the_denoiser(loss):
    d, truth = fidelity(loss)
    algorithm = InexactADMM(d, FromFunction(toward_mean), sigma=1.0, step_size=0.1, sampler=All())
    state = algorithm.init(truth)
    start = float(algorithm.residual(state))
    for _ in range(80):
        state = algorithm.step(state)
    assert float(algorithm.residual(state)) < 1e-8 * start


def test_other_losses_of_waves_are_refused():
    d, _ = fidelity(Amplitude())
    model = d.model
    model = MatrixModel(torch.ones(3, 2, 4), (2, 2))
    other = LossFidelity(model, torch.ones(3, 2), Huber(0.1))
    with pytest.raises(InputError, match="losses of waves"):
        InexactADMM(other, TV(), sigma=0.1, step_size=0.1).init()
    with pytest.raises(InputError, match="second derivative of a Huber"):
        other.quadratic(torch.ones(2, 2))[1](torch.ones(2, 2))


def test_lam_is_that_of_the_noise_whatever_step_and_sigma_begin_with():
    """sqrt(2) v / n, n the views of a run, v twice the least misfit of a datum, to half a power of two."""
    steps = []
    for gamma in (0.001, 1.0):
        whole, _ = fidelity(Poisson(floor=0.02), photons=200.0)
        fewer = whole.with_views(whole.model, torch.arange(8))
        algorithm = InexactADMM(fewer, FromFunction(toward_mean), sigma=0.1, step_size=gamma, products=6)
        search = FallingWaveSearch(algorithm, torch.tensor([8]), 288, fall=24)
        state = search.init()
        while not state.ended:
            state = search.step(state)
        asked = math.log2(math.sqrt(2) * 2 * min(state.misfits) / PROBE**2 / 8 / (0.5 / 8))
        assert state.powers[-1] == round(asked) or round(asked) in state.powers
        assert abs(state.place_found - asked) < 1e-6 or abs(state.place_found - asked) > 0.5
        assert search.found_step(state) == pytest.approx(state.sigma**2 / (0.5 / 8 * 2**state.place_found))
        steps.append(search.found_step(state) / state.sigma**2)
    assert steps[0] == pytest.approx(steps[1])


def test_a_prior_that_does_not_suit_the_object_is_not_weighed_ever_more():
    """Its misfit asks for more and more of it, run after run; the run with less, which has less misfit, goes on."""
    whole, _ = fidelity(Poisson(floor=0.02), photons=200.0)
    fewer = whole.with_views(whole.model, torch.arange(8))
    algorithm = InexactADMM(fewer, FromFunction(lambda z, s: z / (1 + s)), sigma=0.1, step_size=1.0, products=6)
    search = FallingWaveSearch(algorithm, torch.tensor([8]), 288, fall=24)
    state = search.init()
    while not state.ended:
        state = search.step(state)
    assert len(state.powers) == 2
    assert state.powers[1] > 0
    assert state.misfit == state.misfits[0] < state.misfits[1]
    assert state.place_found == 0.5
