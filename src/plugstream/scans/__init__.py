"""Scans: measurements with their geometry, in memory and on disk."""

from plugstream.scans.geometry import BornGeometry, Grid, ring
from plugstream.scans.scan import MemoryScan, Scan
from plugstream.scans.store import StoredScan, open_scan, save_scan

__all__ = ["BornGeometry", "Grid", "MemoryScan", "Scan", "StoredScan", "open_scan", "ring", "save_scan"]
