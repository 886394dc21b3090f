"""Describe a scan, the folder of a run, or a file that can be imported."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from plugstream.base.display.region import wrap_for
from plugstream.base.text import printable
from plugstream.cli.common import OUTSIDE_HELP, add_instrument, add_max_read, open_argument, scan_place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scan",
        type=scan_place,
        help="a scan: a Zarr folder, a zip file of one, or an fsspec address; the folder of a run; or a file to import",
    )
    add_instrument(parser)
    parser.add_argument("--trust", action="store_true", help=OUTSIDE_HELP)
    add_max_read(parser)


def run(parsed: argparse.Namespace) -> int:
    if isinstance(parsed.scan, Path) and any((parsed.scan / name).is_file() for name in ("run.json", "events.jsonl")):
        from plugstream.runs.describe import describe_run

        _show(describe_run(parsed.scan))
        return 0
    from plugstream.scans.importers import describe_file

    about = describe_file(parsed.scan, trust=parsed.trust)
    if about is not None:
        outlook, lines = about
        print("\n".join([printable(f"{parsed.scan}: {outlook}"), *map(_plain, lines)]))
        return 0
    scan = open_argument(parsed)
    if scan.n_views == 0:
        state = "complete, but without views" if scan.complete else "still running, no views yet"
        print(f"{'scan':<12}{printable(scan.path)} ({state}), {scan.instrument.name}")
        return 0
    instrument = scan.instrument
    shape = " x ".join(map(str, instrument.data_shape)) or "1"
    meaning = f" of {instrument.data.meaning}" if instrument.data.meaning and len(instrument.data.meaning) < 60 else ""
    rows = {
        "scan": f"{scan.path} ({'complete' if scan.complete else 'still running'})",
        "instrument": f"{instrument.name}, {instrument.help}",
        "views": f"{scan.n_views}, each {shape}{meaning}",
        "data": f"{scan.nbytes / 1e6:.2f} MB of {scan.dtype}, format version {scan.version}",
    }
    for column in instrument.columns:
        if column.name in scan.columns:
            rows[column.name] = _describe_array(instrument, column, scan.columns[column.name].shape[1:])
    for array in instrument.arrays:
        if (values := getattr(instrument, array.name)) is not None:
            rows[array.name] = _describe_array(instrument, array, values.shape)
    for attribute in instrument.attributes:
        value = getattr(instrument, attribute.name)
        if isinstance(value, float | int | str):
            number = f"{value:.6g}" if isinstance(value, float) else str(value)
            rows[attribute.name] = " ".join(filter(None, (number, instrument.unit_of(attribute)))) + (
                f", {attribute.meaning}" if attribute.meaning else ""
            )
    image = instrument.image
    rows["image"] = f"{' x '.join(map(str, image.shape))}, {'complex ' if image.is_complex else ''}{image.quantity}"
    if image.free_phase:
        rows["image"] += ", known up to a global phase"
    rows |= instrument.describe(scan.columns, scan.n_views)
    rows["truth"] = "known" if scan.truth is not None else "not known"
    rows["provenance"] = ", ".join(_plain(f"{key} {value}") for key, value in scan.provenance.items()) or "unknown"
    _show(rows)
    from plugstream.runs.outlook import describe_outlook

    sys.stdout.flush()  # since a step is timed before there is more
    _show({"run": "by 'plugstream reconstruct' with nothing set:", **describe_outlook(scan, parsed.instrument)})
    return 0


def _show(rows: dict[str, str]) -> None:
    for name, text in rows.items():
        print(wrap_for(sys.stdout, f"{name:<11} {_plain(text, most=1500)}", " " * 12))


def _plain(text: str, most: int = 300) -> str:
    """What a file says, fit for a terminal: in one line, not too long, and nothing that a terminal would obey."""
    line = printable(text[: most + 1])
    return line if len(text) <= most else f"{line[:most]}..."


def _describe_array(instrument: Any, declared: Any, shape: tuple[int, ...]) -> str:
    """A column or fixed array in a line: type, shape, unit and meaning."""
    size = " x ".join(map(str, shape)) or "one number"
    unit = f" in {name}" if (name := instrument.unit_of(declared)) else ""
    return f"{size} of {declared.dtype}{unit}" + (f", {declared.meaning}" if declared.meaning else "")
