"""What a receiver has on its disk: a scan of one sender, its views in order, each with the checksum it came with."""

from __future__ import annotations

import hmac
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import DamagedError, InputError
from plugstream.scans.checks import check_columns, check_continuation, check_finite
from plugstream.scans.limits import Limits, Quota
from plugstream.scans.parts import checksum_of
from plugstream.scans.store import StoredScan, open_scan
from plugstream.scans.stream import Announcement, Message, Name, RefusedError
from plugstream.scans.sums import Sums, read_sums, view_of
from plugstream.scans.writer import ScanWriter

__all__ = ["Journal"]


class Journal:
    """Takes the messages of a scan into a `ScanWriter`: in order, each once, and none that differs from what is there.

    What a message has wrong is a `RefusedError`; an `InputError` is of the disk. The scan keeps a hash of its sender's
    token, and its key if it has one, so that a later Journal knows that sender again.

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
            self._go_on()
        elif not out.parent.is_dir():
            raise InputError(f"the folder {out.parent} does not exist; make it first")
        elif not os.access(out.parent, os.W_OK):
            raise InputError(f"nothing can be written to the folder {out.parent}; choose another")

    @property
    def begun(self) -> bool:
        """Whether there is a scan."""
        return self._writer is not None

    @property
    def finished(self) -> bool:
        """Whether the scan is on the disk to its end."""
        return self._writer is not None and self._writer.finished

    @property
    def committed(self) -> int:
        """Views that are safe on the disk."""
        return 0 if self._writer is None else self._writer.committed

    @property
    def wanted(self) -> int:
        """The sequence of the message that comes next."""
        return 0 if self._writer is None else self._writer.appended + 1

    @property
    def safe(self) -> int:
        """The sequence of the last message that is safe on the disk."""
        return self.committed + self.finished

    def state(self) -> dict[str, Any]:
        """What is told to a sender that comes back, by which it knows whether it is its own scan."""
        total = self._sums.total(self.committed)
        known = {} if total is None else {"crc32c": total}
        return {"views": self.committed, "complete": self.finished, **known}

    def begin(self, message: Message, key: str) -> None:
        """Begin a scan, or refuse one that is not the one that there is."""
        told = message.announcement()
        name = message.name()
        if self._writer is None:
            if self.out.exists():  # somebody made it while we listened
                self._go_on()
            else:
                self._create(name, key, told)
        assert self._writer is not None
        if not self.is_of(message, key):
            raise RefusedError("foreign", "another scan is being received here, or it was begun by another sender")
        different = told.instrument.difference(self._writer.instrument)
        if not different and told.dtype != self._writer.dtype:
            different = "data type"
        if not different and told.columns is not None and self._writer.appended:
            try:
                check_continuation(told.instrument, "the scan", self._writer.column_names, told.columns)
            except InputError:
                different = "columns"
        if different:
            raise RefusedError("foreign", f"{self.out.name} was begun with other {different}")

    def is_of(self, message: Message, key: str) -> bool:
        """Whether a message is of whoever began the scan."""
        known = hmac.compare_digest(message.name().digest(), self._digest)
        return known and hmac.compare_digest(key, self._key)

    def take(self, message: Message) -> None:
        """A view or the end: the next one, or again one that is there."""
        assert self._writer is not None
        sequence, wanted = message.sequence, self.wanted
        if message.kind == "end" and message.field("views", int) != sequence - 1:
            raise RefusedError("mistyped", "views and sequence do not agree: sequence is views + 1")
        if message.kind == "end" and (sequence < wanted or (self.finished and sequence > wanted)):
            raise RefusedError("conflicting", f"the scan has {wanted - 1} views, and does not end after {sequence - 1}")
        if sequence < wanted or (message.kind == "end" and self.finished):
            if message.kind == "view":
                self._compare(message)
            self._counts["repeated"] += 1
        elif self.finished:
            raise RefusedError("conflicting", f"the scan ended after {wanted - 1} views")
        elif sequence > wanted:
            raise RefusedError("early", f"sequence {sequence} came before {wanted}")
        elif message.kind == "view":
            self._append(message)
        elif sequence == 1:
            raise RefusedError("mistyped", "a scan without views cannot end")
        else:
            self._writer.finish()

    def commit(self) -> None:
        """Have all views that were taken safe on the disk."""
        if self._writer is not None and not self.finished:
            self._writer.commit()

    def reopen(self) -> None:
        """Go on after the last committed view, and forget others; they were not acknowledged."""
        if self._writer is not None and not self.finished:
            self._writer.close()
            self._writer = ScanWriter(self.out)
            self._sums.truncate(self._writer.appended)

    def close(self) -> None:
        """Let others write; views that were not committed are lost."""
        if self._writer is not None:
            self._writer.close()

    def _append(self, message: Message) -> None:
        assert self._writer is not None
        columns = self._columns(message)
        if self._writer.appended:
            try:
                check_continuation(self._writer.instrument, "the scan", self._writer.column_names, columns)
            except InputError as error:
                raise RefusedError("mistyped", str(error)) from error
        self._quota.check(message.sequence, sum(values.nbytes for values in columns.values()))
        self._writer.append_checked({name: values[None] for name, values in columns.items()})
        self._sums.append(checksum_of(self._writer.instrument, columns))
        self._counts["accepted"] += 1

    def _columns(self, message: Message) -> dict[str, NDArray[Any]]:
        """What a view carries, as it would be on the disk."""
        assert self._writer is not None
        instrument = self._writer.instrument
        columns = message.view(instrument, self._writer.dtype)
        rows = {name: values[None].copy() for name, values in columns.items()}  # of a message nothing can be written to
        data = rows.pop("data")
        try:  # here, so that what the writer itself refuses is an error of the disk
            rows = check_columns(instrument, rows, 1)
            instrument.check_plausible(rows)
            check_finite(data, instrument.find_mask(rows), message.sequence - 1)
        except InputError as error:
            raise RefusedError("mistyped", str(error)) from error
        return {"data": data[0], **{name: rows[name][0] for name in columns if name != "data"}}

    def _compare(self, message: Message) -> None:
        """Refuse a view that is not what the disk has in its place; acknowledged means that this view is there."""
        view, columns = message.sequence - 1, self._columns(message)
        assert self._writer is not None
        instrument = self._writer.instrument
        if self._sums.agrees(view, checksum_of(instrument, columns)):
            return
        self.commit()
        try:
            if self._stored is None:
                self._stored = open_scan(self.out)
            self._stored.refresh()
            there = view_of(self._stored, view)
        except DamagedError as error:
            raise RefusedError("conflicting", f"view {view} is on the disk, but is damaged there: {error}") from error
        defaults = {
            column.name: np.full(instrument.row_shape(column), column.default, dtype=column.dtype)
            for column in instrument.columns
            if column.optional and column.default is not None
        }
        ours, theirs = ({**defaults, **one} for one in (there, columns))
        other = [name for name in dict.fromkeys((*ours, *theirs)) if _bytes_of(ours, name) != _bytes_of(theirs, name)]
        raise RefusedError("conflicting", f"view {view} is on the disk with other {' and '.join(other) or 'bytes'}")

    def _create(self, name: Name, key: str, told: Announcement) -> None:
        instrument = told.instrument
        try:  # here, so that what the writer itself refuses is an error of the disk
            instrument.check_plausible()
        except InputError as error:
            raise RefusedError("implausible", str(error)) from error
        arrays = [getattr(instrument, array.name) for array in instrument.arrays]
        self._quota.check_disk(sum(array.nbytes for array in arrays if array is not None))
        sender = {"token_sha256": name.digest(), "key": key}
        origin = {"made_by": "plugstream acquire", "stream": name.scan, "sender": sender, "instrument": told.provenance}
        each = math.prod(instrument.data_shape) * np.dtype(told.dtype).itemsize
        shard = int(np.clip((1 << 20) // each, 1, 64))  # small, since each commit writes the last shard again
        self._writer = ScanWriter(self.out, instrument, dtype=told.dtype, provenance=origin, views_per_shard=shard)
        self.scan, self._digest, self._key = name.scan, name.digest(), key

    def _go_on(self) -> None:
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
            sums = read_sums(scan, scan.n_views)
        except BaseException:
            writer.close()
            raise
        self._writer, self._sums = writer, sums
        self.scan, self._digest, self._key = str(scan.provenance["stream"]), sender["token_sha256"], sender["key"]


def _bytes_of(columns: Mapping[str, NDArray[Any]], name: str) -> bytes | None:
    return columns[name].tobytes() if name in columns else None
