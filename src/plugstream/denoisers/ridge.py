"""A learned denoiser with a guarantee: the proximal operator of a convex sum of ridge functions."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, softplus

from plugstream.denoisers.base import Denoiser, Sigma, per_image
from plugstream.errors import InputError, PlugstreamWarning
from plugstream.files import write_whole

__all__ = ["ConvexRidge", "RidgePotential", "Ridges", "load_ridge", "save_ridge"]

_SHIPPED = Path(__file__).parent / "weights" / "ridge.safetensors"
_FORMAT = "plugstream-ridge"
# Frequencies along each axis at which the filters' spectra are looked at for the bound of the curvature.
_FREQUENCIES = 128


class Ridges(nn.Module):
    r"""The filters and profiles of a convex prior, as functions of the noise level.

    R_sigma(x) = sigma^2 sum_i sum_pixels psi_i((w_i * x) / sigma; sigma), with filters w_i of mean zero, applied where
    they fit into the image, and profiles whose derivative is an odd, nondecreasing, bounded, piecewise linear function,

        psi_i'(u) = sum_j a_ij(sigma) clip(u / delta_j, -1, 1),   a_ij >= 0.

    So every psi_i is convex and even, and R_sigma is convex whatever the parameters are. The amounts a_ij are
    interpolated in log sigma between levels and constant beyond them.

    Arguments:
        filters: how many, at most size^2 - 1. size: of a filter, in pixels, odd.
        levels: noise levels at which amounts are learned, increasing. knots: delta_j > 0, increasing.

    Reference: Goujon, Neumayer, Bohra, Ducotterd and Unser, IEEE Trans. Comput. Imaging 9, 2023.
    """

    filters: Tensor
    amounts: Tensor
    levels: Tensor
    knots: Tensor

    def __init__(self, filters: Tensor, amounts: Tensor, levels: Tensor, knots: Tensor) -> None:
        super().__init__()
        count, size = filters.shape[0], filters.shape[-1]
        if filters.shape != (count, size, size) or amounts.shape != (len(levels), count, len(knots)):
            raise InputError(
                f"ridges need filters (count, size, size) and amounts (levels, count, knots), not "
                f"{tuple(filters.shape)}, {tuple(amounts.shape)} with {len(levels)} levels and {len(knots)} knots"
            )
        if not bool((levels > 0).all() and (knots > 0).all() and (levels.diff() > 0).all()):
            raise InputError("the levels and knots of ridges must be > 0, and the levels increase")
        for name, value in (("filters", filters), ("amounts", amounts)):
            if not bool(torch.isfinite(value).all()):
                raise InputError(f"the {name} of ridges hold NaN or infinity")
            setattr(self, name, nn.Parameter(value.clone()))
        self.register_buffer("levels", levels.clone())
        self.register_buffer("knots", knots.clone())

    @classmethod
    def initial(
        cls,
        size: int = 7,
        levels: tuple[float, ...] = (1 / 255, 2 / 255, 5 / 255, 10 / 255, 20 / 255, 35 / 255, 60 / 255),
        knots: tuple[float, ...] = (0.1, 0.2, 0.4, 0.7, 1.2, 2.0, 3.5, 6.0),
    ) -> Ridges:
        """The DCT without its mean, and the same small amount of every profile: where training starts."""
        from scipy.fft import dct

        basis = dct(np.eye(size), norm="ortho", axis=0)
        filters = np.einsum("ui,vj->uvij", basis, basis).reshape(-1, size, size)[1:] / size
        amounts = torch.full((len(levels), len(filters), len(knots)), -3.5)
        return cls(torch.from_numpy(filters).float(), amounts, torch.tensor(levels), torch.tensor(knots))

    @property
    def size(self) -> int:
        return int(self.filters.shape[-1])

    def kernels(self) -> Tensor:
        """The filters with their mean taken off, (count, 1, size, size): constants cost nothing."""
        return (self.filters - self.filters.mean((-2, -1), keepdim=True))[:, None]

    def amounts_at(self, sigma: Tensor) -> Tensor:
        """a_ij at these noise levels: (N,) to (N, count, knots)."""
        nodes = self.levels.log()
        at = torch.searchsorted(nodes, sigma.log().contiguous()).clamp(1, len(nodes) - 1)
        share = ((sigma.log() - nodes[at - 1]) / (nodes[at] - nodes[at - 1])).clamp(0, 1)[:, None, None]
        return torch.lerp(softplus(self.amounts[at - 1]), softplus(self.amounts[at]), share)

    def at(self, sigma: Tensor) -> RidgePotential:
        """The prior at these noise levels, one for each image: (N,), all > 0."""
        return RidgePotential(self.kernels(), self.amounts_at(sigma), self.knots.tolist(), sigma[:, None, None, None])


class RidgePotential:
    """R_sigma for a stack of images (N, 1, H, W), with its gradient, its Hessian and a bound of that."""

    def __init__(self, kernels: Tensor, amounts: Tensor, knots: list[float], sigma: Tensor) -> None:
        self.kernels, self.amounts, self.knots, self.sigma = kernels, amounts, knots, sigma

    def _profiles(self) -> list[tuple[Tensor, float]]:
        """a_ij / delta_j as (N, count, 1, 1), and delta_j, for each j: psi_i'(u) sums their products with clip(u)."""
        return [(self.amounts[:, :, j, None, None] / delta, delta) for j, delta in enumerate(self.knots)]

    def gradient(self, x: Tensor) -> Tensor:
        """grad R(x) = sigma sum_i w_i^T psi_i'((w_i * x) / sigma)."""
        u = conv2d(x / self.sigma, self.kernels)
        slope = torch.zeros_like(u)
        for steepness, delta in self._profiles():
            slope = torch.addcmul(slope, steepness, u.clamp(-delta, delta))
        return self.sigma * conv_transpose2d(slope, self.kernels)

    def curvature(self, x: Tensor) -> Tensor:
        """psi_i''((w_i * x) / sigma) at every filter and pixel, for `hessian`: (N, count, h, w)."""
        u = conv2d(x / self.sigma, self.kernels).abs()
        out = torch.zeros_like(u)
        for steepness, delta in self._profiles():
            out += steepness * (u < delta)
        return out

    def hessian(self, curvature: Tensor, v: Tensor) -> Tensor:
        """The Hessian of R at the point of `curvature`, applied to v."""
        return conv_transpose2d(curvature * conv2d(v, self.kernels), self.kernels)

    def bound(self) -> Tensor:
        """L of grad R: at most the largest value of sum_i psi_i''(0) |w_i^(f)|^2 over all frequencies f, (N,).

        It is a trigonometric polynomial of degree size - 1 along each axis, which between N samples of a period is at
        most 1 / cos(pi degree / N) of what it is at them.
        """
        size = self.kernels.shape[-1]
        spectra = torch.fft.rfft2(self.kernels[:, 0], s=(_FREQUENCIES, _FREQUENCIES)).abs().square()
        steepest = torch.stack([steepness[..., 0, 0] for steepness, _ in self._profiles()]).sum(0)
        between = math.cos(math.pi * (size - 1) / _FREQUENCIES) ** 2
        return torch.einsum("nc,cfg->nfg", steepest, spectra).amax((1, 2)) / between


