"""The frames that a run kept as a movie shows them: images in rows, and phases that are free turned to the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.images.planes import is_faint
from plugstream.runs.frames import frame_steps, read_frame
from plugstream.runs.preview import is_phase
from plugstream.runs.replay import History

__all__ = ["Moment", "read_moments"]

_CHANNELS = 4


@dataclass(frozen=True)
class Moment:
    """One moment of a run: the step, and images (H, W) by row and column, as a movie has them.

    `whole` is the image itself, where a frame has all of it: two axes, real or complex.
    """

    step: int
    images: list[list[NDArray[np.float32]]]
    whole: NDArray[Any] | None


def read_moments(folder: Path, history: History) -> tuple[list[Moment], list[list[dict[str, Any]]]]:
    """The frames that led to the image, and the panels of each row; a frame that is damaged is left out.

    Where the global phase is free each is turned to the last one, so that a phase that turns as a whole, which the data
    say nothing of, does not look like a change of the image.
    """
    steps = frame_steps(folder)
    if history.stop is not None:  # what came after the image was not kept
        steps = [step for step in steps if step <= history.stop.image_step]
    found, panels, last = [], None, None
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
            found.append(Moment(step, images, _whole(values)))
    if panels is None or len(found) < 2:
        few = "has no previews" if not found else "has one preview only"
        raise InputError(f"the run {folder} {few}, so there is nothing to make a movie of; run it without --preview 0")
    return found[::-1], panels


def _whole(values: dict[str, NDArray[np.float32]]) -> NDArray[Any] | None:
    """The image that the values of a frame are, None where they are parts of one, or channels."""
    if set(values) == {"image"}:
        return values["image"] if values["image"].ndim == 2 else None
    if set(values) != {"magnitude", "phase"} or values["phase"].ndim != 2:
        return None
    whole: NDArray[Any] = values["magnitude"] * np.exp(1j * values["phase"])
    return whole


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
    """Images and panels in rows: slices side by side, channels and phases in rows of their own.

    Where there is no row of slices, channels stand side by side, and magnitude beside phase.
    """
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
            shown = {**panel, "title": ", ".join(word for word in words if word), "axes": panel["axes"][-2:]}
            key = (channel, phase) if several else (0, phase and image.ndim == 3)
            rows.setdefault(key, []).append((plane, shown))
    ordered = [rows[key] for key in sorted(rows)]
    return [[image for image, _ in row] for row in ordered], [[panel for _, panel in row] for row in ordered]
