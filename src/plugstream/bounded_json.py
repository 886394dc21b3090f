"""JSON from strangers: what could cost time or memory is refused by a scan of its bytes, before it is parsed."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

__all__ = ["load_json"]

# A string, so that what stands inside of one is not counted. One that does not end reaches to the end, and none is
# looked into twice, so that it takes linear time on any bytes.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def load_json(text: bytes, *, most_bytes: int, most_depth: int = 16, most_digits: int = 64) -> Any:
    """What a JSON text says, or a ValueError of one line.

    Python's parser turns a million digits into an integer that cannot be printed again, descends into as many lists as
    there are brackets, guesses UTF-16 and takes NaN for a number. Here a text is UTF-8, has at most `most_bytes` bytes,
    lists and objects at most `most_depth` deep, and no number with more than `most_digits` digits in a row; all of that
    is known before the parser runs. Numbers such as 1e400 are infinite, so check those that must be finite.
    """
    if len(text) > most_bytes:
        raise ValueError(f"it has {len(text)} bytes, and {most_bytes} are allowed")
    many, long = text.count(b"[") + text.count(b"{") > most_depth, re.compile(rb"[0-9]{%d}" % (most_digits + 1))
    if many or long.search(text):  # perhaps only within strings
        bare = _STRING.sub(b'""', text)
        if _depth(bare) > most_depth:
            raise ValueError(f"it is more than {most_depth} lists deep")
        if long.search(bare):
            raise ValueError(f"it has a number of more than {most_digits} digits")
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON in UTF-8") from None


def _depth(bare: bytes) -> int:
    """How many lists and objects are open at once, at most."""
    codes = np.frombuffer(bare, dtype=np.uint8)
    opened = (codes == ord("[")) | (codes == ord("{"))
    closed = (codes == ord("]")) | (codes == ord("}"))
    return int(np.cumsum(opened.astype(np.int64) - closed).max(initial=0))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
