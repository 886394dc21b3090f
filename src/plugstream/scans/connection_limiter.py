"""Who is connected to a receiver: not too many at once, none that only fills the memory, and always room for files.

ZeroMQ accepts connections without a limit, until the process has no file descriptors left to write a scan, and gathers
the parts of a message until the last has come, however many they are. But its monitor reports each connection with its
descriptor, so that one can be shut down from outside; to ZeroMQ that looks as if the peer had gone.
"""

from __future__ import annotations

import errno
import os
import socket as tcp
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.system import find_limit, find_module

_SPARE = 32  # descriptors that are kept for a scan's files when everything else is taken
_OTHER_FILES = 64  # descriptors for the libraries, the socket itself and the scan
_STRANGER_BYTES = 4 * (8 << 20)  # what a connection may send before it has begun a scan
_RECEIVED = 128  # where Linux' struct tcp_info has tcpi_bytes_received
_LOOK = 0.1  # seconds between two looks at what strangers have sent


class ConnectionLimiter:
    """The connections of a bound ZeroMQ socket: the oldest of too many are shut down, but never the owner's.

    Everybody is let in at first, so that in a crowd the instrument can come back; it stays once it has begun the scan,
    and others leave when newer ones come. On Linux, a stranger that sends more than 32 MB is shut down too.

    Arguments: zmq, the module; socket, not bound yet; most, connections at once, None for 32, or fewer if the process
    may not open as many files; counts, to count `crowded`, `oversized` and `unauthorised` ones in.
    """

    def __init__(self, zmq: Any, socket: Any, most: int | None, counts: Counter[str]) -> None:
        room = _most_files() - _SPARE - _OTHER_FILES
        if most is not None and most < 2:
            raise InputError(f"at least 2 connections are needed, so that a sender can come back, not {most}")
        if room < (most or 2):
            raise InputError(
                f"{most or 2} connections need more files than this process may open; allow more with: ulimit -n "
                f"{(most or 2) + _SPARE + _OTHER_FILES}"
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
        """Say where the socket listens, by which its connections are recognised."""
        self._port = int(address.rsplit(":", 1)[1])

    def look(self) -> None:
        """See who came and went, and shut down those that are too many or send too much."""
        zmq = self._zmq
        while self.monitor.poll(0):
            event, handle = struct.unpack("=HI", self.monitor.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._counts["unauthorised"] += 1
                continue
            self._inside.pop(handle, None)
            if event == zmq.EVENT_ACCEPTED:
                self._inside[handle] = None
            elif handle == self.owner:
                self.owner = None
        self._shut(self._strangers()[: max(0, len(self._inside) - self.most)], "crowded")
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._looked = now
            large = [h for h in self._strangers() if self._borrow(h, _received) > _STRANGER_BYTES]
            self._shut(large, "oversized")

    def make_room(self) -> None:
        """When there are no descriptors left: free the spare ones, and shut down everybody but the owner."""
        self.look()
        self._shut(self._strangers(), "crowded")
        self._free_spare()
        time.sleep(0.05)  # in which ZeroMQ closes them

    def restore(self) -> None:
        """Reserve descriptors for the next time."""
        self.look()
        with suppress(OSError):  # not yet, then
            self._reserve()

    def close(self) -> None:
        """Stop watching; call it before the socket is closed."""
        while self.monitor.poll(0):  # ZeroMQ waits for a monitor that is full
            self.monitor.recv_multipart()
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._free_spare()

    def _reserve(self) -> None:
        while len(self._spare) < _SPARE:
            self._spare.append(os.open(os.devnull, os.O_RDONLY))

    def _free_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _strangers(self) -> list[int]:
        return [handle for handle in self._inside if handle != self.owner]

    def _shut(self, handles: list[int], reason: str) -> None:
        for handle in handles:
            self._counts[reason] += 1
            self._inside.pop(handle, None)
            self._borrow(handle, lambda connection: connection.shutdown(tcp.SHUT_RDWR))

    def _borrow(self, handle: int, use: Callable[[tcp.socket], Any]) -> Any:
        """Use a descriptor of ZeroMQ's as a socket, for an instant; 0 if it is no connection of this port any more."""
        connection: tcp.socket | None = None
        try:
            connection = tcp.socket(fileno=handle)
            return use(connection) if connection.getsockname()[1] == self._port else 0
        except (OSError, IndexError, TypeError):  # closed meanwhile, or a file by now
            return 0
        finally:
            if connection is not None:
                connection.detach()


def _received(connection: tcp.socket) -> int:
    """Bytes that came over a connection; 0 where the system does not tell."""
    if not hasattr(tcp, "TCP_INFO"):
        return 0
    info = connection.getsockopt(tcp.IPPROTO_TCP, tcp.TCP_INFO, _RECEIVED + 8)
    return int(struct.unpack_from("=Q", info, _RECEIVED)[0]) if len(info) == _RECEIVED + 8 else 0


def is_crowded(error: BaseException) -> bool:
    """Whether something failed because no more files can be opened."""
    return _comes_of(error, errno.EMFILE, errno.ENFILE)


def is_full(error: BaseException) -> bool:
    """Whether something failed because the disk, or the quota on it, is full."""
    return _comes_of(error, errno.ENOSPC, errno.EDQUOT)


def _comes_of(error: BaseException | None, *numbers: int) -> bool:
    while error is not None and not (isinstance(error, OSError) and error.errno in numbers):
        error = error.__cause__
    return error is not None


def _most_files() -> int:
    """How many files this process may open."""
    limit = find_limit("NOFILE")
    return (1 << 20 if find_module("resource") else 512) if limit is None else limit  # Windows' C library allows 512
