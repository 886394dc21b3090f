"""The size of an image as an option: one number for all axes, or one for each."""

from __future__ import annotations

from typing import Annotated, Any

from plugstream.base.errors import InputError
from plugstream.base.registry import BeforeValidator, Field, Options


def _split_size(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value


def _one_number(value: Any) -> Any:
    if isinstance(value, str) and "," in value:
        raise ValueError("only square images are simulated here; give one number")
    return value


SquareSize = Annotated[int, BeforeValidator(_one_number)]
"""The type of an option for the size of an image that can only be square."""
ImageSides = Annotated[tuple[int, ...], BeforeValidator(_split_size)]
"""The type of an option for the size of an image: one number, or one for each axis, as in --size 96,128."""
ImageSize = Annotated[tuple[int, ...] | None, BeforeValidator(_split_size)]
"""The same where the size may be left out."""


def size_field(least: int, most: int, unknown: str, usual: tuple[int, ...] | None = None) -> Any:
    """The option for the size of an image in pixels.

    Arguments: limits of an axis; unknown, what holds without it; usual, its value then.
    """
    return Field(
        usual,
        description=f"pixels of the image, one number or rows,columns; {unknown}",
        json_schema_extra={"least": least, "most": most},
    )


def read_size(options: Options, axes: int) -> tuple[int, ...] | None:
    """The size of an image with so many axes by the option `size`, None where it is not given."""
    return None if options.size is None else image_sides(options, axes)  # type: ignore[attr-defined]


def image_sides(options: Options, axes: int) -> tuple[int, ...]:
    """The size of an image with so many axes by the option `size`, which has a value."""
    size: tuple[int, ...] = options.size  # type: ignore[attr-defined]
    limits: Any = type(options).model_fields["size"].json_schema_extra
    sizes = size * axes if len(size) == 1 else size
    if len(sizes) != axes:
        raise InputError(f"the image has {axes} axes, and --size {len(sizes)}; give one number for all, or {axes}")
    if not all(limits["least"] <= n <= limits["most"] for n in sizes):
        raise InputError(f"--size must be from {limits['least']} to {limits['most']}, not {','.join(map(str, sizes))}")
    return sizes
