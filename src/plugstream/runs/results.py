"""What a run leaves when it is over: its images, its measurements as a table, and the report."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.algorithms import State
from plugstream.base.files import sync_folder, write_whole
from plugstream.base.progress import report
from plugstream.base.quantities import Series
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.sign_test import on_bounds
from plugstream.images.pictures import save_image
from plugstream.images.space import ImageSpace
from plugstream.runs.folder import write_text
from plugstream.runs.parts import Parts
from plugstream.runs.refined import save_refined
from plugstream.runs.replay import History, replay
from plugstream.runs.report import draw_report
from plugstream.runs.watch import theory_of
from plugstream.scans.scan import Scan
from plugstream.settings import DenoiserSettings, Settings
from plugstream.solver.result import Result

__all__ = ["Comparison", "bound_notes", "form_comparison", "title_of", "wrap_notes", "write_known", "write_results"]

# An image is said to sit on a bound where at least this part of it does.
_SUBSTANTIAL = 0.2
_METHODS = {"filtered": "filtered back-projection", "sirt": "SIRT", "gridding": "gridding", "cg-sense": "CG-SENSE"}
# Characters that a line of the report's title has room for.
_LINE = 84


@dataclass(frozen=True)
class Comparison:
    """An image that a result is compared with: the file that it is in, without its ending, and what it is called."""

    image: torch.Tensor
    file: str
    name: str


def form_comparison(
    scan: Scan, fidelity: DataFidelity, parts: Parts, views: torch.Tensor | None = None
) -> Comparison | None:
    """The image by the instrument's usual method, or else the back-projection; None where there is neither.

    Of several processes all call it, and the first alone has an image by the usual method.

    Arguments: scan; fidelity of its views; parts; views to form it of, all if not given.
    """
    from plugstream.scans.baselines.first_image import form_baseline, usual_method

    method = usual_method(scan)
    if method == "filtered" or (method is not None and views is None):
        if not parts.group.leads:
            return None
        report(f"forming the image by {_METHODS[method]}")
        image = form_baseline(scan, method, views, device=parts.device, dtype=parts.dtype)
        return Comparison(image, method, _METHODS[method])
    if fidelity.model.intensities:  # whose waves have no phase to go back with
        return None
    report("forming the back-projection")
    image = fidelity.backprojection(views)
    # Where the derivative at zero is zero, as of intensities of waves, there is none.
    known = fidelity.linear or bool(image.any())
    return Comparison(image, "backprojection", "first back-projection") if known else None


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
    compared: Comparison | None,
    notes: Sequence[str] = (),
) -> None:
    """Write result, what it is compared with, what was refined, history.csv and the report's figures.

    Each is written whole or not at all.

    Arguments: compared, None where there is nothing to compare with; notes, on what a person should know of the image,
    which stand in the report.
    """
    report("writing the results")
    space = ImageSpace.of(scan)
    save_image(result.image, folder / "result", space)
    if compared is not None:
        save_image(compared.image, folder / compared.file, space)
    if result.parameters:
        save_refined(folder, result.parameters)
    write_text(folder / "history.csv", _history(result.history))
    if settings.run.figure_formats:
        report("drawing the report")
        _draw(folder, scan, settings, result, compared, notes)
    sync_folder(folder)


def _draw(
    folder: Path,
    scan: Scan,
    settings: Settings,
    result: Result[State],
    compared: Comparison | None,
    notes: Sequence[str],
) -> None:
    history = replay(folder / "events.jsonl")
    draw_report(
        folder / "report.png",
        space=ImageSpace.of(scan),
        formats=settings.run.figure_formats,
        title="\n".join([_title(settings, result, history), *wrap_notes(notes)]),
        result=_single(result.image),
        compared=None if compared is None else (compared.name, _single(compared.image)),
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
        for name, bound, part in on_bounds(image, denoiser.least, denoiser.upper)
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
