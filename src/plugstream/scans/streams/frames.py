"""The frames of a stream in the order of their numbers, each once, until they are taken.

Frames may be lost, repeated, late or out of order on their way. They count once all before them are there, or have been
missing for a time of grace: so what is seen of a stream only ever grows, as a file does. A frame that is lost, or
cannot be used, keeps its place, since tables of angles go by places.
"""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import format_size, machine_memory
from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import read_small, write_whole
from plugstream.scans.parts import checksum

PROJECTION, FLAT, DARK, NOTHING = range(4)
"""Kinds of frames, by the numbers of NXtomo's image_key."""

_WORDS = (("dark", DARK), ("white", FLAT), ("flat", FLAT), ("proj", PROJECTION), ("data", PROJECTION))
LONGEST_GAP, _LONGEST_REST = 100_000, 1_000_000
"""Frames that may be missing in a row, the second while nobody listened."""
_RECENT = 1000  # frames whose checksums are kept, to tell repeated ones
_MOST_BYTES = 4 << 30


class LostError(InputError):
    """A frame that will not come."""


class TakenError(LostError):
    """A frame that an earlier process had its chance to take."""


@dataclass(frozen=True)
class Names:
    """What of the attributes of frames counts.

    Arguments: angles, the name of the angle in degrees, None for no angles; image_key, of the kind of a frame; data, of
    the channel of a detector that has several, None for the first.
    """

    angles: str | None = None
    image_key: str = "image_key"
    data: str | None = None


@dataclass(frozen=True)
class _Arrival:
    """A frame. Arguments: data, None where it cannot be used, for this reason; key; angle in degrees; at, when."""

    data: NDArray[Any] | None
    reason: str
    key: int | None
    angle: float | None
    at: float = field(default_factory=time.monotonic)


