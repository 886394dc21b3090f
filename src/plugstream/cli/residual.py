"""Say how well images explain the views of a scan, such as one of views that were left out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.cli.common import scan_place, settings_of
from plugstream.errors import InputError
from plugstream.text import printable

if TYPE_CHECKING:
    from torch import Tensor

SECTIONS: tuple[str, ...] = ("instrument", "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("scan", type=scan_place, help="a scan: a Zarr folder, a zip file of one, or an fsspec address")
    parser.add_argument("images", type=Path, nargs="+", help="images as NPY files, or folders of runs")


def run(parsed: argparse.Namespace) -> int:
    """Print ||y - H x|| / ||y|| of each image over all views of the scan, the best one first."""
    settings = settings_of(parsed)
    from plugstream.first_image import relative_residual, scan_model
    from plugstream.runs.devices import prepare_device
    from plugstream.scans.store import open_scan

    device, dtype = prepare_device(settings.compute)
    scan = open_scan(parsed.scan)
    if scan.n_views == 0:
        raise InputError(f"{parsed.scan} has no views yet")
    files = [path / "result.npy" if path.is_dir() else path for path in parsed.images]
    images = [_read(path, scan.instrument.image.shape) for path in files]
    model = scan_model(scan, settings.instrument.options, device=device, dtype=dtype)
    found = [(relative_residual(scan, image, model), path) for image, path in zip(images, parsed.images, strict=True)]
    for residual, path in sorted(found, key=lambda pair: pair[0]):
        print(f"{residual:.5f}  {printable(str(path))}")
    return 0


def _read(path: Path, shape: tuple[int, ...]) -> Tensor:
    """An image of this shape."""
    import numpy as np
    import torch

    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read the image {path}: {text}; give an NPY file or the folder of a run") from error
    if not isinstance(values, np.ndarray) or values.shape != shape or values.dtype.kind not in "fiuc":
        found = getattr(values, "shape", "several arrays")
        raise InputError(f"the image {path} is {found}, but the scan's images are {shape}")
    if not np.isfinite(values).all():
        raise InputError(f"the image {path} holds NaN or infinity")
    return torch.from_numpy(np.ascontiguousarray(values))
