"""Write the report of a run as one HTML file or as a figure, or a page that compares several."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import say, say_next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="the folder of a run, or several")
    parser.add_argument(
        "--out",
        type=Path,
        help="the file to write, of one run also a .png, .pdf or .svg; report.html in the run's folder, or "
        "comparison.html of several",
    )


def run(parsed: argparse.Namespace) -> int:
    from plugstream.runs.pages.report import compare_reports, write_report

    if len(parsed.folders) == 1:
        path = write_report(parsed.folders[0], parsed.out)
    else:
        path = compare_reports(parsed.folders, parsed.out or Path("comparison.html"))
    say(f"wrote {path}: open it in a browser")
    say_next("serve", *parsed.folders)
    return 0
