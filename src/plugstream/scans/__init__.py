"""Scans: measurements with their geometry, in memory, on disk and still arriving."""

from plugstream.scans.geometry import BornGeometry, Grid, Setup, ring
from plugstream.scans.scan import MemoryScan, Scan
from plugstream.scans.store import StoredScan, open_scan
from plugstream.scans.writer import ScanWriter, save_scan

__all__ = [
    "BornGeometry",
    "Grid",
    "MemoryScan",
    "Scan",
    "ScanWriter",
    "Setup",
    "StoredScan",
    "open_scan",
    "ring",
    "save_scan",
]
