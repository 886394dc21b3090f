"""Transmission on ellipses of analytic line integrals: pixels are no ellipses, and the best counted rays notice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from plugstream import TV, LeastSquares, ProximalGradient, solve
from plugstream.fidelity.by_loss import DataFidelity, LossFidelity
from plugstream.fidelity.losses import Transmission
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels

Ellipse = tuple[float, float, float, float, float, float]  # value, centre x and y, half axes, angle
SIZE, VIEWS, LONGEST = 48, 60, 4.0
RAYS = parallel_beam(np.arange(VIEWS) * np.pi / VIEWS, 69, 2 / SIZE)
MODEL = CTModel(RAYS, Voxels((SIZE, SIZE), 2 / SIZE))


def phantom(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The means of nine ellipses over pixels, and their integrals along the rays, of which the longest is 4."""
    rng = np.random.default_rng(seed)
    shapes: list[Ellipse] = [(1.0, 0, 0, 0.8, 0.68, rng.uniform(0, 3))]
    for _ in range(8):
        a, b = rng.uniform(0.06, 0.28, 2)
        radius, angle = rng.uniform(0, 0.42), rng.uniform(0, 2 * np.pi)
        value = float(rng.choice([-0.6, -0.4, 0.4, 0.8, 1.2]))
        shapes.append((value, radius * np.cos(angle), radius * np.sin(angle), a, b, rng.uniform(0, 3)))
    fine = (np.arange(8 * SIZE) + 0.5) / (4 * SIZE) - 1
    x, y = np.meshgrid(fine, fine)
    direction = RAYS.vectors[:, 0, :2] / np.linalg.norm(RAYS.vectors[:, 0, :2], axis=1, keepdims=True)
    columns = np.arange(RAYS.detector[-1]) - (RAYS.detector[-1] - 1) / 2
    places = RAYS.vectors[:, None, 1, :2] + columns[:, None] * RAYS.vectors[:, None, 2, :2]
    image, integrals = np.zeros_like(x), np.zeros(places.shape[:2])
    for value, cx, cy, a, b, t in shapes:
        turn = np.array([[np.cos(t) / a, np.sin(t) / a], [-np.sin(t) / b, np.cos(t) / b]])  # to the unit circle
        u, v = np.tensordot(turn, np.stack([x - cx, y - cy]), 1)
        image += value * (u**2 + v**2 <= 1)
        p, d = (places - np.array([cx, cy])) @ turn.T, (direction @ turn.T)[:, None]
        dd, pd, pp = (d * d).sum(-1), (p * d).sum(-1), (p * p).sum(-1)
        integrals += value * 2 * np.sqrt(np.maximum(pd**2 - dd * (pp - 1), 0)) / dd
    scale = LONGEST / integrals.max()
    return scale * image.reshape(SIZE, 8, SIZE, 8).mean((1, 3)), scale * integrals


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pixels_err_more_than_counts_at_the_rim_from_a_thousand_photons_on(seed: int) -> None:
    """The model's error at rays that just touch the object is that of no noise: below it at 100, above at 1,000."""
    truth, integrals = phantom(seed)
    error = MODEL.forward(torch.from_numpy(truth).float()).numpy() - integrals
    touching = (integrals > 1e-6) & (integrals < 0.5)
    wrong = np.sqrt((error[touching] ** 2).mean())
    noise = {photons: np.sqrt((np.exp(integrals[touching]) / photons).mean()) for photons in (100, 1000)}
    assert noise[1000] < wrong < 0.6 * noise[100]
    dense = integrals > 3
    assert np.sqrt((error[dense] ** 2).mean()) < 0.3 * np.sqrt((np.exp(integrals[dense]) / 1000).mean())


@pytest.mark.slow
def test_a_limit_makes_transmission_as_good_as_logs_where_the_model_errs() -> None:
    """Strengths are chosen on two phantoms and judged on two others, at 1,000 photons."""

    def snr(seed: int, kind: str, strength: float) -> float:
        truth, integrals = phantom(seed)
        counts = np.random.default_rng(seed + 100).poisson(1000 * np.exp(-integrals))
        data = torch.from_numpy(np.log(1000 / np.maximum(counts, 0.5))).float()
        limit = 0.15 if kind == "limited" else None
        fidelity: DataFidelity = LeastSquares(MODEL, data)
        if kind != "logs":
            fidelity = LossFidelity(MODEL, data, Transmission(limit=limit))
        algorithm = ProximalGradient(fidelity, TV(low=0.0), lam=strength, momentum="nesterov", restart="gradient")
        image = solve(algorithm, iterations=200).image.numpy()
        return float(20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(truth - image)))

    reached = {}
    for kind, grid in {"logs": (5e-4, 1e-3), "poisson": (5e-5, 1e-4), "limited": (2.5e-5, 5e-5)}.items():
        best = max(grid, key=lambda strength: snr(1, kind, strength) + snr(2, kind, strength))
        reached[kind] = (snr(3, kind, best) + snr(4, kind, best)) / 2
    assert reached["poisson"] < reached["logs"] - 0.5  # what a limit is for
    assert reached["limited"] > reached["logs"] - 0.1
