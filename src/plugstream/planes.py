"""What a picture can show of an image: planes of two axes, and of complex values magnitude and phase."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.image_space import ImageSpace

__all__ = ["Plane", "cut_planes", "split_parts"]

_MOST_CHANNELS = 4


@dataclass(frozen=True)
class Plane:
    """A part of an image with two axes: values (H, W), the space of its axes, and which part it is, "" for all."""

    title: str
    values: NDArray[Any]
    space: ImageSpace


def cut_planes(image: NDArray[Any], space: ImageSpace, most_channels: int = _MOST_CHANNELS) -> list[list[Plane]]:
    """The planes that stand for an image, as rows of them.

    An image of two axes is itself, and its first channels a row. A volume is a row of three slices through its middle,
    across each of its axes, and its channels are such rows.

    Arguments: image (*space.shape), a single one; space.
    """
    parts = image[:most_channels] if space.channels else image[None]
    names = [f"channel {n}" if space.channels else "" for n in range(len(parts))]
    if len(space.spatial) == 2:
        flat = replace(space, shape=space.spatial, channels=False)
        return [[Plane(name, part, flat) for name, part in zip(names, parts, strict=True)]]
    rows = []
    for name, volume in zip(names, parts, strict=True):
        row = []
        for axis, size in enumerate(volume.shape):
            where = ", ".join(text for text in (name, space.position(axis, size // 2)) if text)
            row.append(Plane(where, np.take(volume, size // 2, axis), space.section(axis)))
        rows.append(row)
    return rows


def split_parts(values: NDArray[Any]) -> list[tuple[str, NDArray[Any], tuple[float, float] | None]]:
    """Real arrays that show values: themselves, or magnitude and phase in radians; each with its name and fixed range.

    The range is None where it follows from the values.
    """
    if not np.iscomplexobj(values):
        return [("", values, None)]
    return [("magnitude", np.abs(values), None), ("phase", np.angle(values), (-math.pi, math.pi))]
