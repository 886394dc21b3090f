"""The step that goes with a falling sigma for intensities of waves, which their likelihood nearly says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plugstream.algorithms.falling import FallingSearch, FallingState
from plugstream.models.part import SHARE

# lam of the first run over what the loss says of the noise of counts, and of the next over their misfit.
_LIKELY, _COUNTED = 0.5, math.sqrt(2.0)


@dataclass(frozen=True, eq=False)
class FallingWaveSearch(FallingSearch):
    r"""Find the step that goes with a sigma from intensities of waves, by a run or a few of inexact ADMM.

    Runs are those of `FallingSearch`. Their loss is a known part of a likelihood: c d_i is a negative log-likelihood
    (`nats`), which asks for lam = 1 / (c n) with n views. The first run has half of that. Every other has

        lam = sqrt(2) v / n,    v = 2 e / (data of a view), with the least e so far,

    rounded to a power of two times the first, until that was tried. The last run goes on, unless it smoothed more for a
    larger misfit, with lam to within sqrt(2) of its own and no longer step. Neighbours are not tried: of few photons e
    is least far beyond the best lam. Pixels without a photon lower v, and should, since they say half as much of a wave
    as at a fit. L is that of all views together, by how much they overlap.

    Condition: counts, or numbers in the unit of counts; a loss whose `bends` says so (`LossFidelity.quadratic`).

    Arguments: as of `FallingSearch`.
    Reference: docs/sigma-search.md, "Intensities of waves", has what was measured.
    """

    def found_step(self, state: Any, *, whole: bool = True) -> float:
        """gamma of a search that has ended, for all views, or for those of its runs."""
        gamma = float(state.sigma**2 / self._weight(state.place_found))
        return gamma * (len(self.fidelity.available) / self._count if whole else 1)

    def _next(self, state: FallingState) -> int | None:
        """The power that the least misfit asks for, None if it was tried."""
        power = round(self._asked_power(state))
        return None if state.used + self.fall > self.steps or power in state.powers else power

    def _best(self, state: FallingState) -> int:
        """The number of the run that goes on: the last, unless it smoothed more for a larger misfit."""
        least = super()._best(state)
        return least if state.powers[-1] > state.powers[least] else len(state.misfits) - 1

    def _beside(self, state: FallingState, power: int) -> float:
        """How far the power that is found is from that of the run that goes on, from -1/2 to 1/2."""
        return max(-0.5, min(0.5, self._asked_power(state) - power))

    def _asked_power(self, state: FallingState) -> float:
        """The power of the lam that the least misfit, if it is noise, asks for."""
        numbers = math.prod(self.algorithm.fidelity.model.stored_shape) * (1.0 if self.judge is None else SHARE)
        v = 2 * min(state.misfits) / numbers
        ratio = _COUNTED * v / self._count / self._weight(0)
        return max(-6.0, min(6.0, math.log2(ratio))) if 0 < ratio < math.inf else 0.0

    def _weight(self, power: float) -> float:
        """lam of a run."""
        nats = self.algorithm.fidelity.loss.nats
        return float(_LIKELY / (nats * self._count) * 2.0**power)

    @cached_property
    def _lipschitz(self) -> float:
        """L of d, from how much views overlap, where the model says that."""
        fidelity: Any = self.algorithm.fidelity
        overlap = fidelity.overlap(self._views)
        return super()._lipschitz if overlap is None else float(overlap.max()) * fidelity.fit_curvature
