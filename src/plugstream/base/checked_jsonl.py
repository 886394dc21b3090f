"""Files of JSON lines, each with a checksum of itself and of all lines before it, so that every change is noticed.

    {"event": "views", "step": 0, "views": 12, "check": "5f1d7539e2c04ab1"}

`check` is the last member of an object: the first 16 hexadecimal digits of the SHA-256 of the line before's `check`
(nothing for the first line) and of the bytes of this line up to the comma in front of `check`. So a line that was
changed, removed, repeated or moved is found by its number, and a reader needs only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from io import BufferedReader, FileIO
from itertools import count
from pathlib import Path
from typing import Any

from plugstream.base.errors import DamagedError, StorageError
from plugstream.base.files import open_plain

_WHOLE = re.compile(rb', "check": "([0-9a-f]{16})"\}')
_END = re.compile(_WHOLE.pattern + rb"\n\Z")
_END_BYTES = len(', "check": "0123456789abcdef"}')
# A longer line is not ours, and is not read into memory.
_LONGEST = 64 << 20


class LineWriter:
    """Appends objects to such a file, each complete in the file when `add` returns.

    Existing lines are read first: a last line that a crash cut short is removed, and any other damage is refused as by
    `read_lines`, with nothing changed.

    Arguments: path, created if missing; what the file is, for messages: "the event log".
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.check = ""  # of the last line
        try:
            self._file = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"cannot write {what} {path}: {error.strerror}") from error
        try:
            self._end = 0
            for _, _, check, end in _parse(self._file, what, path):
                self.check, self._end = check, end
            if self._end < self._file.seek(0, os.SEEK_END):
                self._file.truncate(self._end)
        except OSError as error:
            self._file.close()
            raise StorageError(f"cannot write {what} {path}: {error.strerror}") from error
        except BaseException:
            self._file.close()
            raise

    def add(self, content: Mapping[str, Any]) -> None:
        """Write an object that is not empty; if that fails, OSError, and the file stays as it was."""
        body = json.dumps(content)[:-1].encode()
        check = _checksum(body, self.check)
        line = body + f', "check": "{check}"}}\n'.encode()
        try:
            remaining = memoryview(line)
            while remaining:  # a disk that is nearly full takes a part
                remaining = remaining[self._file.write(remaining) :]
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._file.truncate(self._end)
            raise
        self.check, self._end = check, self._end + len(line)

    @property
    def in_place(self) -> bool:
        """Whether opening the path finds this file; writing to a removed file loses everything."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def sync(self) -> None:
        """Make the added lines survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """The objects of a file, each with its line's number and checksum.

    A last line that a crash cut short is left out. Any other damage is refused by the number of the line: a changed
    byte, a missing, repeated or moved line, or one without a checksum.

    Arguments: path; what the file is, for messages: "the event log".
    """
    try:
        file = _open(path, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"cannot read {what} {path}: {error.strerror}") from error
    with file:
        for number, content, check, _ in _parse(file, what, path):
            yield number, content, check


class LineTail:
    """Reads a file while somebody appends to it: each call of `read` gives the new lines.

    `files` counts the files read from their first line: more than one if the file was replaced.

    Arguments: path, which need not exist yet; what the file is, for messages.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self._what = path, what
        self._number, self._check, self._end, self._inode = 0, "", 0, 0
        self.files = 0

    def read(self) -> list[tuple[int, dict[str, Any], str]]:
        """Numbers, objects and checksums of the new lines; damage is refused as by `read_lines`."""
        try:
            file = _open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {self._what} {self.path}: {error.strerror}") from error
        entries = []
        with file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self._end:
                self._number, self._check, self._end, self._inode = 0, "", 0, about.st_ino
                self.files += 1
            begin = (self._number, self._check, self._end)
            for number, content, check, end in _parse(file, self._what, self.path, begin):
                self._number, self._check, self._end = number, check, end
                entries.append((number, content, check))
        return entries


def _parse(
    file: FileIO, what: str, path: Path, begin: tuple[int, str, int] = (0, "", 0)
) -> Iterator[tuple[int, dict[str, Any], str, int]]:
    """Number, object, checksum and end of every complete line after `begin`: a line's number, checksum and end."""
    before, check, end = begin
    file.seek(end)  # a file opened to append is at its end
    lines = BufferedReader(file)
    try:
        for number in count(before + 1):
            line = lines.readline(_LONGEST)
            # Cut short or empty; a complete line with another byte for its newline is not.
            if not line.endswith(b"\n") and len(line) < _LONGEST and not _WHOLE.search(line[:-1]):
                return
            content = _unseal(line, check)
            if content is None:
                raise DamagedError(
                    f"line {number} of {what} {path} cannot be read: it fails its checksum, or a line before it is "
                    "missing; restore the file from a copy, or start again"
                )
            check, end = content.pop("check"), end + len(line)
            yield number, content, check, end
    finally:
        lines.detach()  # leaves the file open


def _unseal(line: bytes, before: str) -> dict[str, Any] | None:
    """The object of a line with its `check`, or None if it is not as it was written."""
    end = _END.search(line, max(0, len(line) - _END_BYTES - 1))
    if end is None or end[1].decode() != _checksum(line[: end.start()], before):
        return None
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _open(path: Path, flags: int) -> FileIO:
    """A plain file: a link could lead anywhere, and a pipe would wait."""
    handle = open_plain(path, flags)
    return FileIO(handle, "r" if flags & (os.O_RDWR | os.O_WRONLY) == os.O_RDONLY else "a+")


def _checksum(body: bytes, before: str) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:16]
