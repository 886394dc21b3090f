"""The previews of a run over time, from which a movie is made: small files in its folder `previews`, and few.

A frame is previews/STEP.safetensors: the panels of a preview in 16 bits, a value being low + n * scale with `low` and
`scale` of its panel, and n = 65535 where it is not finite.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.tensors import load_tensors, save_tensors

__all__ = ["PIXELS", "Frames", "frame_steps", "read_frame"]

FOLDER = "previews"
# Pixels of all panels of a frame together, at most.
PIXELS = 512 * 512
_FORMAT = "plugstream-frame"
_VERSION = "1"
_NAME = re.compile(r"(\d{9,19})\.safetensors")
# Frames of a run at most, fewer where they are large, but never fewer than a movie needs.
_MOST, _LEAST = 200, 50
_MOST_BYTES = 48e6
_NOT_FINITE = 65535


class Frames:
    """Keeps frames of a run, with most of them where the image changes most.

    There are at most 200, and 48 MB if that still leaves 50. Where there is one too many, that one goes whose
    neighbours lie closest together in sqrt(step): first steps stay dense, and the last frame always stays.

    Arguments: folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self._steps: list[int] | None = None

    def add(self, step: int, tensors: dict[str, Tensor], panels: list[dict[str, Any]]) -> None:
        """Keep a preview, as `make_panels` gives it; OSError where the disk does not take it."""
        if self._steps is None:
            self._steps = self._begin(step)
        values, described = {}, []
        for panel in panels:
            coded, low, scale = _encode(tensors[panel["name"]].numpy())
            values[panel["name"]] = torch.from_numpy(coded)
            described.append({**panel, "low": low, "scale": scale})
        header = {"format": _FORMAT, "version": _VERSION, "step": str(step), "panels": json.dumps(described)}
        save_tensors(self._path(step), values, header, durable=False)
        self._steps = sorted({*self._steps, step})
        size = 2 * sum(value.numel() for value in values.values())
        self._thin(max(_LEAST, min(_MOST, int(_MOST_BYTES / size))))

    def _begin(self, step: int) -> list[int]:
        """The frames that a run which goes on from this step has by then; later ones will be made again."""
        self.folder.mkdir(exist_ok=True)
        before = frame_steps(self.folder.parent)
        for late in [one for one in before if one > step]:
            self._path(late).unlink(missing_ok=True)
        return [one for one in before if one <= step]

    def _thin(self, most: int) -> None:
        steps = self._steps or []
        while len(steps) > most:
            place = [math.sqrt(step) for step in steps]
            closest = min(range(1, len(steps) - 1), key=lambda n: place[n + 1] - place[n - 1])
            self._path(steps.pop(closest)).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:09d}.safetensors"


def frame_steps(folder: Path) -> list[int]:
    """The steps that the run in a folder has frames of, in order."""
    names: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        names = [path.name for path in (folder / FOLDER).iterdir()]
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_frame(folder: Path, step: int) -> tuple[dict[str, NDArray[np.float32]], list[dict[str, Any]]]:
    """Values in float32 and panels of a frame, NaN where they were not finite; one that is damaged is refused."""
    path = folder / FOLDER / f"{step:09d}.safetensors"
    about, coded = load_tensors(path, _FORMAT)
    values = {}
    try:
        panels = json.loads(about["panels"])
        for panel in panels:
            whole = coded[panel["name"]].numpy()
            value = np.float32(panel["low"]) + whole.astype(np.float32) * np.float32(panel["scale"])
            values[panel["name"]] = np.where(whole == _NOT_FINITE, np.float32(np.nan), value)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"its header does not say what it shows ({error!r})") from error
    return values, panels


def _encode(values: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float, float]:
    """Values in 16 bits, with the least one and the size of a unit."""
    finite = np.isfinite(values)
    known = values if finite.all() else values[finite]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    scale = (high - low) / (_NOT_FINITE - 1) or 1.0
    coded = np.full(values.shape, _NOT_FINITE, dtype=np.uint16)
    np.copyto(coded, np.rint((values - low) / scale), where=finite, casting="unsafe")
    return coded, low, scale
