"""Reading a file as a scan, a few views at a time, and writing the scan: how every importer ends."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import read_small
from plugstream.base.progress import report
from plugstream.base.registry import Field, Options
from plugstream.instruments.base import Instrument
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.growth import NotYetError
from plugstream.scans.streams.address import Address

Indices = NDArray[np.int64]
N = TypeVar("N", int, float)

_BLOCK_BYTES = 4 << 20
_MANY = 1 << 20  # views that a recording may grow to


class ViewOptions(Options):
    """Which views of a file to take."""

    select: str | None = Field(None, description="views to take: START:STOP:STEP, such as 0:180 or 5::10")
    omit: str | None = Field(None, description="views to leave out, such as 5::10 or 7,9, to test the result on later")
    count: int | None = Field(None, ge=1, description="take this many of the remaining views, evenly spaced")


@dataclass(frozen=True)
class Reading:
    """How a file is read as a scan.

    Arguments: instrument; n_views; read, which gives data and columns of a slice of views by name; dtype of the data,
    by default the instrument's; truth; provenance, what the scan says of its file; remarks for a person, which may
    grow while views are read; at_once, views that are read and written at once, by default a few megabytes of them.
    """

    instrument: Instrument
    n_views: int
    read: Callable[[slice], dict[str, Any]]
    dtype: str | None = None
    truth: NDArray[Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    at_once: int | None = None


def write_reading(reading: Reading, out: Path) -> ImportResult:
    """Write a scan with a few megabytes of it in memory; a failure leaves nothing behind."""
    from plugstream.scans.writer import ScanWriter, whole_scan

    about: dict[str, Any] = {"dtype": reading.dtype, "provenance": reading.provenance, "truth": reading.truth}
    with whole_scan(out) as partial, ScanWriter(partial, reading.instrument, **about) as writer:
        for rows in read_blocks(reading.n_views, 16 * math.prod(reading.instrument.data_shape), reading.at_once):
            report("importing views", rows.start, reading.n_views)
            writer.append(**reading.read(rows))
        writer.finish()
    return ImportResult(reading.n_views, tuple(reading.remarks))


def read_blocks(views: int, view_bytes: int, at_once: int | None = None) -> list[slice]:
    """Slices of views to read at once: `at_once` of them, or a few megabytes."""
    step = at_once or max(1, _BLOCK_BYTES // max(1, view_bytes))
    return [slice(start, min(start + step, views)) for start in range(0, views, step)]


def write_each(
    out: Path,
    instrument: Instrument,
    options: ViewOptions,
    read: Callable[[int], NDArray[Any]],
    columns: Mapping[str, NDArray[Any]],
    *,
    dtype: str | None = None,
    provenance: Mapping[str, Any],
    remarks: Sequence[str] = (),
) -> ImportResult:
    """Write a scan of a file that is read view by view.

    Arguments: out, the scan; instrument; options, which choose the views; read, the data of one view; columns of all
    views of the file; the rest as of `Reading`.
    """
    views = choose_views(options, len(next(iter(columns.values()))))

    def read_slice(rows: slice) -> dict[str, Any]:
        data = np.stack([read(view) for view in views[rows].tolist()])
        return {"data": data, **{name: column[views[rows]] for name, column in columns.items()}}

    return write_reading(Reading(instrument, len(views), read_slice, dtype, None, provenance, remarks, 1), out)


def made_by(importer: str, file: Path | Address, options: Options, **more: Any) -> dict[str, Any]:
    """The provenance of a scan: its importer, file and the options that are not the default."""
    origin = {"made_by": f"plugstream import {importer}", "file": file.name}
    return origin | {"options": options.model_dump(exclude_defaults=True)} | more


@contextmanager
def name_file(path: Path | Address) -> Iterator[None]:
    """Let errors within name the file that is imported."""
    try:
        yield
    except InputError as error:
        kind = StorageError if isinstance(error, StorageError) else InputError
        raise (
            error
            if str(path) in str(error) or isinstance(error, NotYetError)
            else kind(f"cannot import {path}: {error}")
        ) from error


def choose_views(options: ViewOptions, views: int, *, growing: bool = False) -> Indices:
    """Which of so many views the options take, in increasing order.

    Of views that will become more, those are taken that will be among them, and there may be none yet.
    """
    if growing:
        if options.count is not None or "-" in f"{options.select}{options.omit}":
            raise InputError("--count, and numbers from the end, need all views, and this recording still grows")
        later = choose_views(options, max(views, _MANY))
        return later[later < views]
    chosen = np.ones(views, dtype=bool)
    for words, value in ((options.select, True), (options.omit, False)):
        if words is not None:
            listed = np.full(views, not value)
            for part in words.split(","):
                listed[pick_rows(part, views, "projections")] = value
            chosen &= listed
    rest: Indices = np.flatnonzero(chosen)
    if options.count is not None and options.count > len(rest):
        raise InputError(f"{options.count} projections were asked for, but {len(rest)} are left")
    if len(rest) == 0:
        raise InputError("no projection is left to import; change --select or --omit")
    return rest if options.count is None else rest[np.arange(options.count) * len(rest) // options.count]


def middle_window(shape: Sequence[int], crop: int | None) -> tuple[slice, ...]:
    """Along each axis the `crop` indices around the middle; all of an axis that is shorter."""
    sizes = [min(crop or n, n) for n in shape]
    return tuple(slice((n - size) // 2, (n - size) // 2 + size) for n, size in zip(shape, sizes, strict=True))


def parse_pair(text: str, number: type[N], advice: str) -> tuple[N, N]:
    """Two numbers with a comma between them. Arguments: text; number, their type; advice, the error where it fails."""
    try:
        first, second = (number(word) for word in text.split(","))
    except ValueError:
        raise InputError(advice) from None
    return first, second


def spread_angles(arc: float, views: int) -> NDArray[np.float64]:
    """Angles in radians of so many views over an arc in degrees, from 0, its end left out."""
    return np.asarray(np.deg2rad(arc) * np.arange(views) / views)


def read_toml(path: Path, noun: str = "") -> dict[str, Any]:
    """A TOML file. Arguments: path; noun, what to call it in the message."""
    try:
        return tomllib.loads(read_small(path))
    except OSError as error:
        raise InputError(f"cannot read {noun}{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, lists thousands deep
        raise InputError(f"{path} is not TOML: {error}") from error


def pick_rows(words: str, count: int, noun: str) -> slice | int:
    """An index, or the slice START:STOP:STEP, of `count` rows or views; an empty slice is refused."""
    try:
        numbers = [int(part) if part.strip() else None for part in words.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] is not None:
        index = numbers[0]
        if not -count <= index < count:
            raise InputError(f"there is no {index} among {noun}: there are 0 to {count - 1}")
        return index % count
    if not 2 <= len(numbers) <= 3:
        raise InputError(f"cannot read {words!r} as {noun}; write a number, or START:STOP:STEP such as 0:100 or ::3")
    if len(numbers) == 3 and numbers[2] is not None and numbers[2] < 1:
        raise InputError(f"the step of {words!r} must be at least 1")
    chosen = slice(*numbers)
    if not len(range(count)[chosen]):
        raise InputError(f"{words!r} chooses none of the {count} {noun}")
    return chosen
