"""List the entries of a kind: what each is, whether it can be used here, and its options."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from plugstream.base.display.region import terminal_size, wrap_for
from plugstream.base.text import wrap_words
from plugstream.settings.fields import marks_of

if TYPE_CHECKING:
    from plugstream.base.registry import Entry

_SIGMA = {"noise": "the noise's", "weight": "root of a weight", "range": "spread of values", "unused": "not used"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="all that is known of each, as JSON")
    parser.add_argument("--facts", action="store_true", help="what is declared of each, in place of its options")
    parser.add_argument("--markdown", action="store_true", help="as a table for documents, whatever is installed")


def run(parsed: argparse.Namespace) -> int:
    from plugstream.base.registry import KINDS, entries

    kind = next(kind for kind in KINDS.values() if kind.plural == parsed.command)
    described = [_describe(entry) for entry in entries(kind.name).values()]
    if parsed.json:
        print(json.dumps(described, indent=1, default=str))
    elif parsed.markdown:
        columns = (_DENOISER_FACTS if kind.name == "denoiser" else _FACTS) if parsed.facts else _DOCUMENT
        print(_markdown(columns, described))
    else:
        columns = {"denoiser": _DENOISER, "monitor": _MONITOR}.get(kind.name, _COLUMNS)
        print(_text(kind.name, _FACTS if parsed.facts else columns, described))
    return 0


def _describe(entry: Entry) -> dict[str, Any]:
    """All that is known of an entry, as JSON has it."""
    # Several monitors are chosen together, so the options of each have its name before them.
    prefix = f"{entry.name}-" if entry.kind == "monitor" and not entry.is_pattern else ""
    options = {
        key: {
            "default": info.get_default(call_default_factory=True),
            "about": info.description,
            "flag": f"--{prefix}" + str(marks_of(info).get("flag", key)).replace("_", "-"),
        }
        for key, info in entry.options.model_fields.items()
    }
    missing = None if entry.missing is None else f"{entry.missing} is not installed"
    about: dict[str, Any] = {"name": entry.name, "help": entry.help, "missing": missing, "options": options}
    about |= {"needs": list(entry.needs), "origin": entry.origin}
    about["facts"] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in entry.facts.items()
        if isinstance(value, str | int | float | tuple)
    }
    if entry.kind == "monitor" and not entry.is_pattern:
        about["measures"] = _measures(entry)
    if entry.kind == "denoiser":
        from plugstream.denoisers.facts import describe

        about |= describe(entry)
    return about


def _measures(entry: Entry) -> list[dict[str, Any]]:
    """What a monitor measures; nothing where it cannot be built without a truth."""
    try:
        return [quantity.content() for quantity in entry.build(entry.options(), None, None).measures]
    except Exception:  # whatever the code of others does
        return []


def _text(kind: str, columns: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    cells = [[_cell(entry, column) for column in columns.values()] for entry in rows]
    table, size = _table([list(columns), *cells]), terminal_size(sys.stdout)
    if size is not None and max(map(len, table)) > size[0]:
        table = [line for row in cells for line in _block(list(columns), row, size[0])]
    missing = [f"  {e['name']}: {e['missing']}" for e in rows if e["missing"] is not None]
    lines = [*table, *(["", "Not here:", *missing] if missing else [])]
    if kind == "denoiser":
        reasons = [f"  {e['name']}: {e['why']}" for e in rows if e["why"] != "not known"]
        note = "Each is also there damped, (1 - theta) I + theta D: --damping THETA. GPU: '-' where torch sees none."
        lines += ["", "Averaged, and why:", *reasons, "", note]
    return "\n".join(wrap_for(sys.stdout, line) for line in lines)


def _block(titles: list[str], row: list[str], columns: int) -> list[str]:
    """An entry of a table that is too wide: its name with what it is, and below that the rest."""
    name, *others, what = row
    usual = ("", "-", "yes")  # that it is here need not be said
    known = [(title, text) for title, text in zip(titles[1:], others, strict=False) if text not in usual]
    rest = "; ".join(f"{title.partition(' (')[0]} {text}" for title, text in known)
    lines = [
        wrap_words(f"{name}: {what}", columns, " " * 4),
        *([wrap_words(f"    {rest}", columns, "")] if rest else []),
    ]
    return "\n".join(lines).splitlines()


def _markdown(columns: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The table of a kind for documents, which does not depend on what is installed."""
    _, *others = columns.values()
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[f"`{entry['name']}`", *(_cell(entry, column) for column in others)] for entry in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(entry: dict[str, Any], column: Any) -> str:
    """What an entry has in a column, which is a key of it or a function."""
    return str(entry[column] if isinstance(column, str) else column(entry))


def _is_here(entry: dict[str, Any]) -> str:
    return "yes" if entry["missing"] is None else "no"


def _flags(entry: dict[str, Any]) -> str:
    return " ".join(option["flag"] for option in entry["options"].values()) or "-"


def _sigma(entry: dict[str, Any]) -> str:
    trained = entry["trained_for"]
    levels = "" if entry["sigma"] == "unused" else ", any"
    if trained is not None:
        levels = f", trained for {255 * trained[0]:.3g} to {255 * trained[1]:.3g} of 255"
    return _SIGMA[entry["sigma"]] + levels


def _facts_text(entry: dict[str, Any]) -> str:
    """The facts of an entry in words."""
    facts = {key: " ".join(map(str, v)) if isinstance(v, list) else v for key, v in entry["facts"].items()}
    return "; ".join(key if value is True else f"{key} {value}" for key, value in facts.items())


def _quantities_text(entry: dict[str, Any]) -> str:
    """What a monitor measures, in which unit and which way is better; one may stop by what has a star."""
    ways = {True: "smaller is better", False: "larger is better", None: ""}
    return "; ".join(
        f"{quantity['name']}{'*' if quantity['stops'] else ''}"
        + "".join(f", {text}" for text in (quantity["unit"], ways[quantity["smaller_is_better"]]) if text)
        for quantity in entry.get("measures", [])
    )


_DOCUMENT: dict[str, Any] = {
    "name": "name",
    "what it is": "help",
    "options": lambda entry: "; ".join(f"`{o['flag']}`: {o['about']}" for o in entry["options"].values()),
}
_FACTS: dict[str, Any] = {"name": "name", "what it is": "help", "declared": _facts_text}
_COLUMNS: dict[str, Any] = {"name": "name", "here": _is_here, "options": _flags, "what it is": "help"}
_MONITOR: dict[str, Any] = {
    "name": "name",
    "measures (* one may stop by it)": _quantities_text,
    "options": _flags,
    "what it is": "help",
}
_DENOISER_FACTS: dict[str, Any] = {
    "name": "name",
    "object": lambda entry: entry["object"] and f"`{entry['object']}`",
    "for": "prior",
    "sigma": _sigma,
    "averaged, and why": lambda entry: ("" if entry["averaged"] is None else f"{entry['averaged']:g}: ") + entry["why"],
    "CPU": lambda entry: entry["forms"]["cpu"],
    "GPU": lambda entry: entry["forms"]["cuda"],
    "licence": "licence",
}
_DENOISER: dict[str, Any] = {
    "name": "name",
    "here": _is_here,
    "sigma": _sigma,
    "averaged": lambda entry: "not known" if entry["averaged"] is None else f"{entry['averaged']:g}",
    "CPU": lambda entry: entry["forms_here"]["cpu"],
    "GPU": lambda entry: entry["forms_here"]["cuda"] or "-",
    "options": _flags,
    "licence": "licence",
    "for": "prior",
}


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
