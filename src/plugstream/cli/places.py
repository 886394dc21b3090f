"""Whether a command can read and write where it is asked to, checked before anything is loaded.

Only the words right after the command and `--out` are looked at. Whatever else is wrong is refused by whoever opens it.
"""

from __future__ import annotations

import difflib
import os
import zipfile
from collections.abc import Sequence
from itertools import pairwise

from plugstream.base.errors import InputError

_SCANS = ("reconstruct", "baseline", "residual", "verify", "tune")
_RUNS = ("report", "resume", "watch")
# The place of the word that names what a command reads, and what to say where that is not there.
_READS = {
    **dict.fromkeys(_SCANS, (1, "there is no scan at {}")),
    "info": (1, "there is no scan, run or file at {}"),
    **dict.fromkeys(_RUNS, (1, "{} is not the folder of a run: it is not there")),
    "serve": (1, ""),  # it says by itself what is missing
    "denoise": (1, "there is no picture at {}"),
    "import": (2, "there is no file {}"),
    "train": (2, "there is no folder {}"),
}
# With these a scan may be awaited, or nothing is read.
_AWAIT, _HELP = ("--follow", "--settings", "--set"), ("-h", "--help")


def check_place(arguments: Sequence[str]) -> None:
    """Refuse a file or folder that is not there, with the nearest name that is; what is no scan; what would be lost.

    Arguments: all words of the command line.
    """
    _check_output(arguments)
    number, message = _READS.get(arguments[0], (len(arguments), "")) if arguments else (1, "")
    flags = {word.split("=")[0] for word in arguments if word.startswith("-")}
    if len(arguments) <= number or any(word.startswith("-") for word in arguments[: number + 1]):
        return
    if not flags.isdisjoint(_HELP) or (arguments[0] in ("reconstruct", "import") and not flags.isdisjoint(_AWAIT)):
        return
    place = arguments[number]
    if "" in arguments or "://" in place:  # an empty name has a message of its own
        return
    if os.path.lexists(place):
        _check_kind(arguments[0], place)
    if not message or os.path.lexists(place):
        return
    folder, name = os.path.split(place.rstrip(os.sep))
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or os.curdir), n=1, cutoff=0.7)
    except OSError:
        near = []
    hint = f"; did you mean {os.path.join(folder, near[0])}?" if near else ""
    raise InputError(message.format(place) + hint)


def _check_kind(command: str, place: str) -> None:
    """Refuse a folder or file that cannot be a scan where one is read, and a scan in place of a run."""
    group = os.path.lexists(os.path.join(place, "zarr.json"))
    if command in (*_RUNS, "serve") and group:
        raise InputError(f"{place} is a scan, not a run; 'plugstream reconstruct {place}' makes one")
    if command in _SCANS and os.path.isdir(place) and not group:
        raise InputError(f"{place} is not a scan: no Zarr v3 group can be read there")
    if command in _SCANS and os.path.isfile(place) and not zipfile.is_zipfile(place):
        instead = "'plugstream import' makes one of a recording, 'plugstream follow' of one that still grows"
        raise InputError(f"{place} is not a scan: neither a folder nor a zip file; {instead}")


def _check_output(arguments: Sequence[str]) -> None:
    """Refuse to write over what is there, or into a folder that is not: a new scan, the folder of a run."""
    command, *words = arguments or ("",)
    if not set(_HELP).isdisjoint(words) or os.environ.get("WORLD_SIZE", "1") != "1":  # another process may have made it
        return
    outs: list[tuple[str, str]] = []
    if command == "simulate" and words and not words[0].startswith("-"):
        outs = [(words[0], "{} exists already; remove it or choose another name")]
    elif command == "reconstruct":
        said = [
            *(word[6:] for word in words if word.startswith("--out=")),
            *(after for word, after in pairwise(words) if word == "--out"),
        ]
        outs = [(out, "the output {} exists already; choose another with --out, or remove it") for out in said]
    for out, message in outs:
        parent = os.path.dirname(out.rstrip(os.sep))
        if out and os.path.lexists(out):
            raise InputError(message.format(out))
        if parent and not os.path.isdir(parent):
            there = os.path.lexists(parent)
            raise InputError(
                f"{parent} is not a folder" if there else f"the folder {parent} does not exist; make it first"
            )
