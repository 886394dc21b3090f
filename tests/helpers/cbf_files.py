"""Pictures in CBF."""

import base64
import hashlib
from typing import Any

import numpy as np


def encode_cbf(picture: np.ndarray[Any, Any]) -> bytes:
    """byte_offset compression, pixel by pixel."""
    out, before = bytearray(), 0
    for value in picture.astype(int).ravel().tolist():
        step, before = value - before, value
        for size in (1, 2, 4, 8):
            if size == 8 or -(2 ** (8 * size - 1)) < step < 2 ** (8 * size - 1):
                out += step.to_bytes(size, "little", signed=True)
                break
            out += (-(2 ** (8 * size - 1))).to_bytes(size, "little", signed=True)
    rows, columns = picture.shape
    head = (
        "###CBF: VERSION 1.5\r\n\r\ndata_x\r\n\r\n_array_data.data\r\n;\r\n--CIF-BINARY-FORMAT-SECTION--\r\n"
        'Content-Type: application/octet-stream;\r\n     conversions="x-CBF_BYTE_OFFSET"\r\n'
        f"Content-Transfer-Encoding: BINARY\r\nX-Binary-Size: {len(out)}\r\nX-Binary-ID: 1\r\n"
        f"Content-MD5: {base64.b64encode(hashlib.md5(bytes(out)).digest()).decode()}\r\n"
        f"X-Binary-Size-Fastest-Dimension: {columns}\r\nX-Binary-Size-Second-Dimension: {rows}\r\n\r\n"
    )
    tail = b"\r\n--CIF-BINARY-FORMAT-SECTION----\r\n;\r\n"
    return head.encode() + b"\x0c\x1a\x04\xd5" + bytes(out) + tail
