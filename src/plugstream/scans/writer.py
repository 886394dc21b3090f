"""Writing a scan view by view, while others may be reading it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from plugstream.errors import InputError, StorageError
from plugstream.files import hidden_place, lock_folder, name_target, sync_folder, write_whole
from plugstream.progress import report
from plugstream.scans.chunks import ChunkReader, Layout, encode_shard
from plugstream.scans.geometry import BornGeometry, Setup
from plugstream.scans.layout import FILL, SOURCES, Commit, describe, row_layout
from plugstream.scans.places import LocalFiles
from plugstream.scans.plausible import check_plausible, check_transmitters, warn_if_implausible, warn_of_transmitters
from plugstream.scans.scan import Scan, check_finite, check_truth
from plugstream.scans.store import open_scan, read_attributes

__all__ = ["ScanWriter", "check_views", "difference", "save_scan", "whole_scan"]

# A shard is what a commit writes again while it fills, so it is small; and yet a scan is not a million files.
_SHARD_BYTES = 4 << 20
_MOST_VIEWS = 256


class ScanWriter:
    """Write a scan as it is measured: append views, commit them, and say when there will be no more.

    Readers see committed views only, and see them whole: chunks go to files beside their place that are flushed and
    renamed, then the arrays' new lengths, and last of all commit.json. As many views as a shard has are committed by
    themselves; `commit` commits what there is, and leaving a `with` block without an error does so too. One process
    writes a scan at a time. Where it died, opening the scan again goes on after the last committed view.

        with ScanWriter("scan.zarr", Setup(receivers, wavelength, grid), provenance={"instrument": "..."}) as writer:
            for data, transmitter in instrument:
                writer.append(data[None], transmitters=transmitter[None])
            writer.finish()

    Arguments:
        path: the folder, new, or of a scan that is not finished.
        setup: receivers, wavelength, background and grid; of a `BornGeometry` all but its views is taken. May be left
            out for a scan that exists, and must agree with it otherwise.
        provenance: where the data comes from, anything that JSON can write. Kept from the beginning of a scan.
        truth: the true image (H, W) of a simulated scan.
        views_per_shard: views a file; about 4 MB of them if not given, and at most 256.
    """

    def __init__(
        self,
        path: str | Path,
        setup: Setup | BornGeometry | None = None,
        *,
        provenance: Mapping[str, Any] | None = None,
        truth: NDArray[np.float32] | None = None,
        views_per_shard: int | None = None,
    ) -> None:
        if views_per_shard is not None and views_per_shard < 1:
            raise InputError(f"a shard needs at least one view, not {views_per_shard}")
        setup = Setup.of(setup) if isinstance(setup, BornGeometry) else setup
        self.path = Path(path)
        self._columns: dict[str, _Column] = {}
        self._complete = False
        self._lock: int | None = None
        try:
            if self.path.exists():
                self._continue(setup, views_per_shard)
            elif setup is None:
                raise InputError(f"there is no scan at {self.path}; to begin one give its setup")
            else:
                self._create(setup, provenance or {}, truth, views_per_shard)
        except OSError as error:
            raise StorageError(f"cannot write the scan {self.path}: {error.strerror or error}") from error

    @property
    def committed(self) -> int:
        """The number of views that readers see."""
        return self._commit.views

    @property
    def appended(self) -> int:
        """The number of views, with those that are not committed yet."""
        return self._columns["data"].views

    def append(
        self,
        data: ArrayLike,
        transmitters: ArrayLike | None = None,
        *,
        plane_waves: ArrayLike | None = None,
        fields: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> None:
        """Add views after those that are there; as many as a shard has are committed.

        Arguments: data (B, receivers), finite but where mask is False; one of transmitters (B, 2), plane_waves (B, 2)
        and fields (B, H, W), the same one for all of the scan; mask (B, receivers), False where a receiver did not
        record. A bad view is refused with nothing added.
        """
        if self._complete:
            raise InputError(f"the scan {self.path} is finished; no view can be added")
        sources = {"transmitters": transmitters, "plane_waves": plane_waves, "fields": fields}
        self.append_checked(check_views(self.setup, data, sources, mask, self.appended))

    def append_checked(self, columns: dict[str, NDArray[Any]]) -> None:
        """As `append`, of columns that `check_views` has returned: data first, its source second."""
        source, want = list(columns)[1], columns["data"].shape
        if source == "transmitters" and self.appended == 0:
            warn_of_transmitters(columns[source], self.setup)
        before = [name for name in SOURCES if name in self._columns]
        if before not in ([], [source]):
            raise InputError(f"the scan {self.path} has {before[0]}, so {source} cannot be added to it")
        if "mask" in self._columns:
            columns.setdefault("mask", np.ones(want, dtype=bool))
        with self._guarded():
            if "mask" in columns and "mask" not in self._columns and self.appended:
                self._add_column("mask").append(np.ones((self.appended, want[1]), dtype=bool))
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
        self._complete = True

    def close(self) -> None:
        """Let others write; views that were not committed are lost."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            write_whole(self.path / "commit.json", [commit.encode()])
            sync_folder(self.path)
        self._commit = commit

    def _create(
        self,
        setup: Setup,
        provenance: Mapping[str, Any],
        truth: NDArray[np.float32] | None,
        views_per_shard: int | None,
    ) -> None:
        if not self.path.parent.is_dir():
            raise InputError(f"the folder {self.path.parent} does not exist; make it first")
        check_plausible(setup)
        warn_if_implausible(setup)
        if truth is not None:
            check_truth(truth, setup.grid)
        scan_id = uuid.uuid4().hex
        try:
            attributes = describe(setup, provenance, scan_id)
            group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
            text = json.dumps(group, indent=1, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise InputError(f"the provenance cannot be written as JSON: {error}") from error
        partial = hidden_place(self.path)
        try:
            partial.mkdir()
            self._lock = lock_folder(partial, f"the scan {self.path}")
            self._fixed = ("receivers",) if truth is None else ("receivers", "truth")
            self.setup, self._commit = setup, Commit(0, False, (*self._fixed, "data"))
            self._views_per_shard = views_per_shard or _views_per_shard(8 * len(setup.receivers))
            write_whole(partial / "zarr.json", [text])
            _write_array(partial / "receivers", setup.receivers)
            if truth is not None:
                _write_array(partial / "truth", np.asarray(truth, dtype=np.float32))
            self._add_column("data", partial).write_length()
            write_whole(partial / "commit.json", [self._commit.encode()])
            sync_folder(partial)
            partial.rename(self.path)
            for column in self._columns.values():
                column.folder = self.path / column.name
            sync_folder(self.path.parent)
        except BaseException:
            self.close()
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _continue(self, setup: Setup | None, views_per_shard: int | None) -> None:
        attributes = read_attributes(self.path, LocalFiles(self.path))
        if attributes["version"] < 3:
            raise InputError(f"{self.path} is a scan of version {attributes['version']}, which nothing can be added to")
        self._lock = lock_folder(self.path, f"the scan {self.path}")
        try:
            scan = open_scan(self.path)
            if scan.complete:
                raise InputError(f"the scan {self.path} is finished; no view can be added, so choose another name")
            if setup is not None and (name := difference(setup, scan.setup)):
                raise InputError(
                    f"the scan {self.path} was begun with other {name}; choose another name, or give no setup"
                )
            self.setup, self._commit = scan.setup, Commit(scan.n_views, complete=False)
            self._fixed = ("receivers",) if scan.truth is None else ("receivers", "truth")
            layout, _ = Layout.parse(LocalFiles(self.path).load("data/zarr.json"))
            if views_per_shard not in (None, layout.shard):
                raise InputError(f"the scan {self.path} has {layout.shard} views a shard, not {views_per_shard}")
            self._views_per_shard = layout.shard
            for name in ("data", "mask", *SOURCES):
                if not (self.path / name / "zarr.json").exists():
                    continue
                if name != "data" and scan.n_views == 0:  # of a writer that died before its first commit
                    shutil.rmtree(self.path / name)
                    continue
                column = self._add_column(name)
                if Layout.parse(LocalFiles(self.path).load(f"{name}/zarr.json"))[0] != column.layout:
                    raise InputError(
                        f"{name} of the scan {self.path} lies in other chunks than plugstream writes, so no view is "
                        "added; copy it with save_scan and go on with the copy"
                    )
                column.resume(scan.n_views)
        except BaseException:
            self.close()
            raise

    def _add_column(self, name: str, where: Path | None = None) -> _Column:
        if name not in self._columns:
            receivers = len(self.setup.receivers)
            row = {"data": (receivers,), "mask": (receivers,), "fields": self.setup.grid.shape}.get(name, (2,))
            layout = row_layout(name, row, self._views_per_shard)
            self._columns[name] = _Column((where or self.path) / name, layout)
        return self._columns[name]


def check_views(
    setup: Setup, data: ArrayLike, sources: Mapping[str, ArrayLike | None], mask: ArrayLike | None, first: int
) -> dict[str, NDArray[Any]]:
    """The columns of views as a scan has them, data first, its source second; views that no scan can have are refused.

    Arguments: as of `ScanWriter.append`, with the sources by name; first, the number of the first of these views.
    """
    present = {name: np.asarray(value) for name, value in sources.items() if value is not None}
    geometry = setup.geometry(**present, mask=None if mask is None else np.asarray(mask))
    if geometry.transmitters is not None:
        check_transmitters(geometry.transmitters, setup)
    rows = np.asarray(data)
    want = (geometry.n_views, geometry.n_receivers)
    if rows.shape != want:
        raise InputError(f"data has shape {rows.shape}, but with these positions it must be (B, receivers) = {want}")
    with np.errstate(over="ignore"):  # what complex64 cannot hold becomes infinite, and is refused
        rows = np.ascontiguousarray(rows, dtype=np.complex64)
    check_finite(torch.from_numpy(rows), geometry.mask, first)
    (source,) = present
    columns = {"data": rows, source: getattr(geometry, source)}
    return columns if geometry.mask is None else {**columns, "mask": geometry.mask[:]}


class _Column:
    """One array with a row for each view; full shards are written at once, and the last one by `flush`."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder, self.name, self.layout = folder, folder.name, layout
        self.views = 0
        self._tail: list[NDArray[Any]] = []
        self._written = 0  # views whose shards are on the disk as they are now
        self._length = -1  # what zarr.json says

    def resume(self, views: int) -> None:
        """Go on after this many views: those of the last shard, if it is not full, are read back."""
        self.views = self._written = views
        first = views - views % self.layout.shard
        if first < views:
            reader = ChunkReader(LocalFiles(self.folder.parent), self.name, self.layout)
            self._tail = [reader.read(np.arange(first, views))]

    def append(self, rows: NDArray[Any]) -> None:
        self._tail.append(np.array(rows, dtype=self.layout.dtype))
        self.views += len(rows)
        if sum(map(len, self._tail)) >= self.layout.shard:
            self._write(full_only=True)

    def flush(self) -> None:
        if self._written < self.views:
            self._write(full_only=False)

    def write_length(self) -> None:
        if self._length != self.views:
            attributes = {"axes": ["view", "receiver"]} if self.name in ("data", "mask") else {}
            text = self.layout.metadata(self.views, FILL[self.layout.dtype.name], attributes)
            self.folder.mkdir(exist_ok=True)
            write_whole(self.folder / "zarr.json", [text])
            sync_folder(self.folder)
            self._length = self.views

    def _write(self, *, full_only: bool) -> None:
        rows = np.concatenate(self._tail)
        first = self.views - len(rows)  # a whole number of shards
        fill = False if self.layout.dtype == np.bool_ else np.nan
        while len(rows) >= self.layout.shard or (len(rows) and not full_only):
            some, rows = rows[: self.layout.shard], rows[self.layout.shard :]
            path = self.folder / self.layout.file(first // self.layout.shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, encode_shard(self.layout, some, fill))
            sync_folder(path.parent)
            first += len(some)
            self._written = first
            if len(some) < self.layout.shard:
                rows = some
                break
        sync_folder(self.folder / "c")
        self._tail = [rows] if len(rows) else []


def save_scan(scan: Scan, path: str | Path) -> None:
    """Write a scan as a new folder; one that exists is refused, and nothing half-written is left behind.

    Arguments: scan, in memory or itself stored (then copied block by block); path, usually named something.zarr.
    """
    target, geometry = Path(path), scan.geometry
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    if not target.parent.is_dir():
        raise InputError(f"the folder {target.parent} does not exist; make it first")
    per_shard = min(_views_per_shard(8 * geometry.n_receivers), geometry.n_views)
    truth = None if scan.truth is None else np.asarray(scan.truth)
    with (
        whole_scan(target) as partial,
        ScanWriter(partial, geometry, provenance=scan.provenance, truth=truth, views_per_shard=per_shard) as writer,
    ):
        for start in range(0, geometry.n_views, per_shard):
            report("writing the scan", start, geometry.n_views)
            views = torch.arange(start, min(start + per_shard, geometry.n_views))
            some = geometry.with_views(views.numpy())
            data = scan.read(views).numpy()  # first, since masks and fields on a disk are read with it
            rows = {name: getattr(some, name) for name in (*SOURCES, "mask")}
            writer.append(data, **{name: None if value is None else value[:] for name, value in rows.items()})
        writer.finish()


@contextmanager
def whole_scan(target: Path) -> Iterator[Path]:
    """A place beside `target` to write a scan to, which becomes the target when the block is left without an error.

    Otherwise nothing half-written is left behind, and a disk that failed is told in one line that names the target.
    What a process leaves that was killed is never taken for ours, though a later process may have its number.
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


def _views_per_shard(view_bytes: int) -> int:
    return int(min(_MOST_VIEWS, max(1, _SHARD_BYTES // view_bytes)))


def _write_array(folder: Path, values: NDArray[Any]) -> None:
    """An array that is known at once, as one shard."""
    layout = Layout(values.dtype, values.shape[1:], len(values), len(values))
    path = folder / layout.file(0)
    path.parent.mkdir(parents=True)
    write_whole(path, encode_shard(layout, values, 0))
    write_whole(folder / "zarr.json", [layout.metadata(len(values), FILL[values.dtype.name], {})])


def difference(given: Setup, found: Setup) -> str:
    """What tells two setups apart, or nothing."""
    if not np.array_equal(given.receivers, found.receivers):
        return "receivers"
    names = ("wavelength", "grid", "background", "far_field")
    return next((name for name in names if getattr(given, name) != getattr(found, name)), "")
