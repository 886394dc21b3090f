"""Metadata of an image in PNG and TIFF: the scale, the origin, which way y points, the quantity.

TIFF: XResolution and YResolution in pixels a centimetre, and the description of ImageJ with the same unit, xorigin,
yorigin and, where y points up, inverty=true, so that ImageJ and Fiji show physical positions.
PNG: pHYs in pixels a metre (whole, so rounded), and text chunks `plugstream:...` with the exact numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.images.space import ImageSpace

if TYPE_CHECKING:
    from PIL.PngImagePlugin import PngInfo

__all__ = ["CYCLIC_COLOURS", "png_tags", "points_up", "tiff_tags"]

CYCLIC_COLOURS = "phase"
"""What the text chunk `plugstream:colours` of a PNG says whose colours are phases (`plugstream.images.colours`)."""

_CENTIMETRE = 0.01
_MOST = 2**32 - 1  # of pixels a metre in pHYs, and of either part of a TIFF's resolution


def tiff_tags(space: ImageSpace) -> dict[str, Any]:
    """Arguments of `tifffile.imwrite` for an image of float32 whose rows stand as they are drawn.

    A volume is a stack of slices (Z, Y, X), images with channels (C, Y, X), and volumes with channels (Z, C, Y, X).
    """
    volume = len(space.spatial) == 3
    axes = f"{'Z' if volume else ''}{'C' if space.channels else ''}YX"
    about: dict[str, Any] = {"axes": axes, "quantity": space.quantity}
    depth = space.depth()
    if depth is not None:
        about["spacing"] = depth / _CENTIMETRE
    if space.value_unit:
        about["value_unit"] = space.value_unit
    if space.upwards:
        about["inverty"] = "true"
    pixel = space.pixel()
    if pixel is None:
        return {"imagej": True, "metadata": about}
    (row, column), (height, width) = space.zero(), pixel
    about |= {"unit": "cm", "xorigin": column, "yorigin": row, "pixel_m": f"{height!r} {width!r}"}
    a_centimetre = (_CENTIMETRE / width, _CENTIMETRE / height)
    if not all(1 / _MOST < number < _MOST for number in a_centimetre):
        return {"imagej": True, "metadata": about}
    return {"imagej": True, "metadata": about, "resolution": a_centimetre, "resolutionunit": "CENTIMETER"}


def png_tags(space: ImageSpace, span: tuple[float, float], *, colours: str = "", turned: float = 0.0) -> dict[str, Any]:
    """Arguments of Pillow's `save` for a PNG whose rows stand as they are drawn.

    Arguments: span, what black and white are, or the ends of `colours` where there are any; turned, by how many radians
    a phase was turned to be shown.
    """
    from PIL.PngImagePlugin import PngInfo

    note: PngInfo = PngInfo()
    note.add_text("plugstream:range", f"{span[0]!r} {span[1]!r}")
    note.add_text("plugstream:y", "up" if space.upwards else "down")
    note.add_text("plugstream:quantity", space.quantity)
    if space.value_unit:
        note.add_text("plugstream:unit", space.value_unit)
    if colours:
        note.add_text("plugstream:colours", colours)
        note.add_text("plugstream:turned", f"{turned!r} rad")
    pixel = space.pixel()
    if pixel is None:
        return {"pnginfo": note}
    (row, column), (height, width) = space.zero(), pixel
    note.add_text("plugstream:pixel", f"{height!r} x {width!r} m")
    note.add_text("plugstream:origin", f"row {row!r} column {column!r}")
    a_metre = (round(1 / width), round(1 / height))
    if not all(1 <= number <= _MOST for number in a_metre):
        return {"pnginfo": note}
    # Pillow takes dots an inch and writes dots a metre, rounded.
    return {"pnginfo": note, "dpi": (a_metre[0] * 0.0254, a_metre[1] * 0.0254)}


def points_up(path: Path) -> bool:
    """Whether a picture file says that y points up in it, so that its rows stand in the opposite order of the array."""
    kind = path.suffix.lower()
    if kind in (".tif", ".tiff"):
        import tifffile

        with tifffile.TiffFile(path) as file:
            return bool((file.imagej_metadata or {}).get("inverty", False))
    if kind == ".png":
        from PIL import Image

        with Image.open(path) as picture:
            return bool(picture.info.get("plugstream:y") == "up")
    return False
