"""Files that are complete or absent, folders with one writer at a time, and JSON from strangers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import select
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError, StorageError
from plugstream.base.system import has_locks, lock_file, renames_open, sync_folder as sync_folder

NOT_PLAIN = "it is a link, a folder, a pipe or a device instead of a plain file"
# Links are not followed, handles not inherited, and bytes left as they are, as far as the system can.
NEW_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened without waiting for its other end
_SILENT = 10.0  # seconds without a word in a pipe
NOT_PLAIN_ERRORS = (errno.ELOOP, errno.ENXIO)  # of a link that is not followed, and of a socket


def hidden_place(target: Path) -> Path:
    """A new name beside `target` for something that must be complete before it gets its own name."""
    stem = os.fsdecode(os.fsencode(target.name)[:100])  # a name may have 255 bytes
    return target.with_name(f".{stem}.{uuid.uuid4().hex}.partial")


@contextlib.contextmanager
def name_target(hidden: Path, target: Path) -> Iterator[None]:
    """Make errors name the target that the user asked for, not the place where it is being made."""
    try:
        yield
    except InputError as error:
        if type(error) not in (InputError, StorageError) or str(hidden) not in str(error):
            raise
        raise type(error)(str(error).replace(str(hidden), str(target))) from error.__cause__


def read_small(path: Path, most: int = 1 << 20) -> str:
    """The text of a file that a person wrote; a larger one, such as an endless device, is an OSError.

    So is a pipe in which nobody writes for ten seconds.
    """
    if stat.S_ISFIFO(path.stat().st_mode):
        content = _read_pipe(path, most + 1)
    else:
        with path.open("rb") as file:
            content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has more than {most:,} bytes")
    return content.decode()


def _read_pipe(path: Path, most: int) -> bytes:
    """What is written to a pipe, such as `<(...)` of a shell, whose opening would else wait for somebody to write."""
    handle, content = os.open(path, os.O_RDONLY | AT_ONCE), b""
    try:
        while len(content) < most:
            if not select.select([handle], [], [], _SILENT)[0]:
                raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nobody wrote to it for {_SILENT:g} s", str(path))
            if not (part := os.read(handle, most - len(content))):
                break
            content += part
    finally:
        os.close(handle)
    return content


def write_whole(path: Path, parts: Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Write a file so that a reader always finds the old one or the new one, even after a power cut.

    It is written to a temporary file beside it, flushed to disk and renamed. The rename survives a power cut once
    `sync_folder` has been called for its folder; the caller does that once for many files. The temporary file has an
    unpredictable name, so a planted link is not followed. Unfinished files of killed processes for the same place are
    removed. A device or pipe, such as /dev/null, is refused: the rename would replace it.

    Without `durable` it is not flushed, which takes a fraction of the time: a power cut may leave it empty.
    """
    handle, temporary = _open_beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if renames_open():
                temporary.replace(path)  # while it is locked, so that nobody takes it for a leftover
        if not renames_open():  # and nobody removes leftovers
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise


