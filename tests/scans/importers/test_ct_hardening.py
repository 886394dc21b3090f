"""The hardening of a beam: taken out where rays in one material show it, and left where they do not."""

import numpy as np

from disc_scans import HOLED, beam, integrals
from plugstream.scans.importers.ct_hardening import find_hardening

RAYS = beam("fan", fine=5)
MATERIAL = integrals(RAYS, HOLED) / 0.04  # lengths within it


def harden(length, a=0.04, b=1.2e-4, c=4e-7):
    return (length * (a - b * length - c * length**2)).astype(np.float32)


def test_what_is_left_is_proportional_to_the_material_on_the_way():
    data = harden(MATERIAL)
    data += 0.003 * np.random.default_rng(0).standard_normal(data.shape).astype(np.float32)
    found = find_hardening(RAYS, data)
    assert found is not None
    corrected = found.correct(data)
    there = MATERIAL > 10
    assert abs(np.polyfit(MATERIAL[there], corrected[there], 1)[0] / 0.04 - 1) < 0.07
    off = corrected[there] / (found.a * MATERIAL[there]) - 1
    assert np.abs(np.median(off)) < 0.01
    before = data[there] / MATERIAL[there]
    after = corrected[there] / MATERIAL[there]
    assert after.std() / after.mean() < 0.35 * before.std() / before.mean()


def test_nothing_is_taken_out_of_what_does_not_show_it():
    solid = integrals(RAYS, [(*HOLED[0][:3], 1.0)])
    tube = integrals(RAYS, [(1.0, -2.0, 30.0, 0.04), (1.0, -2.0, 27.0, -0.01)])
    layers = integrals(RAYS, [(1.0, -2.0, 30.0, 0.04), (1.0, -2.0, 20.0, -0.01), (6.0, 4.0, 6.0, -0.02)])
    dense = integrals(RAYS, [(1.0, -2.0, 30.0, 0.04), (3.0, -2.0, 8.0, 0.03)])
    two = integrals(RAYS, [(-12.0, 0.0, 12.0, 0.04), (14.0, 4.0, 10.0, 0.04)])
    cases = {"one energy": 0.04 * MATERIAL, "solid": harden(solid), "tube": tube, "layers": layers, "dense": dense}
    for name, data in (cases | {"two": two}).items():
        assert find_hardening(RAYS, data.astype(np.float32)) is None, name


def test_air_and_values_beyond_the_curve_go_on_smoothly():
    found = find_hardening(RAYS, harden(MATERIAL))
    assert found is not None
    values = np.linspace(-0.1, 3.0, 400, dtype=np.float32)
    corrected = found.correct(values)
    assert (np.diff(corrected) > 0).all()
    assert np.array_equal(corrected[values <= 0], values[values <= 0])
