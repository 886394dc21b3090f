"""The report of a run as one figure: truth, usual method and result, and the curves of the event log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.quantities import sort_quantities
from plugstream.base.text import shell_quote
from plugstream.base.volume_file import open_volume
from plugstream.images.drawing import (
    INK,
    Curve,
    Panel,
    Shades,
    arrange_panels,
    draw_curves,
    draw_rows,
    encode_figure,
    figure_size,
    label_of,
    with_error,
    with_uncertainty,
)
from plugstream.images.planes import turn_images
from plugstream.images.space import ImageSpace
from plugstream.runs.events import Stage
from plugstream.runs.folder import check_plain
from plugstream.runs.pages.pictures import picture_files
from plugstream.runs.replay import History, replay
from plugstream.runs.results import METHODS, bound_notes, middle_planes, title_of
from plugstream.settings import Settings

FIGURES = (".png", ".pdf", ".svg")
"""The endings of figures."""

_GREY = "#777777"
# Characters that a line of the title has room for.
_LINE = 84
# Of at most so many stages the names are written, if they have at most so many letters.
_MOST_NAMES, _SHORT = 6, 16


def draw_run(folder: Path, kind: str, settings: Settings | None) -> bytes:
    """The report of the finished run in a folder as a figure, from what the run has left there.

    Arguments: folder; kind, the ending of the file: png, pdf, svg; settings of the run, None if they cannot be read.
    """
    check_plain(folder)
    history, files = replay(folder / "events.jsonl"), picture_files(folder, running=False, finished=True)
    stop, space = history.stop, history.space
    if stop is None or space is None or settings is None or "result" not in files:
        raise InputError(
            f"{folder} has no result to draw; 'plugstream report {shell_quote(folder)}' makes a page of what there is"
        )
    notes = [f"{question} {answer['word']}: {answer['text']}" for question, answer in (stop.answers or {}).items()]
    notes.insert(0, f"{title_of(settings)}: {stop.step} steps in {stop.time:.1f} s")
    if (folder / "blocks.json").exists():  # of a volume that may be larger than memory
        planes, span = middle_planes(open_volume(files["result"]))
        shades, middle = (
            Shades(*span, label_of(space)),
            [space.position(axis, n // 2) for axis, n in enumerate(space.shape)],
        )
        rows = [[Panel(middle[axis], planes[axis].astype(float), shades, space.section(axis)) for axis in range(3)]]
        return draw_figure(rows, space, _lines(notes), history, kind)
    shown = ("result", "truth", "uncertainty", *METHODS)
    try:
        images = {role: np.load(files[role], allow_pickle=False) for role in shown if role in files}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the images in {folder}: {error}") from error
    return draw_report(
        title=_lines([*notes, *bound_notes(torch.from_numpy(images["result"]), settings.denoiser)]),
        space=space,
        result=images["result"],
        compared=next(((METHODS[role], images[role]) for role in METHODS if role in images), None),
        truth=images.get("truth"),
        uncertainty=images.get("uncertainty"),
        history=history,
        kind=kind,
    )


def _lines(notes: Sequence[str]) -> str:
    """Notes in lines that the title has room for."""
    return "\n".join(line for text in notes for line in textwrap.wrap(text, _LINE))


def draw_report(
    *,
    title: str,
    space: ImageSpace,
    result: NDArray[Any],
    compared: tuple[str, NDArray[Any]] | None,
    truth: NDArray[Any] | None,
    uncertainty: NDArray[Any] | None = None,
    history: History,
    kind: str = "png",
) -> bytes:
    """A figure of the images on one grey scale, labelled with their SNR, above the curves of the history.

    Volumes are drawn as three slices, complex images as magnitude and phase (`arrange_panels`), turned to the truth
    where the phase is free (`turn_images`). Where the truth is known the error is drawn too, on a scale of its own.

    Arguments: space, whose units the axes have; compared, name and image of what the result is compared with;
    uncertainty, a map of the error to expect; kind, as of `draw_run`.
    """
    from plugstream.solver.monitors import snr

    def label(name: str, image: NDArray[Any]) -> str:
        return name if truth is None else f"{name}, {float(snr(image, truth, space.ndim, phase=space.phase)):.2f} dB"

    images = [] if truth is None else [("truth", truth)]
    if compared is not None:
        images.append((label(*compared), compared[1]))
    images.append((label("result", result), result))
    images = turn_images(images, space, truth)
    rows = arrange_panels(images, space, result if truth is None else truth)
    if truth is not None:
        rows = with_error(rows, images[-1][1] - images[0][1], space)
    if uncertainty is not None:
        rows = with_uncertainty(rows, uncertainty, space)
    return draw_figure(rows, space, title, history, kind)


def draw_figure(rows: Sequence[Sequence[Panel]], space: ImageSpace, title: str, history: History, kind: str) -> bytes:
    """A figure of rows of images above the curves of a history, marked where views came and where stages begin."""
    from matplotlib.figure import Figure

    width, height = figure_size(rows)
    figure = Figure(figsize=(max(width, 7.2), height + 3.2), layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK, parse_math=False)  # names of files may have a $
    images, curves = np.asarray(figure.subfigures(2, 1, height_ratios=[height, 2.9])).tolist()
    draw_rows(images, rows, space)
    _draw_curves(curves, history)
    return encode_figure(figure, kind, dpi=150)


def _draw_curves(figure: Any, history: History) -> None:
    """What one may stop by, and what says most of the image: against the truth if it is known."""
    points = history.points()
    quantities = sort_quantities(history.quantities, points, stop_first=True)[:2]
    curves = [Curve(q, [k for k, _ in points[q.name]], [value for _, value in points[q.name]]) for q in quantities]
    if not curves:
        return
    arrivals = history.arrivals()
    for axes, curve in zip(draw_curves(figure, curves), curves, strict=True):
        if len(arrivals) > 1:
            _mark_arrivals(axes, arrivals, max(curve.steps))
        _mark_stages(axes, history.stages)


def _mark_stages(axes: Any, stages: Sequence[Stage]) -> None:
    """A line where each stage begins, with its name where there is room for it."""
    for stage in stages:
        if stage.step > 0:
            axes.axvline(stage.step, color=_GREY, linewidth=0.8, linestyle=(0, (3, 3)))
        if len(stages) <= _MOST_NAMES:
            name = stage.name if len(stage.name) <= _SHORT else f"{stage.views} views"
            place = {"xy": (stage.step, 1), "xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
            axes.annotate(name, xytext=(3, -8), fontsize=7, color=_GREY, parse_math=False, **place)


def _mark_arrivals(axes: Any, arrivals: Sequence[tuple[int, int]], last: int) -> None:
    """A tick at each step from which on there were more views, and how many there were, on an axis of their own."""
    steps, views = (list(values) for values in zip(*arrivals, strict=True))
    low = [0.02] * (len(steps) - 1)
    axes.plot(steps[1:], low, "|", color=_GREY, markersize=7, transform=axes.get_xaxis_transform())
    other = axes.twinx()
    other.step([*steps, max(last, steps[-1])], [*views, views[-1]], where="post", color=_GREY, linewidth=0.9, alpha=0.7)
    other.set_ylim(0, 1.05 * max(views))
    other.set_ylabel("views that have come", fontsize=8, color=_GREY)
    other.tick_params(labelsize=7, colors=_GREY)
    other.yaxis.get_major_locator().set_params(integer=True)
    other.spines[["top", "left", "bottom"]].set_visible(False)
    other.spines["right"].set_color(_GREY)
    other.set_zorder(axes.get_zorder() - 1)  # behind the curve
    axes.patch.set_visible(False)
