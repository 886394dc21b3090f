"""A step for each pixel: the gradient over a diagonal that bounds its curvature, as in SIRT for CT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.sampling import Batch
from plugstream.algorithms.variance import Memory
from plugstream.base.errors import InputError
from plugstream.fidelity.least_squares import Fidelity
from plugstream.models.base import as_model
from plugstream.models.views import Views

# Predictions of this many views at a time when the diagonal is summed up.
_VIEWS_AT_ONCE = 64
# Pixels whose curvature is below this part of the largest are met by almost no ray; it limits their step.
_LEAST = 1e-3


@dataclass(frozen=True)
class Diagonal:
    r"""The mean over the batch, with a step of its own for every pixel.

        g = L C sum_b w_b A_{i_b}^T R (A_{i_b} x - y_{i_b}),    C = 1 / diagonal, pixel by pixel.

    With the diagonal 1/I sum_i A_i^T A_i 1 and R = 1 (rows = False) this is the gradient of d over a separable bound of
    its curvature: for a model without negative entries C^{1/2} A^T A C^{1/2} / I has no eigenvalue above 1, so that a
    step of 1/L, which L C makes one of C, does not enlarge distances in the norm of 1/C. Pixels that few rays meet
    take longer steps. With rows = True it is SIRT's: R = 1 / (A 1), one over the length of each ray, and the diagonal
    1/I sum_i A_i^T 1: weighted least squares, another d.

    With a denoiser the fixed points are those of D(I - gamma L C grad d), not those of P: the denoiser counts for less
    where few rays are. `residual` uses this map. The gradient step is averaged in the norm of 1/C, and D in the usual
    one; nothing is known of both together.

    Condition: a linear model without negative entries (`nonnegative`), such as ct's, and least squares. With few views
    a step the batch's curvature may exceed that of all in some pixels; spread views (ShiftedViews) keep it close.

    Arguments: rows, whether to weight rays by one over their length, at one more projection a step.
    Memory: one image. A pass over all views at the start.
    References: Erdogan and Fessler, Phys. Med. Biol. 44, 1999 (the separable bound); Gregor and Benson, IEEE Trans.
    Med. Imaging 27(7), 2008 (SIRT).
    """

    rows: bool = False

    def begin(self, fidelity: Fidelity, image: Tensor) -> Memory:
        """C L, from a pass over all views; refused if there is no such diagonal."""
        able = fidelity.linear and fidelity.model is not None and as_model(fidelity.model).nonnegative
        if not able or fidelity.loss is not None:
            raise InputError(
                "a diagonal is known for linear models without negative entries, such as that of ct, with least "
                "squares; use the plain gradient"
            )
        ones = torch.ones(fidelity.image_shape, device=fidelity.device, dtype=fidelity.dtype)
        total = torch.zeros_like(ones)
        for block in fidelity.available.split(_VIEWS_AT_ONCE):
            lengths = fidelity.predict(ones, block)
            total += fidelity.pullback((lengths > 0).to(lengths.dtype) if self.rows else lengths, block)
        total /= len(fidelity.available)
        largest = float(total.max())
        if not largest > 0:
            raise InputError("no view sees the image, so there is no diagonal; check whether everything is masked")
        return Memory(None, (fidelity.lipschitz_max / total.clamp_min(_LEAST * largest)).expand_as(image))

    def estimate(
        self, fidelity: Fidelity, image: Tensor, batch: Batch, memory: Memory, step: int
    ) -> tuple[Tensor, Memory]:
        """g of the views of a batch, and the same memory."""
        return self.weighed(fidelity, image, memory, batch.views, batch.weights), memory

    def weighed(
        self, fidelity: Fidelity, image: Tensor, memory: Memory, views: Views, weights: Tensor | None = None
    ) -> Tensor:
        """g over these views, all if None."""
        scale = memory.mean
        assert scale is not None
        if not self.rows:
            return scale * fidelity.gradient(image, views, weights)
        owner: Any = fidelity
        index = fidelity.available if views is None else torch.as_tensor(views, dtype=torch.int64)
        factors = torch.full((len(index),), 1 / len(index), dtype=torch.float64) if weights is None else weights
        ones = torch.ones(fidelity.image_shape, device=fidelity.device, dtype=fidelity.dtype)
        total = torch.zeros_like(image)
        for block, part in zip(index.split(_VIEWS_AT_ONCE), factors.split(_VIEWS_AT_ONCE), strict=True):
            lengths = fidelity.predict(ones, block)
            w = part.to(lengths).reshape(-1, *(1,) * len(fidelity.data_shape))
            residual = fidelity.predict(image, block) - owner.data(block)
            total = total + fidelity.pullback(w * torch.where(lengths > 0, residual / lengths, 0.0), block)
        return scale * total
