"""Scans from NPZ files, as numpy.savez writes them."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.capacity import machine_memory
from plugstream.errors import InputError
from plugstream.importers.arrays import (
    ArrayOptions,
    array_options,
    describe_arrays,
    import_arrays,
    open_error,
    options_for,
    read_mapping,
    scan_name,
)
from plugstream.importers.base import ImportResult
from plugstream.importers.lookup import Source
from plugstream.registry import register

__all__ = ["import_npz", "open_npz"]


def import_npz(
    path: str | Path,
    out: str | Path,
    mapping: Mapping[str, Any] | None = None,
    *,
    instrument: str = "born-2d",
    **options: Any,
) -> int:
    """Write a scan from an NPZ file, and return the number of views.

    Holds for files whose arrays fit memory, since an NPZ is read array by array. Nothing is unpickled.

    Arguments: path of the file; out, the scan to make; mapping from our names to the file's where they differ, or for
    values to numbers; instrument, by name or FILE.py:NAME; options of its reader: of born-2d unit of all lengths,
    conjugate for exp(+i w t) and frequency in GHz, which of the file's to take. See `import_arrays`.
    """
    values = array_options(instrument, **options)
    with open_npz(Path(path)) as source:
        return import_arrays(source, out, mapping or {}, values).views


@contextmanager
def open_npz(path: Path) -> Iterator[Source]:
    """The file's arrays by their names."""
    try:
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise InputError(f"{path} is a single array, not an NPZ; write one with numpy.savez")
        archive = zipfile.ZipFile(path)
    except InputError:
        raise
    except Exception as error:  # zipfile raises many kinds for a file that is not one
        raise open_error(path, error, "NPZ") from error
    with archive:
        yield _Npz(path, archive)


class _Npz:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self._members = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        self._read: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        if name in self._members and name not in self._read:
            try:
                with self.archive.open(self._members[name]) as file:
                    shape, dtype = _header(file)
                size, there = math.prod(shape) * dtype.itemsize, self.archive.getinfo(self._members[name]).file_size
                if not dtype.hasobject and size > min(there, machine_memory() // 2):
                    raise InputError(
                        f"it claims {size / 1e9:.3g} GB, more than its file has or than fits this machine's memory"
                    )
                with self.archive.open(self._members[name]) as file:
                    self._read[name] = np.lib.format.read_array(file, allow_pickle=False)
            except Exception as error:
                text = str(error).splitlines()[0] if str(error) else type(error).__name__
                if "allow_pickle" in text:
                    text = "it holds Python objects, which are never unpickled; save numbers"
                raise InputError(f"{name} of {self.path} cannot be read: {text}") from error
        return self._read.get(name)

    def attribute(self, name: str, of: str | None) -> Any:
        return None  # an NPZ has none

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name, member in self._members.items():
            try:
                with self.archive.open(member) as file:
                    shape, dtype = _header(file)
                yield name, shape, str(dtype)
            except Exception as error:
                yield name, (), f"cannot be read: {error}".splitlines()[0]


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, without reading it."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _describe(path: Path) -> tuple[str, list[str]] | None:
    if path.suffix.lower() != ".npz":
        return None
    return describe_arrays("npz", path, open_npz)


@register(
    "importer",
    "npz",
    "arrays of an NPZ file, for any instrument",
    options=ArrayOptions,
    options_for=partial(options_for, ArrayOptions),
    default_name=scan_name,
    describe=_describe,
    general=True,
)
def build(options: ArrayOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    with open_npz(file) as source:
        return import_arrays(source, out, read_mapping(options), options)
