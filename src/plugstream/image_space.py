"""What an image is: its shape, whether it is complex, and what its axes and values mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plugstream.errors import InputError

__all__ = ["ImageSpace"]


@dataclass(frozen=True)
class ImageSpace:
    """The unknown of a reconstruction: which numbers it has, where they lie and what they stand for.

    An image is a tensor whose last axes are `shape`: two or three spatial axes, with one for channels before them if
    `channels`. Leading axes are independent images. Element n of a spatial axis lies at origin + n * spacing.

    Arguments:
        shape: of one image. is_complex: whether its values are. channels: whether the first axis is of channels.
        axes: names of the spatial axes, such as ("y", "x"); spacing and origin of each, in `unit`, None if unknown.
        upwards: whether the first of the last two axes points up where it is shown, as y does in physics; the rows of a
            photograph go down.
        quantity, value_unit: what a value is, such as "permittivity contrast", and its unit, "" if it has none.
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

    @property
    def spatial(self) -> tuple[int, ...]:
        """The shape without channels."""
        return self.shape[1:] if self.channels else self.shape

    @property
    def ndim(self) -> int:
        """How many axes at the end of a tensor are one image."""
        return len(self.shape)
