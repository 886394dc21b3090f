"""Pictures in and out: PNG, TIFF and NPY, and some free ones to try things on.

They say what they show. TIFF: XResolution and YResolution in pixels a centimetre, and the description of ImageJ with
the same unit, xorigin, yorigin and, if y points up, inverty=true, so that ImageJ and Fiji show physical positions. PNG:
pHYs in pixels a metre (whole, so rounded), and text chunks `plugstream:...` with the exact numbers.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.capacity import check_claim, check_memory, most_read
from plugstream.base.errors import InputError, PlugstreamWarning, StorageError
from plugstream.base.files import write_whole
from plugstream.images.planes import (
    Plane,
    color_phase,
    cut_planes,
    dim_unseen,
    is_faint,
    split_parts,
    turn_image,
    value_span,
    value_span_seen,
)
from plugstream.images.space import ImageSpace

_MOST_CHANNELS = 8
_DEFLATE, _LZMA = (8, 32946), 34925  # compressions of TIFF
_DENSEST = 10_000  # times its bytes that no strip of a TIFF unpacks to
_CYCLIC_COLOURS = "phase"  # the text chunk `plugstream:colours` of a PNG whose colours are phases
_CENTIMETRE = 0.01
_MOST_PIXELS = 2**32 - 1  # a metre in pHYs, and either part of a TIFF's resolution
# Of pictures with more values than the first, memory is asked for: bytes a value, in double precision and a copy.
_LARGE, _WORK = 1 << 24, 16
_SAMPLES = ("astronaut", "brick", "camera", "cell", "coins", "grass", "gravel", "moon", "page")


def load_picture(source: str | Path, size: int | tuple[int, int] | None = None) -> Tensor:
    """A grey picture as an image (H, W) in float32: a file, or the name of a free picture.

    "camera" (Lav Varshney, CC0), "coins" (Brooklyn Museum, no known copyright restrictions) and "moon" (NASA, public
    domain) are part of the package, at 256 x 256; the others come with scikit-image, an extra.

    8 and 16-bit pictures become values in [0, 1]; floats stay as they are. Colour is turned to grey, and `size`, one
    number or (rows, columns), cuts the largest centred part of that shape, with a warning, and resamples it with
    anti-aliasing. The first row is the picture's top, as the camera was held; if the file says that y points up, as
    `save_image` writes it, the rows are those of the image again.
    """
    shape = None if size is None else (size, size) if not isinstance(size, tuple) else size
    if shape is not None and not (len(shape) == 2 and all(hasattr(n, "__index__") and n >= 1 for n in shape)):
        raise InputError(f"the size of a picture must be one whole number or two, at least 1, not {size!r}")
    path = Path(source)
    pixels = read_picture(path)[0][:: -1 if points_up(path) else 1] if path.exists() else _read_sample(str(source))
    if pixels.ndim == 3 and pixels.shape[-1] in (3, 4):
        pixels = pixels[..., :3] @ np.array([0.2125, 0.7154, 0.0721])  # luminance, ITU-R BT.709
    if pixels.ndim != 2:
        raise InputError(f"{source} is of shape {pixels.shape}; a grey or colour picture is needed")
    if not np.isfinite(pixels).all():
        raise InputError(f"{source} holds NaN or infinity")
    if shape is not None:
        part = pixels[middle_part(pixels.shape, shape)]
        if part.shape != pixels.shape and path.exists():
            (rows, columns), (height, width) = pixels.shape, part.shape
            text = f"{source} has {rows} rows and {columns} columns: its middle {height} x {width} is used"
            warnings.warn(f"{text}; crop it yourself for another part", PlugstreamWarning, stacklevel=2)
        pixels = part if part.shape == shape else _resample(part, shape)
    return torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32))


def _read_sample(name: str) -> NDArray[Any]:
    """The pixels of a picture that has a name, in [0, 1]."""
    if name not in _SAMPLES:
        raise InputError(f"there is no picture {name}; give a PNG, TIFF or NPY file, or one of {', '.join(_SAMPLES)}")
    own = Path(__file__).with_name("samples") / f"{name}.png"
    if own.exists():
        return read_picture(own)[0]
    try:
        from skimage import data
    except ImportError:
        raise InputError(
            f"the picture {name!r} comes with scikit-image, which is not installed; take camera, coins or moon, or "
            "install it with: pip install 'plugstream[pictures]'"
        ) from None
    sample = np.asarray(getattr(data, name)())
    return np.asarray(sample / np.iinfo(sample.dtype).max)


def middle_part(shape: Sequence[int], target: Sequence[int]) -> tuple[slice, slice]:
    """Where the largest centred part of a picture is that has the proportions of a target: (rows, columns) of both."""
    scale = min(n / size for n, size in zip(shape, target, strict=True))
    sides = [min(n, max(1, round(scale * size))) for n, size in zip(shape, target, strict=True)]
    rows, columns = (slice((n - side) // 2, (n - side) // 2 + side) for n, side in zip(shape, sides, strict=True))
    return rows, columns


def _resample(pixels: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """A picture on other pixels: a Gaussian of (factor - 1) / 2 pixels along axes that shrink, then linear.

    The same numbers as `skimage.transform.resize` with `anti_aliasing=True`.
    """
    from scipy import ndimage

    factors = [n / size for n, size in zip(pixels.shape, shape, strict=True)]
    smooth = ndimage.gaussian_filter(pixels, [max(0.0, (factor - 1) / 2) for factor in factors], mode="mirror")
    zooms = [1 / factor for factor in factors]
    return np.asarray(ndimage.zoom(smooth, zooms, order=1, mode="mirror", grid_mode=True))


def picture_y_axis(source: str | Path) -> Literal["up", "down"]:
    """Which way y points in a picture that `load_picture` reads: down, unless the picture says otherwise."""
    path = Path(source)
    return "up" if path.exists() and points_up(path) else "down"


def save_image(image: Array, stem: str | Path, space: ImageSpace | None = None) -> tuple[float, float]:
    """Write an image as stem.npy and stem.tif (float32) and stem.png (8 bits), and return the PNG's range.

    The PNG maps the image's least value (or 0, if none is negative) to black and its largest to white. With a `space`,
    such as `ImageSpace.of(scan)`, TIFF and PNG have the size of a pixel and the origin (in their tags), and
    with y up the last row of the image is their first. NPY is always the array as it is, and `load_picture` returns
    that array from any of the three. Where a detector saw part of the sample, the PNG has its range from the field of
    view, with the rest darker.

    A complex image is stem.npy in complex64 and two pictures, each as TIFF and PNG: stem-magnitude and stem-phase, the
    latter in radians. The TIFFs are the numbers of the array. The PNG of the phase is for the eye: in colours that
    close from pi to -pi (those of `twilight_shifted`), grey where the magnitude is below 5 % of its largest, and, if
    the space calls the phase free, turned so that the image's mean is real, by the angle in its text chunk
    `plugstream:turned`. The range is the magnitude's.

    A volume is a stack in the TIFF, and the PNG is its middle slice across the first axis. Channels are a stack too,
    and their PNGs are stem-channel-0 and so on, up to eight of them.

    Arguments: image (*space.shape), (H, W) without a space; stem, path and name, whose ending .npy, .tif or .png is
    left out; space.
    """
    stem, image = Path(stem), as_tensor("the image", image)
    stem = stem.with_suffix("") if stem.suffix.lower() in (".npy", ".png", ".tif", ".tiff") else stem
    if not stem.parent.is_dir():
        raise InputError(f"the folder {stem.parent} does not exist; make it first")
    if image.ndim != (2 if space is None else space.ndim):
        expected = "(H, W)" if space is None else str(space.shape)
        raise InputError(f"an image to save must be {expected}, not {tuple(image.shape)}; save them one by one")
    space = ImageSpace(tuple(image.shape), upwards=False) if space is None else space
    space.check_shape(tuple(image.shape))
    values = image.detach().cpu().resolve_conj().numpy()
    values = values.astype(np.complex64 if np.iscomplexobj(values) else np.float32)
    order = -1 if space.upwards else 1
    files: dict[str, bytes] = {}
    for part, pixels, span in split_parts(values):
        name, about, span = f"-{part}" if part else "", _part_space(space, part), span or value_span_seen(pixels, space)
        stack = np.moveaxis(pixels, 0, 1) if pixels.ndim == 4 else pixels  # TIFF has channels within slices
        files[f"{name}.tif"] = _encode(".tif", stack[..., ::order, :].astype(np.float32), tiff_tags(about))
        visible, angle = pixels, 0.0
        if part == "phase":
            turned, angle = turn_image(values, space)
            visible = np.where(is_faint(np.abs(values)), np.nan, np.angle(turned))
        for number, row in enumerate(_planes(visible, about)):
            which, plane = f"-channel-{number}" if space.channels else "", row.values[::order]
            phase = part == "phase"
            content = _encode_phase(plane, row.space, angle) if phase else _encode_grey(plane, span, row.space)
            files[f"{name}{which}.png"] = content
    files[".npy"] = _encode(".npy", values)  # last: where it is, the others are, whatever stopped a run
    for end, content in files.items():
        write_whole(stem.with_name(stem.name + end), [content])
    return value_span(np.abs(values) if np.iscomplexobj(values) else values)


def write_grey(path: Path, plane: NDArray[Any], span: tuple[float, float], space: ImageSpace) -> None:
    """Write a plane (H, W), whose rows stand as they are drawn, as a PNG of 8 bits, black and white being `span`."""
    write_whole(path, [_encode_grey(plane, span, space)])


def write_marked(path: Path, plane: NDArray[Any], marks: NDArray[np.bool_]) -> None:
    """Write a plane (H, W) as a grey PNG in which marked pixels (H, W) are red; they do not count for its range."""
    low, high = np.quantile(plane[~marks], (0.01, 0.99)) if (~marks).any() else (0.0, 1.0)
    shares = np.clip((np.nan_to_num(plane) - low) / max(high - low, 1e-30), 0, 1)
    colours = np.repeat(np.rint(255 * shares).astype(np.uint8)[..., None], 3, -1)
    colours[marks] = (230, 30, 30)
    write_whole(path, [_encode(".png", colours)])


def _encode_grey(plane: NDArray[Any], span: tuple[float, float], space: ImageSpace) -> bytes:
    low, high = span
    order = -1 if space.upwards else 1
    plane = dim_unseen(plane[::order], span, space)[::order]
    shares = np.clip((plane - low) / max(high - low, 1e-30), 0, 1)
    grey = np.rint(255 * np.nan_to_num(shares)).astype(np.uint8)
    return _encode(".png", grey, png_tags(space, span))


def _encode_phase(plane: NDArray[Any], space: ImageSpace, turned: float) -> bytes:
    """A PNG with a palette: each entry is a phase, and the last one is for pixels without a phase."""
    numbers, colours = color_phase(plane)
    tags = png_tags(space, (-math.pi, math.pi), colours=_CYCLIC_COLOURS, turned=turned)
    return _encode(".png", numbers, tags, colours.tobytes())


def _part_space(space: ImageSpace, part: str) -> ImageSpace:
    """The space of the shown part of complex values: their magnitude, or their phase in radians."""
    if not part:
        return space
    unit = "rad" if part == "phase" else space.value_unit
    return replace(space, is_complex=False, quantity=f"{space.quantity}, {part}", value_unit=unit)


def _planes(pixels: NDArray[Any], space: ImageSpace) -> list[Plane]:
    """The planes that PNGs show, one each: the image, or the middle slice of a volume, for each channel."""
    rows = cut_planes(pixels, space, _MOST_CHANNELS)
    return [row[0] for row in rows] if len(space.spatial) == 3 else rows[0]


def _encode(kind: str, pixels: NDArray[Any], tags: dict[str, Any] | None = None, palette: bytes = b"") -> bytes:
    """The bytes of a file, made in memory, so that a full disk cannot replace an old file with half of a new one."""
    file = io.BytesIO()
    if kind == ".npy":
        np.save(file, pixels)
    elif kind == ".png":
        from PIL import Image

        picture = Image.fromarray(pixels)
        if palette:
            picture.putpalette(palette)
        picture.save(file, format="PNG", **(tags or {}))
    else:
        import tifffile

        tifffile.imwrite(file, pixels, **(tags or {}))
    return file.getvalue()


def read_picture(path: Path, *, waves: bool = False) -> tuple[NDArray[Any], np.dtype[Any]]:
    """The pixels of a PNG, TIFF or NPY file, (H, W) or (H, W, channels), and the type they are stored in.

    8 and 16-bit values become [0, 1]; floats stay as they are, and so do complex numbers where `waves` allows them.
    """
    kind = path.suffix.lower()
    if path.exists() and not path.is_file():  # a pipe would be waited for, and settings of others may name one
        raise InputError(f"{path} is a folder, a pipe or a device, not a picture")
    try:
        if kind == ".npy":
            pixels = np.asarray(np.load(path, allow_pickle=False))
        elif kind in (".tif", ".tiff"):
            pixels = read_tiff(path, held=True)
        else:
            from PIL import Image, ImageOps

            with Image.open(path) as file:
                check_claim(math.prod(file.size) * len(file.getbands()), path.stat().st_size, "it")
                picture = ImageOps.exif_transpose(file)  # a photograph that was taken with the camera turned
                if file.info.get("plugstream:colours") == _CYCLIC_COLOURS:
                    raise ValueError("it shows phases as colours; read the .tif or .npy beside it")
                pixels = np.asarray(picture.convert("RGB") if picture.mode in ("P", "1", "CMYK") else picture)
            if pixels.dtype == np.int32:  # how Pillow gives 16-bit grey in some of its modes
                pixels = pixels.astype(np.uint16)
    except FileNotFoundError:
        raise InputError(f"there is no picture {path}") from None
    except Exception as error:  # each reader has its own errors; a person needs the file's name and the reason
        raise InputError(f"cannot read the picture {path}: {error}".splitlines()[0]) from error
    if pixels.size > _LARGE:
        check_memory(
            _WORK * pixels.size, f"{path}, with {pixels.size:.3g} values,", "cut it, or use a machine with more"
        )
    if np.issubdtype(pixels.dtype, np.integer):
        return pixels / np.iinfo(pixels.dtype).max, pixels.dtype
    if waves and np.iscomplexobj(pixels):
        return pixels.astype(np.complex128), pixels.dtype
    if np.iscomplexobj(pixels):
        raise InputError(f"{path} holds complex numbers; write their magnitude, phase or real part to a file first")
    if not np.issubdtype(pixels.dtype, np.floating):
        raise InputError(f"{path} holds {pixels.dtype}; a picture of integers or floats is needed")
    return pixels.astype(np.float64), pixels.dtype


def read_tiff(path: Path, *, held: bool = False) -> NDArray[Any]:
    """The first series of a TIFF; one that lacks a part, or claims far more than its file holds, is refused.

    tifffile gives zeros in place of strips without bytes, however many those are, and unpacks as much as there is.
    With `held` a picture is turned as the camera was held.
    """
    with open_tiff(path) as file:
        series: Any = file.series[0]
        there = whole = 0
        for page in filter(None, series.pages):
            length = page.parent.filehandle.size
            parts = list(zip(page.dataoffsets, page.databytecounts, strict=True))
            end = max((start + size for start, size in parts), default=0)
            if end > length or not parts or not all(start and size for start, size in parts):
                raise InputError(f"it has {length} of {max(end, length + 1)} bytes")
            _check_unpacked(page, parts)
            there += sum(size for _, size in parts)
            whole += length
        if series.dataoffset is not None:  # all pages in one piece, of which ImageJ names only the first
            there = whole - series.dataoffset
        check_claim(math.prod(series.shape) * np.dtype(series.dtype).itemsize, min(there, whole), "it")
        pixels, orientation = np.asarray(series.asarray()), series.keyframe.tags.get(274)
    way = orientation.value if held and orientation and (pixels.ndim == 2 or pixels.shape[2:] in ((3,), (4,))) else 1
    pixels = pixels.swapaxes(0, 1) if way > 4 else pixels
    return pixels[:: -1 if way in (3, 4, 7, 8) else 1, :: -1 if way in (2, 3, 6, 7) else 1] if way > 1 else pixels


@contextlib.contextmanager
def open_tiff(path: Path) -> Iterator[Any]:
    """A `tifffile.TiffFile` whose directories do not overlap: tifffile follows those that lead back for ever."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        tiff, handle, place, total = file.tiff, file.filehandle, file.pages.first.offset, 0
        with contextlib.suppress(struct.error):  # cut off, which tifffile sees
            while place and total <= handle.size:
                handle.seek(place)
                (tags,) = struct.unpack(tiff.tagnoformat, handle.read(tiff.tagnosize))
                total += tiff.tagnosize + tags * tiff.tagsize + tiff.offsetsize
                handle.seek(place + tiff.tagnosize + tags * tiff.tagsize)
                (place,) = struct.unpack(tiff.offsetformat, handle.read(tiff.offsetsize))
        if total > handle.size:
            raise InputError(f"its directories take more than its {handle.size} bytes")
        yield file


