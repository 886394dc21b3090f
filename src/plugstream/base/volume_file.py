"""A volume in an NPY file, written and read some slices at a time: it may be larger than memory.

The file is not mapped: mapped pages count as memory of the process, and the memory of a run should be known.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import open_plain

# Slices are read in portions of about this size.
_PORTION = 32 << 20


class VolumeFile:
    """A volume (D, H, W) of real numbers in an NPY file; `make_volume` and `open_volume` return one.

    Arguments: path; shape and dtype of the volume; start, where its values begin in the file.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], start: int) -> None:
        self.path, self.shape, self.dtype, self._start = path, shape, dtype, start
        self._slice = math.prod(shape[1:]) * dtype.itemsize

    def write(self, first: int, slices: NDArray[Any]) -> None:
        """Write slices (n, H, W) to their place; when this returns they survive a power cut."""
        values = np.ascontiguousarray(slices, dtype=self.dtype)
        if values.shape[1:] != self.shape[1:] or first < 0 or first + len(values) > self.shape[0]:
            raise InputError(f"slices {values.shape} from {first} on do not fit a volume {self.shape}")
        with _writing(self.path, os.O_RDWR) as file:
            file.seek(self._start + first * self._slice)
            file.write(values.reshape(-1).view(np.uint8).data)

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Slices `first` to `last` (exclusive), (n, H, W)."""
        out = np.empty((last - first, *self.shape[1:]), dtype=self.dtype)
        try:
            with os.fdopen(open_plain(self.path), "rb") as file:
                file.seek(self._start + first * self._slice)
                if file.readinto(out.reshape(-1).view(np.uint8).data) < out.nbytes:
                    raise OSError("it is cut short")
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error
        return out

    def portions(self, multiple: int = 1) -> Iterator[tuple[int, NDArray[Any]]]:
        """All slices, some megabytes at a time: the number of the first, and (n, H, W).

        Arguments: multiple; n is a multiple of it, except for the last portion.
        """
        step = max(1, _PORTION // max(1, multiple * self._slice)) * multiple
        for first in range(0, self.shape[0], step):
            yield first, self.read(first, min(first + step, self.shape[0]))


def make_volume(path: Path, shape: tuple[int, ...], dtype: Any = np.float32) -> VolumeFile:
    """A new volume of zeros, which most disks store without space; an existing volume of the same kind is kept."""
    kind = np.dtype(dtype).newbyteorder("<")
    if path.exists():
        volume = open_volume(path)
        if (volume.shape, volume.dtype) == (tuple(shape), kind):
            return volume
    head = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(head, about)
    start = len(head.getvalue())
    with _writing(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
        file.write(head.getvalue())
        file.truncate(start + math.prod(shape) * kind.itemsize)
    return VolumeFile(path, tuple(shape), kind, start)


@contextlib.contextmanager
def _writing(path: Path, flags: int) -> Iterator[BinaryIO]:
    """An open file, flushed to disk at the end; errors are of one line."""
    try:
        with os.fdopen(open_plain(path, flags), "r+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def open_volume(path: Path) -> VolumeFile:
    """The volume in an NPY file; any other file is refused."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            version = np.lib.format.read_magic(file)
            headers = np.lib.format
            read_header = headers.read_array_header_1_0 if version == (1, 0) else headers.read_array_header_2_0
            shape, fortran, dtype = read_header(file)
            start = file.tell()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}; give an NPY file") from error
    if fortran or len(shape) != 3 or dtype.kind not in "fiu":
        raise InputError(f"{path} holds {dtype} of shape {shape}, not a volume of real numbers, slice after slice")
    return VolumeFile(path, shape, dtype, start)
