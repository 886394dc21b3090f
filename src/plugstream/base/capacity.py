"""Free memory and disk space, so that work that cannot fit is refused before it begins."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.errors import InputError
from plugstream.base.system import find_limit, find_memory

if TYPE_CHECKING:
    import torch

MAX_READ = "--max-read"
"""The flag that raises the limit of `check_claim`."""

_EXPANSION = 20  # times the bytes that hold it that anything may unpack to
_most_read: ContextVar[int] = ContextVar("most_read", default=256 * 10**6)
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt])(i?)b?")


def free_memory() -> int:
    """Bytes of memory that this process can still get: the minimum over the system, a container and `ulimit`."""
    limits = [_of_system(), _of_container(), _of_limit()]
    return max(0, min(limit for limit in limits if limit is not None))


def free_on_device(device: torch.device) -> int:
    """Bytes of memory that can still be had where a device computes: of a GPU its own, with what torch only holds."""
    if device.type != "cuda":
        return free_memory()
    import torch

    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + idle


def check_memory(needed: float, what: str, advice: str) -> None:
    """Refuse work that needs more memory than is free.

    Arguments: needed, in bytes; what, the thing that needs them, such as "the scan"; advice, what to do instead.
    """
    if needed > (free := free_memory()):
        raise InputError(
            f"{what} takes about {format_size(needed)} of memory, and {format_size(free)} are free; {advice}"
        )


@contextlib.contextmanager
def reading_at_most(size: int | None) -> Iterator[None]:
    """Let `check_claim` pass so many bytes within the block; None for as many as before."""
    token = _most_read.set(most_read() if size is None else size)
    try:
        yield
    finally:
        _most_read.reset(token)


def most_read() -> int:
    """Bytes that may be read at once, however few hold them."""
    return _most_read.get()


def check_claim(claimed: int, held: int, what: str) -> None:
    """Refuse to read what claims far more bytes than hold it: a few can unpack to any number.

    claimed <= max(256 MB, 20 held), where `reading_at_most` raises the first, and claimed <= free memory. For every
    array, picture or message of another program, before memory is taken for it.

    Arguments: claimed, bytes in memory; held, bytes of the file or message; what, the thing that is read.
    """
    if claimed <= (limit := most_read()):
        return
    if claimed > max(limit, _EXPANSION * held):
        raise InputError(
            f"{what} claims {format_size(claimed)}, and {format_size(held)} hold it; if that is right, raise the limit "
            f"of {format_size(limit)} with {MAX_READ}"
        )
    check_memory(claimed, what, "use a machine with more, or a part of the file")


def check_disk(place: Path, needed: float, what: str) -> None:
    """Refuse to write more than the disk of `place`, a new file or folder, has room for."""
    with contextlib.suppress(OSError):  # an unreadable folder is refused when it is written to
        if needed > (free := shutil.disk_usage(place.absolute().parent).free):
            raise InputError(
                f"{what} takes about {format_size(needed)}, and the disk of {place} has {format_size(free)} left; make "
                "room, choose another place, or make it smaller"
            )


def _of_system() -> int:
    """Memory available without swapping, and free swap space."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        kilobytes = {words[0]: int(words[1]) for words in lines}
        return 1024 * (kilobytes["MemAvailable:"] + kilobytes["SwapFree:"])
    return machine_memory()


def machine_memory() -> int:
    """Bytes of memory of the machine; 8 GB if the system does not say, as on Windows."""
    return find_memory() or 8 << 30


def _of_container() -> int | None:
    """What a control group, such as a container's or a batch job's, leaves; None without a limit."""
    root = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            most = int((root / limit).read_text(encoding="ascii"))
            if most < 1 << 60:
                return most - int((root / used).read_text(encoding="ascii"))
    return None


def _of_limit() -> int | None:
    """What `ulimit -v` leaves; None without a limit."""
    with contextlib.suppress(OSError, ValueError):
        if (limit := find_limit("AS")) is not None:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            return limit - pages * os.sysconf("SC_PAGE_SIZE")
    return None


def parse_size(text: str) -> int:
    """Bytes that a person wrote: "2GB", "500 MB", "1.5 GiB"; kB, MB, GB and TB are powers of 1000."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise InputError(f"{text!r} is not a size of memory; write a number and kB, MB, GB or TB, such as 2GB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** ("kmgt".index(match[2]) + 1))


def format_size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
