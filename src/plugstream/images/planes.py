"""What a picture shows of an image: planes of two axes, magnitude, and phase in colours, perhaps of a smaller image.

A global phase that the data leave free is removed first: `turn_image` makes the mean of an image real and non-negative,
and turns other images to match it for comparison, so that colours mean the same in all of them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.images.space import ImageSpace

# The colours of a phase, those of matplotlib's "twilight_shifted" (Bechtold, public domain), evenly spaced from -pi to
# pi. Both ends are dark, so that no edge shows where a phase wraps, and 0, the phase of empty space, is pale. The
# same are in picture.js of the pages.
CYCLIC = bytes.fromhex(
    "301437 381145 45135c 511b77 592a8f 5d3da1 5e51ad 5f64b5 6276ba 6887be 7297c1 "
    "81a6c3 95b5c7 acc2cc c4ced4 d7d7dd e2d9e2 dfd4d6 d8c7be d1b6a3 cca389 c89073 "
    "c27c63 bb6958 b25652 a64550 983550 872750 741e4f 5f174a 4a1342 3a113a 301437"
)
NOTHING = (0x80, 0x80, 0x80)  # where a value is not finite, or has no phase to speak of
_MOST_CHANNELS = 4
_DIM = 0.35  # of the contrast beside the field of view
_FAINT = 0.05  # the part of the largest magnitude below which a phase is that of noise


@dataclass(frozen=True)
class Plane:
    """A part of an image with two axes: values (H, W), the space of its axes, and which part it is, "" for all."""

    title: str
    values: NDArray[Any]
    space: ImageSpace


def cut_planes(image: NDArray[Any], space: ImageSpace, most_channels: int = _MOST_CHANNELS) -> list[list[Plane]]:
    """The planes that represent an image, in rows.

    An image of two axes is itself, and its first channels are a row. A volume is a row of three slices through its
    middle, across each of its axes, with a row for each channel.

    Arguments: image (*space.shape), a single one; space.
    """
    parts = image[:most_channels] if space.channels else image[None]
    names = [f"channel {n}" if space.channels else "" for n in range(len(parts))]
    if len(space.spatial) == 2:
        flat = replace(space, shape=space.spatial, channels=False)
        return [[Plane(name, part, flat) for name, part in zip(names, parts, strict=True)]]
    rows: list[list[Plane]] = []
    for name, volume in zip(names, parts, strict=True):
        rows.append([])
        for axis, size in enumerate(volume.shape):
            title = ", ".join(text for text in (name, space.position(axis, size // 2)) if text)
            rows[-1].append(Plane(title, np.take(volume, size // 2, axis), space.section(axis)))
    return rows


def split_parts(values: NDArray[Any]) -> list[tuple[str, NDArray[Any], tuple[float, float] | None]]:
    """Real arrays that show values, each with its name and its fixed range, None if it follows from the values:
    themselves, or magnitude and phase in radians."""
    if not np.iscomplexobj(values):
        return [("", values, None)]
    return [("magnitude", np.abs(values), None), ("phase", np.angle(values), (-math.pi, math.pi))]


def value_span(image: NDArray[Any]) -> tuple[float, float]:
    """The range of grey values: from the least value, or zero if none is negative, to the largest."""
    values = image[np.isfinite(image)]
    return (min(0.0, float(values.min())), float(values.max())) if values.size else (0.0, 1.0)


def value_span_seen(image: NDArray[Any], space: ImageSpace) -> tuple[float, float]:
    """`value_span` of what is in the field of view. Arguments: image (..., H, W); space, with the last two axes."""
    seen = space.field_of_view()
    return value_span(image if seen is None else image[..., seen])


def dim_unseen(plane: NDArray[Any], span: tuple[float, float], space: ImageSpace) -> NDArray[Any]:
    """A plane (H, W) of an image as it is shown: beside the field of view dark, with its outline white.

    Arguments: plane, whose rows are the image's; span, the values of black and white; space.
    """
    from scipy.ndimage import binary_dilation

    seen = space.field_of_view()
    if seen is None:
        return plane
    low, high = span
    dark = low + _DIM * (np.clip(plane, low, high) - low)
    return np.where(seen, plane, np.where(binary_dilation(seen), high, dark)).astype(plane.dtype)


def is_faint(magnitude: NDArray[Any], most: float | None = None) -> NDArray[np.bool_]:
    """Where a magnitude is next to nothing beside the largest, `most` if given: its phase is not shown."""
    finite = magnitude[np.isfinite(magnitude)]
    largest = (float(finite.max()) if finite.size else 0.0) if most is None else most
    return np.asarray(magnitude < _FAINT * largest)


def phase_label(space: ImageSpace) -> str:
    """The label of a phase's colours, which says whether the phase was turned for display."""
    return "phase (rad)" if space.phase == "measured" else "phase (rad), mean taken out"


