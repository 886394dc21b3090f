"""What went wrong, for a person: one line and an exit status for every exception that can leave a command.

A mistake in the input is an `InputError`, and speaks for itself. What the machine could not give (memory, open files, a
disk) is told with what to do about it. Anything else is a mistake of ours: the line says so and where the traceback is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.system import find_limit
from plugstream.base.text import one_line

MISTAKE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h

# Python, torch and a small run were measured to take 0.74 GB of address space with one thread.
_LEAST_MEMORY = 1_200_000_000
_LEAST_FILES = 32
_LEAST_STACK = 1 << 18
_MEMORY_WORDS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "failed to map segment",
    "unable to allocate",
    "can't start new thread",
    "resource temporarily unavailable",
)
_FILES = (errno.EMFILE, errno.ENFILE)


def explain(error: BaseException) -> tuple[str, int]:
    """The one line for an exception that ended a command, and the command's exit status."""
    text = _shortage(error)
    if isinstance(error, InputError) and (text is None or "memory" in str(error)):
        return str(error), MISTAKE
    if text is not None:  # also where it looked like damage of a file
        return text, MISTAKE
    if isinstance(error, OSError):
        return _disk(error), MISTAKE
    if isinstance(error, ImportError):
        return f"a package cannot be loaded: {error}; reinstall plugstream with its dependencies", MISTAKE
    from plugstream.base.user_code import own_line

    if (where := own_line(error)) is not None:
        if os.environ.get("PLUGSTREAM_DEBUG"):
            traceback.print_exception(error, file=sys.stderr)
        advice = "PLUGSTREAM_DEBUG=1 shows the traceback"
        return f"{_words(error)} at {where}, which is your own code; {advice}", MISTAKE
    return _bug(error), BUG


def check_room_to_start() -> None:
    """Refuse limits under which not even the libraries can be loaded; they would end with an abort of their own."""
    try:
        os.getcwd()
    except OSError as error:  # MKL would end the process for it
        raise InputError(f"the current folder cannot be found: {error.strerror}; change to one that exists") from error
    for kind, least, limited, advice in (
        ("AS", _LEAST_MEMORY, "virtual memory of a process", "ulimit -v unlimited"),
        ("DATA", _LEAST_MEMORY // 2, "data of a process", "ulimit -d unlimited"),
        ("STACK", _LEAST_STACK, "stack of a process", "ulimit -s 8192"),
        ("NOFILE", _LEAST_FILES, "open files of a process", "ulimit -n 1024"),
    ):
        if (limit := find_limit(kind)) is not None and limit < least:
            raise InputError(
                f"the limit on the {limited} is {limit:,}, and plugstream needs at least {least:,}; raise it with "
                f"'{advice}'"
            )


def _shortage(error: BaseException) -> str | None:
    """What the machine has too little of, None if that is not the cause."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__
    if any(getattr(e, "errno", None) in _FILES or "Too many open files" in str(e) for e in chain):
        return "too many files are open; raise the limit with 'ulimit -n 1024', or use fewer --readers"
    for e in chain:
        words = str(e).lower()
        by_kind = isinstance(e, MemoryError) or getattr(e, "errno", None) == errno.ENOMEM
        by_text = isinstance(e, RuntimeError | ImportError | OSError) and any(word in words for word in _MEMORY_WORDS)
        if by_kind or by_text:
            scarce = "GPU memory" if "cuda" in words else "memory, or threads"
            return (
                f"there is not enough {scarce} for this ({_words(e)}); use a smaller --size, --batch, --in-memory or "
                "--threads, or raise the limit ('ulimit -v' shows it)"
            )
    return None


def _disk(error: OSError) -> str:
    """An error of the disk or the network that nothing closer to it has explained."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)!s}: "
    advice = {
        errno.ENOSPC: "make room on the disk",
        errno.EDQUOT: "make room within your quota",
        errno.EROFS: "choose a place that can be written to",
        errno.EACCES: "choose another place, or change its permissions",
        errno.EPERM: "choose another place, or change its permissions",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.ENOENT: "check whether it was moved or removed",
    }.get(error.errno or 0)
    return f"{where}{error.strerror or _words(error)}" + (f"; {advice}, and try again" if advice else "")


def _bug(error: BaseException) -> str:
    """The line for a bug of ours, with the traceback in a file, or shown if PLUGSTREAM_DEBUG is set."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "plugstream" in Path(frame.filename).parts] or list(frames)
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    line = f"this is a bug in plugstream: {_words(error)}{where}"
    if os.environ.get("PLUGSTREAM_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
        return line
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="plugstream-bug-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.version}\nplugstream {' '.join(sys.argv[1:])}\n\n")
            traceback.print_exception(error, file=file)
        return f"{line}; please report it with {path}, which has the details"
    return f"{line}; PLUGSTREAM_DEBUG=1 shows more"


def _words(error: Any) -> str:
    """An exception's kind and the first line of its text."""
    text = one_line(str(error).strip().split("\n")[0])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
