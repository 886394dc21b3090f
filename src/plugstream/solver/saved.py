"""A result on disk: result.npy with pictures of it beside, and result.json with what its run says of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms.base import State
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.base.files import sync_folder, write_whole
from plugstream.base.quantities import Series, read_quantity
from plugstream.images.pictures import save_image
from plugstream.images.space import read_space
from plugstream.solver.result import Result, Stop
from plugstream.solver.verdict import Answer, Outcome, Verdict


@dataclass(frozen=True)
class FinalState:
    """The state of a result that was read from disk: its image and its step, from which `solve` can start anew."""

    k: int
    image: Tensor


def save_result(result: Result[Any], folder: Path | str) -> None:
    """Write a result into a folder, which is made if it is not there: result.npy, .tif and .png, and result.json.

    `load_result` reads it, as it reads the folder of a run. Refined parameters and the error map are not among it.
    """
    folder = Path(folder)
    if not folder.parent.is_dir():
        raise InputError(f"the folder {folder.parent} does not exist; make it first")
    if (folder / "result.json").exists():
        raise InputError(f"{folder} has a result already; choose another folder, or remove it")
    folder.mkdir(exist_ok=True)
    try:
        if result.image.ndim == len(result.plain_space.shape):
            save_image(result.image, folder / "result", result.plain_space)
        else:  # several images, which have no one picture
            np.save(folder / "result.npy", result.image.detach().cpu().resolve_conj().numpy())
        write_record(result, folder)
        sync_folder(folder)
    except OSError as error:
        raise StorageError(f"cannot write the result to {folder}: {error.strerror or error}") from error


def write_record(result: Result[Any], folder: Path) -> None:
    """Write result.json: what a run says of its image, and what it measured."""
    verdict = result.verdict
    record = {
        "steps": result.state.k,
        "image_step": result.image_step,
        "reason": result.reason.name,
        "time": result.time,
        "wall": result.wall,
        "outcome": verdict.outcome.name,
        "text": verdict.text,
        "to_go": _plain(verdict.to_go),
        "explanation": verdict.explanation.content(),
        "strength": verdict.strength.content(),
        "space": None if result.space is None else result.space.content(),
        "image_axes": result.image_axes,
        "channels": result.channels,
        "history": {
            name: {
                "quantity": series.quantity.content(),
                "step": series.step.tolist(),
                "time": series.time.tolist(),
                "value": _plain(series.value.tolist()),
            }
            for name, series in result.history.items()
        },
    }
    write_whole(folder / "result.json", [json.dumps(record, allow_nan=False).encode()])


def load_result(folder: Path | str) -> Result[State]:
    """The result in the folder of a run, or where `Result.save` wrote one.

    Its image, verdict and measurements are those that were written; to go on with a run use `plugstream resume`.

    Arguments: folder, such as that of `plugstream reconstruct --out`.
    """
    folder = Path(folder)
    if not (folder / "result.json").is_file():
        raise InputError(f"{folder} has no result.json: it is no folder of a run that has ended with a result")
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        image = torch.from_numpy(np.load(folder / "result.npy", allow_pickle=False))
        answers = [Answer(**record[name]) for name in ("explanation", "strength")]
        verdict = Verdict(Outcome[record["outcome"]], record["text"], record["to_go"], *answers)
        history = {name: _read_series(rows) for name, rows in record["history"].items()}
        about: dict[str, Any] = {name: record[name] for name in ("image_axes", "channels")}
        space = None if record["space"] is None else read_space(record["space"])
        ends = (Stop[record["reason"]], history, float(record["time"]), float(record["wall"]), verdict)
        state = FinalState(int(record["steps"]), image)
        return Result(image, int(record["image_step"]), state, *ends, **about, space=space)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"the result in {folder} cannot be read: {error!r}; is it whole?") from error


def _read_series(rows: dict[str, Any]) -> Series:
    value = np.array(rows["value"], dtype=np.float64)
    step, time = np.array(rows["step"], np.int64), np.array(rows["time"], np.float64)
    return Series(step, time, value, read_quantity(rows["quantity"]))


def _plain(value: Any) -> Any:
    """Numbers as JSON has them: what is not finite becomes null, and is read as NaN."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or math.isfinite(value) else None
