"""Make a scan of a picture, with noise, as a Zarr folder or as an instrument that sends it."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import picture_of, say, settings_of, simulate_scan
from plugstream.errors import InputError

SECTIONS: tuple[str, ...] = ("simulate", "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("out", type=Path, nargs="?", help="the scan to make, by custom ending in .zarr")
    parser.add_argument("--stream", metavar="ADDRESS", help="send it to 'plugstream acquire' at tcp://HOST:PORT")
    parser.add_argument("--rate", type=float, help="views a second to send; as fast as they are taken if not given")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="give up after S seconds of silence (30)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Make a scan of a picture, with noise, and send it if that is asked for."""
    settings = settings_of(parsed)
    if parsed.out is None and parsed.stream is None:
        raise InputError("give the scan to make, by custom ending in .zarr, or --stream tcp://HOST:PORT to send it")
    if parsed.rate is not None and parsed.stream is None:
        raise InputError("--rate is for a scan that is sent; give --stream tcp://HOST:PORT too")
    if parsed.stream is not None:
        from plugstream.scans.receive import check_address

        check_address(parsed.stream, remote=True)
    if (parsed.rate is not None and not parsed.rate > 0) or not parsed.timeout > 0:
        raise InputError(f"--rate and --timeout must be > 0, not {parsed.rate} and {parsed.timeout}")
    scan = simulate_scan(settings, picture_of(settings), parsed.out)
    if parsed.stream is not None:
        from plugstream.scans.send import send_scan

        say(f"sending {scan.n_views} views to {parsed.stream}")
        again = send_scan(scan, parsed.stream, rate=parsed.rate, timeout=parsed.timeout)
        say(f"all {scan.n_views} views are acknowledged; {again} messages were sent again")
    return 0
