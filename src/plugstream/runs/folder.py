"""The folder of a run: made new, locked while somebody writes to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plugstream.errors import InputError
from plugstream.files import lock_folder, sync_folder, write_whole

__all__ = ["free_folder", "is_locked", "lock", "make_folder", "remove_unbegun", "write_text"]


def make_folder(path: Path) -> Path:
    """Make a new folder for a run; one that exists is refused, so that no result is overwritten."""
    try:
        path.mkdir(parents=False)
    except FileExistsError:
        raise InputError(f"the output {path} exists already; choose another with --out, or remove it") from None
    except OSError as error:
        raise InputError(f"cannot make the output folder {path}: {error.strerror}") from error
    return path


def remove_unbegun(folder: Path) -> None:
    """Remove the folder of a run that could not even begin, say on a full disk: it has no run.json to go on by."""
    if {path.name for path in folder.iterdir()} <= {".lock", "settings.toml"}:
        shutil.rmtree(folder, ignore_errors=True)


def free_folder(stem: str) -> Path:
    """The first of stem, stem-2, stem-3, ... that does not exist."""
    number = 1
    while (path := Path(stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return path


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Nobody else writes to this run meanwhile; when the process ends, however it ends, the system unlocks it."""
    handle = lock_folder(folder, f"the run {folder}")
    try:
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether somebody writes to this run now, as the kernel's list of locks has it; asking disturbs nobody."""
    try:
        inode = (folder / ".lock").stat().st_ino
        held = Path("/proc/locks").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False
    # 1: FLOCK  ADVISORY  WRITE 708 00:1c:3434 0 EOF; a line with -> is of somebody who waits.
    rows = [line.split() for line in held.splitlines() if "FLOCK" in line and "->" not in line]
    return any(row[5].rsplit(":", 1)[-1] == str(inode) for row in rows if len(row) > 5)


def write_text(path: Path, text: str) -> None:
    """Write a small file at once or not at all."""
    try:
        write_whole(path, [text.encode()])
        sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
