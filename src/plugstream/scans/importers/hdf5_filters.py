"""The compressed chunks of an HDF5 dataset, before a filter of HDF5 gets them.

Several filters believe what a chunk says of its own lengths: they read beyond it, which ends the process, or unpack
gigabytes for a chunk of a few numbers. So these lengths are compared here with the chunk's bytes and its numbers.

References: HDF5's deflate; the filters of Blosc, LZ4, bitshuffle and Zstandard, https://github.com/HDFGroup/hdf5_plugins
"""

from __future__ import annotations

import math
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.base.capacity import check_claim, most_read
from plugstream.base.errors import InputError
from plugstream.base.trust import TRUST, is_trusted
from plugstream.scans.streams.compression import check_blocks, check_blosc, decompress

_DEFLATE, _SHUFFLE, _CHECKSUM, _BLOSC, _LZ4, _BITSHUFFLE, _ZSTD, _BLOSC2 = 1, 2, 3, 32001, 32004, 32008, 32015, 32026
_FILTERS = {_BLOSC: "blosc", _LZ4: "lz4", _BITSHUFFLE: "bitshuffle", 32013: "zfp", _ZSTD: "zstd", 32017: "sz"}
_FILTERS |= {_BLOSC2: "blosc2"}
_SOUND = {*range(1, 7), 32000, _BLOSC, _LZ4, _BITSHUFFLE, _ZSTD, _BLOSC2}  # with the checks below, or their own
_RATIO = 1032  # of bytes that deflate makes of one, at most
_BLOCK = 1 << 20


def check_filters(dataset: Any, name: str, path: Path) -> None:
    """Refuse a dataset of a filter that is not installed, or crashes on damaged bytes; hdf5plugin's are loaded."""
    import h5py

    for code, _ in _pipeline(dataset):
        word = _FILTERS.get(code, f"filter {code}")
        if not h5py.h5z.filter_avail(code):
            try:
                import hdf5plugin  # noqa: F401 - which registers its filters
            except ImportError:
                raise InputError(
                    f"{name} of {path} is compressed by {word}; install it with: pip install 'plugstream[filters]'"
                ) from None
            if not h5py.h5z.filter_avail(code):
                raise InputError(f"{name} of {path} is compressed by filter {code}, which hdf5plugin does not have")
        if code not in _SOUND and not is_trusted():
            raise InputError(
                f"{name} of {path} is compressed by {word}, which crashes on damaged bytes; if you trust who wrote it, "
                f"add {TRUST}"
            )


def check_sizes(dataset: Any, shape: tuple[int, ...]) -> None:
    """Refuse more rows, chunks, or numbers in a chunk, than the file can hold, before HDF5 or we look at each.

    Arguments: dataset; shape of its, which of a virtual one HDF5 may open other files to tell.
    """
    rows, held = shape[0] if shape else 0, Path(dataset.file.filename).stat().st_size
    check_claim(8 * rows, held, f"the list of its {rows} rows")
    if not dataset.is_virtual and dataset.chunks is not None:
        chunks = math.prod(-(-n // size) for n, size in zip(shape, dataset.chunks, strict=True))
        check_claim(8 * chunks, held, f"the list of its {chunks} chunks")
        held = dataset.id.get_storage_size() // max(1, dataset.id.get_num_chunks())
        check_claim(math.prod(dataset.chunks) * dataset.dtype.itemsize, held, "each of its chunks")


def _pipeline(dataset: Any) -> list[tuple[int, tuple[int, ...]]]:
    """The filters of a dataset, in the order of writing, each with its options."""
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(n) for n in range(plist.get_nfilters())] if dataset.chunks is not None else []
    return [(code, options) for code, _, options, _ in filters]


class CheckedChunks:
    """The chunks of a dataset, each compared once with what it says of itself. Arguments: dataset, of h5py."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._filters, self._checked = dataset, _pipeline(dataset), set[int]()
        self._needed = any(code in (_DEFLATE, _BLOSC, _LZ4, _BITSHUFFLE, _ZSTD) for code, _ in self._filters)

    def check(self, key: Any) -> None:
        """Refuse chunks that lie. Arguments: key, the index that is read next."""
        if not self._needed:
            return
        first = key[0] if isinstance(key, tuple) and key else key
        high, numbers = self._dataset.chunks[0], range(self._dataset.shape[0])
        chosen = numbers[first] if isinstance(first, slice | int | np.integer) else numbers
        chosen = range(chosen, chosen + 1) if isinstance(chosen, int) else chosen
        whole = range(chosen.start // high, -(-chosen.stop // high))
        rows = whole if chosen.step == 1 else {n // high for n in chosen}
        across = [range(0, n, size) for n, size in zip(self._dataset.shape[1:], self._dataset.chunks[1:], strict=True)]
        for row in rows:
            if row not in self._checked:
                for place in product(*across):
                    self._check_chunk((row * high, *place))
                self._checked.add(row)

    def _check_chunk(self, place: tuple[int, ...]) -> None:
        """Undo the lengths of the filters, the last one first, as far as they are known."""
        try:
            mask, content = self._dataset.id.read_direct_chunk(place)
        except (OSError, RuntimeError, ValueError):  # it was never written, or HDF5 will say why it cannot be read
            return
        data, size = memoryview(content), math.prod(self._dataset.chunks) * self._dataset.dtype.itemsize
        if len(data) > size + size // 8 + 1024:
            raise InputError(f"its chunk at {place} has {len(data)} bytes for {size} of numbers")
        for number in range(len(self._filters))[::-1]:
            code, options = self._filters[number]
            if mask >> number & 1 or code == _SHUFFLE:  # left out, or of as many bytes
                continue
            if code == _CHECKSUM:
                data = data[:-4]
                continue
            before = size + 4 * any(code == _CHECKSUM for code, _ in self._filters[:number])
            if code == _DEFLATE and _RATIO * len(data) > most_read():
                _check_deflate(data, before)
            elif code == _BLOSC:
                check_blosc(data, before)
            elif code == _LZ4:  # whose library does not look where its input ends
                decompress("lz4", 0, data, before)
            elif code == _BITSHUFFLE and len(options) > 4 and options[4]:
                if options[2] != self._dataset.dtype.itemsize:  # by which its library divides
                    raise InputError(f"its numbers have {self._dataset.dtype.itemsize} bytes, not {options[2]}")
                check_blocks(data, before, options[2])
            elif code == _ZSTD and _zstd_size(data) != before:
                raise InputError(f"its compressed bytes are not those of {before}")
            return  # what is within is seen once this is undone, by filters that know how long it is


def _zstd_size(data: memoryview) -> int:
    """The bytes that a frame of Zstandard says it gives, -1 where it does not."""
    head = bytes(data[:18]).ljust(18, b"\0")
    alone, kind = head[4] >> 5 & 1, head[4] >> 6
    start, wide = 5 + (not alone) + (0, 1, 2, 4)[head[4] & 3], (alone, 2, 4, 8)[kind]
    return int.from_bytes(head[start : start + wide], "little") + 256 * (wide == 2) if wide else -1


def _check_deflate(data: memoryview, size: int) -> None:
    """Refuse bytes that unpack to more than `size`; in pieces, which are let go again."""
    stream, total, rest = zlib.decompressobj(), 0, bytes(data)
    try:
        while total <= size and (piece := stream.decompress(rest, _BLOCK)):
            total, rest = total + len(piece), stream.unconsumed_tail
    except zlib.error:
        raise InputError("its compressed bytes are damaged") from None
    if total > size:
        raise InputError(f"its compressed bytes unpack to more than {size}")
