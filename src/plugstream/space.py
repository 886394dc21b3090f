"""Where the pixels of an image lie and what their values are: what a picture of it needs besides the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from plugstream.scans.scan import Scan

__all__ = ["ImageSpace"]

_UNITS = (("m", 1.0), ("mm", 1e-3), ("µm", 1e-6), ("nm", 1e-9))


@dataclass(frozen=True)
class ImageSpace:
    """How an image (H, W) is drawn: the size and place of its pixels, which way y points, and what is shown.

    Pixel (i, j) is at x = x_c + (j - W // 2) pixel, y = y_c + (i - H // 2) pixel, as in `Grid`: rows go with +y. So a
    picture with y up, as physics has it, shows the last row on top. A photograph has its first row on top; it is
    upright where y is drawn downwards. Only pictures differ by this: arrays, NPY files and scans are the same.

    Arguments: pixel, its width in metres, None where it is not known (axes then count pixels); center, x_c and y_c in
    metres; y, the way in which it is drawn; quantity, what a value is, with its unit if it has one.
    """

    pixel: float | None = None
    center: tuple[float, float] = (0.0, 0.0)
    y: Literal["up", "down"] = "down"
    quantity: str = ""

    @classmethod
    def of(cls, scan: Scan) -> ImageSpace:
        """The space of a scan's image; y is drawn upwards unless the scan's provenance says `"y_axis": "down"`."""
        grid = scan.geometry.grid
        down = _y_axis(scan.provenance) == "down"
        return cls(grid.pixel, grid.center, "down" if down else "up", "permittivity contrast")

    def unit(self, shape: tuple[int, int]) -> tuple[str, float]:
        """The unit of the axes and its size in metres: the largest that keeps the outermost coordinate above one."""
        if self.pixel is None:
            return "pixels", 1.0
        furthest = max(abs(edge) for edge in self._edges(shape))
        return next(((name, size) for name, size in _UNITS if furthest >= size), _UNITS[-1])

    def extent(self, shape: tuple[int, int]) -> tuple[float, float, float, float]:
        """The outer edges of the first and last pixels, in `unit`: left, right, bottom and top as they are drawn."""
        size = self.unit(shape)[1]
        left, right, low, high = (edge / size for edge in self._edges(shape))
        return (left, right, low, high) if self.y == "up" else (left, right, high, low)

    def _edges(self, shape: tuple[int, int]) -> tuple[float, float, float, float]:
        h, w = shape
        if self.pixel is None:
            return -0.5, w - 0.5, -0.5, h - 0.5
        (x, y), p = self.center, self.pixel
        return (
            x - (w // 2 + 0.5) * p,
            x + (w - w // 2 - 0.5) * p,
            y - (h // 2 + 0.5) * p,
            y + (h - h // 2 - 0.5) * p,
        )


def _y_axis(provenance: Mapping[str, Any]) -> Any:
    """What a scan says of it, or the instrument that it was received from."""
    instrument = provenance.get("instrument")
    nested = instrument.get("y_axis") if isinstance(instrument, Mapping) else None
    return provenance.get("y_axis", nested)