def _check_unpacked(page: Any, parts: Sequence[tuple[int, int]]) -> None:
    """Refuse strips that unpack to more than the page and than may be read at once."""
    most, handle = max(most_read(), page.nbytes), page.parent.filehandle
    for start, size in parts if page.compression in (*_DEFLATE, _LZMA) else ():
        if size * _DENSEST > most:
            handle.seek(start)
            unpacker: Any = zlib.decompressobj() if page.compression in _DEFLATE else lzma.LZMADecompressor()
            if len(unpacker.decompress(handle.read(size), most + 1)) > most:
                raise InputError(f"{size} bytes of it unpack to more than {most}")


def check_writable(path: Path, axes: int, stored: np.dtype[Any]) -> None:
    """Refuse a file that could not hold a picture of this dtype, before the picture is made."""
    kind = path.suffix.lower()
    if path.exists():
        raise InputError(f"{path} exists already; remove it or choose another name")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")
    if kind not in (".png", ".tif", ".tiff", ".npy"):
        raise InputError(f"cannot write {path.name}: the ending must be .png, .tif or .npy")
    if np.issubdtype(stored, np.complexfloating) and kind != ".npy":
        raise InputError(f"cannot write {path.name}: complex numbers are written as .npy")
    if kind == ".png" and not np.issubdtype(stored, np.integer):
        raise InputError("a PNG cannot hold floating point values; write a .tif or .npy instead")
    if kind == ".png" and axes == 3 and stored != np.uint8:
        raise InputError("a colour PNG of 16 bits cannot be written; write a .tif instead")


