"""The one reader of recordings: a file's first bytes tell its container, and the names in it its format.

An importer declares its formats, each with the container, a test and a reader:

    FORMATS = Formats(
        Format("HDF5", lambda source: source.find("/exchange/data") is not None, read_exchange),
        Format("NPZ", lambda source: "projections" in source.name_set(), read_npz),
        unknown="not a tomograph's file that we know",
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
from plugstream.base.matlab import check_matlab
from plugstream.base.registry import Options, register
from plugstream.base.text import shell_quote
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.hdf5 import SIGNATURE, open_hdf5
from plugstream.scans.importers.npz import open_npz, unpack_npz
from plugstream.scans.importers.reading import name_file
from plugstream.scans.importers.source import Source, open_error, read_head

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def open_source(path: Path, growth: Growth | None = None) -> Iterator[Source]:
    """The arrays of a file by their names; a file that is neither HDF5, NPZ nor MATLAB's has none.

    Arguments: path; growth, of a recording that may still be written.
    """
    head = read_head(path, 520)
    if SIGNATURE in (head[:8], head[512:]):  # MATLAB writes 512 bytes before it
        with open_hdf5(path, "HDF5" if head[:8] == SIGNATURE else "MATLAB 7.3", growth) as source:
            yield source
    elif path.suffix.lower() == ".npz":
        with open_npz(path) as source:
            yield source
    else:
        source = _Matlab(path) if head[:6] == b"MATLAB" else Source(path)
        source.growth = growth
        yield source


class _Matlab(Source):
    container = "MATLAB"
    _content: dict[str, Any] | None = None

    def find(self, name: str) -> Any:
        if self._content is None:
            self._content = load_matlab(self.path)
        value = self._content.get(name)
        return value if isinstance(value, np.ndarray) else None

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
        if read_head(path, 10) != b"MATLAB 7.3":  # which SciPy refuses
            check_matlab(path)
        content: dict[str, Any] = loadmat(path, **options)
    except NotImplementedError:  # SciPy's word for version 7.3
        raise InputError(f"{path} is of MATLAB 7.3, which is HDF5; save it with save(..., '-v7')") from None
    except Exception as error:  # a damaged file raises many kinds
        raise open_error(path, error, "a MATLAB file") from error
    return {name: value for name, value in content.items() if not name.startswith("__")}


@dataclass(frozen=True)
class Format(Generic[R]):
    """One kind of recording.

    Arguments: container, as in `Source.container`; matches, whether a file of that container is of this kind; read,
    called with the source and options of the importer, which gives the recording; fallback, whether it also reads files
    without a container that match nothing, to say what they lack.
    """

    container: str
    matches: Callable[[Source], Any]
    read: Callable[..., R]
    fallback: bool = False


class Formats(Generic[R]):
    """The formats that an importer knows.

    Arguments: formats; unknown, how to call a file of no format, and what the formats are, in words; packed, whether
    NPZ files that bzip2 has compressed once more are read, too; strict, whether a file that cannot be opened is
    refused rather than left to other importers.
    """

    def __init__(self, *formats: Format[R], unknown: str, packed: bool = False, strict: bool = False) -> None:
        self.formats, self.unknown, self.packed, self.strict = formats, unknown, packed, strict

    def find(self, source: Source) -> Format[R] | None:
        """The first format that a file matches."""
        likely = (one for one in self.formats if one.container == source.container)
        return next((one for one in likely if one.matches(source)), None)

    def has(self, path: Path) -> bool:
        try:
            with open_source(path) as source:
                return self._is_packed(path) or self.find(source) is not None
        except InputError:
            if self.strict:
                raise
            return False

    @contextmanager
    def open(self, path: Path, growth: Growth | None = None, **options: Any) -> Iterator[R]:
        """The recording of a file, which stays open; a file of no format is refused.

        Where a container has a single format, its reader says what a file lacks. Errors within the block name the file.

        Arguments: path; growth, of a recording that may still be written; options of the format's reader.
        """
        if not path.exists():
            raise InputError(f"there is no file {path}")
        with name_file(path), ExitStack() as stack:
            place = path
            if self._is_packed(path):
                place = unpack_npz(path, Path(stack.enter_context(TemporaryDirectory())))
            source = stack.enter_context(open_source(place, growth))
            chosen, likely = self.find(source), [one for one in self.formats if one.container == source.container]
            if chosen is None and len(likely) == 1 and (source.container or likely[0].fallback):
                chosen = likely[0]
            if chosen is None:
                raise InputError(f"{path} is {self.unknown}")
            yield chosen.read(source, **options)

    def _is_packed(self, path: Path) -> bool:
        return self.packed and path.name.lower().endswith(".npz.bz2")

    def importer(
        self, name: str, help: str, options: type[Options], tell: Callable[[R], list[str]], **facts: Any
    ) -> Callable[[F], F]:
        """Declare the function below as the importer of these formats.

        Arguments: name, help and options, as of `register`; tell, what a recording holds, in lines; more facts.
        """

        def describe(path: Path) -> tuple[str, list[str]] | None:
            if not self.has(path):
                return None
            with self.open(path) as recording:
                return f"'plugstream import {name} {shell_quote(path)}' makes a scan of it", tell(recording)

        return register("importer", name, help, options=options, describe=describe, **facts)
