"""Images with physical axes and a colour bar, and a result as one figure; matplotlib is imported only to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.image_space import ImageSpace
from plugstream.quantities import Quantity, sort_quantities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plugstream.solver import Result

__all__ = [
    "BLUE",
    "INK",
    "ORANGE",
    "Curve",
    "Panel",
    "Shades",
    "draw_curves",
    "draw_images",
    "figure_size",
    "label_of",
    "plot_result",
]

INK, BLUE, ORANGE = "#222222", "#1f5fa8", "#c2571a"
_PANEL = 3.1  # inches of an image's longer side
_MOST_IMAGES = 6


@dataclass(frozen=True)
class Shades:
    """The colours of some panels, from `low` to `high`, and what their bar says."""

    low: float
    high: float
    label: str = ""
    colours: str = "gray"

    @classmethod
    def of(cls, image: NDArray[Any], label: str = "") -> Shades:
        """From the least value, or zero if none is negative, to the largest."""
        values = image[np.isfinite(image)]
        low, high = (min(0.0, float(values.min())), float(values.max())) if values.size else (0.0, 1.0)
        return cls(low, high if high > low else low + 1.0, label)


@dataclass(frozen=True)
class Panel:
    """An image (H, W) to draw, with what stands above it."""

    title: str
    image: NDArray[Any]
    shades: Shades


@dataclass(frozen=True)
class Curve:
    """What was measured of a quantity: at which steps, and (n, ...) values."""

    quantity: Quantity
    steps: Sequence[int]
    values: ArrayLike


def figure_size(panels: Sequence[Panel]) -> tuple[float, float]:
    """Inches that the panels take side by side, with their axes and colour bars."""
    h, w = panels[0].image.shape
    bars = sum(_ends(panels, number) for number in range(len(panels)))
    width, height = _PANEL * w / max(h, w), _PANEL * h / max(h, w)
    return len(panels) * max(width, 1.0) + 0.85 * bars + 0.8, max(height, 1.0) + 0.75


def label_of(space: ImageSpace) -> str:
    """What a colour bar says: the quantity, with its unit if it has one."""
    return f"{space.quantity} ({space.value_unit})" if space.value_unit else space.quantity


def draw_images(figure: Any, panels: Sequence[Panel], space: ImageSpace) -> None:
    """Draw images side by side with axes in the space's unit, y as it says, and a bar for each scale of colours."""
    unit = space.scale()[0]
    row = np.atleast_1d(figure.subplots(1, len(panels), sharey=True)).tolist()
    for number, (axes, panel) in enumerate(zip(row, panels, strict=True)):
        shades = panel.shades
        drawn = axes.imshow(
            panel.image,
            origin="lower" if space.upwards else "upper",
            extent=space.extent(),
            vmin=shades.low,
            vmax=shades.high,
            cmap=shades.colours,
            interpolation="nearest",
        )
        axes.set_title(panel.title, fontsize=10, color=INK)
        axes.set_xlabel("column" if space.spacing is None else f"{space.axes[-1]} ({unit})", fontsize=9)
        if number == 0:
            axes.set_ylabel("row" if space.spacing is None else f"{space.axes[-2]} ({unit})", fontsize=9)
        axes.tick_params(labelsize=8, color="#666666", labelleft=number == 0)
        axes.locator_params(nbins=5)
        for spine in axes.spines.values():
            spine.set_color("#999999")
        if _ends(panels, number):
            bar = figure.colorbar(drawn, cax=axes.inset_axes((1.05, 0.0, 0.05, 1.0)), extend=_beyond(panels, shades))
            bar.ax.tick_params(labelsize=8, color="#666666")
            bar.outline.set_edgecolor("#999999")
            bar.set_label(shades.label, fontsize=9)


def draw_curves(figure: Any, curves: Sequence[Curve]) -> list[Any]:
    """Draw what was measured, side by side, and return the axes."""
    row: list[Any] = np.atleast_1d(figure.subplots(1, len(curves))).tolist()
    for number, (axes, curve) in enumerate(zip(row, curves, strict=True)):
        values = np.asarray(curve.values, dtype=np.float64).reshape(len(curve.steps), -1)
        axes.plot(curve.steps, values, color=(BLUE, ORANGE)[number % 2], marker="o", markersize=3, linewidth=1.4)
        if curve.quantity.logarithmic and np.nanmin(values) > 0:
            axes.set_yscale("log")
        axes.set_xlabel("iteration", fontsize=9)
        axes.set_title(curve.quantity.label, fontsize=10, color=INK)
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return row


def plot_result(result: Result[Any], space: ImageSpace, truth: NDArray[Any] | None = None) -> Figure:
    """The image of a result beside the truth, if it is known, above what was measured; a complex one as size and phase.

    Of several images the first six are drawn. Arguments: result; space, where its pixels lie; truth (H, W).
    """
    from matplotlib.figure import Figure

    image = result.image.detach().cpu().numpy()
    space.check_shape(image.shape)
    if truth is not None:
        space.check_shape(truth.shape)
    panels = _panels(image, truth, label_of(space))
    history = {name: series for name, series in result.history.items() if len(series.step) > 1}
    quantities = sort_quantities((series.quantity for series in history.values()), history, stop_first=True)[:2]
    curves = [Curve(q, history[q.name].step.tolist(), history[q.name].value) for q in quantities]
    width, height = figure_size(panels)
    figure = Figure(
        figsize=(max(width, 3.2 * len(curves), 4.4), height + 0.4 + 2.4 * bool(curves)), layout="constrained"
    )
    figure.suptitle(f"{result.state.k} steps in {result.time:.1f} s: {result.reason.value}", fontsize=10, color=INK)
    if not curves:
        draw_images(figure, panels, space)
        return figure
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=[height, 2.4])).tolist()
    draw_images(above, panels, space)
    draw_curves(below, curves)
    return figure


def _panels(image: NDArray[Any], truth: NDArray[Any] | None, quantity: str) -> list[Panel]:
    images = image.reshape(-1, *image.shape[-2:])[:_MOST_IMAGES]
    names = ["result"] if len(images) == 1 else [f"image {number}" for number in range(len(images))]
    shown = list(zip(names, images, strict=True))
    if truth is not None and truth.ndim == 2:
        shown.insert(0, ("truth", truth))
    if np.iscomplexobj(image):
        shades = Shades.of(np.abs(images), f"|{quantity}|")
        phase = Shades(-math.pi, math.pi, "phase (rad)", "twilight")
        sizes = [Panel(f"{name}, magnitude", np.abs(pixels), shades) for name, pixels in shown]
        return sizes + [Panel(f"{name}, phase", np.angle(pixels), phase) for name, pixels in shown]
    shades = Shades.of(images if truth is None else truth, quantity)
    return [Panel(name, pixels, shades) for name, pixels in shown]


def _ends(panels: Sequence[Panel], number: int) -> bool:
    """Whether this panel is the last of those with its colours."""
    return number + 1 == len(panels) or panels[number + 1].shades != panels[number].shades


def _beyond(panels: Sequence[Panel], shades: Shades) -> str:
    """Whether values lie beyond the ends of the colours, in the words of matplotlib's colour bars."""
    values = np.concatenate([panel.image.ravel() for panel in panels if panel.shades == shades])
    slack = 0.005 * (shades.high - shades.low)
    below, above = bool((values < shades.low - slack).any()), bool((values > shades.high + slack).any())
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")