def write_picture(path: Path, pixels: NDArray[Any], stored: np.dtype[Any]) -> None:
    """Write pixels as PNG, TIFF or NPY in the type they came in; integers are rounded, and clipped to their range."""
    check_writable(path, pixels.ndim, stored)
    kind = path.suffix.lower()
    if np.issubdtype(stored, np.integer):
        most = np.iinfo(stored).max
        out = np.rint(np.clip(pixels, 0, 1) * most).astype(stored)
    elif np.issubdtype(stored, np.complexfloating):
        out = pixels.astype(np.complex64 if stored != np.complex128 else np.complex128)
    else:
        out = pixels.astype(np.float32 if stored != np.float64 else np.float64)
    try:
        write_whole(path, [_encode(kind, out)])
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def tiff_tags(space: ImageSpace) -> dict[str, Any]:
    """Arguments of `tifffile.imwrite` for an image of float32 whose rows stand as they are drawn.

    A volume is a stack of slices (Z, Y, X), images with channels (C, Y, X), and volumes with channels (Z, C, Y, X).
    """
    axes = f"{'Z' if len(space.spatial) == 3 else ''}{'C' if space.channels else ''}YX"
    about: dict[str, Any] = {"axes": axes, "quantity": space.quantity}
    tags = {"imagej": True, "metadata": about}
    if (depth := space.depth()) is not None:
        about["spacing"] = depth / _CENTIMETRE
    if space.value_unit:
        about["value_unit"] = space.value_unit
    if space.upwards:
        about["inverty"] = "true"
    if (pixel := space.pixel()) is not None:
        (row, column), (height, width) = space.zero(), pixel
        about |= {"unit": "cm", "xorigin": column, "yorigin": row, "pixel_m": f"{height!r} {width!r}"}
        a_centimetre = (_CENTIMETRE / width, _CENTIMETRE / height)
        if all(1 / _MOST_PIXELS < number < _MOST_PIXELS for number in a_centimetre):
            tags |= {"resolution": a_centimetre, "resolutionunit": "CENTIMETER"}
    return tags


