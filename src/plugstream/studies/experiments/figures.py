"""The paper's figures, in its layout, from cells."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.files import write_whole
from plugstream.studies.experiments.printed import AVERAGE, METHODS
from plugstream.studies.experiments.table1 import MOMENTA, smallest

__all__ = ["draw_beyond", "draw_budgets", "draw_distances", "draw_images", "draw_stacked", "draw_times"]

_INK = "#333333"
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97")
_LABELS = {"none": "basic", "nesterov": "accelerated"}

Cells = Mapping[Any, dict[str, Any]]


def draw_distances(path: Path, panels: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> None:
    """Figs. 2 and 3: a panel for each step or batch size, basic (solid) and accelerated (dashed), least value dotted.

    Arguments: panels, (title, the cells of the basic and the accelerated run).
    """
    figure, axes = _figure(1, len(panels), width=3.6 * len(panels), height=3.2)
    _distance_panels(axes[0], panels)
    _save(figure, path)


def draw_stacked(path: Path, groups: Sequence[tuple[str, Sequence[tuple[str, dict[str, Any]]]]]) -> None:
    """Fig. 4: one panel a group, above each other, with a curve for each step or batch size and its least value dotted.

    Arguments: groups, (title, (label, cell) of each curve).
    """
    figure, axes = _figure(len(groups), 1, width=5.0, height=3.2 * len(groups))
    for axis, (title, curves) in zip(axes[:, 0], groups, strict=True):
        for colour, (label, cell) in zip(_COLOURS, curves, strict=False):
            step, value = _distance(cell)
            axis.semilogy(step, value, color=colour, label=label)
            axis.axhline(smallest(cell), color=colour, linestyle=":", linewidth=0.9)
        _dress(axis, title, "iteration", "distance to a fixed point")
        axis.legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_times(path: Path, cells: Cells) -> None:
    """Fig. 5: average SNR against the algorithm's seconds an image."""
    figure, axes = _figure(1, 1, width=5.0, height=3.6)
    axis = axes[0, 0]
    for colour, (method, cell) in zip(_COLOURS, cells.items(), strict=False):
        history = cell["history"]["snr"]
        seconds = np.asarray(history["time"]) / len(cell["names"])
        axis.plot(seconds, _mean(history), color=colour, label=method)
    _dress(axis, "a fixed reconstruction time", "seconds an image", "average SNR (dB)")
    axis.set_ylim(bottom=5)
    axis.legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_budgets(path: Path, budgets: Sequence[tuple[str, Cells]]) -> None:
    """Fig. 6: average SNR against the iteration, a panel for each budget of views, above each other."""
    figure, axes = _figure(len(budgets), 1, width=5.0, height=3.2 * len(budgets))
    for axis, (title, cells) in zip(axes[:, 0], budgets, strict=True):
        for colour, (method, cell) in zip(_COLOURS, cells.items(), strict=False):
            axis.plot(cell["history"]["snr"]["step"], _mean(cell["history"]["snr"]), color=colour, label=method)
        _dress(axis, title, "iteration", "average SNR (dB)")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    _save(figure, path)


def draw_beyond(path: Path, panels: Sequence[tuple[str, Cells]]) -> None:
    """Average SNR against denoiser calls, a panel for few and one for many, the paper's final average as a line."""
    figure, axes = _figure(1, len(panels), width=5.4 * len(panels), height=5.2)
    for axis, (title, cells) in zip(axes[0], panels, strict=True):
        for number, (method, cell) in enumerate(cells.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            style = ("-", "--", ":")[number // len(_COLOURS) % 3]
            step = np.asarray(cell["history"]["snr"]["step"])
            axis.plot(step[1:], _mean(cell["history"]["snr"])[1:], style, color=colour, label=method, linewidth=1.3)
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
    figure, axes = _figure(len(rows), len(rows[0]), width=2.3 * len(rows[0]), height=2.5 * len(rows))
    for line, row, (top, left) in zip(axes, rows, boxes, strict=True):
        for axis, (label, image) in zip(line, row, strict=True):
            size = image.shape[-1]
            side = size // 5
            axis.imshow(np.clip(image.astype(float), 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.add_patch(_rectangle(left, top, side))
            inset = axis.inset_axes((0.55, 0.0, 0.45, 0.45))
            inset.imshow(
                np.clip(image[top : top + side, left : left + side].astype(float), 0, 1), cmap="gray", vmin=0, vmax=1
            )
            for part in (axis, inset):
                part.set_xticks([])
                part.set_yticks([])
            for spine in inset.spines.values():
                spine.set_edgecolor("#f0c419")
            axis.set_title(label, fontsize=8, color=_INK)
    _save(figure, path, dpi=90, colours=96)  # photographs make large files


def _distance_panels(axes: Any, panels: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> None:
    for axis, (title, cells) in zip(axes, panels, strict=True):
        for momentum, cell in zip(MOMENTA, cells, strict=True):
            step, value = _distance(cell)
            style = "-" if momentum == "none" else "--"
            axis.semilogy(step, value, style, color=_COLOURS[0], label=_LABELS[momentum])
        least = min(smallest(cell) for cell in cells)
        axis.axhline(least, color=_COLOURS[1], linestyle=":", linewidth=1)
        axis.text(
            0.98, least, f"{least:.2e}", ha="right", va="bottom", fontsize=8, transform=axis.get_yaxis_transform()
        )
        _dress(axis, title, "iteration", "distance to a fixed point")
        axis.legend(frameon=False, fontsize=8)
    low, high = min(axis.get_ylim()[0] for axis in axes), max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(low, high)


def _distance(cell: dict[str, Any]) -> tuple[list[int], NDArray[np.float64]]:
    history = cell["history"]["distance"]
    return history["step"], _mean(history)


def _mean(history: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.asarray(np.asarray(history["value"], dtype=float).mean(1))


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")


def _rectangle(left: int, top: int, side: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), side, side, fill=False, edgecolor="#f0c419", linewidth=1)


def _dress(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10, color=_INK)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _save(figure: Any, path: Path, dpi: int = 120, colours: int | None = None) -> None:
    """Write a figure as PNG, on request with few colours."""
    from matplotlib import pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    pyplot.close(figure)
    if colours is not None:
        from PIL import Image

        picture = Image.open(buffer).convert("RGB").quantize(colours)
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [buffer.getvalue()])
