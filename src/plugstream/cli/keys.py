"""Make keys, so that a receiver lets in a known instrument and nobody else."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import say, say_next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where to make them, or one that has keys, to add a client")
    parser.add_argument("--client", default="instrument", metavar="NAME", help="who is to be let in (instrument)")


def run(parsed: argparse.Namespace) -> int:
    from plugstream.scans.keys import make_keys

    for path in make_keys(parsed.folder, parsed.client):
        say(f"wrote {path}")
    key = parsed.folder / f"{parsed.client}.key"
    say(f"move {key} to the machine that sends, and give it there: --key {key.name}, or ScanSender(..., key=...)")
    say_next("acquire", "scan.zarr", "--listen", "tcp://*:5577", "--remote", "--keys", parsed.folder)
    return 0
