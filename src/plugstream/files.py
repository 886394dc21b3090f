"""Files that are whole or absent, and folders that one process at a time writes to."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from plugstream.errors import InputError

__all__ = ["lock_folder", "sync_folder", "write_whole"]


def write_whole(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file so that whoever looks, whenever, finds the old one or the new one, also after a power cut.

    It is written beside its place, flushed to the disk and renamed. The rename outlasts a power cut once
    `sync_folder` was called for its folder; the caller does that once for many files.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what is told
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(folder: Path, what: str) -> int:
    """Become the only writer of a folder, or say in one line that somebody else is; returns a handle to close.

    When the process ends, however it ends, the system unlocks it. `what` names the folder in messages: "the scan x".
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"cannot write to {what}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InputError(f"another process is writing to {what}; wait for it, or stop it") from None
    return handle
