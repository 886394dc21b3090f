"""Scans of any instrument: measurements with their columns, in memory, on disk and still arriving."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugstream.scans.scan import MemoryScan, Scan
    from plugstream.scans.store import StoredScan, open_scan
    from plugstream.scans.writer import ScanWriter, save_scan

__all__ = ["MemoryScan", "Scan", "ScanWriter", "StoredScan", "open_scan", "save_scan"]

_HOME = {"MemoryScan": "scan", "Scan": "scan", "StoredScan": "store", "open_scan": "store"}


def __getattr__(name: str) -> Any:  # imported when first used: parts of this package do without torch
    if name not in __all__:
        raise AttributeError(f"module 'plugstream.scans' has no attribute {name!r}")
    return getattr(import_module(f"plugstream.scans.{_HOME.get(name, 'writer')}"), name)
