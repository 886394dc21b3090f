"""Rays and voxels: where they are, what moving them means, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from plugstream.base.errors import InputError
from plugstream.models.ct_beams import cone_beam, fan_beam, helical_beam, laminography, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels

ANGLES = np.linspace(0, 2 * np.pi, 7, endpoint=False)
BEAMS = {
    "parallel": parallel_beam(ANGLES, 9, 0.5),
    "stack": parallel_beam(ANGLES, (4, 9), (0.25, 0.5)),
    "fan": fan_beam(ANGLES, 9, 0.5, source=20, detector=10),
    "curved fan": fan_beam(ANGLES, 9, 0.5, source=20, detector=10, curved=True),
    "cone": cone_beam(ANGLES, (4, 9), 0.5, source=20, detector=10),
    "curved cone": cone_beam(ANGLES, (4, 9), 0.5, source=20, detector=10, curved=True),
    "helical": helical_beam(ANGLES, (4, 9), 0.5, source=20, detector=10, pitch=3),
    "tilted": laminography(ANGLES, (4, 9), 0.5, tilt=0.5),
    "tilted cone": laminography(ANGLES, (4, 9), 0.5, tilt=0.5, source=20, detector=10),
}


def distance_to_axis(rays: Rays) -> np.ndarray[Any, Any]:
    """The signed distance of each ray from the z axis, in the plane z = 0."""
    point, direction = (part[..., :2] for part in rays.lines())
    across = direction[..., 1] * point[..., 0] - direction[..., 0] * point[..., 1]
    return np.asarray(across / np.linalg.norm(direction, axis=-1))


@pytest.mark.parametrize("name", BEAMS)
def test_a_detector_is_centred_and_turns_with_its_view(name: str) -> None:
    rays = BEAMS[name]
    pixels, directions = rays.lines()
    assert pixels.shape == directions.shape == (7, *rays.detector, 3)
    middle = pixels.reshape(7, -1, 3)
    if not np.isfinite(rays.curvature):
        np.testing.assert_allclose(middle.mean(1), rays.vectors[:, 1], atol=1e-12)
    turn = np.array([[np.cos(t) for t in ANGLES], [np.sin(t) for t in ANGLES]])
    back = turn[0][:, None] * middle[..., 0] + turn[1][:, None] * middle[..., 1]
    np.testing.assert_allclose(back, np.broadcast_to(back[0], back.shape), atol=1e-12)


def test_the_first_view_of_a_parallel_beam_looks_along_y_and_its_columns_along_x() -> None:
    pixels, directions = BEAMS["stack"].lines()
    np.testing.assert_allclose(directions[0], np.broadcast_to([0, 1, 0], (4, 9, 3)))
    np.testing.assert_allclose(pixels[0, 2, :, 0], np.arange(-4, 5) * 0.5)
    np.testing.assert_allclose(pixels[0, :, 3, 2], (np.arange(4) - 1.5) * 0.25)


def test_a_parallel_beam_is_a_fan_from_far_away() -> None:
    far = fan_beam(ANGLES, 9, 0.5, source=1e9, detector=1.0)
    np.testing.assert_allclose(distance_to_axis(far), distance_to_axis(BEAMS["parallel"]), atol=1e-7)


def test_pixels_of_a_curved_detector_are_at_equal_angles_around_the_source() -> None:
    rays = fan_beam(ANGLES, 9, 0.5, source=20, detector=10, curved=True, center=2.3)
    _, directions = rays.lines()
    np.testing.assert_allclose(np.linalg.norm(directions, axis=-1), 30)
    angle = np.unwrap(np.arctan2(directions[..., 1], directions[..., 0]), axis=1)
    np.testing.assert_allclose(np.abs(np.diff(angle, axis=1)), 0.5 / 30)
    # sin of the angle off the middle times the distance of the source
    np.testing.assert_allclose(distance_to_axis(rays), np.tile(20 * np.sin((np.arange(9) - 2.3) / 60), (7, 1)))


@settings(deadline=None, max_examples=20)
@given(st.floats(-3, 12), st.sampled_from(["parallel", "fan", "curved", "cone"]))
def test_the_center_is_the_column_whose_ray_meets_the_axis(center: float, kind: str) -> None:
    far: dict[str, Any] = {"source": 20.0, "detector": 10.0, "center": center}
    rays = {
        "parallel": lambda: parallel_beam(ANGLES, 9, 0.5, center=center),
        "fan": lambda: fan_beam(ANGLES, 9, 0.5, **far),
        "curved": lambda: fan_beam(ANGLES, 9, 0.5, **far, curved=True),
        "cone": lambda: cone_beam(ANGLES, (1, 9), 0.5, **far),
    }[kind]()
    off = distance_to_axis(rays).reshape(7, 9)
    expected = np.sign(np.arange(9) - center)
    seen = np.abs(np.arange(9) - center) > 1e-6
    assert (np.sign(off) == expected)[:, seen].all()


def test_an_axis_off_the_middle_moves_every_ray_by_as_much() -> None:
    off = fan_beam(ANGLES, 9, 0.5, source=20, detector=10, axis=0.7)
    assert distance_to_axis(off)[:, 4] == pytest.approx(-0.7)


@pytest.mark.parametrize("arc", [180.0, 360.0, 120.0, 50.0])
@pytest.mark.parametrize("beam", ["parallel", "fan"])
def test_directions_without_rays_are_those_of_no_line(beam: str, arc: float) -> None:
    angles = np.deg2rad(np.arange(0, arc, 2.0) + 17)
    rays = parallel_beam(angles, 9, 0.5) if beam == "parallel" else fan_beam(angles, 9, 0.5, source=20, detector=10)
    directions = rays.lines()[1].reshape(-1, 3)
    ways = np.rad2deg(np.arctan2(directions[:, 1], directions[:, 0]))
    apart = np.abs((np.arange(180)[:, None] - ways + 90) % 180 - 90).min(1)
    unseen = rays.unseen()
    if unseen is None:
        assert apart.max() < 5
    else:
        assert arc < 180
        middle = np.mean(unseen)
        assert np.ptp(unseen) / 2 == pytest.approx(apart.max(), abs=1)
        assert abs((middle - apart.argmax() + 90) % 180 - 90) < 2


def test_a_helix_climbs_by_its_pitch_and_is_centred() -> None:
    rays = helical_beam(np.linspace(0, 4 * np.pi, 9), (4, 9), 0.5, source=20, detector=10, pitch=3)
    np.testing.assert_allclose(rays.vectors[:, 0, 2], np.linspace(-3, 3, 9))


def test_a_tilted_detector_is_perpendicular_to_the_rays() -> None:
    for name in ("tilted", "tilted cone"):
        first, centre, u, v = np.moveaxis(BEAMS[name].vectors, 1, 0)
        along = first if BEAMS[name].parallel else centre - first
        for step in (u, v):
            np.testing.assert_allclose((along * step).sum(1), 0, atol=1e-12)
        np.testing.assert_allclose(along[:, 2] / np.linalg.norm(along, axis=1), np.sin(0.5))


@pytest.mark.parametrize("name", ["stack", "cone", "tilted"])
def test_rolls_and_shifts_of_a_view_can_be_taken_back(name: str) -> None:
    rays, each = BEAMS[name], np.linspace(-1, 1, 7)
    again = rays.roll_detector(each).roll_detector(-each).shift_detector(each, 2.0).shift_detector(-each, -2.0)
    again = again.translate([1, 2, 3]).translate([-1, -2, -3])
    np.testing.assert_allclose(again.vectors, rays.vectors, atol=1e-12)
    np.testing.assert_array_equal(rays.select([3, 3, 1]).vectors, rays.vectors[[3, 3, 1]])


def test_voxels_have_the_axis_in_their_middle_unless_an_origin_is_given() -> None:
    voxels = Voxels((4, 6, 5), (1.0, 2.0, 0.5))
    assert voxels.origin == (-1.5, -5.0, -1.0)
    assert voxels.ends == (1.5, 5.0, 1.0)
    assert Voxels.from_json(voxels.to_json()) == voxels
    assert Voxels((4, 6), 0.5, (0, 1)).origin == (0.0, 1.0)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: Voxels((4,), 1.0), "two or three whole sizes"),
        (lambda: Voxels((4, 0), 1.0), "two or three whole sizes"),
        (lambda: Voxels((1 << 20, 1 << 20), 1.0), "larger than any"),
        (lambda: Voxels((4, 4), -1.0), "spacing must be metres"),
        (lambda: Voxels((4, 4), 1.0, (0.0,)), "origin must be 2"),
        (lambda: Voxels.from_json({"shape": [4, 4]}), "voxels must have shape"),
        (lambda: Rays(np.zeros((2, 3, 3)), (4,)), r"must be \(views, 4, 3\)"),
        (lambda: Rays(np.zeros((2, 4, 3)), (4,)), "view 0: u, the step"),
        (lambda: Rays(BEAMS["fan"].vectors, (0,)), "a detector must have"),
        (lambda: Rays(BEAMS["parallel"].vectors, (9,), parallel=True, curvature=1.0), "curvature must be"),
        (lambda: Rays(BEAMS["cone"].vectors * [[[1], [1], [1], [0]]], (4, 9)), "view 0: u and v are parallel"),
        (lambda: Rays(BEAMS["tilted"].vectors, (9,), parallel=True), "view 0: the detector has no rows"),
        (lambda: Rays(BEAMS["fan"].vectors[:, [0, 0, 2, 3]], (9,)), "view 0: its rays have no direction"),
        (lambda: Rays(BEAMS["parallel"].vectors[:, [2, 1, 2, 3]], (9,), parallel=True), "within the plane"),
        (lambda: Rays(BEAMS["fan"].vectors * np.nan, (9,)), "NaN"),
        (lambda: fan_beam(ANGLES, 9, 0.5, source=-1, detector=1), "distances from the rotation axis"),
        (lambda: parallel_beam(ANGLES, 9, 0.0), "pixel must be metres"),
        (lambda: parallel_beam([np.inf], 9, 1.0), "finite radians"),
        (lambda: laminography(ANGLES, (4, 9), 0.5, tilt=2), "below 90 degrees"),
        (lambda: BEAMS["fan"].roll_detector(0.1), "can be rolled"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(what: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        what()  # type: ignore[operator]
    assert "\n" not in str(error.value)
