"""Whether what a command reads is there, asked before anything is loaded: a misspelt name is answered at once.

Only the words right after the command are looked at. Whatever comes later, or is there but of another kind, is refused
by whoever opens it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from plugstream.base.errors import InputError

# The place of the word that names what a command reads, and what to say where that is not there.
_READS = {
    **dict.fromkeys(("reconstruct", "baseline", "residual", "verify", "tune"), (1, "there is no scan at {}")),
    "info": (1, "there is no scan, run or file at {}"),
    "report": (1, "{} is not the folder of a run: it is not there"),
    "denoise": (1, "there is no picture at {}"),
    "import": (2, "there is no file {}"),
    "train": (2, "there is no folder {}"),
}
# With these a scan may be awaited, or nothing is read.
_AWAIT, _HELP = ("--follow", "--settings", "--set"), ("-h", "--help")


def check_place(arguments: Sequence[str]) -> None:
    """Refuse a file or folder that is not there, with the nearest name that is.

    Arguments: all words of the command line.
    """
    number, message = _READS.get(arguments[0], (1, "")) if arguments else (1, "")
    flags = {word.split("=")[0] for word in arguments if word.startswith("-")}
    if not message or len(arguments) <= number or any(word.startswith("-") for word in arguments[: number + 1]):
        return
    if not flags.isdisjoint(_HELP) or (arguments[0] in ("reconstruct", "import") and not flags.isdisjoint(_AWAIT)):
        return
    place = arguments[number]
    if "" in arguments or "://" in place or os.path.lexists(place):  # an empty name has a message of its own
        return
    folder, name = os.path.split(place.rstrip(os.sep))
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or os.curdir), n=1, cutoff=0.7)
    except OSError:
        near = []
    hint = f"; did you mean {os.path.join(folder, near[0])}?" if near else ""
    raise InputError(message.format(place) + hint)
