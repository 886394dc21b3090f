"""The rotation axis is found to a fraction of a column, on projections of discs that are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from plugstream.base.errors import InputError
from plugstream.models.ct_beams import fan_beam
from plugstream.scans.importers.ct_rotation_axis import (
    center_of_mass,
    fan_mismatch,
    find_center,
    find_fan_center,
    mirror_mismatch,
)

DISCS = ((0.0, 0.0, 30.0, 1.0), (9.0, -6.0, 8.0, 2.0), (-12.0, 4.0, 5.0, -0.5), (3.0, 17.0, 4.0, 1.5))


def _sinogram(angles: np.ndarray, columns: int, center: float) -> np.ndarray:
    """Chords of discs (x, y, radius, attenuation), in columns."""
    s = np.arange(columns) - center
    total = np.zeros((len(angles), columns))
    for x, y, radius, value in DISCS:
        off = s[None] - (x * np.cos(angles) + y * np.sin(angles))[:, None]
        total += 2 * value * np.sqrt(np.maximum(radius**2 - off**2, 0))
    return total


@settings(max_examples=10)
@given(st.floats(38, 62), st.sampled_from([60, 81]), st.booleans())
def test_found_from_half_a_turn(center: float, views: int, backwards: bool) -> None:
    angles = np.arange(views) * np.pi / views * (-1 if backwards else 1)
    noise = np.random.default_rng(0).normal(size=(views, 100))
    found, how = find_center(_sinogram(angles, 100, center) + 0.3 * noise, angles)
    assert abs(found - center) < 0.1
    assert "mirror" in how


def test_found_from_a_whole_turn_and_from_many_columns() -> None:
    angles = np.arange(120) * 2 * np.pi / 120
    assert abs(find_center(_sinogram(angles, 100, 44.3), angles)[0] - 44.3) < 0.1
    half = np.arange(60) * np.pi / 60
    assert abs(find_center(_sinogram(half, 700, 341.7), half)[0] - 341.7) < 0.1


@given(st.floats(40, 60), st.integers(0, 100))
def test_found_by_mass_from_uneven_angles(center: float, seed: int) -> None:
    angles = np.sort(np.random.default_rng(seed).uniform(0, 2.0, 40))
    angles[[0, -1]] = 0.0, 2.0
    found, spread = center_of_mass(_sinogram(angles, 101, center), angles)
    assert abs(found - center) < 0.1
    assert spread < 0.1
    assert "mass" in find_center(_sinogram(angles, 101, center), angles)[1]


def test_the_mismatch_is_least_at_the_axis() -> None:
    angles = np.arange(100) * np.pi / 100
    rows = _sinogram(angles, 90, 43.0)
    at = {c: mirror_mismatch(rows, c) for c in (40.0, 42.0, 43.0, 44.0, 46.0)}
    assert min(at, key=at.__getitem__) == 43.0


def test_what_cannot_be_found_is_refused() -> None:
    angles = np.linspace(0, 1.5, 30)
    rows = _sinogram(angles, 80, 40.0)
    with pytest.raises(InputError, match="60 degrees"):
        find_center(rows[:10], angles[:10])
    with pytest.raises(InputError, match="give --center"):  # an object that leaves the detector on one side
        find_center(_sinogram(np.linspace(0, 2, 30), 80, 40.0)[:, 38:], np.linspace(0, 2, 30))
    with pytest.raises(InputError, match="NaN"):
        find_center(np.full((30, 80), np.nan), angles)
    with pytest.raises(InputError, match="sinogram is"):
        find_center(rows, angles[1:])


def _fan(angles: np.ndarray, center: float) -> np.ndarray:
    """The same discs in a fan beam: chords of the rays that `fan_beam` makes."""
    points, along = fan_beam(angles, 120, 1.5, source=150.0, detector=75.0, center=center).lines()
    along = along / np.linalg.norm(along, axis=-1, keepdims=True)
    total = np.zeros(points.shape[:-1])
    for x, y, radius, value in DISCS:
        off = points - np.array([x, y, 0.0])
        total += 2 * value * np.sqrt(np.maximum(radius**2 - (np.cross(off, along) ** 2).sum(-1), 0))
    return total


@pytest.mark.parametrize(("center", "way"), [(59.5, 1), (55.3, 1), (64.8, -1)])
def test_found_from_a_fans_whole_turn(center: float, way: int) -> None:
    angles = 0.3 + way * np.arange(90) * 2 * np.pi / 90
    rows = _fan(angles, center) + 0.3 * np.random.default_rng(0).normal(size=(90, 120))
    found, how = find_fan_center(rows, angles, 1.5 / 225)
    assert abs(found - center) < 0.1
    assert "two rays" in how
    order = np.argsort(angles)
    clean = _fan(angles, center)[order]
    assert (
        fan_mismatch(clean, angles[order], center, 1.5 / 225)
        < 1.0
        < fan_mismatch(clean, angles[order], center + 1, 1.5 / 225)
    )
    assert find_fan_center(rows[:45], angles[:45], 1.5 / 225) == (59.5, "the middle of the detector")


@pytest.mark.parametrize(("degrees", "center", "way"), [(200, 57.2, 1), (240, 62.3, -1), (361, 55.3, 1), (430, 58, 1)])
def test_found_from_a_part_of_a_turn_and_from_more(degrees: float, center: float, way: int) -> None:
    angles = 0.7 + way * np.deg2rad(np.arange(0, degrees, 2.0))
    rows = _fan(angles, center) + 0.3 * np.random.default_rng(0).normal(size=(len(angles), 120))
    found, how = find_fan_center(rows, angles, 1.5 / 225)
    assert "two rays" in how
    assert abs(found - center) < 0.1


def test_short_arcs_and_views_at_one_angle_tell_no_axis() -> None:
    middle = (59.5, "the middle of the detector")
    for angles in (np.deg2rad(np.arange(0, 90, 0.5)), np.zeros(30)):
        assert find_fan_center(_fan(angles, 57.0), angles, 1.5 / 225) == middle
