"""The compressions of detectors: blocks of LZ4 or Zstandard, bitshuffled or not, in the framing of the HDF5 filters.

bitshuffle stores bit b of every number of a block together: of n numbers of s bytes, byte j of row b holds bit b of the
numbers 8j ... 8j + 7. Each block is then compressed, and preceded by its length.

References: https://github.com/kiyo-masui/bitshuffle, https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_claim
from plugstream.base.errors import InputError

# Three exchanges of bits that transpose a matrix of 8 x 8 bits in 64 (Hacker's Delight, 7-3).
_EXCHANGES = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
_HEAD = 12
_MULTIPLE = 8  # numbers; fewer at the end are stored as they are


def decompress(algorithm: str, size: Any, data: memoryview, most: int) -> NDArray[np.uint8]:
    """The bytes of data compressed by bslz4, bszstd or lz4, in HDF5's framing: total and block size, then blocks.

    Arguments: algorithm; size, of a number in bytes, for bitshuffle; data; most, bytes that there may be.
    """
    if algorithm not in ("bslz4", "bszstd", "lz4"):
        raise InputError(f"it is compressed by {algorithm[:40]!r}; only bslz4, bszstd and lz4 are known")
    if len(data) < _HEAD:
        raise InputError("its compressed bytes end too early")
    total, block = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:_HEAD], "big")
    if total > most:
        raise InputError(f"it says that it has {total} bytes, and {most} are as many as there can be")
    check_claim(total, len(data), "it")
    if algorithm == "lz4":
        return _lz4_blocks(data[_HEAD:], total, block)
    return unshuffle_blocks(data[_HEAD:], total, block, size, lz4_block if algorithm == "bslz4" else _zstd_block)


def check_blocks(data: memoryview, size: int, item: int) -> None:
    """Refuse blocks of bitshuffle in HDF5's framing that end beyond the data: its library does not look.

    Arguments: data; size, bytes that they must give; item, bytes of a number.
    """
    total, block = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:_HEAD], "big")
    left, place = size % (_MULTIPLE * item), _HEAD
    if total != size or not block or block % (_MULTIPLE * item):
        raise InputError(f"it says that it has {total} bytes in blocks of {block}, and has {size} of {item}")
    for start in range(0, size - left, block):
        _, place = _next_piece(data, place, min(block, size - left - start))
    if place + left > len(data):
        raise InputError("its compressed bytes end too early")


def check_blosc(data: Any, size: int) -> None:
    """Refuse a buffer of Blosc whose header lies: its library reads as many bytes as that says, wherever they end.

    Arguments: data; size, bytes that it must give.
    """
    lengths = [int.from_bytes(data[start : start + 4], "little") for start in (4, 12)]
    if len(data) < 16 or lengths[0] != size or not 16 <= lengths[1] <= len(data):
        raise InputError("is damaged: its blosc header is not that of its numbers")


def lz4_block(data: Any, size: int) -> NDArray[np.uint8]:
    """One block of LZ4 that gives `size` bytes; a damaged one is refused."""
    from numcodecs import lz4

    try:
        block = lz4.decompress(size.to_bytes(4, "little") + bytes(data))
    except (RuntimeError, ValueError, OverflowError):
        raise InputError("its compressed bytes are damaged") from None
    return np.frombuffer(block, np.uint8)


def _zstd_block(data: Any, size: int) -> NDArray[np.uint8]:
    """One block of Zstandard that gives `size` bytes; a damaged one is refused."""
    from numcodecs import zstd

    block = np.empty(size, np.uint8)
    try:
        zstd.decompress(bytes(data), block)
    except (RuntimeError, ValueError):
        raise InputError("its compressed bytes are damaged") from None
    return block


def _lz4_blocks(data: memoryview, total: int, block: int) -> NDArray[np.uint8]:
    out, place, start = np.empty(total, np.uint8), 0, 0
    while start < total:
        size = min(block, total - start)
        piece, place = _next_piece(data, place, size)
        out[start : start + size] = np.frombuffer(piece, np.uint8) if len(piece) == size else lz4_block(piece, size)
        start += size
    return out


def _next_piece(data: memoryview, place: int, size: int) -> tuple[memoryview, int]:
    """A compressed block and where the next one begins."""
    length = int.from_bytes(data[place : place + 4], "big")
    place += 4
    if size < 1 or place + length > len(data) or length == 0:
        raise InputError("its compressed bytes end too early")
    return data[place : place + length], place + length


def unshuffle_blocks(
    data: memoryview, total: int, block: int, size: Any, unpack: Callable[[Any, int], NDArray[np.uint8]] = lz4_block
) -> NDArray[np.uint8]:
    """Blocks of bitshuffle.

    Arguments: data; total and block, their sizes in bytes; size of a number in bytes; unpack, of one block.
    """
    if type(size) is not int or size not in (1, 2, 4, 8) or block % (_MULTIPLE * size) or not (block or not total):
        raise InputError(f"its blocks of {block} bytes, of numbers of {size}, are none of bitshuffle")
    left = total % (_MULTIPLE * size)
    full, last, place = total // max(block, 1), total % max(block, 1) - left, 0
    if total // max(block, 1) * 4 > len(data):
        raise InputError("its compressed bytes end too early")
    out, blocks = np.empty(total, np.uint8), np.empty((full, block), np.uint8)
    for number in range(full):
        piece, place = _next_piece(data, place, block)
        blocks[number] = unpack(piece, block)
    out[: full * block] = _unshuffle(blocks, size)
    if last:
        piece, place = _next_piece(data, place, last)
        out[full * block : full * block + last] = _unshuffle(unpack(piece, last)[None], size)
    if len(data) - place != left:
        raise InputError("its compressed bytes do not end where they should")
    out[total - left :] = np.frombuffer(data[place:], np.uint8)
    return out


def _unshuffle(blocks: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The bytes of shuffled blocks (blocks, bytes), one after another."""
    count, length = blocks.shape
    eighths = length // size // 8
    rows = np.ascontiguousarray(blocks.reshape(count, size, 8, eighths).transpose(0, 1, 3, 2)).view("<u8")
    for shift, bits in _EXCHANGES:
        moved = (rows ^ (rows >> np.uint64(shift))) & np.uint64(bits)
        rows = rows ^ moved ^ (moved << np.uint64(shift))
    return rows.view(np.uint8).reshape(count, size, 8 * eighths).transpose(0, 2, 1).reshape(-1)
