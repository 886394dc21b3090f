"""Receive a scan from an instrument over ZeroMQ, and have every view on disk before it is acknowledged."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plugstream.errors import InputError
from plugstream.scans.geometry import Setup
from plugstream.scans.layout import SOURCES
from plugstream.scans.scan import check_finite
from plugstream.scans.store import open_scan
from plugstream.scans.stream import MOST_BYTES, Message, RefusedError, reply, zmq_module
from plugstream.scans.writer import ScanWriter, difference

__all__ = ["Receiver", "check_address"]

_BATCH = 64  # messages that share a commit, at most
_PARTS = 5  # one more than any message has
_PATIENCE = 0.2  # seconds until the same view is asked for again
_GRACE = 5.0  # seconds of silence after the end until a sender that did not say goodbye is taken for gone


class Receiver:
    """Takes the views of one scan from a socket into a `ScanWriter`, in order, each once, whatever else arrives.

    A view is acknowledged when it is committed, and messages that come together share a commit. One that is early,
    truncated, oversized, mistyped, damaged or unreadable is counted and not used, and the view that is wanted is asked
    for again; a repeated one is acknowledged again. Only the sender that began the scan last is listened to. Nothing is
    unpickled, and nothing is allocated because a message claims a size.

    Holds for senders that speak `plugstream.scans.stream`; it trusts whoever knows the scan's identifier, so it
    listens on this machine alone unless told otherwise.

    Arguments: out, a new scan, or one that an earlier Receiver did not finish; listen, an address such as
    tcp://127.0.0.1:5577, with port * for a free one; remote, to allow addresses that other machines reach.
    """

    def __init__(self, out: str | Path, listen: str, *, remote: bool = False) -> None:
        zmq = self._zmq = zmq_module()
        check_address(listen, remote=remote)
        self.out = Path(out)
        self.counts: Counter[str] = Counter()
        self.scan: str | None = None
        self._writer: ScanWriter | None = None
        self._source: str | None = None
        self._owner: bytes | None = None
        self._asked = (-1, 0.0)
        self._heard: bytes | None = None
        self._finished = False
        self._dismissed = False
        if self.out.exists():
            self._writer = self._go_on()
        elif not self.out.parent.is_dir():
            raise InputError(f"the folder {self.out.parent} does not exist; make it first")
        elif not os.access(self.out.parent, os.W_OK):
            raise InputError(f"nothing can be written to the folder {self.out.parent}; choose another")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        options = {zmq.MAXMSGSIZE: MOST_BYTES, zmq.RCVHWM: 2 * _BATCH, zmq.SNDHWM: 1000, zmq.LINGER: 500}
        options |= {zmq.HEARTBEAT_IVL: 2000, zmq.HEARTBEAT_TIMEOUT: 6000, zmq.IPV6: "[" in listen}
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(listen)
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"cannot listen on {listen}: {error.strerror}") from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def committed(self) -> int:
        """Views that are safe on the disk."""
        return 0 if self._writer is None else self._writer.committed

    @property
    def finished(self) -> bool:
        """Whether the end of the scan was received."""
        return self._finished

    def run(self, *, timeout: float | None = None, progress: Callable[[int], None] | None = None) -> None:
        """Receive until the end of the scan, and until the sender knows of it.

        The acknowledgement of the end may be lost with its connection, and nobody would be there to repeat it. So it
        is repeated until the sender says goodbye, or says nothing for some seconds.

        Arguments: timeout, seconds without any message after which to give up; progress, called with the number of
        committed views when it has grown.
        """
        if timeout is not None and not timeout > 0:
            raise InputError(f"the timeout must be a number of seconds > 0, not {timeout}")
        last = time.monotonic()
        while not self._finished:
            if not self._socket.poll(100):
                if timeout is not None and time.monotonic() - last > timeout:
                    there = f"{self.committed} views are in {self.out}, and the same command goes on after them"
                    raise InputError(
                        f"nothing was received for {timeout:g} s; "
                        + (f"no scan was begun at {self.address}" if self._writer is None else there)
                    )
                continue
            last = time.monotonic()
            before = self.committed
            self._take_batch()
            if progress is not None and self.committed > before:
                progress(self.committed)
        until = time.monotonic() + _GRACE
        while not self._dismissed and (left := until - time.monotonic()) > 0:
            if self._socket.poll(int(1000 * left)) and self._take_batch():
                until = time.monotonic() + _GRACE

    def close(self) -> None:
        """Close the socket and the scan; views that were committed stay, and a later Receiver goes on after them."""
        if self._writer is not None:
            self._writer.close()
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_batch(self) -> bool:
        """Take what has arrived, commit it, and say so to the sender; False if there was nothing to say."""
        for _ in range(_BATCH):
            peer, frames = self._receive()
            self._take(peer, frames)
            if not self._socket.poll(0):
                break
        if self._writer is not None and not self._finished:
            self._writer.commit()
        heard, self._heard = self._heard, None
        if heard is not None:
            self._send(heard, "ack", self.committed + self._finished)
        return heard is not None

    def _receive(self) -> tuple[bytes, list[bytes]]:
        """A message of at most so many parts; the rest of a longer one is dropped."""
        peer: bytes = self._socket.recv()
        frames: list[bytes] = []
        while self._socket.getsockopt(self._zmq.RCVMORE):
            frame = self._socket.recv()
            if len(frames) < _PARTS:
                frames.append(frame)
        return peer, frames

    def _take(self, peer: bytes, frames: list[bytes]) -> None:
        try:
            message = Message.parse(frames)
            if message.kind == "begin":
                self._begin(peer, message)
            elif message.kind not in ("view", "end", "bye"):
                raise RefusedError("mistyped", f"there is no message of type {message.kind[:20]!r}")
            elif peer != self._owner or message.scan != self.scan:
                raise RefusedError("unannounced", "the scan was not begun by this sender")
            elif message.kind == "bye":
                if not self._finished:
                    raise RefusedError("early", "the sender leaves before the end of the scan")
                self._dismissed = True
            else:
                self._in_turn(message)
                self._heard = peer
        except RefusedError as refused:
            self.counts[refused.kind] += 1
            self._ask_again(peer, refused)

    def _begin(self, peer: bytes, message: Message) -> None:
        setup, source, provenance = message.setup()
        if self._writer is None:
            if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", message.scan):
                raise RefusedError("mistyped", "a scan is named by 1 to 64 letters, digits, dots and dashes")
            if self.out.exists():  # somebody made it while we listened
                self._writer = self._go_on()
            else:
                origin = {"made_by": "plugstream acquire", "stream": message.scan, "instrument": provenance}
                self._writer = ScanWriter(self.out, setup, provenance=origin, views_per_shard=_per_shard(setup))
                self.scan = message.scan
        different = difference(setup, self._writer.setup)
        if message.scan != self.scan or source != (self._source or source) or different:
            self.counts["foreign"] += 1
            what = f"{self.out.name} is of scan {self.scan}, which was begun with other {different or 'views'}"
            self._send(peer, "refuse", 0, what)
            return
        self._owner, self._source, self._heard = peer, source, peer

    def _in_turn(self, message: Message) -> None:
        assert self._writer is not None
        wanted = self._writer.appended + 1
        if message.sequence < wanted or self._finished:
            self.counts["repeated"] += 1
        elif message.kind == "end" and message.field("views", int) != message.sequence - 1:
            raise RefusedError("mistyped", "views and sequence do not agree: sequence is views + 1")
        elif message.sequence > wanted:
            raise RefusedError("early", f"sequence {message.sequence} came before {wanted}")
        elif message.kind == "end":
            if self._writer.appended == 0:
                raise RefusedError("mistyped", "a scan without views cannot end")
            self._writer.finish()
            self._finished = True
        else:
            self._append(message)

    def _append(self, message: Message) -> None:
        assert self._writer is not None
        assert self._source is not None
        data, source, mask = message.rows(len(self._writer.setup.receivers))
        data = data.copy()  # torch wants an array that it could write to
        views: dict[str, Any] = {self._source: source, "mask": mask}
        try:  # here, so that what the writer itself refuses is an error of the disk
            self._writer.setup.geometry(**views)
            check_finite(torch.from_numpy(data), mask, message.sequence - 1)
        except InputError as error:
            raise RefusedError("mistyped", str(error)) from error
        self._writer.append(data, **views)
        self.counts["accepted"] += 1

    def _ask_again(self, peer: bytes, refused: RefusedError) -> None:
        if peer != self._owner or self._writer is None:
            self._send(peer, "nak", 0, str(refused))
            return
        wanted, now = self._writer.appended + 1, time.monotonic()
        # All that follows a lost message is early; asking once for the lost one is enough.
        if refused.kind == "early" and self._asked[0] == wanted and now - self._asked[1] < _PATIENCE:
            return
        self._asked = (wanted, now)
        self._send(peer, "nak", wanted, str(refused))

    def _send(self, peer: bytes, kind: str, sequence: int, reason: str = "") -> None:
        # A ROUTER drops what is for a sender that is gone or does not listen; it will ask.
        self._socket.send_multipart([peer, reply(kind, self.scan, sequence, reason)], self._zmq.NOBLOCK)

    def _go_on(self) -> ScanWriter:
        """Continue a scan that exists: it must be one of ours, and not finished."""
        scan = open_scan(self.out)
        if "stream" not in scan.provenance:
            raise InputError(f"{self.out} was not made by 'plugstream acquire'; choose another name")
        if scan.complete:
            raise InputError(f"the scan {self.out} is finished; choose another name")
        writer = ScanWriter(self.out)
        self.scan = str(scan.provenance["stream"])
        if scan.n_views:
            self._source = next(name for name in SOURCES if getattr(scan.geometry, name) is not None)
        return writer


def check_address(address: str, *, remote: bool) -> None:
    """Refuse an address that is not TCP, or that other machines reach without that being asked for."""
    found = re.fullmatch(r"tcp://(\[[^\]]+\]|[^:\[\]/]+):(\d{1,5}|\*)", address)
    if not found or (found[2] != "*" and int(found[2]) > 65535):
        raise InputError(f"cannot read the address {address!r}; write tcp://HOST:PORT, such as tcp://127.0.0.1:5577")
    host = found[1].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, an interface or *
        loopback = False
    if not (loopback or remote):
        raise InputError(
            f"{host} may be reached from other machines, which anybody could send from; allow it by --remote"
        )


def _per_shard(setup: Setup) -> int:
    # Each commit writes the last shard again, so it is smaller than where a scan is written at once.
    return int(np.clip((1 << 20) // (8 * len(setup.receivers)), 1, 64))
