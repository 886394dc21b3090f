"""One side of a connection that loses nothing: messages in order, each sent until it is acknowledged (go-back-N)."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.files import load_json
from plugstream.scans.keys import ClientKeys, zmq_module
from plugstream.scans.parts import Sums
from plugstream.scans.stream import one_line

_RETRY = 0.5  # seconds without an answer until the receiver is asked which views it has
_LAST_LOOK = 0.1  # seconds to wait for an answer before giving up
_UNDER_WAY = 0.1  # seconds in which it may ask for the same message because of others that were under way
_GOODBYE = 500  # milliseconds for the last message to leave
_ANSWER_BYTES = 1 << 12


class BehindError(InputError):
    """A receiver that has fewer views than it has acknowledged: another folder, or one that was removed."""


class Link:
    """Sends the messages of a scan, and again what was lost, until the receiver has acknowledged them.

    Message 0 begins the scan, and the answer says where to go on. It is sent first, and again whenever half a second
    passes without an answer while something is under way: messages or answers were lost, the connection broke, or the
    receiver was restarted. The answer also has a checksum of all views that the receiver has; if it is not that of the
    views that were sent, it is another scan. Not for several threads at once.

    Arguments: address; begin, message 0; window, how many messages may be under way without an acknowledgement;
    timeout, seconds without a new acknowledgement after which to give up; keys, if the receiver wants some.
    """

    def __init__(
        self, address: str, begin: list[bytes], *, window: int, timeout: float, keys: ClientKeys | None
    ) -> None:
        zmq = self._zmq = zmq_module()
        self.address, self.window, self.timeout, self._keys = address, window, timeout, keys
        self.again = 0  # messages that were sent again
        self.safe = -1  # the last sequence that was acknowledged
        self.complete = False  # whether the receiver has the end
        self._begin = begin
        self.waiting: deque[list[bytes]] = deque()  # messages safe + 1, safe + 2, ..., not acknowledged yet
        self._sums = Sums()
        # The views that the receiver had at first, and the total of their checksums, None if it could not read one.
        self.before: tuple[int, int | None] = (0, 0)
        self._acked = -1  # as `safe`, but -1 until the receiver has said where it is since the last begin
        self._next = 0  # the sequence to send next
        self._beyond = 0  # the first sequence that was never sent
        self._request = (-1, 0.0)  # which sequence was asked for again, and when
        self._reason = ""
        self._news = self._tried = time.monotonic()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        options = {zmq.IMMEDIATE: 1, zmq.LINGER: 0, zmq.SNDHWM: window + 2, zmq.MAXMSGSIZE: 1 << 16}
        options |= {zmq.HEARTBEAT_IVL: 2000, zmq.HEARTBEAT_TIMEOUT: 6000, zmq.RECONNECT_IVL: 50}
        options |= {zmq.IPV6: "[" in address}
        if keys is not None:
            options |= {zmq.CURVE_SERVERKEY: keys.server.encode(), zmq.CURVE_PUBLICKEY: keys.public.encode()}
            options |= {zmq.CURVE_SECRETKEY: keys.secret.encode()}
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"cannot connect to {address}: {error.strerror}") from error

    @property
    def greeted(self) -> bool:
        """Whether the receiver has said which views it has."""
        return self.safe >= 0

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return max(self.safe, 0) + len(self.waiting)

    def push(self, frames: list[bytes], checksum: int | None = None) -> None:
        """Add the next message, and send it if it may be sent; `checksum` is that of a view."""
        if not self.waiting:
            self._news = self._tried = time.monotonic()
        self.waiting.append(frames)
        if checksum is not None:
            self._sums.append(checksum)
        self._send_due()

    def pump(self, wait: float) -> None:
        """Send what may be sent, listen for at most `wait` seconds, and take the answers.

        It gives up only after listening: if this process was stopped for long, the answers may be here already.
        """
        now = time.monotonic()
        if self.greeted and not self.waiting:
            self._news = self._tried = now
        late = now - self._news > self.timeout
        if now - self._tried > _RETRY:
            self._acked, self._next, self._tried = -1, 0, now
        self._send_due()
        if self._socket.poll(int(1000 * (max(wait, _LAST_LOOK) if late else wait))):
            acked, safe = self._acked, self.safe
            while self._socket.poll(0):
                self._listen()
            if self._acked > acked:
                self._tried = time.monotonic()
            if self.safe != safe:
                self._news, self._reason, late = time.monotonic(), "", False
        if late:
            raise InputError(self._give_up())

    def leave(self, frames: list[bytes]) -> None:
        """Say goodbye, which is not answered; should it not arrive, the receiver ends by itself."""
        try:
            self._socket.send_multipart(frames, self._zmq.NOBLOCK)
        except self._zmq.Again:
            return
        self._socket.setsockopt(self._zmq.LINGER, _GOODBYE)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _may_send(self) -> bool:
        if self._next == 0:
            return not self.greeted or bool(self.waiting)
        return self._acked >= 0 and self._next <= self.last and self._next - self._acked <= self.window

    def _send_due(self) -> None:
        while self._may_send():
            frames = self._begin if self._next == 0 else self.waiting[self._next - self.safe - 1]
            try:
                self._socket.send_multipart(frames, self._zmq.NOBLOCK)
            except self._zmq.Again:  # not connected, or the receiver is behind
                break
            self._tried = time.monotonic()
            self.again += self._next < self._beyond
            self._next += 1
            self._beyond = max(self._beyond, self._next)

    def _listen(self) -> None:
        try:
            answer = load_json(self._socket.recv_multipart()[-1], most_bytes=_ANSWER_BYTES)
            kind, sequence = answer["type"], answer["sequence"]
            reason = one_line(" ".join(str(answer.get("reason", "")).split()))
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # not an answer of ours
        if type(sequence) is not int:
            return
        if kind == "refuse":
            raise InputError(f"{self.address} refuses the scan: {reason}")
        if kind == "conflict":
            raise InputError(f"{self.address} has something else of this scan: {reason}")
        if kind == "ack" and sequence >= 0:
            self._acknowledge(sequence, answer)
        elif kind == "nak" and 0 <= sequence <= self._next:
            now, self._reason = time.monotonic(), reason
            if self._request[0] != sequence or now - self._request[1] > _UNDER_WAY:
                self._request = (sequence, now)
                # 0 is wanted if the receiver does not know this sender; it will say again what it has.
                self._next = sequence if sequence > self.safe else 0
                self._acked = min(self._acked, sequence - 1) if self._next else -1

    def _acknowledge(self, sequence: int, answer: dict[str, Any]) -> None:
        views, complete, total = (answer.get(name) for name in ("views", "complete", "crc32c"))
        if type(views) is int and type(complete) is bool and sequence == views + complete:
            if not self.greeted:
                self.before = (views, total if type(total) is int else None if views else 0)
            self._check(views, total)
            if sequence < self.safe:
                raise BehindError(
                    f"{self.address} has {views} views of this scan, and had {self.safe}; start 'plugstream acquire' "
                    "with the folder that it had"
                )
            self.complete = complete
            if not self.greeted:
                self.safe = sequence
        elif not self.greeted:
            return  # only an answer to begin says where the receiver is
        if sequence > self.last:
            raise InputError(f"{self.address} has {sequence} views of this scan, more than were sent to it")
        if sequence >= self.safe and sequence > self._acked:
            for _ in range(sequence - self.safe):
                self.waiting.popleft()
            self.safe = self._acked = sequence
            self._next = max(self._next, sequence + 1)

    def _check(self, views: int, total: object) -> None:
        """Refuse a receiver whose views are not those that were sent to it."""
        first, before = self.before
        if type(total) is not int or before is None or not first <= views <= first + len(self._sums):
            return
        if self._sums.total(views, first, before) != total:
            raise InputError(
                f"{self.address} has other views than were sent to it under the name of this scan; choose another name"
            )

    def _give_up(self) -> str:
        if self.greeted or self._reason:
            why = f" ({self._reason})" if self._reason else ""
            return (
                f"{self.address} acknowledged nothing new for {self.timeout:g} s{why}; start 'plugstream acquire' "
                "there with the same scan, and this command again: it goes on after the last view that is safe"
            )
        who = ", with these keys" if self._keys is not None else ", and give --key if it wants one"
        return f"nobody answered at {self.address} for {self.timeout:g} s; start 'plugstream acquire' there first{who}"
