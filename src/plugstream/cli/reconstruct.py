"""Form the image of a scan, a few views at a time."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from plugstream.cli.common import RECONSTRUCTION, reconstruct_scan, settings_of

SECTIONS: tuple[str, ...] = RECONSTRUCTION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("scan", type=Path, help="a scan, a Zarr folder")
    parser.add_argument("--out", type=Path, help="the folder to make for the results")


def run(parsed: argparse.Namespace) -> int:
    """Form the image of a scan, a few views at a time."""
    settings = settings_of(parsed)
    from plugstream.recipes import check
    from plugstream.runs.folder import free_folder, make_folder
    from plugstream.scans.store import open_scan

    stored = open_scan(parsed.scan)
    check(settings, stored.geometry)
    scan = stored.load()  # every chunk is read and checked here, before a folder is made
    folder = make_folder(parsed.out or free_folder(f"{parsed.scan.resolve().stem}-run"))
    where, saved = (shlex.quote(str(path)) for path in (parsed.scan, folder / "settings.toml"))
    command = f"plugstream reconstruct {where} --settings {saved}"
    return reconstruct_scan(scan, settings, folder, command, parsed.scan)
