"""Make a scan of a picture, with noise, as a Zarr folder or as an instrument that sends it."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.cli.common import say, say_reconstruct, settings_of, simulate_scan

SECTIONS = ("instrument", "simulate", "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, nargs="?", help="the scan to make, usually named something.zarr")
    parser.add_argument("--stream", metavar="ADDRESS", help="send it to 'plugstream acquire' at tcp://HOST:PORT")
    parser.add_argument("--rate", type=float, help="views a second to send; as fast as they are taken if not given")
    parser.add_argument("--timeout", type=float, metavar="S", help="give up after S seconds of silence (30)")
    parser.add_argument(
        "--key", type=Path, metavar="NAME.key", help="for a receiver with keys: a file of 'plugstream keys'"
    )


def run(parsed: argparse.Namespace) -> int:
    settings = settings_of(parsed)
    if parsed.out is None and parsed.stream is None:
        raise InputError("give the scan to make, usually named something.zarr, or --stream tcp://HOST:PORT to send it")
    if parsed.stream is None:
        for flag in ("rate", "timeout", "key"):
            if getattr(parsed, flag) is not None:
                raise InputError(f"--{flag} is for a scan that is sent; give --stream tcp://HOST:PORT too")
        simulate_scan(settings, parsed.out)
        say_reconstruct(parsed.out, settings.instrument.name)
        return 0
    from plugstream.scans.send import check_sending, send_scan

    timeout = 30.0 if parsed.timeout is None else parsed.timeout
    check_sending(parsed.stream, rate=parsed.rate, timeout=timeout, key=parsed.key)
    scan, _ = simulate_scan(settings, parsed.out)
    safe = 0

    def progress(views: int) -> None:
        nonlocal safe
        safe = views
        report("sending views", views, scan.n_views)

    say(f"sending {scan.n_views} views to {parsed.stream}")
    try:
        again = send_scan(scan, parsed.stream, key=parsed.key, rate=parsed.rate, timeout=timeout, progress=progress)
    except KeyboardInterrupt:
        say(f"interrupted; {safe} views are acknowledged, and sending the same scan again goes on after them")
        return 130
    say(f"all {scan.n_views} views are acknowledged; {again} messages were sent again")
    if parsed.out is not None:
        say_reconstruct(parsed.out, settings.instrument.name)
    return 0
