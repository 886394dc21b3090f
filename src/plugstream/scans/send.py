"""Play the instrument: send the views of a scan over ZeroMQ until every one is acknowledged."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from plugstream.errors import InputError
from plugstream.scans.receive import check_address
from plugstream.scans.scan import Scan, fingerprint
from plugstream.scans.stream import begin, bye, end, view, zmq_module

__all__ = ["check_sending", "send_scan"]

_RETRY = 0.5  # seconds without an answer until the receiver is asked where it is
_UNDER_WAY = 0.1  # seconds in which it may ask for the same message because of others that were under way
_GOODBYE = 500  # milliseconds for the last message to leave


def send_scan(
    scan: Scan,
    address: str,
    *,
    name: str | None = None,
    rate: float | None = None,
    window: int = 32,
    timeout: float = 30.0,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Send a scan to `plugstream acquire`, and return how many messages had to be sent again.

    View v is sent no sooner than v / rate seconds after the first, and no more than `window` views are under way
    without an acknowledgement. What is asked for is sent again from there on (go-back-N). Without an answer for half a
    second, because messages or answers were lost, the connection broke, or the receiver was restarted, the receiver is
    told the scan anew and says where to go on; so it is by a sender that was restarted.

    Holds for scans with transmitters or plane waves. Returns when the end of the scan is acknowledged; gives up with
    one line when nothing new is acknowledged for `timeout` seconds.

    Arguments: scan; address such as tcp://127.0.0.1:5577; name, the scan's identifier, its fingerprint
    if not given, so that the same scan sent again goes on and another is refused; rate in views a
    second, as fast as they are taken if not given; window; timeout; progress, called with the number of views
    acknowledged.
    """
    check_sending(address, rate=rate, timeout=timeout)
    if window < 1:
        raise InputError(f"the window must be at least 1, not {window}")
    zmq = zmq_module()
    messages = _Messages(scan, name or fingerprint(scan))
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    options = {zmq.IMMEDIATE: 1, zmq.LINGER: 0, zmq.SNDHWM: window + 2, zmq.MAXMSGSIZE: 1 << 16, zmq.RECONNECT_IVL: 50}
    options |= {zmq.HEARTBEAT_IVL: 2000, zmq.HEARTBEAT_TIMEOUT: 6000, zmq.IPV6: "[" in address}
    try:
        for option, value in options.items():
            socket.setsockopt(option, value)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise InputError(f"cannot connect to {address}: {error.strerror}") from error
        again = _Sender(zmq, socket, messages, address, rate, window, timeout).run(progress)
        socket.setsockopt(zmq.LINGER, _GOODBYE)
        return again
    finally:
        socket.close()
        context.term()


def check_sending(address: str, *, rate: float | None, timeout: float) -> None:
    """Refuse what `send_scan` would refuse whatever the scan is, before there is one."""
    zmq_module()
    check_address(address, remote=True)
    if re.search(r":(\*|0+)$", address):
        raise InputError(f"{address} names no port to send to; give the one that 'plugstream acquire' listens on")
    if rate is not None and not rate > 0:
        raise InputError(f"the rate must be a number of views a second > 0, not {rate}")
    if not timeout > 0:
        raise InputError(f"the timeout must be a number of seconds > 0, not {timeout}")


class _Messages:
    """The messages of a scan by their sequence, made when they are needed."""

    def __init__(self, scan: Scan, name: str) -> None:
        self.scan, self.name, self.last = scan, name, scan.n_views + 1
        self._begin = begin(name, scan.geometry, scan.provenance)

    def __getitem__(self, sequence: int) -> list[bytes]:
        if sequence == 0:
            return self._begin
        if sequence == self.last:
            return end(self.name, self.scan.n_views)
        number, geometry = sequence - 1, self.scan.geometry
        sources = geometry.plane_waves if geometry.transmitters is None else geometry.transmitters
        assert sources is not None
        mask = None if geometry.mask is None else geometry.mask[number]
        return view(self.name, number, self.scan.read(torch.tensor([number])).numpy()[0], sources[number], mask)

    def goodbye(self) -> list[bytes]:
        return bye(self.name, self.scan.n_views)


