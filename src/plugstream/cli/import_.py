"""Make a scan from the file of another program or instrument."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugstream.base.errors import PlugstreamWarning
from plugstream.cli.common import OUTSIDE_HELP, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", help="what the file is, as 'plugstream importers' lists them")
    parser.add_argument("file", type=Path, help="the file to read")
    parser.add_argument("out", type=Path, nargs="?", help="the scan to make, usually named something.zarr")
    parser.add_argument("--trust", action="store_true", help=OUTSIDE_HELP)


def add_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """The options of the importer, and of the instrument, that the arguments name; those of others are hidden."""
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
    everything = {key: info for one in importers.values() for key, info in import_options(one).model_fields.items()}
    for key in everything.keys() - fields.keys():
        add_flag(parser, group, "importer", key, everything[key], hidden=True)
    parser.set_defaults(fields=everything | dict(fields))


def run(parsed: argparse.Namespace) -> int:
    from plugstream.scans.importers.base import import_file
    from plugstream.settings import parse_typed

    typed = {name.split(".", 1)[1]: text for name, text in vars(parsed).items() if name.startswith("importer.")}
    values = {
        key: text if isinstance(text, list) else parse_typed(parsed.fields[key].annotation, text)
        for key, text in typed.items()
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        out, scan = import_file(parsed.kind, parsed.file, parsed.out, values, trust=parsed.trust)
    for warning in caught:
        say(f"warning: {warning.message}")
    for remark in scan.remarks:
        say(remark)
    say(f"wrote {out}: {scan.views} views")
    return 0
