"""What a run found of the model beside the image, as files: refined-NAME.npy, and a picture of what is one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.drawing import arrange_panels, draw_rows, figure_size
from plugstream.errors import InputError
from plugstream.figure_files import encode_figure
from plugstream.files import write_whole
from plugstream.image_space import ImageSpace
from plugstream.planes import turn_image

__all__ = ["PREFIX", "read_refined", "refined_space", "save_refined"]

PREFIX = "refined-"
# Of at most so many images in one array each is drawn.
_MOST = 8


def save_refined(folder: Path, parameters: Mapping[str, torch.Tensor]) -> None:
    """Write each parameter as NPY, in single precision, and images or stacks of them as a picture, too."""
    for name, value in parameters.items():
        values = value.detach().cpu().resolve_conj().numpy()
        values = values.astype(np.complex64 if np.iscomplexobj(values) else np.float32)
        file = io.BytesIO()
        np.save(file, values)
        write_whole(folder / f"{PREFIX}{name}.npy", [file.getvalue()])
        space = refined_space(values)
        if space is not None:
            write_whole(folder / f"{PREFIX}{name}.png", [_draw(name, values, space)])


def read_refined(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters that a run in a folder has left, by name; none where nothing was refined."""
    found = {}
    for path in sorted(folder.glob(f"{PREFIX}*.npy")):
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"cannot read {path}, which the run refined: {error}") from None
        if values.dtype.kind not in "fc" or not np.isfinite(values).all():
            raise InputError(f"{path} holds {values.dtype}, or numbers that are not finite, and no parameters")
        found[path.stem.removeprefix(PREFIX)] = torch.from_numpy(values)
    return found


def refined_space(values: NDArray[Any]) -> ImageSpace | None:
    """The space of an array that can be shown, (H, W) or (images, H, W); None of others, such as a row of gains."""
    if values.ndim not in (2, 3) or min(values.shape[-2:]) < 8:
        return None
    return ImageSpace(
        values.shape, is_complex=np.iscomplexobj(values), channels=values.ndim == 3, upwards=False, quantity="value"
    )


def _draw(name: str, values: NDArray[Any], space: ImageSpace) -> bytes:
    """Magnitude above phase of each image, with its part of the power."""
    from matplotlib.figure import Figure

    stack = values.reshape(-1, *values.shape[-2:])[:_MOST]
    plane = ImageSpace(stack.shape[1:], is_complex=space.is_complex, upwards=False, quantity=name)
    powers = (np.abs(stack.astype(np.complex128)) ** 2).sum((1, 2))
    shares = 100 * powers / max(float((np.abs(values.astype(np.complex128)) ** 2).sum()), 1e-300)
    titles = [name] if values.ndim == 2 else [f"{name} {n + 1}, {share:.3g} %" for n, share in enumerate(shares)]
    shown = [(title, turn_image(image, plane)[0]) for title, image in zip(titles, stack, strict=True)]
    rows = arrange_panels(shown, plane)
    figure = Figure(figsize=figure_size(rows), layout="constrained")
    draw_rows(figure, rows, plane)
    return encode_figure(figure, dpi=110)
