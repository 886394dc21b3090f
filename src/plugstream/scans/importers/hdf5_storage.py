"""Where the numbers of an HDF5 file lie: in the file, or in others that its links and datasets name.

HDF5 follows what a file names to any place that the reader may read, and gives zeros, or fill values, where another
file is too short or gone. Here links are followed by hand, and a dataset is given out only where all of it is there:

- links to other files, virtual datasets and raw storage in other files are read where these lie in the folder of the
  file that a person named, or below it, symbolic links resolved; elsewhere only by consent
  (`plugstream.base.trust.check_outside`), since else a file could put any other into a scan;
- parts that are missing, too short or never written are refused always.

Reference: The HDF Group, H5Lcreate_external, H5Pset_virtual and H5Pset_external of the reference manual, for how names
of files are looked up.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.trust import OutsideError, check_outside

__all__ = ["LinkedFiles"]

_HOPS = 16  # links after links, as HDF5 itself has it
_ENDLESS = 1 << 62  # counts beyond this are HDF5's "unlimited"


Slab = tuple[tuple[int, int, int, int], ...]
Box = list[NDArray[np.bool_]]


class _Part(NamedTuple):
    """Of a virtual dataset: a dataset of another file, or of this one (.), what it stands for, and which of it does."""

    file_name: str
    name: str
    here: list[Slab] | None
    there: list[Slab] | None


class LinkedFiles:
    """A file that a person named, open, and those that it leads to, which are opened as they are needed.

    Arguments: path of the file; file, an `h5py.File`; stack, which closes the others.
    """

    def __init__(self, path: Path, file: Any, stack: ExitStack) -> None:
        self.path, self.root, self._stack = path, file, stack
        # A link may stand for the file, and HDF5 looks in both folders, too.
        self._folders = (path.parent.resolve(), path.resolve().parent)
        self._opened: dict[Path, Any] = {path.resolve(): file}
        self._checking: set[tuple[str, str]] = set()
        self._lacks: dict[tuple[str, str], str] = {}

    def find(self, place: str, file: Any = None, hops: int = 0) -> Any:
        """The dataset or group at a path, whatever links lead there; None where there is nothing."""
        import h5py

        if hops > _HOPS:
            raise InputError(f"more than {_HOPS} links lead to one another")
        here = (self.root if file is None else file)["/"]
        parts = [part for part in place.split("/") if part not in ("", ".")]
        for n, part in enumerate(parts):
            link = here.get(part, getlink=True) if isinstance(here, h5py.Group) else None
            if link is None:
                return None
            if isinstance(link, h5py.HardLink):
                here = here[part]
                continue
            rest = "/".join([link.path, *parts[n + 1 :]])
            if isinstance(link, h5py.ExternalLink):
                target = self._locate(here.file, link.filename, "HDF5_EXT_PREFIX")
                if target is None:
                    raise InputError(f"it is a link to {link.filename}, and there is no such file")
                return self.find(rest, self._open(target), hops + 1)
            return self.find(rest if rest.startswith("/") else f"{here.name}/{rest}", here.file, hops + 1)
        return here

    def lack(self, dataset: Any) -> str:
        """What is missing of a dataset that was not written, or whose parts in other files are gone; "" if nothing."""
        key = (dataset.file.filename, dataset.name)
        if key in self._checking:
            return "it is a part of itself"
        if key not in self._lacks:
            self._checking.add(key)
            try:
                self._lacks[key] = self._find_lack(dataset)
            finally:
                self._checking.remove(key)
        return self._lacks[key]

    def _find_lack(self, dataset: Any) -> str:
        if dataset.is_virtual:
            return self._virtual_lack(dataset)
        if dataset.external is not None:
            return self._external_lack(dataset)
        if dataset.chunks is not None:
            whole = math.prod(-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True))
            there = dataset.id.get_num_chunks()
            return f"it has {there} of {whole} chunks" if there < whole else ""
        return "it is empty" if dataset.size and dataset.id.get_storage_size() == 0 else ""

    def kind(self, dataset: Any) -> str:
        """The type of a dataset's numbers, and what is wrong with those that lie in other files as they are."""
        if dataset.external is None:
            return str(dataset.dtype)
        try:
            return ", ".join(filter(None, [str(dataset.dtype), self.lack(dataset)]))
        except OutsideError:
            return f"{dataset.dtype}, outside the folder"

    def shape(self, dataset: Any) -> tuple[int, ...]:
        """The shape of a dataset; () where HDF5 would open files for it that may not be opened, or where it is none."""
        try:
            if dataset.is_virtual:
                self._check_sources(dataset)
            return tuple(dataset.shape or ())
        except OutsideError:
            return ()

    def _external_lack(self, dataset: Any) -> str:
        """Raw numbers in other files, each with as many bytes as HDF5 takes from it."""
        folder, left = _folder(dataset.file), dataset.id.get_storage_size()
        prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", str(folder))
        for name, offset, size in dataset.external:
            target, take = Path(prefix) / name, min(left, size)
            self._check_place(target)
            if not target.is_file():
                near = f": HDF5 looks in the current folder, so run this in {folder}"
                return f"there is no file {name}{near if (folder / name).is_file() else ''}"
            there = target.stat().st_size
            if there < offset + take:
                return f"{name} has {there} bytes of {offset + take}"
            left -= take
        return f"its files lack {left} bytes" if left else ""

    def _virtual_lack(self, dataset: Any) -> str:
        """Parts in other datasets: each there, whole and as large as what it stands for, and together all of it."""
        sources, boxes = self._check_sources(dataset), list[Box]()
        for source in sources:
            mine = _boxes(source.here, dataset.shape)
            boxes += mine
            series = _is_series(source)
            blocks = _count_blocks(source.here, dataset.shape) if series else 1
            need = sum(_points(box) for box in mine) // max(1, blocks)
            for (file_name, name), _ in zip(_names(source), range(blocks), strict=False):
                lack = self._source_lack(dataset, file_name, name, source.there, need)
                if lack:
                    return lack
        return "no part of it stands for some of its numbers" if _has_hole(boxes, dataset.shape) else ""

    def _check_sources(self, dataset: Any) -> list[_Part]:
        """The parts of a virtual dataset, in files that may be read; before the shape, for which HDF5 may open them."""
        sources = [
            _Part(one.file_name, one.dset_name, _slabs(one.vspace), _slabs(one.src_space))
            for one in dataset.virtual_sources()
        ]
        for source in sources:
            for file_name, _ in _names(source):
                if file_name == "." or self._locate(dataset.file, file_name, "HDF5_VDS_PREFIX") is None:
                    break  # of a series the first that is not there is its end
        return sources

    def _source_lack(self, dataset: Any, file_name: str, name: str, space: list[Slab] | None, need: int) -> str:
        where = name if file_name == "." else f"{name} of {file_name}"
        if file_name == ".":
            return self._part_lack(self.find(name, dataset.file), where, space, need)
        target = self._locate(dataset.file, file_name, "HDF5_VDS_PREFIX")
        if target is None:
            return f"there is no file {file_name}"
        # Parts may be in thousands of files, more than may be open at once.
        before = set(self._opened)
        try:
            return self._part_lack(self.find(name, self._open(target)), where, space, need)
        finally:
            for key in self._opened.keys() - before:
                self._opened.pop(key).id.close()  # with all that is open in it; File.close looks at every open object

    def _part_lack(self, part: Any, where: str, space: list[Slab] | None, need: int) -> str:
        if not hasattr(part, "is_virtual"):
            return f"there is no {where}"
        if lack := self.lack(part):
            return f"{where}: {lack}"
        there = sum(_points(box) for box in _boxes(space, part.shape))
        return f"{where} has {there} of {need} numbers" if there < need else ""

    def _open(self, path: Path) -> Any:
        import h5py

        key = path.resolve()
        if key not in self._opened:
            if not path.is_file():
                raise InputError(f"{path} is not a file, but a folder, a pipe or a device")
            self._opened[key] = self._stack.enter_context(h5py.File(path, "r"))
        return self._opened[key]

    def _locate(self, owner: Any, name: str, variable: str) -> Path | None:
        """The file that HDF5 would open for a name in another one, in its order; None where there is none."""
        folder, last = Path(owner.filename).parent, Path(name).name if Path(name).is_absolute() else name
        prefixes = [prefix for prefix in os.environ.get(variable, "").split(":") if prefix]
        places = [
            *([Path(name)] if Path(name).is_absolute() else []),
            *(Path(prefix.replace("${ORIGIN}", str(folder))) / last for prefix in prefixes),
            folder / last,
            Path(last),
            _folder(owner) / last,
        ]
        found = next((place for place in places if place.exists()), None)
        if found is not None:
            self._check_place(found)
        return found

    def _check_place(self, target: Path) -> None:
        real = target.resolve()
        if real.exists() and not any(real.is_relative_to(folder) for folder in self._folders):
            check_outside(real, self.path)


