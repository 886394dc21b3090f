"""What a receiver has on its disk: a scan of one sender, its views in order, each with the checksum it came with."""

from __future__ import annotations

import hmac
import os
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError, InputError
from plugstream.scans.checks import check_columns, check_continuation, check_finite, data_bytes, fixed_arrays
from plugstream.scans.parts import Sums, checksum_of, read_sums, view_of
from plugstream.scans.store import StoredScan, open_scan
from plugstream.scans.stream import Announcement, Message, Name, RefusedError, refusing
from plugstream.scans.writer import ScanWriter

_LOOK = 0.2  # seconds between two looks at how full the disk is


@dataclass(frozen=True)
class Limits:
    """How much a receiver takes: what goes beyond is refused, and what it has stays.

    Arguments: connections at once, None for 32; views of the scan; nbytes of its views, None for as many as the disk
    has; free, bytes that stay free on the disk, None for 1 GB or a twentieth of it, whichever is less.
    """

    connections: int | None = None
    views: int = 10_000_000
    nbytes: int | None = None
    free: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("views", 1), ("nbytes", 1), ("free", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"the limit of {name} must be at least {least}, not {value}")


class Quota:
    """The limits, applied to a scan that lies in a folder."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.limits = limits
        self._folder = folder
        self._room, self._looked = 0, -_LOOK

    def check(self, views: int, size: int) -> None:
        """Refuse the last of so many views, of `size` bytes each, if that is too much."""
        limits = self.limits
        if views > limits.views:
            raise RefusedError("quota", f"no more than {limits.views} views are taken here (--max-views)")
        if limits.nbytes is not None and views * size > limits.nbytes:
            raise RefusedError("quota", f"no more than {limits.nbytes} bytes are taken here (--max-bytes)")
        self.check_disk(size)

    def check_disk(self, size: int) -> None:
        """Refuse what would fill the disk, until somebody makes room."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            usage = shutil.disk_usage(self._folder)
            reserve = min(1 << 30, usage.total // 20) if self.limits.free is None else self.limits.free
            self._looked, self._room = now, usage.free - reserve
        self._room -= size
        if self._room < 0:
            self._looked = -_LOOK
            raise RefusedError("waiting", "the receiver's disk is as full as it may become (--keep-free); make room")


class Journal:
    """Takes the messages of a scan into a `ScanWriter`: in order, each once, and none that differs from the disk.

    What is wrong with a message is a `RefusedError`; an `InputError` is the disk's. The scan keeps a hash of its
    sender's token, and its key if it has one, so that a later Journal recognises that sender.

    Arguments: out, a new scan, or one that an earlier Journal did not finish; limits; counts, of views taken.
    """

    def __init__(self, out: Path, limits: Limits, counts: Counter[str]) -> None:
        self.out = out
        self.scan: str | None = None
        self._writer: ScanWriter | None = None
        self._stored: StoredScan | None = None
        self._quota = Quota(limits, out.parent)
        self._counts = counts
        self._sums = Sums()
        self._digest = self._key = ""
        if out.exists():
            self._resume()
        elif not out.parent.is_dir():
            raise InputError(f"the folder {out.parent} does not exist; make it first")
        elif not os.access(out.parent, os.W_OK):
            raise InputError(f"nothing can be written to the folder {out.parent}; choose another")

    @property
    def begun(self) -> bool:
        """Whether there is a scan."""
        return self._writer is not None

    @property
    def writer(self) -> ScanWriter:
        """The writer of the scan, once it is begun."""
        assert self._writer is not None
        return self._writer

    @property
    def finished(self) -> bool:
        """Whether the scan is on the disk to its end."""
        return self._writer is not None and self._writer.finished

    @property
    def committed(self) -> int:
        """Views that are safe on the disk."""
        return 0 if self._writer is None else self._writer.committed

    @property
    def next_sequence(self) -> int:
        """The sequence of the message that comes next."""
        return 0 if self._writer is None else self._writer.appended + 1

    @property
    def safe(self) -> int:
        """The sequence of the last message that is safe on the disk."""
        return self.committed + self.finished

    def state(self) -> dict[str, Any]:
        """What a sender that comes back needs to know whether this is its own scan."""
        total = self._sums.total(self.committed)
        sums = {} if total is None else {"crc32c": total}
        return {"views": self.committed, "complete": self.finished, **sums}

    def begin(self, message: Message, key: str) -> None:
        """Begin a scan, or refuse one that is not the one that is here."""
        announced, name = message.announcement(), message.name()
        if not self.begun:
            if self.out.exists():  # somebody made it while we listened
                self._resume()
            else:
                self._create(name, key, announced)
        if not self.is_of(message, key):
            raise RefusedError("foreign", "another scan is being received here, or it was begun by another sender")
        writer = self.writer
        different = announced.instrument.difference(writer.instrument)
        if not different and announced.dtype != writer.dtype:
            different = "data type"
        if not different and announced.columns is not None and writer.appended:
            try:
                check_continuation(announced.instrument, "the scan", writer.column_names, announced.columns)
            except InputError:
                different = "columns"
        if different:
            raise RefusedError("foreign", f"{self.out.name} was begun with other {different}")

    def is_of(self, message: Message, key: str) -> bool:
        """Whether a message comes from whoever began the scan."""
        same_token = hmac.compare_digest(message.name().digest(), self._digest)
        return same_token and hmac.compare_digest(key, self._key)

    def take(self, message: Message) -> None:
        """Take a view or the end: the next one, or one that is here already."""
        sequence, expected, is_end = message.sequence, self.next_sequence, message.kind == "end"
        if is_end and message.field("views", int) != sequence - 1:
            raise RefusedError("mistyped", "views and sequence do not agree: sequence is views + 1")
        if is_end and (sequence < expected or (self.finished and sequence > expected)):
            raise RefusedError(
                "conflicting", f"the scan has {expected - 1} views, and does not end after {sequence - 1}"
            )
        if sequence < expected or (is_end and self.finished):
            if not is_end:
                self._compare(message)
            self._counts["repeated"] += 1
        elif self.finished:
            raise RefusedError("conflicting", f"the scan ended after {expected - 1} views")
        elif sequence > expected:
            raise RefusedError("early", f"sequence {sequence} came before {expected}")
        elif not is_end:
            self._append(message)
        elif sequence == 1:
            raise RefusedError("mistyped", "a scan without views cannot end")
        else:
            self.writer.finish()

    def commit(self) -> None:
        """Bring all views that were taken safely to the disk."""
        if self._writer is not None and not self.finished:
            self._writer.commit()

    def reopen(self) -> None:
        """Go on after the last committed view, and forget later ones; they were not acknowledged."""
        if self._writer is not None and not self.finished:
            self._writer.close()
            self._writer = ScanWriter(self.out)
            self._sums.truncate(self._writer.appended)

    def close(self) -> None:
        """Let others write; views that were not committed are lost."""
        if self._writer is not None:
            self._writer.close()

    def _append(self, message: Message) -> None:
        writer, columns = self.writer, self._columns(message)
        if writer.appended:
            with refusing():
                check_continuation(writer.instrument, "the scan", writer.column_names, columns)
        self._quota.check(message.sequence, sum(values.nbytes for values in columns.values()))
        writer.append_checked({name: values[None] for name, values in columns.items()})
        self._sums.append(checksum_of(writer.instrument, columns))
        self._counts["accepted"] += 1

    def _columns(self, message: Message) -> dict[str, NDArray[Any]]:
        """What a view carries, as it would be on the disk."""
        instrument = self.writer.instrument
        columns = message.view(instrument, self.writer.dtype)
        rows = {name: values[None].copy() for name, values in columns.items()}  # those of a message are read-only
        data = rows.pop("data")
        with refusing():  # here, so that what the writer itself refuses is an error of the disk
            rows = check_columns(instrument, rows, 1)
            instrument.check_plausible(rows)
            check_finite(data, instrument.find_mask(rows), message.sequence - 1)
        return {"data": data[0], **{name: rows[name][0] for name in columns if name != "data"}}

    def _compare(self, message: Message) -> None:
        """Refuse a view that is not what the disk has in its place; acknowledged means that this view is there."""
        view, columns, instrument = message.sequence - 1, self._columns(message), self.writer.instrument
        if self._sums.agrees(view, checksum_of(instrument, columns)):
            return
        self.commit()
        try:
            if self._stored is None:
                self._stored = open_scan(self.out)
            self._stored.refresh()
            stored = view_of(self._stored, view)
        except DamagedError as error:
            raise RefusedError("conflicting", f"view {view} is on the disk, but is damaged there: {error}") from error
        defaults = {
            column.name: np.full(instrument.row_shape(column), column.default, dtype=column.dtype)
            for column in instrument.columns
            if column.optional and column.default is not None
        }
        ours, theirs = ({n: v.tobytes() for n, v in {**defaults, **side}.items()} for side in (stored, columns))
        other = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        raise RefusedError("conflicting", f"view {view} is on the disk with other {' and '.join(other) or 'bytes'}")

    def _create(self, name: Name, key: str, announced: Announcement) -> None:
        instrument, dtype = announced.instrument, announced.dtype
        with refusing("implausible"):  # here, so that what the writer itself refuses is an error of the disk
            instrument.check_plausible()
        self._quota.check_disk(sum(values.nbytes for values in fixed_arrays(instrument).values()))
        origin = {
            "made_by": "plugstream acquire",
            "stream": name.scan,
            "sender": {"token_sha256": name.digest(), "key": key},
            "instrument": announced.provenance,
        }
        # Small shards, since each commit writes the last one again.
        shard = int(np.clip((1 << 20) // data_bytes(instrument, dtype), 1, 64))
        self._writer = ScanWriter(self.out, instrument, dtype=dtype, provenance=origin, views_per_shard=shard)
        self.scan, self._digest, self._key = name.scan, name.digest(), key

    def _resume(self) -> None:
        """Continue a scan that exists: it must be one of ours, and not finished."""
        scan = open_scan(self.out)
        if "stream" not in scan.provenance:
            raise InputError(f"{self.out} was not made by 'plugstream acquire'; choose another name")
        if scan.complete:
            raise InputError(f"the scan {self.out} is finished; choose another name")
        sender = scan.provenance.get("sender")
        if not isinstance(sender, dict) or not all(isinstance(sender.get(n), str) for n in ("token_sha256", "key")):
            raise InputError(f"{self.out} does not say who sent it, so nobody can go on with it; choose another name")
        writer = ScanWriter(self.out)
        try:
            scan.refresh()
            self._sums = read_sums(scan, scan.n_views)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self.scan, self._digest, self._key = str(scan.provenance["stream"]), sender["token_sha256"], sender["key"]
