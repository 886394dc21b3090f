"""Where the numbers of an HDF5 file lie: in the file, or in others that its links and datasets name.

HDF5 reads any file that a file names, and gives zeros, or fill values, where the other file is too short or gone. Here
links are followed by hand, and a dataset is read only if it is complete:

- other files, of links, virtual datasets and raw storage, must lie in the folder of the file that a person named, or
  below it, symbolic links resolved; elsewhere they need consent (`plugstream.base.trust.check_outside`), since
  otherwise a file could put any other into a scan;
- parts that are missing, too short or never written are always refused.

Reference: The HDF Group, H5Lcreate_external, H5Pset_virtual and H5Pset_external of the reference manual, for the lookup
of file names.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_claim
from plugstream.base.errors import InputError
from plugstream.base.trust import OutsideError, check_outside
from plugstream.scans.importers.hdf5_filters import check_filters, check_sizes

_ATTEMPTS = 30  # to read metadata of a file that is written
_HOPS = 16  # the most links after links, as in HDF5
_ENDLESS = 1 << 62  # counts beyond this are HDF5's "unlimited"

Slab = tuple[tuple[int, int, int, int], ...]
Box = list[NDArray[np.bool_]]


class _Part(NamedTuple):
    """A part of a virtual dataset: a dataset of another file, or of this one (.), and the regions of both.

    The names of a series have %b, which stands for a number: 0, 1 and so on, as long as there are such files.
    """

    file_name: str
    name: str
    target: list[Slab] | None
    source: list[Slab] | None

    def is_series(self) -> bool:
        return "%b" in (self.file_name + self.name).replace("%%", "")

    def names(self) -> Iterator[tuple[str, str]]:
        """File and dataset; of a series without end."""
        for n in count() if self.is_series() else range(1):
            pair = (self.file_name, self.name)
            file, name = ("%".join(piece.replace("%b", str(n)) for piece in text.split("%%")) for text in pair)
            yield file, name


def open_shared(path: str | Path) -> Any:
    """An `h5py.File` that another program may still be writing (SWMR mode).

    Metadata that fail their checksum are read again, each time after twice the pause of the last, which with HDF5's own
    100 attempts is minutes, with the interpreter's lock held, where a file was cut. With 30 it is a second;
    h5py has no name for their number, its library has.
    """
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_file_locking(False, False)
    set_attempts = getattr(ctypes.CDLL(h5py.h5p.__file__), "H5Pset_metadata_read_attempts", None)  # not on Windows
    if set_attempts is not None:
        set_attempts(ctypes.c_int64(access.id), ctypes.c_uint(_ATTEMPTS))
    flags = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
    return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))


class LinkedFiles:
    """An open file that a person named, and the files that it leads to, which are opened when needed.

    Arguments: path of the file; file, an `h5py.File`; stack, which closes the others; swmr, whether they may still be
    written, too.
    """

    def __init__(self, path: Path, file: Any, stack: ExitStack, *, swmr: bool = False) -> None:
        self.path, self.root, self._stack = path, file, stack
        self._swmr = swmr
        # The path may be a symbolic link, and HDF5 looks in both folders, too.
        self._folders = (path.parent.resolve(), path.resolve().parent)
        self._opened: dict[Path, Any] = {path.resolve(): file}
        self._checking: set[tuple[str, str]] = set()
        self._lacks: dict[tuple[str, str], str] = {}

    def find(self, place: str, file: Any = None, hops: int = 0) -> Any:
        """The dataset or group at a path, through any links; None where there is nothing."""
        import h5py

        if hops > _HOPS:
            raise InputError(f"more than {_HOPS} links lead to one another")
        item = (self.root if file is None else file)["/"]
        parts = [part for part in place.split("/") if part not in ("", ".")]
        for n, part in enumerate(parts):
            link = item.get(part, getlink=True) if isinstance(item, h5py.Group) else None
            if link is None:
                return None
            if isinstance(link, h5py.HardLink):
                item = item[part]
                continue
            rest = "/".join([link.path, *parts[n + 1 :]])
            if isinstance(link, h5py.ExternalLink):
                target = self._locate(item.file, link.filename, "HDF5_EXT_PREFIX")
                if target is None:
                    raise InputError(f"it is a link to {link.filename}, and there is no such file")
                return self.find(rest, self._open(target), hops + 1)
            return self.find(rest if rest.startswith("/") else f"{item.name}/{rest}", item.file, hops + 1)
        return item

    def lack(self, dataset: Any) -> str:
        """What is missing of a dataset, never written or gone with another file; "" for nothing."""
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
            needed = math.prod(-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True))
            written = dataset.id.get_num_chunks()
            return f"it has {written} of {needed} chunks" if written < needed else ""
        return "it is empty" if dataset.size and dataset.id.get_storage_size() == 0 else ""

    def kind(self, dataset: Any) -> str:
        """The type of a dataset's numbers, and what is wrong with raw storage in other files."""
        if dataset.external is None:
            return str(dataset.dtype)
        try:
            return ", ".join(filter(None, [str(dataset.dtype), self.lack(dataset)]))
        except OutsideError:
            return f"{dataset.dtype}, outside the folder"

    def shape(self, dataset: Any) -> tuple[int, ...]:
        """The shape of a dataset; () where it has none, or HDF5 would open forbidden files to find it."""
        try:
            if dataset.is_virtual:
                self._check_parts(dataset)
            return tuple(dataset.shape or ())
        except OutsideError:
            return ()

    def _external_lack(self, dataset: Any) -> str:
        """What is missing of raw numbers in other files."""
        folder, rest = _folder(dataset.file), dataset.id.get_storage_size()
        prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", str(folder))
        for name, offset, size in dataset.external:
            target, take = Path(prefix) / name, min(rest, size)
            self._check_place(target)
            if not target.is_file():
                near = f": HDF5 looks in the current folder, so run this in {folder}"
                return f"there is no file {name}{near if (folder / name).is_file() else ''}"
            length = target.stat().st_size
            if length < offset + take:
                return f"{name} has {length} bytes of {offset + take}"
            rest -= take
        return f"its files lack {rest} bytes" if rest else ""

    def _virtual_lack(self, dataset: Any) -> str:
        """What is missing of parts in other datasets, each of which must be complete and as large as its region."""
        boxes = list[Box]()
        for part in self._check_parts(dataset):
            region = _boxes(part.target, dataset.shape)
            boxes += region
            blocks = _count_blocks(part.target, dataset.shape) if part.is_series() else 1
            needed = _points(region) // max(1, blocks)
            for file_name, name in islice(part.names(), blocks):
                if lack := self._part_lack(dataset, file_name, name, part.source, needed):
                    return lack
        return "no part of it stands for some of its numbers" if _has_hole(boxes, dataset.shape) else ""

    def _check_parts(self, dataset: Any) -> list[_Part]:
        """The parts of a virtual dataset, in files that may be read; before the shape, for which HDF5 may open them."""
        parts = [
            _Part(part.file_name, part.dset_name, _slabs(part.vspace), _slabs(part.src_space))
            for part in dataset.virtual_sources()
        ]
        for part in parts:
            for file_name, _ in part.names():
                if file_name == "." or self._locate(dataset.file, file_name, "HDF5_VDS_PREFIX") is None:
                    break  # the end of a series
        return parts

    def _part_lack(self, dataset: Any, file_name: str, name: str, slabs: list[Slab] | None, needed: int) -> str:
        target = None if file_name == "." else self._locate(dataset.file, file_name, "HDF5_VDS_PREFIX")
        if target is None and file_name != ".":
            return f"there is no file {file_name}"
        where = name if target is None else f"{name} of {file_name}"
        opened = set(self._opened)
        try:
            part = self.find(name, dataset.file if target is None else self._open(target))
            if not hasattr(part, "is_virtual"):
                return f"there is no {where}"
            check_filters(part, where, self.path)
            check_sizes(part, self.shape(part))
            if lack := self.lack(part):
                return f"{where}: {lack}"
            points = _points(_boxes(slabs, part.shape))
            return f"{where} has {points} of {needed} numbers" if points < needed else ""
        finally:  # parts may be in thousands of files, more than may be open at once
            for key in self._opened.keys() - opened:
                self._opened.pop(key).id.close()  # with all that is open in it; File.close looks at every open object

    def _open(self, path: Path) -> Any:
        import h5py

        key = path.resolve()
        if key not in self._opened:
            if not path.is_file():
                raise InputError(f"{path} is not a file, but a folder, a pipe or a device")
            self._opened[key] = self._stack.enter_context(open_shared(path) if self._swmr else h5py.File(path, "r"))
        return self._opened[key]

    def _locate(self, owner: Any, name: str, variable: str) -> Path | None:
        """The file that HDF5 would open for a name in another file, in its order; None where there is none."""
        folder, absolute = Path(owner.filename).parent, Path(name).is_absolute()
        last = Path(name).name if absolute else name
        prefixes = [prefix for prefix in os.environ.get(variable, "").split(":") if prefix]
        places = [Path(name)] if absolute else []
        places += [Path(prefix.replace("${ORIGIN}", str(folder))) / last for prefix in prefixes]
        places += [folder / last, Path(last), _folder(owner) / last]
        target = next((place for place in places if place.exists()), None)
        if target is not None:
            self._check_place(target)
        return target

    def _check_place(self, target: Path) -> None:
        real = target.resolve()
        if real.exists() and not any(real.is_relative_to(folder) for folder in self._folders):
            check_outside(real, self.path)


