"""Say how well images explain the views of a scan, such as one of views that were left out."""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.base.text import printable
from plugstream.cli.common import scan_place, settings_of

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.base.volume_file import VolumeFile
    from plugstream.scans.store import StoredScan

SECTIONS = ("instrument", "compute")
# Larger volumes, in bytes, are not read whole.
_LARGE = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scan", type=scan_place, help="a scan: a Zarr folder, a zip file of one, or an fsspec address")
    parser.add_argument("images", type=Path, nargs="+", help="images as NPY files, or folders of runs")
    parser.add_argument(
        "--fit-scale",
        action="store_true",
        help="multiply all predictions with the number that fits best, as those of another exposure",
    )


def run(parsed: argparse.Namespace) -> int:
    """Print ||y - H x|| / ||y|| of each image over all views of the scan, the best one first.

    For a run that refined its model along with the image, predictions are by the refined model.
    """
    settings = settings_of(parsed)
    import torch

    from plugstream.runs.checks import prepare_device
    from plugstream.scans.baselines.first_image import relative_residual, scan_model, volume_residual
    from plugstream.scans.store import open_scan

    device, dtype = prepare_device(settings.compute)
    scan = open_scan(parsed.scan)
    if scan.n_views == 0:
        raise InputError(f"{parsed.scan} has no views yet")
    files = [path / "result.npy" if path.is_dir() else path for path in parsed.images]
    shape, options = scan.instrument.image.shape, settings.instrument.options
    rows: list[tuple[float, Path, dict[str, float]]] = []
    if _is_large(scan):
        if parsed.fit_scale:
            raise InputError("--fit-scale is for images that are read whole, and these are volumes; leave it out")
        volumes = [_open(path, shape) for path in files]
        residuals = [volume_residual(scan, volume, options, device=device, dtype=dtype) for volume in volumes]
        rows = [(residual, path, {}) for residual, path in zip(residuals, parsed.images, strict=True)]
    else:
        images = [_read(path, shape) for path in files]
        model = scan_model(scan, options, device=device, dtype=dtype)
        models = [refined_model(model, path) for path in parsed.images]
        groups = scan.instrument.groups(scan.columns)
        for image, refined, path in zip(images, models, parsed.images, strict=True):
            residual = partial(relative_residual, scan, image, refined, fit_scale=parsed.fit_scale)
            kinds = {f"{kind}, {len(views)} views": residual(torch.from_numpy(views)) for kind, views in groups.items()}
            rows.append((residual(), path, kinds))
    for value, path, kinds in sorted(rows, key=lambda row: row[0]):
        print(f"{value:.5f}  {printable(str(path))}")
        for kind, part in kinds.items():
            print(f"  {part:.5f}  {kind}")
    return 0


def refined_model(model: Any, path: Path) -> Any:
    """The model with the parameters that the run in a folder refined, if any."""
    from plugstream.runs.refined import read_refined

    refined = read_refined(path) if path.is_dir() else {}
    return model.with_parameters(refined) if refined else model


def _is_large(scan: StoredScan) -> bool:
    """Whether images are volumes that are read a few slices at a time."""
    space = scan.instrument.image
    large = 4 * math.prod(space.shape) > _LARGE and len(space.shape) == 3 and not space.is_complex
    return large and scan.instrument.block(scan.columns, 0, 1) is not None


def _open(path: Path, shape: tuple[int, ...]) -> VolumeFile:
    """A volume of this shape, in its file."""
    from plugstream.base.volume_file import open_volume

    volume = open_volume(path)
    if volume.shape != shape:
        raise InputError(f"the image {path} is {volume.shape}, but the scan's images are {shape}")
    return volume


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
        shape_text = getattr(values, "shape", "several arrays")
        raise InputError(f"the image {path} is {shape_text}, but the scan's images are {shape}")
    if not np.isfinite(values).all():
        raise InputError(f"the image {path} holds NaN or infinity")
    return torch.from_numpy(np.ascontiguousarray(values))
