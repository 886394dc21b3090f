"""The training loop: Adam, a decaying rate, checkpoints from which it continues to the bit, a stop on NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError, StorageError
from plugstream.base.tensors import load_tensors, save_tensors

_FORMAT = "plugstream-training"
_TOGETHER = 50  # losses read from a GPU at a time


class Training:
    """Parameters, their Adam moments, and the number of steps: everything in a checkpoint.

    Arguments:
        parameters: leaves that require gradients, by name; changed in place.
        about: what is trained on what, as JSON; a checkpoint that differs is refused. rates: a factor of the rate by
        name, 1 where not given, for parameters of another scale.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], about: Mapping[str, Any], rates: Mapping[str, float] | None = None
    ) -> None:
        self.parameters = dict(parameters)
        self.rates = dict(rates or {})
        self.about = dict(about)
        self.step = 0
        self.moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, rate: float, beta1: float = 0.9, beta2: float = 0.99, least: float = 1e-8) -> None:
        """One step of Adam with the gradients that the parameters carry, which are then cleared."""
        self.step += 1
        for name, parameter in self.parameters.items():
            assert parameter.grad is not None
            first, second = self.moments[name]
            first.lerp_(parameter.grad, 1 - beta1)
            second.lerp_(parameter.grad.square(), 1 - beta2)
            size = (second / (1 - beta2**self.step)).sqrt_().add_(least)
            parameter.sub_(first / size, alpha=rate * self.rates.get(name, 1.0) / (1 - beta1**self.step))
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the step, by name."""
        tensors: dict[str, Tensor] = {f"parameter.{n}": p for n, p in self.parameters.items()}
        for name, (first, second) in self.moments.items():
            tensors |= {f"first.{name}": first, f"second.{name}": second}
        return tensors

    def save(self, path: Path) -> None:
        """Write a checkpoint to a temporary file, flush it to disk, and rename it."""
        tensors = self.tensors()
        about = {"format": _FORMAT, "step": str(self.step), "about": json.dumps(self.about, sort_keys=True)}
        try:
            save_tensors(path, tensors, about)
        except OSError as error:
            raise StorageError(f"cannot write the checkpoint {path}: {error.strerror}") from error

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Continue from a checkpoint of the same training; any other is refused, and nothing changes."""
        try:
            metadata, tensors = load_tensors(path, _FORMAT)
        except InputError as error:
            raise InputError(f"{path} cannot be read as a checkpoint: {error}") from error
        stored = json.loads(metadata["about"])
        for key in sorted({*stored, *self.about}):
            if stored.get(key) != self.about.get(key):
                raise InputError(
                    f"{path} was trained with {key} = {stored.get(key)!r}, not {self.about.get(key)!r}; "
                    "give the same settings, or another checkpoint file"
                )
        shapes = {n: t.shape for n, t in tensors.items()}
        for name, tensor in self.tensors().items():
            if shapes.get(name) != tensor.shape:
                kind, _, plain = name.partition(".")
                raise InputError(f"{path} has no {kind} {plain!r} of shape {tuple(tensor.shape)}")
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self.step = int(metadata["step"])


def fit(
    training: Training,
    gradients: Callable[[int], float | Tensor],
    *,
    steps: int,
    rate: float,
    checkpoint: Path | None = None,
    every: int = 500,
    progress: Callable[[int, float], Any] | None = None,
) -> None:
    """Train up to `steps` steps in all, continuing from the checkpoint if there is one.

    The rate falls from `rate` to a hundredth of it along a cosine. A loss that is not finite ends the training with the
    step's number, and the last checkpoint stays. Losses on a GPU are read 50 at a time, so that it never waits for the
    host; then the training may go on for as many steps before it ends.

    Arguments:
        gradients: called with the step, it sets the parameters' gradients and returns the loss.
        checkpoint: written every `every` steps and at the end.
        progress: called with the step and its loss; if it returns something true, training ends with a checkpoint.
    """
    if checkpoint is not None and checkpoint.exists():
        training.load(checkpoint)
    unread: list[float | Tensor] = []
    for step in range(training.step, steps):
        unread.append(gradients(step))
        due = checkpoint is not None and (step + 1) % every == 0
        last = step + 1 == steps
        losses: list[float] = []
        if due or last or len(unread) == _TOGETHER or not _on_gpu(unread[-1]):
            losses, unread = torch.stack([torch.as_tensor(loss) for loss in unread]).tolist(), []  # one copy for all
        for number, loss in enumerate(losses, step + 1 - len(losses)):
            if not math.isfinite(loss):
                hint = f"; the last checkpoint is {checkpoint}" if checkpoint and checkpoint.exists() else ""
                raise InputError(f"the loss became {loss} at step {number}; use a smaller rate than {rate:g}{hint}")
        training.update(rate * (0.505 + 0.495 * math.cos(math.pi * step / steps)))
        if progress is not None:
            answers = [progress(number, loss) for number, loss in enumerate(losses, step + 2 - len(losses))]
            last |= any(answers)
        if checkpoint is not None and (due or last):
            training.save(checkpoint)
        if last:
            return


def _on_gpu(loss: float | Tensor) -> bool:
    return isinstance(loss, Tensor) and loss.is_cuda
