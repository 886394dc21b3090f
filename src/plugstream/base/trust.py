"""Whether imported files may refer to files anywhere, which only the person at the keyboard may allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from plugstream.base.errors import InputError

TRUST = "--trust"
"""The flag that allows anything a file names to be run, opened and fetched."""

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


class OutsideError(InputError):
    """A file refers to another one outside its folder, and nobody has allowed that."""


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Allow imported files to refer to files anywhere within the block, or not; `check_outside` looks at this."""
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted() -> bool:
    """Whether the person has allowed anything within this block of `trusting`."""
    return _trusted.get()


def check_outside(target: Path, file: Path) -> None:
    """Refuse to read a file outside the folder of the file that refers to it, unless that is trusted.

    Otherwise a file from anybody could put another, such as a private key, into a scan that is then passed on.
    """
    if not _trusted.get():
        raise OutsideError(
            f"{file.name} says that its data lies in {target}, outside the folder of {file.name}; if "
            f"you trust its author, add {TRUST}, or copy both into one folder"
        )
