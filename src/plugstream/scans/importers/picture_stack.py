"""Stacks of pictures, TIFF or CBF, a file each, in a folder that may still fill."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.images.pictures import open_tiff, read_tiff
from plugstream.scans.importers.cbf import read_cbf
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import first_line
from plugstream.scans.streams.frames import LONGEST_GAP

_SUFFIXES = (".tif", ".tiff", ".cbf")
# A file that has not changed for so many seconds is believed to be whole.
_SETTLED = 0.5
_OVERTAKEN = 1.0  # seconds for which picture 1 waits for one that may be 0


class Stack:
    """Pictures of one shape, in the order of the numbers in their names; or the pages of one file.

    Arguments: folder; pattern of names; key, what they are, for messages; growth, of a folder that still fills;
    numbered, whether the picture with the number n then has the index n - first, whichever came earlier: those that are
    missing or half-written are refused when they are read.
    Attributes: remarks on pictures that are left out, for a person.
    """

    def __init__(
        self,
        folder: Path,
        pattern: Any,
        key: str,
        growth: Growth | None = None,
        *,
        numbered: bool = False,
        first: int | None = None,
    ) -> None:
        if not isinstance(pattern, str) or not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise InputError(
                f"{key} must be a pattern such as 'proj_*.tif' of pictures beside the file, not {pattern!r}"
            )
        found = sorted((file for file in folder.glob(pattern) if file.suffix.lower() in _SUFFIXES), key=_sort_key)
        self.key, self.growth, self.remarks = key, growth, list[str]()
        found = found if growth is None else _settled(found, growth)
        self.files: dict[int, Path] = dict(enumerate(found))
        if growth is not None and numbered:
            self.files = _number(found, key, first, growth)
            if odd := sorted(file.name for file in {*found} - {*self.files.values()}):
                text = f"{len(odd)} of {key} left out, such as {odd[-1]}: {LONGEST_GAP:,} numbers or more are missing"
                self.remarks.append(f"{text} before it")
        if not self.files:
            what = f"no TIFF picture, and no CBF, beside it is called {pattern}, which {key} says"
            if growth is not None:
                growth.wait(what)
            raise InputError(what)
        file, picture = self._load_first()
        self.frames = picture if len(self.files) == 1 and picture.ndim == 3 else None
        self.shape: Any = picture.shape[-2:]
        if picture.ndim != 2 and (self.frames is None or growth is not None):
            raise InputError(f"{file.name} has shape {picture.shape}, but must be a grey picture")

    def __len__(self) -> int:
        return max(self.files) + 1 if self.frames is None else len(self.frames)

    def read(self, views: Indices | None = None, rows: slice = slice(None)) -> NDArray[Any]:
        """Some pictures, in increasing order, and some of their rows; by default everything."""
        views = np.arange(len(self)) if views is None else views
        if self.frames is not None:
            return self.frames[views][:, rows]
        pictures = []
        for view in views.tolist():
            if view not in self.files:
                raise InputError(f"picture {view} of {self.key} is missing")
            picture = self._load(self.files[view])
            if picture.shape != self.shape:
                name = self.files[view].name
                raise InputError(f"{name} is {picture.shape}, but the first of {self.key} is {self.shape}")
            pictures.append(picture[rows])
        return np.stack(pictures)

    def _load_first(self) -> tuple[Path, NDArray[Any]]:
        """The first picture; of a folder that still fills, the first that is one."""
        files = [self.files[n] for n in sorted(self.files)][: 1 if self.growth is None else None]
        for file in files[:-1]:
            with suppress(InputError):
                if (picture := self._load(file)).ndim == 2:
                    return file, picture
        return files[-1], self._load(files[-1])

    def _load(self, file: Path) -> NDArray[Any]:
        kind = "CBF" if file.suffix.lower() == ".cbf" else "TIFF"
        try:
            if not file.is_file():  # a pipe would be waited for
                raise InputError("it is no file")
            picture = read_cbf(file) if kind == "CBF" else _read_tiff(file, whole=len(self.files) > 1)
        except Exception as error:  # damaged files raise many kinds
            raise InputError(f"{file.name} cannot be read as {kind}: {first_line(error)}") from error
        if picture.size == 0:
            raise InputError(f"{file.name} cannot be read as {kind}: there is no picture in it")
        if picture.dtype.kind not in "fiu":
            raise InputError(f"{file.name} holds {picture.dtype}, which no detector counts in")
        return np.asarray(picture)


def _read_tiff(file: Path, *, whole: bool) -> NDArray[Any]:
    """A picture, or the pages of a single file, which stay on the disk unless they are compressed."""
    import tifffile

    if not whole:
        try:
            with open_tiff(file):
                pass
            pages: NDArray[Any] = tifffile.memmap(file, mode="r")
            return pages
        except ValueError:
            pass
    return read_tiff(file)


def _settled(files: list[Path], growth: Growth) -> list[Path]:
    """The files that have not changed for a while."""
    known, now = growth.memory.setdefault("files", {}), time.monotonic()
    settled = []
    for file in files:
        if known.get(file.name) == "settled":
            settled.append(file)
            continue
        try:
            status = file.stat()
        except OSError:  # renamed meanwhile
            continue
        state, since = known.get(file.name, (None, now))
        seen = (status.st_size, status.st_mtime_ns)
        if seen != state:
            known[file.name], since = (seen, now), now
        if status.st_size and (growth.closed or now - since >= _SETTLED):
            known[file.name] = "settled"
            settled.append(file)
    return settled


def _number(files: list[Path], key: str, first: int | None, growth: Growth) -> dict[int, Path]:
    """Files by their index: the last number in their names, counted from the first."""
    numbered: dict[int, Path] = {}
    for file in files:
        digits = re.findall(r"\d+", file.stem)
        if not digits:
            raise InputError(f"{file.name} of {key} has no number in its name, which tells its place")
        number = int(digits[-1])
        if number in numbered:
            raise InputError(f"{numbered[number].name} and {file.name} of {key} have the same number")
        numbered[number] = file
    if not numbered:
        return {}
    least = min(numbered)
    since = growth.memory.setdefault(f"files of {key}", time.monotonic())
    if first is None and least == 1 and not growth.final and time.monotonic() - since < _OVERTAKEN:
        growth.wait(f"{key} begin with 1, unless 0 was overtaken")
    begin = growth.memory.setdefault(f"first of {key}", first if first is not None else least if least <= 1 else None)
    if begin is None:
        del growth.memory[f"first of {key}"]
        growth.wait(f"{key} begin with {least}; if none before it will come, say first = {least} in the TOML file")
    if least < begin:
        raise InputError(
            f"{numbered[least].name} of {key} came after number {begin} was taken for the first; say first = {least} "
            "in the TOML file, and make another scan"
        )
    places, last = dict[int, Path](), begin
    for number in sorted(numbered):
        if number - last > LONGEST_GAP:  # no number of this scan
            break
        places[number - begin], last = numbered[number], number
    return places


def _sort_key(file: Path) -> tuple[Any, ...]:
    """Texts as texts and numbers as numbers, so that 2 comes before 10."""
    parts = re.split(r"(\d+)", file.name)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)
