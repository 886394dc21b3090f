"""Scans from NPZ files, as numpy.savez writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.errors import InputError
from plugstream.scans.importers.arrays import Source, import_arrays, open_error

__all__ = ["import_npz", "open_npz"]


def import_npz(
    path: str | Path,
    out: str | Path,
    mapping: Mapping[str, Any] | None = None,
    *,
    unit: str = "m",
    conjugate: bool = False,
) -> int:
    """Write a scan from an NPZ file, and return the number of views.

    Holds for files whose arrays fit memory, since an NPZ is read array by array. Nothing is unpickled.

    Arguments: path of the file; out, the scan to make; mapping from our names to the file's where they differ, or for
    values to numbers; unit of all lengths; conjugate for exp(+i w t). See `import_arrays`.
    """
    with open_npz(Path(path)) as source:
        return import_arrays(source, out, mapping or {}, unit=unit, conjugate=conjugate)


@contextmanager
def open_npz(path: Path) -> Iterator[Source]:
    """The file's arrays by their names."""
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy and zipfile raise many kinds for a file that is not one
        raise open_error(path, error, "NPZ") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise InputError(f"{path} is a single array, not an NPZ; write one with numpy.savez")
    with file:
        yield _Npz(path, file)


class _Npz:
    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file
        self._read: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        if name not in self.file.files:
            return None
        if name not in self._read:  # NumPy would read and unpack it anew each time
            try:
                self._read[name] = self.file[name]
            except Exception as error:
                text = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise InputError(f"{name} of {self.path} cannot be read: {text}") from error
        return self._read[name]

    def attribute(self, name: str, of: str | None) -> Any:
        return None  # an NPZ has none

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name in self.file.files:
            array = self.find(name)
            yield name, array.shape, str(array.dtype)
