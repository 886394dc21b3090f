"""The paper's figures, in its layout, from cells."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import write_whole
from plugstream.images.drawing import encode_figure
from plugstream.studies.experiments.cells import Cell
from plugstream.studies.experiments.printed import AVERAGE, METHODS
from plugstream.studies.experiments.table1 import MOMENTA, smallest

_INK = "#333333"
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97")


def draw_distances(path: Path, panels: Sequence[tuple[str, Sequence[Cell]]]) -> None:
    """Figs. 2 and 3: a panel for each step or batch size, basic (solid) and accelerated (dashed), least value dotted.

    Arguments: panels, (title, the cells of the basic and the accelerated run).
    """
    figure, axes = _figure(1, len(panels), width=3.6 * len(panels), height=3.2)
    for axis, (title, cells) in zip(axes[0], panels, strict=True):
        for momentum, cell in zip(MOMENTA, cells, strict=True):
            label, style = ("basic", "-") if momentum == "none" else ("accelerated", "--")
            axis.semilogy(*distance_curve(cell), style, color=_COLOURS[0], label=label)
        least = min(smallest(cell) for cell in cells)
        axis.axhline(least, color=_COLOURS[1], linestyle=":", linewidth=1)
        right = axis.get_yaxis_transform()
        axis.text(0.98, least, f"{least:.2e}", ha="right", va="bottom", fontsize=8, transform=right)
        _dress(axis, title, "iteration", "distance to a fixed point")
        axis.legend(frameon=False, fontsize=8)
    limits = [axis.get_ylim() for axis in axes[0]]
    for axis in axes[0]:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    _save(figure, path)


def draw_stacked(
    path: Path,
    panels: Sequence[tuple[str, Mapping[str, Cell]]],
    curve: Callable[[Cell], tuple[Any, Any]],
    x: str,
    *,
    low: float | None = None,
    legend: str = "best",
) -> None:
    """Figs. 4 to 6: panels above each other, a curve for each cell.

    Arguments: panels, (title, the cells by their labels); curve, the values along x and y; x, the label of that axis;
    low, where an axis of SNR begins. Without it the axis is of distances, logarithmic, and least values are dotted.
    """
    figure, axes = _figure(len(panels), 1, width=5.0, height=(3.6 if len(panels) == 1 else 3.2) * len(panels))
    for axis, (title, cells) in zip(axes[:, 0], panels, strict=True):
        for colour, (label, cell) in zip(_COLOURS, cells.items(), strict=False):
            axis.plot(*curve(cell), color=colour, label=label)
            if low is None:
                axis.axhline(smallest(cell), color=colour, linestyle=":", linewidth=0.9)
        _dress(axis, title, x, "distance to a fixed point" if low is None else "average SNR (dB)")
        if low is None:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=low)
        axis.legend(frameon=False, fontsize=8, loc=legend)
    _save(figure, path)


def draw_beyond(path: Path, panels: Sequence[tuple[str, Mapping[str, Cell]]]) -> None:
    """Average SNR against denoiser calls, a panel for few and one for many, the paper's final average as a line."""
    figure, axes = _figure(1, len(panels), width=5.4 * len(panels), height=5.2)
    for axis, (title, cells) in zip(axes[0], panels, strict=True):
        for number, (method, cell) in enumerate(cells.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            style = ("-", "--", ":")[number // len(_COLOURS) % 3]
            calls, snr = snr_curve(cell)
            axis.plot(calls[1:], snr[1:], style, color=colour, label=method, linewidth=1.3)
        axis.axhline(AVERAGE[METHODS.index("PnP-SGD(10)")], color=_INK, linewidth=0.7)
        _dress(axis, title, "denoiser calls", "average SNR (dB)")
        axis.set_ylim(14, 27.5)
        axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    _save(figure, path)


def draw_images(
    path: Path, rows: Sequence[Sequence[tuple[str, NDArray[Any]]]], boxes: Sequence[tuple[int, int]]
) -> None:
    """Fig. 7: a row for each picture, the truth first, each with a rectangle of it enlarged in a corner.

    Arguments: rows, (label, image) of each; boxes, the upper left corner of each row's rectangle, a quarter wide.
    """
    from matplotlib.patches import Rectangle

    figure, axes = _figure(len(rows), len(rows[0]), width=2.3 * len(rows[0]), height=2.5 * len(rows))
    for line, row, (top, left) in zip(axes, rows, boxes, strict=True):
        for axis, (label, image) in zip(line, row, strict=True):
            side = image.shape[-1] // 5
            image = np.clip(image.astype(float), 0, 1)
            axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.add_patch(Rectangle((left, top), side, side, fill=False, edgecolor="#f0c419", linewidth=1))
            inset = axis.inset_axes((0.55, 0.0, 0.45, 0.45))
            inset.imshow(image[top : top + side, left : left + side], cmap="gray", vmin=0, vmax=1)
            for part in (axis, inset):
                part.set_xticks([])
                part.set_yticks([])
            for spine in inset.spines.values():
                spine.set_edgecolor("#f0c419")
            axis.set_title(label, fontsize=8, color=_INK)
    _save(figure, path, dpi=90, colours=96)  # photographs make large files


def distance_curve(cell: Cell) -> tuple[list[int], NDArray[np.float64]]:
    """The distance to a fixed point by iterations, averaged over the images."""
    return cell["history"]["distance"]["step"], _mean(cell["history"]["distance"])


def snr_curve(cell: Cell) -> tuple[list[int], NDArray[np.float64]]:
    """The SNR by iterations, averaged over the images."""
    return cell["history"]["snr"]["step"], _mean(cell["history"]["snr"])


def time_curve(cell: Cell) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The SNR by the algorithm's seconds an image, averaged over the images."""
    return np.asarray(cell["history"]["snr"]["time"]) / len(cell["names"]), _mean(cell["history"]["snr"])


def _mean(history: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.asarray(np.asarray(history["value"], dtype=float).mean(1))


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _dress(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10, color=_INK)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _save(figure: Any, path: Path, dpi: int = 120, colours: int | None = None) -> None:
    """Write a figure as PNG, on request with few colours."""
    buffer = io.BytesIO(encode_figure(figure, dpi=dpi))
    if colours is not None:
        from PIL import Image

        picture = Image.open(buffer).convert("RGB").quantize(colours)
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [buffer.getvalue()])
