"""Make a scan from a file, or a folder of pictures, that another program is still writing.

The file is opened anew at each look, since its writer may die, come back, or begin it again, and read by its importer
as far as it is there. Views are taken in order, each once, into a `ScanWriter`, as `plugstream acquire` does. One that
cannot be used (half-written, missing, NaN) holds up those after it for a while, and is then left out. In the end every
view is compared with the finished file. A stream is followed in the same way, but what has come does not come again.
"""

from __future__ import annotations

import math
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.base.files import NOT_PLAIN
from plugstream.base.registry import Entry, Options
from plugstream.base.trust import trusting
from plugstream.scans.checks import check_views, data_bytes
from plugstream.scans.importers.address import RunAddress
from plugstream.scans.importers.base import ImportResult, open_begun, plan_import
from plugstream.scans.importers.growth import Growth, NotYetError
from plugstream.scans.importers.hdf5 import SIGNATURE
from plugstream.scans.importers.hdf5_growth import writer_state
from plugstream.scans.importers.reading import Reading, read_blocks
from plugstream.scans.importers.source import read_head
from plugstream.scans.journal import Limits, Quota
from plugstream.scans.parts import Sums, checksum_of, read_sums
from plugstream.scans.store import open_scan
from plugstream.scans.stream import RefusedError
from plugstream.scans.streams.address import Address
from plugstream.scans.streams.frames import TakenError
from plugstream.scans.streams.tap import Tap
from plugstream.scans.writer import ScanWriter

_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between two looks: while views come, and at most
_DONE = 2.0  # seconds: a file that was closed is done if nobody has opened it again for so long
# A recording that cannot be read is looked at so often, for so many seconds: what is being written may look damaged.
_ATTEMPTS, _DAMAGED = 5, 3.0
# Views that are looked at behind one that cannot be used, to see whether the writer went on.
_BEYOND = 8
_MOST_SAID = 100  # views whose leaving out is said at once; the end tells how many there are
# Options that a recording itself settles, which a process that goes on must not find again.
_SETTLED = ("flats", "darks", "center", "power")

Opener = Callable[[Growth], AbstractContextManager[Reading]]


@dataclass(frozen=True)
class Following:
    """How long to follow.

    Arguments: expect, how many projections or frames there will be, None to follow until the writer closes the file;
    patience, seconds without a new view after which the scan ends all the same, None to wait for ever; grace, seconds
    for which a view that cannot be used holds up later ones, None for 10, and for 1 of a stream.
    """

    expect: int | None = None
    patience: float | None = None
    grace: float | None = None

    def __post_init__(self) -> None:
        if self.expect is not None and self.expect < 1:
            raise InputError(f"at least one view must be expected, not {self.expect}")
        if self.patience is not None and not self.patience > 0:
            raise InputError(f"the patience must be a number of seconds > 0, not {self.patience:g}")
        if self.grace is not None and not 0 <= self.grace < math.inf:
            raise InputError(f"the grace must be a number of seconds >= 0, not {self.grace:g}")


def follow_file(
    kind: str,
    file: str | Path,
    out: str | Path | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    following: Following | None = None,
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int], None] = lambda views: None,
) -> tuple[Path, ImportResult]:
    """Make a scan from a file that grows, view by view, and return its path and content at its end.

    A scan that an earlier call did not finish is continued, after comparing its views with the file's.

    Arguments: kind, file, out, values and trust, as of `import_file`; following, how long; say, called with lines for a
    person; progress, called at each look and after each few views, with the number of views on the disk.
    """
    following = following or Following()
    entry, options, path, target = plan_following(kind, file, out, values, following.expect)
    opener = entry.facts["open_reading"]
    usual = 1.0 if isinstance(path, Address) else 10.0
    growth = Growth(following.expect, usual if following.grace is None else following.grace)
    with trusting(trust), _Follower(lambda g: opener(options, path, g), path, target, growth, say) as follower:
        return target, follower.run(following.patience, progress)


