"""The current image of a run as OME-Zarr 0.5, which napari, vizarr and others open and read again as it changes.

Each level of resolution is one chunk, so one file, which is replaced by renaming: a reader finds the image of one step,
never half of two. Shape, axes and scale never change. The group's metadata is replaced last, and its attribute
"plugstream-live" has the step of the image.

Rows are those of a picture, as in the TIFF of a run: where y points up, the first row has the largest y, and the axis y
counts downwards from there, so its translation is minus the y of that row. A complex image has two channels, magnitude
and phase in radians; where its global phase is free it is turned so that its mean is real, and "plugstream-live" has
the angle in radians, as `turned`.

Reference: https://ngff.openmicroscopy.org/0.5/ and the specification of Zarr version 3.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.files import hidden_place, read_small, write_whole
from plugstream.images.global_phase import turn_of_mean
from plugstream.images.planes import average_blocks
from plugstream.images.space import ImageSpace
from plugstream.runs.callbacks import Pace, PacedWriter
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note

# Seconds between two images, and pixels that are written in a second, at least.
_EVERY = 1.0
_SPEED = 2e7
# The longest side of the smallest level, at most.
_SMALLEST = 128
_MARK = "plugstream-live"
_UNITS = {"m": "meter", "mm": "millimeter", "µm": "micrometer", "nm": "nanometer"}
_COLOURS = ("FFFFFF", "FF00FF", "00FF00", "00FFFF", "FFFF00", "FF0000")


def check_place(place: Path) -> None:
    """Refuse a place that holds anything but an image that `LiveZarr` wrote, which the next run may replace."""
    if not place.parent.is_dir():
        raise InputError(f"the folder {place.parent} does not exist; make it first")
    if not place.exists() and not place.is_symlink():
        return
    try:
        content = json.loads(read_small(place / "zarr.json"))
        ours = not place.is_symlink() and _MARK in content["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise InputError(
            f"{place} exists already, and is not a live image of a run; choose another place, or remove it"
        )


@dataclass
class LiveZarr(PacedWriter):
    """Keeps the current image of a run, or the first of several, at a place; this takes at most 1 % of the run's time.

    Arguments: place, which `check_place` accepts; space of the image; log, for a note where the disk fails.
    """

    place: Path
    space: ImageSpace
    log: EventLog
    pace: Pace = field(init=False)
    begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(_EVERY, math.prod(self.space.shape) / _SPEED)

    def write(self, step: int, image: Tensor) -> None:
        """Put this image in the place now."""
        levels, turned = make_levels(image, self.space)
        group = self._group(step, levels, turned)
        try:
            if self.begun:
                for number, level in enumerate(levels):
                    _write_chunk(self.place / str(number), level)
                _write_json(self.place, group)
            else:
                self._begin(group, levels)
                self.begun = True
        except OSError as error:  # for which the run must not end
            self.pace.every = 0.0
            self.log.add(Note(f"warning: cannot write {self.place}: {error.strerror or error}; it stays as it is"))

    def _begin(self, group: dict[str, Any], levels: Sequence[NDArray[np.float32]]) -> None:
        """Make the folder, and give it its name once it is whole; an older one goes."""
        partial = hidden_place(self.place)
        try:
            partial.mkdir()
            names = [axis["name"] for axis in _axes(self.space)]
            for number, level in enumerate(levels):
                (partial / str(number) / "c" / "/".join("0" * (level.ndim - 1))).mkdir(parents=True)
                _write_chunk(partial / str(number), level)
                _write_json(partial / str(number), _array(level.shape, names))
            _write_json(partial, group)
            old = hidden_place(self.place)
            if self.place.exists():
                self.place.rename(old)
            partial.rename(self.place)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _group(self, step: int, levels: Sequence[NDArray[np.float32]], turned: float | None) -> dict[str, Any]:
        """The metadata of the group: what OME-NGFF 0.5 asks for, and the step."""
        space = self.space
        datasets = [
            {"path": str(number), "coordinateTransformations": _transformations(space, level.shape)}
            for number, level in enumerate(levels)
        ]
        multiscale = {
            "name": space.quantity,
            "axes": _axes(space),
            "datasets": datasets,
            "type": "mean",
            "metadata": {"description": "means over blocks of two pixels a side", "quantity": _quantity(space)},
        }
        ome = {"version": "0.5", "multiscales": [multiscale], "omero": {"channels": _channels(space, levels[0])}}
        mark: dict[str, Any] = {"step": step, "y_axis": "up" if space.upwards else "down"}
        mark |= {} if turned is None else {"turned": turned}
        return {"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome, _MARK: mark}}


@torch.no_grad()
def make_levels(image: Tensor, space: ImageSpace) -> tuple[list[NDArray[np.float32]], float | None]:
    """The image in full, and means over blocks of two pixels a side until no side is longer than 128.

    Axes that are shorter than half the longest stay as they are, so that a flat volume does not lose its slices.

    Arguments: image (..., *space.shape). Returns arrays with the axes channel, if there are any, z, if there is one, y
    and x; and by how many radians the image was turned, None where its phase is measured or it is real.
    """
    axes = len(space.spatial)
    values = image.detach().reshape(-1, *image.shape[image.ndim - space.ndim :])[0]
    turn = turn_of_mean(values, space.ndim) if space.phase == "free" else None
    if turn is not None:
        values = values * turn
    if space.upwards:
        values = values.flip(-2)
    levels = [_planes(values, space)]
    while max(sides := values.shape[-axes:]) > _SMALLEST:
        values = average_blocks(values, [2 if 2 * side > max(sides) else 1 for side in sides])
        levels.append(_planes(values, space))
    return levels, None if turn is None else math.atan2(float(turn.imag), float(turn.real))


def _planes(values: Tensor, space: ImageSpace) -> NDArray[np.float32]:
    """Real values, with what is complex as two channels."""
    if values.is_complex():  # behind the channels, if there are any, and then one axis with them
        parts = torch.stack([values.abs(), values.angle()], dim=int(space.channels))
        values = parts.flatten(0, 1) if space.channels else parts
    return np.ascontiguousarray(values.to("cpu", torch.float32).numpy(), dtype="<f4")


def _axes(space: ImageSpace) -> list[dict[str, str]]:
    unit = _UNITS.get(space.scale()[0]) if space.spacing is not None else None
    about = {"type": "space"} if unit is None else {"type": "space", "unit": unit}
    channels = [{"name": "c", "type": "channel"}] if space.channels or space.is_complex else []
    # By their order, whatever they are called: viewers go by these names.
    return [*channels, *({"name": name, **about} for name in ("z", "y", "x")[-len(space.spatial) :])]


def _transformations(space: ImageSpace, shape: Sequence[int]) -> list[dict[str, Any]]:
    """Scale and translation of a level of this shape, to the centres of its pixels."""
    unit, axes = space.scale()[1], len(space.spatial)
    spacing = [1.0] * axes if space.spacing is None else [step / unit for step in space.spacing]
    origin = [0.0] * axes if space.origin is None else [place / unit for place in space.origin]
    if space.upwards:
        origin[-2] = -(origin[-2] + (space.spatial[-2] - 1) * spacing[-2])
    sides = shape[len(shape) - axes :]
    # Sides are halved and rounded up, so this is how many pixels of the image one of the level has.
    blocks = [2 ** round(math.log2(size / side)) for size, side in zip(space.spatial, sides, strict=True)]
    scale = [step * block for step, block in zip(spacing, blocks, strict=True)]
    move = [place + step * (block - 1) / 2 for place, step, block in zip(origin, spacing, blocks, strict=True)]
    first = len(shape) - len(sides)
    return [
        {"type": "scale", "scale": [1.0] * first + scale},
        {"type": "translation", "translation": [0.0] * first + move},
    ]


def _channels(space: ImageSpace, image: NDArray[np.float32]) -> list[dict[str, Any]]:
    """How a viewer may show each channel at first."""
    planes = image if space.channels or space.is_complex else image[None]
    parts = ("magnitude", "phase") if space.is_complex else ("",)
    out = []
    for number, plane in enumerate(planes):
        part = parts[number % len(parts)]
        which = f"channel {number // len(parts)}" if space.channels else ""
        label = ", ".join(text for text in (_quantity(space), which, part) if text)
        low, high = -math.pi, math.pi
        if part != "phase":
            finite = plane[np.isfinite(plane)]
            low, high = (min(0.0, float(finite.min())), float(finite.max())) if finite.size else (0.0, 1.0)
        high = high if high > low else low + 1.0
        window = {"min": low, "max": high, "start": low, "end": high}
        colour = _COLOURS[number % len(_COLOURS)] if space.channels else _COLOURS[0]
        active = part != "phase"
        out.append({"label": label, "active": active, "color": colour, "family": "linear", "window": window})
    return out


def _quantity(space: ImageSpace) -> str:
    return f"{space.quantity} ({space.value_unit})" if space.value_unit else space.quantity


def _array(shape: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """The metadata of a level: one chunk without compression, which every reader can decode."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "dimension_names": list(names),
    }


def _write_chunk(level: Path, values: NDArray[np.float32]) -> None:
    write_whole(level / "c" / "/".join("0" * values.ndim), [values.data.cast("B")], durable=False)


def _write_json(folder: Path, content: dict[str, Any]) -> None:
    write_whole(folder / "zarr.json", [json.dumps(content, indent=1).encode()], durable=False)
