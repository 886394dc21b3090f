"""A mark before each chunk, by which it is known which view of which scan it is.

A checksum says that bytes are as they were written, and not that they are in their place: two files of a scan that
were swapped, or a file of another scan, pass it. So 20 bytes stand before each chunk, in a gap that the index of its
shard skips, so that other readers of Zarr do not see them:

    8   the number of the chunk's first view, little-endian
    8   the first bytes of the scan's id
    4   crc32c of the chunk's own crc32c, these 16 bytes, and the array's name

A shard that another program wrote again through Zarr has no gaps, begins with a chunk, and carries no marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.places import CRC, crc32c

__all__ = ["MARK", "Marks"]

MARK = 20
"""Bytes of a mark."""


class Marks:
    """The marks of an array.

    Arguments: scan_id, 32 hexadecimal digits; array, its name.
    """

    def __init__(self, scan_id: str, array: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", scan_id):
            raise InputError(f"the scan's id must be 32 hexadecimal digits, not {scan_id[:40]!r}")
        self.scan = bytes.fromhex(scan_id)[:8]
        self._array = array.encode()

    def make(self, view: int, checksum: bytes) -> bytes:
        """The mark of a chunk that begins with this view and has this crc32c."""
        label = view.to_bytes(8, "little") + self.scan
        return label + crc32c(checksum + label + self._array)

    def faults(self, edges: NDArray[np.uint8], views: Sequence[int]) -> dict[int, str]:
        """What is wrong with chunks that should begin with these views, by their place in the list.

        Arguments: edges (chunks, 20 + 4), the mark of each chunk and its crc32c.
        """
        from google_crc32c import value

        content, width, scan, array = edges.tobytes(), MARK + CRC, self.scan, self._array
        wrong = {}
        for number, view in enumerate(views):  # for each view that is read: a microsecond
            start = number * width
            label, sums = content[start : start + 16], content[start + 16 : start + width]
            if int.from_bytes(sums[:CRC], "little") != value(sums[CRC:] + label + array):
                wrong[number] = "its mark fails its checksum: it is damaged, or of another array"
            elif label != view.to_bytes(8, "little") + scan:
                other = "this scan" if label[8:] == scan else f"another scan, {label[8:].hex()}..."
                stored = int.from_bytes(label[:8], "little")
                wrong[number] = f"it holds view {stored} of {other}; a file was swapped, or copied from elsewhere"
        return wrong
