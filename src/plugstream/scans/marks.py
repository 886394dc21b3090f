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

from plugstream.errors import InputError
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
        self._scan = bytes.fromhex(scan_id)[:8]
        self._array = array.encode()

    def make(self, view: int, checksum: bytes) -> bytes:
        """The mark of a chunk that begins with this view and has this crc32c."""
        said = view.to_bytes(8, "little") + self._scan
        return said + crc32c(checksum + said + self._array)

    def fault(self, mark: bytes, view: int, checksum: bytes) -> str:
        """What is wrong with a chunk that should begin with this view, "" if nothing is."""
        if mark == self.make(view, checksum):
            return ""
        said, scan = mark[:-CRC], mark[8:-CRC]
        if crc32c(checksum + said + self._array) != mark[-CRC:]:
            return "its mark fails its checksum: it is damaged, or of another array"
        number = int.from_bytes(mark[:8], "little")
        other = "this scan" if scan == self._scan else f"another scan, {scan.hex()}..."
        return f"it holds view {number} of {other}; a file was swapped, or copied from elsewhere"
