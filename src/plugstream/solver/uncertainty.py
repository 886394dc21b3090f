"""How sure an image is: how far noise and the choice of views move each pixel, from images of halves of the views."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms.sampling import drawable
from plugstream.base.draws import Stream, draw_words
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.images.global_phase import Phase, align_phase

_LEAST = 4  # views, for two halves that say something of each other


@dataclass(frozen=True)
class ErrorSum:
    """The number of halves, and the sum over them of |x_r - x|^2, in float64: (*image_shape)."""

    count: int
    total: Tensor

    def map(self) -> Tensor:
        """The root of the mean."""
        return (self.total / max(self.count, 1)).sqrt()


def half_of_views(available: Tensor, number: int, seed: int = 0) -> Tensor:
    """Half of the views, rounded down, drawn without replacement: a pure function of (seed, number); ascending.

    Each pair of numbers shares a random order: the even one has its first half, the next one its second.

    Arguments: available (n,), at least 4; number, of the half.
    """
    n = len(available)
    if n < _LEAST:
        raise InputError(f"an error map is made from halves of the views, and {n} are too few; {_LEAST} are needed")
    order = np.argsort(draw_words(seed, number // 2, n, Stream.HALVES), kind="stable")
    size = n // 2
    part = order[:size] if number % 2 == 0 else order[-size:]
    return available[torch.from_numpy(np.sort(part)).to(available.device)]


@torch.no_grad()
def error_sums(
    algorithm: Any,
    state: Any,
    *,
    halves: int,
    steps: int,
    seed: int = 0,
    phase: Phase = "free",
    begun: ErrorSum | None = None,
) -> Iterator[ErrorSum]:
    """The sums of `error_map` after each half of the views, so that a run can stop between them and continue.

    Arguments: as for `error_map`; begun, the last sum of an earlier call.
    """
    fidelity, axes = algorithm.fidelity, len(algorithm.fidelity.image_shape)
    if halves < 2 or steps < 1:
        raise InputError(f"an error map takes two halves of the views or more, and a step of each, not {halves}")
    image, available = state.image, fidelity.available
    zero = torch.zeros(image.shape, dtype=torch.float64, device=image.device)
    sums = ErrorSum(0, zero) if begun is None else replace(begun, total=begun.total.to(zero))
    bound = fidelity.lipschitz_max if fidelity.has_lipschitz else None
    for number in range(sums.count, halves):
        half = half_of_views(available, number, seed)
        part = fidelity.with_views(fidelity.model, half, lipschitz_max=bound)
        by_half = replace(algorithm, fidelity=part, sampler=drawable(algorithm.sampler, state.k, half))
        now = by_half.renew(state)
        for step in range(steps):
            report(f"error map, half {number + 1} of {halves}", step, steps)
            now = by_half.step(now)
        x = align_phase(now.image, image, axes) if phase == "free" else now.image
        square = (x - image).abs().double().square()
        # For m of n views, Var(x_m - x_n) = (n / m - 1) Var(x_n).
        sums = ErrorSum(number + 1, sums.total + square * (len(half) / (len(available) - len(half))))
        yield sums


def error_map(
    algorithm: Any, state: Any, *, halves: int = 16, steps: int = 40, seed: int = 0, phase: Phase = "free"
) -> Tensor:
    r"""The error at each pixel of an image that comes from noise and from the choice of views.

    From the image of all n views the algorithm continues with n/2 of them, drawn at random, to an image x_r; likewise
    for other halves. Then

        map = ( mean_r |x_r - x|^2 )^(1/2).

    For an estimate that is a smooth function of means over views, Var(x_r - x) = Var(x), so that the map is the
    standard deviation of the image under other noise and other views of the same kind: the half-sample, or delete-half
    jackknife, estimate. It needs no noise level and holds for any model, loss and denoiser.

    It does not show errors that all halves share: a detail that the denoiser always removes, or a fault of the model or
    of all views. docs/uncertainty.md says how often |error| < 2 map on simulated scans; for independent Gaussian errors
    it would be 95 %.

    Condition: views are exchangeable, with independent noise; `steps` bring the image of a half to its fixed point from
    that of all. At least 4 views.

    Arguments:
        algorithm: as at the end of the run. state: its last, of one image (*image_shape).
        halves: how many images, an even number, at least 2; the map of 16 is exact to about a sixth.
        steps: for each half. seed: of the halves. phase: "free" if the data leave the global phase of a complex image
            open, so that it is no error, or "measured", as for MRI.
    Returns (*image_shape), real.
    References: McCarthy, Rev. Int. Stat. Inst. 37, 1969; Shao and Wu, Ann. Statist. 17, 1989.
    """
    sums = error_sums(algorithm, state, halves=halves, steps=steps, seed=seed, phase=phase)
    return deque(sums, maxlen=1)[0].map()


def coverage(error: Tensor, map: Tensor, times: float = 2.0) -> float:
    """The share of pixels with |error| < `times` map, from 0 to 1; both (*image_shape)."""
    return float((error.abs() < times * map).double().mean())