def plan_following(
    kind: str, file: str | Path, out: str | Path | None, values: Mapping[str, Any] | None, expect: int | None
) -> tuple[Entry, Options, Path | Address, Path]:
    """As `plan_import`, of a recording that can be followed; what needs all of it is refused.

    Arguments: expect, views that there will be, None if unknown.
    """
    entry, options, path, target = plan_import(kind, file, out, values)
    if isinstance(path, RunAddress):
        raise InputError("a run of Tiled cannot be followed; plugstream.bridges.bluesky feeds one from its RunEngine")
    if "open_reading" not in entry.facts:
        raise InputError(f"a file of {kind} cannot be followed while it grows; those of ct and hdf5 can")
    if isinstance(path, Address):
        if not entry.facts.get("streams", False):
            raise InputError(f"a scan of {kind} cannot be made from a stream; one of ct can")
    elif path.is_dir():
        raise InputError(f"{path} is a folder; follow the TOML file that describes it, such as {path}/scan.toml")
    entry.facts.get("check_growing", lambda *_: None)(options, path, Growth(expect))
    if target.exists():
        open_begun(target, path)
    return entry, options, path, target


class _Follower:
    """Takes the views of one recording into one scan.

    Arguments: opener of the recording as far as it is there; path; out, the scan; growth; say.
    """

    def __init__(
        self, opener: Opener, path: Path | Address, out: Path, growth: Growth, say: Callable[[str], None]
    ) -> None:
        self._open, self.path, self.out, self.growth, self._say = opener, path, out, growth, say
        self._writer: ScanWriter | None = None
        self._quota = Quota(Limits(), out.parent)
        self._sums, self._confirmed = Sums(), 0
        self._next = 0  # of the views that the options choose
        self._left_out: dict[int, str] = {}
        self._held: tuple[int, float] | None = None
        self._state: Any = None
        self._since = 0.0
        self._identity: Any = None
        self._tap: Tap | None = None
        if isinstance(path, Address):
            self._tap = Tap(path, growth.grace, out.with_name(f"{out.name}.stream"), say, resume=out.exists())
            growth.memory["tap"] = self._tap
        if out.exists():
            self._resume()
        elif not out.parent.is_dir():
            raise InputError(f"the folder {out.parent} does not exist; make it first")

    def __enter__(self) -> _Follower:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._tap is not None:
            self._tap.close()

    @property
    def committed(self) -> int:
        """Views that are safe on the disk."""
        return 0 if self._writer is None else self._writer.committed

    def run(self, patience: float | None, progress: Callable[[int], None]) -> ImportResult:
        """Follow to the end."""
        growth, news, said, remarks = self.growth, time.monotonic(), "", list[str]()
        failures = list[float]()  # when each in a row was
        while True:
            progress(self.committed)
            waiting, before = "", (self.committed, growth.seen)
            try:
                self._look()
                with self._open(growth) as reading:
                    waiting = self._take(reading, progress)
                    failures, remarks = [], list(reading.remarks)
            except NotYetError as error:
                waiting = str(error)
            except InputError as error:
                failures.append(time.monotonic())
                lasts = len(failures) >= _ATTEMPTS and failures[-1] - failures[0] >= min(growth.grace, _DAMAGED)
                if isinstance(error, StorageError) or growth.final or lasts or self._tap:
                    raise
                waiting = str(error)
            now = time.monotonic()
            if (self.committed, growth.seen) > before:  # while the rotation axis is awaited no view is taken
                news = now
            if growth.final or (growth.expected is not None and growth.seen >= growth.expected and not waiting):
                break
            growth.final = growth.closed and growth.expected is None
            growth.final |= patience is not None and now - news > patience
            if waiting and waiting != said and now - news > 1:
                self._say(f"waiting: {waiting}")
                said = waiting
            time.sleep(min(_LONGEST_LOOK, max(_LOOK, (now - news) / 10)))
        return self._finish(remarks, waiting)

    def _look(self) -> None:
        """Note whether the file was closed for a while, or replaced by another."""
        if isinstance(self.path, Address):
            return
        try:
            status = self.path.stat()
        except OSError:
            if not self.path.exists():
                self.growth.wait(f"there is no file {self.path}")
            return
        if not stat.S_ISREG(status.st_mode):  # to read a pipe is to wait for whoever writes to it
            raise InputError(f"{self.path} cannot be followed: {NOT_PLAIN}")
        is_hdf5 = read_head(self.path, 8) == SIGNATURE
        state = (status.st_size, status.st_mtime_ns, writer_state(self.path) if is_hdf5 else "")
        now = time.monotonic()
        if state != self._state:
            self._state, self._since = state, now
        self.growth.closed = state[2] == "closed" and now - self._since >= _DONE
        identity = (status.st_dev, status.st_ino) if is_hdf5 else None
        if self._identity not in (None, identity):  # what was taken of the old one must be in the new one
            self._forget(self.growth)
        self._identity = identity

    def _forget(self, growth: Growth) -> None:
        """Look at the recording from its beginning, and compare its views with those that were taken."""
        self.growth = growth
        growth.memory.clear()
        if self._writer is not None:
            self._writer.commit()
            self._sums, self._confirmed = read_sums(open_scan(self.out), self.committed), 0
        self._next, self._held = 0, None
        self._left_out.clear()

    def _take(self, reading: Reading, progress: Callable[[int], None]) -> str:
        """Take all views that can be had in order; what is waited for, "" for nothing."""
        self._check_same(reading)
        instrument = reading.instrument
        while self._next < reading.n_views:
            rest = read_blocks(reading.n_views - self._next, 16 * math.prod(instrument.data_shape), reading.at_once)
            step, error = rest[0].stop, None
            try:
                views = self._read(reading, self._next, step)
            except StorageError:
                raise
            except InputError as one:
                error, step = one, 1
                if rest[0].stop > 1:  # then one by one
                    try:
                        views, error = self._read(reading, self._next, 1), None
                    except InputError as single:
                        error = single
            if error is not None:
                if not self._give_up(reading, error):
                    return str(error)
                self._leave_out(error)
            else:
                self._store(reading, views)
                progress(self.committed)
            self._next += step
        if self._tap is not None:
            if self._writer is not None:  # all of a look at once, since losses make for many short blocks
                self._writer.commit()
            self._tap.release()
            progress(self.committed)
        elif self._confirmed < len(self._sums) and not self.growth.final:
            return f"{self.path} has {self._confirmed} of {len(self._sums)} views that were taken from it"
        return ""

    def _leave_out(self, error: InputError) -> None:
        """Go on without the next view."""
        if isinstance(error, TakenError):
            return
        self._left_out[self._next] = str(error)
        if len(self._left_out) <= _MOST_SAID and not (self._writer and self._writer.finished):
            self._say(f"view {self._next} is left out: {error}")

    def _read(self, reading: Reading, first: int, count: int) -> dict[str, NDArray[Any]]:
        """Views as the scan has them, data first."""
        values = dict(reading.read(slice(first, first + count)))
        dtype = reading.dtype or reading.instrument.data.dtypes[0]
        return check_views(reading.instrument, values.pop("data"), (), values, first, dtype)

    def _give_up(self, reading: Reading, error: InputError) -> bool:
        """Whether to go on without the next view: nothing more will come, or later views have for a while."""
        if self.growth.final or self._tap is not None:  # what has come by a stream does not come again
            return True
        now = time.monotonic()
        if self._held is None or self._held[0] != self._next:
            self._held = self._next, now
        if now - self._held[1] < self.growth.grace:
            return False
        for later in range(self._next + 1, min(self._next + 1 + _BEYOND, reading.n_views)):
            try:
                self._read(reading, later, 1)
            except InputError:
                continue
            return True
        return False

    def _store(self, reading: Reading, views: dict[str, NDArray[Any]]) -> None:
        """Append views, but for those that an earlier process has written, which must be the same."""
        count = len(views["data"])
        for n in range(count):
            if self._confirmed == len(self._sums):
                break
            one = checksum_of(reading.instrument, {name: values[n] for name, values in views.items()})
            if self._sums.agrees(self._confirmed, one):
                self._confirmed += 1
            else:
                self._left_out[self._next + n] = "it was not taken, or is another one by now"
        else:
            return
        new = {name: values[n:] for name, values in views.items()}
        if self._writer is None or self._writer.finished:
            return
        if self._tap is not None and not (new := self._tap.without_known(self._writer.instrument, new)):
            return
        try:
            self._quota.check_disk(sum(values.nbytes for values in new.values()))
        except RefusedError:
            kind = StorageError if self.growth.final else NotYetError
            raise kind(f"the disk of {self.out} has no room for more views; the same command goes on") from None
        self._writer.append_checked(new)
        if self._tap is None:
            self._writer.commit()

    def _check_same(self, reading: Reading) -> None:
        """Begin the scan, or refuse a recording that is no longer the one that was begun."""
        if self._writer is None:
            instrument, dtype = reading.instrument, reading.dtype or reading.instrument.data.dtypes[0]
            # Small shards, since each commit writes the last one again.
            shard = int(np.clip((1 << 20) // data_bytes(instrument, dtype), 1, 64))
            about: dict[str, Any] = {"provenance": {**reading.provenance, "followed": True}, "truth": reading.truth}
            self._writer = ScanWriter(self.out, instrument, dtype=dtype, views_per_shard=shard, **about)
        if name := reading.instrument.difference(self._writer.instrument):
            raise InputError(f"{self.path} has another {name} than when {self.out} was begun; choose another name")
        if reading.n_views < self._next:
            raise InputError(
                f"{self.path} was begun anew: it has {reading.n_views} views, and {self._next} were taken from it; "
                f"remove {self.out}, or choose another name"
            )

    def _resume(self) -> None:
        scan = open_begun(self.out, self.path)
        settled = scan.provenance.get("options", {})
        self.growth.settings = {name: settled[name] for name in _SETTLED if name in settled}
        self._writer = ScanWriter(self.out)
        scan.refresh()
        sums = read_sums(scan, scan.n_views)
        if self._tap is None:
            self._sums = sums
        else:
            self._tap.known = sums
        self._say(f"going on after {scan.n_views} views")

    def _finish(self, remarks: list[str], waiting: str) -> ImportResult:
        """End the scan, and compare it with the finished recording."""
        writer = self._writer
        if writer is None or writer.committed == 0:
            raise InputError(f"no view could be taken from {self.path}" + (f": {waiting}" if waiting else ""))
        if self._confirmed < len(self._sums):
            raise self._conflict()
        writer.finish()
        left_out, growth = dict(self._left_out), self.growth
        if growth.expected is not None and growth.seen > growth.expected:
            remarks.append(f"of {growth.seen} views only the first {growth.expected} are used, as were expected")
        if left_out:
            remarks.append(f"{len(left_out)} views are left out: {_listed(left_out)}")
        self._compare(left_out, remarks)
        return ImportResult(writer.committed, tuple(remarks))

    def _compare(self, left_out: Mapping[int, str], remarks: list[str]) -> None:
        """Compare the scan with the finished recording."""
        growth = self.growth
        if self._tap is not None:
            remarks.extend(self._tap.remarks)
            return
        if not growth.closed and growth.expected is None:
            remarks.append("the writer did not close the file: the scan was ended after --patience without a view")
            return
        known = {key: value for key, value in growth.memory.items() if key.startswith("first of ")}  # what 0 was
        self._forget(Growth(growth.expected, growth.grace, True, True, settings=growth.settings))
        self.growth.memory |= known
        with self._open(self.growth) as reading:
            self._take(reading, lambda views: None)
        remarks.extend(self.growth.remarks)
        if self._confirmed < len(self._sums):
            raise self._conflict()
        if late := {view: "" for view in left_out if view not in self._left_out}:
            remarks.append(f"views came too late to be taken: {_listed(late)}")

    def _conflict(self) -> DamagedError:
        return DamagedError(
            f"view {self._confirmed} of {self.out} is not what {self.path} holds by now: it was written again after it "
            "was taken; import it anew"
        )


def _listed(views: Mapping[int, str]) -> str:
    """Numbers of views, the first few."""
    words = [str(view) for view in sorted(views)]
    return ",".join(words[:20]) + (f" and {len(words) - 20} more" if len(words) > 20 else "")