def turn_image(
    image: NDArray[Any], space: ImageSpace, reference: NDArray[Any] | None = None
) -> tuple[NDArray[Any], float]:
    """The image as it is shown, and the angle in radians by which it was turned: 0 if its phase is measured.

    A free phase is turned so that the image is closest to the reference, or, without one, has a real mean that is not
    negative.

    Arguments: image (..., *space.shape), turned by the angle of the first one; space; reference (*space.shape).
    """
    if not np.iscomplexobj(image) or space.phase != "free":
        return image, 0.0
    first = image.reshape(-1, *space.shape)[0].conj()
    if reference is not None and np.iscomplexobj(reference):
        first = reference * first
    product = complex(np.sum(first, dtype=np.complex128))  # whose phase is c of `plugstream.images.global_phase`
    angle = math.atan2(product.imag, product.real) if np.isfinite(product) else 0.0
    return image * np.exp(1j * angle).astype(image.dtype), angle


def turn_images(
    images: Sequence[tuple[str, NDArray[Any]]], space: ImageSpace, truth: NDArray[Any] | None = None
) -> list[tuple[str, NDArray[Any]]]:
    """Images with their names, as they are shown side by side: all turned to the truth, and the truth by its mean.

    Without a truth each is turned by its own mean; if the phase is measured, none is turned.
    """
    reference = None if truth is None else turn_image(truth, space)[0]
    return [(name, turn_image(image, space, reference)[0]) for name, image in images]


@cache
def cyclic_table(levels: int = 255) -> NDArray[np.uint8]:
    """The colours of so many phases from -pi to pi, evenly spaced, both ends included: (levels, 3) in 8 bits."""
    stops = np.frombuffer(CYCLIC, np.uint8).reshape(-1, 3).astype(np.float64)
    place, positions = np.linspace(0, 1, levels), np.linspace(0, 1, len(stops))
    table = np.stack([np.interp(place, positions, stops[:, part]) for part in range(3)], axis=-1)
    return np.rint(table).astype(np.uint8)


def color_phase(phase: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A phase in radians, (H, W), as indices of colours, (H, W), and the colours, (256, 3); the last is for NaN."""
    colours = np.concatenate([cyclic_table(), np.array([NOTHING], dtype=np.uint8)])
    finite = np.isfinite(phase)
    shares = np.clip((np.where(finite, phase, 0.0) + math.pi) / (2 * math.pi), 0, 1)
    return np.where(finite, np.rint(254 * shares), 255).astype(np.uint8), colours


def thumbnail(image: Tensor, axes: int, side: int = 256) -> bytes:
    """A picture of an image for a glance, as PNG: grey, the magnitude if it is complex, a volume's middle slice.

    Arguments: image (..., *image_shape), the first of several, with that many axes; side, pixels of the longer side at
    most, and at least, so that a small image can be seen.
    """
    plane = image.detach().flatten(0, -axes - 1)[0] if image.ndim > axes else image.detach()
    while plane.ndim > 2:
        plane = plane[len(plane) // 2]
    plane = plane.abs() if plane.is_complex() else plane
    values = np.nan_to_num(plane.cpu().float().numpy(), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    levels = np.rint(255 * (values - low) / ((high - low) or 1.0)).astype(np.uint8)
    from PIL import Image

    picture, factor = Image.fromarray(levels), side / max(levels.shape)
    size = tuple(max(1, round(factor * count)) for count in reversed(levels.shape))
    content = io.BytesIO()
    picture.resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BOX).save(content, "PNG")
    return content.getvalue()


def average_blocks(values: Tensor, blocks: Sequence[int]) -> Tensor:
    """Means over blocks of the last axes, real or complex; blocks at the far edges may be smaller.

    Arguments: values (..., n_1, ..., n_d); blocks, the d sizes of a block, two or three of them.
    Returns (..., ceil(n_1 / b_1), ..., ceil(n_d / b_d)).
    """
    if all(size == 1 for size in blocks):
        return values
    if values.is_complex():
        return torch.complex(average_blocks(values.real, blocks), average_blocks(values.imag, blocks))
    axes = len(blocks)
    before, last = values.shape[:-axes], values.shape[-axes:]
    pool = torch.nn.functional.avg_pool2d if axes == 2 else torch.nn.functional.avg_pool3d
    flat = values.reshape(math.prod(before), 1, *last)
    small: Tensor = pool(flat, list(blocks), ceil_mode=True, count_include_pad=False)
    return small.reshape(*before, *small.shape[-axes:])
