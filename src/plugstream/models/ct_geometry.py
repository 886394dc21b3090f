"""Where the X-rays of a tomographic scan run, and where the voxels are that they cross. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError

Points = NDArray[np.float64]
_MOST_VOXELS = 1 << 36
_MOST_PIXELS = 1 << 26  # of a detector
_AT_ONCE = 1 << 13  # views that are checked together: a scan of a day has a million


@dataclass(frozen=True)
class Voxels:
    """The places of an image's values: boxes of one size, whose centres are a grid along x, y and z.

    The last axis of an image is x, the one before y and, of a volume, the first z, all of them increasing with the
    index: value (k, i, j) is at z = origin[0] + k spacing[0], y = origin[1] + i spacing[1], x = origin[2] + j
    spacing[2]. Unless an origin is given, the rotation axis x = y = 0 runs through the middle (N - 1)/2 of the array,
    which for an even size lies between two voxels. ASTRA does the same, but its first row has the largest y;
    `plugstream.images.grid.Grid` has its centre at pixel N // 2.

    Arguments:
        shape: (H, W), or (D, H, W) for a volume.
        spacing: metres from one voxel to the next along each axis of `shape`, or one number for all of them.
        origin: the centre of the first voxel, in metres, along each axis of `shape`.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]

    def __init__(
        self, shape: Sequence[int], spacing: float | Sequence[float], origin: Sequence[float] | None = None
    ) -> None:
        if len(shape) not in (2, 3) or any(size % 1 or size < 1 for size in shape):
            raise InputError(f"an image of a scan needs two or three whole sizes of at least 1, not {tuple(shape)}")
        sizes = tuple(int(size) for size in shape)
        if np.prod([float(size) for size in sizes]) > _MOST_VOXELS:
            raise InputError(f"an image of {' x '.join(map(str, sizes))} voxels is larger than any here, 4096^3")
        steps = (spacing,) * len(sizes) if isinstance(spacing, int | float) else tuple(spacing)
        if len(steps) != len(sizes) or not all(np.isfinite(step) and step > 0 for step in steps):
            raise InputError(f"spacing must be metres > 0, one number or {len(sizes)} of them, not {spacing}")
        if origin is None:
            origin = [-(size - 1) / 2 * step for size, step in zip(sizes, steps, strict=True)]
        if len(origin) != len(sizes) or not np.isfinite(np.asarray(origin, float)).all():
            raise InputError(f"origin must be {len(sizes)} finite numbers, the first voxel's centre, not {origin}")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "spacing", tuple(float(step) for step in steps))
        object.__setattr__(self, "origin", tuple(float(place) for place in origin))

    @property
    def ends(self) -> tuple[float, ...]:
        """The centre of the last voxel along each axis of `shape`."""
        return tuple(o + (n - 1) * s for o, n, s in zip(self.origin, self.shape, self.spacing, strict=True))

    def slices(self, first: int, last: int) -> Voxels:
        """Those of slices `first` to `last` (exclusive) of a volume."""
        origin = (self.origin[0] + first * self.spacing[0], *self.origin[1:])
        return Voxels((last - first, *self.shape[1:]), self.spacing, origin)

    def describe(self) -> str:
        """Their number and size in words, without a unit: "8 x 64 x 64 voxels of 0.001"."""
        steps = " x ".join(f"{step:.6g}" for step in dict.fromkeys(self.spacing))
        return f"{' x '.join(map(str, self.shape))} voxels of {steps}"

    def to_json(self) -> dict[str, Any]:
        """As JSON writes them."""
        return {"shape": list(self.shape), "spacing": list(self.spacing), "origin": list(self.origin)}

    @classmethod
    def from_json(cls, value: Any) -> Voxels:
        """Voxels from JSON; refuse anything else."""
        parts: list[Any] = []
        if isinstance(value, Mapping):
            parts = [value.get(name) for name in ("shape", "spacing", "origin")]
        if not parts or not all(
            isinstance(part, list) and all(type(number) in (int, float) for number in part) for part in parts
        ):
            raise InputError(f"voxels must have shape, spacing and origin, lists of numbers, not be {value!r}")
        return cls(*parts)


