"""Parameters of the model that a run refined, as files: refined-NAME.npy, and a picture of those that are images."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import write_whole
from plugstream.images.drawing import arrange_panels, draw_rows, encode_figure, figure_size
from plugstream.images.planes import turn_image
from plugstream.images.space import ImageSpace
from plugstream.runs.callbacks import Callback
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note

if TYPE_CHECKING:
    from plugstream.algorithms import State
    from plugstream.solver.result import Progress

PREFIX = "refined-"
# Of at most so many images in one array each is drawn.
_MOST = 8


class RefinementNotes(Callback):
    """Says in the log why and when refinement ended, and how far it still had to go."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._ended: int | None = None

    def after_step(self, progress: Progress[State]) -> None:
        """Say it once, in the run that sees it happen: one that goes on has it in its log."""
        refinement = getattr(progress.state, "refinement", None)
        if refinement is None:
            return
        if self._ended == 0 and refinement.ended:
            self.log.add(Note(describe_end(progress.algorithm, progress.state)))
        self._ended = refinement.ended


def describe_end(algorithm: Any, state: Any) -> str:
    """Why refinement ended with a state, in words: that all has arrived, or that the limit came first."""
    refinement, tolerance = state.refinement, algorithm.refine_tolerance
    names = list(algorithm.fidelity.comparable(state.parameters, algorithm.refine))
    if refinement.left is None:
        far, arrived = "nothing is known of how far it still has to go", False
    else:
        ways = [f"{name} {100 * way:.2g} %" for name, way in zip(names, refinement.left.tolist(), strict=True)]
        far = f"by how its steps shrink it still has to go: {', '.join(ways)}"
        arrived = bool((refinement.left <= tolerance).all())
    refined = ", ".join(algorithm.refine)
    if arrived:
        return f"{refined}: arrived at step {refinement.ended}, and fixed from then on; {far}"
    return (
        f"warning: {refined}: fixed at step {refinement.ended}, the limit, before they had arrived; {far}, where "
        f"{100 * tolerance:.2g} % is wanted; give more --refine-steps and --iterations"
    )


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
    parameters = {}
    for path in sorted(folder.glob(f"{PREFIX}*.npy")):
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"cannot read {path}, which the run refined: {error}") from None
        if values.dtype.kind not in "fc" or not np.isfinite(values).all():
            raise InputError(f"{path} holds {values.dtype}, or numbers that are not finite, and no parameters")
        parameters[path.stem.removeprefix(PREFIX)] = torch.from_numpy(values)
    return parameters


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
    images = [(title, turn_image(image, plane)[0]) for title, image in zip(titles, stack, strict=True)]
    rows = arrange_panels(images, plane)
    figure = Figure(figsize=figure_size(rows), layout="constrained")
    draw_rows(figure, rows, plane)
    return encode_figure(figure, dpi=110)
