"""The one reader of recordings: a file is opened by its first bytes, and its format known by the names in it.

An importer declares its formats, each by the container, how it is known, and what reads it:

    FORMATS = Formats(
        Format("HDF5", lambda source: source.find("/exchange/data") is not None, read_exchange),
        Format("NPZ", lambda source: "projections" in source.name_set(), read_npz),
        unknown="no tomograph's file that is known",
    )
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import numpy as np

from plugstream.base.errors import InputError
from plugstream.base.text import shell_quote
from plugstream.scans.importers.hdf5 import SIGNATURE, open_hdf5
from plugstream.scans.importers.npz import open_npz, unpack_npz
from plugstream.scans.importers.reading import name_file
from plugstream.scans.importers.source import Source, open_error

__all__ = ["Format", "Formats", "load_matlab", "open_source"]

R = TypeVar("R")


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """The arrays of a file by their names; a file that is neither HDF5, NPZ nor MATLAB's has none."""
    try:
        with path.open("rb") as file:
            head = file.read(520)
    except OSError:
        head = b""
    if SIGNATURE in (head[:8], head[512:]):  # MATLAB writes 512 bytes before it
        with open_hdf5(path, "HDF5" if head[:8] == SIGNATURE else "MATLAB 7.3") as source:
            yield source
    elif path.suffix.lower() == ".npz":
        with open_npz(path) as source:
            yield source
    else:
        yield _Matlab(path) if head[:6] == b"MATLAB" else Source(path)


class _Matlab(Source):
    container = "MATLAB"
    _content: dict[str, Any] | None = None

    def find(self, name: str) -> Any:
        if self._content is None:
            self._content = load_matlab(self.path)
        found = self._content.get(name)
        return found if isinstance(found, np.ndarray) else None

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        from scipy.io import whosmat

        try:
            return iter(whosmat(self.path))
        except Exception as error:  # a damaged file raises many kinds
            raise open_error(self.path, error, "a MATLAB file") from error


def load_matlab(path: Path, **options: Any) -> dict[str, Any]:
    """What a MATLAB file holds, by name. Arguments: options of `scipy.io.loadmat`."""
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path, **options)
    except NotImplementedError:  # SciPy's word for version 7.3
        raise InputError(f"{path} is of MATLAB 7.3, which is HDF5; save it with save(..., '-v7')") from None
    except Exception as error:  # a damaged file raises many kinds
        raise open_error(path, error, "a MATLAB file") from error
    return {name: value for name, value in content.items() if not name.startswith("__")}


@dataclass(frozen=True)
class Format(Generic[R]):
    """One kind of recording.

    Arguments: container, as `Source.container` has it; known, whether a file of that container is of this kind, None
    for one that says nothing of itself; read, what is in it, called with the source and options of the importer.
    """

    container: str
    known: Callable[[Source], Any] | None
    read: Callable[..., R]


class Formats(Generic[R]):
    """The formats that an importer knows.

    Arguments: formats; unknown, what a file of none of them is, and what would be one, in words; packed, whether NPZ
    files that bzip2 has compressed once more are taken, too; strict, whether a file that cannot be read is refused
    before it is known to be of these formats, rather than left to other importers.
    """

    def __init__(self, *formats: Format[R], unknown: str, packed: bool = False, strict: bool = False) -> None:
        self.formats, self.unknown, self.packed, self.strict = formats, unknown, packed, strict

    def find(self, source: Source) -> Format[R] | None:
        """The first that a file is of."""
        likely = (one for one in self.formats if one.container == source.container)
        return next((one for one in likely if one.known is not None and one.known(source)), None)

    def has(self, path: Path) -> bool:
        """Whether a file is a recording of one of these formats."""
        try:
            with open_source(path) as source:
                return self._is_packed(path) or self.find(source) is not None
        except InputError:
            if self.strict:
                raise
            return False

    @contextmanager
    def open(self, path: Path, **options: Any) -> Iterator[R]:
        """The recording of a file, which is read as long as it is open; one of no kind is refused.

        Where a container has a single format, that says what a file lacks of it. Errors within name the file.

        Arguments: path; options of what reads the format.
        """
        if not path.exists():
            raise InputError(f"there is no file {path}")
        with name_file(path), ExitStack() as stack:
            place = path
            if self._is_packed(path):
                place = unpack_npz(path, Path(stack.enter_context(TemporaryDirectory())))
            source = stack.enter_context(open_source(place))
            found, likely = self.find(source), [one for one in self.formats if one.container == source.container]
            if found is None and len(likely) == 1 and (source.container or likely[0].known is None):
                found = likely[0]
            if found is None:
                raise InputError(f"{path} is {self.unknown}")
            yield found.read(source, **options)

    def _is_packed(self, path: Path) -> bool:
        return self.packed and path.name.lower().endswith(".npz.bz2")

    def describer(self, importer: str, tell: Callable[[R], list[str]]) -> Callable[[Path], Any]:
        """The fact `describe` of an importer: what can be made of a file and what it holds, None for another kind.

        Arguments: importer, its name; tell, what a recording holds, in lines.
        """

        def describe(path: Path) -> tuple[str, list[str]] | None:
            if not self.has(path):
                return None
            with self.open(path) as recording:
                return f"'plugstream import {importer} {shell_quote(path)}' makes a scan of it", tell(recording)

        return describe
