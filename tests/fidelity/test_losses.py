"""Losses: derivatives against finite differences, curvature as a majorizer, convexity, and meaning of weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from plugstream.base.errors import InputError
from plugstream.fidelity.losses import Amplitude, Gaussian, Huber, Loss, Poisson, Transmission

REAL: list[Loss] = [
    Gaussian(),
    Gaussian(weights=torch.tensor([0.5, 2.0, 0.0, 1.0])),
    Huber(0.7),
    Poisson(0.3, 0.5),
    Transmission(),
    Transmission(limit=0.3),
]
WAVES: list[Loss] = [Gaussian(), Huber(0.7), Poisson(0.0, 0.05), Amplitude(), Amplitude(roots=True)]


def _cases(seed: int) -> list[tuple[Loss, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.poisson(torch.full((6, 4), 3.0, dtype=torch.float64), generator=generator)
    p = 3 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    q = torch.complex(p, 3 * torch.randn(6, 4, generator=generator, dtype=torch.float64))
    return [*((loss, p, y) for loss in REAL), *((loss, q, y) for loss in WAVES)]


@pytest.mark.parametrize("number", range(len(REAL) + len(WAVES)))
def test_the_derivative_is_that_of_the_value(number: int) -> None:
    loss, p, y = _cases(1)[number]
    g = loss.derivative(p, y)
    for direction in (1.0, 1j) if p.is_complex() else (1.0,):
        h = 1e-6
        step = torch.full_like(p, direction)
        slope = (loss.value(p + h * step, y) - loss.value(p - h * step, y)) / (2 * h)
        assert torch.allclose(slope, (g.conj() * step).real if p.is_complex() else g, atol=1e-6)


@pytest.mark.parametrize("number", range(len(REAL) + len(WAVES)))
def test_the_curvature_majorizes(number: int) -> None:
    loss, p, y = _cases(2)[number]
    _, q, _ = _cases(3)[number]
    c = loss.curvature(y, waves=p.is_complex())
    change = q - p
    inner = (loss.derivative(p, y).conj() * change).real
    bound = loss.value(p, y) + inner + c / 2 * change.abs() ** 2
    assert bool((loss.value(q, y) <= bound + 1e-9).all())


@pytest.mark.parametrize("number", range(len(REAL) + len(WAVES)))
def test_convexity_is_as_it_says(number: int) -> None:
    loss, p, y = _cases(4)[number]
    worst = -math.inf
    for seed in range(5, 60):
        _, q, _ = _cases(seed)[number]
        middle = loss.value((p + q) / 2, y) - (loss.value(p, y) + loss.value(q, y)) / 2
        worst = max(worst, float(middle.max()))
    assert (worst <= 1e-9) == loss.is_convex(waves=p.is_complex())


def test_poisson_is_the_likelihood_of_scipy() -> None:
    counts, expected = np.array([0.0, 1.0, 4.0, 9.0]), np.array([1.5, 2.0, 3.0, 11.0])
    loss = Poisson(background=0.5, floor=0.1)
    ours = loss.value(torch.from_numpy(expected - 0.5), torch.from_numpy(counts)).numpy()
    theirs = -stats.poisson.logpmf(counts, expected) + stats.poisson.logpmf(counts, np.maximum(counts, 1e-300))
    assert np.allclose(ours, theirs, atol=1e-9)


def test_standard_deviations_are_weights_of_one_over_their_square() -> None:
    y, p = torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)
    s = torch.tensor([[1.0, 2.0, 4.0], [0.5, 1.0, 3.0]])
    for shape in (s, s.numpy(), s[0]):
        weights = 1 / torch.as_tensor(shape) ** 2
        a, b = Gaussian(deviations=shape), Gaussian(weights=weights)
        assert torch.allclose(a.derivative(p, y), b.derivative(p, y))
        assert a.curvature() == pytest.approx(b.curvature())
    one = Gaussian(weights=1 / s**2).derivative(p[1:], y[1:], torch.tensor([1]))
    assert torch.allclose(one, p[1:] / s[1:] ** 2)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InputError, match="not both"):
        Gaussian(weights=torch.ones(2), deviations=torch.ones(2))
    with pytest.raises(InputError, match="above 0"):
        Gaussian(deviations=torch.zeros(2))
    with pytest.raises(InputError, match="delta"):
        Huber(0.0)
    with pytest.raises(InputError, match="counts"):
        Poisson().check(torch.tensor([-1.0]))
    with pytest.raises(InputError, match="intensities"):
        Amplitude().check(torch.tensor([1j]))


def test_a_transmission_loss_is_the_likelihood_of_counts():
    """N (exp(-p) + exp(-y) p) is the Poisson loss of n = N exp(-y) where N exp(-p) is expected, wherever p >= 0."""
    p, y, photons = torch.rand(50).double() * 5, torch.rand(50).double() * 5, 1000.0
    counts, expected = photons * torch.exp(-y), photons * torch.exp(-p)
    want = Poisson(floor=1e-3).value(expected, counts)
    torch.testing.assert_close(photons * Transmission().value(p, y), want)
    noisy = torch.tensor([-0.2, 0.0, 0.3, 20.0])
    best = torch.tensor([1 - 2.718281828**0.2, 0.0, 0.3, 20.0])
    torch.testing.assert_close(Transmission().value(best, noisy), torch.zeros(4), atol=1e-6, rtol=0)
    assert Transmission().derivative(best, noisy).abs().max() < 1e-6
    with pytest.raises(InputError, match="real"):
        Transmission().check(torch.zeros(2, dtype=torch.complex64))


def test_a_limited_transmission_loss_is_the_likelihood_of_counts_that_vary_more():
    """Negative binomial counts of the variance m + s^2 m^2; about the fit no ray counts by more than the limit."""
    p, photons, s = torch.linspace(-0.5, 6, 40).double(), 1000.0, 0.04
    counts = torch.arange(1, 1000, 25).double()
    loss, y = Transmission(limit=1 / (photons * s**2)), torch.log(photons / counts)
    mean, spread = photons * torch.exp(-p), 1 / s**2
    want = -stats.nbinom.logpmf(counts.numpy(), spread, spread / (spread + mean.numpy()))
    best = -stats.nbinom.logpmf(counts.numpy(), spread, spread / (spread + counts.numpy()))
    np.testing.assert_allclose(photons * loss.value(p, y).numpy(), want - best, rtol=1e-8, atol=1e-8)
    assert float(loss.value(y, y).abs().max()) == 0
    h, flat = 1e-4, torch.zeros(1, dtype=torch.float64)
    weight = float((loss.derivative(flat + h, flat) - loss.derivative(flat - h, flat)) / (2 * h))
    assert weight == pytest.approx(loss.limit / (1 + loss.limit), rel=1e-6)
    torch.testing.assert_close(
        Transmission(limit=1e6).value(p.abs(), y), Transmission().value(p.abs(), y), atol=1e-5, rtol=0
    )
    assert bool(torch.isfinite(loss.value(torch.tensor([-1e4, 1e4]), torch.zeros(2))).all())
    with pytest.raises(InputError, match="above 0"):
        Transmission(limit=0.0)