@dataclass(frozen=True, eq=False)
class Rays:
    """The rays of each view: straight lines from a source, or along a direction, to every pixel of a detector.

    A view is four vectors (x, y, z) in metres, as in ASTRA's vector geometries: the source, or the direction of the
    rays of a parallel beam; the centre of the detector; u, from one column of the detector to the next; and v, from one
    row to the next. Pixel (a, b) of (rows, columns) is at

        centre + (b - (columns - 1)/2) u + (a - (rows - 1)/2) v.

    A detector may be curved: its columns are then on an arc through the centre, |u| metres apart along it, whose
    midpoint lies `curvature` metres from it towards the source; it is usually the source itself. Rays are infinite
    lines, so the object must lie between source and detector. A 2D scan has no rows: its z components are 0, and v is
    ignored.

    Arguments:
        vectors: (views, 4, 3). detector: (columns,) or (rows, columns).
        parallel: whether the first vector is a direction, of any length.
        curvature: the radius of the detector's arc in metres, infinite for a flat one.
    Reference: the vectors are those of van Aarle et al., Opt. Express 24, 2016.
    """

    vectors: Points
    detector: tuple[int, ...]
    parallel: bool = False
    curvature: float = float("inf")

    def __post_init__(self) -> None:
        vectors = np.ascontiguousarray(self.vectors, dtype=np.float64)
        if vectors.ndim != 3 or vectors.shape[1:] != (4, 3):
            raise InputError(f"rays have shape {np.shape(self.vectors)}, but must be (views, 4, 3)")
        sizes = tuple(int(size) for size in self.detector)
        if len(sizes) not in (1, 2) or min(sizes) < 1 or np.prod([float(n) for n in sizes]) > _MOST_PIXELS:
            raise InputError(f"a detector must have (columns,) or (rows, columns), at most 2^26, not {self.detector}")
        if not self.curvature > 0 or (self.parallel and np.isfinite(self.curvature)):
            raise InputError(f"curvature must be a radius > 0, and infinite for a parallel beam, not {self.curvature}")
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "detector", sizes)
        self._check_each(0)

    def unseen(self) -> tuple[float, float] | None:
        """The widest range of directions along which no ray runs, in degrees from x towards y; None where it is narrow.

        An edge shows where a ray runs along it, so edges along these directions are not in the data. A range counts
        from 10 degrees on, if it is five times as wide as most.
        """
        first, centre, u = self.vectors[:, 0], self.vectors[:, 1], self.vectors[:, 2]
        half = (self.detector[-1] - 1) / 2 * u
        ways = [first] if self.parallel else [centre + part * half - first for part in np.linspace(-1, 1, 5)]
        x, y = np.concatenate(ways)[:, :2].T
        angles = np.sort(np.rad2deg(np.arctan2(y, x)) % 180)
        gaps = np.diff(angles, append=angles[0] + 180)
        widest = int(gaps.argmax())
        if gaps[widest] < max(10.0, 5 * float(np.median(gaps))):
            return None
        begin, end = float(angles[widest]), float(angles[widest] + gaps[widest])
        return (begin - 180, end - 180) if end > 180 else (begin, end)

    def grow(self, vectors: Points) -> Rays:
        """The rays of these views, whose first ones are those here; only the others are checked."""
        grown = copy(self)
        object.__setattr__(grown, "vectors", np.ascontiguousarray(vectors, dtype=np.float64))
        grown._check_each(len(self))
        return grown

    def _check_each(self, first: int) -> None:
        """Refuse views from `first` on that are not a beam onto a detector."""
        for begin in range(first, len(self), _AT_ONCE):
            self._check_some(self.vectors[begin : begin + _AT_ONCE], begin)

    def _check_some(self, vectors: Points, begin: int) -> None:
        """Refuse such views among some, whose first has this number."""

        def refuse(wrong: Any, why: str) -> None:
            if wrong.any():
                raise InputError(f"view {begin + int(np.argmax(wrong))}: {why}")

        refuse(~np.isfinite(vectors).all((1, 2)), "its rays hold NaN or infinity")
        first, centre, u, v = np.moveaxis(vectors, 1, 0)
        length = np.linalg.norm
        refuse(length(u, axis=1) == 0, "u, the step from one detector column to the next, is zero")
        refuse(length(first if self.parallel else centre - first, axis=1) == 0, "its rays have no direction")
        if len(self.detector) == 1:
            refuse((vectors[:, :3, 2] != 0).any(1), "the detector has no rows, so all z must be 0")
            normal = np.stack([-u[:, 1], u[:, 0], np.zeros(len(u))], 1)
        else:
            normal = np.cross(u, v)
            refuse(length(normal, axis=1) <= 1e-9 * length(u, axis=1) * length(v, axis=1), "u and v are parallel")
        along = first if self.parallel else centre - first
        cosine = np.abs((normal * along).sum(1)) / (length(normal, axis=1) * length(along, axis=1))
        refuse(cosine <= 1e-6, "its rays run within the plane of the detector")

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def ndim(self) -> int:
        """Axes of the images that the rays cross."""
        return len(self.detector) + 1

    def select(self, views: ArrayLike | slice) -> Rays:
        """The rays of some views, in this order, without repeating the checks."""
        vectors = self.vectors[views if isinstance(views, slice) else np.asarray(views)]
        if vectors.ndim != 3:
            raise InputError(f"views must be a list or a slice, not {views!r}")
        selected = copy(self)
        object.__setattr__(selected, "vectors", np.ascontiguousarray(vectors))
        return selected

    def by_angle(self) -> NDArray[np.int64]:
        """The views in the order of the angles about z from which they look: (views,)."""
        towards = self.vectors[:, 0]
        return np.argsort(np.arctan2(towards[:, 1], towards[:, 0]), kind="stable")

    def mirrored_columns(self) -> NDArray[np.int64]:
        """The columns that see as far on the other side of z, the axis of rotation: (columns,), -1 for none."""
        towards, center, along = (self.vectors[:, n, :2] for n in range(3))
        across = np.stack([-towards[:, 1], towards[:, 0]], 1)  # t towards = center + a along is where z is seen
        axis = np.median(-(center * across).sum(1) / (along * across).sum(1)) + (self.detector[-1] - 1) / 2
        columns = np.rint(2 * axis - np.arange(self.detector[-1])).astype(np.int64)
        return np.where((columns >= 0) & (columns < len(columns)), columns, -1)

    def shift_detector(self, columns: ArrayLike = 0.0, rows: ArrayLike = 0.0) -> Rays:
        """With each view's detector moved along its columns and rows, in pixels: numbers, or one a view.

        If a parallel beam sees the rotation axis at column c instead of the middle, the shift is (columns - 1)/2 - c. A
        curved detector moves along its arc.
        """
        first, centre, u, v = np.moveaxis(self.vectors, 1, 0).copy()
        across, along = (np.broadcast_to(np.asarray(n, float), (len(self),))[:, None] for n in (columns, rows))
        if np.isfinite(self.curvature):
            normal, tangent, pixel = self._arc()
            turn = across * pixel / self.curvature
            centre = centre + self.curvature * ((np.cos(turn) - 1) * normal + np.sin(turn) * tangent)
            u = pixel * (np.cos(turn) * tangent - np.sin(turn) * normal)
        else:
            centre = centre + across * u
        return replace(self, vectors=np.stack([first, centre + along * v, u, v], 1))

    def translate(self, offset: ArrayLike) -> Rays:
        """With source and detector moved by (x, y, z) metres, (3,) or (views, 3): the object moved the other way.

        To move the rotation axis itself, translate by its position, rotated with each view.
        """
        moved = self.vectors.copy()
        by = np.broadcast_to(np.asarray(offset, float), (len(self), 3))
        moved[:, 1] += by
        if not self.parallel:
            moved[:, 0] += by
        return replace(self, vectors=moved)

    def roll_detector(self, angle: ArrayLike) -> Rays:
        """With the detector turned in its own plane, from u towards v, by radians: a number, or one a view."""
        if len(self.detector) == 1 or np.isfinite(self.curvature):
            raise InputError("only a flat detector with rows can be rolled")
        turned = self.vectors.copy()
        turn = np.broadcast_to(np.asarray(angle, float), (len(self),))[:, None]
        u, v = self.vectors[:, 2], self.vectors[:, 3]
        wide, high = (np.linalg.norm(step, axis=1, keepdims=True) for step in (u, v))
        turned[:, 2] = np.cos(turn) * u + np.sin(turn) * v * wide / high
        turned[:, 3] = np.cos(turn) * v - np.sin(turn) * u * high / wide
        return replace(self, vectors=turned)

    def pixels(self) -> Points:
        """The places of the detector's pixels: (views, *detector, 3)."""
        _, centre, u, v = np.moveaxis(self.vectors, 1, 0)[:, :, None, None]
        steps = np.arange(self.detector[-1]) - (self.detector[-1] - 1) / 2
        if np.isfinite(self.curvature):
            normal, tangent, pixel = self._arc()
            turn = (steps * pixel / self.curvature)[..., None]
            arc = (np.cos(turn) - 1) * normal[:, None] + np.sin(turn) * tangent[:, None]
            places = centre + self.curvature * arc[:, None]
        else:
            places = centre + steps[:, None] * u
        if len(self.detector) == 1:
            return np.ascontiguousarray(places[:, 0])
        rows = np.arange(self.detector[0]) - (self.detector[0] - 1) / 2
        return np.asarray(places + rows[:, None, None] * v)

    def lines(self) -> tuple[Points, Points]:
        """A point on every ray and its direction, of any length: each (views, *detector, 3)."""
        pixels = self.pixels()
        first = self.vectors[:, 0].reshape(len(self), *(1,) * len(self.detector), 3)
        return pixels, np.broadcast_to(first, pixels.shape) if self.parallel else pixels - first

    def _arc(self) -> tuple[Points, Points, Points]:
        """Of a curved detector's middle: the unit normal away from the source, the unit tangent, and |u|."""
        source, centre, u, v = np.moveaxis(self.vectors, 1, 0)
        pixel = np.linalg.norm(u, axis=1, keepdims=True)
        tangent, away = u / pixel, centre - source
        away = away - (away * tangent).sum(1, keepdims=True) * tangent
        if len(self.detector) == 2:
            high = v / np.linalg.norm(v, axis=1, keepdims=True)
            away = away - (away * high).sum(1, keepdims=True) * high
        return away / np.linalg.norm(away, axis=1, keepdims=True), tangent, pixel
