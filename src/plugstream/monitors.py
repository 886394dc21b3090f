"""What is measured now and then while an algorithm runs. Time spent here is not the algorithm's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from plugstream.algorithms.base import Algorithm, State
from plugstream.errors import InputError
from plugstream.theory import fixed_point_distance

__all__ = ["SNR", "Cost", "Distance", "Measure", "Monitor", "snr"]

Measure = Callable[[Any], dict[str, Tensor]]
"""Measures a state: names and values, one value for each image."""


class Monitor(Protocol):
    """Something to measure every `every` steps (None: as often as `solve` says)."""

    @property
    def every(self) -> int | None: ...

    def begin(self, algorithm: Algorithm[Any], state: State) -> Measure:
        """A function that measures states of this run, which starts at `state`."""


@dataclass(frozen=True)
class Distance:
    """The distance to a fixed point on all the data, ||x - P(x)||^2, as it is and relative to its start.

    `relative_distance` is divided by the first value, at x^0 (the paper's Table 1 is not); a run that continues an
    earlier one gives that run's first value as `reference`. P takes gamma and sigma of the iteration to come. Where all
    the data would take too long, `views` is a function that says on which views to measure instead, None for all: the
    distance is then to a fixed point of the problem with those views alone, and does not go to zero with the steps.
    """

    every: int | None = None
    reference: Tensor | float | None = None
    views: Callable[[], Tensor | None] | None = None

    def begin(self, algorithm: Algorithm[Any], state: State) -> Measure:
        first = self.reference

        def measure(state: Any) -> dict[str, Tensor]:
            nonlocal first
            gamma, sigma = algorithm.parameters(state.k + 1)
            warm = getattr(state, "warm", None)
            some = None if self.views is None else self.views()
            value = fixed_point_distance(state.image, algorithm.fidelity, algorithm.denoiser, gamma, sigma, warm, some)
            first = value if first is None else first
            return {"distance": value, "relative_distance": value / first}

        return measure


@dataclass(frozen=True, eq=False)
class SNR:
    """The signal-to-noise ratio against a known truth (..., H, W), in dB."""

    truth: Tensor
    every: int | None = None

    def begin(self, algorithm: Algorithm[Any], state: State) -> Measure:
        truth = self.truth.to(state.image)
        if truth.shape[-2:] != state.image.shape[-2:]:
            raise InputError(
                f"the truth is {tuple(truth.shape[-2:])}, but the image {tuple(state.image.shape[-2:])}; SNR needs "
                "them alike"
            )
        return lambda state: {"snr": snr(state.image, truth)}


@dataclass(frozen=True)
class Cost:
    """d(x), and where the denoiser is a known prox also f(x) = d(x) + (sigma^2 / gamma) r(x), which it minimises.

    `views` as for `Distance`.
    """

    every: int | None = None
    views: Callable[[], Tensor | None] | None = None

    def begin(self, algorithm: Algorithm[Any], state: State) -> Measure:
        prior = getattr(algorithm.denoiser, "value", None)

        @torch.no_grad()
        def measure(state: Any) -> dict[str, Tensor]:
            some = None if self.views is None else self.views()
            out = {"fidelity": algorithm.fidelity.value(state.image, some)}
            if prior is not None:
                gamma, sigma = algorithm.parameters(state.k + 1)
                out["cost"] = out["fidelity"] + sigma**2 / gamma * prior(state.image)
            return out

        return measure


def snr(image: Tensor, truth: Tensor) -> Tensor:
    """How close an image is to the truth, in dB: 20 log10(||x|| / ||x - x_hat||), (..., H, W) twice to (...)."""
    axes = (-2, -1)
    noise = torch.linalg.vector_norm(image - truth, dim=axes)
    return 20 * torch.log10(torch.linalg.vector_norm(truth, dim=axes) / noise)
