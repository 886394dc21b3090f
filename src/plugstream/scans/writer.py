"""Writing a scan view by view, while others may be reading it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import hidden_place, lock_folder, name_target, rename_locked, sync_folder, write_whole
from plugstream.base.progress import report
from plugstream.instruments.base import Column, Data, Instrument
from plugstream.instruments.born import InstrumentLike, instrument_parts
from plugstream.scans.checks import check_continuation, check_truth, check_views, data_bytes, fixed_arrays
from plugstream.scans.chunks import ColumnWriter, Marks, write_array
from plugstream.scans.layout import Commit, Layout, array_attributes, describe, is_packed
from plugstream.scans.places import LocalFiles
from plugstream.scans.scan import Scan, stored_dtype
from plugstream.scans.store import open_scan

# A shard is what a commit writes again while it fills, so it is small; and yet a scan is not a million files.
_SHARD_BYTES = 4 << 20
_MOST_VIEWS = 256
_PACKED_ROWS = 4096  # rows of a few numbers in a file


class ScanWriter:
    """Write a scan as it is measured: append views, commit them, and say when there will be no more.

    Readers see committed views only, and see them whole: chunks go to files beside their place that are flushed and
    renamed, then the arrays' new lengths, and last of all commit.json. A full shard is committed by itself; `commit`
    commits all views so far, and so does leaving a `with` block without an error. One process writes a scan at a time.
    If it died, opening the scan again goes on after the last committed view.

        with ScanWriter("scan.zarr", instrument, provenance={"operator": "..."}) as writer:
            for data, angle in measure():
                writer.append(data[None], angle=[angle])
            writer.finish()

    Arguments:
        path: the folder, new, or of a scan that is not finished.
        instrument: with its fixed arrays and attributes; of a geometry all but its views is taken. May be left
            out for a scan that exists, and must agree with it otherwise.
        dtype: of the data on the disk, one that the instrument has; its usual one if not given.
        provenance: where the data comes from, anything that JSON can write. Kept from the beginning of a scan.
        truth: the true image of a simulated scan, in the shape of the instrument's images.
        views_per_shard: views a file; about 4 MB of them if not given, and at most 256.
    """

    def __init__(
        self,
        path: str | Path,
        instrument: InstrumentLike | None = None,
        *,
        dtype: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        truth: NDArray[Any] | None = None,
        views_per_shard: int | None = None,
    ) -> None:
        if views_per_shard is not None and views_per_shard < 1:
            raise InputError(f"a shard needs at least one view, not {views_per_shard}")
        device = None if instrument is None else instrument_parts(instrument)[0]
        self.path = Path(path)
        self._columns: dict[str, ColumnWriter] = {}
        self._lock: int | None = None
        try:
            if self.path.exists():
                self._continue(device, dtype, views_per_shard)
            elif device is None:
                raise InputError(f"there is no scan at {self.path}; to begin one give its instrument")
            else:
                self._create(device, dtype, provenance or {}, truth, views_per_shard)
        except OSError as error:
            raise StorageError(f"cannot write the scan {self.path}: {error.strerror or error}") from error

    @property
    def committed(self) -> int:
        """The number of views that readers see."""
        return self._commit.views

    @property
    def finished(self) -> bool:
        """Whether readers know that there will be no more views."""
        return self._commit.complete

    @property
    def appended(self) -> int:
        """The number of views, including those that are not committed yet."""
        return self._columns["data"].views

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that the views have besides data; none before the first view."""
        return tuple(name for name in self._columns if name != "data")

    def append(self, data: ArrayLike, *rows: ArrayLike | None, **columns: ArrayLike | None) -> None:
        """Add views after the last; a full shard is committed.

        Arguments: data (B, *data_shape), finite except where a column such as a mask says that it does not count;
        columns (B, *row) by name, as the instrument declares them, the same ones for all of the scan; those without a
        name are the first ones declared. A new optional one has its default for earlier views. A bad view is refused
        with nothing added.
        """
        if self.finished:
            raise InputError(f"the scan {self.path} is finished; no view can be added")
        self.append_checked(check_views(self.instrument, data, rows, columns, self.appended, self.dtype))

    def append_checked(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """As `append`, of columns that `check_views` has returned, with data first."""
        instrument, before = self.instrument, self.column_names
        if self.appended == 0:
            instrument.warn_if_implausible(columns)
        else:
            check_continuation(instrument, f"the scan {self.path}", before, columns)
        with self._guarded():
            for column in instrument.columns:
                if column.optional and self.appended and (column.name in before) != (column.name in columns):
                    count = self.appended if column.name in columns else len(columns["data"])
                    shape = (count, *instrument.row_shape(column))
                    self._add_column(column.name).append(np.full(shape, column.default, dtype=column.dtype))
            for name, values in columns.items():
                self._add_column(name).append(values)
            if self.appended - self.committed >= self._views_per_shard:
                self.commit()

    def commit(self) -> None:
        """Let readers see every view that was appended; when this returns they are safe on the disk."""
        if self.appended > self.committed:
            self._write(complete=False)

    def finish(self) -> None:
        """Commit, and tell readers that there will be no more views."""
        if self.appended == 0:
            raise InputError(f"the scan {self.path} has no views, so it cannot be finished")
        self._write(complete=True)

    def close(self) -> None:
        """Let others write; views that were not committed are lost."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """An error of the disk becomes one line and closes the writer, since what it holds may be half of a view."""
        if self._lock is None:
            raise _UnwrittenError(f"the writer of {self.path} is closed; open the scan again to go on")
        try:
            yield
        except OSError as error:
            self.close()
            raise _UnwrittenError(
                f"cannot write the scan {self.path}: {error.strerror or error}; fix that, and open it again to go on "
                f"after its {self.committed} views"
            ) from error

    def _write(self, *, complete: bool) -> None:
        commit = Commit(self.appended, complete, (*self._fixed, *sorted(self._columns)))
        with self._guarded():
            for column in self._columns.values():
                column.flush()
            for column in self._columns.values():
                column.write_length()
            try:
                write_whole(self.path / "commit.json", [commit.encode()])
                sync_folder(self.path)
                self._commit = commit
            except BaseException:  # Ctrl-C, say, after the rename: what readers see is what counts
                with suppress(OSError, InputError):
                    self._commit = Commit.parse(LocalFiles(self.path).load("commit.json"))
                raise

    def _create(
        self,
        instrument: Instrument,
        dtype: str | None,
        provenance: Mapping[str, Any],
        truth: NDArray[Any] | None,
        views_per_shard: int | None,
    ) -> None:
        if not self.path.parent.is_dir():
            raise InputError(f"the folder {self.path.parent} does not exist; make it first")
        self.instrument, self.dtype = instrument, dtype or instrument.data.dtypes[0]
        if self.dtype not in instrument.data.dtypes:
            dtypes = " or ".join(instrument.data.dtypes)
            raise InputError(f"data of {instrument.name} is stored as {dtypes}, not {self.dtype}")
        instrument.check_plausible()
        instrument.warn_if_implausible()
        image, fixed = instrument.image, fixed_arrays(instrument)
        truth = None if truth is None else check_truth(truth, image)
        scan_id = uuid.uuid4().hex
        try:
            attributes = describe(instrument, provenance, scan_id, self.dtype)
            group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
            text = json.dumps(group, indent=1, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise InputError(f"the provenance cannot be written as JSON: {error}") from error
        partial = hidden_place(self.path)
        try:
            partial.mkdir()
            self._lock = lock_folder(partial, f"the scan {self.path}")
            self._id: str | None = scan_id
            self._fixed = (*fixed, *(() if truth is None else ("truth",)))
            self._commit = Commit(0, False, (*self._fixed, "data"))
            self._views_per_shard = views_per_shard or _views_per_shard(instrument, self.dtype)
            write_whole(partial / "zarr.json", [text])
            for array in instrument.arrays:
                if array.name in fixed:
                    about = array_attributes(array)
                    write_array(partial / array.name, fixed[array.name], self._marks(array.name), about)
            if truth is not None:
                axes = [*["channel"] * image.channels, *image.axes]
                about = {"axes": axes, "unit": image.value_unit, "meaning": image.quantity}
                write_array(partial / "truth", truth, self._marks("truth"), about)
            self._add_column("data", partial).write_length()
            write_whole(partial / "commit.json", [self._commit.encode()])
            sync_folder(partial)
            self._lock = rename_locked(self._lock, partial, self.path, f"the scan {self.path}")
            for column in self._columns.values():
                column.folder = self.path / column.name
            sync_folder(self.path.parent)
        except BaseException:
            self.close()
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _continue(self, instrument: Instrument | None, dtype: str | None, views_per_shard: int | None) -> None:
        scan = open_scan(self.path)  # before it is locked, since a folder that is no scan gets no lock
        self._lock = lock_folder(self.path, f"the scan {self.path}")
        try:
            scan.refresh()
            if scan.complete:
                raise InputError(f"the scan {self.path} is finished; no view can be added, so choose another name")
            if instrument is not None and (name := instrument.difference(scan.instrument)):
                raise InputError(
                    f"the scan {self.path} was begun with other {name}; choose another name, or give no instrument"
                )
            if dtype not in (None, scan.dtype.name):
                raise InputError(f"the scan {self.path} was begun with data of {scan.dtype}, not {dtype}")
            self.instrument, self._commit = scan.instrument, Commit(scan.n_views, complete=False)
            self.dtype = scan.dtype.name
            self._id = scan.id if scan.marked else None
            self._fixed = (*fixed_arrays(scan.instrument), *(() if scan.truth is None else ("truth",)))
            self._views_per_shard = scan.layout("data")[0].shard
            if views_per_shard not in (None, self._views_per_shard):
                shard = self._views_per_shard
                raise InputError(f"the scan {self.path} has {shard} views a shard, not {views_per_shard}")
            for name in ("data", *(column.name for column in self.instrument.columns)):
                if not (self.path / name / "zarr.json").exists():
                    continue
                if name != "data" and scan.n_views == 0:  # a writer died before its first commit
                    shutil.rmtree(self.path / name)
                    continue
                column = self._add_column(name)
                if scan.layout(name)[0] != column.layout:
                    raise InputError(
                        f"{name} of the scan {self.path} lies in other chunks than plugstream writes, so no view is "
                        "added; copy it with save_scan and go on with the copy"
                    )
                column.resume(scan.n_views)
        except BaseException:
            self.close()
            raise

    def _add_column(self, name: str, parent: Path | None = None) -> ColumnWriter:
        if name not in self._columns:
            instrument, packed = self.instrument, False
            declared: Data | Column = instrument.data
            dtype, row = self.dtype, instrument.data_shape
            if name != "data":
                declared = column = instrument.column(name)
                dtype, row, packed = column.dtype, instrument.row_shape(column), is_packed(column)
            # A chunk a view, so that damage costs one view; rows of a few numbers share a file, written until full.
            sizes = (_PACKED_ROWS, _PACKED_ROWS) if packed else (1, self._views_per_shard)
            layout, about = Layout(np.dtype(dtype), row, *sizes), array_attributes(declared, "view")
            self._columns[name] = ColumnWriter((parent or self.path) / name, layout, self._marks(name), about)
        return self._columns[name]

    def _marks(self, name: str) -> Marks | None:
        return None if self._id is None else Marks(self._id, name)


def save_scan(scan: Scan, path: str | Path) -> None:
    """Write a scan as a new folder; one that exists is refused, and nothing half-written is left behind.

    Arguments: scan, in memory or itself stored (then copied block by block); path, usually named something.zarr.
    """
    target, instrument, columns = Path(path), scan.instrument, scan.columns
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    if not target.parent.is_dir():
        raise InputError(f"the folder {target.parent} does not exist; make it first")
    dtype = stored_dtype(scan)
    per_shard = min(_views_per_shard(instrument, dtype), scan.n_views)
    truth = None if scan.truth is None else np.asarray(scan.truth)
    with (
        whole_scan(target) as partial,
        ScanWriter(
            partial, instrument, dtype=dtype, provenance=scan.provenance, truth=truth, views_per_shard=per_shard
        ) as writer,
    ):
        for start in range(0, scan.n_views, per_shard):
            report("writing the scan", start, scan.n_views)
            views = torch.arange(start, min(start + per_shard, scan.n_views))
            data = scan.read(views).numpy()  # first, since columns on a disk are read with it
            writer.append(data, **{name: rows[views.numpy()] for name, rows in columns.items()})
        writer.finish()


@contextmanager
def whole_scan(target: Path) -> Iterator[Path]:
    """A place beside `target` to write a scan to, which becomes the target when the block is left without an error.

    Otherwise nothing half-written is left behind, and an error of the disk is one line that names the target. What a
    killed process leaves is never taken for ours.
    """
    partial = hidden_place(target)
    try:
        with name_target(partial, target):
            yield partial
        partial.rename(target)
    except (OSError, _UnwrittenError) as error:
        cause = error.__cause__ if isinstance(error, _UnwrittenError) else error
        raise StorageError(f"cannot write the scan {target}: {getattr(cause, 'strerror', None) or cause}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _UnwrittenError(StorageError):
    """The disk did not take what was to be written."""


def _views_per_shard(instrument: Instrument, dtype: str) -> int:
    return int(min(_MOST_VIEWS, max(1, _SHARD_BYTES // data_bytes(instrument, dtype))))