def prox(
    potential: RidgePotential, z: Tensor, tol: float, max_iterations: int, start: Tensor | None = None
) -> tuple[Tensor, bool]:
    """argmin_x 1/2 ||x - z||^2 + R(x) for each image of (N, 1, H, W), and whether all reached the tolerance.

    Accelerated gradients with the momentum for a strongly convex function. The objective is 1-strongly convex, so
    ||x - x*|| <= ||x - z + grad R(x)||, and an image rests once that is below tol ||z||.
    """
    condition = 1 + potential.bound()
    root = condition.sqrt()
    momentum = ((root - 1) / (root + 1))[:, None, None, None]
    step = (1 / condition)[:, None, None, None]
    goal = tol * torch.linalg.vector_norm(z, dim=(1, 2, 3))
    x = y = z if start is None else start
    out = x
    active = torch.ones(len(z), dtype=torch.bool, device=z.device)
    for k in range(max_iterations):
        gradient = y - z + potential.gradient(y)
        if k % 5 == 0:
            near = torch.linalg.vector_norm(gradient, dim=(1, 2, 3)) <= goal
            out = torch.where((active & near)[:, None, None, None], y, out)
            active = active & ~near
            if not bool(active.any()):
                return out, True
        new = y - step * gradient
        x, y = new, new + momentum * (new - x)
    return torch.where(active[:, None, None, None], x, out), False


