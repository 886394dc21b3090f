"""Total variation as an exact proximal operator: fast gradient projection on the dual, stopped by the duality gap."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.denoisers import tv_native, tv_triton
from plugstream.denoisers.base import Denoiser, Sigma, centre, check_bounds, per_image, total
from plugstream.errors import InputError, PlugstreamWarning

__all__ = ["TV", "differences", "differences_adjoint"]


@dataclass(frozen=True)
class TV(Denoiser):
    r"""The prior of piecewise constant images: the exact prox of total variation, with values kept in a box.

    D(z, sigma) = argmin over x in [low, high]^n of 1/2 ||x - z||^2 + sigma^2 w TV(x), where TV(x) sums over pixels
    |Dx| (isotropic: the Euclidean length of the two forward differences; anisotropic: the sum of their sizes), and
    differences across the border are zero. The dual has one vector p of length at most 1 for each pixel and gives
    x = clip(z - sigma^2 w D^T p); accelerated projected gradient ascent on it takes steps of 1 / (8 sigma^2 w).

    The duality gap, sigma^2 w sum(|Dx| - <Dx, p>), bounds the error: ||x - x*||^2 <= gap, as the cost of x lies above
    the optimum by half of the left side or more, and the dual's value below it. An image is done when the bound is
    below tol ||z - mean(z)||, so `tol` is a guaranteed error relative to what varies in the image; the true one is
    usually much smaller. It then rests while others of its batch go on, so that its result does not depend on them.
    With tol = 0 it takes just `max_iterations`, as the paper's code did with 20. In float32, rounding keeps the bound
    above some 6e-6 (sigma = 0.02) to 1e-4 (0.3) on photographs (the true error falls further); a smaller tol needs
    float64.

    TV does not see a constant: D(z + c) = D(z) + c, with the box moved along. The iteration is on z - mean(z), so this
    holds in floating point too, and large values with little contrast lose no digit.

    Arguments:
        weight: w. isotropic: which TV. low, high: the box (low = 0 for a non-negative image; None for
            no bound).
        tol, max_iterations: when to stop. check: iterations between two looks at the gap.
    `denoise` takes and returns the dual, (..., 2, H, W), as its warm start.

    References: Beck and Teboulle, IEEE Trans. Image Process. 18(11), 2009; for the momentum, Chambolle and Dossal,
    J. Optim. Theory Appl. 166(3), 2015.
    """

    weight: float = 1.0
    isotropic: bool = True
    low: float = -math.inf
    high: float = math.inf
    tol: float = 1e-3
    max_iterations: int = 2000
    check: int = 10

    averaged = 0.5
    proximal = True

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise InputError(f"the weight of TV must be >= 0, not {self.weight}")
        for name, value in zip(("low", "high"), check_bounds(self.low, self.high), strict=True):
            object.__setattr__(self, name, value)
        if self.max_iterations < 1 or self.check < 1:
            raise InputError("TV needs max_iterations and check of at least 1")

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self._solve(image, sigma, warm)

    def value(self, image: Tensor) -> Tensor:
        """r(x) = w TV(x), infinite outside the box: (..., H, W) to (...)."""
        outside = ((image < self.low) | (image > self.high)).flatten(-2).any(-1)
        return torch.where(outside, torch.inf, self.weight * self._length(differences(image)).sum((-2, -1)))

    def gap(self, image: Tensor, strength: Tensor | float, dual: Tensor) -> Tensor:
        """The duality gap of each image at this dual, (..., 2, H, W) to (...), in float64; it is never negative.

        A strength for each image has the shape (..., 1, 1).
        """
        return self._gap_at(clip(image - strength * differences_adjoint(dual), self.low, self.high), strength, dual)

    def _gap_at(self, x: Tensor, strength: Tensor | float, dual: Tensor) -> Tensor:
        """The gap at a dual whose x is formed already."""
        gradient = differences(x)
        terms = self._length(gradient) - (gradient * dual).sum(-3)
        return (strength * total(terms.clamp_min(0))[..., None, None])[..., 0, 0]

    def _solve(
        self, image: Tensor, sigma: Sigma, warm: Tensor | None, *, native: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """`denoise`, by the native kernel or by the torch form; None takes the first where it can serve."""
        height, width = image.shape[-2:]
        shape = (*image.shape[:-2], 2, height, width)
        if warm is not None and warm.shape != shape:
            raise InputError(f"the warm start has shape {tuple(warm.shape)}, but must be {shape}")
        z = image.reshape(-1, height, width).contiguous()
        if warm is not None:
            warm = warm.to(z).reshape(-1, 2, height, width).contiguous()
        strength = torch.as_tensor(self.weight * per_image(sigma, image) ** 2, dtype=z.dtype, device=z.device)
        whole = Problem(z, strength.expand(*image.shape[:-2], 1, 1).reshape(-1, 1, 1), self.low, self.high)
        if native is None:
            native = tv_native.serves(z, strength, warm)
        problem = whole.centred(*(tv_native.centre if native else centre)(z))
        start, advance = _start, _advance
        if native:
            start, advance = tv_native.start, tv_native.advance
        elif tv_triton.serves(z):
            advance = tv_triton.advance

        state, energy = start(self, problem.z, warm)
        goal = self.tol**2 * energy
        active = torch.ones_like(goal, dtype=torch.bool)
        for momentum in self._schedule():
            state = advance(self, problem, state, momentum, active)
            if self.tol > 0:
                active = active & (state.gap > goal)  # false for a NaN too, which no iteration would mend
                if not bool(active.any()):
                    break
        else:
            if self.tol > 0:
                warnings.warn(
                    f"TV stopped after {self.max_iterations} iterations, short of its relative tolerance "
                    f"{self.tol:.1e}; allow more iterations, or a larger tolerance",
                    PlugstreamWarning,
                    stacklevel=3,
                )
        # x of the image itself, not of the one without its mean: it is then exactly in the box, and z where sigma = 0.
        state = advance(self, whole, state, [], torch.ones_like(active))
        return state.x.reshape(image.shape), state.p.reshape(shape)

    def _schedule(self) -> Iterator[list[float]]:
        """The momentum of each iteration, in groups with a look at the gap after each.

        The first group is empty, since a warm start may be good enough as it is. The sequence (k - 1) / (k + 4)
        reaches a given gap in 0.6 to 1.0 times the iterations of FISTA's (three pictures, tolerances of 1e-3 to 1e-5,
        from zero and from a warm start). Restarting when the gap rises, tried on one of them, helped FISTA, though
        not to below this, and made this one worse as often as better. A fixed number of iterations keeps FISTA's,
        whose true error after 20 is up to a third smaller and which the paper used.
        """
        if self.tol > 0:
            yield []
            for done in range(0, self.max_iterations, self.check):
                until = min(done + self.check, self.max_iterations)
                yield [(k - 1) / (k + 4) for k in range(done + 1, until + 1)]
        else:
            t, momentum = 1.0, []
            for _ in range(self.max_iterations):
                t, before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
                momentum.append((before - 1) / t)
            yield momentum

    def _length(self, field: Tensor) -> Tensor:
        down, across = field.unbind(-3)
        return (down * down + across * across).sqrt() if self.isotropic else down.abs() + across.abs()

    def _project(self, field: Tensor) -> Tensor:
        if self.isotropic:
            down, across = field.unbind(-3)
            return field * (down * down + across * across).clamp_min(1).rsqrt().unsqueeze(-3)
        return field.clamp(-1, 1)

    def _feasible(self, dual: Tensor) -> Tensor:
        """The nearest dual that the gap is meant for, in new memory: a start may come from anywhere."""
        dual = dual.clone()
        dual[..., 0, -1, :] = 0
        dual[..., 1, :, -1] = 0
        return self._project(dual)


Bound = Tensor | float


@dataclass(frozen=True)
class Problem:
    """What stays the same while iterating: the images z, (N, H, W), and sigma^2 w of each, (N, 1, 1).

    low, high: the box, for all images or one for each, (N, 1, 1).
    """

    z: Tensor
    strength: Tensor
    low: Bound = -math.inf
    high: Bound = math.inf

    def primal(self, dual: Tensor) -> Tensor:
        """x = clip(z - sigma^2 w D^T p) at a dual p: (N, 2, H, W) to (N, H, W)."""
        return clip(self.z - self.strength * differences_adjoint(dual), self.low, self.high)

    def centred(self, z: Tensor, mean: Tensor) -> Problem:
        """The problem for images without their mean, z and (N, 1, 1), whose solution is that of this one less the mean.

        The box moves along. A bound that is infinite stays a number, so that one of all images is known as such.
        """

        def moved(bound: Bound) -> Bound:
            if isinstance(bound, float) and math.isinf(bound):
                return bound
            return (bound - mean.double()).to(z.dtype)

        return Problem(z, self.strength, moved(self.low), moved(self.high))

    @property
    def rate(self) -> Tensor:
        """The step 1 / (8 sigma^2 w), (N, 1, 1). Where that is infinite the dual does not matter, and rests."""
        rate = 1 / (8 * self.strength)
        return torch.where(rate.isfinite(), rate, 0.0)


@dataclass(frozen=True)
class State:
    """The dual point p and the extrapolated one s, (N, 2, H, W); x at p, (N, H, W), and its duality gap, (N,)."""

    p: Tensor
    s: Tensor
    x: Tensor
    gap: Tensor


def _start(tv: TV, z: Tensor, warm: Tensor | None) -> tuple[State, Tensor]:
    """The state before the first iteration, whose x and gap are still to be formed, and ||z||^2 of each image, (N,).

    z is without its mean. An image of zeros starts from a dual of zeros, its answer: iterating would not reach a
    relative error of it.
    """
    energy = total(z.double().square())
    p = z.new_zeros((len(z), 2, *z.shape[-2:]))
    if warm is not None:
        p = torch.where(energy[:, None, None, None] == 0, p, tv._feasible(warm))
    return State(p, p, z, torch.full_like(energy, torch.inf)), energy


def _advance(tv: TV, problem: Problem, state: State, momentum: list[float], active: Tensor) -> State:
    """One iteration for each value of the momentum, on the active images, (N,); the others stay as they are.

    p+ = project(s + rate D x(s)),  s+ = p+ + momentum (p+ - p),  x(s) = clip(z - sigma^2 w D^T s).
    """
    rate = problem.rate.unsqueeze(-3)
    p, s = state.p, state.s
    for beta in momentum:
        before = p
        p = tv._project(s + rate * differences(problem.primal(s)))
        s = p + beta * (p - before)
    x = problem.primal(p)
    gap = tv._gap_at(x, problem.strength, p)

    def keep(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return State(keep(p, state.p), keep(s, state.s), keep(x, state.x), keep(gap, state.gap))


def clip(x: Tensor, low: Bound, high: Bound) -> Tensor:
    """x between low and high, each a number or one for each image, (N, 1, 1)."""
    x = x.clamp_min(low) if isinstance(low, Tensor) or low > -math.inf else x
    return x.clamp_max(high) if isinstance(high, Tensor) or high < math.inf else x


def differences(image: Tensor) -> Tensor:
    """Forward differences down and across, zero at the last row and column: (..., H, W) to (..., 2, H, W)."""
    out = image.new_zeros((*image.shape[:-2], 2, *image.shape[-2:]))
    torch.sub(image[..., 1:, :], image[..., :-1, :], out=out[..., 0, :-1, :])
    torch.sub(image[..., :, 1:], image[..., :, :-1], out=out[..., 1, :, :-1])
    return out


def differences_adjoint(field: Tensor) -> Tensor:
    """The adjoint of `differences` (minus the divergence): (..., 2, H, W) to (..., H, W)."""
    down, across = field[..., 0, :, :], field[..., 1, :, :]
    out = torch.zeros_like(down)
    out[..., :-1, :] -= down[..., :-1, :]
    out[..., 1:, :] += down[..., :-1, :]
    out[..., :, :-1] -= across[..., :, :-1]
    out[..., :, 1:] += across[..., :, :-1]
    return out
