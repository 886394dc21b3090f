"""What an image is: its shape, whether it is complex, and what its axes and values mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError

_UNITS = {"m": 1.0, "mm": 1e-3, "µm": 1e-6, "nm": 1e-9}


@dataclass(frozen=True)
class ImageSpace:
    """The unknown of a reconstruction: its numbers, their positions and their meaning.

    An image is a tensor whose last axes are `shape`: two or three spatial axes, with one for channels before them if
    `channels`. Leading axes are independent images. Element n of a spatial axis lies at origin + n * spacing.

    Arguments:
        shape: of one image. is_complex: whether its values are. channels: whether the first axis is of channels.
        axes: names of the spatial axes, such as ("y", "x"); spacing and origin of each, in `unit`, None if unknown.
        upwards: whether the first of the last two axes points up where it is shown, as y does in physics; the rows of a
            photograph go down. Only pictures differ by this: arrays, NPY files and scans are the same.
        quantity, value_unit: what a value is, such as "permittivity contrast", and its unit, "" if it has none.
        phase: of complex values, "measured" if the data tell x from exp(i t) x for every angle t, and "free" if they do
            not, as with intensities recorded without a reference. A free phase is taken out before images are compared
            with a truth or shown (`plugstream.images.global_phase`); files of numbers keep it.
        seen: the radius about x = y = 0 of the field of view, where a detector saw part of the sample; 0 where all.
    """

    shape: tuple[int, ...]
    is_complex: bool = False
    channels: bool = False
    axes: tuple[str, ...] = ()
    spacing: tuple[float, ...] | None = None
    origin: tuple[float, ...] | None = None
    unit: str = "m"
    upwards: bool = True
    quantity: str = "value"
    value_unit: str = ""
    phase: Literal["free", "measured"] = "free"
    seen: float = 0.0

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape) or len(self.spatial) not in (2, 3):
            raise InputError(
                f"an image has two or three axes, and one of channels before them if it has those, not {self.shape}"
            )
        if not self.axes:
            object.__setattr__(self, "axes", ("z", "y", "x")[-len(self.spatial) :])
        for name in ("axes", "spacing", "origin"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.spatial):
                raise InputError(f"{name} of an image has {len(values)} entries for {len(self.spatial)} axes")
        if self.spacing is not None and not all(math.isfinite(step) and step > 0 for step in self.spacing):
            raise InputError(f"the spacing of an image's pixels must be > 0, not {self.spacing}")
        if self.phase not in ("free", "measured"):
            raise InputError(f"the phase of an image is free or measured, not {self.phase!r}")

    @property
    def free_phase(self) -> bool:
        """Whether images are complex and known only up to a global phase."""
        return self.is_complex and self.phase == "free"

    @property
    def spatial(self) -> tuple[int, ...]:
        """The shape without channels."""
        return self.shape[1:] if self.channels else self.shape

    @property
    def ndim(self) -> int:
        """How many axes at the end of a tensor are one image."""
        return len(self.shape)

    @classmethod
    def of(cls, scan: Any) -> ImageSpace:
        """The space of a scan's image; y points up unless its provenance, or its sender's, has "y_axis": "down"."""
        sender = scan.provenance.get("instrument")
        nested = sender.get("y_axis") if isinstance(sender, Mapping) else None
        space: ImageSpace = scan.instrument.image
        return replace(space, upwards=scan.provenance.get("y_axis", nested) != "down")

    def content(self) -> dict[str, Any]:
        """The space as an event stores it; `read_space` reads it."""
        return asdict(self)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse an image whose last axes are not those of the space."""
        if tuple(shape[-self.ndim :]) != tuple(self.shape):
            raise InputError(f"the image is {tuple(shape)}, but its space is of {self.shape}; they must be alike")

    def section(self, axis: int) -> ImageSpace:
        """The space of a volume's slices across one of its three spatial axes, without channels."""

        def rest(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(value for n, value in enumerate(values) if n != axis)

        return replace(
            self,
            shape=rest(self.spatial),
            channels=False,
            axes=rest(self.axes),
            spacing=None if self.spacing is None else rest(self.spacing),
            origin=None if self.origin is None else rest(self.origin),
            seen=self.seen if axis == 0 else 0.0,
        )

    def field_of_view(self, blocks: Sequence[int] = (1, 1)) -> NDArray[np.bool_] | None:
        """Which pixels of the last two axes are in the field of view, (H, W); None where all are.

        Arguments: blocks, the sizes of the blocks over whose means an image was made smaller.
        """
        if not self.seen or self.spacing is None or self.origin is None:
            return None
        places = zip(self.origin[-2:], self.spacing[-2:], self.spatial[-2:], blocks, strict=True)
        y, x = [o + s * ((b - 1) / 2 + b * np.arange(math.ceil(n / b))) for o, s, n, b in places]
        return np.asarray(np.hypot(y[:, None], x) <= self.seen)

    def position(self, axis: int, index: int) -> str:
        """Where an index of a spatial axis lies, in words: "z = 1.5 mm", or "z = 12" if the spacing is unknown."""
        if self.spacing is None or self.origin is None:
            return f"{self.axes[axis]} = {index}"
        unit, size = self.scale()
        return f"{self.axes[axis]} = {(self.origin[axis] + index * self.spacing[axis]) / size:.3g} {unit}"

    def extent_size(self) -> tuple[float, float]:
        """Height and width of the last two axes in `unit`, or in pixels if their spacing is unknown."""
        first, last, low, high = self._edges()
        return high - low, last - first

    def pixel(self) -> tuple[float, float] | None:
        """Height and width of a pixel of the last two axes in metres, None if unknown."""
        if self.spacing is None or self.unit not in _UNITS:
            return None
        return self.spacing[-2] * _UNITS[self.unit], self.spacing[-1] * _UNITS[self.unit]

    def depth(self) -> float | None:
        """The distance of a volume's slices along its first axis in metres, None if unknown."""
        if len(self.spatial) != 3 or self.spacing is None or self.unit not in _UNITS:
            return None
        return self.spacing[0] * _UNITS[self.unit]

    def scale(self) -> tuple[str, float]:
        """The unit to draw the last two axes in and its size in `unit`: the largest that keeps the outermost coordinate
        above one; pixels if the spacing is unknown."""
        if self.spacing is None:
            return "pixels", 1.0
        if self.unit not in _UNITS:
            return self.unit, 1.0
        metre = _UNITS[self.unit]
        furthest = max(abs(edge) * metre for edge in self._edges())
        name, size = next((entry for entry in _UNITS.items() if furthest >= entry[1]), ("nm", _UNITS["nm"]))
        return name, size / metre

    def extent(self) -> tuple[float, float, float, float]:
        """Outer edges of the first and last pixels in the unit of `scale`: left, right, bottom and top as drawn."""
        size = self.scale()[1]
        first, last, low, high = (edge / size for edge in self._edges())
        return (first, last, low, high) if self.upwards else (first, last, high, low)

    def zero(self) -> tuple[float, float]:
        """Row and column of x = 0, y = 0 in a picture of the image, counted from 0 at its upper left."""
        (y, x), (dy, dx) = self._corner()
        row = -y / dy
        return (self.shape[-2] - 1 - row if self.upwards else row), -x / dx

    def _corner(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The position of the first pixel of the last two axes, and the distance to the next."""
        step = (1.0, 1.0) if self.spacing is None else (self.spacing[-2], self.spacing[-1])
        return ((0.0, 0.0) if self.origin is None else (self.origin[-2], self.origin[-1])), step

    def _edges(self) -> tuple[float, float, float, float]:
        (y, x), (dy, dx) = self._corner()
        h, w = self.shape[-2:]
        return x - dx / 2, x + (w - 0.5) * dx, y - dy / 2, y + (h - 0.5) * dy


def read_space(content: Mapping[str, Any]) -> ImageSpace:
    """A space from an event; fields that this version does not know are ignored."""
    fields = ImageSpace.__dataclass_fields__
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name in fields
    }
    try:
        return ImageSpace(**values)
    except TypeError:
        raise InputError(f"there is no image with the space {dict(content)}") from None
