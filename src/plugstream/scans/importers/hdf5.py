"""Scans from HDF5 files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plugstream.errors import InputError
from plugstream.scans.importers.arrays import Source, import_arrays, open_error

__all__ = ["import_hdf5", "open_hdf5"]


def import_hdf5(
    path: str | Path, out: str | Path, mapping: Mapping[str, Any], *, unit: str = "m", conjugate: bool = False
) -> int:
    """Write a scan from an HDF5 file of any layout, some views at a time, and return the number of views.

    Holds for fields stored as complex numbers, as a last axis of two, or as two arrays; see `import_arrays`.

    Arguments: path of the file; out, the scan to make; mapping from our names to paths such as /entry/data, or
    /entry@name for an attribute, or for values to numbers; unit of all lengths; conjugate for exp(+i w t).
    """
    with open_hdf5(Path(path)) as source:
        return import_arrays(source, out, mapping, unit=unit, conjugate=conjugate)


@contextmanager
def open_hdf5(path: Path) -> Iterator[Source]:
    """The file's arrays by their paths."""
    try:
        import h5py
    except ImportError:
        raise InputError("reading HDF5 needs h5py; install it with: pip install 'plugstream[hdf5]'") from None
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise open_error(path, error, "HDF5") from error
    with file:
        yield _Hdf5(path, file)


class _Hdf5:
    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file

    def find(self, name: str) -> Any:
        place, at, attribute = name.partition("@")
        try:
            found = self.file[place or "/"] if place in ("", "/") or place in self.file else None
            return found if not at or found is None else found.attrs.get(attribute)
        except Exception as error:  # a damaged header or a link that leads nowhere, of whatever kind
            raise InputError(f"{name} of {self.path} cannot be read: {str(error).splitlines()[0]}") from error

    def attribute(self, name: str, of: str | None) -> Any:
        found = self.file if of is None else self.find(of)
        return None if found is None else getattr(found, "attrs", {}).get(name)

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        found: list[tuple[str, tuple[int, ...], str]] = []

        def visit(name: str, item: Any) -> None:
            if hasattr(item, "dtype"):
                found.append((f"/{name}", item.shape, str(item.dtype)))
            for key, value in item.attrs.items():
                found.append((f"/{name}@{key}", getattr(value, "shape", ()), str(getattr(value, "dtype", "text"))))

        visit("", self.file)
        self.file.visititems(visit)
        return iter(found)
