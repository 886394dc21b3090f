"""Non-local means as a symmetric, doubly stochastic average: with a fixed guide, a prox by construction."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from plugstream.denoisers.base import Denoiser, Sigma, per_image
from plugstream.errors import InputError

__all__ = ["NLM", "weights"]


@dataclass(frozen=True, eq=False)
class NLM(Denoiser):
    r"""The prior of self-similar images, as an average of pixels whose surroundings look alike in a guide.

    D(z, sigma) = W z. Pixels s and r that are within `search` of each other, down and across, have the affinity

        A_sr = L(s - r) exp(-||P_s - P_r||^2 / (2 n h^2)),   h = strength sigma,

    where P_s are the n = (2 patch + 1)^2 pixels of the guide around s (continued symmetrically) and L is a pyramid, the
    product of (1 - |d| / (search + 1)) for both axes; otherwise A_sr = 0. With positive numbers d, the matrix
    S = diag(d) A diag(d) has row sums rho; a = 1 / max(rho), and W = a S + diag(1 - a rho). `balance` steps
    d <- sqrt(d / (A d)) from d = 1 bring rho near 1; one step is the normalisation of Sreehari et al., more leave less
    weight on the pixel itself.

    What holds, for whatever number of steps, up to rounding: L is a positive semidefinite function and the exponential
    a positive semidefinite kernel, hence so are their product A, S, and W, to which a non-negative diagonal is added.
    W is symmetric with non-negative entries and rows that sum to 1, so doubly stochastic: its eigenvalues lie in
    [0, 1], it keeps constants and the mean. **With a fixed guide** W does not depend on z; then D is, for each sigma,
    linear and 1/2-averaged: the prox of the convex function that is x^T (W^+ - I) x / 2 on the range of W and infinite
    elsewhere.
    **Without a guide** the image is its own; then D is not linear, none of this makes it nonexpansive, and `averaged`
    is None. A common way is to run without a guide first and to fix its result as the guide.

    Arguments:
        guide: (H, W), or of the images' shape; the image itself if not given.
        search, patch: radii, in pixels. strength: h over sigma. balance: steps of the balancing, at least 1.
    Images are (..., H, W) with H, W > patch, in float32 or float64. sigma = 0 returns the image as it is. It needs
    (2 search + 1)^2 numbers for each pixel while it works, and keeps them for the last sigma where the guide is fixed.

    References: Sreehari et al., IEEE Trans. Comput. Imaging 2(4), 2016; Buades, Coll and Morel, CVPR 2005; for the
    balancing, Knight, Ruiz and Ucar, SIAM J. Matrix Anal. Appl. 35(3), 2014.
    """

    guide: Tensor | None = None
    search: int = 10
    patch: int = 2
    strength: float = 0.8
    balance: int = 10
    _kept: dict[int, tuple[object, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.search < 1 or self.patch < 0:
            raise InputError(f"NLM needs search >= 1 and patch >= 0, not {self.search} and {self.patch}")
        if not 0 < self.strength < math.inf:
            raise InputError(f"the strength of NLM must be a number > 0, not {self.strength}")
        if self.balance < 1:
            raise InputError(f"NLM needs at least one step of balancing, not {self.balance}")
        if self.guide is not None:
            _check(self.guide, self.patch, "the guide")
            object.__setattr__(self, "guide", self.guide.detach().clone())  # later changes must not reach it
        object.__setattr__(self, "min_size", self.patch + 1)
        object.__setattr__(self, "averaged", None if self.guide is None else 0.5)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        _check(image, self.patch, "the image")
        guide = image if self.guide is None else self.guide
        if guide.shape not in (image.shape, image.shape[-2:]):
            raise InputError(f"the guide has shape {tuple(guide.shape)}, which does not fit {tuple(image.shape)}")
        z = image.reshape(-1, *image.shape[-2:])
        z = z if image.dtype == torch.float64 else z.float()
        level = torch.as_tensor(per_image(sigma, image), dtype=torch.float64).expand(*image.shape[:-2], 1, 1)
        if not bool((level >= 0).all()):
            raise InputError("sigma must be a number >= 0 for each image")
        guides = guide.to(z).expand(image.shape).reshape(z.shape)
        one_guide = self.guide is not None and guide.ndim == 2
        out = [
            _average(self._weights(guides[k], 0 if one_guide else k, s), z[k]) if s > 0 else z[k]
            for k, s in enumerate(level.reshape(-1).tolist())
        ]
        return torch.stack(out).reshape(image.shape).to(image.dtype) if out else image.clone(), None

    def _weights(self, guide: Tensor, number: int, sigma: float) -> Tensor:
        """The weights of one guide, from the last time if it is fixed and they were for the same sigma."""
        if not sigma < math.inf:
            raise InputError(f"sigma must be a number >= 0, not {sigma}")
        if self.guide is None:
            return weights(guide.detach(), self.strength * sigma, self.search, self.patch, self.balance)
        stamp = (sigma, guide.dtype, guide.device)
        kept = self._kept.get(number)
        if kept is None or kept[0] != stamp:
            made = weights(guide, self.strength * sigma, self.search, self.patch, self.balance)
            kept = self._kept[number] = (stamp, made)
        return kept[1]


@torch.no_grad()
def weights(guide: Tensor, width: float, search: int, patch: int, balance: int) -> Tensor:
    r"""The matrix W of `NLM`, as what every pixel gives to its neighbours.

    out[dy + search, dx + search, y, x] = W between (y, x) and (y + dy, x + dx), and 0 where that is outside the image.

    It holds for every h > 0. The affinities are formed for one half of the distances and copied to the other, so that
    the matrix is symmetric to the bit; row sums are 1 up to rounding.

    Arguments:
        guide: (H, W). width: h. search, patch, balance: as for `NLM`.
    Returns (2 search + 1, 2 search + 1, H, W).
    Reference: Sreehari et al., 2016, section III-C.
    """
    span, around = 2 * search + 1, 2 * patch + 1
    height, across = guide.shape
    out = guide.new_zeros(span, span, height, across)
    out[search, search] = 1
    # Symmetric continuation by any number of pixels, since patches may be larger than small images are wide.
    rows, columns = (_reflected(size, patch, guide.device) for size in guide.shape)
    padded = guide[rows][:, columns]
    for dy in range(min(search, height - 1) + 1):
        for dx in range(-min(search, across - 1), min(search, across - 1) + 1):
            if dy == 0 and dx <= 0:
                continue
            left, right = max(0, -dx), max(0, dx)
            here = padded[: padded.shape[0] - dy, left : padded.shape[1] - right]
            there = padded[dy:, right : padded.shape[1] - left]
            apart = _running_sum(_running_sum((here - there).square_(), 0, around), 1, around)  # ||P_s - P_r||^2
            pyramid = (1 - dy / (search + 1)) * (1 - abs(dx) / (search + 1))
            # Held above the smallest numbers, on which processors are ten times slower; 1.8e-35 adds nothing.
            affinity = apart.mul_(-0.5 / (width * width * around * around)).clamp_min_(-80).exp_().mul_(pyramid)
            out[search + dy, search + dx, : height - dy, left : across - right] = affinity
            out[search - dy, search - dx, dy:, right : across - left] = affinity
    scale = torch.ones_like(guide)
    for _ in range(balance):
        scale = (scale / _average(out, scale)).sqrt_()
    scale /= (scale * _average(out, scale)).max().sqrt()  # d sqrt(a), for a = 1 / max(rho)
    missing = torch.ones_like(guide)
    for row, near in zip(out, _neighbours(scale, search), strict=True):
        row *= near * scale  # in this order: a product of two is the same for (s, r) and (r, s)
        missing -= row.sum(0)
    out[search, search] += missing.clamp_min_(0)
    return out


def _average(matrix: Tensor, image: Tensor) -> Tensor:
    """The product of such a matrix and an image, (H, W)."""
    near = _neighbours(image, len(matrix) // 2)
    total = torch.zeros_like(image)
    for row, values in zip(matrix, near, strict=True):  # a row of distances at a time, to need little memory
        total = total + (row * values).sum(0)
    return total


def _running_sum(values: Tensor, axis: int, count: int) -> Tensor:
    """The sums of `count` values in a row along an axis, which gets shorter by count - 1."""
    left = values.shape[axis] - count + 1
    total = values.narrow(axis, 0, left).clone()
    for k in range(1, count):
        total += values.narrow(axis, k, left)
    return total


def _neighbours(image: Tensor, search: int) -> Tensor:
    """The pixels around each, zero outside: (H, W) to (2 search + 1, 2 search + 1, H, W), without a copy of them."""
    padded = F.pad(image, (search,) * 4)
    return padded.unfold(0, image.shape[0], 1).unfold(1, image.shape[1], 1)


def _reflected(size: int, margin: int, device: torch.device) -> Tensor:
    """The pixels -margin .. size + margin - 1 of a line continued symmetrically, as often as needed."""
    at = torch.arange(-margin, size + margin, device=device) % (2 * size)
    return torch.where(at < size, at, 2 * size - 1 - at)


def _check(image: Tensor, patch: int, what: str) -> None:
    if image.ndim < 2 or min(image.shape[-2:]) <= patch:
        raise InputError(
            f"NLM needs images of at least {patch + 1} x {patch + 1} pixels, but {what} is {tuple(image.shape)}"
        )
    if not image.is_floating_point():
        raise InputError(f"NLM needs floating point numbers, but {what} is {image.dtype}")
    if image.device.type == "cpu" and not bool(torch.isfinite(image).all()):
        raise InputError(f"{what} holds NaN or infinity, which NLM would spread; mend it first")