class ConvexRidge(Denoiser):
    r"""A learned prior for whoever needs a guarantee: the exact prox of a convex function, hence 1/2-averaged.

    D(z, sigma) = argmin_x 1/2 ||x - z||^2 + R_sigma(x), with R_sigma a convex sum of ridge functions of learned filters
    and profiles (see `Ridges`). A prox of a convex function is firmly nonexpansive: for all z, z'
    ||D(z) - D(z')||^2 <= <D(z) - D(z'), z - z'>, so D is 1/2-averaged, whatever was learned. Beyond that, every
    D(., sigma) commutes with adding a constant.

    Holds up to the accuracy of the solver: what is returned is within tol ||z|| of the prox, which the strong convexity
    of the problem guarantees. Values from 0 to 1 are what it was trained on; for others give `scale`, the range.

    Arguments:
        weights: a file made by `plugstream train ridge`; the one that ships with plugstream if not given.
        scale: D(z, sigma) = scale D_1(z / scale, sigma / scale).
        tol, max_iterations: when to stop.
    `denoise` takes and returns the last result as its warm start.

    Reference: Goujon et al., IEEE Trans. Comput. Imaging 9, 2023; Moreau, Bull. Soc. Math. France 93, 1965.
    """

    averaged = 0.5

    def __init__(
        self,
        weights: str | Path | Ridges | None = None,
        *,
        scale: float = 1.0,
        tol: float = 1e-4,
        max_iterations: int = 500,
    ) -> None:
        if not scale > 0 or not tol > 0 or max_iterations < 1:
            raise InputError(f"scale and tol must be > 0 and max_iterations >= 1, not {scale}, {tol}, {max_iterations}")
        self.ridges = weights if isinstance(weights, Ridges) else load_ridge(weights or _SHIPPED)[0]
        self.scale, self.tol, self.max_iterations = scale, tol, max_iterations
        self._copies: dict[tuple[torch.device, torch.dtype], Ridges] = {}
        self.min_size = self.ridges.size

    @torch.no_grad()
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if min(image.shape[-2:]) < self.min_size:
            raise InputError(
                f"the image is {image.shape[-2]} x {image.shape[-1]}, but this denoiser needs at least "
                f"{self.min_size} pixels a side"
            )
        if warm is not None and warm.shape != image.shape:
            raise InputError(f"the warm start has shape {tuple(warm.shape)}, but must be {tuple(image.shape)}")
        z = image.reshape(-1, 1, *image.shape[-2:]) / self.scale
        level = torch.as_tensor(per_image(sigma, image), dtype=image.dtype, device=image.device)
        level = level.expand(*image.shape[:-2], 1, 1).reshape(-1) / self.scale
        start = None if warm is None else warm.to(z).reshape(z.shape) / self.scale
        ridges = self._ridges_like(z)
        noisy = level > 0
        out = z.clone()
        if bool(noisy.any()):
            out[noisy], done = prox(
                ridges.at(level[noisy]),
                z[noisy],
                self.tol,
                self.max_iterations,
                None if start is None else start[noisy],
            )
            if not done:
                warnings.warn(
                    f"ConvexRidge stopped after {self.max_iterations} iterations, short of its relative tolerance "
                    f"{self.tol:.1e}; allow more iterations, or a larger tolerance",
                    PlugstreamWarning,
                    stacklevel=3,
                )
        result = (out * self.scale).reshape(image.shape)
        return result, result

    def _ridges_like(self, z: Tensor) -> Ridges:
        """The ridges on the images' device and in their precision, kept for the next call."""
        key = (z.device, z.dtype)
        if key not in self._copies:
            self._copies[key] = copy.deepcopy(self.ridges).to(z)
        return self._copies[key]


def save_ridge(path: str | Path, ridges: Ridges, card: Mapping[str, Any]) -> None:
    """Write filters, amounts, levels and knots as safetensors, with a model card (data, seed, command, results)."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in ridges.state_dict().items()}
    try:
        write_whole(Path(path), [save(tensors, {"format": _FORMAT, "card": json.dumps(dict(card))})])
    except OSError as error:
        raise InputError(f"cannot write the ridge weights {path}: {error.strerror}") from error


def load_ridge(path: str | Path) -> tuple[Ridges, dict[str, Any]]:
    """Read what `save_ridge` wrote: the ridges, without gradients, and their card."""
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    if not file.is_file():
        raise InputError(f"there are no ridge weights at {file}; train some with 'plugstream train ridge'")
    try:
        with safe_open(str(file), "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is not a dict
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} cannot be read as safetensors: {error}") from error
    if metadata.get("format") != _FORMAT or set(tensors) != {"filters", "amounts", "levels", "knots"}:
        raise InputError(f"{file} holds other weights than those of a convex ridge denoiser")
    ridges = Ridges(tensors["filters"], tensors["amounts"], tensors["levels"], tensors["knots"])
    return ridges.requires_grad_(False), json.loads(metadata.get("card", "{}"))
