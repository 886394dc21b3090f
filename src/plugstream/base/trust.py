"""Whether files that are imported may name others anywhere: what only the person at the keyboard may allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from plugstream.base.errors import InputError

__all__ = ["TRUST", "OutsideError", "check_outside", "trusting"]

TRUST = "--trust"
"""The flag by which a person says that what a file names may be run, opened and fetched."""

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


class OutsideError(InputError):
    """A file names another one outside its folder, which nobody allowed to be read."""


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Whether, inside, files that are imported may name others anywhere: what `check_outside` asks."""
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def check_outside(target: Path, file: Path) -> None:
    """Refuse to read a file that another one names outside its own folder, unless that is trusted.

    Else a file from anybody could put any other, such as a private key, into a scan that is then passed on.
    """
    if not _trusted.get():
        raise OutsideError(
            f"{file.name} says that it lies in {_printable(str(target))}, outside the folder of {file.name}; if you "
            f"trust whoever wrote that, add {TRUST}, or copy both into one folder"
        )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
