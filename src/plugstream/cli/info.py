"""Describe a scan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("scan", type=Path, help="a scan, a Zarr folder")


def run(parsed: argparse.Namespace) -> int:
    """Describe a scan."""
    import math

    from plugstream.scans.store import open_scan

    scan = open_scan(parsed.scan)
    g = scan.geometry
    height, width = g.grid.shape
    covered = "all" if g.mask is None else f"{g.mask.mean():.1%} of all"
    rows = {
        "scan": f"{scan.path} ({'complete' if scan.complete else 'still running'})",
        "views": f"{scan.n_views}, {'fields given' if g.fields is not None else 'line sources'}",
        "receivers": f"{g.n_receivers}, {covered} recorded",
        "data": f"{scan.n_views * g.n_receivers * 8 / 1e6:.2f} MB of complex64",
        "wavelength": f"{g.wavelength:.6g} m in vacuum, background permittivity {g.background:g}",
        "image": f"{height} x {width} pixels of {g.grid.pixel:.6g} m, {g.wavelength / g.grid.pixel:.3g} a wavelength",
        "distance": f"receivers {_range(g.receivers)}"
        + (f", transmitters {_range(g.transmitters)}" if g.transmitters is not None else ""),
        "size": f"{math.hypot(height, width) * g.grid.pixel / g.wavelength:.4g} wavelengths across the diagonal",
        "truth": "known" if scan.truth is not None else "not known",
        "provenance": ", ".join(f"{key} {value}" for key, value in scan.provenance.items()) or "unknown",
    }
    for name, text in rows.items():
        print(f"{name:<12}{text}")
    return 0


def _range(points: Any) -> str:
    import numpy as np

    radii = np.hypot(*points.T)
    low, high = radii.min(), radii.max()
    return f"{low:.4g} m" if np.isclose(low, high) else f"{low:.4g} to {high:.4g} m"