class _Sender:
    """Go-back-N: what is acknowledged, what is sent next, and when to try again."""

    def __init__(
        self, zmq: Any, socket: Any, messages: _Messages, address: str, rate: float | None, window: int, timeout: float
    ) -> None:
        self.zmq, self.socket, self.messages, self.address = zmq, socket, messages, address
        self.rate, self.window, self.timeout = rate, window, timeout
        self.acked = -1  # the last sequence that was acknowledged, -1 until the receiver says where it is
        self.safe = -1  # the same, as it last was
        self.next = 0  # the sequence to send next
        self.beyond = 0  # the first sequence that was never sent
        self.again = 0  # messages that were sent again
        self.start: tuple[float, int] | None = None  # when which sequence was due first
        self.asked = (-1, 0.0)  # which sequence was asked for again, and when
        self.reason = ""

    def run(self, progress: Callable[[int], None] | None) -> int:
        """Send until the end is acknowledged, and return how many messages were sent again."""
        news = tried = time.monotonic()
        while self.acked < self.messages.last:
            now = time.monotonic()
            if self.next == self.acked + 1 and not self._may_send(now):
                news = tried = now  # all is acknowledged, and the instrument has no more yet
            if now - news > self.timeout:
                raise InputError(self._give_up())
            if now - tried > _RETRY:
                self.acked, self.next, tried = -1, 0, now
            if self._send_what_is_due(now):
                tried = now
            if not self.socket.poll(self._wait(now)):
                continue
            acked, safe = self.acked, self.safe
            while self.socket.poll(0):
                self._listen()
            if self.acked > acked:
                tried = time.monotonic()
            if self.safe != safe:
                news = time.monotonic()
                if progress is not None:
                    progress(min(self.safe, self.messages.last - 1))
        with suppress(self.zmq.Again):  # should it not arrive, the receiver ends by itself
            self.socket.send_multipart(self.messages.goodbye(), self.zmq.NOBLOCK)
        return self.again

    def _may_send(self, now: float) -> bool:
        if self.next == 0:
            return True
        under_way = self.next - self.acked > self.window
        return self.acked >= 0 and self.next <= self.messages.last and not under_way and now >= self._due()

    def _due(self) -> float:
        """When the next message may be sent; the end has no time of its own."""
        if self.rate is None or self.start is None or self.next == self.messages.last:
            return 0.0
        return self.start[0] + (self.next - self.start[1]) / self.rate

    def _send_what_is_due(self, now: float) -> bool:
        before = self.next
        while self._may_send(now):
            try:
                self.socket.send_multipart(self.messages[self.next], self.zmq.NOBLOCK)
            except self.zmq.Again:  # not connected, or the receiver is behind
                break
            self.again += self.next < self.beyond
            self.next += 1
            self.beyond = max(self.beyond, self.next)
        return self.next > before

    def _wait(self, now: float) -> int:
        """Milliseconds to listen: until the next view is due, and never long."""
        return int(np.clip(1000 * (self._due() - now), 5, 100))

    def _listen(self) -> None:
        try:
            answer = json.loads(self.socket.recv_multipart()[-1])
            kind, sequence, reason = answer["type"], answer["sequence"], " ".join(str(answer.get("reason", "")).split())
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # not an answer of ours
        if type(sequence) is not int:
            return
        if kind == "refuse":
            raise InputError(f"{self.address} refuses the scan: {reason}")
        if kind == "ack" and sequence > self.messages.last:
            raise InputError(f"{self.address} has {sequence} views of scan {self.messages.name}, more than are sent")
        if kind == "ack" and self.acked < sequence <= self.messages.last:
            self.start = self.start or (time.monotonic(), sequence + 1)
            self.acked, self.next = sequence, max(self.next, sequence + 1)
            if sequence != self.safe:
                self.safe, self.reason = sequence, ""
        elif kind == "nak" and 0 <= sequence <= self.next:
            now, self.reason = time.monotonic(), reason
            if self.asked[0] != sequence or now - self.asked[1] > _UNDER_WAY:
                self.asked = (sequence, now)
                self.next = sequence
                self.acked = min(self.acked, sequence - 1)  # 0 is wanted where the receiver does not know this sender

    def _give_up(self) -> str:
        if self.start is None and not self.reason:
            return f"nobody answered at {self.address} for {self.timeout:g} s; start 'plugstream acquire' there first"
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.address} acknowledged nothing new for {self.timeout:g} s{why}; start 'plugstream acquire' there "
            "with the same scan, and this command again: it goes on after the last view that is safe"
        )
