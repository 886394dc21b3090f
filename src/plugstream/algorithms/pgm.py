"""Proximal gradient: ISTA, FISTA, PnP-ISTA, PnP-FISTA and PnP-SGD are this one step.

| name        | denoiser       | sampler                     | momentum               |
| ----------- | -------------- | --------------------------- | ---------------------- |
| ISTA        | a prox         | All                         | none                   |
| FISTA       | a prox         | All                         | nesterov               |
| PnP-ISTA    | any            | All                         | none                   |
| PnP-FISTA   | any            | All                         | nesterov               |
| PnP-SGD     | any            | Uniform(B), Epochs(B), ...  | none, or tapered       |

With SAGA or SVRG as its gradient PnP-SGD becomes PnP-SAGA and PnP-SVRG; restarts make the momentum adaptive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.base import PlugAndPlay
from plugstream.algorithms.sampling import Batch
from plugstream.algorithms.variance import ESTIMATORS, Estimator, Memory, Plain, steady_overlap
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError
from plugstream.base.linalg import add_scaled, extrapolate, inner, norm, per_image, squared_norm
from plugstream.base.schedules import Number, OverL, value_at
from plugstream.fidelity.least_squares import Fidelity
from plugstream.models.base import as_model
from plugstream.models.views import Views

Momentum = Callable[[Any, Any], Any]
"""The sequence {q_k}: from k and q_{k-1} to q_k, with q_0 = 1. With restarts k counts from the last one, and both are
tensors with a value for each image."""

BOUND = 3.0
"""The limit of q_k of the momentum "bounded", so that (q - 1) / q is 2/3: about three times as fast as without, with
about as much larger a variance of small batches; Nesterov's makes that larger with every step."""
# Moves between passes over the views by which the way left is estimated, and the fewest steps of a pass.
_STEPS, _FEWEST = 3, 8
# A decay slower than by a tenth a step cannot be distinguished from none by a few steps.
_SLOWEST = 0.9


@dataclass(frozen=True)
class BoundedMomentum:
    """Nesterov's sequence up to a limit: from k and q_{k-1} to q_k."""

    limit: float = BOUND

    def __call__(self, k: Any, q: Any) -> Any:
        rising = MOMENTUM["nesterov"](k, q)
        return rising.clamp_max(self.limit) if isinstance(rising, Tensor) else min(rising, self.limit)


PEAK, POWER = 20.0, 0.7
"""The peak of q_k of the momentum "tapered", after 38 steps, and how it then falls (docs/tuning.md)."""


@dataclass(frozen=True)
class TaperedMomentum:
    r"""Nesterov's sequence up to a limit, from which it falls again: from k and q_{k-1} to q_k.

        q_k = min(Nesterov's, Q, max(3, Q (2 Q / k)^p)),    p = 0.7

    As quick as Nesterov's at first, it then lets the noise of small batches average out, which momentum (q - 1) / q
    makes about q times as large. Nothing is proved of it. With all views Nesterov's is faster.

    Arguments: limit, Q >= 1.
    """

    limit: float = PEAK

    def __call__(self, k: Any, q: Any) -> Any:
        rising = MOMENTUM["nesterov"](k, q)
        if not isinstance(rising, Tensor):
            return min(rising, self.limit, max(BOUND, self.limit * (2 * self.limit / k) ** POWER))
        k = torch.as_tensor(k, device=rising.device, dtype=rising.dtype)
        falling = (self.limit * (2 * self.limit / k) ** POWER).clamp_min(BOUND)
        return torch.minimum(rising, falling).clamp_max(self.limit)


MOMENTUM: dict[str, Momentum] = {
    "none": lambda k, q: 1.0 + 0.0 * q,
    "nesterov": lambda k, q: (1 + (1 + 4 * q * q) ** 0.5) / 2,
    "chambolle-dossal": lambda k, q: (k + 2) / 3,  # (k + a - 1) / a with a = 3: the iterates converge too
    "bounded": BoundedMomentum(),
    "tapered": TaperedMomentum(),
}

RESTARTS = ("none", "gradient", "residual")

