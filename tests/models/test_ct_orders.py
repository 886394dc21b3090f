"""Orders in which the angles of a scan are taken: spread at any time, and known again from the angles."""

from __future__ import annotations

import numpy as np
import pytest

from plugstream.models.ct_beams import find_order, ordered_angles

ORDERS = ("ascending", "golden", "bit-reversed")


def largest_gap(angles: np.ndarray, arc: float) -> float:
    turned = np.sort(angles % arc)
    return float(np.diff(np.append(turned, turned[0] + arc)).max())


@pytest.mark.parametrize("views", [8, 60, 64, 181])
def test_ascending_and_bit_reversed_orders_have_the_same_angles(views: int) -> None:
    one, other = (ordered_angles(views, np.pi, order) for order in ("ascending", "bit-reversed"))
    assert np.array_equal(one, np.pi * np.arange(views) / views)
    assert np.array_equal(one, np.sort(other))


@pytest.mark.parametrize("first", [0, 17, 400])
@pytest.mark.parametrize("count", [5, 13, 60])
def test_any_views_in_a_row_of_a_golden_order_are_spread(first: int, count: int) -> None:
    """Three gaps, of which the largest is less than 2.7 mean ones (Swierczkowski's theorem of three distances)."""
    angles = ordered_angles(500, np.pi, "golden")[first : first + count]
    assert largest_gap(angles, np.pi) < 2.7 * np.pi / count
    assert largest_gap(ordered_angles(500, np.pi)[first : first + count], np.pi) > 0.85 * np.pi


def test_the_first_powers_of_two_of_a_bit_reversed_order_are_even() -> None:
    angles = ordered_angles(64, np.pi, "bit-reversed")
    for count in (2, 4, 8, 16, 32):
        assert np.isclose(largest_gap(angles[:count], np.pi), np.pi / count)


@pytest.mark.parametrize("arc", [np.pi, 2 * np.pi])
@pytest.mark.parametrize("views", [8, 55, 64, 180])
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_known_again(order: str, views: int, arc: float) -> None:
    """From any first angle, turning either way, without whole turns, and with an encoder's error."""
    angles = ordered_angles(views, arc, order)
    off = np.random.default_rng(0).uniform(-0.01, 0.01, views) * arc / views
    for taken in (angles, 1 - angles, angles + off, (angles + 2) % (2 * np.pi), angles + np.pi * np.arange(views)):
        assert find_order(taken) in ({order} if arc == np.pi or taken[1] - taken[0] < np.pi else {order, ""})


def test_other_orders_have_no_name() -> None:
    draw = np.random.default_rng(1)
    assert find_order(draw.uniform(0, np.pi, 60)) == ""
    assert find_order(draw.permutation(ordered_angles(60, np.pi))) == ""
    assert find_order(ordered_angles(7, np.pi, "golden")) == ""
