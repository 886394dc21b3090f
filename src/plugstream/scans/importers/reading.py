"""How a file is read as a scan, a few views at a time, and the scan written: what every importer ends with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, StorageError
from plugstream.base.progress import report
from plugstream.base.registry import Field, Options
from plugstream.instruments.base import Instrument
from plugstream.scans.importers.base import ImportResult

__all__ = [
    "Indices",
    "Reading",
    "ViewOptions",
    "choose_views",
    "made_by",
    "name_file",
    "pick_rows",
    "read_blocks",
    "read_each",
    "write_reading",
]

Indices = NDArray[np.int64]

_BLOCK_BYTES = 4 << 20


class ViewOptions(Options):
    """Which views of a file to take."""

    select: str | None = Field(None, description="views to take: START:STOP:STEP, such as 0:180 or 5::10")
    omit: str | None = Field(None, description="views to leave out, such as 5::10, to test the result on later")
    count: int | None = Field(None, ge=1, description="take this many of the remaining views, evenly spaced")


@dataclass(frozen=True)
class Reading:
    """How a file is read as a scan.

    Arguments: instrument; n_views; read, which gives data and columns of a slice of views by name; dtype of the data,
    the instrument's usual one if not given; truth; provenance, what the scan says of its file; remarks, for a person;
    at_once, views that are read and written at once, as many as make a few megabytes if not given.
    """

    instrument: Instrument
    n_views: int
    read: Callable[[slice], dict[str, Any]]
    dtype: str | None = None
    truth: NDArray[Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    at_once: int | None = None


def write_reading(reading: Reading, out: Path) -> ImportResult:
    """Write a scan, of which no more than a few megabytes are in memory; nothing half-written is left behind."""
    from plugstream.scans.writer import ScanWriter, whole_scan

    about: dict[str, Any] = {"dtype": reading.dtype, "provenance": reading.provenance, "truth": reading.truth}
    with whole_scan(out) as partial, ScanWriter(partial, reading.instrument, **about) as writer:
        for rows in read_blocks(reading.n_views, 16 * math.prod(reading.instrument.data_shape), reading.at_once):
            report("importing views", rows.start, reading.n_views)
            writer.append(**reading.read(rows))
        writer.finish()
    return ImportResult(reading.n_views, reading.remarks)


def read_blocks(views: int, view_bytes: int, at_once: int | None = None) -> list[slice]:
    """Which views are read at once, so that a few megabytes are in memory where no number is given."""
    step = at_once or max(1, _BLOCK_BYTES // max(1, view_bytes))
    return [slice(start, min(start + step, views)) for start in range(0, views, step)]


def read_each(
    views: Indices, read: Callable[[int], NDArray[Any]], **columns: NDArray[Any]
) -> Callable[[slice], dict[str, Any]]:
    """What `Reading` reads by, of a file that is read view by view.

    Arguments: views to take; read, the data of one; columns of all views of the file.
    """

    def read_slice(rows: slice) -> dict[str, Any]:
        chosen = views[rows]
        return {"data": np.stack([read(view) for view in chosen.tolist()])} | {
            name: column[chosen] for name, column in columns.items()
        }

    return read_slice


def made_by(importer: str, file: Path, options: Options, **more: Any) -> dict[str, Any]:
    """What a scan says of where it comes from: its importer, file and the options that are not the usual ones."""
    said = {"made_by": f"plugstream import {importer}", "file": file.name}
    return said | {"options": options.model_dump(exclude_defaults=True)} | more


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Let errors within name the file that is imported."""
    try:
        yield
    except InputError as error:
        kind = StorageError if isinstance(error, StorageError) else InputError
        raise error if str(path) in str(error) else kind(f"cannot import {path}: {error}") from error


def choose_views(options: ViewOptions, views: int) -> Indices:
    """Which of so many views the options take, in increasing order."""
    kept = np.ones(views, dtype=bool)
    for words, value in ((options.select, False), (options.omit, True)):
        if words is not None:
            chosen = np.zeros(views, dtype=bool)
            chosen[pick_rows(words, views, "projections")] = True
            kept &= chosen != value
    left: Indices = np.flatnonzero(kept)
    if options.count is not None and options.count > len(left):
        raise InputError(f"{options.count} projections were asked for, but {len(left)} are left")
    if options.count is not None:
        left = left[np.arange(options.count) * len(left) // options.count]
    if len(left) == 0:
        raise InputError("no projection is left to import; change --select or --omit")
    return left


def pick_rows(words: str, count: int, what: str) -> slice | int:
    """A number, or START:STOP:STEP, of `count` rows or views: an index or a slice; what chooses none is refused."""
    parts = words.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or (len(numbers) == 1 and numbers[0] is None):
        raise InputError(f"cannot read {words!r} as {what}; write a number, or START:STOP:STEP such as 0:100 or ::3")
    if len(numbers) == 1:
        index = numbers[0] or 0
        if not -count <= index < count:
            raise InputError(f"there is no {index} among {what}: there are 0 to {count - 1}")
        return index % count
    if len(numbers) == 3 and numbers[2] is not None and numbers[2] < 1:
        raise InputError(f"the step of {words!r} must be at least 1")
    chosen = slice(*numbers)
    if not len(range(count)[chosen]):
        raise InputError(f"{words!r} chooses none of the {count} {what}")
    return chosen
