"""What a run leaves when it is over: its images, its measurements as a table, and the report."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.algorithms import State
from plugstream.bounds import on_bounds
from plugstream.files import sync_folder, write_whole
from plugstream.image_space import ImageSpace
from plugstream.progress import report
from plugstream.result import Result, Series
from plugstream.runs.folder import write_text
from plugstream.runs.images import save_image
from plugstream.runs.refined import save_refined
from plugstream.runs.replay import History, replay
from plugstream.runs.report import draw_report
from plugstream.runs.watch import theory_of
from plugstream.scans.scan import Scan
from plugstream.settings import DenoiserSettings, Settings

__all__ = ["bound_notes", "title_of", "wrap_notes", "write_known", "write_results"]

# An image is said to sit on a bound where at least this part of it does.
_SUBSTANTIAL = 0.2
# Characters that a line of the report's title has room for.
_LINE = 84


def write_known(folder: Path, scan: Scan, start: torch.Tensor) -> None:
    """Write what is known before the first step, for who looks on: the first image and, where there is one, the truth.

    What is there already, of a run that goes on, stays.
    """
    if not (folder / "start.npy").exists():
        file = io.BytesIO()
        np.save(file, _single(start))
        write_whole(folder / "start.npy", [file.getvalue()])
    if scan.truth is not None and not (folder / "truth.npy").exists():
        save_image(torch.from_numpy(scan.truth), folder / "truth", ImageSpace.of(scan))


def write_results(
    folder: Path,
    scan: Scan,
    settings: Settings,
    result: Result[State],
    backprojection: torch.Tensor | None,
    notes: Sequence[str] = (),
) -> None:
    """Write result, backprojection, what was refined, history.csv and the report's figures, each whole or not at all.

    Arguments: backprojection, None where there is none; notes, on what a person should know of
    the image, which stand in the report.
    """
    report("writing the results")
    space = ImageSpace.of(scan)
    save_image(result.image, folder / "result", space)
    if backprojection is not None:
        save_image(backprojection, folder / "backprojection", space)
    if result.parameters:
        save_refined(folder, result.parameters)
    write_text(folder / "history.csv", _history(result.history))
    if settings.run.figure_formats:
        report("drawing the report")
        _draw(folder, scan, settings, result, backprojection, notes)
    sync_folder(folder)


def _draw(
    folder: Path,
    scan: Scan,
    settings: Settings,
    result: Result[State],
    backprojection: torch.Tensor | None,
    notes: Sequence[str],
) -> None:
    history = replay(folder / "events.jsonl")
    draw_report(
        folder / "report.png",
        space=ImageSpace.of(scan),
        formats=settings.run.figure_formats,
        title="\n".join([_title(settings, result, history), *wrap_notes(notes)]),
        result=_single(result.image),
        backprojection=None if backprojection is None else _single(backprojection),
        truth=scan.truth,
        uncertainty=None if result.uncertainty is None else _single(result.uncertainty),
        measured=history.measured,
        quantities=history.quantities,
        theory=theory_of(history),
        arrivals=history.arrivals(),
        stages=history.stages,
    )


def _single(image: torch.Tensor) -> NDArray[Any]:
    """An image in single precision, complex where it is."""
    image = image.detach().cpu().resolve_conj()
    return image.to(torch.complex64 if image.is_complex() else torch.float32).numpy()


def bound_notes(image: torch.Tensor, denoiser: DenoiserSettings) -> list[str]:
    """What to say of an image that sits on its bounds; nothing where no substantial part of it does."""
    return [
        f"{_percent(part)} of the image sits on its {'lower' if name == 'low' else 'upper'} bound {bound:g}: that is "
        f"background, or values that the bound hides, which --{name} none would show"
        for name, bound, part in on_bounds(image, denoiser.least, denoiser.most)
        if part >= _SUBSTANTIAL
    ]


def _percent(part: float) -> str:
    return "all" if part == 1 else f"{min(99.9, 100 * part):.3g} %"


def wrap_notes(notes: Sequence[str]) -> list[str]:
    """Notes as lines that the report's title has room for."""
    return [line for text in notes for line in textwrap.wrap(text, _LINE)]


def _history(history: dict[str, Series]) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["quantity", "step", "time", "value"])
    for name, series in history.items():
        for step, seconds, value in zip(series.step, series.time, series.value, strict=True):
            writer.writerow([name, int(step), f"{seconds:.6f}", repr(float(value))])
    return file.getvalue()


def title_of(settings: Settings, left_out: str = "") -> str:
    """What a run does: algorithm, denoiser, and how many views a step, with what is left out of them."""
    s, a = settings.sampler, settings.algorithm
    title = a.entry.facts.get("title", Path(a.name).name)
    name = title(settings) if callable(title) else title
    whole = s.entry.facts.get("draws") == "all"
    views = "all views" if whole else f"{s.views or 'some'} views a step ({Path(s.name).name})"
    return f"{name}, {Path(settings.denoiser.name).name}, {views}{left_out}"


def _title(settings: Settings, result: Result[State], history: History) -> str:
    left_out = ""
    if history.views and (damaged := history.views[-1].damaged):
        left_out = f", {len(damaged)} damaged of {history.views[-1].views} left out"
    return f"{title_of(settings, left_out)}: {result.state.k} steps in {result.time:.1f} s"
