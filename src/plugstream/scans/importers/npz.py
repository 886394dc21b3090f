"""Scans from NPZ files, as numpy.savez writes them."""

from __future__ import annotations

import bz2
import math
import shutil
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from plugstream.base.capacity import check_claim, machine_memory
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.registry import register
from plugstream.scans.importers.arrays import ARRAY_FACTS, ArrayOptions, build_scan, describe_arrays, import_opened
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.source import Source, first_line, open_error, read_head

# How many times its size a file may unpack to, more than dark frames do, and bytes that any file may.
_EXPANSION, _LEAST_UNPACKED = 1000, 256 << 20
# The head of a member of a ZIP archive: versions, flags, ..., packed and full size, lengths of name and extra field.
_MEMBER, _LOCAL, _ELSEWHERE = b"PK\3\4", struct.Struct("<4sHHHHHIIIHH"), 2**32 - 1
_SIZE_FOLLOWS = 8  # the flag of a member that was written into a pipe, with its sizes after the data
_BLOCK, _LONGEST_LIST = 1 << 20, 1 << 20


def import_npz(
    path: str | Path,
    out: str | Path,
    mapping: Mapping[str, Any] | None = None,
    *,
    instrument: str = "born-2d",
    **options: Any,
) -> int:
    """Write a scan from an NPZ file, and return the number of views.

    Holds for files whose arrays fit memory, since an NPZ is read array by array. Nothing is unpickled.

    Arguments: path of the file; out, the scan to make; mapping from our names to the file's where they differ, or for
    values to numbers; instrument, by name or FILE.py:NAME; options of its reader, for born-2d those of
    `plugstream.scans.importers.born.BornImport`. See `import_opened`.
    """
    return import_opened(open_npz(Path(path)), out, mapping or {}, instrument, options)


@contextmanager
def open_npz(path: Path) -> Iterator[Source]:
    """The file's arrays by their names."""
    if read_head(path, 6) == b"\x93NUMPY":
        raise InputError(f"{path} is a single array, not an NPZ; write one with numpy.savez")
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many kinds for a file that is not one
        raise open_error(path, error, "NPZ") from error
    with archive:
        yield _Npz(path, archive)


def unpack_npz(path: Path, folder: Path) -> Path:
    """An NPZ that bzip2 has compressed once more, unpacked into a folder.

    A few bytes may unpack to any number. So the size of each array, which stands before its values, is checked before
    it is unpacked, and the bytes are counted. The limit is half of this machine's memory, where arrays go, the room on
    the disk, and 1000 times the file or 256 MB.
    """
    target, size = folder / "recording.npz", path.stat().st_size
    most = min(machine_memory() // 2, shutil.disk_usage(folder).free, max(_LEAST_UNPACKED, _EXPANSION * size))
    report(f"unpacking {path.name}")
    try:
        with bz2.open(path) as packed, target.open("wb") as out:
            _copy_archive(packed, out, most)
    except ValueError as error:
        raise InputError(f"cannot unpack {path}: {error}; if it is right, unpack it with bunzip2 first") from error
    except (OSError, EOFError) as error:
        raise InputError(f"cannot unpack {path}: {error}") from error
    return target


def _copy_archive(source: bz2.BZ2File, out: BinaryIO, most: int) -> None:
    """Copy a ZIP archive, member by member; ValueError for another file, or one of more bytes than `most`."""
    head = source.read(_LOCAL.size)
    if head[:4] != _MEMBER:
        raise ValueError("what it unpacks to is no NPZ")
    while head[:4] == _MEMBER and len(head) == _LOCAL.size:
        _, _, flags, *_, packed, full, name, extra = _LOCAL.unpack(head)
        rest = source.read(name + extra)
        out.write(head + rest)
        if flags & _SIZE_FOLLOWS:
            break
        size = _packed_size(rest[name:], packed, full)
        if size > most:
            raise ValueError(f"it tells of {size / 1e9:.3g} GB, and {most / 1e9:.3g} GB may be unpacked here")
        most -= size
        while size and (block := source.read(min(size, _BLOCK))):
            out.write(block)
            size -= len(block)
        head = source.read(_LOCAL.size)
    else:
        out.write(head)
        most = min(most, _LONGEST_LIST)  # the list of members follows the last one
    while block := source.read(_BLOCK):
        most -= len(block)
        if most < 0:
            raise ValueError(f"it unpacks to more than {out.tell() / 1e6:.3g} MB, which is all that may be unpacked")
        out.write(block)


def _packed_size(extra: bytes, packed: int, full: int) -> int:
    """The bytes of a member, which stand in the extra field of a large one."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == 1 and packed == _ELSEWHERE and size >= 8 * (1 + (full == _ELSEWHERE)):
            return int(struct.unpack_from("<Q", extra, 4 + 8 * (full == _ELSEWHERE))[0])
        extra = extra[4 + size :]
    return packed


class _Npz(Source):
    container = "NPZ"

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        super().__init__(path)
        self.archive = archive
        self._members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        self._read: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        if name in self._members and name not in self._read:
            member = self._members[name]
            try:
                shape, dtype = self._header(member)
                size, there = math.prod(shape) * dtype.itemsize, self.archive.getinfo(member)
                if not dtype.hasobject and size > there.file_size:
                    raise InputError(f"it claims {size / 1e9:.3g} GB, more than its file has")
                check_claim(size, there.compress_size, "it")
                with self.archive.open(member) as file:
                    self._read[name] = np.lib.format.read_array(file, allow_pickle=False)
            except Exception as error:
                text = first_line(error)
                if "allow_pickle" in text:
                    text = "it holds Python objects, which are never unpickled; save numbers"
                raise InputError(f"{name} of {self.path} cannot be read: {text}") from error
        return self._read.get(name)

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name, member in self._members.items():
            try:
                shape, dtype = self._header(member)
                yield name, shape, str(dtype)
            except Exception as error:
                yield name, (), f"cannot be read: {error}".splitlines()[0]

    def _header(self, member: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of an array, without reading it."""
        with self.archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        return shape, dtype


def _describe(path: Path) -> tuple[str, list[str]] | None:
    return describe_arrays("npz", path, open_npz) if path.suffix.lower() == ".npz" else None


@register("importer", "npz", "arrays of an NPZ file, for any instrument", describe=_describe, **ARRAY_FACTS)
def build(options: ArrayOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    return build_scan(open_npz(file), options, out)
