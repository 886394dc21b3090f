"""List the denoisers: which can be used here, what their sigma is, and what is known of them."""

from __future__ import annotations

import argparse
import json
from typing import Any

SECTIONS: tuple[str, ...] = ()

_SIGMA = {
    "noise": "the noise's",
    "weight": "root of a weight",
    "range": "spread of values",
    "unused": "not used",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("--json", action="store_true", help="all that is known of each, as JSON")


def run(parsed: argparse.Namespace) -> int:
    """List the denoisers."""
    from plugstream.denoisers.catalog import CATALOG

    entries = [entry.described() for entry in CATALOG.values()]
    print(json.dumps(entries, indent=1) if parsed.json else _text(entries))
    return 0


def _text(entries: list[dict[str, Any]]) -> str:
    head = ["name", "here", "sigma", "averaged", "CPU", "GPU", "licence", "for"]
    table = _table([head, *(_row(entry) for entry in entries)])
    missing = [f"  {e['name']}: {e['missing']}" for e in entries if e["missing"] is not None]
    known = [f"  {e['name']}: {e['why']}" for e in entries if e["why"] != "not known"]
    return "\n".join(
        [
            *table,
            *(["", "Not here:", *missing] if missing else []),
            "",
            "Averaged, and why:",
            *known,
            "",
            "Each is also there damped, (1 - theta) I + theta D: --damping THETA. GPU: '-' where torch sees none.",
        ]
    )


def _row(entry: dict[str, Any]) -> list[str]:
    trained = entry["trained_for"]
    levels = "" if entry["sigma"] == "unused" else ", any"
    if trained is not None:
        levels = f", trained for {255 * trained[0]:.3g} to {255 * trained[1]:.3g} of 255"
    averaged = "not known" if entry["averaged"] is None else f"{entry['averaged']:g}"
    here = entry["forms_here"]
    return [
        entry["name"],
        "yes" if entry["missing"] is None else "no",
        _SIGMA[entry["sigma"]] + levels,
        averaged,
        here["cpu"],
        here["cuda"] or "-",
        entry["licence"],
        entry["prior"],
    ]


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
