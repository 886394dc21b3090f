"""Describe a scan, the folder of a run, or a file that can be imported."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plugstream.cli.common import scan_place

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument(
        "scan",
        type=scan_place,
        help="a scan: a Zarr folder, a zip file of one, or an fsspec address; the folder of a run; or a file to import",
    )


def run(parsed: argparse.Namespace) -> int:
    """Describe a scan, the folder of a run, or a file that can be imported."""
    if isinstance(parsed.scan, Path) and any((parsed.scan / name).is_file() for name in ("run.json", "events.jsonl")):
        from plugstream.runs.describe import describe_run

        _show(describe_run(parsed.scan))
        return 0
    import math

    import numpy as np
    import torch

    from plugstream.models.born import choose_method
    from plugstream.scans.importers import describe_file, import_outlook
    from plugstream.scans.store import open_scan

    lines = describe_file(parsed.scan)
    if lines is not None:
        print("\n".join([f"{parsed.scan}: {import_outlook(parsed.scan)}", *map(_plain, lines)]))
        return 0
    scan = open_scan(parsed.scan)
    if scan.n_views == 0:
        state = "complete, but without views" if scan.complete else "still running, no views yet"
        print(f"{'scan':<12}{scan.path} ({state}), {len(scan.setup.receivers)} receivers")
        return 0
    g = scan.geometry
    height, width = g.grid.shape
    kinds = {"fields given": g.fields, "plane waves": g.plane_waves, "line sources": g.transmitters}
    kind = next(name for name, array in kinds.items() if array is not None)
    choice = choose_method(g, device=torch.device("cpu"), dtype=torch.float32)
    masked = f"{g.mask.mean():.1%} of all" if isinstance(g.mask, np.ndarray) else "masked by view"
    covered = "all" if g.mask is None else masked
    rows = {
        "scan": f"{scan.path} ({'complete' if scan.complete else 'still running'})",
        "views": f"{scan.n_views}, {kind}",
        "receivers": f"{g.n_receivers}, {covered} recorded",
        "data": f"{scan.nbytes / 1e6:.2f} MB of complex64, format version {scan.version}",
        "wavelength": f"{g.wavelength:.6g} m in vacuum, background permittivity {g.background:g}",
        "image": f"{height} x {width} pixels of {g.grid.pixel:.6g} m, {g.wavelength / g.grid.pixel:.3g} a wavelength",
        "distance": f"receivers {'far away' if g.far_field else _range(g.receivers)}"
        + (f", transmitters {_range(g.transmitters)}" if g.transmitters is not None else ""),
        "size": f"{math.hypot(height, width) * g.grid.pixel / g.wavelength:.4g} wavelengths across the diagonal",
        "model": f"{'dense' if choice.expansion is None else 'fast'} on a CPU: {choice.reason}",
        "truth": "known" if scan.truth is not None else "not known",
        "provenance": ", ".join(_plain(f"{key} {value}") for key, value in scan.provenance.items()) or "unknown",
    }
    _show(rows)
    return 0


def _show(rows: dict[str, str]) -> None:
    for name, text in rows.items():
        print(f"{name:<12}{_plain(text, most=1500)}")


def _plain(text: str, most: int = 300) -> str:
    """What a file says, fit for a terminal: in one line, not too long, and nothing that a terminal would obey."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return shown if len(text) <= most else f"{shown[:most]}..."


def _range(points: Any) -> str:
    import numpy as np

    radii = np.hypot(*points.T)
    low, high = radii.min(), radii.max()
    return f"{low:.4g} m" if np.isclose(low, high) else f"{low:.4g} to {high:.4g} m"
