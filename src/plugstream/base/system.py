"""What Linux, macOS and Windows do differently, in one place: locks, limits, processes, folders that are renamed.

Modules that only some systems have are imported when they are needed. `tests/test_other_systems.py` takes them away,
and makes files behave as on Windows.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@cache
def find_module(name: str) -> ModuleType | None:
    """A module of the standard library, None where this system has none of it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def renames_open() -> bool:
    """Whether a file can be renamed or removed while it is open, and a folder while a file in it is: not on Windows."""
    return find_module("fcntl") is not None


def has_locks() -> bool:
    """Whether an open file can be locked."""
    return find_module("fcntl") is not None or find_module("msvcrt") is not None


def lock_file(handle: int) -> None:
    """Lock an open file until it is closed; OSError if another process has it, or if the system has no locks."""
    fcntl: Any = find_module("fcntl")
    msvcrt: Any = find_module("msvcrt")
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        raise OSError(errno.ENOLCK, "this system has no file locks")


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder survive a power cut; Windows cannot open folders, and needs no flush."""
    if not renames_open():
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_limit(name: str) -> int | None:
    """The soft limit RLIMIT_name of this process, None without one."""
    resource: Any = find_module("resource")
    if resource is None or not hasattr(resource, f"RLIMIT_{name}"):
        return None
    limit = int(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0])
    return None if limit == resource.RLIM_INFINITY else limit


def count_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_memory() -> int | None:
    """Bytes of memory of the machine, None where the system does not say, as Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def lower_priority(steps: int) -> None:
    """Let other processes go first, where the system allows it."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(steps)
        # Where the kernel shares its time among sessions, that of the session counts.
        Path("/proc/self/autogroup").write_text(str(steps))


def process_state(pid: int) -> tuple[str, int]:
    """State of a process, "" where there is none, and ticks from boot to its start, 0 where the system does not say."""
    if Path("/proc/self/stat").exists():  # Linux
        try:
            text = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return "", 0
        words = text[text.rfind(b")") + 1 :].split()  # the name before may hold blanks and parentheses
        return words[0].decode(), int(words[19])
    if renames_open():  # macOS
        told = _output("ps", "-o", "state=", "-p", str(pid)).strip()
        return told[:1], 0
    return ("R" if f'"{pid}"' in _output("tasklist", "/FI", f"PID eq {pid}", "/FO", "CSV", "/NH") else ""), 0


def _output(*words: str) -> str:
    """What a small program of the system prints, nothing if it fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
