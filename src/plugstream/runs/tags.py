"""What a PNG or TIFF says of an image besides its pixels: the scale, the origin, which way y points, the quantity.

TIFF: XResolution and YResolution in pixels a centimetre, and the description of ImageJ with the same unit, xorigin,
yorigin and, where y points up, inverty=true, so that ImageJ, Fiji and whoever reads the tags show physical positions.
PNG: pHYs in pixels a metre (whole, so rounded), and text chunks `plugstream:...` with the exact numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.space import ImageSpace

if TYPE_CHECKING:
    from PIL.PngImagePlugin import PngInfo

__all__ = ["png_tags", "points_up", "tiff_tags"]

_CENTIMETRE = 0.01
_MOST = 2**32 - 1  # of pixels a metre in pHYs, and of either part of a TIFF's resolution


def tiff_tags(space: ImageSpace, shape: tuple[int, int]) -> dict[str, Any]:
    """Arguments of `tifffile.imwrite` for an image (H, W) of float32 whose rows stand as they are drawn."""
    about: dict[str, Any] = {"axes": "YX"}
    if space.quantity:
        about["quantity"] = space.quantity
    if space.y == "up":
        about["inverty"] = "true"
    resolution: dict[str, Any] = {}
    if space.pixel is not None:
        column, row = _origin(space, shape)
        about |= {"unit": "cm", "xorigin": column, "yorigin": row, "pixel_m": repr(float(space.pixel))}
        a_centimetre = _CENTIMETRE / space.pixel
        if 1 / _MOST < a_centimetre < _MOST:
            resolution = {"resolution": (a_centimetre, a_centimetre), "resolutionunit": "CENTIMETER"}
    return {"imagej": True, "metadata": about, **resolution}


def png_tags(space: ImageSpace, shape: tuple[int, int], span: tuple[float, float]) -> dict[str, Any]:
    """Arguments of Pillow's `save` for a PNG whose rows stand as they are drawn; `span` is what black and white are."""
    from PIL.PngImagePlugin import PngInfo

    note: PngInfo = PngInfo()
    note.add_text("plugstream:range", f"{span[0]!r} {span[1]!r}")
    note.add_text("plugstream:y", space.y)
    if space.quantity:
        note.add_text("plugstream:quantity", space.quantity)
    if space.pixel is None:
        return {"pnginfo": note}
    column, row = _origin(space, shape)
    note.add_text("plugstream:pixel", f"{float(space.pixel)!r} m")
    note.add_text("plugstream:origin", f"column {column!r} row {row!r}")
    a_metre = round(1 / space.pixel)
    # Pillow takes dots an inch and writes dots a metre, rounded.
    return {"pnginfo": note, **({"dpi": (a_metre * 0.0254,) * 2} if 1 <= a_metre <= _MOST else {})}


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


def _origin(space: ImageSpace, shape: tuple[int, int]) -> tuple[float, float]:
    """Column and row, from 0 at the picture's upper left, of x = 0, y = 0."""
    assert space.pixel is not None
    (h, w), (x, y) = shape, space.center
    column, row = w // 2 - x / space.pixel, h // 2 - y / space.pixel
    return float(column), float(h - 1 - row if space.y == "up" else row)
