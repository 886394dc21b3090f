"""Numbers of a scan that cannot be right get no weight in a run: found before its first step, kept in its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from plugstream.base.errors import DamagedError, InputError
from plugstream.base.progress import report
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.images.pictures import write_marked
from plugstream.instruments.base import Instrument
from plugstream.models.base import Model
from plugstream.models.outliers import Outliers
from plugstream.runs.plan import Plan
from plugstream.scans.outliers import is_camera, mask_column
from plugstream.scans.scan import Scan, view_bytes
from plugstream.solver.outliers import find_outliers

_FILE, PICTURE, _FORMAT = "outliers.safetensors", "outliers.png", "plugstream-outliers"


def mark_outliers(scan: Scan, plan: Plan, folder: Path, *, begun: bool, whole: bool) -> tuple[Plan, Outliers | None]:
    """The numbers of a scan that cannot be right, and the plan with the model that this has built.

    Those that a run has found are in its folder, with a picture of the data in which they are red.

    Arguments: begun, whether the run has steps behind it, so that it finds none; whole, whether it is of all slices.
    """
    s, file = plan.settings.scan, folder / _FILE
    if file.exists():
        try:
            return plan, Outliers(**load_tensors(file, _FORMAT)[1])
        except InputError as error:
            raise DamagedError(f"{file} cannot be used: {error}; start a new run") from error
    column = next((column for column in scan.instrument.columns if column.covers), None)
    large = scan.n_views * view_bytes(scan) > s.in_memory * 1e6
    if begun or large or column is None or s.outliers == "none" or s.follow or s.skip_damaged or not whole:
        return plan, None
    if not scan.instrument.has_neighbours(scan.columns):
        return plan, None
    report("looking for numbers that cannot be right")
    alone = plan if plan.parts.group.size == 1 else replace(plan.alone(), checked=plan.checked)
    models = list[Model]()

    def build(bad: Tensor | None) -> Model:
        if bad is None:
            models.append(alone.model(scan.columns, scan.n_views))
            return models[0]
        columns = {**scan.columns, **mask_column(scan.instrument, scan.columns, bad)}
        return replace(alone, known_model=None).model(columns, scan.n_views)

    data = alone.parts.fidelity(build(None), scan.read()).data(torch.arange(scan.n_views))
    camera = is_camera(scan.instrument)
    found = find_outliers(build, data, camera=camera)
    if found is None:
        return plan if plan.parts.group.size > 1 else replace(plan, known_model=models[0]), None
    parts = {"bad": found.bad, "elements": found.elements, "views": found.views}
    save_tensors(file, parts if found.weights is None else {**parts, "weights": found.weights}, {"format": _FORMAT})
    if not bool(found.bad.any()):
        return plan, found
    rows, marks = data.abs().cpu(), found.bad.cpu()
    if camera:
        rows, marks = rows.sqrt().mean(0), found.elements.cpu()
    write_marked(folder / PICTURE, rows.reshape(-1, rows.shape[-1]).numpy(), marks.reshape(-1, rows.shape[-1]).numpy())
    return replace(plan, known_model=None), found


def describe_outliers(instrument: Instrument, found: Outliers) -> str:
    """For the log."""
    axes = instrument.data.shape
    element = "pixel" if len(axes) > 1 else str(axes[-1])
    see = f"; see {PICTURE}" if bool(found.bad.any()) else ""
    return f"{found.describe(element)} (--outliers none lets them count{see})"
