"""Receive a scan from an instrument, view by view."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.cli.common import say

if TYPE_CHECKING:
    from plugstream.scans.receive import Receiver

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("out", type=Path, help="the scan to make, or one that acquire did not finish")
    parser.add_argument(
        "--listen", default="tcp://127.0.0.1:5577", help="where to listen (tcp://127.0.0.1:5577); port * is a free one"
    )
    parser.add_argument("--remote", action="store_true", help="allow an address that other machines can reach")
    parser.add_argument("--timeout", type=float, metavar="S", help="give up after this many seconds of silence")


def run(parsed: argparse.Namespace) -> int:
    """Receive a scan from an instrument, view by view."""
    from plugstream.scans.receive import Receiver

    told = time.monotonic()

    def progress(views: int) -> None:
        nonlocal told
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            say(f"{views} views")

    with Receiver(parsed.out, parsed.listen, remote=parsed.remote) as receiver:
        after = f", going on after {receiver.committed} views" if receiver.committed else ""
        say(f"listening on {receiver.address}{after}")
        try:
            receiver.run(timeout=parsed.timeout, progress=progress)
        except KeyboardInterrupt:
            if not receiver.finished:  # all is there where it only waited for the sender to leave
                say(_summary(receiver, parsed.out))
                again = ["plugstream", "acquire", str(parsed.out), "--listen", receiver.address]
                say(f"interrupted; go on with: {shlex.join(again)}{' --remote' * parsed.remote}")
                return 130
        say(_summary(receiver, parsed.out))
    return 0


def _summary(receiver: Receiver, out: Path) -> str:
    refused = {kind: count for kind, count in sorted(receiver.counts.items()) if kind != "accepted"}
    told = ", ".join(f"{count} {kind}" for kind, count in refused.items()) or "none"
    return (
        f"{receiver.committed} views in {out}, {'complete' if receiver.finished else 'not complete'}; not used: {told}"
    )
