"""Make a scan from the file of another program or instrument."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugstream.cli.common import say
from plugstream.cli.values import number, whole
from plugstream.errors import InputError, PlugstreamWarning

SECTIONS: tuple[str, ...] = ()
_FLAGS = ("wavelength", "size", "width")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("kind", choices=("fresnel", "hdf5", "npz"), help="what the file is")
    parser.add_argument("file", type=Path, help="the file to read")
    parser.add_argument("out", type=Path, nargs="?", help="the scan to make, usually named something.zarr")
    parser.add_argument(
        "--frequency", type=number(1e6), metavar="GHZ", help="which of the file's frequencies to take, in GHz"
    )
    parser.add_argument("--size", type=whole(65_536), help="pixels a side of the image to form (64 for fresnel)")
    parser.add_argument("--width", type=number(), help="width of the image (0.2 for fresnel)")
    parser.add_argument("--wavelength", type=number(), help="wavelength in vacuum, where the file does not tell")
    parser.add_argument(
        "--map",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=PATH",
        help="where the file keeps data, receivers, transmitters, ..., or values such as pixel=0.003",
    )
    parser.add_argument("--mapping", type=Path, metavar="FILE.toml", help="read the mapping from this file")
    parser.add_argument("--unit", help="unit of all lengths: m, cm, mm, um, nm (what the file says, or m)")
    parser.add_argument("--conjugate", action="store_true", help="the file's time goes as exp(+i w t)")


def run(parsed: argparse.Namespace) -> int:
    """Make a scan from the file of another program or instrument."""
    if parsed.file.exists() and not parsed.file.is_file():
        raise InputError(f"{parsed.file} is not a file, but a folder, a pipe or a device")
    if parsed.kind == "fresnel":
        return _fresnel(parsed)
    from plugstream.scans.importers import import_hdf5, import_npz
    from plugstream.scans.importers.arrays import read_mapping
    from plugstream.scans.store import open_scan

    mapping = read_mapping(parsed.map, parsed.mapping)
    mapping |= {name: value for name in _FLAGS if (value := getattr(parsed, name)) is not None}
    chosen = "" if parsed.frequency is None else f"-{parsed.frequency:g}GHz"
    out = parsed.out or Path(f"{parsed.file.stem}{chosen}.zarr")
    options: dict[str, Any] = {"unit": parsed.unit, "conjugate": parsed.conjugate, "frequency": parsed.frequency}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        views = (import_hdf5 if parsed.kind == "hdf5" else import_npz)(parsed.file, out, mapping, **options)
    for warning in caught:
        say(f"warning: {warning.message}")
    provenance = open_scan(out).provenance
    if "incident_mismatch" in provenance:
        say(f"calibrated by the incident field: {_mismatch(provenance['incident_mismatch'])}")
    say(f"wrote {out}: {views} views")
    return 0


def _fresnel(parsed: argparse.Namespace) -> int:
    others = {"--map": parsed.map, "--mapping": parsed.mapping, "--wavelength": parsed.wavelength}
    if used := [flag for flag, value in others.items() if value]:
        raise InputError(f"{used[0]} is for hdf5 and npz; the format of fresnel files is known")
    if parsed.unit or parsed.conjugate:
        raise InputError("--unit and --conjugate are for hdf5 and npz; the conventions of fresnel files are known")
    if parsed.frequency is None:
        raise InputError("which frequency to take is not given; use --frequency, such as 3 for 3 GHz")
    from plugstream.scans import save_scan
    from plugstream.scans.importers import import_fresnel

    out = parsed.out or Path(f"{parsed.file.stem}-{parsed.frequency:g}GHz.zarr")
    if out.exists():
        raise InputError(f"{out} exists already; remove it or choose another name")
    size, width = 64 if parsed.size is None else parsed.size, 0.2 if parsed.width is None else parsed.width
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        scan = import_fresnel(parsed.file, parsed.frequency, size=size, width=width)
    save_scan(scan, out)
    for warning in caught:
        say(f"warning: {warning.message}")
    off = scan.provenance["incident_mismatch"]
    say(
        f"the calibrated incident field is off by {off['within_30_degrees']:.2f} of a line source's within 30 degrees "
        f"of the direct line, by {off['all_angles']:.2f} over all receivers"
    )
    say(f"wrote {out}: {scan.n_views} views; cite {scan.provenance['citation']}")
    return 0


def _mismatch(off: Mapping[str, float | None]) -> str:
    near = off["within_30_degrees"]
    direct = "" if near is None else f"by {near:.2f} of the modelled one within 30 degrees of the direct line, "
    return f"it is off {direct}by {off['all_angles']:.2f} over all receivers"
