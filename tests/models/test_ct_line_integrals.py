"""From counts to line integrals: what is put into the counts comes out of them, and bad input is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import (
    FlatField,
    air_level,
    fill_pixels,
    find_bad_pixels,
    line_integrals,
    stripe_pattern,
)


def _beam(rows: int, columns: int) -> np.ndarray:
    y, x = np.mgrid[:rows, :columns]
    return (2000 + 300 * np.cos(x / 40) + 10 * y).astype(np.float32)


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(2, 40))
def test_integrals_are_those_that_made_the_counts(seed: int, rows: int, columns: int) -> None:
    """Counts = dark + beam exp(-p), with a beam that drifts from one group of flat fields to the next."""
    draw = np.random.default_rng(seed)
    p = draw.uniform(0, 4, (5, rows, columns))
    dark, first, last = draw.uniform(50, 60, (rows, columns)), _beam(rows, columns), 1.2 * _beam(rows, columns)
    part = np.arange(5)[:, None, None] / 5
    counts = dark + ((1 - part) * first + part * last) * np.exp(-p)
    field = FlatField.from_frames([(dark + first)[None], (dark + last)[None]], dark[None], (0.0, 5.0))
    found = line_integrals(field.transmission(counts, np.arange(5)))
    np.testing.assert_allclose(found, p, atol=2e-4)
    some = line_integrals(field.transmission(counts[2:4], [2, 3]))  # a block at a time is the same
    np.testing.assert_array_equal(some, found[2:4])


def test_flat_fields_are_means_and_hold_beyond_their_groups() -> None:
    frames = np.stack([np.full((1, 3), 90.0), np.full((1, 3), 110.0)])
    field = FlatField.from_frames([frames, 2 * frames], None, (2.0, 4.0))
    assert field.beam([0, 2, 3, 4, 9])[:, 0, 0].tolist() == [100, 100, 150, 200, 200]
    alone = FlatField.from_frames([frames], np.full((1, 1, 3), 10.0))
    assert alone.beam([0, 7])[:, 0, 0].tolist() == [90, 90]
    with pytest.raises(InputError, match="place each"):
        FlatField.from_frames([frames, frames], None, (4.0, 2.0))
    with pytest.raises(InputError, match="dark field"):
        FlatField.from_frames([frames], np.zeros((1, 1, 4)))
    with pytest.raises(InputError, match="must be \\(frames"):
        FlatField.from_frames([frames[0]], None)


def test_the_floor_bounds_what_nothing_arrives_through() -> None:
    found = line_integrals([1.0, 0.0, -0.2, 1e-9, np.nan], floor=1e-3)
    np.testing.assert_allclose(found[:4], [0, -np.log(1e-3), -np.log(1e-3), -np.log(1e-3)], rtol=1e-6)
    assert np.isnan(found[4])
    with pytest.raises(InputError, match="floor"):
        line_integrals([1.0], floor=0.0)


def test_bad_pixels_are_those_that_differ_from_their_neighbours() -> None:
    beam = np.stack([_beam(6, 50)])
    dead, hot, weak = (2, 10), (3, 0), (5, 49)
    beam[0][dead], beam[0][hot], beam[0][weak] = 0, 30_000, 100
    field = FlatField(np.zeros((6, 50), np.float32), beam, np.zeros(1))
    assert sorted(map(tuple, np.argwhere(find_bad_pixels(field)))) == [dead, hot, weak]
    assert np.isnan(field.transmission(np.ones((1, 6, 50)), [0])[0][dead])


def test_bad_pixels_are_filled_linearly() -> None:
    ramp = np.broadcast_to(np.arange(12.0), (2, 3, 12)).copy()
    bad = np.zeros((3, 12), bool)
    bad[0, 3:6] = bad[1, 0] = bad[2] = True
    filled = fill_pixels(np.where(bad, np.nan, ramp), bad)
    np.testing.assert_allclose(filled[:, 0], ramp[:, 0], atol=1e-6)
    assert filled[0, 1, 0] == 1  # at an edge the nearest one
    np.testing.assert_allclose(filled[:, 2], filled[:, 1])
    with pytest.raises(InputError, match="every pixel"):
        fill_pixels(ramp, np.ones((3, 12), bool))


def test_air_is_what_the_margins_show() -> None:
    views = np.zeros((4, 2, 30))
    views[:, :, 8:20] = 3
    drift = np.array([0.1, -0.2, 0.0, 0.05])
    np.testing.assert_allclose(air_level(views + drift[:, None, None], 6), drift, atol=1e-6)
    with pytest.raises(InputError, match="margin"):
        air_level(views, 16)


def test_a_stripe_is_found_and_the_object_kept() -> None:
    x = np.arange(200.0)
    smooth = np.exp(-(((x - 90) / 40) ** 2))[None]
    stripes = np.zeros_like(smooth)
    stripes[0, [50, 120, 121]] = 0.2, -0.2, -0.2
    np.testing.assert_allclose(stripe_pattern(smooth + stripes, 13), stripes, atol=0.04)
    assert np.abs(stripe_pattern(smooth, 9)).max() < 0.01
    with pytest.raises(InputError, match="odd"):
        stripe_pattern(smooth, 8)
