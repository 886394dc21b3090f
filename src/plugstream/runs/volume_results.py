"""The results of a volume whose blocks have all finished, made from its file a few slices at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import sync_folder
from plugstream.base.progress import report
from plugstream.base.volume_file import VolumeFile
from plugstream.images.drawing import Panel, Shades, label_of
from plugstream.images.pictures import write_grey
from plugstream.images.space import ImageSpace
from plugstream.images.tags import tiff_tags
from plugstream.runs.replay import replay
from plugstream.runs.report import draw_figure
from plugstream.runs.results import title_of, wrap_notes, write_history
from plugstream.settings import Settings
from plugstream.solver.verdict import Verdict

_MOST_TIFF = 3 << 30  # bytes of ImageJ's TIFF, which has 32 bits for places


def write_volume_results(
    folder: Path, volume: VolumeFile, space: ImageSpace, settings: Settings, verdict: Verdict
) -> None:
    """Write result.tif, a PNG of the middle slice, history.csv and the report's figures, each whole or not at all.

    A TIFF is written of volumes up to 3 GB, which is what programs that read ImageJ's take; result.npy is all of them.
    """
    report("writing the results")
    planes, span = middle_planes(volume)
    order = -1 if space.upwards else 1
    write_grey(folder / "result.png", planes[0][::order], span, space.section(0))
    if math.prod(volume.shape) * volume.dtype.itemsize <= _MOST_TIFF:
        _write_tiff(folder / "result.tif", volume, space)
    history = replay(folder / "events.jsonl")
    names = dict.fromkeys(name for event in history.measured for name in event.values)
    rows = [(name, e.step, e.time, e.values.get(name)) for name in names for e in history.measured]
    write_history(folder, ((name, step, time, value) for name, step, time, value in rows if value is not None))
    if settings.run.figure_formats:
        report("drawing the report")
        title = "\n".join([f"{title_of(settings)}, by blocks of slices", *wrap_notes([str(verdict)])])
        shades = Shades(*span, label_of(space))
        panels = [
            Panel(space.position(axis, space.shape[axis] // 2), plane.astype(np.float64), shades, space.section(axis))
            for axis, plane in enumerate(planes)
        ]
        draw_figure(folder / "report.png", [panels], space, title, history, settings.run.figure_formats)
    sync_folder(folder)


def middle_planes(volume: VolumeFile) -> tuple[list[NDArray[Any]], tuple[float, float]]:
    """The slices through the middle across each axis, and the least (or 0, if none is negative) and largest value."""
    depth, height, width = volume.shape
    rows, columns = np.empty((depth, width), volume.dtype), np.empty((depth, height), volume.dtype)
    middle = volume.read(depth // 2, depth // 2 + 1)[0]
    low, high = 0.0, -math.inf
    for first, part in volume.portions():
        report("reading the volume", first, depth)
        rows[first : first + len(part)] = part[:, height // 2]
        columns[first : first + len(part)] = part[:, :, width // 2]
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    return [middle, rows, columns], (low, high if high > low else low + 1.0)


def volume_snr(volume: VolumeFile, truth: NDArray[Any]) -> float:
    """20 log10(||x|| / ||x - y||) of the volume y in a file against the truth x, in dB."""
    energy = error = 0.0
    for first, part in volume.portions():
        exact = truth[first : first + len(part)].astype(np.float64)
        energy += float((exact**2).sum())
        error += float(((exact - part) ** 2).sum())
    return 10 * math.log10(energy / error) if energy > 0 and error > 0 else math.inf


def _write_tiff(path: Path, volume: VolumeFile, space: ImageSpace) -> None:
    """A stack of slices, written one by one."""
    import tifffile

    order = -1 if space.upwards else 1

    def slices() -> Iterator[NDArray[Any]]:
        for _, part in volume.portions():
            yield from np.ascontiguousarray(part[:, ::order].astype(np.float32))

    temporary = path.with_name(f".{path.name}.new")
    try:
        tifffile.imwrite(temporary, slices(), shape=volume.shape, dtype=np.float32, **tiff_tags(space))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
