"""Who is connected to a receiver: not too many at once, none that only fills the memory, and always room for files.

ZeroMQ accepts connections by itself, without a limit, until the process has no file descriptors left, and then a scan
cannot be written either; and it gathers the parts of a message until the last has come, however many they are. But it
tells of each connection by a monitor, with its descriptor, so that one can be shut down from outside; to ZeroMQ that
looks as if the peer had gone.
"""

from __future__ import annotations

import errno
import os
import socket as tcp
import struct
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from plugstream.base.errors import InputError

__all__ = ["ConnectionLimiter", "is_crowded", "is_full"]

_SPARE = 32  # descriptors that are kept for a scan's files when everything else is taken
_OTHERS = 64  # descriptors for the libraries, the socket itself and the scan
_STRANGER_BYTES = 4 * (8 << 20)  # what a connection may send before it has begun a scan
_RECEIVED = 128  # where Linux' struct tcp_info has tcpi_bytes_received
_LOOK = 0.1  # seconds between two looks at what strangers have sent


class ConnectionLimiter:
    """The connections of a bound ZeroMQ socket: the oldest of too many are shut down, but never the owner's.

    Whoever comes is let in at first, so that in a crowd the instrument can come back too; it stays once it has begun
    the scan, and others leave when newer ones come. A connection that has not begun a scan and sends more than 32 MB is
    shut down, too (on Linux).

    Arguments: zmq, the module; socket, not bound yet; most, connections at once, None for 32, or fewer where the
    process may not open as many files; counts, to count `crowded` and `unauthorised` ones in.
    """

    def __init__(self, zmq: Any, socket: Any, most: int | None, counts: Counter[str]) -> None:
        room = _most_files() - _SPARE - _OTHERS
        if most is not None and most < 2:
            raise InputError(f"at least 2 connections are needed, so that a sender can come back, not {most}")
        if room < (most or 2):
            raise InputError(
                f"{most or 2} connections need more files than this process may open; allow more with: ulimit -n "
                f"{(most or 2) + _SPARE + _OTHERS}"
            )
        self.most = min(32, room) if most is None else most
        self.owner: int | None = None  # the descriptor of the connection that is never shut down for others
        self._zmq, self._socket, self._counts = zmq, socket, counts
        self._port: int | None = None
        self._inside: dict[int, None] = {}  # descriptors, the oldest first
        self._looked = 0.0
        self.monitor = socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._spare: list[int] = []
        self._reserve()

    def bound(self, address: str) -> None:
        """Tell where the socket listens, by which its connections are known."""
        self._port = int(address.rsplit(":", 1)[1])

    def look(self) -> None:
        """See who came and went, and shut down those that are too many or send too much."""
        zmq = self._zmq
        while self.monitor.poll(0):
            head = self.monitor.recv_multipart()[0]
            event, handle = struct.unpack("=HI", head)
            if event == zmq.EVENT_ACCEPTED:
                self._inside.pop(handle, None)
                self._inside[handle] = None
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._counts["unauthorised"] += 1
            else:
                self._inside.pop(handle, None)
                if handle == self.owner:
                    self.owner = None
        strangers = [handle for handle in self._inside if handle != self.owner]
        for handle in strangers[: max(0, len(self._inside) - self.most)]:
            self._counts["crowded"] += 1
            self._shut(handle)
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._looked = now
            for handle in [handle for handle in self._inside if handle != self.owner]:
                if self._received(handle) > _STRANGER_BYTES:
                    self._counts["oversized"] += 1
                    self._shut(handle)

    def make_room(self) -> None:
        """When there are no descriptors left: free those that were kept, and shut down everybody but the owner."""
        self.look()
        for handle in [handle for handle in self._inside if handle != self.owner]:
            self._counts["crowded"] += 1
            self._shut(handle)
        for handle in self._spare:
            os.close(handle)
        self._spare = []
        time.sleep(0.05)  # in which ZeroMQ closes them

    def restore(self) -> None:
        """Keep descriptors for the next time."""
        self.look()
        with suppress(OSError):  # not yet, then
            self._reserve()

    def close(self) -> None:
        """Stop watching; call it before the socket is closed."""
        while self.monitor.poll(0):  # ZeroMQ waits for a monitor that is full
            self.monitor.recv_multipart()
        self._socket.disable_monitor()
        self.monitor.close(0)
        for handle in self._spare:
            os.close(handle)
        self._spare = []

    def _reserve(self) -> None:
        while len(self._spare) < _SPARE:
            self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def _shut(self, handle: int) -> None:
        self._inside.pop(handle, None)
        with self._connection(handle) as connection:
            if connection is not None:
                connection.shutdown(tcp.SHUT_RDWR)

    def _received(self, handle: int) -> int:
        """Bytes that came over a connection; 0 where the system does not tell."""
        with self._connection(handle) as connection:
            if connection is not None and hasattr(tcp, "TCP_INFO"):
                told = connection.getsockopt(tcp.IPPROTO_TCP, tcp.TCP_INFO, _RECEIVED + 8)
                if len(told) == _RECEIVED + 8:
                    return int(struct.unpack_from("=Q", told, _RECEIVED)[0])
        return 0

    def _connection(self, handle: int) -> _SocketLoan:
        return _SocketLoan(handle, self._port)


class _SocketLoan:
    """A descriptor of ZeroMQ's as a socket, for an instant; None if it is no connection of this port any more."""

    def __init__(self, handle: int, port: int | None) -> None:
        self._handle, self._port = handle, port
        self._socket: tcp.socket | None = None

    def __enter__(self) -> tcp.socket | None:
        try:
            self._socket = tcp.socket(fileno=self._handle)
            if self._socket.getsockname()[1] == self._port:
                return self._socket
        except (OSError, IndexError, TypeError):  # closed meanwhile, or a file by now
            pass
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if self._socket is not None:
            self._socket.detach()
        return kind is not None and issubclass(kind, OSError)


def is_crowded(error: BaseException) -> bool:
    """Whether something failed because no more files can be opened."""
    return _comes_of(error, errno.EMFILE, errno.ENFILE)


def is_full(error: BaseException) -> bool:
    """Whether something failed because the disk, or what somebody may have of it, is full."""
    return _comes_of(error, errno.ENOSPC, errno.EDQUOT)


def _comes_of(error: BaseException, *numbers: int) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in numbers:
            return True
        cause = cause.__cause__
    return False


def _most_files() -> int:
    """How many files this process may open."""
    try:
        import resource
    except ImportError:  # Windows, where it is the limit of its C library
        return 512
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
