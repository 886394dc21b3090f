"""Form the image of a scan by a usual method, to compare with."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.cli.common import say, say_reconstruct, scan_place, settings_of
from plugstream.cli.values import number, whole_number

if TYPE_CHECKING:
    from torch import Tensor

SECTIONS = ("instrument", "compute")
_METHODS = ("filtered", "sirt", "gridding", "cg-sense")
_FILTERS = ("ram-lak", "shepp-logan", "cosine", "hamming", "hann")
_OPTIONS = {
    "filtered": ("filter", "cutoff"),
    "sirt": ("iterations", "low"),
    "gridding": (),
    "cg-sense": ("iterations", "damping"),
}
_LARGE = 1e15
_COPIES = 5  # of an image that are in memory when it is saved


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scan", type=scan_place, help="a scan: a Zarr folder, a zip file of one, or an fsspec address")
    parser.add_argument("out", type=Path, help="the image to make: NAME makes NAME.npy, NAME.tif and NAME.png")
    parser.add_argument(
        "--method",
        choices=_METHODS,
        help="ct: filtered back-projection (FDK of a cone beam), or sirt; mri: gridding, or cg-sense; the first of "
        "them if not given",
    )
    parser.add_argument("--filter", choices=_FILTERS, help="filtered: how high frequencies are damped (ram-lak)")
    parser.add_argument(
        "--cutoff",
        type=number(1.0, 1e-3),
        help="filtered: highest frequency that is let through, of the detector's (1)",
    )
    parser.add_argument(
        "--iterations", type=whole_number(10**9, 1), help="number of iterations (sirt 100, cg-sense 10)"
    )
    parser.add_argument("--low", type=number(_LARGE, -_LARGE), help="sirt: least value of the image (no limit)")
    parser.add_argument("--damping", type=number(_LARGE, 0.0), help="cg-sense: weight of 1/2 ||x||^2 (0)")


def run(parsed: argparse.Namespace) -> int:
    settings = settings_of(parsed)
    options = {name: getattr(parsed, name) for names in _OPTIONS.values() for name in names}
    options = {name: value for name, value in options.items() if value is not None}
    names = [f"{parsed.out.name}{end}" for end in (".npy", ".tif", ".png")]
    if not parsed.out.name or not parsed.out.parent.is_dir():
        raise InputError(f"the folder {parsed.out.parent} does not exist; make it first")
    for name in names:
        if (parsed.out.parent / name).exists():
            raise InputError(f"{parsed.out.parent / name} exists already; remove it or choose another name")
    from plugstream.base.capacity import free_memory
    from plugstream.base.volume_file import make_volume, open_volume
    from plugstream.images.pictures import save_image
    from plugstream.images.space import ImageSpace
    from plugstream.runs.checks import prepare_device
    from plugstream.runs.results import show_volume
    from plugstream.scans.baselines.first_image import form_image, relative_residual, scan_model
    from plugstream.scans.store import open_scan

    device, dtype = prepare_device(settings.compute)
    scan = open_scan(parsed.scan)
    if scan.n_views == 0:
        raise InputError(f"{parsed.scan} has no views yet")
    method: Any = parsed.method or scan.instrument.baseline
    if not method:
        raise InputError(f"{scan.instrument.name} has no standard method; there are baselines for ct and mri")
    for name in options.keys() - set(_OPTIONS[method]):
        owners = " or ".join(one for one, names in _OPTIONS.items() if name in names)
        raise InputError(f"the method {method} has no use for --{name}; leave it out, or choose {owners}")

    def look(k: int, image: Tensor, residual: float) -> None:
        if k % 10 == 0 and method == "sirt":
            say(f"iteration {k}: residual {residual:.4f} of the data before it, weighted")
        elif method == "cg-sense":
            say(f"iteration {k}: gradient {residual:.2e} of the first")

    space, made = ImageSpace.of(scan), parsed.out.with_name(names[0])
    if method == "filtered" and space.ndim == 3 and _COPIES * 4 * math.prod(space.shape) > free_memory():
        begun = parsed.out.with_name(f".{names[0]}.new")
        try:
            volume = make_volume(begun, space.shape)
            form_image(scan, method, device=device, dtype=dtype, target=volume, **options)
            begun.replace(made)
        finally:
            begun.unlink(missing_ok=True)
        show_volume(open_volume(made), space)
        names = [name for name in names if parsed.out.with_name(name).exists()]
    else:
        image = form_image(scan, method, look=look, device=device, dtype=dtype, **options)
        save_image(image, parsed.out, space)
        if image.device.type == device.type:
            model = scan_model(scan, settings.instrument.options, device=device, dtype=dtype)
            left = relative_residual(scan, image, model)
            say(f"it leaves {left:.4f} of the data of its {scan.n_views} views unexplained")
    say(f"wrote {', '.join(names)}" + (f" in {parsed.out.parent}" if str(parsed.out.parent) != "." else ""))
    say_reconstruct(parsed.scan, settings.instrument.name)
    return 0