class LiveFrames:
    """The frames that have come.

    Arguments: names; grace, seconds for which a missing frame holds up later ones; keep, the folder for what a later
    process needs to go on: flat and dark fields, and what the source wants to remember; say, for lines to a person;
    resume, whether to go on from that folder.
    Attributes: keys and angles of all frames that count; shape, dtype of theirs; counts of frames that were not used,
    by kind; memory, what the source has remembered; pixel, height and width in metres, None if unknown; facts of the
    detector, by the names of importers' options; bad (rows, columns), pixels that never count, None if unknown;
    resuming, whether no frame has come yet to a process that goes on.
    """

    def __init__(
        self, names: Names, grace: float, keep: Path, say: Callable[[str], None], *, resume: bool = False
    ) -> None:
        self.names, self.grace, self.keep, self.say = names, grace, keep, say
        self.keys: list[int] = []
        self.angles: list[float] = []
        self.shape: tuple[int, int] | None = None
        self.dtype: np.dtype[Any] | None = None
        self.pixel: tuple[float, float] | None = None
        self.facts: dict[str, Any] = {}
        self.bad: NDArray[np.bool_] | None = None
        self.counts: Counter[str] = Counter()
        self.memory: dict[str, Any] = {}
        self.most = min(_MOST_BYTES, machine_memory() // 8)
        self._data: dict[int, NDArray[Any]] = {}
        self._reasons: dict[int, str] = {}
        self._early: dict[int, _Arrival] = {}
        self._sums: dict[int, int] = {}
        self._nbytes = 0
        self._keeping = True
        self.resuming = resume
        with _storing(keep):
            if resume:
                self._restore()
            elif keep.is_dir():
                for path in [*keep.glob("*-[12].npy"), *keep.glob("bad.npy"), *keep.glob("stream.json")]:
                    path.unlink()

    @property
    def full(self) -> bool:
        """Whether memory holds no more."""
        return self._nbytes >= self.most

    @property
    def room(self) -> str:
        """How full it is, for a person."""
        return f"{format_size(self._nbytes)} of frames wait in memory, as many as it holds"

    @property
    def trouble(self) -> str:
        """Why no frame counts, for a person, if there are some."""
        number = next(iter(self._reasons), None)
        if number is None and self.counts["mistyped"]:
            return f"that is a picture, but {self.counts['mistyped']} others, "
        return "" if number is None else f"that can be used (frame {number} {self._reasons[number]}) "

    @property
    def pending(self) -> bool:
        """Whether frames wait for others that are missing."""
        return bool(self._early)

    @property
    def longest_gap(self) -> int:
        """Frames that may be missing before the next one."""
        return _LONGEST_REST if self.resuming else LONGEST_GAP

    @property
    def next(self) -> int:
        """The place of the next frame."""
        return len(self.keys)

    @property
    def last(self) -> int:
        """The largest place so far, -1 for none."""
        return max(self._early, default=self.next - 1)

    def add(self, number: int, data: NDArray[Any], attributes: Mapping[str, Any]) -> None:
        """A frame has come. Arguments: number, its place; data (rows, columns); attributes."""
        arrival = self._check(data, attributes)
        total = checksum([data.tobytes()])
        if self._is_new(number, total):
            self._sums[number] = total
            self._insert(number, arrival)

    def add_lost(self, number: int, reason: str) -> None:
        """A frame has come that cannot be used. Arguments: number, its place; reason, such as `has no data`."""
        if self._is_new(number, None):
            self._insert(number, _Arrival(None, reason, None, None))

    def differs(self, number: int, data: NDArray[Any]) -> bool:
        """Whether another frame has been in this place, or one that nobody remembers."""
        if number > self.last or number in self._reasons or (number not in self._early and number >= self.next):
            return False
        return number not in self._sums or self._sums[number] != checksum([data.tobytes()])

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Leave out a message on which its reader fails, and count it: no single one ends a recording."""
        try:
            yield
        except InputError:  # of the command or the disk
            raise
        except Exception as error:
            if not self.counts["unreadable"]:
                self.say(f"a message cannot be read, and is left out: {type(error).__name__}: {error}")
            self.counts["unreadable"] += 1

    def settle(self, *, now: bool = False) -> None:
        """Give up what has been missing for too long. Arguments: now, whether the time of grace is over for all."""
        while self._early:
            number = min(self._early)
            if not now and time.monotonic() - self._early[number].at < self.grace:
                return
            self._give_up(number, "was lost on its way")
            self._advance()

    def read(self, number: int) -> NDArray[Any]:
        """A frame that counts."""
        if number in self._data:
            return self._data[number]
        reason = self._reasons.get(number)
        if reason is None:
            raise TakenError(f"frame {number} has been taken")
        raise LostError(f"frame {number} {reason}")

    def release(self) -> None:
        """Let go of all frames that count: they have been taken."""
        self._data.clear()
        self._nbytes = sum(one.data.nbytes for one in self._early.values() if one.data is not None)
        self._keeping = False
        for number in [number for number in self._sums if number < self.next - _RECENT]:
            del self._sums[number]

    def announce(self, number: int, kind: Any, **values: Any) -> None:
        """Say of which kind frames are from a place on, should one be lost.

        Arguments: number; kind, as image_key; values to remember.
        """
        kinds, key = [one for one in self.memory.get("kinds", []) if one[0] != number], _read_key(kind)
        before = next((one for first, one in reversed(kinds) if first < number), PROJECTION)
        self.remember(kinds=sorted([*kinds, *([] if key == before else [[number, key]])]), **values)

    def remember(self, **values: Any) -> None:
        """Keep values of JSON for a later process."""
        self.memory |= values
        self._write("stream.json", json.dumps(self.memory).encode())

    def keep_bad(self, bad: NDArray[np.bool_]) -> None:
        """Say which pixels never count, once and for all."""
        self.bad, content = bad, io.BytesIO()
        np.save(content, bad, allow_pickle=False)
        self._write("bad.npy", content.getbuffer())

    def _write(self, name: str, content: bytes | memoryview) -> None:
        with _storing(self.keep):
            self.keep.mkdir(exist_ok=True)
            write_whole(self.keep / name, [content])

    def has(self, key: int, first: int) -> bool:
        """Whether there is a frame of this kind, that can be used, from this place on."""
        early = any(n >= first and one.key == key and one.data is not None for n, one in self._early.items())
        return early or any(self.keys[n] == key and n not in self._reasons for n in range(first, self.next))

    def _is_new(self, number: int, total: int | None) -> bool:
        """Whether to take a frame; others are counted."""
        if number < 0 or number > self.last + self.longest_gap:
            self.counts["impossible"] += 1
        elif number < self.next and number in self._reasons:
            self.counts["late"] += 1
        elif number < self.next or number in self._early:
            self.counts["conflicting" if self._sums.get(number, total) != total else "repeated"] += 1
        else:
            return True
        return False

    def _check(self, data: NDArray[Any], attributes: Mapping[str, Any]) -> _Arrival:
        """A frame with its key and angle; without data if it cannot be used."""
        reason, key, angle = "", None, None
        try:
            key = _read_key(attributes.get(self.names.image_key, PROJECTION))
            if self.names.angles is not None and key == PROJECTION:
                angle = _read_angle(attributes, self.names.angles)
        except InputError as error:
            if self.next == 0 and not self._early:
                raise InputError(f"its first frame {error}") from None  # a mistake in the command
            reason = str(error)
        if data.ndim != 2 or 0 in data.shape or data.dtype.kind not in "uif":
            reason = f"has {data.dtype} of shape {data.shape}, which is no picture in shades of grey"
        elif self.shape is None and not reason:
            self.shape, self.dtype = (int(data.shape[0]), int(data.shape[1])), data.dtype
        elif (data.shape, data.dtype) != (self.shape, self.dtype) and not reason:
            reason = f"has {data.dtype} of {data.shape}, and those before it {self.dtype} of {self.shape}"
        return _Arrival(None if reason else data, reason, key, angle)

    def _insert(self, number: int, arrival: _Arrival) -> None:
        self._early[number] = arrival
        self._nbytes += 0 if arrival.data is None else arrival.data.nbytes
        if self.resuming:  # what came before this process could listen
            self._give_up(number, None)
            self.resuming = False
        self._advance()

    def _give_up(self, number: int, reason: str | None) -> None:
        """Places before this frame that stay empty."""
        for place in range(self.next, number):
            self._append(place, _Arrival(None, reason or "", None, None))
            if reason is None:
                self._reasons.pop(place, None)
            else:
                self.counts["lost"] += 1

    def _kind_of(self, place: int) -> int:
        """The kind of frames from here on, as it was announced, or as of the frame before."""
        kinds = self.memory.get("kinds", [])
        return next((key for first, key in reversed(kinds) if first <= place), PROJECTION)

    def _advance(self) -> None:
        """Let all frames count that come next."""
        while (number := self.next) in self._early:
            self._append(number, self._early.pop(number))

    def _append(self, number: int, arrival: _Arrival) -> None:
        """A frame that counts, or an empty place, which is a projection's if it is of the kind of projections."""
        key = self._kind_of(number) if arrival.key is None else arrival.key
        angle = arrival.angle
        if angle is None:
            angle = self.angles[-1] if self.angles else 0.0
        if arrival.data is None:
            self._reasons[number] = arrival.reason
        else:
            self._data[number] = arrival.data
            if self._keeping and key in (FLAT, DARK):
                content = io.BytesIO()
                np.save(content, arrival.data, allow_pickle=False)
                self._write(f"{number:08d}-{key}.npy", content.getbuffer())
            if key != self._kind_of(number):
                self.announce(number, key)
        self.keys.append(NOTHING if arrival.data is None and key != PROJECTION else key)
        self.angles.append(angle)

    def _restore(self) -> None:
        """What an earlier process has kept."""
        try:
            place = self.keep / "stream.json"
            self.memory = json.loads(read_small(place)) if place.exists() else {}
            self.bad = np.load(self.keep / "bad.npy", allow_pickle=False) if (self.keep / "bad.npy").exists() else None
            self._keeping = False
            for path in sorted(self.keep.glob("*-[12].npy")):
                number, key = (int(word) for word in path.stem.split("-"))
                data = np.load(path, allow_pickle=False)
                self._early[number] = self._check(data, {self.names.image_key: key})
                self._give_up(number, None)
                self._advance()
            self._keeping = True
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {self.keep}, which an earlier import has left: {error}") from error


def _read_key(value: Any) -> int:
    """The kind of a frame: a number of NXtomo's, or a word such as Data Exchange's places have."""
    if isinstance(value, str) and not value.strip().isdigit():
        word = value.casefold()
        return next((key for part, key in _WORDS if part in word), NOTHING)
    try:
        return int(value) if int(value) in (PROJECTION, FLAT, DARK) else NOTHING
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"has the image_key {str(value)[:40]!r}, which is no number") from None


def _read_angle(attributes: Mapping[str, Any], name: str) -> float:
    try:
        angle = float(attributes[name])
    except KeyError:
        names = ", ".join(map(str, list(attributes)[:20])) or "none"
        raise InputError(f"has no {name[:80]} to take the angle from; it has {names}") from None
    except (TypeError, ValueError):
        angle = np.nan
    if not np.isfinite(angle):
        raise InputError(f"has the angle {str(attributes[name])[:40]!r}, which is no number")
    return angle


@contextmanager
def _storing(place: Path) -> Iterator[None]:
    """Errors of the disk in one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {place}: {error.strerror or error}") from error
