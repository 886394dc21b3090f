"""The prox of the ridge prior by the native CPU kernel; `ridge_prior.py` is its specification."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream import _native
from plugstream.denoisers.forms import native_serves
from plugstream.denoisers.ridge_fold import fold_kernels
from plugstream.denoisers.ridge_prior import Ridges

serves = native_serves

_MOST_LEVELS = 64


class Profiles(NamedTuple):
    """Of one noise level: sigma psi'(u / sigma) = sum_j slope_j clip(u, -reach_j, reach_j), and how to iterate.

    slopes, reaches: (2, pairs, ratios), of even and of odd filters. rates: (4,), step and momentum of the heavy ball
    and of Nesterov's method.
    """

    slopes: NDArray[Any]
    reaches: NDArray[Any]
    rates: NDArray[Any]


class Solver:
    """D(z, sigma) by the kernel, with folded filters and the profiles of the last noise levels.

    Arguments: ridges; later changes of them are not seen.
    """

    @torch.no_grad()
    def __init__(self, ridges: Ridges) -> None:
        self._ridges = copy.deepcopy(ridges).double().cpu().requires_grad_(False)
        kernels, spectra = self._ridges.parts()
        self.taps = np.ascontiguousarray(fold_kernels(kernels).backward.numpy(), dtype=np.float32)
        # Those of a filter and its mirror image, which count alike, are together the same above and below.
        self._parts = kernels, spectra[:, : spectra.shape[1] // 2 + 1].contiguous()
        self._levels: dict[float, Profiles] = {}

    def __call__(
        self,
        z: Tensor,
        level: Tensor,
        start: Tensor | None = None,
        *,
        tol: float,
        patience: int,
        max_iterations: int,
        instructions: str = "",
    ) -> tuple[Tensor, bool]:
        """As `prox` for each image, (N, 1, H, W), and whether all reached the tolerance; D(z, 0) = z.

        Neither the number of threads nor the other images of the batch change a bit of the result.

        Arguments: z, level, start: (N, 1, H, W), float32; (N,); the shape of z. tol, patience, max_iterations: as of
        `prox`. instructions: the instruction set, for tests; the best that the machine has if empty.
        """
        if z.numel() == 0:
            return z, True
        sigmas = level.tolist()
        profiles = [self.profiles(sigma if sigma > 0 else 1.0) for sigma in sigmas]
        out, rests = torch.empty(z.shape), np.empty(len(z), bool)
        _native.kernels().ridge(
            _images(z),
            None if start is None else _images(start),
            np.array([sigma > 0 for sigma in sigmas]),
            _images(out),
            rests,
            taps=self.taps,
            slopes=np.stack([one.slopes for one in profiles]),
            reaches=np.stack([one.reaches for one in profiles]),
            rates=np.stack([one.rates for one in profiles]),
            tol=tol,
            patience=patience,
            most=max_iterations,
            threads=torch.get_num_threads(),
            level=instructions,
        )
        return out, bool(rests.all())

    @torch.no_grad()
    def profiles(self, sigma: float) -> Profiles:
        """The profiles at a noise level, remembered for the next call."""
        if (last := self._levels.get(sigma)) is not None:
            return last
        potential = self._ridges.at(torch.tensor([sigma], dtype=torch.float64), self._parts)
        pairs = self.taps.shape[1]
        height, reach = (
            torch.stack(part, -1)[0, : 2 * pairs, 0, 0].unflatten(0, (2, pairs))
            for part in zip(*potential.profiles, strict=True)
        )
        rates = torch.cat([*potential.heavy_ball(), *potential.nesterov()])
        profiles = Profiles(*(part.numpy().astype(np.float32) for part in (height / reach, reach, rates)))
        if len(self._levels) >= _MOST_LEVELS:
            self._levels = {}  # another thread may be reading the old one
        self._levels[sigma] = profiles
        return profiles


def _images(stack: Tensor) -> NDArray[Any]:
    """(N, 1, H, W) as the kernel takes it, (N, H, W); not copied if it is contiguous."""
    return stack.detach().contiguous().numpy()[:, 0]
