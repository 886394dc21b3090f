"""Go on with a run that was stopped, from its last checkpoint, as if it had not been."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plugstream.cli.common import reconstruct_scan
from plugstream.cli.reconstruct import prepare

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("folder", type=Path, help="the folder of a run")
    parser.add_argument("--iterations", type=int, help="steps in all, if there are to be more than were planned")
    parser.add_argument("--skip-damaged", action="store_true", help="from now on leave damaged views out")


def run(parsed: argparse.Namespace) -> int:
    """Go on with a run."""
    from plugstream.runs.run import open_run
    from plugstream.scans.store import open_scan
    from plugstream.settings import resolve

    kept = open_run(parsed.folder)
    changes: list[tuple[str, str, Any]] = []
    if parsed.iterations is not None:
        changes.append(("algorithm", "iterations", parsed.iterations))
    if parsed.skip_damaged:
        changes.append(("scan", "skip_damaged", True))
    settings = resolve(parsed.folder / "settings.toml", changes)
    scan = prepare(open_scan(kept.source), settings)
    return reconstruct_scan(scan, settings, parsed.folder, kept.command, kept.source, go_on=True)
