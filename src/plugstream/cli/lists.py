"""List what can be asked for by name: the entries of a kind, which can be used here, and what options each has."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugstream.registry import Entry

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
    parser.add_argument("--markdown", action="store_true", help="names and options as a table for documents")


def run(parsed: argparse.Namespace) -> int:
    """List the entries of the kind that the command is called by."""
    from plugstream.registry import KINDS, entries

    kind = next(kind for kind in KINDS.values() if kind.plural == parsed.command)
    found = [_described(entry) for entry in entries(kind.name).values()]
    text = _markdown(found) if parsed.markdown else _text(kind.name, found)
    print(json.dumps(found, indent=1) if parsed.json else text)
    return 0


def _described(entry: Entry) -> dict[str, Any]:
    """All that can be said of an entry, as JSON has it."""
    # Several monitors are chosen together, so the options of each have its name before them.
    prefix = f"{entry.name}-" if entry.kind == "monitor" and not entry.is_pattern else ""
    options = {
        key: {
            "default": info.get_default(call_default_factory=True),
            "about": info.description,
            "flag": f"--{prefix}" + str(_extra(info).get("flag", key)).replace("_", "-"),
        }
        for key, info in entry.options.model_fields.items()
    }
    missing = None if entry.missing is None else f"{entry.missing} is not installed"
    about: dict[str, Any] = {"name": entry.name, "help": entry.help, "missing": missing, "options": options}
    about |= {"needs": list(entry.needs), "origin": entry.origin}
    if entry.kind == "denoiser":
        from plugstream.denoisers.facts import describe

        about |= describe(entry)
    return about


def _extra(info: Any) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _text(kind: str, found: list[dict[str, Any]]) -> str:
    columns = _DENOISER if kind == "denoiser" else _COLUMNS
    table = _table([list(columns), *([str(cell(entry)) for cell in columns.values()] for entry in found)])
    missing = [f"  {e['name']}: {e['missing']}" for e in found if e["missing"] is not None]
    lines = [*table, *(["", "Not here:", *missing] if missing else [])]
    if kind == "denoiser":
        known = [f"  {e['name']}: {e['why']}" for e in found if e["why"] != "not known"]
        lines += ["", "Averaged, and why:", *known, ""]
        lines += [
            "Each is also there damped, (1 - theta) I + theta D: --damping THETA. GPU: '-' where torch sees none."
        ]
    return "\n".join(lines)


def _markdown(found: list[dict[str, Any]]) -> str:
    """The table of a kind for docs/entries.md, which does not depend on what is installed."""
    rows = ["| name | what it is | options |", "| --- | --- | --- |"]
    for entry in found:
        options = "; ".join(f"`{option['flag']}`: {option['about']}" for option in entry["options"].values())
        rows.append(f"| `{entry['name']}` | {entry['help']} | {options} |")
    return "\n".join(rows)


def _here(entry: dict[str, Any]) -> str:
    return "yes" if entry["missing"] is None else "no"


def _flags(entry: dict[str, Any]) -> str:
    return " ".join(option["flag"] for option in entry["options"].values()) or "-"


def _sigma(entry: dict[str, Any]) -> str:
    trained = entry["trained_for"]
    levels = "" if entry["sigma"] == "unused" else ", any"
    if trained is not None:
        levels = f", trained for {255 * trained[0]:.3g} to {255 * trained[1]:.3g} of 255"
    return _SIGMA[entry["sigma"]] + levels


_COLUMNS: dict[str, Any] = {
    "name": lambda entry: entry["name"],
    "here": _here,
    "options": _flags,
    "what it is": lambda entry: entry["help"],
}
_DENOISER: dict[str, Any] = {
    "name": lambda entry: entry["name"],
    "here": _here,
    "sigma": _sigma,
    "averaged": lambda entry: "not known" if entry["averaged"] is None else f"{entry['averaged']:g}",
    "CPU": lambda entry: entry["forms_here"]["cpu"],
    "GPU": lambda entry: entry["forms_here"]["cuda"] or "-",
    "options": _flags,
    "licence": lambda entry: entry["licence"],
    "for": lambda entry: entry["prior"],
}


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