def _folder(file: Any) -> Path:
    """The folder of a file, with symbolic links resolved."""
    return Path(file.filename).resolve().parent


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
    """The indices of each piece of a selection along each axis of an array."""
    for n in shape:  # as much as `_along` takes
        check_claim(32 * n, 0, f"a virtual dataset of {n} rows or columns")
    if slabs is None:
        return [[np.ones(n, bool) for n in shape]]
    return [[_along(n, *axis) for n, axis in zip(shape, slab, strict=True)] for slab in slabs]


def _along(n: int, start: int, stride: int, number: int, block: int) -> NDArray[np.bool_]:
    start, stride, number, block = (min(value, _ENDLESS) for value in (start, stride, number, block))
    steps = np.arange(n) - start
    if number == 1:  # then HDF5 gives any stride
        stride = _ENDLESS
    chosen: NDArray[np.bool_] = (steps >= 0) & (steps // stride < number) & (steps % stride < block)
    return chosen


def _points(boxes: list[Box]) -> int:
    return sum(math.prod(int(axis.sum()) for axis in box) for box in boxes)


def _count_blocks(slabs: list[Slab] | None, shape: tuple[int, ...]) -> int:
    """The parts of a series in an array, by its unlimited axis."""
    for n, (start, stride, number, _) in zip(shape, slabs[0] if slabs else (), strict=False):
        if number > _ENDLESS:
            return max(0, -(-(n - start) // stride))
    return 1


def _has_hole(boxes: list[Box], shape: tuple[int, ...]) -> bool:
    """Whether boxes leave out a part of an array; indices in the same boxes are looked at once.

    HDF5's own union of selections, SELECT_OR, loses points of overlapping pieces (version 2.0.0).
    """
    if 0 in shape or not boxes:
        return 0 not in shape
    kinds = [np.unique(np.stack([box[axis] for box in boxes]), axis=1) for axis in range(len(shape))]
    covered = np.zeros([kind.shape[1] for kind in kinds], bool)
    for n in range(len(boxes)):
        covered[np.ix_(*(kind[n] for kind in kinds))] = True
    return not covered.all()
