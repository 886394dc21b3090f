"""Where the files of a scan lie: a folder, a zip, or whatever fsspec reaches; how checked bytes are had from there."""

from __future__ import annotations

import errno
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plugstream import _native
from plugstream.base.errors import InputError
from plugstream.base.files import NOT_PLAIN, NOT_PLAIN_ERRORS, open_plain
from plugstream.scans.bounds import MOST_JSON, check_json_size

__all__ = [
    "CHUNK_FAULTS",
    "CRC",
    "Files",
    "LocalFiles",
    "MarkedArray",
    "Piece",
    "ZarrFiles",
    "ZipFiles",
    "crc32c",
    "read_bytes",
]

CRC = 4  # bytes of a checksum
_BLOCK = 1 << 20
_UNPACKED = 64 << 20  # of a compressed file of a zip, up to which it is kept unpacked
_MOST_RATIO = 200  # to which a zip may shrink a scan beyond that; measurements hardly shrink at all
_TOGETHER = 4 << 20  # pieces that lie one after another are read at once, up to so many bytes
_FATES = {0: "", -1: "its chunk is cut short", -2: "its chunk fails its checksum", -3: NOT_PLAIN}
CHUNK_FAULTS = (_FATES[-1], _FATES[-2])  # what is wrong with the bytes, and not with the file


Edges = NDArray[np.uint8] | None
"""What stands before pieces and after them."""


class Piece(NamedTuple):
    """Bytes with their crc32c behind them, and where they are wanted."""

    name: str  # of the file
    offset: int  # within it, or below zero from its end
    row: int  # of the array that is filled


class MarkedArray(NamedTuple):
    """What tells where each view of an array lies, if its shards are as we write them, and what its mark has to say."""

    name: str
    after: str  # what a file's name has after the number of its shard
    views_per_shard: int
    scan: bytes  # the first eight bytes of the scan's id


class Files(Protocol):
    """The files of a scan, wherever they lie, by names such as "data/c/3/0"; threads may share them."""

    def load(self, name: str) -> bytes:
        """All of a file of attributes; FileNotFoundError if it is not there, InputError if it is too long to be one."""

    def size(self, name: str) -> int:
        """Bytes of a file, 0 if it is not there."""

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
        """Fill rows of `out` (rows, bytes), each with a piece, and say of each piece what is wrong, "" if nothing.

        It is fastest for pieces in the order of files and offsets. With `edges` (pieces, before + 4) there are `before`
        more bytes in front of each piece, where its offset then is; they are put there, with its checksum after them.
        """

    def part(self, name: str, offset: int, count: int) -> bytes:
        """So many bytes of a file, fewer where it ends; an offset below zero is from its end."""

    @property
    def apart(self) -> bool:
        """Whether a part of a file costs no more than its own bytes."""


