"""Non-local means as a denoiser: which guide and which of its three forms, and what input it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from plugstream.base.arrays import as_tensor
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, levels, require_real
from plugstream.denoisers.nlm import native, reference, triton_form


@dataclass(frozen=True, eq=False)
class NLM(Denoiser):
    r"""The prior of self-similar images: an average of pixels whose surroundings look alike in a guide.

    D(z, sigma) = W z. Pixels s and r that are within `search` of each other, down and across, have the affinity

        A_sr = L(s - r) exp(-||P_s - P_r||^2 / (2 n h^2)),   h = strength sigma,

    where P_s are the n = (2 patch + 1)^2 pixels of the guide around s (continued symmetrically) and L is a pyramid, the
    product of (1 - |d| / (search + 1)) for both axes; otherwise A_sr = 0. With positive numbers d, the matrix
    S = diag(d) A diag(d) has row sums rho; a = 1 / max(rho), and W = a S + diag(1 - a rho). `balance` steps
    d <- sqrt(d / (A d)) from d = 1 bring rho near 1; one step is the normalisation of Sreehari et al., more leave less
    weight on the pixel itself.

    For any number of steps, up to rounding: L is a positive semidefinite function and the exponential a positive
    semidefinite kernel, hence so are their product A, S, and W, to which a non-negative diagonal is added. W is
    symmetric with non-negative entries and rows that sum to 1, so its eigenvalues lie in [0, 1], and it keeps constants
    and the mean. **With a fixed guide** D is, for each sigma, linear and 1/2-averaged: the prox of the convex function
    that is x^T (W^+ - I) x / 2 on the range of W and infinite elsewhere.
    **Without a guide** the image is its own guide; D is then neither linear nor known to be nonexpansive. It is common
    to run without a guide first and to use the result as the guide.

    Arguments:
        guide: (H, W) for all images, or with the images' last leading axes, (D, H, W) for the slices of a volume; the
            image itself if not given.
        search, patch: radii, in pixels. strength: h over sigma. balance: steps of the balancing, at least 1.
    Images are (..., H, W) with H, W > patch. Single precision has fast forms on the CPU and on CUDA; double precision
    and gradients take the torch form. sigma = 0 returns the image as it is. It needs 2 search (search + 1) numbers for
    each pixel (the torch form twice that), and keeps them for the last sigma of a fixed guide; sigma as a tensor on a
    GPU is then waited for. NaN and infinity are refused on the CPU only.

    References: Sreehari et al., IEEE Trans. Comput. Imaging 2(4), 2016; Buades, Coll and Morel, CVPR 2005; for the
    balancing, Knight, Ruiz and Ucar, SIAM J. Matrix Anal. Appl. 35(3), 2014.
    """

    guide: Tensor | None = None
    search: int = 10
    patch: int = 2
    strength: float = 0.8
    balance: int = 10
    _matrices: dict[int, tuple[object, Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.search < 1 or self.patch < 0:
            raise InputError(f"NLM needs search >= 1 and patch >= 0, not {self.search} and {self.patch}")
        if not 0 < self.strength < math.inf:
            raise InputError(f"the strength of NLM must be a number > 0, not {self.strength}")
        if self.balance < 1:
            raise InputError(f"NLM needs at least one step of balancing, not {self.balance}")
        if self.guide is not None:
            object.__setattr__(self, "guide", as_tensor("the guide", self.guide))
            _check(self.guide, self.patch, "the guide")
            object.__setattr__(self, "guide", self.guide.detach().clone())  # later changes must not reach it
        object.__setattr__(self, "min_size", self.patch + 1)
        object.__setattr__(self, "halo", 2 * (self.search + self.patch))
        object.__setattr__(self, "stacked", self.guide is not None and self.guide.ndim > 2)
        object.__setattr__(self, "averaged", None if self.guide is None else 0.5)
        object.__setattr__(self, "proximal", self.guide is not None)

    def orient(self, axis: int) -> NLM:
        if self.guide is None or self.guide.ndim == 2 or axis == 0:
            return self
        return replace(self, guide=self.guide.movedim(axis - 3, -3))

    def window(self, where: tuple[slice, ...]) -> NLM:
        if self.guide is None:
            return self
        index: Any = (..., *where[-self.guide.ndim :])
        return replace(self, guide=self.guide[index])

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        _check(image, self.patch, "the image")
        stack = image.reshape(-1, *image.shape[-2:])
        stack = stack if image.dtype == torch.float64 else stack.float()
        noise = levels(sigma, image, dtype=torch.float64)
        # A tensor on a GPU is not checked, which would mean waiting for it.
        numbers = [sigma] if not isinstance(sigma, Tensor) else noise.tolist() if noise.device.type == "cpu" else []
        if not all(0 <= number < math.inf for number in numbers):
            raise InputError("sigma must be a number >= 0 for each image")
        form = next(f for f in (native, triton_form, reference) if f is reference or f.serves(stack))
        if self.guide is None:
            out: Tensor = form.nlm(stack, self.strength * noise, self.search, self.patch, self.balance)
        else:
            numbers = noise.tolist() if isinstance(sigma, Tensor) else [float(sigma)] * len(stack)
            out = self._guided(form, self.guide, image, stack, numbers)
        return out.reshape(image.shape).to(image.dtype), None

    def _guided(self, form: ModuleType, guide: Tensor, image: Tensor, stack: Tensor, levels: list[float]) -> Tensor:
        """W z for every image of the stack; with one guide and one sigma by one matrix."""
        if guide.ndim > image.ndim or guide.shape != image.shape[-guide.ndim :]:
            raise InputError(f"the guide has shape {tuple(guide.shape)}, which does not fit {tuple(image.shape)}")
        guides = guide.reshape(-1, *guide.shape[-2:])
        shared = len(guides) == 1
        if shared and len(set(levels)) == 1 and levels[0] > 0:
            return cast(Tensor, form.apply(self._matrix(form, guides[0], 0, levels[0], stack), stack))
        numbers = [k % len(guides) for k in range(len(stack))]
        out = [
            form.apply(self._matrix(form, guides[k], k, s, stack), z[None])[0] if s > 0 else z
            for k, z, s in zip(numbers, stack, levels, strict=True)
        ]
        return torch.stack(out) if out else stack.clone()

    def _matrix(self, form: ModuleType, guide: Tensor, number: int, sigma: float, like: Tensor) -> Any:
        """The matrix of one guide, the last one if sigma, form, precision and device are the same."""
        stamp = (sigma, form.__name__, like.dtype, like.device)
        if number not in self._matrices or self._matrices[number][0] != stamp:
            matrix = form.form(guide.to(like), self.strength * sigma, self.search, self.patch, self.balance)
            self._matrices[number] = (stamp, matrix)
        return self._matrices[number][1]


def _check(image: Tensor, patch: int, name: str) -> None:
    if image.ndim < 2 or min(image.shape[-2:]) <= patch:
        raise InputError(
            f"NLM needs images of at least {patch + 1} x {patch + 1} pixels, but {name} is {tuple(image.shape)}"
        )
    require_real(image, "NLM")
    if not image.is_floating_point():
        raise InputError(f"NLM needs floating point numbers, but {name} is {image.dtype}")
    if image.device.type == "cpu" and not bool(torch.isfinite(image).all()):
        raise InputError(f"{name} holds NaN or infinity, which NLM would spread; fix it first")
