"""Trained nonlinear reaction diffusion as a torch module: the specification, and what is trained."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plugstream.base.errors import InputError
from plugstream.denoisers.tnrd.influence import influence
from plugstream.denoisers.tnrd.tables import BUMPS


class ReactionDiffusion(nn.Module):
    r"""One TNRD model: a few steps of a diffusion whose filters and nonlinearities were trained for one noise level.

    u_0 = f and, for t = 1, ..., T,

        u_t = u_{t-1} - [ p_t (u_{t-1} - f) + sum_i rot180(k_i) * phi_i(k_i * u_{t-1}) ],

    where * is correlation with the image continued symmetrically (its border pixels twice), redone at every step;
    k_i = sum_b c_ib e_b / ||c_i|| lies in the DCT basis e without its mean, so that it has norm 1 and sum 0; phi_i is a
    sum of 63 Gaussian bumps (`influence`); p_t = exp(log_p_t).

    For images on the scale where white is 255, with Gaussian noise of standard deviation `sigma`; `TNRD` scales others.
    H and W must be at least n - 1. Differentiable once, in images and parameters.

    With a `scale` c other than 1 this is done on c f, and the result divided by c: the bumps are then at multiples of
    10 / c, as fine as little noise needs.

    Arguments:
        coefficients: c, (T, n^2 - 1, n^2 - 1): of the filters in the basis, whose order is that of `dct_filters`.
        log_reaction: log p, (T,).
        weights: of the bumps, (T, n^2 - 1, 63).
        sigma: the noise level that it was trained for, on the scale 0 .. 255.
        scale: c.
    `forward` takes (N, H, W) to (N, H, W).

    Reference: Chen and Pock, IEEE Trans. Pattern Anal. Mach. Intell. 39(6), 2017.
    """

    coefficients: nn.Parameter
    log_reaction: nn.Parameter
    weights: nn.Parameter

    def __init__(
        self, coefficients: Tensor, log_reaction: Tensor, weights: Tensor, sigma: float, scale: float = 1.0
    ) -> None:
        super().__init__()
        _check(coefficients, log_reaction, weights, sigma, scale)
        self.coefficients = nn.Parameter(coefficients.detach().clone())
        self.log_reaction = nn.Parameter(log_reaction.detach().clone())
        self.weights = nn.Parameter(weights.detach().clone())
        self.sigma = float(sigma)
        self.scale = float(scale)

    @property
    def stages(self) -> int:
        return len(self.coefficients)

    @property
    def size(self) -> int:
        """Of the filters: n, for n x n."""
        return math.isqrt(self.coefficients.shape[1] + 1)

    def kernels(self) -> Tensor:
        """The filters, (T, n^2 - 1, n, n), of norm 1 and sum 0."""
        c = self.coefficients
        basis = torch.from_numpy(dct_filters(self.size)).to(c)
        unit = c / torch.linalg.vector_norm(c, dim=-1, keepdim=True)
        return torch.einsum("tib,bjk->tijk", unit, basis)

    def forward(self, image: Tensor) -> Tensor:
        kernels, reaction, weights = (p.to(image) for p in (self.kernels(), self.log_reaction.exp(), self.weights))
        u = noisy = image * self.scale
        for k, p, w in zip(kernels, reaction, weights, strict=True):
            u = diffuse(u, noisy, k, p, w)
        return u / self.scale


def diffuse(u: Tensor, noisy: Tensor, kernels: Tensor, reaction: Tensor, weights: Tensor) -> Tensor:
    r"""One step of `ReactionDiffusion`: u - [ p (u - f) + sum_i rot180(k_i) * phi_i(k_i * u) ], with * as there.

    For H, W >= n - 1. Responses are formed n // 2 pixels beyond the image too, so that the second correlation sees
    responses of the continued image, as in the authors' program, and not continued responses.

    Arguments:
        u, noisy: (N, H, W). kernels: (filters, n, n). reaction: (). weights: (filters, 63).
    Reference: Chen and Pock, 2017, equation 7.
    """
    responses = F.conv2d(pad_symmetric(u, kernels.shape[-1] - 1)[:, None], kernels[:, None])
    force = F.conv2d(influence(responses, weights), kernels.flip((-2, -1))[None])[:, 0]
    return u - (reaction * (u - noisy) + force)


def pad_symmetric(image: Tensor, margin: int) -> Tensor:
    """Continue an image by reflection, with border pixels twice, as "symmetric" of `numpy.pad`.

    For H, W >= margin. (..., H, W) to (..., H + 2 margin, W + 2 margin).
    """
    if margin == 0:
        return image
    image = torch.cat([image[..., :margin, :].flip(-2), image, image[..., -margin:, :].flip(-2)], -2)
    return torch.cat([image[..., :margin].flip(-1), image, image[..., -margin:].flip(-1)], -1)


def dct_filters(size: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    """The orthonormal DCT basis of n x n without its constant, (n^2 - 1, n, n), vertical frequency fastest.

    That is the order of MATLAB's columns, in which the authors' models are stored.
    """
    k, j = np.arange(size)[:, None], np.arange(size)
    rows = np.sqrt(2 / size) * np.cos(np.pi * k * (2 * j + 1) / (2 * size))
    rows[0] = np.sqrt(1 / size)
    basis: np.ndarray[tuple[int, int, int], np.dtype[np.float64]]
    basis = np.einsum("vy,hx->hvyx", rows, rows).reshape(size * size, size, size)[1:]
    return basis


def _check(coefficients: Tensor, log_reaction: Tensor, weights: Tensor, sigma: float, scale: float) -> None:
    shapes = [tuple(t.shape) for t in (coefficients, log_reaction, weights)]
    stages, filters = (*shapes[0], 0, 0)[:2]
    size = math.isqrt(filters + 1)
    if size < 3 or size % 2 == 0 or size * size != filters + 1 or stages < 1 or shapes != [
        (stages, filters, filters), (stages,), (stages, filters, BUMPS)
    ]:  # fmt: skip
        raise InputError(
            f"a TNRD model needs coefficients (T, m, m), log_reaction (T,) and weights (T, m, {BUMPS}) with m + 1 the "
            f"square of an odd filter size, not {', '.join(map(str, shapes))}"
        )
    if not all(bool(torch.isfinite(t).all()) for t in (coefficients, log_reaction, weights)):
        raise InputError("the TNRD model holds NaN or infinity")
    if bool((coefficients == 0).all(-1).any()):
        raise InputError("the TNRD model has a filter without any coefficient, which cannot have norm 1")
    if not 0 < sigma < math.inf:
        raise InputError(f"the noise level of a TNRD model must be a number > 0, on the scale 0 .. 255, not {sigma}")
    if not 0 < scale < math.inf:
        raise InputError(f"the scale of a TNRD model must be a number > 0, not {scale}")
