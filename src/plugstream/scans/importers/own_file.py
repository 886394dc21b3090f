"""FILE.py:NAME as an importer: a function of a Python file, called with the file and the scan to make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugstream.base.registry import Options, register

__all__: list[str] = []


@register("importer", "FILE.py:NAME", "yours: NAME(file, out) makes a scan, or writes one to out")
def build(options: Options, file: Path, out: Path, *, name: str) -> Any:
    """Call it; whether the file may be run is for `plugstream.settings.consent`."""
    from plugstream.base.user_code import call_from_file

    return call_from_file(name, file, out)
