"""The previews of a run over time, from which a movie is made: a few small files in its folder `previews`.

A frame is previews/STEP.safetensors: the panels of a preview in 16 bits, a value being low + n * scale with `low` and
`scale` of its panel, and n = 65535 where it is not finite.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.images.planes import is_faint
from plugstream.runs.replay import History

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
_CHANNELS = 4  # of an image that a movie shows


class Frames:
    """Keeps frames of the run in a folder, most of them where the image changes most.

    There are at most 200, and 48 MB if that still leaves 50. Where there is one too many, the one goes whose neighbours
    lie closest together in sqrt(step): first steps stay dense, and the last frame always stays.
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
            levels, low, _, scale = encode_levels(tensors[panel["name"]].numpy())
            values[panel["name"]] = torch.from_numpy(levels)
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
            levels = coded[panel["name"]].numpy()
            value = np.float32(panel["low"]) + levels.astype(np.float32) * np.float32(panel["scale"])
            values[panel["name"]] = np.where(levels == _NOT_FINITE, np.float32(np.nan), value)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"its header does not say what it shows ({error!r})") from error
    return values, panels


def is_phase(panel: Mapping[str, Any]) -> bool:
    """Whether a panel shows a phase, in radians from -pi to pi."""
    return bool(panel["unit"] == "rad" and panel["name"].split(" ")[-1] == "phase")


@dataclass(frozen=True)
class Moment:
    """One moment of a run: the step, pictures (H, W) in rows, and the image where a frame has all of it, as (H, W)."""

    step: int
    rows: list[list[NDArray[np.float32]]]
    image: NDArray[Any] | None


def read_moments(folder: Path, history: History) -> tuple[list[Moment], list[list[dict[str, Any]]]]:
    """The frames that led to the image, and the panels of each row; a frame that is damaged is left out.

    Where the global phase is free each is turned to the last one, so that a turn of all phases, which the data leave
    open, does not look like a change of the image.
    """
    steps = frame_steps(folder)
    if history.stop is not None:  # what came after the image was not kept
        steps = [step for step in steps if step <= history.stop.image_step]
    moments, panels, last = [], None, None
    for step in reversed(steps):
        try:
            values, described = read_frame(folder, step)
            shape = {name: value.shape for name, value in values.items()}
            if last is not None and shape == {name: value.shape for name, value in last.items()}:
                values = _turn_to(last, values, described)
            images, rows = _arrange(values, described)
        except (InputError, KeyError):
            continue
        if last is None:
            last, panels, shapes = values, rows, shape
        if shapes == shape:
            moments.append(Moment(step, images, _image(values)))
    if panels is None or len(moments) < 2:
        few = "has no previews" if not moments else "has one preview only"
        raise InputError(f"the run {folder} {few}, so there is nothing to make a movie of; run it without --preview 0")
    return moments[::-1], panels


def _image(values: dict[str, NDArray[np.float32]]) -> NDArray[Any] | None:
    """The image that the values of a frame are, None where they are slices or channels of one."""
    image = values.get("image")
    if set(values) == {"magnitude", "phase"}:
        image = values["magnitude"] * np.exp(1j * values["phase"])
    return image if image is not None and image.ndim == 2 else None


def _turn_to(
    last: dict[str, NDArray[np.float32]], values: dict[str, NDArray[np.float32]], panels: Sequence[dict[str, Any]]
) -> dict[str, NDArray[np.float32]]:
    """The values of a frame, with phases that are free turned by one angle, which brings it closest to the last."""
    phases = [panel["name"] for panel in panels if is_phase(panel) and "turned" in panel]
    if not phases:
        return values
    product = 0j
    for name in phases:
        size = name.removesuffix("phase") + "magnitude"
        product += np.nansum(values[size] * last[size] * np.exp(1j * (last[name] - values[name]).astype(np.float64)))
    angle = np.angle(product)
    turned = {name: np.angle(np.exp(1j * (values[name] + angle))).astype(np.float32) for name in phases}
    return {**values, **turned}


def _arrange(
    values: dict[str, NDArray[np.float32]], panels: Sequence[dict[str, Any]]
) -> tuple[list[list[NDArray[np.float32]]], list[list[dict[str, Any]]]]:
    """Images and panels in rows: slices side by side, then channels and phases; without slices all in one row."""
    several = len({tuple(axis["name"] for axis in panel["axes"]) for panel in panels}) > 1
    rows: dict[tuple[int, bool], list[tuple[NDArray[np.float32], dict[str, Any]]]] = {}
    for panel in panels:
        image = values[panel["name"]]
        phase = is_phase(panel)
        if phase:
            size = values[panel["name"].removesuffix("phase") + "magnitude"]
            image = np.where(is_faint(size), np.float32(np.nan), image)
        for channel, plane in enumerate(image[:_CHANNELS] if image.ndim == 3 else image[None]):
            words = [f"channel {channel}" if image.ndim == 3 else "", panel["title"]]
            about = {**panel, "title": ", ".join(word for word in words if word), "axes": panel["axes"][-2:]}
            key = (channel, phase) if several else (0, phase and image.ndim == 3)
            rows.setdefault(key, []).append((plane, about))
    ordered = [rows[key] for key in sorted(rows)]
    return [[image for image, _ in row] for row in ordered], [[panel for _, panel in row] for row in ordered]


def encode_levels(values: NDArray[Any]) -> tuple[NDArray[np.uint16], float, float | None, float]:
    """Values in 16 bits, n of low + n * scale; then low, the largest value, and scale.

    n is 65535 where a value is not finite. Where none is, low is 0 and the largest value None.
    """
    finite = np.isfinite(values)
    numbers = values if finite.all() else values[finite]
    low = float(numbers.min()) if numbers.size else 0.0
    high = float(numbers.max()) if numbers.size else None
    scale = 1.0 if high is None else (high - low) / (_NOT_FINITE - 1) or 1.0
    levels = np.full(values.shape, _NOT_FINITE, dtype=np.uint16)
    np.copyto(levels, np.rint((values - low) / scale), where=finite, casting="unsafe")
    return levels, low, high, scale
