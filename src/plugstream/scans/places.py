"""Where the files of a scan lie: a folder, a zip, or whatever fsspec reaches; and how bytes are had from there."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

__all__ = ["File", "Files", "LocalFiles", "ZarrFiles"]

# What reading past the page cache must be aligned to: the largest block that disks commonly have.
_ALIGNED = 4096


class File(Protocol):
    """A file that is open for reading."""

    def read_into(self, parts: list[Any], offset: int) -> int:
        """Fill buffers one after another with the bytes from `offset` on; returns how many there were."""

    def last(self, count: int) -> bytes: ...


class Files(Protocol):
    """The files of a scan, wherever they lie, by names such as "data/c/3/0".

    One that is not there raises FileNotFoundError.
    """

    def open(self, name: str) -> Any:
        """A context with a `File`."""

    def load(self, name: str) -> bytes: ...


class LocalFiles:
    """Files of a folder.

    `direct` reads past the system's page cache. A scan larger than memory gains nothing from that cache, since a view
    that is drawn at random is hardly ever in it, and pays for it: measured, half as much processor time again of the
    reading threads, which an iteration lacks. Where the file system cannot do it the cache is used all the same.
    """

    def __init__(self, folder: Path, *, direct: bool = False) -> None:
        self.folder, self.direct = folder, direct
        self._root = os.fspath(folder)
        self._scratch = _Scratch()

    @contextmanager
    def open(self, name: str) -> Iterator[File]:
        path = f"{self._root}/{name}"
        file = _open_direct(path, self._scratch) if self.direct else None
        if file is None:
            file = _LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            yield file
        finally:
            os.close(file.handle)

    def load(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


class _LocalFile:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def read_into(self, parts: list[Any], offset: int) -> int:
        total = _size(parts)
        done = os.preadv(self.handle, parts, offset)
        if 0 < done < total:  # the kernel reads at most 2 GB at a time, and less when it is interrupted
            rest = os.pread(self.handle, total - done, offset + done)
            done += _fill(parts, rest, done)
        return done

    def last(self, count: int) -> bytes:
        size = os.fstat(self.handle).st_size
        return os.pread(self.handle, count, max(0, size - count))


class _Scratch(threading.local):
    """A piece of memory for each thread, on a page boundary, as large as was needed so far."""

    memory: mmap.mmap | None = None

    def at_least(self, count: int) -> memoryview:
        if self.memory is None or len(self.memory) < count:
            self.memory = mmap.mmap(-1, count)
        return memoryview(self.memory)


class _DirectFile(_LocalFile):
    """Reads whole blocks around what is wanted into memory of its own, and copies from there."""

    def __init__(self, handle: int, scratch: _Scratch) -> None:
        super().__init__(handle)
        self.scratch = scratch

    def read_into(self, parts: list[Any], offset: int) -> int:
        first = offset - offset % _ALIGNED
        count = -(-(offset + _size(parts) - first) // _ALIGNED) * _ALIGNED
        memory = self.scratch.at_least(count)
        try:
            done = os.preadv(self.handle, [memory[:count]], first)
        except OSError:  # blocks of another size than ours, a file system that does not after all, a broken disk
            done = 0
        if first + done < offset + _size(parts):  # also at the end of a file that was cut short
            return _cached(self.handle).read_into(parts, offset)
        return _fill(parts, memory[offset - first : done], 0)

    def last(self, count: int) -> bytes:
        size = os.fstat(self.handle).st_size
        content = bytearray(min(count, size))
        self.read_into([content], size - len(content))
        return bytes(content)


def _open_direct(path: str, scratch: _Scratch) -> _LocalFile | None:
    """A file that is read past the page cache, or None where that is not possible."""
    flag = getattr(os, "O_DIRECT", 0)  # Linux has it
    if not flag:
        return None
    try:
        return _DirectFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag), scratch)
    except FileNotFoundError:
        raise
    except OSError:
        return None


def _cached(handle: int) -> _LocalFile:
    """The same open file, read through the page cache from now on."""
    import fcntl

    fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)
    return _LocalFile(handle)


class ZarrFiles:
    """Files of a Zarr store: a zip, or anything that fsspec reaches."""

    def __init__(self, store: Any, prefix: str = "") -> None:
        self.store, self.prefix = store, prefix

    @contextmanager
    def open(self, name: str) -> Iterator[File]:
        yield _ZarrFile(self, name)

    def load(self, name: str) -> bytes:
        return self.get(name, None)

    def get(self, name: str, part: Any) -> bytes:
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        found = sync(self.store.get(self.prefix + name, default_buffer_prototype(), part))
        if found is None:
            raise FileNotFoundError(2, "No such file", name)
        return bytes(found.to_bytes())


class _ZarrFile:
    def __init__(self, files: ZarrFiles, name: str) -> None:
        self.files, self.name = files, name

    def read_into(self, parts: list[Any], offset: int) -> int:
        from zarr.abc.store import RangeByteRequest

        return _fill(parts, self.files.get(self.name, RangeByteRequest(offset, offset + _size(parts))), 0)

    def last(self, count: int) -> bytes:
        from zarr.abc.store import SuffixByteRequest

        return self.files.get(self.name, SuffixByteRequest(count))


def _size(parts: list[Any]) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def _fill(parts: list[Any], content: bytes | memoryview, begin: int) -> int:
    """Put content into buffers as if they were one, from byte `begin` on; returns how much of it fitted."""
    done = 0
    for part in parts:
        view = memoryview(part).cast("B")
        if begin < len(view):
            count = min(len(view) - begin, len(content) - done)
            view[begin : begin + count] = content[done : done + count]
            done += count
        begin = max(0, begin - len(view))
    return done