class LocalFiles:
    """Files of a folder. Only plain files and folders within it count: links, pipes and devices are refused.

    `direct` reads past the system's page cache, where the native reader serves and the file system can do it. A scan
    larger than memory gains nothing from that cache, since a view that is drawn at random is hardly ever in it, and
    pays for it: copying into it and out of it is processor time that an iteration lacks.
    """

    apart = True

    def __init__(self, folder: Path, *, direct: bool = False) -> None:
        self.folder, self.direct = folder, direct
        self._root = os.fspath(folder)
        self._folders: set[str] = {""}  # that are known to be folders, and no links
        self._native = getattr(_native.load(), "read_pieces", None)
        self._native_views = getattr(_native.load(), "read_views", None)

    def load(self, name: str) -> bytes:
        with self._open(name) as file:
            check_json_size(name, os.fstat(file.fileno()).st_size)
            return _read_up_to(file, MOST_JSON)

    def size(self, name: str) -> int:
        try:
            self._check_folders(name)
            found = os.lstat(f"{self._root}/{name}")
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def check_plain(self, name: str) -> None:
        """Refuse a folder with anything but plain files and folders in it, before another program reads it."""
        self._check_folders(f"{name}/")
        for folder, names, files in os.walk(f"{self._root}/{name}"):
            for entry in (*names, *files):
                mode = os.lstat(f"{folder}/{entry}").st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise OSError(errno.EINVAL, NOT_PLAIN, f"{folder}/{entry}")

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
        if self._native is None:
            return _read(pieces, out, self.part, edges)
        paths, unreachable = {}, {}
        for name in {piece.name for piece in pieces}:
            try:
                self._check_folders(name)
                paths[name] = os.fsencode(f"{self._root}/{name}")
            except OSError as error:
                unreachable[name] = _failure(name, error)
        if unreachable:
            there = [number for number, piece in enumerate(pieces) if piece.name in paths]
            some = None if edges is None else edges[there]
            rest = iter(self.read([pieces[number] for number in there], out, some))
            if edges is not None and some is not None:
                edges[there] = some
            return [next(rest) if piece.name in paths else unreachable[piece.name] for piece in pieces]
        fates = np.empty(len(pieces), dtype=np.int32)
        offsets = np.array([piece.offset for piece in pieces], dtype=np.int64)
        rows = np.array([piece.row for piece in pieces], dtype=np.int64)
        beside = np.empty((len(pieces), CRC), dtype=np.uint8) if edges is None else edges
        self._native([paths[piece.name] for piece in pieces], offsets, rows, out, beside, fates, direct=self.direct)
        said = [_FATES.get(fate, "") for fate in fates.tolist()]
        for number in np.flatnonzero(fates > 0).tolist():
            code = int(fates[number])
            what = OSError(code, NOT_PLAIN if code in NOT_PLAIN_ERRORS else os.strerror(code))
            said[number] = _failure(pieces[number].name, what)
        return said

    def read_views(self, views: NDArray[np.int64], out: NDArray[np.uint8], array: MarkedArray) -> bool:
        """Fill rows of `out`, each with a view, from where a shard has it if it is as we write it, without an index.

        Checksum and mark of each view are looked at: what is found there is that view of that scan, or it is not
        taken. False if any of them was not found so, and then `out` may hold anything; also where this cannot be done.
        """
        if self._native_views is None:
            return False
        root = os.fsencode(self._root)
        found: bool = self._native_views(
            root, array.name, array.after, array.views_per_shard, array.scan, views, out, direct=self.direct
        )
        return found

    def part(self, name: str, offset: int, count: int) -> bytes:
        with self._open(name) as file:
            if offset < 0 and (offset := offset + file.seek(0, os.SEEK_END)) < 0:
                return b""
            file.seek(offset)
            return _read_up_to(file, count)

    def _open(self, name: str) -> FileIO:
        self._check_folders(name)
        return FileIO(open_plain(f"{self._root}/{name}"))

    def _check_folders(self, name: str) -> None:
        """Refuse a file that lies behind a link to a folder; each folder is looked at once."""
        folder = name.rpartition("/")[0]
        if folder in self._folders:
            return
        self._check_folders(folder)
        if not stat.S_ISDIR(os.lstat(f"{self._root}/{folder}").st_mode):
            raise OSError(errno.ENOTDIR, "it is a link instead of a folder", folder)
        self._folders.add(folder)


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
        unpacked, packed = sum(member.file_size for member in members), path.stat().st_size
        if unpacked > _UNPACKED + _MOST_RATIO * packed:
            raise InputError(
                f"{path} has {packed / 1e6:.3g} MB and unpacks to {unpacked / 1e9:.3g} GB, as no measurements do; if "
                "you know better, unpack it and use the folder"
            )
        names = {member.filename: member for member in members}
        # Zipping the folder puts its name in front of everything.
        tops = {name.split("/")[0] for name in names if name.count("/") == 1 and name.endswith("/zarr.json")}
        self.prefix = f"{tops.pop()}/" if "zarr.json" not in names and len(tops) == 1 else ""
        self.path, self._members = path, names
        self.apart = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        self._unpacked: tuple[str, bytes] = ("", b"")

    def load(self, name: str) -> bytes:
        size = self._member(name).file_size
        check_json_size(name, size)
        return self.part(name, 0, size)

    def size(self, name: str) -> int:
        member = self._members.get(self.prefix + name)
        return 0 if member is None else member.file_size

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
        return _read(pieces, out, self.part, edges)

    def _member(self, name: str) -> zipfile.ZipInfo:
        if self.prefix + name not in self._members:
            raise FileNotFoundError(2, "No such file", name)
        return self._members[self.prefix + name]

    def part(self, name: str, offset: int, count: int) -> bytes:
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
            whole = member.file_size <= _UNPACKED  # or else only what is asked for, however long that takes
            first, end = (0, member.file_size) if whole else (offset, min(offset + count, member.file_size))
            content = _inflate(file, member.compress_size, first, end)
        if whole:
            self._unpacked = (name, content)
        return content[offset - first : offset - first + count]


