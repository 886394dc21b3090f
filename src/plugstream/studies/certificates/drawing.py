"""The certificate as a picture: the bounds of every pair of images against the distance of its images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from plugstream.images.drawing import encode_figure
from plugstream.studies.certificates.certificate import Certificate

_INK = "#222222"
_KINDS = {
    "noise": ("images with noise", "#8a8f98", "s"),
    "path": ("along a reconstruction", "#2e8b57", "^"),
    "search": ("worst directions", "#1f5fa8", "o"),
    "halved": ("halved", "#c2571a", "D"),
}


def draw_certificate(certificate: Certificate, path: str | Path) -> None:
    """Draw the three lower bounds of every pair over its size, with the proved ones, to a PNG, PDF or SVG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.4, 4.2), layout="constrained")
    title = f"{certificate.denoiser}, sigma {certificate.sigma:.4g}: every point is a pair of images"
    figure.suptitle(title, color=_INK, fontsize=11, parse_math=False)  # the name of a file may have a $
    theta = certificate.averaged
    panels: list[tuple[str, str, float | None]] = [
        ("lipschitz", "Lipschitz constant of D, at least", None if theta is None else 1.0),
        ("residual", "Lipschitz constant of I - D, at least", None if theta is None else 2 * theta),
        ("theta", "smallest theta, at least", theta),
    ]
    for axes, (goal, title, proved) in zip(figure.subplots(1, 3), panels, strict=True):
        top = _points(axes, certificate, goal)
        limit = None if goal == "residual" else 1.0
        if limit is not None:
            words = "nonexpansive up to here" if goal == "lipschitz" else "averaged below this"
            axes.axhline(limit, color=_INK, linewidth=1, linestyle=":", label=words)
        if proved is not None:
            axes.axhline(proved, color="#7a3fa0", linewidth=1.4, label="at most: proved")
        axes.set_xscale("log")
        if top > 5:
            axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("distance of the images (root mean square) / sigma", fontsize=9)
        axes.set_title(title, fontsize=10, color=_INK)
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    entries = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    path = Path(path)
    path.write_bytes(encode_figure(figure, path.suffix.removeprefix(".").lower() or "png", dpi=110))


def _points(axes: Any, certificate: Certificate, goal: str) -> float:
    """Plot the pairs, as crosses at the top if no theta will do, and return the largest value."""
    values: list[float] = [getattr(pair, goal) for pair in certificate.pairs]
    finite: list[float] = [value for value in values if value < math.inf]
    top = max([*finite, 1.0])
    for kind, (label, color, marker) in _KINDS.items():
        points = [(pair.size, getattr(pair, goal)) for pair in certificate.pairs if pair.kind == kind]
        inside = [(x, y) for x, y in points if y < math.inf]
        if inside:
            axes.plot(*zip(*inside, strict=True), marker, color=color, markersize=3.5, alpha=0.7, label=label)
        beyond = [(x, 1.1 * top) for x, y in points if y == math.inf]
        if beyond:
            axes.plot(*zip(*beyond, strict=True), "x", color=color, markersize=5, label=f"{label}: none will do")
    return top