# In the search for L: how often one step may double it, and the rounding of a value, in machine precisions.
_DOUBLINGS, _ROUNDINGS = 60, 64.0


@dataclass(frozen=True)
class GradientState:
    """k steps taken, the image x^k, the extrapolated point s^k, q_k, and the denoiser's warm start.

    Also `began`, the step at which the momentum last started, and `residual`, ||s^{k-1} - x^k||, for restarts; `kept`
    and `mean`, the memory of a gradient that has one; `lipschitz`, the L found so far if none is known; `parameters` of
    the model, by name, if some are refined, and `refinement`, how they have moved, if that ends once they have arrived.
    With restarts, q, began and residual have the leading axes' shape, since each image restarts by itself.
    """

    k: int
    image: Tensor
    s: Tensor
    q: float | Tensor = 1.0
    warm: Tensor | None = None
    began: int | Tensor = 0
    residual: Tensor | None = None
    kept: Tensor | None = None
    mean: Tensor | None = None
    lipschitz: float | None = None
    parameters: Mapping[str, Tensor] | None = None
    refinement: Refinement | None = None


@dataclass(frozen=True, eq=False)
class ProximalGradient(PlugAndPlay):
    r"""Reconstruct an image by gradient steps on a few views and a denoiser, with or without momentum.

    For k = 1, 2, ...:

        z^k = s^{k-1} - gamma * g^k,    g^k = mean over the drawn views of grad d_i(s^{k-1})
        x^k = D_sigma(z^k)
        s^k = x^k + ((q_{k-1} - 1) / q_k) (x^k - x^{k-1})

    With gamma <= 1/L, all q_k = 1, convex d_i and an averaged D, the mean squared distance ||x - P(x)||^2 to a fixed
    point of P = D_sigma(I - gamma grad d) falls as O(1/t) for all views (Proposition 2), and down to a floor of
    O(gamma nu / sqrt(B)) for B random ones (Proposition 5). Momentum ("nesterov") is faster in practice and outside
    that theory. With D = prox_{gamma r} a fixed point minimises d + r (Proposition 1). With `gradient` SAGA or SVRG,
    g^k comes with a correction that takes the floor away (`plugstream.algorithms.variance`).

    A restart forgets the momentum (q_k = 1, s^k = x^k) when it leads away: "gradient" if
    <s^{k-1} - x^k, x^k - x^{k-1}> > 0, so that the last move went against gradient step and denoiser; "residual" if
    ||s^{k-1} - x^k||, which is zero at a fixed point, has grown. Each image decides for itself. The noise of few views
    may restart too often: restarts are for all views or SAGA.

    If no L is known (a nonlinear model, say) and the step is a multiple m of 1/L, L starts from the derivative of the
    model at the first image (`Fidelity.local_lipschitz`) and is doubled whenever the views of a step contradict it,
    that is unless

        d_B(s - gamma g) <= d_B(s) - gamma (1 - m/2) ||g||^2,    gamma = m/L,  g = grad d_B(s),

    which holds for every batch B whose d_B has an L-Lipschitz gradient. L never falls, so the step settles, and it is
    part of the state, so a resumed run continues with it. The test costs two values of d_B a step, and a gradient of
    d_B if the step takes another one.

    With `refine` each step ends with one on those parameters of the model, such as a probe, by the views of the step at
    the new image (`ModelBase.refine`). They are part of the state, and P is that of the present parameters.

    Arguments: those of `PlugAndPlay`, and
        momentum: a name ("none", "nesterov", "chambolle-dossal", "bounded", "tapered") or a function from (k, q_{k-1})
            to q_k, such as BoundedMomentum(8). "nesterov" is for all views, "tapered" for a few a step.
        gradient: "plain", "saga", "svrg", or an `Estimator` such as SVRG(probability=0.1).
        restart: "none", "gradient" or "residual". None is "none", here and for the momentum.
        refine: names of the model's parameters to find along with the image; only with plain gradients.
        refine_steps: only the first steps, this many, refine them, without denoising. None: all steps do both.
        refine_tolerance: end that earlier, once none of them has farther to go than this part of itself
            (`Refinement`); None for all `refine_steps`.
        refine_pace: how much of the model's own step on them to take: a number up to 1, or a schedule such as Cooling.
            A shorter step averages the noise of the batch.

    References: Sun, Wohlberg and Kamilov, Algorithms 1, 3 and 5; Beck and Teboulle, SIAM J. Imaging Sci. 2, 2009;
    for the restart, O'Donoghue and Candes, Found. Comput. Math. 15, 2015; for steps that a batch judges, Vaswani et
    al., NeurIPS 2019.
    """

    momentum: str | Momentum | None = "none"
    gradient: Estimator | str = field(default_factory=Plain)
    restart: str | None = "none"
    refine: Sequence[str] = ()
    refine_steps: int | None = None
    refine_tolerance: float | None = None
    refine_pace: Number = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "restart"):  # None is Python's word for what the command line calls none
            if getattr(self, name) is None:
                object.__setattr__(self, name, "none")
        if not (isinstance(self.momentum, str) or callable(self.momentum)):
            raise InputError(f"the momentum is {self.momentum!r}, not a name or a function from (k, q_{{k-1}}) to q_k")
        if isinstance(self.momentum, str) and self.momentum not in MOMENTUM:
            raise InputError(f"there is no momentum {self.momentum!r}; choose one of {', '.join(MOMENTUM)}")
        if isinstance(self.gradient, str):
            if self.gradient not in ESTIMATORS:
                raise InputError(f"there is no gradient {self.gradient!r}; choose one of {', '.join(ESTIMATORS)}")
            object.__setattr__(self, "gradient", ESTIMATORS[self.gradient]())
        if self.restart not in RESTARTS:
            raise InputError(f"there is no restart {self.restart!r}; choose one of {', '.join(RESTARTS)}")
        object.__setattr__(self, "refine", tuple(self.refine))
        if self.refine:
            self._check_refinement()

    def _check_refinement(self) -> None:
        """Refuse to refine what the model does not have, or with a gradient that remembers another model."""
        model = self.fidelity.model
        possible = () if model is None else as_model(model).refinable
        unknown = [name for name in self.refine if name not in possible]
        if unknown:
            able = f"it has {', '.join(possible)}" if possible else "it has nothing that can be"
            raise InputError(f"the model has no {unknown[0]!r} to refine along with the image: {able}")
        if not getattr(self._estimator, "is_plain", False):
            raise InputError(
                "SAGA and SVRG remember gradients of the model as it was; refine it with the plain gradient"
            )
        if self.refine_pace != 1 and "pace" not in signature(model.refine).parameters:
            raise InputError(f"a {type(model).__name__} has no pace at which it refines; leave --refine-end out")
        if self.refine_tolerance is not None and not (self.refine_tolerance > 0 and self.refine_pace == 1):
            raise InputError(
                "what is refined has arrived within a tolerance > 0 when its own steps shrink, not those that "
                "--refine-end makes shorter; leave one of them out"
            )
        if self.fidelity.refine is None:
            raise InputError(f"a {type(self.fidelity).__name__} cannot refine its model; use one process")

    def init(self, image: Array | None = None) -> GradientState:
        """The state before the first step, from an image (..., *image_shape), or from zero."""
        return self._begin(image, lambda x: self.fidelity.local_lipschitz(x))

    def _begin(self, image: Array | None, estimate: Callable[[Tensor], float]) -> GradientState:
        """The first state; `estimate` gives the L of a model that is not linear, from the image."""
        begun: dict[str, Tensor] | None = None
        if image is None and self.refine:
            image, begun = self.fidelity.start(self.refine)  # type: ignore[attr-defined]
        x = self._start_image(image)
        self._warn_of_long_steps()
        memory = self._estimator.begin(self.fidelity, x)
        x = x if memory.mean is None else x.expand_as(memory.mean)  # a user's fidelity may lack `batch_shape`
        fields: dict[str, Any] = {"k": 0, "image": x, "s": x, "kept": memory.kept, "mean": memory.mean}
        if self.refine:
            if x.ndim > self._ndim:
                raise InputError("a model is refined along with one image, not with several")
            fields["parameters"] = self.fidelity.parameters if begun is None else begun  # type: ignore[attr-defined]
            fields["refinement"] = None if self.refine_tolerance is None else Refinement()
        if self._searches:
            fields["lipschitz"] = estimate(x) or 1.0  # 0: no gradient there, so any step is zero
        if self.restart == "none":
            return GradientState(**fields)
        ones = torch.ones_like(norm(x, self._ndim))
        return GradientState(q=ones, began=0 * ones, residual=torch.inf * ones, **fields)

    @torch.no_grad()
    def step(self, state: GradientState) -> GradientState:
        """One iteration: x^k = D(s^{k-1} - gamma g) with g the gradient at s^{k-1}, and s^k ahead of x^k."""
        k = state.k + 1
        batch = self.sampler.draw(state.k, self.fidelity.available)
        fidelity = self.fidelity_at(state)
        g, memory = self._estimator.estimate(fidelity, state.s, batch, Memory(state.kept, state.mean), state.k)
        state = self._search_step(fidelity, state, batch, g)
        gamma, sigma = self.parameters(k, state, batch)
        x, also = (state.s - gamma * g, {}) if self._refines_first(k, state) else self._move(state, g, gamma, sigma)
        also |= self._refine(fidelity, state, x, batch) | self._extrapolate(state, x)
        return replace(state, k=k, image=x, kept=memory.kept, mean=memory.mean, **also)

    def _search_step(self, fidelity: Fidelity, state: GradientState, batch: Batch, g: Tensor) -> GradientState:
        """The state with an L that holds for this step, if none is known and the step is a multiple of 1/L."""
        if not self._searches:
            return state
        if not getattr(self._estimator, "is_plain", False):
            g = fidelity.gradient(state.s, batch.views, batch.weights)
        return replace(state, lipschitz=self._judged_lipschitz(fidelity, state, batch, g))

    def _refine(self, fidelity: Fidelity, state: GradientState, x: Tensor, batch: Batch) -> dict[str, Any]:
        """The model's parameters after this step and how they move, if it refines them."""
        k = state.k + 1
        if not self._refines(k, state):
            return {}
        assert fidelity.refine is not None
        parameters = fidelity.refine(x, batch.views, self.refine, value_at(self.refine_pace, k))
        return {"parameters": parameters, "refinement": self._follow(state, k, parameters, batch)}

    def _extrapolate(self, state: GradientState, x: Tensor) -> dict[str, Any]:
        """s^k = x^k + (q_{k-1} - 1) / q_k (x^k - x^{k-1}), and q_k; from the start after a restart."""
        k = state.k + 1
        q = self._sequence(k - state.began, state.q)
        if self.restart == "none":
            s = x if state.q == 1 else extrapolate(x, (state.q - 1) / q, state.image)
            return {"s": s, "q": q}
        again, residual = self._leads_away(state, x)
        ahead = per_image(torch.where(again, 0.0, (state.q - 1) / q), self._ndim)
        return {
            "s": x + ahead * (x - state.image),
            "q": torch.where(again, 1.0, q),
            "began": torch.where(again, float(k), state.began),
            "residual": residual,
        }

    def _move(self, state: GradientState, g: Tensor, gamma: float, sigma: float) -> tuple[Tensor, dict[str, Any]]:
        """x^k from s^{k-1} and the gradient there, and other changes of the state, by name."""
        x, warm = self.denoiser.draw(state.k).denoise(add_scaled(state.s, -gamma, g), sigma, state.warm)
        return x, {"warm": warm}

    def parameters(self, k: int, state: Any = None, batch: Batch | None = None) -> tuple[float, float]:
        """As for every algorithm; sigma is 0 while the model is refined before denoising."""
        gamma, sigma = super().parameters(k, state, batch)
        return gamma, 0.0 if self._refines_first(k, state) else sigma

    def _overlap(self, k: int, state: Any, batch: Batch | None) -> float:
        """As for every algorithm; the same for all batches if their variance is reduced."""
        reduced = getattr(self._estimator, "reduces_variance", False)
        return self._steady_overlap if reduced else super()._overlap(k, state, batch)

    @cached_property
    def _steady_overlap(self) -> float:
        largest, views = super()._overlap, self.fidelity.available
        return steady_overlap(lambda batch: largest(1, None, batch), self.sampler.draw(0, views), views)

    def phase(self, state: Any) -> int | None:
        """As for every algorithm; 2 while the model is refined before denoising."""
        return 2 if self._refines_first(state.k + 1, state) else super().phase(state)

    def _refines_first(self, k: int, state: Any) -> bool:
        """Whether iteration k refines the model in place of denoising."""
        return self.refine_steps is not None and self._refines(k, state)

    def _refines(self, k: int, state: Any) -> bool:
        """Whether iteration k refines the model: up to the limit, and until it has arrived."""
        refinement = getattr(state, "refinement", None)
        ended = refinement is not None and 0 < refinement.ended < k
        return bool(self.refine) and not ended and (self.refine_steps is None or k <= self.refine_steps)

    def _follow(
        self, state: GradientState, k: int, parameters: Mapping[str, Tensor], batch: Batch
    ) -> Refinement | None:
        """How the parameters have moved up to iteration k; ended there if they have arrived, or at the limit."""
        if state.refinement is None or self.refine_tolerance is None:
            return state.refinement
        n_views = len(self.fidelity.available)
        vectors = self.fidelity.comparable(parameters, self.refine)  # type: ignore[attr-defined]
        used = n_views if batch.views is None else len(batch.views)
        moved = state.refinement.follow(k, vectors, used, n_views, self.refine_tolerance)
        return replace(moved, ended=k) if k == self.refine_steps else moved

    @torch.no_grad()
    def residual(self, state: Any, views: Views = None) -> Tensor:
        """As for every algorithm; a gradient that weighs pixels takes the place of grad d."""
        weighed = getattr(self._estimator, "weighed", None)
        if weighed is None:
            return super().residual(state, views)
        gamma, sigma = self.parameters(state.k + 1, state, self._problem_batch(views))
        x = state.image
        g = weighed(self.fidelity_at(state), x, Memory(state.kept, state.mean), views)
        clean, _ = self.denoiser.denoise(x - gamma * g, sigma, state.warm)
        return squared_norm(x - clean, self._ndim)

    def renew(self, state: GradientState) -> GradientState:
        """As for every algorithm; momentum counts from here on.

        An unknown L starts from that at zero, which is Born's for multiple scattering and cheap; it is too small by a
        factor of two or three, which the first steps correct.
        """

        def estimate(image: Tensor) -> float:
            return self.fidelity.local_lipschitz(torch.zeros_like(image)) or self.fidelity.local_lipschitz(image)

        fresh = self._begin(state.image, estimate)
        refined = state.parameters if self.refine else fresh.parameters
        fresh = replace(fresh, parameters=refined, refinement=state.refinement)
        return replace(fresh, k=state.k, warm=state.warm, began=fresh.began + state.k)

    @property
    def _sequence(self) -> Momentum:
        assert self.momentum is not None
        return MOMENTUM[self.momentum] if isinstance(self.momentum, str) else self.momentum

    @property
    def _estimator(self) -> Estimator:
        assert not isinstance(self.gradient, str)
        return self.gradient

    def _judged_lipschitz(self, fidelity: Fidelity, state: GradientState, batch: Batch, g: Tensor) -> float:
        """The L of the state, or its first double that the views of this step, of gradient g, do not contradict."""
        s = state.s
        before, slope = fidelity.value(s, batch.views, batch.weights), squared_norm(g, self._ndim)
        slack = _ROUNDINGS * torch.finfo(s.dtype).eps * before.abs()
        assert isinstance(self.step_size, OverL)
        multiple = value_at(self.step_size.multiple, state.k + 1)
        lipschitz = state.lipschitz
        assert lipschitz is not None
        for _ in range(_DOUBLINGS):
            gamma = multiple / lipschitz
            after = fidelity.value(s - gamma * g, batch.views, batch.weights)
            if bool((after <= before - gamma * (1 - multiple / 2) * slope + slack).all()):
                break  # not for a NaN, which the next, shorter step may not have
            lipschitz *= 2
        return lipschitz

    def _leads_away(self, state: GradientState, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which images restart, (...), and ||s^{k-1} - x^k||, to compare with in the next step."""
        assert state.residual is not None
        residual = norm(state.s - x, self._ndim)
        if self.restart == "gradient":
            return inner(state.s - x, x - state.image, self._ndim) > 0, residual
        return residual > state.residual, residual


def way_left(steps: Tensor) -> Tensor:
    r"""How far a sequence of vectors still has to go, from its last three steps d_1, d_2, d_3.

    Near its end the sequence shrinks along its slowest mode, d_{j+1} = rho d_j, so that ||d_3|| rho / (1 - rho) is
    left. Steps of few views have noise besides, which keeps ||d_j|| up; products of two steps have little of it, since
    their noise is independent:

        rho = sqrt(<d_3, d_2> / <d_2, d_1>),    left = sqrt(<d_3, d_2>) sqrt(rho) rho / (1 - rho),

    the same without noise. If <d_3, d_2> <= 0 the sequence hovers, and 0 is left. Ratios above 0.9, or with
    <d_2, d_1> <= 0, count as 0.9. Other modes than the slowest make it too small at first, by a factor of two or three.

    Arguments: steps (3, n), the last one last, real. Means over as many steps as all views take have little noise.
    Returns a number, in the units of the steps.
    Reference: Aitken's extrapolation (Brezinski and Redivo Zaglia, Extrapolation Methods, 1991), for vectors.
    """
    before, last = (steps[-2] * steps[-3]).sum(), (steps[-1] * steps[-2]).sum()
    tiny = torch.finfo(steps.dtype).tiny
    rho = torch.where(before > 0, (last / before.clamp_min(tiny)).clamp_min(0).sqrt(), _SLOWEST).clamp_max(_SLOWEST)
    rest: Tensor = last.clamp_min(0).sqrt() * rho.sqrt() * rho / (1 - rho)
    return rest


@dataclass(frozen=True)
class Refinement:
    """How parameters of a model have moved lately; part of the state, so that a resumed run ends at the same step.

    Parameters are compared as vectors (`ModelBase.comparable`) by their means over passes (as many steps as use all
    views, at least eight), whose noise is small; `way_left` says how far they still have to go. They have arrived when
    two passes in a row say so.

    Arguments: seen and count, views used and steps taken in the present pass; total, the sum of its vectors, and mean,
    that of the last full pass, (n,); steps, between the last means, (up to 3, n); left, how far each parameter has to
    go, in the order of `comparable`, None if not known yet; ended, the step that ended refinement, else 0.
    """

    seen: int = 0
    count: int = 0
    total: Tensor | None = None
    mean: Tensor | None = None
    steps: Tensor | None = None
    left: Tensor | None = None
    ended: int = 0

    def follow(self, k: int, vectors: Mapping[str, Tensor], used: int, n_views: int, tolerance: float) -> Refinement:
        """After step k, which gave these vectors and used `used` of n_views views; ended if all have arrived."""
        if not vectors:
            return self
        flat = torch.cat([one.reshape(-1) for one in vectors.values()])
        if self.total is not None and self.total.shape != flat.shape:  # the model has grown
            return Refinement().follow(k, vectors, used, n_views, tolerance)
        total = flat if self.total is None else self.total + flat
        seen, count = self.seen + used, self.count + 1
        if seen < n_views or count < _FEWEST:
            return replace(self, seen=seen, count=count, total=total)
        mean = total / count
        steps, left, ended = self.steps, None, 0
        if self.mean is not None:
            step = (mean - self.mean)[None]
            steps = step if steps is None else torch.cat([steps, step])[-_STEPS:]
        if steps is not None and len(steps) == _STEPS:
            parts = steps.split([one.numel() for one in vectors.values()], dim=1)
            left = torch.stack([way_left(part) for part in parts])
            both = left if self.left is None else torch.maximum(left, self.left)
            ended = k if self.left is not None and bool((both <= tolerance).all()) else 0
        return Refinement(mean=mean, steps=steps, left=left, ended=ended)
