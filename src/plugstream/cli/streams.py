"""Standard streams that a command can rely on: open, and never the reason why it fails.

What a command shows a person is worth less than what it computes. So a standard error that is closed, full or has
nobody reading it any more is written to no longer, and nothing else changes; standard output is the result of some
commands (`info`, `verify`), so that whoever asked for it learns that it could not be written.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


def open_standard_streams() -> None:
    """Put /dev/null where the process was started without a standard stream (`2>&-`).

    Otherwise the next file that is opened gets the stream's number, and what libraries write to standard error ends up
    in an event log.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so it is this one
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


@contextlib.contextmanager
def steady_streams() -> Iterator[None]:
    """While this lasts, writing to standard error cannot fail, and any text can be written to both."""
    before = sys.stderr
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stderr = _Steady(before)
    try:
        yield
    finally:
        sys.stderr = before


class _Steady:
    """A stream that drops what the one behind it cannot take."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt("write", text)
        return len(text)

    def flush(self) -> None:
        self._attempt("flush")

    def _attempt(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):  # a full disk, a reader that left; or the stream was closed
            give_up(self._stream)


def give_up(stream: Any) -> None:
    """Discard what the stream still holds; else Python fails to write it at its end, with exit status 120."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
