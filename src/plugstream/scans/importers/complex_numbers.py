"""Complex numbers however a file stores them: as they are, as records, as a last axis of two, or as two arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError

__all__ = ["Complex", "join_parts", "kind_of", "read_complex", "record_parts"]


class Complex:
    """An array of complex numbers, read by slicing its rows, however they are stored."""

    dtype = np.dtype(np.complex128)

    def __init__(self, shape: tuple[int, ...], read: Callable[[slice], Any]) -> None:
        self.shape, self._read = shape, read

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self._read(rows))


def read_complex(path: Path, name: str, array: Any) -> Complex:
    """Complex numbers as they are, as records of a real and an imaginary part, or as a last axis of two."""
    if getattr(array, "shape", None) is None or not (array.dtype.kind in "fiuc" or record_parts(array.dtype)):
        raise InputError(f"{name} of {path} holds {kind_of(array)}, not numbers")
    shape = tuple(array.shape)
    if array.dtype.kind == "c":
        return Complex(shape, lambda rows: array[rows])
    if record := record_parts(array.dtype):
        return Complex(shape, lambda rows: join_parts(*(array[rows][part] for part in record)))
    if len(shape) < 3 or shape[-1] != 2:
        raise InputError(
            f"{name} of {path} is {kind_of(array)}, and the field is complex; store complex numbers, or real and "
            f"imaginary part in a last axis of two{', or map data_real and data_imag' if name == 'data' else ''}"
        )
    return Complex(shape[:-1], lambda rows: join_parts(*np.moveaxis(array[rows], -1, 0)))


def record_parts(dtype: np.dtype[Any]) -> list[str]:
    """The names of the real and the imaginary part in records of the two, such as MATLAB writes; else nothing."""
    names = {name.lower(): name for name in dtype.names or ()}
    for real, imag in (("r", "i"), ("re", "im"), ("real", "imag")):
        if set(names) == {real, imag} and all(dtype[name].kind in "fiu" for name in names.values()):
            return [names[real], names[imag]]
    return []


def join_parts(real: NDArray[Any], imag: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(real + 1j * imag)


def kind_of(array: Any) -> str:
    if not hasattr(array, "shape"):
        return "an attribute" if not hasattr(array, "keys") else "a group"
    if array.shape is None:
        return "nothing"
    return f"{array.dtype} of shape {tuple(array.shape)}"
