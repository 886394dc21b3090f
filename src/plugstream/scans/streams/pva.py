"""EPICS by PV Access: frames of areaDetector's NTNDArray, as p4p subscribes to them.

The place of a frame is its uniqueId, counted from the first. A server that has more than a subscriber takes joins
updates, so that frames are lost: their numbers tell. What a PV holds when the connection begins is from before.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.streams.address import Address
from plugstream.scans.streams.frames import LONGEST_GAP, LiveFrames
from plugstream.scans.streams.ntndarray import read_attributes, read_picture, read_time

_QUEUE = 100  # updates that the server holds for us
_AT_ONCE = 0.2  # seconds for which frames are taken before the views are
_SETTLED = 0.1  # seconds for another PV's update to overtake a frame
_SILENT = 1.0  # seconds that a frame waits for another PV before that is said
_RECENT = 10_000  # updates of another PV that are remembered
_ALIKE = 4  # frames of one number in a row, from which on the camera does not count
_NEAR = 100  # frames that may be missing before the next one without another that agrees with it


def p4p_module() -> Any:
    """p4p's client, or one line that says how to get it."""
    try:
        from p4p.client import thread
    except ImportError:
        raise InputError("EPICS needs p4p; install it with: pip install 'plugstream[epics]'") from None
    return thread


@dataclass(frozen=True)
class _Frame:
    """A frame and its uniqueId. Arguments: picture, None where it cannot be used, for this reason; at, when it came."""

    number: int
    picture: NDArray[Any] | None
    reason: str
    attributes: dict[str, Any]
    at: float = field(default_factory=time.monotonic)


