"""Where the object is, by the rays that touch it."""

import numpy as np
import pytest

from disc_scans import HOLED, beam, integrals
from plugstream.images.space import ImageSpace
from plugstream.models.ct_geometry import Voxels
from plugstream.models.ct_support import chords, find_tangents, fit_disc, fits, hull
from plugstream.runs.bounds import build_support

VOXELS = Voxels((96, 96), 0.8)
SPACE = ImageSpace(VOXELS.shape, spacing=VOXELS.spacing, origin=VOXELS.origin)


@pytest.mark.parametrize("kind", ["parallel", "fan", "curved fan"])
def test_a_disc_with_holes_is_found_to_a_fraction_of_a_column(kind):
    rays = beam(kind)
    data = integrals(rays, HOLED)
    data += 0.004 * np.random.default_rng(0).standard_normal(data.shape)
    (x, y, radius), mean, worst = fit_disc(find_tangents(rays, data))
    assert np.abs(np.array([x, y, radius]) - HOLED[0][:3]).max() < 0.15
    assert fits(mean, worst)
    solid = integrals(rays, [(*HOLED[0][:3], 1.0)])
    assert np.abs(chords(rays, HOLED[0][:3]) - solid).max() < 1e-9


@pytest.mark.parametrize("kind", ["parallel", "fan"])
@pytest.mark.parametrize("seed", range(4))
def test_the_hull_cuts_nothing_off_and_what_is_no_disc_is_not_taken_for_one(kind, seed):
    draw = np.random.default_rng(seed)
    discs = [(*draw.uniform(-16, 16, 2), draw.uniform(4, 13), draw.uniform(0.01, 0.05)) for _ in range(3)]
    rays = beam(kind, degrees=draw.uniform(20, 140))
    tangents = find_tangents(rays, integrals(rays, discs))
    assert not tangents.refusal
    corners = hull(tangents, VOXELS)
    inside = build_support("hull " + " ".join(f"{number:.7g}" for number in corners.ravel()), SPACE).numpy()
    y, x = (VOXELS.origin[0] + 0.8 * np.arange(96))[:, None], VOXELS.origin[1] + 0.8 * np.arange(96)
    for a, b, radius, _ in discs:
        assert inside[np.hypot(x - a, y - b) < radius].all()
    assert not inside.all()
    assert not fits(*fit_disc(tangents)[1:])


def test_data_that_do_not_tell_are_refused():
    rays = beam("fan")
    good = integrals(rays, HOLED)
    draw = np.random.default_rng(0)
    cut = integrals(rays, [(25.0, 0.0, 45.0, 0.04)])
    for data, why in (
        (cut, "beyond the detector"),
        (good + 0.1 * draw.standard_normal(good.shape), "noise"),
        (np.where(np.arange(31)[:, None] == 4, 0.0, good), "no object"),
        (np.where(np.arange(31)[:, None] == 4, np.nan, good), "do not count"),
        (np.zeros_like(good), "noise"),
    ):
        assert why in find_tangents(rays, data).refusal
    counts = np.ones(good.shape, bool)
    counts[3, 50] = False
    assert "do not count" in find_tangents(rays, good, counts).refusal


def test_an_ellipse_is_no_disc():
    rays = beam("parallel")
    _, centre, u, _ = np.moveaxis(rays.vectors[:, :, :2], 1, 0)
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    column = np.arange(100) - 49.5
    reach = np.sqrt((30.0 * u[:, 0]) ** 2 + (28.5 * u[:, 1]) ** 2)[:, None]
    place = (centre * u).sum(1)[:, None] + column
    data = 0.04 * 2 * 30.0 * 28.5 / reach**2 * np.sqrt(np.maximum(reach**2 - place**2, 0))
    assert not fits(*fit_disc(find_tangents(rays, data))[1:])
