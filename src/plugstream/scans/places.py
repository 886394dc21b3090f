"""Where the files of a scan lie: a folder, a zip, or whatever fsspec reaches; and how checked bytes are read there.

A scan may come from anybody and may be damaged, so sizes and numbers are bounded before memory is used for them.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plugstream import _native
from plugstream.base.errors import InputError
from plugstream.base.files import NOT_PLAIN, NOT_PLAIN_ERRORS, open_plain

CRC = 4  # bytes of a checksum
MOST_JSON = 16 << 20  # bytes of zarr.json or commit.json; provenance may be long, but not as long as this
_MOST_DIGITS = 400  # of a number in JSON; no double needs more
_BLOCK = 1 << 20
_UNPACKED = 64 << 20  # a compressed file of a zip up to this size is kept unpacked
_MOST_RATIO = 200  # to which a zip may shrink a scan beyond that; measurements hardly shrink at all
_TOGETHER = 4 << 20  # pieces that lie one after another are read at once, up to so many bytes
_FATES = {0: "", -1: "its chunk is cut short", -2: "its chunk fails its checksum", -3: NOT_PLAIN}
CHUNK_FAULTS = (_FATES[-1], _FATES[-2])  # what is wrong with the bytes, and not with the file

Edges = NDArray[np.uint8] | None
"""What stands before pieces and after them."""


class Piece(NamedTuple):
    """Bytes with their crc32c behind them, and the row of the array that they go to."""

    name: str  # of the file
    offset: int  # within it, or below zero from its end
    row: int


class Files(Protocol):
    """The files of a scan, wherever they lie, by names such as "data/c/3/0"; threads may share them."""

    def load(self, name: str) -> bytes:
        """All of a file of attributes; FileNotFoundError if it is not there, InputError if it is too long to be one."""

    def size(self, name: str) -> int:
        """Bytes of a file, 0 if it is not there."""

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
        """Fill rows of `out` (rows, bytes), each with a piece, and return what is wrong with each, "" if nothing.

        It is fastest for pieces in the order of files and offsets. With `edges` (pieces, before + 4) the offset of each
        piece is that of `before` more bytes in front of it; they go to `edges`, followed by the piece's checksum.
        """

    def part(self, name: str, offset: int, count: int) -> bytes:
        """So many bytes of a file, fewer where it ends; an offset below zero is from its end."""

    @property
    def seekable(self) -> bool:
        """Whether reading a part of a file costs no more than its own bytes."""


def _read_pieces(files: Files, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
    """`Files.read` by `Files.part`."""
    faults: list[str] = []
    before = 0 if edges is None else edges.shape[1] - CRC
    size, stride = out.shape[1], before + out.shape[1] + CRC
    for run in _runs(pieces, stride):
        try:
            content = files.part(run[0].name, run[0].offset, len(run) * stride)
        except Exception as error:  # an I/O error of the disk or of a distant store, of whatever kind
            faults += [_failure(piece.name, error) for piece in run]
            continue
        for number, piece in enumerate(run):
            chunk = content[number * stride : (number + 1) * stride]
            if len(chunk) < stride:
                faults.append(_FATES[-1])
            elif crc32c(chunk[before : before + size]) != chunk[before + size :]:
                faults.append(_FATES[-2])
            else:
                out[piece.row] = np.frombuffer(chunk, np.uint8, size, before)
                if edges is not None:
                    edges[len(faults)] = np.frombuffer(chunk[:before] + chunk[before + size :], np.uint8)
                faults.append("")
    return faults


class LocalFiles:
    """Files of a folder. Only plain files and folders within it count: links, pipes and devices are refused.

    `direct` reads past the system's page cache, where the native reader and the file system can do it. A scan larger
    than memory gains nothing from that cache, since a view drawn at random is hardly ever in it, and pays for copying
    into it and out of it with processor time that an iteration lacks.
    """

    seekable = True

    def __init__(self, folder: Path, *, direct: bool = False) -> None:
        self.folder, self.direct = folder, direct
        self._root = os.fspath(folder)
        self._folders: set[str] = {""}  # those seen to be folders, and no links
        self._native = getattr(_native.load(), "read_pieces", None)
        self._native_views = getattr(_native.load(), "read_views", None)

    def load(self, name: str) -> bytes:
        with self._open(name) as file:
            _check_json_size(name, os.fstat(file.fileno()).st_size)
            return _read_up_to(file, MOST_JSON)

    def size(self, name: str) -> int:
        try:
            self._check_folders(name)
            status = os.lstat(f"{self._root}/{name}")
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def read(self, pieces: Sequence[Piece], out: NDArray[np.uint8], edges: Edges = None) -> list[str]:
        if self._native is None:
            return _read_pieces(self, pieces, out, edges)
        paths, unreachable = {}, {}
        for name in {piece.name for piece in pieces}:
            try:
                self._check_folders(name)
                paths[name] = os.fsencode(f"{self._root}/{name}")
            except OSError as error:
                unreachable[name] = _failure(name, error)
        faults = [unreachable.get(piece.name, "") for piece in pieces]
        numbers = [number for number, fault in enumerate(faults) if not fault]
        offsets, rows = (np.array([pieces[n][field] for n in numbers], dtype=np.int64) for field in (1, 2))
        fates = np.empty(len(numbers), dtype=np.int32)
        margins = np.empty((len(numbers), CRC if edges is None else edges.shape[1]), dtype=np.uint8)
        files = [paths[pieces[number].name] for number in numbers]
        self._native(files, offsets, rows, out, margins, fates, direct=self.direct)
        if edges is not None:
            edges[numbers] = margins
        for number, fate in zip(numbers, fates.tolist(), strict=True):
            if fate > 0:
                text = NOT_PLAIN if fate in NOT_PLAIN_ERRORS else os.strerror(fate)
                faults[number] = _failure(pieces[number].name, OSError(fate, text))
            elif fate:
                faults[number] = _FATES.get(fate, "")
        return faults

    def read_views(
        self, views: NDArray[np.int64], out: NDArray[np.uint8], array: str, suffix: str, shard: int, scan: bytes
    ) -> bool:
        """Fill rows of `out`, each with a view, from where our shards have it, without reading an index.

        Checksum and mark of each view are checked, so that it is that view of that scan. False if any of them was not
        there, and then `out` may hold anything; also where this cannot be done.

        Arguments: array, its name; suffix, what a file's name has after the number of its shard; shard, views in one;
        scan, the first eight bytes of its id.
        """
        if self._native_views is None:
            return False
        root = os.fsencode(self._root)
        return bool(self._native_views(root, array, suffix, shard, scan, views, out, direct=self.direct))

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
            raise InputError(f"{path} is not a scan: neither a folder nor a zip file ({error}); import it") from error
        if any(m.flag_bits & 1 or m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
            raise InputError(f"{path} is encrypted, or compressed by another method than deflate; zip it again")
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
        self.seekable = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        self._unpacked: tuple[str, bytes] = ("", b"")

    def load(self, name: str) -> bytes:
        size = self._member(name).file_size
        _check_json_size(name, size)
        return self.part(name, 0, size)

    def size(self, name: str) -> int:
        member = self._members.get(self.prefix + name)
        return 0 if member is None else member.file_size

    read = _read_pieces

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
            stored = file.read(lengths[0]).decode("utf-8" if member.flag_bits & 0x800 else "cp437", errors="replace")
            if stored != member.orig_filename:
                raise OSError(f"the zip is damaged where {name} should be")
            file.seek(lengths[1], os.SEEK_CUR)
            if member.compress_type == zipfile.ZIP_STORED:
                file.seek(offset, os.SEEK_CUR)
                return file.read(max(0, min(count, member.file_size - offset)))
            small = member.file_size <= _UNPACKED  # or else only what is asked for, however long that takes
            first, end = (0, member.file_size) if small else (offset, min(offset + count, member.file_size))
            content = _inflate(file, member.compress_size, first, end)
        if small:
            self._unpacked = (name, content)
        return content[offset - first : offset - first + count]


class ZarrFiles:
    """Files of a Zarr store: anything that fsspec reaches."""

    seekable = True
    read = _read_pieces

    def __init__(self, store: Any) -> None:
        self.store = store

    def load(self, name: str) -> bytes:
        from zarr.abc.store import RangeByteRequest

        content = self._get(name, RangeByteRequest(0, MOST_JSON + 1))
        _check_json_size(name, len(content))
        return content

    def size(self, name: str) -> int:
        from zarr.core.sync import sync

        try:
            return int(sync(self.store.getsize(name)))
        except Exception:  # whatever a distant store raises for a file that is not there
            return 0

    def part(self, name: str, offset: int, count: int) -> bytes:
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest

        return self._get(name, SuffixByteRequest(count) if offset < 0 else RangeByteRequest(offset, offset + count))

    def _get(self, name: str, part: Any) -> bytes:
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        content = sync(self.store.get(name, default_buffer_prototype(), part))
        if content is None:
            raise FileNotFoundError(2, "No such file", name)
        return bytes(content.to_bytes())


def _read_up_to(file: FileIO, count: int) -> bytes:
    """The next bytes of a file, or what there is of them; the system gives at most 2 GB at a time."""
    content = b""
    while len(content) < count and (more := file.read(count - len(content))):
        content += more
    return content


def _inflate(file: IO[bytes], packed: int, first: int, last: int) -> bytes:
    """Bytes `first` to `last` of what the next `packed` bytes of a file unpack to, with little more in memory."""
    stream, position, parts, waiting = zlib.decompressobj(-zlib.MAX_WBITS), 0, [], b""
    while position < last and not stream.eof:
        if not waiting:
            waiting = file.read(min(packed, _BLOCK))
            packed -= len(waiting)
            if not waiting:
                break
        block = stream.decompress(waiting, min(_BLOCK, last - position))
        waiting = stream.unconsumed_tail
        parts.append(block[max(0, first - position) :])
        position += len(block)
    return b"".join(parts)


def parse_json(text: bytes, name: str) -> Any:
    """The JSON in the file `name`; numbers of hundreds of digits, and lists nested without end, are refused."""
    _check_json_size(name, len(text))

    def number(digits: str, kind: type) -> Any:
        if len(digits) > _MOST_DIGITS:
            raise InputError(f"{name} has a number of {len(digits)} digits, which no scan has")
        return kind(digits)

    try:
        return json.loads(text, parse_int=lambda d: number(d, int), parse_float=lambda d: number(d, float))
    except RecursionError:
        raise InputError(f"{name} has lists within lists without end") from None


def _check_json_size(name: str, size: int) -> None:
    if size > MOST_JSON:
        raise InputError(f"{name} has {size / 1e6:.0f} MB, but at most {MOST_JSON / 1e6:.0f} MB are read")


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
