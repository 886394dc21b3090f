"""The usual beams of tomography as rays: parallel, fan, cone, helical and tilted.

All of them turn about the z axis. At angle t the rays (the middle one of a fan or cone) run along (-sin t, cos t, 0),
the detector's columns along u = (cos t, sin t, 0) and its rows along v = (0, 0, 1): at angle 0 a view is the sum of an
image's rows. Angles are in radians and everything else in metres. Column and row numbers, which may be fractions, count
from 0 at the first pixel's centre.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_geometry import Rays

Points = NDArray[np.float64]
Pixel = float | tuple[float, float]
_GOLDEN = (np.sqrt(5) - 1) / 2
_CLOSE = 0.05  # of the mean step between angles: what angles of an encoder may be off


def ordered_angles(views: int, arc: float, order: str = "ascending") -> Points:
    """Angles of a scan in the order in which they are taken, so that an image can form before the last of them.

    Of n views over an arc a, view k is at a k / n if ascending; at a frac(k (sqrt 5 - 1)/2) if "golden", where the
    views of any interval of time are spread over the arc, evenly within a factor of two or so; and at a r_k / n if
    "bit-reversed", r_k being the k-th of 0 .. n - 1 in the order of their bits read backwards, where every power of two
    of first views is spread evenly.

    Arguments: views; arc, radians; order.
    References: Köhler, IEEE NSS 2004 (golden ratio); Mohan et al., IEEE Trans. Comput. Imaging 1, 2015 (bit reversal).
    """
    if order == "golden":
        return np.asarray(arc * (np.arange(views) * _GOLDEN % 1))
    ranks = np.arange(views)
    if order == "bit-reversed":
        bits = max(1, (views - 1).bit_length())
        numbers = np.arange(1 << bits)
        ranks = np.sum([(numbers >> bit & 1) << (bits - 1 - bit) for bit in range(bits)], axis=0)
        ranks = ranks[ranks < views]
    return arc * ranks / views


def find_order(angles: ArrayLike, arcs: tuple[float, ...] = (np.pi, 2 * np.pi)) -> str:
    """Which order of `ordered_angles` angles were taken in; "" where it is none, or there are fewer than eight.

    The first angle may be any, and the turn either way. Angles must fit to a twentieth of their mean step, modulo the
    arc. A scan that is still running has the first angles of its order: golden ones are known at once, bit-reversed
    ones once there is a power of two of them.

    Arguments: angles, (views,), radians; arcs that they may cover.
    """
    taken = np.asarray(angles, dtype=np.float64)
    n = len(taken)
    if n < 8:
        return ""
    for order in ("ascending", "golden", "bit-reversed"):
        for arc in arcs:
            wanted = ordered_angles(n, arc, order)
            for way in (1, -1):
                off = (way * (taken - taken[0]) - wanted + arc / 2) % arc - arc / 2
                if np.abs(off).max() <= _CLOSE * arc / n:
                    return order
    return ""


def parallel_beam(
    angles: ArrayLike, detector: int | tuple[int, int], pixel: Pixel, *, center: float | None = None
) -> Rays:
    """Rays that are parallel and perpendicular to the rotation axis: a synchrotron.

    Arguments:
        angles: (views,). detector: columns of a 2D scan, or (rows, columns).
        pixel: the detector's pixel, square, or its height and width.
        center: the column on which the rotation axis is seen; the middle, (columns - 1)/2, if not given.
    """
    d, u, v = _frame(angles)
    sizes, height, width = _detector(detector, pixel)
    rays = Rays(np.stack([d, np.zeros_like(d), width * u, height * v], 1), sizes, parallel=True)
    return rays.shift_detector(_shift(center, sizes[-1]))


def fan_beam(
    angles: ArrayLike,
    columns: int,
    pixel: float,
    *,
    source: float,
    detector: float,
    center: float | None = None,
    axis: float = 0.0,
    curved: bool = False,
) -> Rays:
    """A point source and a row of pixels, flat or on an arc around the source.

    Arguments:
        angles: (views,). columns, pixel: of the detector, along the arc if it is curved.
        source, detector: their distances from the rotation axis, on either side.
        center: the column hit by the source's ray perpendicular to the detector, which passes through the rotation axis
            unless `axis` is given; the middle if not given.
        axis: distance of the rotation axis from that ray, along u.
        curved: whether the pixels are at equal angles, on an arc around the source.
    """
    _check_distances(source, detector)
    d, u, v = _frame(angles)
    vectors = np.stack([-source * d, detector * d, pixel * u, pixel * v], 1)
    rays = Rays(vectors, (columns,), curvature=source + detector if curved else float("inf"))
    return rays.shift_detector(_shift(center, columns)).translate(-axis * u)


def cone_beam(
    angles: ArrayLike,
    detector_shape: tuple[int, int],
    pixel: Pixel,
    *,
    source: float,
    detector: float,
    center: float | None = None,
    middle: float | None = None,
    axis: float = 0.0,
    height: ArrayLike = 0.0,
    curved: bool = False,
) -> Rays:
    """A point source on a circle and a detector with rows.

    Arguments: as of `fan_beam`;
        detector_shape: (rows, columns). pixel: square, or its height and width.
        middle: the row that the horizontal ray of the source hits; the middle one if not given.
        height: z of the source, a number or one a view.
    """
    _check_distances(source, detector)
    d, u, v = _frame(angles)
    sizes, high, wide = _detector(detector_shape, pixel)
    vectors = np.stack([-source * d, detector * d, wide * u, high * v], 1)
    rays = Rays(vectors, sizes, curvature=source + detector if curved else float("inf"))
    rays = rays.shift_detector(_shift(center, sizes[1]), _shift(middle, sizes[0]))
    lift = np.broadcast_to(np.asarray(height, float), (len(d),))[:, None] * v
    return rays.translate(lift - axis * u)


def helical_beam(
    angles: ArrayLike,
    detector_shape: tuple[int, int],
    pixel: Pixel,
    *,
    source: float,
    detector: float,
    pitch: float,
    start: float | None = None,
    center: float | None = None,
    middle: float | None = None,
    curved: bool = False,
) -> Rays:
    """A cone beam whose source climbs by `pitch` metres a turn, or whose object sinks.

    Arguments: as of `cone_beam`; start: z of the source at the first angle; if not given, the path is centred on z = 0.
    """
    turned = np.atleast_1d(np.asarray(angles, dtype=np.float64))
    height = (turned - turned[0]) * pitch / (2 * np.pi) if turned.size else turned
    height = height + (start if start is not None else -(height.min() + height.max()) / 2 if height.size else 0.0)
    return cone_beam(
        turned, detector_shape, pixel, source=source, detector=detector, center=center, middle=middle, height=height,
        curved=curved,
    )  # fmt: skip


def laminography(
    angles: ArrayLike,
    detector_shape: tuple[int, int],
    pixel: Pixel,
    *,
    tilt: float,
    source: float | None = None,
    detector: float = 0.0,
    center: float | None = None,
    middle: float | None = None,
) -> Rays:
    """Rays tilted against the plane perpendicular to the rotation axis, for flat objects.

    For a tilt a, the rays run along (-sin t cos a, cos t cos a, sin a), and the detector is perpendicular to them;
    a tilt of 0 is a parallel or cone beam.

    Arguments: as of `cone_beam`; tilt in radians; source, None for a parallel beam.
    """
    if not abs(tilt) < np.pi / 2:
        raise InputError(f"a tilt is an angle below 90 degrees, in radians, not {tilt}")
    flat, u, up = _frame(angles)
    sizes, high, wide = _detector(detector_shape, pixel)
    d = np.cos(tilt) * flat + np.sin(tilt) * up
    v = np.cos(tilt) * up - np.sin(tilt) * flat
    if source is None:
        rays = Rays(np.stack([d, np.zeros_like(d), wide * u, high * v], 1), sizes, parallel=True)
    else:
        _check_distances(source, detector)
        rays = Rays(np.stack([-source * d, detector * d, wide * u, high * v], 1), sizes)
    return rays.shift_detector(_shift(center, sizes[1]), _shift(middle, sizes[0]))


def _frame(angles: ArrayLike) -> tuple[Points, Points, Points]:
    """The directions d, u and v of each view: (views, 3)."""
    turned = np.atleast_1d(np.asarray(angles, dtype=np.float64))
    if turned.ndim != 1 or not np.isfinite(turned).all():
        raise InputError(f"angles must be a list of finite radians, not of shape {turned.shape}")
    sine, cosine, zero = np.sin(turned), np.cos(turned), np.zeros_like(turned)
    return np.stack([-sine, cosine, zero], 1), np.stack([cosine, sine, zero], 1), np.stack([zero, zero, zero + 1], 1)


def _detector(shape: int | tuple[int, int], pixel: Pixel) -> tuple[tuple[int, ...], float, float]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    height, width = (pixel, pixel) if isinstance(pixel, int | float) else pixel
    if not (np.isfinite([height, width]).all() and min(height, width) > 0):
        raise InputError(f"a detector's pixel must be metres > 0, not {pixel}")
    return sizes, float(height), float(width)


def _shift(center: float | None, count: int) -> float:
    return 0.0 if center is None else (count - 1) / 2 - center


def _check_distances(source: float, detector: float) -> None:
    if not (np.isfinite([source, detector]).all() and source > 0 and source + detector > 0):
        raise InputError(
            f"source and detector must be distances from the rotation axis, the source's > 0, not {source}, {detector}"
        )
