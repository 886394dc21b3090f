"""Previews of the image while a run goes on: one small file, whole whenever it is read, that says what it shows.

preview.safetensors has a tensor a panel, float32, and in its header, as JSON under "panels", what each is:

    {"name": "magnitude", "quantity": "contrast, magnitude", "unit": "", "range": [0.0, 1.3],
     "axes": [{"name": "y", "unit": "m", "origin": -0.1, "spacing": 0.01, "size": 21}, {"name": "x", ...}]}

Element n of an axis lies at origin + n * spacing; both are null where they are not known.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms import State
from plugstream.image_space import ImageSpace
from plugstream.result import Progress
from plugstream.runs.callbacks import Callback
from plugstream.runs.events import EventLog, Note, Preview
from plugstream.tensors import load_tensors, save_tensors

__all__ = ["Previews", "make_panels", "read_preview"]

_NAME = "preview.safetensors"
_FORMAT = "plugstream-preview"
_VERSION = "1"
# Pixels a side, at most.
_SIDE = 512
# Seconds of the run for every second that previews take: they are at most 1 % of it.
_SHARE = 100.0


@dataclass
class Previews(Callback):
    """Writes a preview of the image at most every few seconds, and less often where the disk or the image is slow.

    The first comes after that time, so that short runs have none. The image is only read, so iterates do not change.

    Arguments: folder of the run; space of its image; log, where an event names the file; every, seconds, 0 for never.
    """

    folder: Path
    space: ImageSpace
    log: EventLog
    every: float
    due: float | None = field(default=None, init=False)

    def after_step(self, progress: Progress[State]) -> None:
        if not self.every:
            return
        now = time.monotonic()
        if self.due is None:
            self.due = now + self.every
        if now < self.due:
            return
        self.write(progress.state.k, progress.state.image)
        cost = time.monotonic() - now
        self.due = now + cost + max(self.every, _SHARE * cost)

    def before_pause(self, progress: Progress[State]) -> None:
        """Whoever pauses a run wants to see where it is."""
        if self.every:
            self.write(progress.state.k, progress.state.image)

    def write(self, step: int, image: Tensor) -> None:
        """Write a preview now."""
        tensors, panels = make_panels(image, self.space)
        header = {"format": _FORMAT, "version": _VERSION, "step": str(step), "panels": json.dumps(panels)}
        path = self.folder / _NAME
        try:
            save_tensors(path, tensors, header)
        except OSError as error:  # nobody wants a run to end for it
            self.every = 0.0
            self.log.add(Note(f"warning: cannot write {path}: {error.strerror or error}; there are no more previews"))
            return
        self.log.add(Preview(step, _NAME, tuple(panels)))


def read_preview(path: Path) -> tuple[int, dict[str, Tensor], list[dict[str, Any]]]:
    """Step, tensors and panels of a preview; one that is damaged is refused."""
    about, tensors = load_tensors(path, _FORMAT)
    return int(about["step"]), tensors, json.loads(about["panels"])


@torch.no_grad()
def make_panels(image: Tensor, space: ImageSpace) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """What a preview shows of an image: tensors by name, and what each is.

    Pixels are means over blocks, so that no side has more than 512. A volume gives its three middle slices, a complex
    image magnitude and phase, in radians, and channels an axis of their own. Of several images it is the first.

    Arguments: image, (..., *space.shape); space.
    """
    image = image.detach()
    image = image.reshape(-1, *image.shape[image.ndim - space.ndim :])[0]
    tensors: dict[str, Tensor] = {}
    panels: list[dict[str, Any]] = []
    for prefix, part, axes in _slices(image, space):
        small, axes = _shrink(part, axes)
        values = {"": small}
        if small.is_complex():
            values = {"magnitude": small.abs(), "phase": small.angle()}
        for what, value in values.items():
            name = " ".join(text for text in (prefix, what) if text) or "image"
            tensors[name] = value.to("cpu", torch.float32)
            panels.append(
                {
                    "name": name,
                    "quantity": f"{space.quantity}, {what}" if what else space.quantity,
                    "unit": "rad" if what == "phase" else space.value_unit,
                    "range": _range(tensors[name]),
                    "axes": axes,
                }
            )
    return tensors, panels


def _slices(image: Tensor, space: ImageSpace) -> list[tuple[str, Tensor, list[dict[str, Any]]]]:
    """Name, values and axes of what is shown: the image, or three slices of a volume."""
    first = int(space.channels)
    axes: list[dict[str, Any]] = [_axis("channel", "", 0.0, 1.0, image.shape[0])] if space.channels else []
    for n, name in enumerate(space.axes):
        origin = None if space.origin is None else space.origin[n]
        spacing = None if space.spacing is None else space.spacing[n]
        axes.append(_axis(name, space.unit if spacing is not None else "", origin, spacing, image.shape[first + n]))
    if len(space.spatial) == 2:
        return [("", image, axes)]
    out = []
    for axis in range(first, first + 3):
        middle = image.shape[axis] // 2
        rest = [entry for n, entry in enumerate(axes) if n != axis]
        out.append((f"{axes[axis]['name']} = {middle}", image.select(axis, middle), rest))
    return out


def _axis(name: str, unit: str, origin: float | None, spacing: float | None, size: int) -> dict[str, Any]:
    return {"name": name, "unit": unit, "origin": origin, "spacing": spacing, "size": size}


def _shrink(part: Tensor, axes: list[dict[str, Any]]) -> tuple[Tensor, list[dict[str, Any]]]:
    """Means over blocks of the last two axes, and where their centres lie."""
    blocks = [max(1, math.ceil(size / _SIDE)) for size in part.shape[-2:]]
    if blocks == [1, 1]:
        return part, axes
    flat = part.reshape(-1, 1, *part.shape[-2:])
    if flat.is_complex():
        small = torch.complex(_means(flat.real, blocks), _means(flat.imag, blocks))
    else:
        small = _means(flat, blocks)
    small = small.reshape(*part.shape[:-2], *small.shape[-2:])
    changed = [dict(axis) for axis in axes]
    for axis, block, size in zip(changed[-2:], blocks, small.shape[-2:], strict=True):
        step = axis["spacing"]
        if step is not None:
            axis["spacing"] = step * block
            if axis["origin"] is not None:
                axis["origin"] += step * (block - 1) / 2
        axis["size"] = size
    return small, changed


def _means(values: Tensor, blocks: list[int]) -> Tensor:
    # Blocks at the far edges may be smaller, and are means over what there is.
    return torch.nn.functional.avg_pool2d(values, blocks, ceil_mode=True, count_include_pad=False)


def _range(values: Tensor) -> list[float] | None:
    """Least and largest of the finite values."""
    finite = values[torch.isfinite(values)]
    return [float(finite.min()), float(finite.max())] if len(finite) else None
