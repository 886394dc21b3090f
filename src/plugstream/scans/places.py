"""Where the files of a scan lie: a folder, a zip, or whatever fsspec reaches; how checked bytes are had from there."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plugstream import _native
from plugstream.errors import InputError

__all__ = ["CHUNK_FAULTS", "CRC", "Files", "LocalFiles", "Piece", "ZarrFiles", "ZipFiles", "crc32c"]

CRC = 4  # bytes of a checksum
_TOGETHER = 4 << 20  # pieces that lie one after another are read at once, up to so many bytes
_FATES = {0: "", -1: "its chunk is cut short", -2: "its chunk fails its checksum"}
CHUNK_FAULTS = (_FATES[-1], _FATES[-2])  # what is wrong with the bytes, and not with the file


class Piece(NamedTuple):
    """Bytes with their crc32c behind them, and where they are wanted."""

    name: str  # of the file
    offset: int  # within it, or below zero from its end
    row: int  # of the array that is filled


class Files(Protocol):
    """The files of a scan, wherever they lie, by names such as "data/c/3/0"; threads may share them."""

    def load(self, name: str) -> bytes:
        """All of a file; FileNotFoundError if it is not there."""

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8]) -> list[str]:
        """Fill rows of `out` (rows, bytes), each with a piece, and say of each piece what is wrong, "" if nothing.

        It is fastest for pieces in the order of files and offsets.
        """


class LocalFiles:
    """Files of a folder.

    `direct` reads past the system's page cache, where the native reader serves and the file system can do it. A scan
    larger than memory gains nothing from that cache, since a view that is drawn at random is hardly ever in it, and
    pays for it: copying into it and out of it is processor time that an iteration lacks.
    """

    def __init__(self, folder: Path, *, direct: bool = False) -> None:
        self.folder, self.direct = folder, direct
        self._root = os.fspath(folder)
        self._native = getattr(_native.load(), "read_chunks", None)

    def load(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8]) -> list[str]:
        if self._native is None:
            return _read(pieces, out, self._part)
        paths = {name: os.fsencode(f"{self._root}/{name}") for name in {piece.name for piece in pieces}}
        fates = np.empty(len(pieces), dtype=np.int32)
        offsets = np.array([piece.offset for piece in pieces], dtype=np.int64)
        rows = np.array([piece.row for piece in pieces], dtype=np.int64)
        self._native([paths[piece.name] for piece in pieces], offsets, rows, out, fates, direct=self.direct)
        said = [_FATES.get(fate, "") for fate in fates.tolist()]
        for number in np.flatnonzero(fates > 0).tolist():
            error = OSError(int(fates[number]), os.strerror(fates[number]))
            said[number] = _failure(pieces[number].name, error)
        return said

    def _part(self, name: str, offset: int, count: int) -> bytes:
        with open(f"{self._root}/{name}", "rb", buffering=0) as file:
            if offset < 0 and (offset := offset + file.seek(0, os.SEEK_END)) < 0:
                return b""
            file.seek(offset)
            content = b""
            while len(content) < count and (more := file.read(count - len(content))):  # at most 2 GB at a time
                content += more
            return content


class ZipFiles:
    """Files of a zip, of the folder or of what is in it; the last one that was unpacked is kept.

    They are read without the zip's own checksums, which cover a whole file: ours cover a view, and name it.
    """

    def __init__(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        # NotImplementedError is zipfile's for a kind of zip that it does not know.
        except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
            raise InputError(f"{path} is not a scan: neither a folder nor a zip file ({error})") from error
        if any(m.flag_bits & 1 or m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
            raise InputError(f"{path} is encrypted, or compressed by another method than deflate; zip it anew")
        names = {member.filename: member for member in members}
        # Zipping the folder puts its name in front of everything.
        tops = {name.split("/")[0] for name in names if name.count("/") == 1 and name.endswith("/zarr.json")}
        self.prefix = f"{tops.pop()}/" if "zarr.json" not in names and len(tops) == 1 else ""
        self.path, self._members = path, names
        self._unpacked: tuple[str, bytes] = ("", b"")

    def load(self, name: str) -> bytes:
        return self._part(name, 0, self._member(name).file_size)

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8]) -> list[str]:
        return _read(pieces, out, self._part)

    def _member(self, name: str) -> zipfile.ZipInfo:
        if self.prefix + name not in self._members:
            raise FileNotFoundError(2, "No such file", name)
        return self._members[self.prefix + name]

    def _part(self, name: str, offset: int, count: int) -> bytes:
        member, (last, content) = self._member(name), self._unpacked
        offset = offset if offset >= 0 else max(0, member.file_size + offset)
        if last == name:
            return content[offset : offset + count]
        with self.path.open("rb") as file:
            # Before the content is a header of 30 bytes, the name again, and whatever else; their lengths are at 26.
            file.seek(member.header_offset)
            lengths = np.frombuffer(file.read(30).ljust(30)[26:], "<u2").tolist()
            said = file.read(lengths[0]).decode("utf-8" if member.flag_bits & 0x800 else "cp437", errors="replace")
            if said != member.orig_filename:
                raise OSError(f"the zip is damaged where {name} should be")
            file.seek(lengths[1], os.SEEK_CUR)
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(offset, os.SEEK_CUR)
                return file.read(max(0, min(count, member.file_size - offset)))
            packed = file.read(member.compress_size)
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, member.file_size)
        self._unpacked = (name, content)
        return content[offset : offset + count]


class ZarrFiles:
    """Files of a Zarr store: anything that fsspec reaches."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def load(self, name: str) -> bytes:
        return self._get(name, None)

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8]) -> list[str]:
        return _read(pieces, out, self._part)

    def _part(self, name: str, offset: int, count: int) -> bytes:
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest

        return self._get(name, SuffixByteRequest(count) if offset < 0 else RangeByteRequest(offset, offset + count))

    def _get(self, name: str, part: Any) -> bytes:
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        found = sync(self.store.get(name, default_buffer_prototype(), part))
        if found is None:
            raise FileNotFoundError(2, "No such file", name)
        return bytes(found.to_bytes())


