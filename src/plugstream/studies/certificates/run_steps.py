"""Repeat steps of a run from its checkpoint: is each nonexpansive, and what does Proposition 5 promise of them?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms import ProximalGradient
from plugstream.algorithms.pairs import Pair, damping_for, error_of
from plugstream.algorithms.sampling import Announcer, Batch
from plugstream.algorithms.theory import bound, gradient_variance
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper
from plugstream.settings import Settings

# Rounding in a gradient step, in units of the machine precision: sums over data and pixels.
_ROUNDINGS = 64.0
# nu^2 is estimated from this many views at most, since each costs a gradient.
_VIEWS = 24


class _Recorder(Wrapper):
    """A denoiser that does what another does, and records its inputs, outputs and sigmas."""

    def __init__(self, denoiser: Denoiser, calls: list[tuple[Tensor, Tensor, float]] | None = None) -> None:
        super().__init__(denoiser)
        self.averaged, self.proximal, self.value = denoiser.averaged, denoiser.proximal, denoiser.value
        self.calls = [] if calls is None else calls

    def rewrap(self, denoiser: Denoiser) -> _Recorder:
        return _Recorder(denoiser, self.calls)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out, warm = self.denoiser.denoise(image, sigma, warm)
        self.calls.append((image, out, float(sigma)))
        return out, warm


@torch.no_grad()
def certify_steps(algorithm: Any, state: Any, settings: Settings, steps: int = 20) -> list[str]:
    """Repeat steps of an algorithm, and say in lines of text whether they agree with the theory of the paper.

    The denoiser's inputs of a step and of the last, and its outputs, are a `Pair`; the gradient step on the views of
    the step at the last two images is another. Distance to a fixed point and nu are measured before every step.

    Arguments: state, from which the steps go on; settings, of the run; steps, at least one.
    """
    if settings.denoiser.equivariant == "random" or state.k < algorithm.denoiser.opening_steps:
        raise InputError("steps of one denoiser are compared, and those after this checkpoint have several")
    recorder = _Recorder(algorithm.denoiser)
    algorithm, first, before = replace(algorithm, denoiser=recorder), state, None
    found: dict[str, list[tuple[float, str]]] = {"the denoiser": [], "the gradient step": []}
    total = nu2 = measured = 0.0
    while state.k < first.k + steps and bool(torch.isfinite(state.image).all()):
        report("repeating steps", state.k - first.k, steps)
        total += float(algorithm.residual(state))
        nu2 = max(nu2, _variance(algorithm, state))
        recorder.calls.clear()
        previous, state = state, algorithm.step(state)
        now, drawn = next(iter(recorder.calls), None), _draw(algorithm, previous.k)
        pairs = {}
        if before is not None and now is not None and before[2] == now[2]:
            error = max(error_of(recorder.denoiser, z, out) for z, out, _ in (before, now))
            pairs["the denoiser"] = Pair(now[0], before[0], now[1], before[1], error)
            measured = max(measured, pairs["the denoiser"].theta)
        if isinstance(algorithm, ProximalGradient):
            pairs["the gradient step"] = _gradient_step(algorithm, previous, state, drawn)
        for part, pair in pairs.items():
            if pair.lipschitz > 1:
                found[part].append((pair.lipschitz, f"step {state.k} ({_words(drawn)})"))
        before = now
    done, distance = state.k - first.k, float(torch.linalg.vector_norm(state.image - first.image))
    lines = [f"{done} steps were repeated from step {first.k} on"]
    for (part, those), advice in zip(
        found.items(), (_advice(measured, settings), "use a shorter step, at most 1/L"), strict=True
    ):
        if those:
            factor, where = max(those)
            often = f"in {len(those)} of {done} steps, most at {where}, by a factor of {factor:.4g}"
            lines.append(f"{part} enlarged distances {often}, so it is not nonexpansive; {advice}")
    if not any(found.values()):
        lines.append(f"none of {done} steps contradicted nonexpansiveness")
    theta = measured if recorder.averaged is None else recorder.averaged
    gamma, nu = algorithm.parameters(first.k + 1, first)[0], math.sqrt(max(0.0, nu2))
    nu = 0.0 if settings.sampler.entry.facts.get("draws") == "all" else nu
    promise = "has no bound for it"
    if theta < 1 and math.isfinite(distance):
        limit = bound(max(theta, 1e-6), distance, done, gamma=gamma, nu=nu, batch=settings.sampler.views or 1)
        promise = f"allows {limit:.4g} if x* is the last image"
    how = f"theta {theta:.4g} ({'the largest measured' if recorder.averaged is None else 'proved'}), nu {nu:.4g}"
    lines.append(f"the mean of ||x - P(x)||^2 is {total / max(1, done):.4g}; Proposition 5 {promise}: {how}")
    unmet = [
        *(["the denoiser is not nonexpansive"] if found["the denoiser"] else []),
        *_unmet(algorithm, settings, gamma),
        *([] if math.isfinite(distance) else ["the run diverged"]),
    ]
    return [*lines, f"Proposition 5 does not apply: {'; '.join(unmet)}"] if unmet else lines


def _variance(algorithm: Any, state: Any) -> float:
    """nu^2 at the image, from at most 24 random views."""
    views, generator = algorithm.fidelity.available, torch.Generator().manual_seed(state.k)
    chosen = views[torch.randperm(len(views), generator=generator)[:_VIEWS]]
    return float(gradient_variance(state.image, algorithm.fidelity_at(state), chosen)) if len(views) > 1 else 0.0


def _draw(algorithm: Any, k: int) -> Batch:
    """The views of step k + 1, without announcing them to the reader, which has heard of them."""
    sampler = algorithm.sampler.sampler if isinstance(algorithm.sampler, Announcer) else algorithm.sampler
    batch: Batch = sampler.draw(k, algorithm.fidelity.available)
    return batch


def _gradient_step(algorithm: ProximalGradient, previous: Any, state: Any, drawn: Batch) -> Pair:
    """The gradient step on the views of a step, at the images before and after it."""
    gamma, _ = algorithm.parameters(state.k, state)
    gradient, first, second = algorithm.fidelity_at(state).gradient, state.image, previous.image
    out, other = (x - gamma * gradient(x, drawn.views, drawn.weights) for x in (first, second))
    sizes = [float(x.norm()) for x in (first, second, out, other)]
    return Pair(first, second, out, other, _ROUNDINGS * torch.finfo(first.real.dtype).eps * max(sizes))


def _advice(theta: float, settings: Settings) -> str:
    """What to do where the denoiser is not nonexpansive; theta, the largest measured."""
    damping = damping_for(theta)
    if damping is None:
        others = "a weaker sigma or a denoiser that is averaged by construction might (tv, ridge)"
        return f"no damping is enough; {others}"
    damping *= settings.denoiser.damping or 1.0
    return f"damped with theta = {damping:.2g} (--damping {damping:.2g}) it would agree with all these steps"


def _unmet(algorithm: Any, settings: Settings, gamma: float) -> Iterable[str]:
    """The conditions of Proposition 5 that do not hold, or are not known to."""
    a, s, momentum, gradient = settings.algorithm, settings.sampler, settings.momentum, settings.gradient
    uses, fidelity = a.entry.facts.get("uses", ()), algorithm.fidelity
    changing = any(getattr(a, name) is not None for name in ("sigma_end", "step_size_end", "changes"))
    tests = [
        (algorithm.denoiser.averaged is None, "the denoiser is not averaged by construction"),
        (not a.entry.facts.get("proposition_5", False), f"the algorithm is {a.name}"),
        ("momentum" in uses and not momentum.entry.facts.get("plain", False), "momentum"),
        ("gradient" in uses and not gradient.entry.facts.get("plain", False), f"{gradient.name} gradients"),
        (s.entry.facts.get("draws") not in ("independent", "all"), f"the sampler is {s.name}"),
        (not fidelity.has_lipschitz, "no L is known"),
        (fidelity.has_lipschitz and gamma > (1 + 1e-6) / fidelity.lipschitz_max, "the step is beyond 1/L"),
        (changing, "sigma or the step changes"),
        (settings.scan.follow, "the scan grew"),
    ]
    return [text for unmet, text in tests if unmet]


def _words(drawn: Batch) -> str:
    """The views of a step in words."""
    if drawn.views is None:
        return "all views"
    views = drawn.views.tolist()
    first = ", ".join(map(str, views[:6]))
    return f"view {first}" if len(views) == 1 else f"views {first}{', ...' if len(views) > 6 else ''}"
