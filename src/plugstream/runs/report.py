"""The report of a run as one picture: truth, first back-projection and result, and the curves of the event log."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.files import write_whole
from plugstream.runs.events import Event
from plugstream.runs.watch import Theory

__all__ = ["draw_report"]

_INK, _BLUE, _ORANGE = "#222222", "#1f5fa8", "#c2571a"


def draw_report(
    path: Path,
    *,
    title: str,
    result: NDArray[np.float32],
    backprojection: NDArray[np.float32] | None,
    truth: NDArray[np.float32] | None,
    measured: Sequence[Event],
    theory: Theory | None = None,
) -> None:
    """Draw the images side by side on one grey scale, labelled with their SNR, above the convergence curves.

    Where the theory was watched, what was measured is drawn beside the bound of Proposition 5.
    """
    from matplotlib.figure import Figure

    from plugstream.monitors import snr

    def label(name: str, image: NDArray[np.float32]) -> str:
        if truth is None:
            return name
        import torch

        return f"{name}, {float(snr(torch.from_numpy(image), torch.from_numpy(truth))):.2f} dB"

    panels = [("truth", truth)] if truth is not None else []
    if backprojection is not None:
        panels.append((label("first back-projection", backprojection), backprojection))
    panels.append((label("result", result), result))
    reference = truth if truth is not None else result
    scale = {"vmin": min(0.0, float(reference.min())), "vmax": float(reference.max()), "cmap": "gray"}

    figure = Figure(figsize=(3.4 * len(panels) + 0.4, 6.6), layout="constrained")
    figure.suptitle(title, fontsize=11, color=_INK)
    images, curves = np.asarray(figure.subfigures(2, 1, height_ratios=[3.6, 3.0])).tolist()
    for axes, (name, image) in zip(np.atleast_1d(images.subplots(1, len(panels))), panels, strict=True):
        axes.imshow(image, **scale)
        axes.set_title(name, fontsize=10, color=_INK)
        axes.set_axis_off()
    if theory is None or not theory.t:
        _draw_curves(curves, measured)
    else:
        left, right = np.asarray(curves.subfigures(1, 2, width_ratios=[1.5, 1.0])).tolist()
        _draw_curves(left, measured)
        _draw_theory(right, theory)
    file = io.BytesIO()
    figure.savefig(file, dpi=110, format="png")
    write_whole(path, [file.getvalue()])


def _draw_curves(figure: Any, measured: Sequence[Event]) -> None:
    names = [("relative_distance", "||x - P(x)||² relative to x⁰", True), ("snr", "SNR (dB)", False)]
    if not any("snr" in event["values"] for event in measured):
        names[1] = (
            ("cost", "cost", True) if any("cost" in e["values"] for e in measured) else ("fidelity", "d(x)", True)
        )
    names = [entry for entry in names if any(entry[0] in event["values"] for event in measured)]
    if not names:
        return
    for axes, (name, title, log), color in zip(
        np.atleast_1d(figure.subplots(1, len(names))), names, (_BLUE, _ORANGE), strict=False
    ):
        points = [(e["step"], e["values"][name]) for e in measured if e["values"].get(name) is not None]
        # Both curves start at x^0, whose SNR is 0 dB and whose relative distance is 1 by definition.
        axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, linewidth=1.4)
        if log and all(value > 0 for _, value in points):
            axes.set_yscale("log")
        axes.set_xlabel("iteration", fontsize=9)
        axes.set_title(title, fontsize=10, color=_INK)
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)


def _draw_theory(figure: Any, theory: Theory) -> None:
    """The mean distance over t steps, the bound of Proposition 5, and the steps that contradict nonexpansiveness."""
    axes = figure.subplots()
    axes.plot(theory.t, theory.average, color=_BLUE, marker="o", markersize=3, linewidth=1.4, label="measured")
    if theory.bounds is not None:
        style = "-" if not theory.unmet else "--"
        axes.plot(
            theory.t,
            theory.bounds,
            style,
            color=_ORANGE,
            linewidth=1.4,
            label="bound of Proposition 5",
        )
    if theory.contradictions:
        axes.plot(
            theory.contradictions,
            [0.03] * len(theory.contradictions),
            "|",
            color="#b3202c",
            transform=axes.get_xaxis_transform(),
            label="contradicting steps",
        )
    axes.set_yscale("log")
    notes = ["iteration t"]
    if theory.bounds is not None:
        notes.append("x* of the bound is taken to be the last image")
    if theory.unmet:
        notes += textwrap.wrap("it does not apply: " + "; ".join(theory.unmet), 62)
    axes.set_xlabel("\n".join(notes), fontsize=7)
    axes.set_title("mean of ||x - P(x)||² over t steps", fontsize=10, color=_INK)
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7)