def crc32c(content: bytes | NDArray[np.uint8]) -> bytes:
    """The checksum of bytes as it is stored."""
    import google_crc32c

    return int(google_crc32c.value(content)).to_bytes(CRC, "little")


def _read(pieces: Sequence[Piece], out: NDArray[np.uint8], part: Callable[[str, int, int], bytes]) -> list[str]:
    """`Files.read` by a function that gives a part of a file, or less of it where the file ends."""
    said: list[str] = []
    size, stride = out.shape[1], out.shape[1] + CRC
    for run in _runs(pieces, stride):
        try:
            content = part(run[0].name, run[0].offset, len(run) * stride)
        except Exception as error:  # an I/O error of the disk or of a distant store, of whatever kind
            said += [_failure(piece.name, error) for piece in run]
            continue
        for number, piece in enumerate(run):
            one = content[number * stride : (number + 1) * stride]
            if len(one) < stride:
                said.append(_FATES[-1])
            elif crc32c(one[:size]) != one[size:]:
                said.append(_FATES[-2])
            else:
                out[piece.row] = np.frombuffer(one, np.uint8, size)
                said.append("")
    return said


def _runs(pieces: Sequence[Piece], stride: int) -> Iterator[list[Piece]]:
    """The pieces in groups of one file that lie one after another."""
    run: list[Piece] = []
    most = max(1, _TOGETHER // stride)
    for piece in pieces:
        if run and (len(run) == most or run[0].offset < 0 or piece[:2] != (run[-1].name, run[-1].offset + stride)):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _failure(name: str, error: Exception) -> str:
    """What went wrong with reading a file, for a person."""
    if isinstance(error, FileNotFoundError):
        return f"the file {name} is missing"
    return getattr(error, "strerror", None) or str(error).split("\n")[0] or type(error).__name__
