"""Read every byte of a scan, and name the views that are damaged."""

from __future__ import annotations

import argparse

from plugstream.base.text import printable
from plugstream.cli.common import add_instrument, open_argument, say, scan_place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scan", type=scan_place, help="a scan: a Zarr folder, a zip file of one, or an fsspec address")
    add_instrument(parser)


def run(parsed: argparse.Namespace) -> int:
    """Read every byte, and check that the scan is plausible. The exit status is 1 if a view is damaged."""
    from plugstream.runs.checks import check_mask

    scan = open_argument(parsed)
    if scan.n_views == 0:
        say(f"{scan.path} has no views yet")
        return 0
    bad = scan.damaged()
    for view, damage in sorted(bad.items()):
        print(f"view {view}: {printable(damage)}")
    if bad:
        say(f"{len(bad)} of {scan.n_views} views of {scan.path} are damaged; --skip-damaged leaves them out")
        return 1
    for columns in (None, scan.columns):  # which a scan written without plugstream never was
        scan.instrument.check_plausible(columns)
        scan.instrument.warn_if_implausible(columns)
    check_mask(scan.instrument, scan.columns)
    unmarked = min(scan.unmarked, scan.n_views)
    count = "all" if unmarked == scan.n_views else f"{unmarked} of them"
    note = f"; {count} without marks, so that files that were swapped would not be noticed" if unmarked else ""
    print(f"all {scan.n_views} views of {printable(scan.path)} are whole ({scan.nbytes / 1e6:.2f} MB){note}")
    return 0
