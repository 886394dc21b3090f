"""What the run of a volume leaves when all of its blocks have finished, made from its file some slices at a time."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import sync_folder, write_whole
from plugstream.base.progress import report
from plugstream.base.quantities import Quantity, sort_quantities
from plugstream.base.volume_file import VolumeFile
from plugstream.images.drawing import (
    INK,
    Curve,
    Panel,
    Shades,
    draw_curves,
    draw_rows,
    encode_figure,
    figure_size,
    label_of,
)
from plugstream.images.pictures import tiff_tags, write_grey
from plugstream.images.space import ImageSpace
from plugstream.runs.folder import write_text
from plugstream.runs.replay import History, replay
from plugstream.runs.results import title_of, wrap_notes
from plugstream.settings import Settings
from plugstream.solver.verdict import Verdict

__all__ = ["middle_planes", "volume_snr", "write_volume_results"]

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
    write_text(folder / "history.csv", _table(history))
    if settings.run.figure_formats:
        report("drawing the report")
        title = "\n".join([f"{title_of(settings)}, by blocks of slices", *wrap_notes([str(verdict)])])
        _draw(folder / "report.png", settings.run.figure_formats, title, planes, span, space, history)
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


def _draw(
    path: Path,
    formats: tuple[str, ...],
    title: str,
    planes: list[NDArray[Any]],
    span: tuple[float, float],
    space: ImageSpace,
    history: History,
) -> None:
    """Three slices on one scale of grey, above what was measured in each block."""
    from matplotlib.figure import Figure

    shades = Shades(*span, label_of(space))
    panels = [
        Panel(space.position(axis, space.shape[axis] // 2), plane.astype(np.float64), shades, space.section(axis))
        for axis, plane in enumerate(planes)
    ]
    width, high = figure_size([panels])
    figure = Figure(figsize=(max(width, 7.2), high + 3.2), layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK, parse_math=False)
    images, curves = np.asarray(figure.subfigures(2, 1, height_ratios=[high, 2.9])).tolist()
    draw_rows(images, [panels], space)
    names = {name for event in history.measured for name, value in event.values.items() if value is not None}
    shown = sort_quantities(history.quantities, names, stop_first=True)[:2]
    if shown:
        draw_curves(curves, [_curve(quantity, history) for quantity in shown])
    for kind in formats:
        write_whole(path.with_suffix(f".{kind}"), [encode_figure(figure, kind, dpi=150)])


def _table(history: History) -> str:
    """What was measured, as the history.csv of any run, with steps and seconds over all blocks."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["quantity", "step", "time", "value"])
    for name in dict.fromkeys(name for event in history.measured for name in event.values):
        for event in history.measured:
            if (value := event.values.get(name)) is not None:
                writer.writerow([name, event.step, f"{event.time:.6f}", repr(float(value))])
    return file.getvalue()


def _curve(quantity: Quantity, history: History) -> Curve:
    """What was measured of a quantity over the steps of all blocks, one after the other."""
    points = [(event.step, event.values.get(quantity.name)) for event in history.measured]
    known = [(step, value) for step, value in points if value is not None]
    return Curve(quantity, [step for step, _ in known], [value for _, value in known])
