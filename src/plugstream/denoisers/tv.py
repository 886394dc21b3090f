"""Total variation as an exact proximal operator: fast gradient projection on the dual, stopped by the duality gap."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from plugstream.base.cuda_source import Kernels
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.denoisers import tv_cuda, tv_field, tv_native, tv_triton
from plugstream.denoisers.base import (
    AnyShape,
    Sigma,
    centre,
    check_bounds,
    check_support,
    per_image,
    refuse_complex_box,
    require_axes,
    total,
)
from plugstream.denoisers.tv_field import differences, differences_adjoint
from plugstream.denoisers.tv_problem import Bound, Problem, State, clip

__all__ = ["TV", "differences", "differences_adjoint"]

# Half precision cannot hold the duality gap to any useful tolerance, so that the iteration is in single.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


@dataclass(frozen=True)
class TV(AnyShape):
    r"""The prior of piecewise constant images: the exact prox of total variation, with values kept in a box.

    D(z, sigma) = argmin over x in C of 1/2 ||x - z||^2 + sigma^2 w TV(x), where C holds the images with values in
    [low, high] within the support and 0 outside it, and TV(x) sums over pixels |Dx| (isotropic: the Euclidean length of
    the forward differences along all axes; anisotropic: the sum of their sizes); differences across the border are
    zero. The dual has one vector p of length at most 1 for each pixel and gives x = clip(z - sigma^2 w D^T p);
    accelerated projected gradient ascent on it takes steps of 1 / (4 ndim sigma^2 w), as ||D||^2 <= 4 ndim.

    Images have two axes or, with ndim = 3, are volumes. Components of a pixel share their edges: for a complex image
    |Dx| is sqrt(sum over axes |D_a x|^2), and with `channels` the length is over channels and axes together (vectorial
    TV). The anisotropic TV sums over axes the length over components. Complex images have no box.

    The duality gap, sigma^2 w sum(|Dx| - <Dx, p>), bounds the error: ||x - x*||^2 <= gap. An image is done when the
    bound is below tol ||z - mean(z)||, so `tol` is a guaranteed error relative to what varies in the image; the true
    one is usually much smaller. It then rests while others of its batch go on, so its result does not depend on them.
    With tol = 0 it takes just `max_iterations`, as the paper's code did with 20. In float32, rounding keeps the bound
    above some 6e-6 (sigma = 0.02) to 1e-4 (0.3) on photographs; a smaller tol needs float64.

    D(z + c) = D(z) + c for a constant c, with the box moved along. The iteration is on z - mean(z), so this holds in
    floating point too, and little contrast on large values loses no digits. Each channel has its own mean.

    Arguments:
        weight: w. isotropic: which TV. low, high: the box (low = 0 for a non-negative image; None for no bound).
        support: where the image may differ from 0, bool, (H, W) or (D, H, W); (H, W) serves all planes of a volume.
            None for everywhere.
        tol, max_iterations: when to stop. check: iterations between two evaluations of the gap.
        ndim: 2 for images (..., H, W), 3 for volumes (..., D, H, W). channels: whether C comes before these.
    `denoise` takes and returns the dual, (..., ndim, *spatial) or (..., C, ndim, *spatial), of the image's dtype, as
    its warm start.

    References: Beck and Teboulle, IEEE Trans. Image Process. 18(11), 2009; for the momentum, Chambolle and Dossal,
    J. Optim. Theory Appl. 166(3), 2015; for channels, Bresson and Chan, Inverse Probl. Imaging 2(4), 2008.
    """

    weight: float = 1.0
    isotropic: bool = True
    low: float = -math.inf
    high: float = math.inf
    tol: float = 1e-3
    max_iterations: int = 2000
    check: int = 10
    support: Tensor | None = field(default=None, compare=False)

    averaged = 0.5
    proximal = True
    halo = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0:
            raise InputError(f"the weight of TV must be >= 0, not {self.weight}")
        for name, value in zip(("low", "high"), check_bounds(self.low, self.high), strict=True):
            object.__setattr__(self, name, value)
        if self.max_iterations < 1 or self.check < 1:
            raise InputError("TV needs max_iterations and check of at least 1")
        if self.support is not None:
            object.__setattr__(self, "support", check_support(self.support))

    def window(self, where: tuple[slice, ...]) -> TV:
        if self.support is None:
            return self
        return replace(self, support=self.support[where[-self.support.ndim :]])

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self._solve(image, sigma, warm)

    def describe(self) -> str:
        name = "TV" if self.isotropic else "anisotropic TV"
        name += f"{' in 3D' if self.ndim == 3 else ''}{', channels sharing edges' if self.channels else ''}"
        return name if self.support is None else f"{name}, zero outside its support"

    def value(self, image: Tensor) -> Tensor:
        """r(x) = w TV(x), infinite outside the box: (..., *image) to (...)."""
        parts = self._parts(image)
        size = self._length(differences(parts.tensor, self.ndim), parts.coupled)
        value = self.weight * size.sum(tuple(range(-self.ndim, 0)))
        outside = torch.zeros_like(image, dtype=torch.bool)
        if not image.is_complex():
            outside = (image < self.low) | (image > self.high)
        if self.support is not None:
            outside = torch.where(self._inside(image), outside, image != 0)
        return torch.where(outside.flatten(-self.axes).any(-1), torch.inf, value)

    def gap(self, image: Tensor, strength: Tensor | float, dual: Tensor) -> Tensor:
        """The duality gap of each image at this dual, (..., *dual) to (...), in float64; it is never negative.

        A strength for each image has the shape (..., 1, 1), with as many ones as an image has axes.
        """
        z, p = self._parts(image), self._parts(dual, field=True)
        if isinstance(strength, Tensor) and z.coupled and not self.channels:
            strength = strength.unsqueeze(-1)
        low, high = self._box(z.tensor)
        x = clip(z.tensor - strength * differences_adjoint(p.tensor, self.ndim), low, high)
        return self._gap_at(x, strength, p.tensor, z.coupled)

    def _inside(self, image: Tensor) -> Tensor:
        """The support on the image's device; refused if it has another size."""
        assert self.support is not None
        spatial = tuple(image.shape[image.ndim - self.ndim :])
        if tuple(self.support.shape) != spatial[self.ndim - self.support.ndim :]:
            sizes = (" x ".join(map(str, shape)) for shape in (self.support.shape, spatial))
            raise InputError("the support is {}, but the image {}".format(*sizes))
        return self.support.to(image.device)

    def _box(self, z: Tensor) -> tuple[Bound, Bound]:
        """The bounds of real images (..., *spatial): numbers, or maps that are 0 and 0 outside the support."""
        if self.support is None:
            return self.low, self.high
        inside = self._inside(z)
        low, high = (torch.where(inside, value, 0.0).to(z) for value in (self.low, self.high))
        return low, high

    def _gap_at(self, x: Tensor, strength: Tensor | float, dual: Tensor, coupled: bool = False) -> Tensor:
        """The gap at a dual whose x is formed already."""
        gradient = differences(x, self.ndim)
        terms = self._length(gradient, coupled) - tv_field.inner_products(gradient, dual, self.ndim, coupled)
        if isinstance(strength, Tensor):
            strength = strength.flatten(-self.ndim - coupled)[..., 0]
        return strength * total(terms.clamp_min(0), self.ndim)

    def _parts(self, image: Tensor, *, field: bool = False) -> Parts:
        """An image, or a field, as real components before the spatial axes; unchanged if there is only one."""
        if image.is_complex():
            refuse_complex_box(self.low, self.high)
            axis = image.ndim - self.ndim - field - self.channels
            both = torch.view_as_real(image.resolve_conj()).movedim(-1, axis)
            return Parts(both.flatten(axis, axis + 1) if self.channels else both, True)
        return Parts(image, self.channels)

    def _join(self, parts: Tensor, image: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The inverse of `_parts`: from (N, ...) of the solver to this shape."""
        if not image.is_complex():
            return parts.reshape(shape)
        real, imaginary = parts.unflatten(1, (2, parts.shape[1] // 2)).unbind(1)
        return torch.complex(real, imaginary).reshape(shape)

    def _solve(
        self, image: Tensor, sigma: Sigma, warm: Tensor | None, *, native: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """`denoise`, by the native kernel or by the torch form; None takes the native one if it serves."""
        require_axes(image, self)
        if not (image.is_floating_point() or image.is_complex()):
            raise InputError(f"TV needs an image of floating point or complex numbers, not {image.dtype}")
        lead, spatial = image.shape[: image.ndim - self.axes], image.shape[image.ndim - self.ndim :]
        shape = (*image.shape[: image.ndim - self.ndim], self.ndim, *spatial)
        if warm is not None and (warm.shape != shape or (warm.is_complex() and not image.is_complex())):
            raise InputError(f"the warm start has shape {tuple(warm.shape)}, but must be {shape}, {image.dtype}")
        if image.dtype in _WIDER:
            wide = _WIDER[image.dtype]
            x, dual = self._solve(image.to(wide), sigma, None if warm is None else warm.to(wide), native=native)
            return x.to(image.dtype), dual.to(image.dtype)
        parts, coupled = self._parts(image)
        count = math.prod(lead)
        form = (count, parts.shape[len(lead)]) if coupled else (count,)
        z = parts.reshape(*form, *spatial).contiguous()
        if warm is not None:
            start_at = self._parts(warm.to(image), field=True).tensor
            warm = start_at.reshape(*form, self.ndim, *spatial).contiguous()
        ones = [1] * (z.ndim - 1)
        strength = self.weight * per_image(sigma, image, self.axes) ** 2
        if not isinstance(strength, Tensor):  # filled there, as a copy would wait for a GPU's earlier work
            strength = torch.full((), strength, dtype=z.dtype, device=z.device)
        strength = strength.to(z)
        strength = strength.expand(*lead, *[1] * self.axes).reshape(-1, *ones)
        if native is None and self.ndim == 3 and not coupled and self.support is None and tv_cuda.serves(z):
            x, dual = self._solve_volumes(z, strength, warm, tv_cuda.find_kernels(z.device))
            return x.reshape(image.shape), dual.reshape(shape)
        low, high = self._box(z)
        if self.support is not None:  # z outside changes nothing, and tol is relative to the inside
            z = torch.where(self._inside(z), z, 0.0)
            low, high = (
                bound.expand(1, *[1] * coupled, *spatial) for bound in (low, high) if isinstance(bound, Tensor)
            )
        uncentred = Problem(z, strength, low, high, self.ndim, coupled, mapped=self.support is not None)
        if native is None:
            native = tv_native.serves(z, strength, warm)
        if native:
            x, dual, within = tv_native.solve(self, uncentred, warm)
            if not within:
                self._warn_if_short()
            return self._join(x, image, tuple(image.shape)), self._join(dual, image, shape)
        problem = uncentred.centred(*centre(z, self.ndim))
        advance = tv_triton.advance if tv_triton.serves(z, self.ndim) else _advance

        state, energy = _start(self, problem, warm)
        goal = self.tol**2 * energy
        active = torch.ones_like(goal, dtype=torch.bool)
        for momentum in self._schedule():
            state = advance(self, problem, state, momentum, active)
            if self.tol > 0:
                active = active & (state.gap > goal)  # false for a NaN too
                if not bool(active.any()):
                    break
        else:
            self._warn_if_short()
        # x of the image with its mean is exactly in the box, and z if sigma = 0.
        state = advance(self, uncentred, state, [], torch.ones_like(active))
        return self._join(state.x, image, tuple(image.shape)), self._join(state.p, image, shape)

    def _solve_volumes(
        self, z: Tensor, strength: Tensor, warm: Tensor | None, kernels: Kernels | None
    ) -> tuple[Tensor, Tensor]:
        """x and duals of volumes (N, D, H, W) by the kernels of `tv_cuda`, one after another."""
        assert kernels is not None
        answers = []
        for number, volume in enumerate(z):
            start = None if warm is None else warm[number]
            answers.append(tv_cuda.solve(self, volume, strength[number], start, self._schedule(tv_cuda.LOOKS), kernels))
        if not all(within for *_, within in answers):
            self._warn_if_short()
        if len(answers) == 1:
            return answers[0][0][None], answers[0][1][None]
        shape = (len(z), self.ndim, *z.shape[1:])
        duals = torch.stack([dual for _, dual, _ in answers]) if answers else z.new_zeros(shape)
        return torch.stack([x for x, *_ in answers]) if answers else z, duals

    def _warn_if_short(self) -> None:
        if self.tol > 0:
            warnings.warn(
                f"TV stopped after {self.max_iterations} iterations, short of its relative tolerance {self.tol:.1e}; "
                "allow more iterations, or a larger tolerance",
                PlugstreamWarning,
                stacklevel=4,
            )

    def _schedule(self, looks: Sequence[int] = ()) -> Iterator[list[float]]:
        """The momentum of each iteration, in groups after each of which the gap is evaluated: `looks`, then `check`.

        The first group is empty, since a warm start may be good enough. The sequence (k - 1) / (k + 4) reaches a given
        gap in 0.6 to 1.0 times the iterations of FISTA's (three pictures, tolerances of 1e-3 to 1e-5, from zero and
        from a warm start); restarts did not help. A fixed number of iterations keeps FISTA's, whose true error after 20
        is up to a third smaller and which the paper used.
        """
        if self.tol > 0:
            yield []
            first, sizes = 0, itertools.chain(looks, itertools.repeat(self.check))
            while first < self.max_iterations:
                last = min(first + next(sizes), self.max_iterations)
                yield [(k - 1) / (k + 4) for k in range(first + 1, last + 1)]
                first = last
        else:
            t, momentum = 1.0, []
            for _ in range(self.max_iterations):
                t, before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
                momentum.append((before - 1) / t)
            yield momentum

    def _length(self, field: Tensor, coupled: bool = False) -> Tensor:
        return tv_field.lengths(field, self.ndim, self.isotropic, coupled)

    def _feasible(self, dual: Tensor, coupled: bool = False) -> Tensor:
        return tv_field.feasible(dual, self.ndim, self.isotropic, coupled)


class Parts(NamedTuple):
    """An image as real numbers, and whether it has coupled components, before its spatial axes."""

    tensor: Tensor
    coupled: bool


def _start(tv: TV, problem: Problem, warm: Tensor | None) -> tuple[State, Tensor]:
    """The state before the first iteration, without its x and gap, and ||z||^2 of each image, (N,).

    An image of zeros starts from a dual of zeros, its answer, since no iteration reaches a relative error of zero.
    """
    z = problem.z
    energy = total(z.double().square(), problem.ndim)
    energy = energy.sum(-1) if problem.coupled else energy
    p = z.new_zeros(problem.dual_shape)
    if warm is not None:
        p = torch.where(energy.reshape(-1, *[1] * (p.ndim - 1)) == 0, p, tv._feasible(warm, problem.coupled))
    return State(p, p, z, torch.full_like(energy, torch.inf)), energy


def _advance(tv: TV, problem: Problem, state: State, momentum: list[float], active: Tensor) -> State:
    """One iteration for each value of the momentum, on the active images, (N,); the others rest.

    p+ = project(s + rate D x(s)),  s+ = p+ + momentum (p+ - p),  x(s) = clip(z - sigma^2 w D^T s).
    """
    ndim, coupled = problem.ndim, problem.coupled
    rate = problem.rate.unsqueeze(-1)
    p, s = state.p, state.s
    for beta in momentum:
        before = p
        p = tv_field.project(s + rate * differences(problem.primal(s), ndim), ndim, tv.isotropic, coupled)
        s = p + beta * (p - before)
    x = problem.primal(p)
    gap = tv._gap_at(x, problem.strength, p, coupled)

    def keep(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return State(keep(p, state.p), keep(s, state.s), keep(x, state.x), keep(gap, state.gap))