def _folder(file: Any) -> Path:
    """Where a file lies, and not a link to it."""
    return Path(file.filename).resolve().parent


def _is_series(source: _Part) -> bool:
    """Whether names have %b, which stands for a number: 0, 1 and so on, for as long as there are such files."""
    return "%b" in (source.file_name + source.name).replace("%%", "")


def _names(source: _Part) -> Iterator[tuple[str, str]]:
    """File and dataset of a part, of a series without end."""
    pair = (source.file_name, source.name)
    for n in count() if _is_series(source) else range(1):
        file, name = ("%".join(piece.replace("%b", str(n)) for piece in text.split("%%")) for text in pair)
        yield file, name


def _slabs(space: Any) -> list[Slab] | None:
    """The pieces of a selection, start, stride, count and block along each axis; None for all of an array."""
    import h5py

    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return None
    if kind == h5py.h5s.SEL_NONE:
        return []
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        return [tuple(zip(*space.get_regular_hyperslab(), strict=True))]
    if kind == h5py.h5s.SEL_HYPERSLABS:
        corners = space.get_select_hyper_blocklist().tolist()
        return [tuple((a, 1, 1, b - a + 1) for a, b in zip(*pair, strict=True)) for pair in corners]
    return [tuple((a, 1, 1, 1) for a in point) for point in space.get_select_elem_pointlist().tolist()]


