"""Make a scan from the file of another program or instrument."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.progress import report
from plugstream.cli.common import OUTSIDE_HELP, add_max_read, say, say_reconstruct, scan_place

if TYPE_CHECKING:
    from plugstream.scans.importers.base import ImportResult

_STUCK = 300
PARENT = "PLUGSTREAM_PARENT"  # in the environment, the number of the process without which this one ends
FOLLOWING: dict[str, tuple[Any, str, str]] = {
    "expect": (int, "N", "when following, projections or frames that there will be; by default, until it is closed"),
    "patience": (float, "S", "when following, end the scan after this many seconds without a view"),
    "grace": (float, "S", "when following, how long a missing or damaged view holds up later ones (10; of a stream 1)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_places(parser)
    parser.add_argument("--trust", action="store_true", help=OUTSIDE_HELP)
    parser.add_argument("--follow", action="store_true", help="take views as the file, or the folder, grows")
    for name, (kind, word, text) in FOLLOWING.items():
        parser.add_argument(f"--{name}", type=kind, metavar=word, help=text)


def add_places(parser: argparse.ArgumentParser) -> None:
    """What is imported from where to where."""
    parser.add_argument("kind", help="what the file is, as 'plugstream importers' lists them")
    parser.add_argument(
        "file",
        type=scan_place,
        help="the file to read; a run of Tiled, http://...; or a stream to follow, dectris://HOST:31001 or pva://PV",
    )
    parser.add_argument("scan", type=Path, nargs="?", help="the scan to make, usually named something.zarr")
    add_max_read(parser)


def add_options(parser: argparse.ArgumentParser, arguments: Sequence[str], *, others: bool = True) -> None:
    """The options of the importer, and of the instrument, that the arguments name; those of others are hidden.

    Arguments: others, whether those of others are taken at all, to say whose they are.
    """
    from plugstream.base.registry import entries, find
    from plugstream.cli.flags import add_flag, values_of
    from plugstream.scans.importers.base import import_options

    importers = entries("importer")
    chosen = next((word for word in arguments[1:] if word in importers or ".py:" in word), None)
    instrument = next(reversed(values_of(arguments, "--instrument")), None)
    fields: dict[str, Any] = {}
    group = parser.add_argument_group("options" if chosen is None else f"options of {chosen}")
    if chosen is not None:
        entry = find("importer", chosen, trust=True)
        usual = import_options(entry).model_fields.get("instrument")
        fields = import_options(entry, instrument or (None if usual is None else usual.default)).model_fields
    for key, info in fields.items():
        add_flag(parser, group, "importer", key, info)
    everything = dict[str, Any]()
    if others:
        everything = {key: info for one in importers.values() for key, info in import_options(one).model_fields.items()}
    for key in everything.keys() - fields.keys():
        add_flag(parser, group, "importer", key, everything[key], hidden=True)
    parser.set_defaults(fields=everything | dict(fields))


def importer_values(parsed: argparse.Namespace) -> dict[str, Any]:
    """The importer's options that were typed."""
    from plugstream.settings import parse_typed

    typed = {name.split(".", 1)[1]: text for name, text in vars(parsed).items() if name.startswith("importer.")}
    return {
        key: text if isinstance(text, list) else parse_typed(parsed.fields[key].annotation, text)
        for key, text in typed.items()
    }


def run(parsed: argparse.Namespace) -> int:
    from plugstream.scans.importers.base import import_file

    values = importer_values(parsed)
    limits = {name: value for name in FOLLOWING if (value := getattr(parsed, name)) is not None}
    if limits and not parsed.follow:
        raise InputError(f"--{next(iter(limits))} is for files that grow; add --follow, or leave it out")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        if parsed.follow:
            try:
                out, scan = _follow(parsed, values, limits)
            except KeyboardInterrupt:
                say("interrupted; the same command goes on after the last view")
                return 130
        else:
            out, scan = import_file(parsed.kind, parsed.file, parsed.scan, values, trust=parsed.trust)
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"warning: {text}")
    for remark in scan.remarks:
        say(remark)
    say(f"wrote {out}: {scan.views} views")
    say_reconstruct(out, values.get("instrument") or "")
    return 0


def _follow(parsed: argparse.Namespace, values: dict[str, Any], limits: dict[str, Any]) -> tuple[Path, ImportResult]:
    from plugstream.scans.importers.following import Following, follow_file

    last_said, shown, silent = time.monotonic(), 0, 0

    def progress(views: int) -> None:
        nonlocal last_said, shown, silent
        silent = 0
        report("taking views" if views else "waiting for views", views)
        if views > shown and time.monotonic() - last_said >= 1:
            last_said, shown = time.monotonic(), views
            say(f"{views} views")

    def watch() -> None:
        """End a process whose `follow` was killed, or that HDF5, in a damaged file, does not come back to."""
        nonlocal silent
        while not ended.wait(1):
            if PARENT in os.environ and os.getppid() != int(os.environ[PARENT]):
                os._exit(2)  # what is committed stays; otherwise it would take a stream's frames from the next one
            silent += 1  # seconds in which this process ran
            if silent == _STUCK:
                why = f"{parsed.file} could not be read for {_STUCK} s, so it is damaged or its disk is gone"
                print(f"plugstream: {why}; the same command goes on after the last view", file=sys.stderr, flush=True)
                os._exit(2)

    places, following, ended = (parsed.kind, parsed.file, parsed.scan), Following(**limits), threading.Event()
    try:
        threading.Thread(target=watch, daemon=True).start()
        return follow_file(*places, values, following=following, trust=parsed.trust, say=say, progress=progress)
    finally:
        ended.set()
