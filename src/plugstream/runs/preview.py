"""Previews of the image while a run goes on: one small file, whole whenever it is read, that says what it shows.

preview.safetensors has a tensor a panel, float32, and in its header, as JSON under "panels", what each is:

    {"name": "magnitude", "title": "magnitude", "quantity": "contrast, magnitude", "unit": "", "range": [0.0, 1.3],
     "upwards": true, "axes": [{"name": "y", "unit": "m", "origin": -0.1, "spacing": 0.01, "size": 21}, ...]}

Element n of an axis lies at origin + n * spacing; both are null where they are not known. `title` says which part of
the image it is, "" for all; `upwards` whether the first of the last two axes points up where it is shown. Where the
global phase of complex images is free, panels of phases also have `turned`: by how many radians the image was turned
for the preview, so that its mean is real.

Some of the previews stay, in the folder `previews` (`plugstream.runs.frames`), so that a movie can be made of them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.algorithms import State
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.images.global_phase import turn_of_mean
from plugstream.images.planes import average_blocks, is_faint
from plugstream.images.space import ImageSpace
from plugstream.runs.callbacks import Pace, PacedWriter
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note, Preview
from plugstream.runs.frames import PIXELS, Frames, is_phase
from plugstream.solver.result import Progress

_NAME = "preview.safetensors"
_FORMAT = "plugstream-preview"
_VERSION = "1"
_IN_PLANE = {2: [0, 1], 3: [1, 2]}  # the axes of an image in which its field of view is a disc, by how many it has
# Pixels a side, at most.
_SIDE = 512
# Pixels that are made into a preview in a second, at least: what the first one may take.
_SPEED = 2e7
# Seconds between two previews at least, as often as anybody can see; frames for a movie may come more often. To replace
# a file takes many times as long as to write a new one, where the file system sees to it that it is whole.
_GAP = 0.25


@dataclass
class Previews(PacedWriter):
    """Writes previews of the image: before the first step, often at first, every few seconds later, and of the result.

    They take at most 1 % of the run's time, and 0.05 s (`Pace`). While a scan is measured somebody waits for what
    comes, so that previews are twenty times as frequent, and may take 10 %.

    Arguments: folder of the run; space of its image; log, where an event names the file; every, seconds, 0 for never;
    live, whether the scan is still measured.
    """

    folder: Path
    space: ImageSpace
    log: EventLog
    every: float
    live: bool = False
    pace: Pace = field(init=False)
    frames: Frames = field(init=False)
    next: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        import safetensors.torch  # noqa: F401 - now, so that the first preview does not take the time

        pixels = math.prod(self.space.shape)
        if len(self.space.spatial) == 3:  # three slices of it
            pixels = sum(pixels // size for size in self.space.spatial)
        self.pace = Pace(self.every / 20, pixels / _SPEED, 0.1) if self.live else Pace(self.every, pixels / _SPEED)
        self.frames = Frames(self.folder)

    def after_step(self, progress: Progress[State]) -> None:
        if self.pace.due():
            with self.pace.turn():
                self.write(progress.state.k, progress.state.image, preview=time.monotonic() >= self.next)

    def write(self, step: int, image: Tensor, *, preview: bool = True) -> None:
        """Write a frame now, and a preview where one is due."""
        tensors, panels = make_panels(image, self.space)
        header = {"format": _FORMAT, "version": _VERSION, "step": str(step), "panels": json.dumps(panels)}
        try:
            if preview:
                save_tensors(self.folder / _NAME, tensors, header, durable=False)
            frame = tensors, panels
            if sum(value.numel() for value in tensors.values()) > PIXELS:  # a frame has fewer
                planes = sum(math.prod(value.shape[:-2]) for value in tensors.values())
                frame = make_panels(image, self.space, int(math.sqrt(PIXELS / planes)))
            self.frames.add(step, *frame)
        except OSError as error:  # for which the run must not end
            self.pace.every = 0.0
            where = error.filename or self.folder / _NAME
            self.log.add(Note(f"warning: cannot write {where}: {error.strerror or error}; there are no more previews"))
            return
        if preview:
            self.next = time.monotonic() + _GAP
            self.log.add(Preview(step, _NAME, tuple(panels)))


def read_preview(path: Path) -> tuple[int, dict[str, Tensor], list[dict[str, Any]]]:
    """Step, tensors and panels of a preview; one that is damaged is refused."""
    about, tensors = load_tensors(path, _FORMAT)
    return int(about["step"]), tensors, json.loads(about["panels"])


@torch.no_grad()
def make_panels(image: Tensor, space: ImageSpace, most: int = _SIDE) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """What a preview shows of an image: tensors by name, and what each is.

    Pixels are means over blocks, so that no side has more than `most`. A volume gives its three middle slices, a
    complex image magnitude and phase, in radians, and channels an axis of their own. Of several images it is the first.

    Arguments: image, (..., *space.shape); space; most, pixels a side.
    """
    image = image.detach()
    image = image.reshape(-1, *image.shape[image.ndim - space.ndim :])[0]
    turn = turn_of_mean(image, space.ndim) if space.phase == "free" else None
    about = {} if turn is None else {"turned": math.atan2(float(turn.imag), float(turn.real))}
    tensors: dict[str, Tensor] = {}
    panels: list[dict[str, Any]] = []
    for prefix, place, part, numbers in _slices(image, space):
        blocks = [max(1, math.ceil(size / most)) for size in part.shape[-2:]]
        small = average_blocks(part, blocks)
        seen = space.field_of_view(blocks) if numbers[-2:] == _IN_PLANE[len(space.spatial)] else None
        if seen is not None:
            small = small.masked_fill(torch.from_numpy(~seen).to(small.device), torch.nan)
        axes = [channel_axis(len(small))] if space.channels else []
        axes += [space_axis(space, *about) for about in zip(numbers, small.shape[-2:], blocks, strict=True)]
        values = {"": small}
        if small.is_complex():
            values = {"magnitude": small.abs(), "phase": (small if turn is None else small * turn).angle()}
        for kind, value in values.items():
            name = " ".join(text for text in (prefix, kind) if text) or "image"
            tensors[name] = value.to("cpu", torch.float32)
            panels.append(
                {
                    "name": name,
                    "title": ", ".join(text for text in (place, kind) if text),
                    "quantity": f"{space.quantity}, {kind}" if kind else space.quantity,
                    "unit": "rad" if kind == "phase" else space.value_unit,
                    "range": _range(tensors[name]),
                    "upwards": space.upwards,
                    "axes": axes,
                    **(about if kind == "phase" else {}),
                }
            )
    return tensors, panels


def show_panel(panel: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NDArray[np.float32]:
    """The values of a panel, a phase with NaN where its magnitude is next to nothing."""
    values: NDArray[np.float32] = tensors[panel["name"]].numpy()
    size = tensors.get(panel["name"].removesuffix("phase") + "magnitude")
    if not is_phase(panel) or size is None:
        return values
    return np.where(is_faint(size.numpy()), np.float32(np.nan), values)


def _slices(image: Tensor, space: ImageSpace) -> list[tuple[str, str, Tensor, list[int]]]:
    """Name, place in words, values and spatial axes of what is shown: the image, or three slices of a volume."""
    if len(space.spatial) == 2:
        return [("", "", image, [0, 1])]
    out = []
    for n, name in enumerate(space.axes):
        axis = int(space.channels) + n
        middle = image.shape[axis] // 2
        part = image.select(axis, middle)
        out.append((f"{name} = {middle}", space.position(n, middle), part, [m for m in range(3) if m != n]))
    return out


def channel_axis(size: int) -> dict[str, Any]:
    """What a panel says of its axis of channels."""
    return {"name": "channel", "unit": "", "origin": 0.0, "spacing": 1.0, "size": size}


def space_axis(space: ImageSpace, n: int, size: int, block: int = 1) -> dict[str, Any]:
    """What a panel says of spatial axis n, whose elements are means over blocks: where their centres lie."""
    step = None if space.spacing is None else space.spacing[n]
    origin = None if space.origin is None else space.origin[n]
    if step is not None and origin is not None:
        origin += step * (block - 1) / 2
    unit = "" if step is None else space.unit
    spacing = None if step is None else step * block
    return {"name": space.axes[n], "unit": unit, "origin": origin, "spacing": spacing, "size": size}


def _range(values: Tensor) -> list[float] | None:
    """Least and largest of the finite values."""
    low, high = (float(end) for end in values.aminmax())
    if math.isfinite(low) and math.isfinite(high):  # as nearly always
        return [low, high]
    finite = values[torch.isfinite(values)]
    return [float(finite.min()), float(finite.max())] if len(finite) else None
