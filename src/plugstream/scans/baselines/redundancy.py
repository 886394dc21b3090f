"""How much each view, and each of its rays, counts where lines are measured twice, once, or not at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["angular_weights", "redundancy_weights"]

Angles = NDArray[np.float64]

# A gap of more than so many usual ones is a part of the circle that was not measured.
_GAP = 3.0
# Radians over which a short scan fades in and out, at most.
_FADE = np.deg2rad(10.0)


def angular_weights(angles: ArrayLike, period: float) -> Angles:
    """The angle that each view stands for: half the way to its neighbours on either side, on a circle.

    Views at the same place share it. A gap of more than three times the usual one was not measured, and counts to its
    ends as a usual one; so a limited arc is not stretched over what is missing.

    Arguments: angles (views,), in any order; period, the circle, pi where opposite views show the same lines.
    """
    turned = np.asarray(angles, dtype=np.float64) % period
    order = np.argsort(turned, kind="stable")
    places = turned[order]
    gaps = np.diff(np.append(places, places[0] + period))
    apart = gaps[gaps > 1e-9 * period]
    usual = float(np.median(apart)) if len(apart) else period
    if len(angles) > 1:  # type: ignore[arg-type]
        gaps = np.where(gaps > _GAP * usual, usual, gaps)
    weights = np.empty_like(turned)
    weights[order] = 0.5 * (gaps + np.roll(gaps, 1))
    return weights


def redundancy_weights(scan: ArrayLike, angles: ArrayLike, fan: ArrayLike) -> Angles:
    """The share of a fan's ray among those along its line: c(t) / (c(t) + c(t'))

    The line of the ray at angle g of the view at t is that of the ray at -g of the view at t' = t + pi + 2 g. c is 1
    within the arc that was measured, falls to 0 towards its ends, and is 1 everywhere for a whole turn, whose shares
    are 1/2. Rays whose opposite one was not measured count whole; shares of a line always add up to 1, without steps.

    Arguments: scan (views,), the angles of all views; angles and fan, of the rays, counterclockwise, which broadcast.
    References: Parker, Med. Phys. 9(2), 1982; Noo et al., Phys. Med. Biol. 47, 2002, whose c this is.
    """
    turned = np.sort(np.asarray(scan, dtype=np.float64) % (2 * np.pi))
    gaps = np.diff(np.append(turned, turned[0] + 2 * np.pi))
    usual, widest = float(np.median(gaps)), int(gaps.argmax())
    t, g = np.asarray(angles, dtype=np.float64), np.asarray(fan, dtype=np.float64)
    if gaps[widest] <= max(_GAP * usual, 1e-9) or len(turned) < 2:
        return np.broadcast_to(0.5 + 0 * g, np.broadcast_shapes(t.shape, g.shape)).copy()
    start = turned[(widest + 1) % len(turned)]
    arc = 2 * np.pi - gaps[widest]
    fade = min(_FADE, arc / 2)

    def c(angle: Angles) -> Angles:
        inside = (angle - start + usual / 2) % (2 * np.pi)
        edge = np.minimum(inside, arc + usual - inside) / (fade + usual)
        return np.asarray(np.where(edge > 0, np.sin(np.pi / 2 * np.clip(edge, 0, 1)) ** 2, 0.0))

    own, other = c(t + 0 * g), c(t + np.pi + 2 * g)
    return np.asarray(np.where(other > 0, own / np.maximum(own + other, 1e-12), 1.0))
