"""Detectors that see part of a sample, or one side of it at a time: exact integrals of ellipses, with photon noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ellipses import BODIES, chords, counted
from plugstream.base.errors import InputError
from plugstream.models.ct_beams import fan_beam
from plugstream.scans import open_scan
from plugstream.scans.importers import import_file
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.ct import CTImport, open_reading
from plugstream.scans.importers.ct_field_of_view import ends_in_air, limit_by_memory, sample_reach, view_ends
from plugstream.scans.importers.ct_rotation_axis import covers_turn, find_center, find_fan_center, find_opposite_center
from plugstream.scans.importers.growth import Growth, NotYetError


def _turn(views: int, degrees: float) -> np.ndarray:
    return np.deg2rad(np.arange(views) * degrees / views)


def _import(folder: Path, integrals: np.ndarray, angles: np.ndarray, **options: Any) -> tuple[Any, ImportResult]:
    """Import (views, columns) or (views, rows, columns) as a Data Exchange file with a beam that drifts by 2 %."""
    p = integrals if integrals.ndim == 3 else integrals[:, None]
    drift = 1 + 0.02 * np.sin(np.arange(len(p)))[:, None, None]
    with h5py.File(folder / "a.h5", "w") as file:
        file["exchange/data"] = np.random.default_rng(0).poisson(3e4 * drift * np.exp(-p)).astype(np.float32)
        file["exchange/data_white"] = np.full((1, *p.shape[1:]), 3e4, np.float32)
        file["exchange/theta"] = np.rad2deg(angles)
    out = folder / f"{len(list(folder.iterdir()))}.zarr"
    result = import_file("ct", folder / "a.h5", out, options)[1]
    return open_scan(out), result


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("columns", [26, 38, 50])
def test_the_image_is_as_wide_as_the_sample(name: str, columns: int) -> None:
    """Of bodies that reach 30 columns from the axis, where 13, 19 or 25 are seen; nor is it more than twice as wide."""
    center, angles = (columns - 1) / 2, _turn(90, 180)
    p = counted(chords(angles, np.arange(columns) - center, BODIES[name]))
    assert ends_in_air(view_ends(p[:, None], 4), angles, float(np.quantile(p, 0.99))) == (False, False)
    assert 28 <= sample_reach(p, center) <= 75


@pytest.mark.parametrize("axis", [11.3, 5.0, 32.6])
@pytest.mark.parametrize("name", ["body", "long", "aside", "loose"])
def test_the_axis_is_found_wherever_it_is_on_the_detector(name: str, axis: float) -> None:
    angles = _turn(90, 360)
    p = counted(chords(angles, np.arange(38) - axis, BODIES[name]))
    assert abs(find_center(p, angles)[0] - axis) < 0.15
    assert abs(find_center(p[:, ::-1], -angles)[0] - (37 - axis)) < 0.15
    order = np.random.default_rng(1).permutation(90)
    assert find_opposite_center(p[order], angles[order]) == find_opposite_center(p, angles)


JITTER = np.deg2rad(np.random.default_rng(2).uniform(-1.2, 1.2, 125))
UNPAIRED = {
    "125": _turn(125, 360),
    "181": _turn(181, 360),
    "721 with both ends": np.linspace(0, 2 * np.pi, 721),
    "124.5 a turn": np.arange(125) * 2 * np.pi / 124.5,
    "jitter": _turn(125, 360) + JITTER,
    "golden": np.arange(125) * np.pi * (3 - 5**0.5),
    "three left out": np.delete(_turn(120, 360), [5, 6, 50]),
}


@settings(max_examples=4)
@pytest.mark.parametrize("way", UNPAIRED)
@given(st.sampled_from(sorted(BODIES)), st.sampled_from([(38, 9), (38, 30), (96, 19), (72, 35)]), st.floats(0, 1))
def test_the_axis_is_found_where_no_view_is_opposite_another(
    way: str, name: str, place: tuple[int, int], part: float
) -> None:
    angles, (columns, axis) = UNPAIRED[way], place
    p = counted(chords(angles, np.arange(columns) - axis - part, BODIES[name]))
    found, how = find_center(p, angles)
    assert abs(found - axis - part) < 0.2
    assert "opposite" in how or (way.startswith("721") and "half a turn" in how)


def test_opposite_views_are_interpolated_over_whole_turns_alone() -> None:
    arc = UNPAIRED["jitter"] * 340 / 360
    assert [covers_turn(angles) for angles in (arc, arc[:8], arc[:0], UNPAIRED["golden"][:6])] == [False] * 4
    assert all(map(covers_turn, UNPAIRED.values()))
    p = counted(chords(arc, np.arange(72) - 35.3))
    assert find_opposite_center(p, arc) is None
    assert "mass" in find_center(p, arc)[1]
    assert "mass" in find_center(p, UNPAIRED["125"], opposite=False)[1]


@pytest.mark.parametrize("axis", [9.4, 30.2])
@pytest.mark.parametrize("way", ["even", "125", "jitter", "golden"])
def test_the_axis_of_a_fan_is_found_wherever_it_is_on_the_detector(way: str, axis: float) -> None:
    angles = UNPAIRED.get(way, _turn(90, 360))
    rays = fan_beam(angles, 38, 1.5, source=150.0, detector=75.0, center=axis)
    points, along = (part[..., :2] for part in rays.lines())
    along = along / np.linalg.norm(along, axis=-1, keepdims=True)
    p = np.zeros(points.shape[:-1])
    for x, y, a, _, _, value in BODIES["aside"]:  # as discs
        off = points - np.array([x, y])
        across = off[..., 0] * along[..., 1] - off[..., 1] * along[..., 0]
        p += 2 * value * np.sqrt(np.maximum(a**2 - across**2, 0))
    assert abs(find_fan_center(counted(p), angles, 1.5 / 225)[0] - axis) < 0.15


def test_noise_and_views_of_one_half_turn_have_no_opposite_views() -> None:
    angles = _turn(60, 360)
    assert find_opposite_center(np.random.default_rng(0).normal(size=(60, 40)), angles) is None
    assert find_opposite_center(chords(angles / 2, np.arange(40) - 19.5), angles / 2) is None


def test_a_detector_that_sees_part_of_the_sample(tmp_path: Path) -> None:
    angles = _turn(60, 180)
    p = chords(angles, np.arange(38) - 18.5)
    scan, done = _import(tmp_path, p, angles)
    size = scan.instrument.voxels.shape[0]
    assert 58 <= size <= 100
    assert abs(scan.instrument.seen - 19) < 0.5
    assert np.abs(scan.read().numpy() - p).max() < 0.1, "nothing is taken for air"
    assert any("the detector saw part of the sample" in text for text in done.remarks)
    assert "detector saw part" in scan.instrument.describe(scan.columns, 60)["image"]
    seen = scan.instrument.image.field_of_view()
    assert seen.shape == (size, size)
    assert abs(seen.sum() / (np.pi * 19**2) - 1) < 0.06
    assert (seen[size // 2, size // 2], seen[0, 0]) == (True, False)


def test_the_width_of_the_sample_and_of_the_image_by_hand(tmp_path: Path) -> None:
    angles = _turn(30, 180)
    p = chords(angles, np.arange(38) - 18.5)
    assert _import(tmp_path, p, angles, field=70)[0].instrument.voxels.shape == (70, 70)
    assert _import(tmp_path, p, angles, size=50)[0].instrument.voxels.shape == (50, 50)
    whole = _import(tmp_path, p, angles, field=38)[0].instrument
    assert (whole.voxels.shape, whole.seen) == ((38, 38), 0.0)
    fine = _import(tmp_path, p, angles, pixel=2e-6, voxel=1e-6, field=70)[0].instrument
    assert fine.voxels.shape == (140, 140)
    assert abs(fine.seen - 38e-6) < 1e-6
    with pytest.raises(InputError, match=r"--size 50 is less than the 70 voxels of --field 70; leave one out"):
        _import(tmp_path, p, angles, field=70, size=50)


@pytest.mark.parametrize("degrees", [180, 360])
def test_views_that_end_in_air_make_the_image_that_they_made(tmp_path: Path, degrees: float) -> None:
    angles = _turn(60, degrees)
    scan, _ = _import(tmp_path, chords(angles, np.arange(72) - 34.2), angles)
    assert (scan.instrument.voxels.shape, scan.instrument.seen) == ((72, 72), 0.0)
    assert [step["step"] for step in scan.provenance["steps"]][-2:] == ["air", "rotation axis"]
    assert "mirror" in scan.provenance["steps"][-1]["found"]


@pytest.mark.parametrize("way", ["125", "jitter", "golden"])
def test_a_whole_turn_without_opposite_views_shows_both_sides(tmp_path: Path, way: str) -> None:
    scan, _ = _import(tmp_path, chords(UNPAIRED[way], np.arange(44) - 8.0), UNPAIRED[way])
    assert scan.instrument.voxels.shape[0] in (71, 72)
    assert scan.instrument.seen == 0.0
    (axis,) = (step["column"] for step in scan.provenance["steps"] if step["step"] == "rotation axis")
    assert abs(axis - 8) < 0.2


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_whole_turn_about_an_axis_at_the_side_shows_both_sides(tmp_path: Path, mirrored: bool) -> None:
    angles = _turn(120, 360)
    p = chords(angles, np.arange(44) - 8.0)
    if mirrored:
        p, angles = p[:, ::-1], -angles
    scan, done = _import(tmp_path, p, angles)
    assert scan.instrument.voxels.shape[0] in (71, 72)
    assert scan.instrument.seen == 0.0
    assert any("of air" in text or "are air" in text for text in done.remarks)
    assert (scan.read().numpy() - p).mean(1).std() < 0.005, "the beam's drift is gone"
    part, _ = _import(tmp_path, p[:, 18:] if mirrored else p[:, :26], angles)
    assert abs(part.instrument.seen - 17.5) < 0.5, "the longer side does not end in air either"
    assert part.instrument.voxels.shape[0] >= 58


def test_a_row_of_a_volume_is_enough_and_memory_bounds_its_width(tmp_path: Path, monkeypatch: Any) -> None:
    angles = _turn(40, 180)
    p = chords(angles, np.arange(38) - 18.5)[:, None] * np.array([0.0, 0.2, 1.0, 0.2])[:, None]
    scan, _ = _import(tmp_path, p, angles)
    assert scan.instrument.voxels.shape[0] == 4
    assert scan.instrument.voxels.shape[1] >= 58
    assert scan.instrument.image.section(0).field_of_view() is not None
    assert scan.instrument.image.section(1).field_of_view() is None
    free = 4 * 3 * 4 * 50**2
    monkeypatch.setattr("plugstream.scans.importers.ct_field_of_view.free_memory", lambda: free)
    assert limit_by_memory(90.0, 19.0, 4) == 50.0
    scan, done = _import(tmp_path, p, angles)
    assert scan.instrument.voxels.shape == (4, 50, 50)
    assert any("memory has no room" in text for text in done.remarks)
    assert limit_by_memory(90.0, 30.0, 4) == 60.0


def test_a_recording_that_grows_waits_for_a_whole_turn_where_one_side_is_air(tmp_path: Path) -> None:
    angles, growth = _turn(120, 360), Growth()
    p = chords(angles, np.arange(44) - 8.0)

    def look(views: int, seen: Growth, **options: Any) -> Any:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["exchange/data"] = (3e4 * np.exp(-p[:views, None])).astype(np.float32)
            file["exchange/data_white"] = np.full((1, 1, 44), 3e4, np.float32)
            file["exchange/theta"] = np.rad2deg(angles[:views])
        with open_reading(CTImport(**options), tmp_path / "a.h5", seen) as reading:
            return reading.instrument

    for views in (30, 50, 80):
        with pytest.raises(NotYetError, match=r"whole turn|half a turn|may become more"):
            look(views, growth)
    with pytest.raises(NotYetError, match=r"a whole turn .* \(--center COLUMN to begin at once\)"):
        look(90, growth)
    found = look(120, growth)
    assert found.voxels.shape[0] in (71, 72)
    assert (found.seen, growth.settings["field"]) == (0.0, found.voxels.shape[0])
    assert abs(growth.settings["center"] - 8) < 0.1
    early = Growth(memory={"fields": ((1, 0), 3)})
    assert look(20, early, center=8.0).voxels == look(120, early, center=8.0).voxels
