"""The strength of the denoiser, found by short runs in which sigma and the step fall together."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from plugstream.algorithms.abilities import as_algorithm
from plugstream.algorithms.race import RaceState, SigmaRace
from plugstream.algorithms.sampling import FixedViews, repeated_views
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError
from plugstream.base.schedules import Geometric

# Sigma falls by this factor in a run, from less where the step would begin beyond this multiple of 1/L; and it falls
# further where the step would end beyond this one.
_FALL, _LONGEST, _LONG = 3.75, 500.0, 150.0
# Two neighbouring runs differ in lam = sigma^2 / gamma by this factor; a run is at most so many factors from the best.
_RATIO, _FARTHEST = 2.0, 6
# The best lam over that of the noise, roughly.
_NOISE = 0.64
# How much longer the last step is than that of the best run, up to this multiple of 1/c: a run of shorter steps ends
# before it has arrived, and until it has the prior goes on smoothing. Of an averaged denoiser, such as the prox of a
# convex prior, no more than that prior asks for.
_ARRIVED, _SHORT = math.sqrt(2.0), 0.55
# The most runs.
_RUNS = 12

MOST_VIEWS = 256
"""The views of a run at most, where the algorithm uses all in every step."""


@dataclass(frozen=True)
class FallingState(RaceState):
    """The state of a search by runs.

    trunk: the last state of the best run. side: that of the running one; rival: the first of every run. place: its
    steps so far. power: its lam is that of the first run times 2^power. powers, misfits: of the runs that are over.
    place_found: the power found, once the search has ended.
    """

    power: int = 0
    powers: tuple[int, ...] = ()
    misfits: tuple[float, ...] = ()
    place_found: float | None = None


@dataclass(frozen=True, eq=False)
class FallingSearch(SigmaRace):
    r"""Find the step that goes with a sigma, by short runs of ADMM in which both fall together.

    A run takes n steps from the first image, on the views that are not held out, with

        sigma_k from 3.75 sigma to sigma by equal factors,    gamma_k = sigma_k^2 / lam.

    So D_{sigma_k} stands for the same prior in all its steps, of weight lam, while the image is first moved far and
    then finely. gamma begins below 500/L, beyond which a prox of few products is no prox, and ends below 150/L: sigma_k
    starts lower if need be, and with good data, whose lam is small, it ends at sqrt(150 lam / L) in place of sigma. The
    scaled dual is that of gamma_k: s becomes s gamma_k / gamma_{k-1} before a step.

    lam is found by e(x), the misfit of the last image of a run on data that no step uses (`SigmaRace`). The first run
    has the lam of the algorithm's own step and sigma. The least e so far is at least that of the noise, whose variance
    v per real number, with n views in d, would make lam = v / n the weight of a prior -log p. If sigma is a level of
    noise (`growing`), the next run has the power of two times the first lam that is next to 0.64 times that. Where that
    is within a factor of two of the best run, or a run on that side was worse, and for other denoisers, it is a
    neighbour, on that side first, until the best run has both. lam is then at the bottom of the parabola through these
    three, and the algorithm goes on from the last image of the best run, with its last sigma and gamma = sigma^2 / lam,
    which stay. A short one becomes sqrt(2) gamma, 0.55/c and 150/L at most, with c the curvature of d in a pixel, the
    mean of all eigenvalues: ADMM has not arrived in so few short steps, and until it has, the prior smooths more than
    in them. Of averaged denoisers that is not so.

    Many views: where steps use all n of them, runs use m = `most` at most, evenly spaced, since m views say what v is
    as well as n do. lam = v / m of the runs is then v / n for all views, so gamma is n / m times as long at the end.

    Why runs from the start: an image that once followed noise keeps some of it with a denoiser like BM3D, which is no
    convex prior. Why the same sigma for most data: a denoiser works best on noise it can see, a few hundredths of
    white; the step then says how far to trust them.

    Condition: e has one minimum over lam. The fixed points are those of ADMM at the end, P = D_sigma(I - gamma grad d).

    Arguments: as of `SigmaRace`, with `ADMM` or one of its kind with its dual as the algorithm, and a number as sigma;
    steps, of all runs together at most; fall, n, at least 2; most, m, views of a run.
    References: Zhang et al., IEEE Trans. Pattern Anal. Mach. Intell. 44(10), 2022, for gamma_k that falls as sigma_k^2;
    Boyd et al., Found. Trends Mach. Learn. 3(1), 2011, section 3.4.1, for the dual of another gamma.
    """

    fall: int = 12
    most: int = MOST_VIEWS
    _runs: ClassVar[dict[Any, Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fall < 2:
            raise InputError(f"sigma falls in 2 steps at least, not in {self.fall}")
        if not as_algorithm(self.algorithm).dual:
            raise InputError("a search with a falling sigma is for ADMM and its kinds; use --algorithm inexact-admm")
        object.__setattr__(self, "_runs", {})  # algorithms by power: one that computes something first does so once

    def init(self, image: Array | None = None) -> FallingState:
        """The state before the first step, from an image (*image_shape), or from zero."""
        state = super().init(image)
        return FallingState(**{field.name: getattr(state, field.name) for field in fields(state)})

    @torch.no_grad()
    def step(self, state: Any) -> FallingState:
        """One step of the run, and at its end which is next."""
        if state.ended:
            raise InputError("the search has ended; go on with the algorithm and the step that it found")
        side, run, k = state.side, self._side(state), state.place + 1
        if k > 1:
            side = _with_dual(side, run.parameters(k)[0] / run.parameters(k - 1)[0])
        side = run.step(side)
        gone = replace(state, k=state.k + 1, image=side.image, side=side, used=state.used + 1, place=state.place + 1)
        return gone if gone.place < self.fall else self._end_run(gone, self._look(side)[0])

    def found_step(self, state: Any, *, whole: bool = True) -> float:
        """gamma of a search that has ended, for all views, or for those of its runs."""
        gamma = float(state.sigma**2 / self._weight(state.place_found))
        if self.denoiser.averaged is None:
            longest = _LONG / self._lipschitz
            gamma = max(gamma, min(_ARRIVED * gamma, _SHORT / max(self._curvature, _SHORT / longest)))
        return gamma * (len(self.fidelity.available) / self._count if whole else 1)

    def finish(self, state: Any, algorithm: Any | None = None) -> tuple[Any, Any]:
        """The algorithm with the step found, and the state from which it continues, with its dual.

        Arguments: state, of a search that has ended; algorithm, to continue with instead, on all views say.
        """
        return self._steady(self.algorithm if algorithm is None else algorithm, state)

    def _steady(self, algorithm: Any, state: Any, *, whole: bool = True) -> tuple[Any, Any]:
        """An algorithm with what a search has found for all views, or for those of its runs, and where it begins."""
        power = state.powers[self._best(state)]
        best, gamma = self._last(power) ** 2 / self._weight(power), self.found_step(state, whole=whole)
        begin = _with_dual(replace(state.trunk, k=state.k), gamma / best)
        return replace(algorithm, sigma=state.sigma, step_size=gamma), begin

    def _end_run(self, state: FallingState, misfit: float) -> FallingState:
        """The state before the next run, after one that led to an image of this misfit; or the end."""
        misfit = math.inf if math.isnan(misfit) else misfit
        powers, misfits = (*state.powers, state.power), (*state.misfits, misfit)
        state = replace(state, powers=powers, misfits=misfits, rounds=state.rounds + 1, ratio=_RATIO)
        best = self._best(state)
        trunk = state.side if best == len(powers) - 1 else state.trunk
        state = replace(state, trunk=trunk, misfit=misfits[best], tried=(misfit, misfits[best]))
        power = self._next(state)
        if power is None:
            found = powers[best] + self._beside(state, powers[best])
            ended = replace(state, image=trunk.image, side=trunk, place_found=found, ended=True)
            return replace(ended, sigma=self._last(found), ratio=_RATIO**0.25)
        return replace(state, power=power, side=state.rival, place=0)  # whose image is shown after its first step

    def _next(self, state: FallingState) -> int | None:
        """The power of the next run, None if there is none."""
        if len(state.powers) >= _RUNS or state.used + self.fall > self.steps:
            return None
        best = state.powers[self._best(state)]
        ratio = _NOISE * self._noise_weight(min(state.misfits)) / self._weight(0) if self.growing else 0.0
        likely = round(math.log(ratio, _RATIO)) if 0 < ratio < math.inf else best - 1
        likely = max(best - _FARTHEST, min(best + _FARTHEST, likely))
        worse = any((power - best) * (likely - best) > 0 for power in state.powers)
        if self.growing and abs(likely - best) > 1 and not worse:
            return likely
        sides = (1, -1) if likely > best else (-1, 1)
        return next((best + move for move in sides if best + move not in state.powers), None)

    def _best(self, state: FallingState) -> int:
        """The number of the run that goes on."""
        return min(range(len(state.misfits)), key=lambda number: state.misfits[number])

    def _beside(self, state: FallingState, power: int) -> float:
        """How far the power that is found, by a parabola, is from that of the best run, from -1/2 to 1/2."""
        misfits = dict(zip(state.powers, state.misfits, strict=True))
        left, middle, right = (misfits.get(power + move, math.inf) for move in (-1, 0, 1))
        bend = left - 2 * middle + right
        return max(-0.5, min(0.5, 0.5 * (left - right) / bend)) if math.isfinite(bend) and bend > 0 else 0.0

    def _noise_weight(self, misfit: float) -> float:
        """v / n if all of the misfit of a view is noise of variance v per real number."""
        model = self.algorithm.fidelity.model
        numbers: int = math.prod(model.data_shape) * (2 if model.data_dtype.is_complex else 1)
        return 2 * misfit / numbers / self._count

    def _last(self, power: float) -> float:
        """The last sigma of a run."""
        longest = math.sqrt(self._weight(power) * _LONG / self._lipschitz)
        return min(float(self.algorithm.parameters(1)[1]), longest)

    def _weight(self, power: float) -> float:
        """lam of a run."""
        gamma, sigma = self.algorithm.parameters(1)
        return float(sigma**2 / gamma * _RATIO**power)

    def _side(self, state: Any) -> Any:
        """The algorithm of the run, whose steps count from its start."""
        power = state.power if state.place_found is None else state.place_found
        if power not in self._runs:
            lam, last = self._weight(power), self._last(power)
            first = min(_FALL * last, math.sqrt(lam * _LONGEST / self._lipschitz))
            sigma = Geometric(max(last, first), last, self.fall)
            views = {} if self._views is None else {"sampler": FixedViews(self._views)}
            step = {"sigma": sigma, "step_size": lambda k: sigma(k) ** 2 / lam}
            self._runs[power] = replace(self.algorithm, **step, **views)
        return self._runs[power]

    @cached_property
    def _lipschitz(self) -> float:
        """L, which bounds every view."""
        return float(self.fidelity.lipschitz_max)

    @cached_property
    def _curvature(self) -> float:
        """c, the curvature of d in the pixel in the middle."""
        fidelity = self.fidelity
        views = fidelity.available[:: -(-len(fidelity.available) // self.most)]
        zero = torch.zeros(fidelity.image_shape, device=fidelity.device, dtype=fidelity.dtype)
        point, middle = zero.clone(), tuple(size // 2 for size in zero.shape)
        point[middle] = 1.0
        return float(fidelity.gradient_change(point, zero, views)[middle].real)

    @property
    def _count(self) -> int:
        """How many views runs use, whose lam is theirs."""
        return len(self.fidelity.available if self._views is None else self._views)

    @cached_property
    def _views(self) -> list[int] | None:
        """The views of a run where it does not use all that there are."""
        available, most = self.fidelity.available, self.most
        if repeated_views(self.algorithm.sampler) != "all" or len(available) <= most:
            return None
        return [int(available[place * len(available) // most]) for place in range(most)]


def _with_dual(state: Any, factor: float) -> Any:
    """The state with the scaled dual of a gamma that is larger by this factor."""
    dual: Tensor = state.s
    return replace(state, s=dual * factor)
