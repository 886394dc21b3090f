"""Make a scan of a picture, with noise, as a Zarr folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import picture_of, settings_of, simulate_scan

SECTIONS: tuple[str, ...] = ("simulate", "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("out", type=Path, help="the scan to make, by custom ending in .zarr")


def run(parsed: argparse.Namespace) -> int:
    """Make a scan of a picture, with noise, as a Zarr folder."""
    settings = settings_of(parsed)
    simulate_scan(settings, picture_of(settings), parsed.out)
    return 0
