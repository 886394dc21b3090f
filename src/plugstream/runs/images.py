"""Pictures in and out: PNG, TIFF and NPY, and the CC0 pictures that come with scikit-image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.errors import InputError

__all__ = ["load_picture", "save_image"]

_SAMPLES = ("astronaut", "brick", "camera", "cell", "coins", "grass", "gravel", "moon", "page")


def load_picture(source: str | Path, size: int | None = None) -> Tensor:
    """A grey picture as an image (H, W) in float32: a file, or the name of a picture of scikit-image ("camera").

    8 and 16-bit pictures become values in [0, 1]; floats stay as they are. Colour is turned to grey, and `size` cuts
    the largest centred square and resamples it to size x size with anti-aliasing.
    """
    path = Path(source)
    if path.exists():
        pixels: NDArray[Any] = _read(path)
    elif str(source) in _SAMPLES:
        from skimage import data

        pixels = np.asarray(getattr(data, str(source))())
    else:
        raise InputError(f"there is no picture {source}; give a PNG, TIFF or NPY file, or one of {', '.join(_SAMPLES)}")
    if np.issubdtype(pixels.dtype, np.integer):
        pixels = pixels / np.iinfo(pixels.dtype).max
    if pixels.ndim == 3 and pixels.shape[-1] in (3, 4):
        pixels = pixels[..., :3] @ np.array([0.2125, 0.7154, 0.0721])  # luminance, ITU-R BT.709
    if pixels.ndim != 2:
        raise InputError(f"{source} is of shape {pixels.shape}; a grey or colour picture is needed")
    if not np.isfinite(pixels).all():
        raise InputError(f"{source} holds NaN or infinity")
    if size is not None:
        from skimage.transform import resize

        side = min(pixels.shape)
        top, left = ((n - side) // 2 for n in pixels.shape)
        pixels = resize(pixels[top : top + side, left : left + side], (size, size), anti_aliasing=True)
    return torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32))


def save_image(image: Tensor, stem: str | Path) -> tuple[float, float]:
    """Write an image (H, W) as stem.npy and stem.tif (float32) and stem.png (8 bits), and return the PNG's range.

    The PNG maps the image's least value (or 0, if none is negative) to black and its largest to white.
    """
    import tifffile
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    stem = Path(stem)
    pixels = image.detach().cpu().numpy().astype(np.float32)
    low, high = min(0.0, float(pixels.min())), float(pixels.max())
    np.save(stem.with_name(f"{stem.name}.npy"), pixels)
    tifffile.imwrite(stem.with_name(f"{stem.name}.tif"), pixels)
    grey = np.rint(255 * np.clip((pixels - low) / max(high - low, 1e-30), 0, 1)).astype(np.uint8)
    note = PngInfo()
    note.add_text("plugstream:range", f"{low!r} {high!r}")
    Image.fromarray(grey).save(stem.with_name(f"{stem.name}.png"), pnginfo=note)
    return low, high


def _read(path: Path) -> NDArray[Any]:
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        if kind in (".tif", ".tiff"):
            import tifffile

            return np.asarray(tifffile.imread(path))
        from PIL import Image

        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB") if picture.mode in ("P", "1", "CMYK") else picture)
    except Exception as error:  # each reader has its own errors; a person needs the file's name and the reason
        raise InputError(f"cannot read the picture {path}: {error}".splitlines()[0]) from error