class ZarrFiles:
    """Files of a Zarr store: anything that fsspec reaches."""

    apart = True

    def __init__(self, store: Any) -> None:
        self.store = store

    def load(self, name: str) -> bytes:
        from zarr.abc.store import RangeByteRequest

        content = self._get(name, RangeByteRequest(0, MOST_JSON + 1))
        check_json_size(name, len(content))
        return content

    def size(self, name: str) -> int:
        from zarr.core.sync import sync

        try:
            return int(sync(self.store.getsize(name)))
        except Exception:  # whatever a distant store raises for a file that is not there
            return 0

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
        return _read(pieces, out, self.part, edges)

    def part(self, name: str, offset: int, count: int) -> bytes:
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest

        return self._get(name, SuffixByteRequest(count) if offset < 0 else RangeByteRequest(offset, offset + count))

    def _get(self, name: str, part: Any) -> bytes:
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        found = sync(self.store.get(name, default_buffer_prototype(), part))
        if found is None:
            raise FileNotFoundError(2, "No such file", name)
        return bytes(found.to_bytes())


def _read_up_to(file: FileIO, count: int) -> bytes:
    """The next bytes of a file, or what there is of them; the system gives at most 2 GB at a time."""
    content = b""
    while len(content) < count and (more := file.read(count - len(content))):
        content += more
    return content


def _inflate(file: IO[bytes], packed: int, first: int, last: int) -> bytes:
    """Bytes `first` to `last` of what the next `packed` bytes of a file unpack to, with little more in memory."""
    stream, done, parts = zlib.decompressobj(-zlib.MAX_WBITS), 0, []
    waiting = b""
    while done < last and not stream.eof:
        if not waiting:
            waiting = file.read(min(packed, _BLOCK))
            packed -= len(waiting)
            if not waiting:
                break
        some = stream.decompress(waiting, min(_BLOCK, last - done))
        waiting = stream.unconsumed_tail
        if done + len(some) > first:
            parts.append(some[max(0, first - done) :])
        done += len(some)
    return b"".join(parts)


def crc32c(content: bytes | NDArray[np.uint8]) -> bytes:
    """The checksum of bytes as it is stored."""
    import google_crc32c

    return int(google_crc32c.value(content)).to_bytes(CRC, "little")


def read_bytes(files: Files, name: str, offset: int, count: int) -> tuple[bytes, str]:
    """Bytes of a file, and what is wrong with them, "" if nothing."""
    try:
        content = files.part(name, offset, count)
    except Exception as error:  # an I/O error of the disk or of a distant store, of whatever kind
        return b"", _failure(name, error)
    return content, "" if len(content) == count else _FATES[-1]


def _read(
    pieces: Sequence[Piece], out: NDArray[np.uint8], part: Callable[[str, int, int], bytes], edges: Edges = None
) -> list[str]:
    """`Files.read` by a function that gives a part of a file, or less of it where the file ends."""
    said: list[str] = []
    before = 0 if edges is None else edges.shape[1] - CRC
    size, stride = out.shape[1], before + out.shape[1] + CRC
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
            elif crc32c(one[before : before + size]) != one[before + size :]:
                said.append(_FATES[-2])
            else:
                out[piece.row] = np.frombuffer(one, np.uint8, size, before)
                if edges is not None:
                    edges[len(said)] = np.frombuffer(one[:before] + one[before + size :], np.uint8)
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
