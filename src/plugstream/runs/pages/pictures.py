"""Images for a page: values in 16 bits with what they mean, small enough to send and whole enough to look at closely.

A picture is plain JSON:

    {"role": "result", "step": 100, "upwards": true, "panels": [panel, ...]}

and a panel what `plugstream.runs.preview` tells of one, with its values:

    {"name": "image", "quantity": "contrast", "unit": "", "range": [0.0, 1.3], "cyclic": false,
     "axes": [{"name": "y", "unit": "m", "origin": -0.1, "spacing": 0.01, "size": 21}, {"name": "x", ...}],
     "shape": [21, 21], "low": 0.0, "scale": 2e-05, "data": "eJw..."}

`cyclic` is a phase, and `turned` says of one that the data leave free by how many radians the image was turned for the
page, so that its mean is real: pages turn such images to each other where they compare them.

A value is low + n * scale with n in 16 bits, and n = 65535 stands for what is not finite. `data` is base64 of zlib's
form of all high bytes and then all low bytes of the differences, modulo 65536, of each n from the one before it, which
is a third of the size for most images.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.tensors import load_tensors
from plugstream.base.volume_file import open_volume
from plugstream.images.planes import split_parts, turn_image
from plugstream.images.space import ImageSpace
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.error_maps import map_space
from plugstream.runs.frames import encode_levels, is_phase
from plugstream.runs.preview import channel_axis, read_preview, space_axis
from plugstream.runs.refined import PREFIX, refined_space

# Pixels a side at most, of an image and of a volume.
_SIDE = 1024
_VOLUME_SIDE = 128
_MOST_CHANNELS = 8
_LARGE = 64 << 20  # bytes of a file from which on not all of it is read at once
_COMPARED = ("filtered", "gridding", "backprojection")  # a run has one of them
_ROLES = ("result", "preview", "checkpoint", "uncertainty", *_COMPARED, "start", "truth")


def picture_files(folder: Path, *, running: bool, finished: bool) -> dict[str, Path]:
    """The images of a run by role, the one to show first.

    Of a run that has its result it is that, and nothing earlier is needed. While it goes on it is the preview, and
    where it was killed or failed the last checkpoint; a result that is there then is of an earlier end.
    """
    files = _all_files(folder)
    if finished and "result" in files:
        files = {role: path for role, path in files.items() if role not in ("preview", "checkpoint")}
    first = ("result",) if finished else ("preview", "checkpoint") if running else ("checkpoint", "preview")
    order = [*first, *_ROLES, *(role for role in files if role not in _ROLES)]
    return {role: files[role] for role in sorted(files, key=order.index)}


def _all_files(folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.npy" for name in ("result", "uncertainty", *_COMPARED, "start", "truth")}
    files |= {path.stem: path for path in sorted(folder.glob(f"{PREFIX}*.npy"))}
    files["preview"] = folder / "preview.safetensors"
    place = folder / "checkpoints"
    checkpoints = [] if place.is_symlink() else Checkpoints(place, {}).files()
    if checkpoints:
        files["checkpoint"] = checkpoints[0]
    # A link could lead out of the folder, which may come from anybody and be shown to anybody.
    return {role: path for role, path in files.items() if path.is_file() and not path.is_symlink()}


def run_picture(folder: Path, role: str, space: ImageSpace | None) -> dict[str, Any]:
    """An image of a run, by its role in `run_content`, for a page; InputError where there is none, or it is damaged."""
    files = _all_files(folder)
    if role not in files:
        raise InputError(f"the run {folder.name} has no image {role!r}; there are {', '.join(files) or 'none'}")
    path = files[role]
    try:
        if role != "checkpoint" and space is not None and path.stat().st_size > _LARGE and _is_volume(space):
            return _picture_of_volume(path, space, role)
        if role == "preview":
            return picture_of_preview(read_preview(path), upwards=True if space is None else space.upwards)
        step, image = _read_checkpoint(path) if role == "checkpoint" else (None, _read_array(path))
        if role == "uncertainty" and space is not None:
            space = map_space(space)
        if role.startswith(PREFIX):
            space = refined_space(image)
            if space is None:
                raise ValueError(f"it is of shape {image.shape}, and no image")
    except (InputError, OSError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return make_picture(image, space, role, step=step)


def _read_array(path: Path) -> NDArray[Any]:
    image: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if image.dtype.kind not in "fc":
        raise ValueError(f"it holds {image.dtype}, and no image")
    return image


def make_picture(
    image: NDArray[Any], space: ImageSpace | None, role: str, *, step: int | None = None
) -> dict[str, Any]:
    """A picture of an image: whole where it has at most 1024 pixels a side, a volume 128, and else means over blocks.

    A complex image has two panels, magnitude and phase, and is turned by its mean where its phase is free. Of many
    channels the first eight are taken, of several images the first.

    Arguments: image, (..., *space.shape); space, None for one of pixels; role; step that it is of, if that is known.
    """
    space = space or ImageSpace(tuple(image.shape[-2:]), is_complex=np.iscomplexobj(image), upwards=False)
    if image.shape[image.ndim - space.ndim :] != tuple(space.shape):
        raise InputError(f"the image {role} is {tuple(image.shape)}, but its space is of {space.shape}")
    image = image.reshape(-1, *space.shape)[0]
    values = np.asarray(image[:_MOST_CHANNELS] if space.channels else image[None])
    side = _SIDE if len(space.spatial) == 2 else _VOLUME_SIDE
    blocks = [max(1, math.ceil(size / side)) for size in space.spatial]
    return _picture(_shrink(values, blocks), blocks, space, role, step)


def _picture(
    values: NDArray[Any], blocks: list[int], space: ImageSpace, role: str, step: int | None = None
) -> dict[str, Any]:
    """A picture of means over blocks, (channels or 1, *spatial)."""
    axes = [space_axis(space, n, values.shape[1 + n], block) for n, block in enumerate(blocks)]
    if (seen := space.field_of_view(blocks[-2:])) is not None:
        values = np.where(seen, values, np.nan)
    if space.channels:
        axes.insert(0, channel_axis(len(values)))
    else:
        values = values[0]
    values, angle = turn_image(values, replace(space, shape=values.shape))
    panels = []
    for part, numbers, _ in split_parts(values):
        about = {
            "name": part or "image",
            "quantity": f"{space.quantity}, {part}" if part else space.quantity,
            "unit": "rad" if part == "phase" else space.value_unit,
            "cyclic": part == "phase",
            "axes": axes,
            **({"turned": angle} if part == "phase" and space.phase == "free" else {}),
        }
        panels.append(about | _encode(numbers))
    return {"role": role, "step": step, "upwards": space.upwards, "panels": panels}


def _is_volume(space: ImageSpace) -> bool:
    return len(space.shape) == 3 and not space.channels and not space.is_complex


def _picture_of_volume(path: Path, space: ImageSpace, role: str) -> dict[str, Any]:
    """What `make_picture` makes of a volume in a file, with a few slices at a time in memory."""
    volume = open_volume(path)
    if volume.shape != tuple(space.shape):
        raise InputError(f"the image {role} is {volume.shape}, but its space is of {space.shape}")
    blocks = [max(1, math.ceil(size / _VOLUME_SIDE)) for size in space.spatial]
    parts = [_shrink(part[None], blocks) for _, part in volume.portions(blocks[0])]
    return _picture(np.concatenate(parts, 1), blocks, space, role)


def picture_of_preview(
    preview: tuple[int, Mapping[str, Tensor], Sequence[Mapping[str, Any]]], *, upwards: bool
) -> dict[str, Any]:
    """A picture of a preview, which has its own panels, as `read_preview` gives it."""
    step, tensors, panels = preview
    panels = [{**panel, "cyclic": is_phase(panel)} | _encode(tensors[panel["name"]].numpy(), 1) for panel in panels]
    return {"role": "preview", "step": step, "upwards": upwards, "panels": panels}


def _read_checkpoint(path: Path) -> tuple[int, NDArray[Any]]:
    """Step and image of a checkpoint."""
    header, tensors = load_tensors(path, "plugstream-checkpoint")
    content = json.loads(header["content"])
    image = tensors["state.image"]
    return content["state"]["k"], (
        torch.view_as_complex(image) if "state.image" in content["complex"] else image
    ).numpy()


def _shrink(values: NDArray[Any], blocks: list[int]) -> NDArray[Any]:
    """Means over blocks of the last axes; those at the far edges are of what there is."""
    for axis, block in enumerate(blocks, 1):
        starts = np.arange(0, values.shape[axis], block)
        counts = np.diff([*starts, values.shape[axis]]).astype(np.float32)
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        values = values if block == 1 else np.add.reduceat(values, starts, axis) / counts.reshape(shape)
    return values


def _encode(values: NDArray[Any], level: int = 6) -> dict[str, Any]:
    """Values as the module says, with their range, None where none is finite; level 1 of zlib is twice as fast as 6."""
    levels, low, high, scale = encode_levels(values)
    differences = np.diff(levels.ravel(), prepend=np.uint16(0)).astype(">u2")  # modulo 65536
    planes = differences.view(np.uint8).reshape(-1, 2).T.tobytes()
    return {
        "range": None if high is None else [low, high],
        "shape": list(values.shape),
        "low": low,
        "scale": scale,
        "data": base64.b64encode(zlib.compress(planes, level)).decode("ascii"),
    }
