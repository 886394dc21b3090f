"""The pixels of a two-dimensional image: how many, how large and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError

Points = NDArray[np.float64]
# A model of this many takes tens of gigabytes; more is a mistake, or somebody's who wants this process to run out.
_MOST_PIXELS = 1 << 28


@dataclass(frozen=True)
class Grid:
    """The image's pixels: (H, W) of them, square, `pixel` metres wide, about a centre.

    Pixel (i, j) is at x = x_c + (j - W // 2) * pixel, y = y_c + (i - H // 2) * pixel, so that for an even size
    the centre is a pixel, as in the paper's code.
    """

    shape: tuple[int, int]
    pixel: float
    center: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        try:
            whole = len(self.shape) == 2 and min(self.shape) >= 1 and not any(size % 1 for size in self.shape)
        except TypeError:  # texts, or a single number
            whole = False
        if not whole:
            raise InputError(f"a grid needs two whole sizes of at least 1, not {self.shape!r}")
        if self.shape[0] * self.shape[1] > _MOST_PIXELS:
            height, width = self.shape
            raise InputError(
                f"a grid of {height:.6g} x {width:.6g} pixels is larger than any image here, 16384 x 16384"
            )
        if not (isinstance(self.pixel, int | float | np.number) and np.isfinite(self.pixel) and self.pixel > 0):
            raise InputError(f"a grid needs a pixel width > 0, not {self.pixel!r}")
        if not np.isfinite(self.center).all():
            raise InputError(f"a grid needs a center of finite x and y, not {self.center}")

    @property
    def origin(self) -> tuple[float, float]:
        """y and x of the first pixel."""
        (h, w), (x, y) = self.shape, self.center
        return y - h // 2 * self.pixel, x - w // 2 * self.pixel

    def to_json(self) -> dict[str, Any]:
        """The grid as JSON."""
        return {
            "shape": [int(size) for size in self.shape],
            "pixel": float(self.pixel),
            "center": [float(x) for x in self.center],
        }

    @classmethod
    def from_json(cls, value: Any) -> Grid:
        """The grid from JSON; anything else is refused."""
        if not isinstance(value, dict):
            raise InputError(f"grid must have shape, pixel and center, not be {value!r}")
        (height, width), (pixel,), (x, y) = (_numbers(value, *key) for key in (("shape", 2), ("pixel",), ("center", 2)))
        if not (height.is_integer() and width.is_integer()):
            raise InputError(f"shape must be whole numbers, not {value['shape']!r}")
        return cls((int(height), int(width)), pixel, (x, y))

    def points(self) -> Points:
        """Pixel positions, row by row: (H * W, 2)."""
        (h, w), (xc, yc) = self.shape, self.center
        y, x = np.meshgrid(
            yc + (np.arange(h) - h // 2) * self.pixel, xc + (np.arange(w) - w // 2) * self.pixel, indexing="ij"
        )
        return np.stack([x.ravel(), y.ravel()], axis=1)


def _numbers(content: Mapping[str, Any], name: str, count: int = 1) -> list[float]:
    value: Any = content.get(name)
    numbers = value if isinstance(value, list) and count > 1 else [value]
    if len(numbers) != count or any(type(number) not in (int, float) for number in numbers):
        raise InputError(f"{name} must be {'a number' if count == 1 else f'{count} numbers'}, not {value!r}")
    return [float(number) for number in numbers]
