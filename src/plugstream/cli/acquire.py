"""Receive a scan from an instrument, view by view."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.progress import report
from plugstream.cli.common import add_instrument, load_instrument, say, say_next, say_reconstruct
from plugstream.cli.values import size

if TYPE_CHECKING:
    from plugstream.scans.receive import Receiver


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="the scan to make, or one that acquire did not finish")
    parser.add_argument(
        "--listen", default="tcp://127.0.0.1:5577", help="where to listen (tcp://127.0.0.1:5577); port * is a free one"
    )
    parser.add_argument(
        "--remote", action="store_true", help="allow an address that other machines can reach; needs --keys"
    )
    parser.add_argument(
        "--keys", type=Path, metavar="FOLDER", help="let in the clients of 'plugstream keys FOLDER' alone"
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="give up after this many seconds of silence")
    parser.add_argument("--max-views", type=int, metavar="N", help="take no more views (10000000)")
    parser.add_argument("--max-bytes", type=size, metavar="SIZE", help="take no more bytes of views, such as 200GB")
    parser.add_argument("--keep-free", type=size, metavar="SIZE", help="leave so much of the disk free (1GB or 5 %%)")
    parser.add_argument("--max-connections", type=int, metavar="N", help="connections at once (32)")
    add_instrument(parser)


def run(parsed: argparse.Namespace) -> int:
    from plugstream.base.display.screen import active_display
    from plugstream.scans.journal import Limits
    from plugstream.scans.receive import Receiver

    load_instrument(parsed)
    quotas = {"views": parsed.max_views, "nbytes": parsed.max_bytes, "free": parsed.keep_free}
    limits = Limits(parsed.max_connections, **{name: value for name, value in quotas.items() if value is not None})
    last_said, display = time.monotonic(), active_display()
    redrawn = display is not None and display.mode == "rich"

    def progress(views: int) -> None:
        nonlocal last_said
        report("receiving views", views)
        if time.monotonic() - last_said >= 1 and not redrawn:
            last_said = time.monotonic()
            say(f"{views} views")

    with Receiver(parsed.out, parsed.listen, remote=parsed.remote, keys=parsed.keys, limits=limits) as receiver:
        after = f", going on after {receiver.committed} views" if receiver.committed else ""
        say(f"listening on {receiver.address}{after}")
        report("waiting for views")
        try:
            receiver.run(timeout=parsed.timeout, progress=progress)
        except KeyboardInterrupt:
            if not receiver.finished:  # else it only waited for the sender to leave
                say(f"interrupted; {_summary(receiver, parsed.out)}")
                again = ["acquire", str(parsed.out), "--listen", receiver.address]
                again += ["--remote"] * parsed.remote
                for flag in ("keys", "max_views", "max_bytes", "keep_free", "max_connections", "instrument"):
                    if (value := getattr(parsed, flag)) is not None:
                        again += ["--" + flag.replace("_", "-"), str(value)]
                say_next(*again)
                return 130
        say(_summary(receiver, parsed.out))
        if receiver.finished:
            say_reconstruct(parsed.out, parsed.instrument or "")
    return 0


def _summary(receiver: Receiver, out: Path) -> str:
    counts = [f"{count} {kind}" for kind, count in sorted(receiver.counts.items()) if kind != "accepted"]
    state = "complete" if receiver.finished else "not complete"
    return f"{receiver.committed} views in {out}, {state}; not used: {', '.join(counts) or 'none'}"