class PvaFeed:
    """The frames of a PV, with the values of others at their times.

    Arguments: address; frames, whose names of the angle and image_key may be PVs, pva://PV.
    """

    name = "EPICS stream"

    def __init__(self, address: Address, frames: LiveFrames) -> None:
        thread = p4p_module()
        self.address, self.frames, self.remarks = address, frames, list[str]()
        self.ended = self.aborted = False  # for ever: a PV has no end
        self._first: int | None = frames.memory.get("first")  # the uniqueId of place 0
        self._doubts = list[_Frame]()  # of one number, which does not follow those before them
        self._last = -1  # the number of the last frame that was added
        # When, what, and whether it was there already when the connection began.
        self._arrived: deque[tuple[float, Any, bool]] = deque()
        self._nbytes = 0
        self._room = threading.Condition()
        self._news: deque[str] = deque()  # about the connection
        self._connected = self._primed = self._closed = False
        self._said = set[str]()
        names = {name for name in (frames.names.angles, frames.names.image_key) if name and name.startswith("pva://")}
        self._others = {name: _Values() for name in names}
        self._context = thread.Context("pva", nt=False)
        options: dict[str, Any] = {"notify_disconnect": True}
        self._subscriptions = [
            self._context.monitor(address.place, self._arrive, request=f"record[queueSize={_QUEUE}]", **options)
        ]
        for name, values in self._others.items():
            self._subscriptions.append(self._context.monitor(name.removeprefix("pva://"), values.arrive, **options))

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify_all()
        for subscription in self._subscriptions:
            subscription.close()
        self._context.close()

    def receive(self, wait: float = math.inf) -> None:
        """Take the frames that have come, as far as memory has room.

        Arguments: wait, seconds after which the last frame counts although its number does not follow.
        """
        if self._doubts and time.monotonic() - self._doubts[-1].at >= wait:
            self._add_doubts()
        while self._news:
            self.frames.say(self._news.popleft())
        until = time.monotonic() + _AT_ONCE
        ready = all(values.known for values in self._others.values())
        for name, values in self._others.items():
            if not values.known and self._arrived and time.monotonic() - self._arrived[0][0] > _SILENT:
                self._say_once(f"frames wait for {name}, which has no value; is that its name, and is it on?")
            if values.late:
                self._say_once(f"values of {name} come after the frames of their time, which got those before")
        while self._arrived and ready and not self.frames.full and time.monotonic() < until:
            since, value, old = self._arrived[0]
            if self._others and time.monotonic() - since < _SETTLED:
                return
            with self._room:
                self._arrived.popleft()
                self._nbytes -= _size(value)
                self._room.notify_all()
            with self.frames.guarding():
                self._take(value, old)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.frames.say(text)
            self.remarks.append(text)

    def go_on(self) -> None:
        """A PV has no end."""

    def _arrive(self, value: Any) -> None:
        """An update, or an error in its place; called from a thread of p4p's, which waits while memory is full."""
        connected, old = not isinstance(value, Exception), not self._connected
        if connected != self._connected:
            self._news.append(f"{self.address} is {'connected' if connected else 'gone; waiting for it'}")
        self._connected = connected
        if not connected or not self._primed:  # what the PV held before this process is no frame of the scan
            self._primed |= connected
            return
        with self._room:
            self._room.wait_for(lambda: self._nbytes < self.frames.most // 2 or self._closed)
            self._arrived.append((time.monotonic(), value, old))
            self._nbytes += _size(value)

    def _take(self, value: Any, old: bool) -> None:
        frames = self.frames
        try:
            number = int(value["uniqueId"])
            attributes = read_attributes(value)
            stamp = read_time(value, "dataTimeStamp") or read_time(value, "timeStamp")
        except (KeyError, TypeError, ValueError, OverflowError):
            frames.counts["mistyped"] += 1
            return
        attributes |= {name: one for name, values in self._others.items() if (one := values.at(stamp)) is not None}
        reason, picture = "", None
        try:
            picture = read_picture(value)
            if picture is None:
                return  # a camera that has not begun
        except InputError as error:
            reason = str(error)
        except (KeyError, TypeError, ValueError, OverflowError):
            reason = "is no NTNDArray"
        if old and not (self._first is not None and 0 <= number - self._first - self.frames.last <= LONGEST_GAP):
            return  # of the detector's program before it was started again
        self._follow(_Frame(number, picture, reason, attributes))

    def _follow(self, frame: _Frame) -> None:
        """Take a frame whose number follows those before it; of one that does not, the next frame tells.

        A number that is wrong would else put all later frames beside their places. If the next has the same number, so
        does a camera that never counts, which was seen before, or is after four.
        """
        doubt, strange = self._doubts[-1] if self._doubts else None, self._is_strange(frame, _NEAR)
        if doubt is not None and self._first is not None:
            ahead, since = frame.number - self._first - self.frames.last, frame.number - doubt.number
            if not strange and ahead <= 0:  # repeated or late
                self._add(frame)
                return
            if since == 0 and doubt.number != self._last and len(self._doubts) < _ALIKE:
                self._doubts.append(frame)
                return
            if since < 0 or 0 < ahead <= since:
                self.frames.counts["impossible"] += len(self._doubts)
                self.frames.say(f"frame {doubt.number} is left out: its number does not follow those before it")
                self._doubts.clear()
            else:
                self._add_doubts()
                strange = self._is_strange(frame, _NEAR)
        if strange:
            self._doubts = [frame]
        else:
            self._add(frame)

    def _add_doubts(self) -> None:
        """Add the frames whose number did not follow, since no other frame speaks against them."""
        doubts, self._doubts = self._doubts, []
        for doubt in doubts:
            self._add(doubt)

    def _is_strange(self, frame: _Frame, gap: int) -> bool:
        """Whether a frame is not among the next ones after those before it, with at most so many missing."""
        if self._first is None:
            return False
        place = frame.number - self._first
        gap = self.frames.longest_gap if self.frames.resuming else gap
        anew = place < 0 or place > self.frames.last + gap
        return anew or (frame.picture is not None and self.frames.differs(place, frame.picture))

    def _add(self, frame: _Frame) -> None:
        """Add a frame in the place of its uniqueId, which begins anew with the detector's program."""
        if self._first is None:
            self._restart(frame.number)
        elif self._is_strange(frame, self.frames.longest_gap):
            self.frames.say(f"the detector counts anew, from {frame.number}")
            self._restart(frame.number)
        assert self._first is not None
        self._last = frame.number
        if frame.picture is None:
            self.frames.add_lost(frame.number - self._first, frame.reason)
        else:
            self.frames.add(frame.number - self._first, np.array(frame.picture), frame.attributes)

    def _restart(self, number: int) -> None:
        self._first = number - (self.frames.last + 1)
        self.frames.remember(first=self._first)


class _Values:
    """The values of a PV with their times.

    Attribute: late, whether one came for a time for which another one was taken.
    """

    def __init__(self) -> None:
        self.late, self._asked = False, 0.0
        self._times: list[float] = []
        self._values: list[Any] = []
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        return bool(self._values)

    def arrive(self, value: Any) -> None:
        """An update; called from a thread of p4p's."""
        try:
            content, stamp = value["value"], read_time(value, "timeStamp")
        except (KeyError, TypeError, ValueError, OverflowError):  # an error in place of a value
            return
        content = content["index"] if hasattr(content, "getID") else content  # of an enumeration
        if isinstance(content, bool | int | float | str):
            with self._lock:
                place = bisect_right(self._times, stamp or time.time())
                self.late |= (stamp or math.inf) <= self._asked and self._values[max(place - 1, 0)] != content
                self._times.insert(place, stamp or time.time())
                self._values.insert(place, content)
                if len(self._times) > 2 * _RECENT:
                    del self._times[:_RECENT], self._values[:_RECENT]

    def at(self, stamp: float | None) -> Any:
        """The value at a time, the last one not later; None for none. Without a time, the last one."""
        with self._lock:
            self._asked = max(self._asked, stamp or 0.0)
            place = len(self._times) if stamp is None else bisect_right(self._times, stamp)
            return self._values[place - 1] if place else None


def _size(value: Any) -> int:
    return int(getattr(value.get("value", None), "nbytes", 0) or 0) + 1000
