"""The error map of a run: computed after its last step, saved on the way, and written beside the image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError, StorageError
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.images.global_phase import align_phase
from plugstream.images.pictures import save_image
from plugstream.images.space import ImageSpace
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note
from plugstream.solver.uncertainty import ErrorSum, coverage, error_sums

_FORMAT = "plugstream-error-map"
# Of a run's steps, those that each half of the views takes, and how many at least.
_PART, _LEAST = 4, 20


def check_error_map(halves: int | None, n_views: int, *, blocks: bool) -> None:
    """Refuse an error map that cannot be made."""
    if halves is None:
        return
    if blocks:
        raise InputError("an error map is of an image that is formed at once; leave --uncertainty out")
    if n_views < 4:
        raise InputError(f"an error map is made from halves of the views, and the scan has {n_views}; it takes 4")


def map_space(space: ImageSpace) -> ImageSpace:
    """The space of the map of an image's errors: as that of the image, with real values."""
    return replace(space, is_complex=False, quantity=f"error of {space.quantity}, from noise and views")


class ErrorMap:
    """The error map of a run in a folder, from so many halves of its views."""

    def __init__(self, folder: Path, log: EventLog, space: ImageSpace, halves: int, iterations: int, seed: int) -> None:
        self.folder, self.log, self.space, self.halves, self.seed = folder, log, space, halves, seed
        self.steps = max(_LEAST, iterations // _PART)
        self.path = folder / "uncertainty.safetensors"

    def find(self, algorithm: Any, state: Any, *, writes: bool) -> Tensor | None:
        """The map, or None where somebody interrupted it; then a resumed run goes on with what there is so far."""
        total = begun = self._begun(state)
        about = f"from {self.halves} halves of the views, {self.steps} steps each"
        self.log.add(Note(f"the error map is made {about}" + (f"; {total.count} are there already" if total else "")))
        try:
            how = {"halves": self.halves, "steps": self.steps, "seed": self.seed}
            for total in error_sums(algorithm, state, **how, phase=self.space.phase, begun=begun):
                if writes:
                    self._save(total, state)
        except KeyboardInterrupt:
            self.log.add(Note("the error map was interrupted; 'plugstream resume' goes on with it"))
            return None
        assert total is not None
        return total.map()

    def write(self, errors: Tensor, image: Tensor, truth: Tensor | None) -> str:
        """Write the map as PNG, TIFF and NPY; in words, how large errors are, and how often they are within it."""
        space = self.space
        save_image(errors.float(), self.folder / "uncertainty", map_space(space))
        size = f"{float(errors.square().mean().sqrt()):.3g}"
        text = f"noise and the choice of views move the image by {size} (root mean square)"
        if truth is not None:
            truth = truth.to(errors.device)
            turned = align_phase(image, truth, space.ndim) if space.free_phase else image
            part = coverage((turned - truth).to(errors.device), errors)
            text += f"; the true error is within twice that at {100 * part:.0f} % of the pixels"
        return text

    def _begun(self, state: Any) -> ErrorSum | None:
        """What an earlier process came to, of the same image and halves."""
        if not self.path.exists():
            return None
        try:
            about, tensors = load_tensors(self.path, _FORMAT)
        except InputError:
            return None  # it is computed again
        same = about.get("of") == self._about(state) and int(about.get("count", "0")) <= self.halves
        return ErrorSum(int(about["count"]), tensors["total"]) if same else None

    def _save(self, total: ErrorSum, state: Any) -> None:
        header = {"format": _FORMAT, "count": str(total.count), "of": self._about(state)}
        try:
            save_tensors(self.path, {"total": total.total}, header, durable=False)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror}; fix that, and 'plugstream resume' goes on"
            ) from error

    def _about(self, state: Any) -> str:
        """What a sum belongs to: the step, the image, and how halves are drawn."""
        image = torch.view_as_real(state.image) if state.image.is_complex() else state.image
        total = float(image.double().sum())
        return f"step {state.k}, {self.steps} steps, seed {self.seed}, sum {total!r}"