def _open_beside(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, locked while it is open, and its name: .NAME.16-digits.new."""
    if not path.name:  # "." or "/", beside which nothing can be named
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    _refuse_stream(path)
    _remove_left(path)
    while True:
        temporary = path.with_name(f"{_sibling_prefix(path)}{secrets.token_hex(8)}.new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NEW_FILE, 0o666)
        try:
            lock_file(handle)
        except BlockingIOError:  # another process is removing it as a leftover at this instant
            os.close(handle)
            continue
        except OSError:  # a file system without locks: nobody removes anything there
            return handle, temporary
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)


def _refuse_stream(path: Path) -> None:
    """Raise an OSError if `path` is a device, pipe or socket, or a link to an open file of a process."""
    try:
        mode = path.stat().st_mode
        link = os.readlink(path) if path.is_symlink() else ""
    except OSError:  # missing or unreadable, which the write will report
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or link.startswith("/proc/"):
        raise OSError(errno.EINVAL, "it is a device or pipe, not a file", str(path))


def _remove_left(path: Path) -> None:
    """Remove the files of dead writers of `path`: nobody holds a lock on them."""
    begin = _sibling_prefix(path)
    if not renames_open():
        return
    try:
        names = [name for name in os.listdir(path.parent) if name.startswith(begin) and name.endswith(".new")]
    except OSError:
        return  # the write will report it
    for name in names:
        if len(name) != len(begin) + 20:  # another file whose name begins alike
            continue
        with contextlib.suppress(OSError):
            handle = os.open(path.with_name(name), os.O_RDONLY | AT_ONCE | NEW_FILE)
            try:
                lock_file(handle)
                path.with_name(name).unlink()
            finally:
                os.close(handle)


def _sibling_prefix(path: Path) -> str:
    """The prefix of temporary files beside `path`; a very long name is cut."""
    name = f".{path.name}."
    while len(os.fsencode(name)) > 255 - 20:
        name = f"{name[:-2]}."
    return name


def open_plain(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file and return its handle; OSError for anything else, without waiting.

    A symbolic link could lead anywhere, a pipe would wait for ever, and a device may never end.
    """
    try:
        handle = os.open(path, flags | AT_ONCE | NEW_FILE, 0o666)
    except OSError as error:
        if error.errno in NOT_PLAIN_ERRORS:
            raise OSError(error.errno, NOT_PLAIN, os.fspath(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, NOT_PLAIN, os.fspath(path))
    return handle


def lock_folder(folder: Path, what: str) -> int:
    """Become the only writer of a folder; returns a handle to close. InputError if another process is.

    When the process ends, however it ends, the system unlocks it. `what` names the folder in messages: "the scan x".
    """
    if not has_locks():
        raise InputError(
            f"cannot write to {what}: this system has no file locks (fcntl), which a folder with one writer needs; use "
            "Linux, macOS or Windows, or the library on arrays in memory"
        )
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | NEW_FILE, 0o644)
    except OSError as error:
        raise StorageError(f"cannot write to {what}: {error.strerror}") from error
    try:
        lock_file(handle)
    except OSError:
        os.close(handle)
        raise InputError(f"another process is writing to {what}; wait for it, or stop it") from None
    return handle


def rename_locked(handle: int, folder: Path, target: Path, what: str) -> int:
    """Rename a folder that this process has locked; returns the handle of its lock, which Windows has to take anew."""
    if renames_open():
        folder.rename(target)
        return handle
    os.close(handle)
    folder.rename(target)
    return lock_folder(target, what)


# A string, whose content is not counted. An unterminated one reaches to the end, and there is no backtracking, so that
# it takes linear time on any bytes.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def load_json(text: bytes, *, most_bytes: int, most_depth: int = 16, most_digits: int = 64) -> Any:
    """The content of a JSON text, or a ValueError of one line.

    Python's parser accepts integers of a million digits, any depth of lists, UTF-16 and NaN. Here a text is UTF-8, has
    at most `most_bytes` bytes, lists and objects at most `most_depth` deep, and numbers of at most `most_digits` digits
    in a row, all checked before the parser runs. 1e400 is infinite, so check numbers that must be finite.
    """
    if len(text) > most_bytes:
        raise ValueError(f"it has {len(text)} bytes, and {most_bytes} are allowed")
    many, long = text.count(b"[") + text.count(b"{") > most_depth, re.compile(rb"[0-9]{%d}" % (most_digits + 1))
    if many or long.search(text):  # perhaps only within strings
        bare = _STRING.sub(b'""', text)
        if _depth(bare) > most_depth:
            raise ValueError(f"it is more than {most_depth} lists deep")
        if long.search(bare):
            raise ValueError(f"it has a number of more than {most_digits} digits")
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON in UTF-8") from None


def _depth(bare: bytes) -> int:
    """The deepest nesting of lists and objects."""
    import numpy as np

    codes = np.frombuffer(bare, dtype=np.uint8)
    opened = (codes == ord("[")) | (codes == ord("{"))
    closed = (codes == ord("]")) | (codes == ord("}"))
    return int(np.cumsum(opened.astype(np.int64) - closed).max(initial=0))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
