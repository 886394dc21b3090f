"""What a scan may claim: files, numbers and sizes are bounded before anything is read into memory because of them.

A scan may come from anybody, and may be damaged. So what it says of its size is believed as far as its files bear it
out.
"""

from __future__ import annotations

import json
from typing import Any

from plugstream.base.errors import InputError

__all__ = ["MOST_JSON", "check_json_size", "parse_json"]

MOST_JSON = 16 << 20
"""Bytes of zarr.json or commit.json; provenance may be long, and yet not as long as this."""

_MOST_DIGITS = 400  # of a number; the longest that a double can be written as, and no more, is useful


def check_json_size(name: str, size: int) -> None:
    """Refuse a file of attributes that is too long to be one."""
    if size > MOST_JSON:
        raise InputError(f"{name} has {size / 1e6:.0f} MB, but at most {MOST_JSON / 1e6:.0f} MB are read")


def parse_json(text: bytes, name: str) -> Any:
    """What JSON of a scan says; numbers of hundreds of digits, and lists within lists without end, are refused.

    Arguments: text; name of the file, for messages.
    """
    check_json_size(name, len(text))

    def number(digits: str, kind: type) -> Any:
        if len(digits) > _MOST_DIGITS:
            raise InputError(f"{name} has a number of {len(digits)} digits, which is none that a scan has")
        return kind(digits)

    try:
        return json.loads(text, parse_int=lambda d: number(d, int), parse_float=lambda d: number(d, float))
    except RecursionError:
        raise InputError(f"{name} has lists within lists without end") from None
