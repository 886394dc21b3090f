"""Scans from HDF5 files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plugstream.base.capacity import check_claim
from plugstream.base.errors import InputError
from plugstream.base.registry import register
from plugstream.base.trust import OutsideError, trusting
from plugstream.scans.importers.arrays import (
    ARRAY_FACTS,
    ArrayOptions,
    build_scan,
    describe_arrays,
    import_opened,
    read_opened,
)
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.growth import Growth, NotYetError
from plugstream.scans.importers.hdf5_filters import CheckedChunks, check_filters, check_sizes
from plugstream.scans.importers.hdf5_growth import WrittenRows, is_cut_off, writer_state
from plugstream.scans.importers.reading import Reading
from plugstream.scans.importers.source import Source, first_line, open_error, read_head

if TYPE_CHECKING:
    from plugstream.scans.importers.hdf5_storage import LinkedFiles


SIGNATURE = b"\x89HDF\r\n\x1a\n"


def import_hdf5(
    path: str | Path,
    out: str | Path,
    mapping: Mapping[str, Any],
    *,
    instrument: str = "born-2d",
    trust: bool = False,
    **options: Any,
) -> int:
    """Write a scan from an HDF5 file of any layout, some views at a time, and return the number of views.

    Holds for fields stored as complex numbers, as records of real and imaginary part, as a last axis of two, or as two
    arrays; see `import_opened`. Arrays that were never written, which HDF5 reads as zeros, are refused, and so are
    arrays in other files that are too short, or outside the file's folder.

    Arguments: path of the file; out, the scan to make; mapping from our names to paths such as /entry/data, or
    /entry@name for an attribute, or for values to numbers; instrument, by name or FILE.py:NAME; trust, whether other
    files that this one names may be read wherever they are; options of the instrument's reader, for born-2d those of
    `plugstream.scans.importers.born.BornImport`.
    """
    with trusting(trust):
        return import_opened(open_hdf5(Path(path)), out, mapping, instrument, options)


@contextmanager
def open_hdf5(path: Path, container: str = "HDF5", growth: Growth | None = None) -> Iterator[Source]:
    """The file's arrays by their paths, those in other files by the rules of `hdf5_storage`.

    Every importer opens HDF5 here. Arguments: path; container, the name of this kind of file; growth, of a file that
    may still be written: its arrays have the rows that are there (`hdf5_growth`).
    """
    import h5py

    from plugstream.scans.importers.hdf5_storage import LinkedFiles, open_shared

    path = Path(path)
    if growth is not None and is_cut_off(path):
        growth.wait(f"{path} is cut off")
    if growth is not None and writer_state(path) == "open":
        growth.wait(f"the writer of {path} does not share it (SWMR mode), so it can be read once it is closed")
    try:
        file = h5py.File(path.absolute(), "r") if growth is None else open_shared(path.absolute())
    except Exception as error:  # a damaged file raises many kinds
        if growth is not None and not growth.final:
            raise NotYetError(f"{path} cannot be opened yet: {first_line(error)}") from error
        raise open_error(path, error, "HDF5") from error
    with file, ExitStack() as stack:
        linked = LinkedFiles(path.absolute(), file, stack, swmr=growth is not None)
        yield _Hdf5(path, file, linked, container, growth)


class _Dataset:
    """A dataset, read by slicing; a damaged one raises many kinds of errors in h5py, and here one line."""

    def __init__(self, dataset: Any, name: str, path: Path, written: WrittenRows | None = None) -> None:
        self.dataset, self.name, self.path, self._written = dataset, name, path, written
        self.shape, self.dtype, self.attrs = dataset.shape, dataset.dtype, dataset.attrs
        self.ndim, self._chunks = len(self.shape or ()), CheckedChunks(dataset)
        if written is not None:
            self.shape = (written.rows, *self.shape[1:])

    def __getitem__(self, rows: Any) -> Any:
        key = rows if self._written is None else self._written.limit(rows)
        try:
            if self.shape:
                count = np.broadcast_to(np.int8(0), self.dataset.shape)[key].size  # which takes no memory
                held = self.dataset.id.get_storage_size() * count // max(1, self.dataset.size)
                check_claim(count * self.dtype.itemsize, held, "it")
                self._chunks.check(key)
            values = self.dataset[key]
        except Exception as error:
            where = f" from row {rows.start or 0}" if isinstance(rows, slice) else ""
            raise InputError(f"{self.name} of {self.path} cannot be read{where}: {first_line(error)}") from error
        if self._written is not None:
            self._written.check(key, values)
        return values


class _Hdf5(Source):
    def __init__(self, path: Path, file: Any, linked: LinkedFiles, container: str, growth: Growth | None) -> None:
        super().__init__(path)
        self.file, self.linked, self.container, self.growth = file, linked, container, growth

    def find(self, name: str) -> Any:
        place, separator, attribute = name.partition("@")
        with self._guarded(name):
            item = self.linked.find(place)
            if separator:
                return None if item is None else item.attrs.get(attribute)
            if not hasattr(item, "dtype"):
                return item
            check_filters(item, name, self.path)
            check_sizes(item, self.linked.shape(item))
            written = None
            if self.growth is not None and item.shape and not item.is_virtual and item.external is None:
                written = WrittenRows(item, name, self.growth)
            lack = self.linked.lack(item) if written is None else ""
        if lack:
            if self.growth is not None:
                self.growth.wait(f"{name} of {self.path} is not written as a whole yet: {lack}")
            raise InputError(f"{name} of {self.path} was never written as a whole: {lack}; HDF5 would give zeros there")
        return _Dataset(item, name, self.path, written)

    def attribute(self, name: str, array: str | None) -> Any:
        item = self.file if array is None else self.find(array)
        with self._guarded(name):
            return None if item is None else getattr(item, "attrs", {}).get(name)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """A damaged header, or a broken link, raises many kinds of errors in h5py, and here one line."""
        try:
            yield
        except Exception as error:
            raise InputError(f"{name} of {self.path} cannot be read: {first_line(error)}") from error

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        rows: list[tuple[str, tuple[int, ...], str]] = []

        def visit(name: str, item: Any) -> None:
            if hasattr(item, "dtype"):
                rows.append((f"/{name}", self.linked.shape(item), self.linked.kind(item)))
            for key, value in item.attrs.items():
                rows.append((f"/{name}@{key}", getattr(value, "shape", ()), str(getattr(value, "dtype", "text"))))

        def follow(name: str, link: Any) -> None:
            if not hasattr(link, "path"):  # a hard link, whose target is visited
                return
            try:
                item = self.linked.find(name)
                kind = "nothing" if item is None else str(getattr(item, "dtype", "a group"))
            except Exception as error:  # an error that left this function would be lost in h5py
                item, kind = None, "not read" if isinstance(error, OutsideError) else "nothing"
            target = f"{getattr(link, 'filename', '')}{link.path}"
            shape = self.linked.shape(item) if hasattr(item, "dtype") else ()
            rows.append((f"/{name}", shape, f"{kind}, a link to {target}"))

        with self._guarded("something"):
            visit("", self.file)
            self.file.visititems(visit)
            self.file.visititems_links(follow)
        return iter(rows)


def _describe(path: Path) -> tuple[str, list[str]] | None:
    if path.suffix.lower() not in (".h5", ".hdf5", ".nxs") and read_head(path, 8) != SIGNATURE:
        return None
    return describe_arrays("hdf5", path, open_hdf5)


def open_reading(options: ArrayOptions, file: Path, growth: Growth | None = None) -> AbstractContextManager[Reading]:
    """How a file is read as a scan, while it is open. Arguments: options; file; growth, if it may still be written."""
    return read_opened(open_hdf5(file, growth=growth), options)


@register(
    "importer",
    "hdf5",
    "arrays of an HDF5 file, for any instrument",
    describe=_describe,
    open_reading=open_reading,
    **ARRAY_FACTS,
)
def build(options: ArrayOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    return build_scan(open_hdf5(file), options, out)
