"""Simulate a scan of a picture and reconstruct it online."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from plugstream.cli.common import RECONSTRUCTION, picture_of, reconstruct_scan, settings_of, simulate_scan, trust_flag

# What the demo changes of the defaults; TV at this strength suits a photograph with values from 0 to 1.
_DEMO = (("algorithm", "sigma", 0.016), ("sampler", "name", "shifted"))
SECTIONS: tuple[str, ...] = ("simulate", *RECONSTRUCTION)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("--out", type=Path, help="the folder to make for the results")


def run(parsed: argparse.Namespace) -> int:
    """Simulate a scan of a picture and reconstruct it online."""
    settings = settings_of(parsed, _DEMO)
    from plugstream.recipes import check, make_geometry
    from plugstream.runs.folder import free_folder, make_folder

    check(settings, make_geometry(settings))
    picture = picture_of(settings)
    folder = make_folder(parsed.out or free_folder("plugstream-demo"))
    scan = simulate_scan(settings, picture, folder / "scan.zarr")
    again = f"plugstream demo --settings {shlex.quote(str(folder / 'settings.toml'))}{trust_flag(settings)}"
    return reconstruct_scan(scan, settings, folder, again, folder / "scan.zarr")
