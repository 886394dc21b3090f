"""Go on with a run that was stopped, from its last checkpoint, as if it had not been."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import reconstruct_scan

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("folder", type=Path, help="the folder of a run")
    parser.add_argument("--iterations", type=int, help="steps in all, if there are to be more than were planned")


def run(parsed: argparse.Namespace) -> int:
    """Go on with a run."""
    from plugstream.runs.run import open_run
    from plugstream.scans.store import open_scan
    from plugstream.settings import resolve

    kept = open_run(parsed.folder)
    more = [] if parsed.iterations is None else [("algorithm", "iterations", parsed.iterations)]
    settings = resolve(parsed.folder / "settings.toml", more)
    scan = open_scan(kept.source).load()
    return reconstruct_scan(scan, settings, parsed.folder, kept.command, kept.source, go_on=True)