def _boxes(slabs: list[Slab] | None, shape: tuple[int, ...]) -> list[Box]:
    """What a selection has of an array: for each of its pieces, along each axis, which indices."""
    if slabs is None:
        return [[np.ones(n, bool) for n in shape]]
    return [[_along(n, *axis) for n, axis in zip(shape, slab, strict=True)] for slab in slabs]


def _along(n: int, start: int, stride: int, number: int, block: int) -> NDArray[np.bool_]:
    steps = np.arange(n) - min(start, _ENDLESS)
    stride, number, block = (min(value, _ENDLESS) for value in (stride, number, block))
    if number == 1:  # then HDF5 gives any stride
        stride = _ENDLESS
    chosen: NDArray[np.bool_] = (steps >= 0) & (steps // stride < number) & (steps % stride < block)
    return chosen


def _points(box: Box) -> int:
    return math.prod(int(axis.sum()) for axis in box)


def _count_blocks(slabs: list[Slab] | None, shape: tuple[int, ...]) -> int:
    """How many parts of a series an array has, by the axis along which it is unlimited."""
    for n, (start, stride, number, _) in zip(shape, slabs[0] if slabs else (), strict=False):
        if number > _ENDLESS:
            return max(0, -(-(n - start) // stride))
    return 1


def _has_hole(boxes: list[Box], shape: tuple[int, ...]) -> bool:
    """Whether boxes leave out some of an array; indices that all of them treat alike are looked at once."""
    if 0 in shape:
        return False
    kinds = [np.unique(np.stack([box[axis] for box in boxes]), axis=1) for axis in range(len(shape))] if boxes else []
    covered = np.zeros([kind.shape[1] for kind in kinds], bool)
    for n in range(len(boxes)):
        covered[np.ix_(*(kind[n] for kind in kinds))] = True
    return not (boxes and covered.all())
