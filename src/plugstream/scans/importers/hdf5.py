"""Scans from HDF5 files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.base.registry import register
from plugstream.base.trust import OutsideError, trusting
from plugstream.scans.importers.arrays import (
    ARRAY_FACTS,
    ArrayOptions,
    array_options,
    describe_arrays,
    import_arrays,
    read_mapping,
)
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.source import Source, first_line, open_error

if TYPE_CHECKING:
    from plugstream.scans.importers.hdf5_storage import LinkedFiles

__all__ = ["SIGNATURE", "import_hdf5", "is_hdf5", "open_hdf5"]

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
    arrays; see `import_arrays`. What was never written, which HDF5 gives as zeros, is refused, and so is what lies in
    other files that are too short, or outside the file's folder.

    Arguments: path of the file; out, the scan to make; mapping from our names to paths such as /entry/data, or
    /entry@name for an attribute, or for values to numbers; instrument, by name or FILE.py:NAME; trust,
    whether what the file names may be read wherever it lies;
    options of its reader: of born-2d unit of all lengths, by default that of their own attribute `units`, or m;
    conjugate for exp(+i w t); frequency in GHz, which of the file's to take
    (`plugstream.scans.importers.born.BornImport`).
    """
    values = array_options(instrument, **options)
    with trusting(trust), open_hdf5(Path(path)) as source:
        return import_arrays(source, out, mapping, values).views


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 does."""
    try:
        with path.open("rb") as file:
            return file.read(8) == SIGNATURE
    except OSError:
        return False


@contextmanager
def open_hdf5(path: Path, container: str = "HDF5") -> Iterator[Source]:
    """The file's arrays by their paths, those in other files by the rules of `plugstream.scans.importers.hdf5_storage`.

    Every importer opens HDF5 here. Arguments: path; container, what is called so.
    """
    try:
        import h5py
    except ImportError:
        raise InputError("reading HDF5 needs h5py; install it with: pip install 'plugstream[hdf5]'") from None
    from plugstream.scans.importers.hdf5_storage import LinkedFiles

    path = Path(path)
    try:
        file = h5py.File(path.absolute(), "r")
    except OSError as error:
        raise open_error(path, error, "HDF5") from error
    with file, ExitStack() as others:
        yield _Hdf5(path, file, LinkedFiles(path.absolute(), file, others), container)


class _Hdf5(Source):
    def __init__(self, path: Path, file: Any, linked: LinkedFiles, container: str) -> None:
        super().__init__(path)
        self.file, self.linked, self.container = file, linked, container

    def find(self, name: str) -> Any:
        place, at, attribute = name.partition("@")
        with self._guarded(name):
            found = self.linked.find(place)
            if at:
                return None if found is None else found.attrs.get(attribute)
            lack = self.linked.lack(found) if hasattr(found, "dtype") else ""
        if lack:
            raise InputError(f"{name} of {self.path} was never written as a whole: {lack}; HDF5 would give zeros there")
        return found

    def attribute(self, name: str, of: str | None) -> Any:
        found = self.file if of is None else self.find(of)
        with self._guarded(name):
            return None if found is None else getattr(found, "attrs", {}).get(name)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """A damaged header, or a link that leads nowhere, raises many kinds in h5py; here it is one line."""
        try:
            yield
        except Exception as error:
            raise InputError(f"{name} of {self.path} cannot be read: {first_line(error)}") from error

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        found: list[tuple[str, tuple[int, ...], str]] = []

        def visit(name: str, item: Any) -> None:
            if hasattr(item, "dtype"):
                found.append((f"/{name}", self.linked.shape(item), self.linked.kind(item)))
            for key, value in item.attrs.items():
                found.append((f"/{name}@{key}", getattr(value, "shape", ()), str(getattr(value, "dtype", "text"))))

        def follow(name: str, link: Any) -> None:
            if not hasattr(link, "path"):  # a hard link, which is visited as what it is
                return
            try:
                item = self.linked.find(name)
                what = "nothing" if item is None else str(getattr(item, "dtype", "a group"))
            except Exception as error:  # an error that left this function would be lost in h5py
                item, what = None, "not read" if isinstance(error, OutsideError) else "nothing"
            target = f"{getattr(link, 'filename', '')}{link.path}"
            shape = self.linked.shape(item) if hasattr(item, "dtype") else ()
            found.append((f"/{name}", shape, f"{what}, a link to {target}"))

        with self._guarded("something"):
            visit("", self.file)
            self.file.visititems(visit)
            self.file.visititems_links(follow)
        return iter(found)


def _describe(path: Path) -> tuple[str, list[str]] | None:
    if not (path.suffix.lower() in (".h5", ".hdf5", ".nxs") or is_hdf5(path)):
        return None
    return describe_arrays("hdf5", path, open_hdf5)


@register(
    "importer",
    "hdf5",
    "arrays of an HDF5 file, for any instrument",
    needs=("h5py",),
    describe=_describe,
    **ARRAY_FACTS,
)
def build(options: ArrayOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    with open_hdf5(file) as source:
        return import_arrays(source, out, read_mapping(options), options)
