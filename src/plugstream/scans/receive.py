"""Receive a scan from an instrument over ZeroMQ; every view is on disk before it is acknowledged."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from plugstream.base.errors import InputError, StorageError
from plugstream.scans.connection_limiter import ConnectionLimiter, is_crowded, is_full
from plugstream.scans.journal import Journal, Limits
from plugstream.scans.keys import Gate, ServerKeys, zmq_module
from plugstream.scans.parts import MOST_BYTES
from plugstream.scans.stream import Message, RefusedError, reply

_BATCH = 64  # messages that share a commit, at most
_PARTS = 5  # one more than any message has
_PATIENCE = 0.2  # seconds until the same view is asked for again
_GRACE = 5.0  # seconds of silence after the end until a sender that did not say goodbye is taken for gone
_SLICE = 0.1  # seconds of one wait, and the most of it that counts as silence: this process may have been stopped
_HANDSHAKE = 3000  # milliseconds in which a connection must turn out to speak ZeroMQ, and to have a key
_log = logging.getLogger("plugstream")


class _Peer(NamedTuple):
    """Who sent a message: ZeroMQ's name of the connection, its descriptor, and with keys the sender's public one."""

    route: bytes
    handle: int
    key: str


class Receiver:
    """Takes the views of one scan from a socket onto the disk, in order, each once, whatever else arrives.

    A view is acknowledged when it is committed, and messages that come together share a commit. One that is early,
    truncated, oversized, mistyped, damaged or unreadable is counted and not used, and the view that is wanted is asked
    for again; a repeated one is acknowledged again if it is what is on the disk, and is a conflict otherwise. Nothing
    is unpickled, nothing is allocated because a message claims a size, and no message ends the receiver.

    A scan belongs to whoever began it: only whoever knows the token of its first message, and with keys has the same
    key, can continue it, also with a later Receiver. Nobody else learns its name. Without `keys` anybody who reaches
    the address may begin one, so it listens on this machine alone; `remote` needs keys.

    Arguments: out, a new scan, or one that an earlier Receiver did not finish; listen, an address such as
    tcp://127.0.0.1:5577, with port * for a free one; remote, to allow addresses that other machines reach; keys, a
    folder that `plugstream keys` made: only its clients may then send; limits, how much is taken.
    """

    def __init__(
        self,
        out: str | Path,
        listen: str,
        *,
        remote: bool = False,
        keys: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        zmq = self._zmq = zmq_module()
        check_address(listen, remote=remote)
        if remote and keys is None:
            raise InputError(
                "--remote lets other machines in, so it needs keys to tell who they are; make them with 'plugstream "
                "keys FOLDER', and give --keys FOLDER"
            )
        server_keys = None if keys is None else ServerKeys.load(keys)
        self.out, limits = Path(out), limits or Limits()
        self.counts: Counter[str] = Counter()
        self._owner: _Peer | None = None
        self._heard: _Peer | None = None
        self._greeted = self._dismissed = False
        self._request = (-1, 0.0)  # which sequence was last asked for, and when
        self._reported: set[str] = set()
        with ExitStack() as closing:
            self._journal = Journal(self.out, limits, self.counts)
            closing.callback(self._journal.close)
            context = zmq.Context()
            closing.callback(context.term)
            self._gate = None if server_keys is None else Gate(context, server_keys)
            if self._gate is not None:
                closing.callback(self._gate.socket.close)
            self._socket = context.socket(zmq.ROUTER)
            closing.callback(self._socket.close)
            self._set_options(listen, server_keys)
            self._limiter = ConnectionLimiter(zmq, self._socket, limits.connections, self.counts)
            closing.callback(self._limiter.close)
            try:
                self._socket.bind(listen)
            except zmq.ZMQError as error:
                raise StorageError(f"cannot listen on {listen}: {error.strerror}") from error
            self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._limiter.bound(self.address)
            self._poller = zmq.Poller()
            for socket in (self._socket, self._limiter.monitor, *([] if self._gate is None else [self._gate.socket])):
                self._poller.register(socket, zmq.POLLIN)
            self._closing = closing.pop_all()

    def _set_options(self, address: str, keys: ServerKeys | None) -> None:
        zmq = self._zmq
        options = {zmq.MAXMSGSIZE: MOST_BYTES, zmq.RCVHWM: 2 * _BATCH, zmq.SNDHWM: 1000, zmq.LINGER: 500}
        options |= {zmq.HEARTBEAT_IVL: 2000, zmq.HEARTBEAT_TIMEOUT: 6000, zmq.IPV6: "[" in address}
        options |= {zmq.HANDSHAKE_IVL: _HANDSHAKE, zmq.BACKLOG: 128}
        if keys is not None:
            options |= {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: keys.secret.encode()}
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    @property
    def scan(self) -> str | None:
        """The identifier of the scan, None before it is begun."""
        return self._journal.scan

    @property
    def committed(self) -> int:
        """Views that are safe on the disk."""
        return self._journal.committed

    @property
    def finished(self) -> bool:
        """Whether the end of the scan was received."""
        return self._journal.finished

    def run(self, *, timeout: float | None = None, progress: Callable[[int], None] | None = None) -> None:
        """Receive until the end of the scan, and until the sender knows of it.

        The acknowledgement of the end may be lost with its connection, so it is repeated until the sender says goodbye,
        or nothing for some seconds.

        Arguments: timeout, seconds of listening without any message after which to give up; progress, called with the
        number of committed views when it has grown.
        """
        if timeout is not None and not timeout > 0:
            raise InputError(f"the timeout must be a number of seconds > 0, not {timeout}")
        quiet = 0.0  # only while we listen: if the disk is slow, or we were stopped, messages may wait unread
        while not self.finished:
            begun, before = time.monotonic(), self.committed
            if not self._wait(_SLICE):
                quiet += min(time.monotonic() - begun, _SLICE)
                if timeout is not None and quiet >= timeout:
                    state = f"no scan was begun at {self.address}"
                    if self._journal.begun:
                        state = f"{self.committed} views are in {self.out}, and the same command goes on after them"
                    raise InputError(f"nothing was received for {timeout:g} s; {state}")
                continue
            self._take_batch()
            quiet = 0.0
            if progress is not None and self.committed > before:
                progress(self.committed)
        quiet = 0.0
        while not self._dismissed and quiet < _GRACE:
            begun = time.monotonic()
            answered = self._wait(_SLICE) and self._take_batch()
            quiet = 0.0 if answered else quiet + min(time.monotonic() - begun, _SLICE)

    def close(self) -> None:
        """Close the socket and the scan; views that were committed stay, and a later Receiver goes on after them."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, seconds: float) -> bool:
        """Whether a message came within that time; meanwhile connections are let in and shut out."""
        ready = dict(self._poller.poll(int(1000 * seconds)))
        if self._gate is not None:
            self._gate.answer()
        self._limiter.look()
        return self._socket in ready

    def _take_batch(self) -> bool:
        """Take what has arrived, commit it, and say so to the sender; False if there was nothing to say."""
        try:
            for _ in range(_BATCH):
                self._take(*self._receive())
                if not self._socket.poll(0):
                    break
            self._journal.commit()
        except InputError as error:
            heard, self._heard = self._heard, None  # nothing new is safe; the sender will ask
            if is_full(error) and heard is not None:
                self._wait_for_room(heard)
            elif is_crowded(error):
                self._make_room(error)
            else:
                raise
            return True
        heard, self._heard = self._heard, None
        if heard is not None:
            more = self._journal.state() if self._greeted else {}
            self._greeted = False
            self._send(heard, "ack", self._journal.safe, **more)
        return heard is not None

    def _receive(self) -> tuple[_Peer, list[bytes]]:
        """A message of at most so many parts; the rest of a longer one is dropped."""
        first = self._socket.recv(copy=False)
        frames: list[bytes] = []
        while self._socket.getsockopt(self._zmq.RCVMORE):
            frame = self._socket.recv()
            if len(frames) < _PARTS:
                frames.append(frame)
        handle, key = self._property(first, self._zmq.SRCFD, -1), self._property(first, "User-Id", "")
        return _Peer(first.bytes, handle, key), frames

    def _property(self, frame: Any, name: Any, default: Any) -> Any:
        """What ZeroMQ knows of a message; the default if its protocol is so old that it knows nothing."""
        try:
            return frame.get(name)
        except self._zmq.ZMQError:
            return default

    def _take(self, peer: _Peer, frames: list[bytes]) -> None:
        try:
            message = Message.parse(frames)
            if message.kind == "begin":
                self._journal.begin(message, peer.key)
                self._owner = self._heard = peer
                self._greeted, self._limiter.owner = True, peer.handle
            elif message.kind not in ("view", "end", "bye"):
                raise RefusedError("mistyped", f"there is no message of type {message.kind[:20]!r}")
            elif peer != self._owner or not self._journal.is_of(message, peer.key):
                raise RefusedError("unannounced", "the scan was not begun by this sender")
            elif message.kind == "bye":
                if not self.finished:
                    raise RefusedError("early", "the sender leaves before the end of the scan")
                self._dismissed = True
            else:
                self._journal.take(message)
                self._heard = peer
        except RefusedError as refused:
            self._answer(peer, refused)
        except InputError as error:  # of the disk: what is wrong with a message is a RefusedError
            if not is_full(error):
                raise
            self._wait_for_room(peer)
        except Exception as error:
            self._report(error)
            self._journal.reopen()  # half of a view may have been added
            self._answer(peer, RefusedError("failed", "the receiver failed at this message, and its log says why"))

    def _answer(self, peer: _Peer, refused: RefusedError) -> None:
        """Say why a message was not used; whoever does not know the scan learns nothing about it."""
        self.counts[refused.kind] += 1
        if refused.kind in ("foreign", "quota", "implausible"):  # which sending again does not change
            self._send(peer, "refuse", 0, str(refused))
        elif peer != self._owner:
            self._send(peer, "nak", 0, str(refused))
        elif refused.kind == "conflicting":
            self._send(peer, "conflict", self._journal.safe, str(refused))
        else:
            sequence, now = self._journal.next_sequence, time.monotonic()
            # All that follows a lost message is early; asking once for the lost one is enough.
            if (
                refused.kind in ("early", "waiting")
                and self._request[0] == sequence
                and now - self._request[1] < _PATIENCE
            ):
                return
            self._request = (sequence, now)
            self._send(peer, "nak", sequence, str(refused))

    def _send(self, peer: _Peer, kind: str, sequence: int, reason: str = "", **more: Any) -> None:
        # A ROUTER drops what is for a sender that is gone or does not listen; it will ask.
        self._socket.send_multipart([peer.route, reply(kind, sequence, reason, **more)], self._zmq.NOBLOCK)

    def _report(self, error: Exception) -> None:
        """Say once where we failed, so that an error of ours is not hidden behind a stranger's message."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        if where not in self._reported:
            self._reported.add(where)
            _log.error(
                "a message was not used, because plugstream failed at %s: %.200r; please report it", where, error
            )

    def _wait_for_room(self, peer: _Peer) -> None:
        """The disk is full: go on after the last commit, and ask for what did not fit until somebody makes room.

        The quota does not prevent this: a commit writes its shard beside the old one, which takes more than a view.
        """
        self._journal.reopen()
        if "full" not in self._reported:
            self._reported.add("full")
            _log.warning("the disk of %s is full: views are asked for again until there is room on it", self.out)
        self._answer(peer, RefusedError("waiting", "the receiver's disk is full; make room"))

    def _make_room(self, error: InputError) -> None:
        """No file can be opened: shut everybody out but the owner, and go on after the last commit."""
        for _ in range(20):
            self._limiter.make_room()
            try:
                self._journal.reopen()
                self._limiter.restore()
            except InputError as again:
                if not is_crowded(again):
                    raise
            else:
                return
        raise error


def check_address(address: str, *, remote: bool) -> None:
    """Refuse an address that is not TCP, or, unless `remote`, one that other machines can reach."""
    match = re.fullmatch(r"tcp://(\[[^\]]+\]|[^:\[\]/]+):(\d{1,5}|\*)", address)
    if not match or (match[2] != "*" and int(match[2]) > 65535):
        raise InputError(f"cannot read the address {address!r}; write tcp://HOST:PORT, such as tcp://127.0.0.1:5577")
    host = match[1].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, an interface or *
        loopback = False
    if not (loopback or remote):
        raise InputError(
            f"{host} may be reached from other machines, which anybody could send from; allow it by --remote --keys "
            "FOLDER, with keys that 'plugstream keys FOLDER' makes"
        )
