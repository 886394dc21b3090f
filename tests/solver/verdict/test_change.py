"""A sample that changes while it is scanned is noticed; one that does not is not taken for one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream import CTModel, LeastSquares
from plugstream.models.ct_beams import fan_beam, ordered_angles, parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.solver.verdict.change import change_evidence
from plugstream.solver.verdict.explanation import explain

pytestmark = pytest.mark.timeout(60)
SIZE, VIEWS, NOISE = 24, 72, 0.02
VOXELS = Voxels((SIZE, SIZE), 1.0 / SIZE)


def beam(order: str, turns: int = 1) -> CTModel:
    angles = np.tile(ordered_angles(VIEWS // turns, np.pi, order), turns)
    return CTModel(parallel_beam(angles, 35, 1.0 / SIZE), VOXELS)


def disc(x: float) -> torch.Tensor:
    """A disc in a larger one."""
    v, u = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    return torch.from_numpy(1.0 * (np.hypot(u, v) < 0.8) + (np.hypot(u - x, v) < 0.2)).float()


def scan(model: CTModel, speed: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Data of a disc that moves, and the mean of all its images."""
    images = torch.stack([disc(speed * (view / VIEWS - 0.5)) for view in range(VIEWS)])
    data = torch.cat([model.forward(image, [view]) for view, image in enumerate(images)])
    noise = torch.from_numpy(np.random.default_rng(seed).standard_normal(data.shape)).float()
    return data + NOISE * data.max() * noise, images.mean(0)


@thorough
def test_noise_is_no_change_but_for_one_in_a_thousand():
    views, alarms = torch.arange(VIEWS), 0
    model = beam("golden")
    clean, _ = scan(model, 0.0, 0)
    for seed in range(effort(30, 60)):
        noise = np.random.default_rng(seed).exponential(size=clean.shape) * (1 + clean.numpy())  # not Gaussian
        noise *= np.random.default_rng(seed).choice([-1, 1], clean.shape)
        alarms += change_evidence(model, torch.from_numpy(noise).float(), views) is not None
    assert alarms <= 1


@pytest.mark.parametrize(("order", "turns"), [("golden", 1), ("bit-reversed", 1), ("ascending", 3)])
def test_a_moving_part_is_a_change_where_sides_are_seen_again(order, turns):
    model = beam(order, turns)
    for speed, changes in ((0.0, False), (0.6, True)):
        data, image = scan(model, speed, 1)
        factor = change_evidence(model, data - model.forward(image), torch.arange(VIEWS))
        assert (factor is not None) == changes
        assert factor is None or factor > 1
    found = explain(LeastSquares(model, data), image)
    assert not found.explained
    assert "changed during the scan" in found.text


def test_a_single_turn_cannot_tell():
    model = beam("ascending")
    data, image = scan(model, 0.6, 1)
    assert change_evidence(model, data - model.forward(image), torch.arange(VIEWS)) is None


@pytest.mark.parametrize("offset", [0.3, 1.0, 2.0])
def test_a_single_turn_cannot_tell_wherever_it_begins(offset):
    """Its first and last views are neighbours, from which alone nothing follows, whatever the rounding."""
    angles = (ordered_angles(60, 2 * np.pi, "ascending") + offset) % (2 * np.pi)
    fan = CTModel(fan_beam(angles, 35, 2.0 / SIZE, source=3.0, detector=3.0), VOXELS)
    for seed in range(20):
        rest = torch.from_numpy(np.random.default_rng(seed).standard_normal((60, 35))).float()
        assert change_evidence(fan, rest, torch.arange(60)) is None


def test_a_few_views_and_other_beams():
    model = beam("golden")
    data, image = scan(model, 0.6, 1)
    rest = data - model.forward(image)
    assert change_evidence(model, rest[:20], torch.arange(20)) is None
    angles = ordered_angles(VIEWS, 2 * np.pi, "golden")
    fan = CTModel(fan_beam(angles, 35, 2.0 / SIZE, source=3.0, detector=3.0), VOXELS)
    data, image = scan(fan, 0.6, 1)
    assert change_evidence(fan, data - fan.forward(image), torch.arange(VIEWS)) is not None
