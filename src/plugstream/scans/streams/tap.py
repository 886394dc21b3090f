"""A stream as a recording that grows, for importers: its frames as arrays that are read as those of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Instrument
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.source import Source
from plugstream.scans.parts import Sums, checksum_of
from plugstream.scans.streams.address import Address
from plugstream.scans.streams.dectris import DectrisFeed
from plugstream.scans.streams.frames import PROJECTION, LiveFrames, Names
from plugstream.scans.streams.pva import PvaFeed

_REPEATS = 64  # views before the last one that a stream may send again to a new process


class Feed(Protocol):
    """What a module of a source has.

    Attributes: name, for people; ended, whether the scan may be at its end; aborted, whether somebody ended it early;
    remarks for a person.
    """

    name: str
    ended: bool
    aborted: bool
    remarks: list[str]

    def receive(self, wait: float = ...) -> None:
        """Take what has come into the frames, without waiting.

        Arguments: wait, seconds after which a last frame counts whose number does not follow those before it.
        """

    def go_on(self) -> None:
        """Go on after an end, since more is expected."""

    def close(self) -> None:
        """End the connection."""


class Tap:
    """A connection to a stream, from which an import takes frames at each look.

    Arguments: address; grace, seconds for which a missing frame holds up later ones; keep, the folder for what a later
    process needs to go on; say, for lines to a person; resume, whether this one goes on.
    Attributes: known, checksums of the views that an earlier process has written.
    """

    def __init__(self, address: Address, grace: float, keep: Path, say: Callable[[str], None], *, resume: bool) -> None:
        self.address, self.grace, self.keep, self.say, self.resume = address, grace, keep, say, resume
        self.known = Sums()
        self._frames: LiveFrames | None = None
        self._feed: Feed | None = None

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def open(self, names: Names, growth: Growth, *, fields: bool = True) -> StreamSource:
        """The frames that are there by now.

        Arguments: names, the same at each look; growth; fields, whether frames may have to wait for flat fields.
        """
        if self._frames is None:
            new = self._frames = LiveFrames(names, self.grace, self.keep, self.say, resume=self.resume)
            self._feed = PvaFeed(self.address, new) if self.address.scheme == "pva" else DectrisFeed(self.address, new)
        frames, feed = self._frames, self._feed
        assert feed is not None
        if frames.full and fields and "field" not in growth.memory:  # nothing was taken since the last look
            raise InputError(f"{frames.room}; they wait for flat fields, which --flats FILE takes from another file")
        awaited = 2 if growth.expected is None else growth.expected - frames.keys.count(PROJECTION)
        feed.receive(0 if growth.final else self.grace if awaited == 1 else math.inf)
        frames.settle(now=growth.final)
        growth.closed = feed.ended and not frames.pending
        if growth.closed and feed.aborted:
            growth.final = True
        elif growth.closed and growth.expected is not None and frames.keys.count(PROJECTION) < growth.expected:
            feed.go_on()
        if frames.shape is None:
            growth.wait(f"no frame {frames.trouble}has come from {self.address} yet")
        return StreamSource(self.address, frames, feed.name, growth)

    def release(self) -> None:
        """All frames that count have been taken."""
        if self._frames is not None:
            self._frames.release()

    def without_known(self, instrument: Instrument, views: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Views but for first ones that an earlier process has written, which a stream may send again."""
        first, count = 0, len(views["data"])
        while len(self.known) and first < count:
            one = checksum_of(instrument, {name: values[first] for name, values in views.items()})
            if not any(self.known.agrees(n, one) for n in range(max(0, len(self.known) - _REPEATS), len(self.known))):
                self.known.truncate(0)
                break
            first += 1
        return {name: values[first:] for name, values in views.items()} if first < count else {}

    @property
    def remarks(self) -> list[str]:
        """What was not used, for a person."""
        assert self._frames is not None
        assert self._feed is not None
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self._frames.counts.items()))
        return [*self._feed.remarks, *([f"not used of the stream: {counts}"] if counts else [])]


class StreamSource(Source):
    """The frames of a stream that are there by now, as arrays data, image_key and angles."""

    container = "stream"

    def __init__(self, address: Address, frames: LiveFrames, name: str, growth: Growth) -> None:
        super().__init__(Path(str(address)))
        self.frames, self.name, self.growth = frames, name, growth

    def find(self, name: str) -> Any:
        count = self.frames.next
        if name == "data":
            return _Data(self.frames, count)
        if name == "image_key":
            return np.array(self.frames.keys[:count], dtype=np.int64)
        if name == "angles" and self.frames.names.angles is not None:
            return np.array(self.frames.angles[:count])
        return None

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name in ("data", "image_key", "angles"):
            if (array := self.find(name)) is not None:
                yield name, array.shape, str(array.dtype)


class _Data:
    """Frames, (frames, rows, columns), read by slicing."""

    ndim = 3

    def __init__(self, frames: LiveFrames, count: int) -> None:
        assert frames.shape is not None
        assert frames.dtype is not None
        self._frames, self.shape, self.dtype = frames, (count, *frames.shape), frames.dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, slice):
            numbers = range(self.shape[0])[first]
            return np.stack([self._frames.read(number)[tuple(rest)] for number in numbers])
        return np.asarray(self._frames.read(int(first))[tuple(rest)])
