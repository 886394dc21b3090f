"""Training of ridge filters: its gradient against finite differences, and resumed to the bit."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream.denoisers.ridge_prior import Ridges, prox
from plugstream.studies.training.fit import fit
from plugstream.studies.training.patches import Patches
from training import ridge
from training.ridge import ridge_gradients, train_ridge


@thorough
@pytest.mark.parametrize("limit", effort([5.0], [5.0, 1e4]))
def test_training_follows_the_true_gradient(limit):
    """Against finite differences of the loss, in double precision, with and without the limit at work."""
    rng = torch.Generator().manual_seed(6)
    ridges = Ridges(
        torch.randn(4, 3, 3, generator=rng),
        torch.randn(2, 4, 2, generator=rng) - 1,
        torch.randn(2, 4, generator=rng) - 1,
        torch.tensor([0.02, 0.2]),
        torch.tensor([1.0, 4.0]),
        torch.tensor(limit),
    ).double()
    rng = torch.Generator().manual_seed(2)
    clean, noise = (torch.rand(2, 8, 9, generator=rng, dtype=torch.float64) for _ in range(2))
    sigma = torch.tensor([0.05, 0.15], dtype=torch.float64)

    def loss() -> float:
        with torch.no_grad():
            z = clean[:, None] + sigma[:, None, None, None] * noise[:, None]
            found, done = prox(ridges.at(sigma), z, 1e-13, 100_000, patience=0)
            assert done
            return float(((found - clean[:, None]) / sigma[:, None, None, None]).square().mean())

    value = ridge_gradients(ridges, clean, noise, sigma, iterations=2000, solves=300)
    assert float(value) == pytest.approx(loss(), rel=1e-6)
    for parameter in (ridges.filters, ridges.amounts, ridges.widths):
        direction = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        h = 1e-5
        with torch.no_grad():
            parameter += h * direction
            above = loss()
            parameter -= 2 * h * direction
            below = loss()
            parameter += h * direction
        slope = float((parameter.grad * direction).sum())
        assert slope == pytest.approx((above - below) / (2 * h), rel=2e-3, abs=1e-7)


def patches() -> Patches:
    rng = torch.Generator().manual_seed(0)
    waves = [torch.sin(torch.arange(24.0)[:, None] / (2 + k)) * torch.ones(26) / 2 + 0.5 for k in range(3)]
    return Patches([w + 0.01 * torch.rand(w.shape, generator=rng) for w in waves], 12)


def test_training_lowers_the_loss_and_resumes_to_the_bit(tmp_path):
    losses: list[float] = []
    whole = train_ridge(patches(), steps=8, batch=2, rate=0.005, progress=lambda k, loss: losses.append(loss))
    still: list[float] = []
    train_ridge(patches(), steps=8, batch=2, rate=1e-12, progress=lambda k, loss: still.append(loss))
    assert np.mean(losses[4:]) < 0.95 * np.mean(still[4:])  # what the start has, on the same patches

    class Stopped(Exception):
        pass

    def stop(step: int, loss: float) -> None:
        if step == 5:
            raise Stopped

    file = tmp_path / "c.safetensors"
    with pytest.raises(Stopped):
        _train(file, stop)
    parts = _train(file, None)
    assert torch.equal(parts.filters, whole.filters)
    assert torch.equal(parts.amounts, whole.amounts)


def _train(file, progress):
    """The same, with a checkpoint after every step."""
    with mock.patch.object(ridge, "fit", lambda *a, **k: fit(*a, **k, every=1)):
        return train_ridge(patches(), steps=8, batch=2, rate=0.005, checkpoint=file, progress=progress)