def png_tags(space: ImageSpace, span: tuple[float, float], *, colours: str = "", turned: float = 0.0) -> dict[str, Any]:
    """Arguments of Pillow's `save` for a PNG whose rows stand as they are drawn.

    Arguments: span, what black and white are, or the ends of `colours`; turned, by how many radians a phase was turned.
    """
    from PIL.PngImagePlugin import PngInfo

    texts = {"range": f"{span[0]!r} {span[1]!r}", "y": "up" if space.upwards else "down", "quantity": space.quantity}
    tags: dict[str, Any] = {"pnginfo": PngInfo()}
    if space.value_unit:
        texts["unit"] = space.value_unit
    if colours:
        texts |= {"colours": colours, "turned": f"{turned!r} rad"}
    if (pixel := space.pixel()) is not None:
        (row, column), (height, width) = space.zero(), pixel
        texts |= {"pixel": f"{height!r} x {width!r} m", "origin": f"row {row!r} column {column!r}"}
        a_metre = (round(1 / width), round(1 / height))
        if all(1 <= number <= _MOST_PIXELS for number in a_metre):
            # Pillow takes dots an inch and writes dots a metre, rounded.
            tags["dpi"] = (a_metre[0] * 0.0254, a_metre[1] * 0.0254)
    for name, text in texts.items():
        tags["pnginfo"].add_text(f"plugstream:{name}", text)
    return tags


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
