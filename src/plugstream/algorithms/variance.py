"""Gradients from a few views whose noise dies out: SAGA and loopless SVRG beside the plain mean over a batch.

The gradient of B drawn views has noise that does not vanish at the solution, so PnP-SGD with a constant step stops
short of a fixed point (Proposition 5). An estimator here adds what it remembers of the other views: its mean is still
the full gradient, and its noise goes to zero as the iterates settle.

| estimator | remembers                             | memory, for I views of m data | extra work           |
| --------- | ------------------------------------- | ----------------------------- | -------------------- |
| Plain     | nothing                               | none                          | none                 |
| SAGA      | H_i x where view i was last drawn     | I m data values and one image | one full pass        |
| SVRG      | one image and the full gradient there | two images                    | p full passes a step |

SAGA is usually described with a table of I gradients, hence I images. For a linear model the prediction H_i x is enough
for a view's gradient Re(H_i^H (H_i x - y_i)): at the paper's size 60 x 360 complex numbers, 0.17 MB, instead of 60
images, 15.7 MB. That is as much as the data, so a scan that does not fit into memory needs SVRG.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from plugstream.algorithms.sampling import Batch
from plugstream.base.draws import coin
from plugstream.base.errors import InputError
from plugstream.fidelity.least_squares import Fidelity

# Views predicted at a time when SAGA starts from an image that is not zero.
_VIEWS_AT_ONCE = 64


class Memory(NamedTuple):
    """What an estimator keeps between steps, as tensors for checkpoints.

    `kept` is SAGA's table of predictions, (..., views, *data_shape), or SVRG's image, (..., *image_shape); `mean`
    is the mean of the remembered gradients, (..., *image_shape).
    """

    kept: Tensor | None = None
    mean: Tensor | None = None


class Estimator(Protocol):
    """The gradient of d from the views of a batch and from memory.

    One whose estimate is the batch's own gradient may set `is_plain = True`, so that it is not computed twice in the
    search for a step. One whose noise dies out may set `reduces_variance = True`: a step that follows the overlap is
    then the same for all batches (`steady_overlap`).
    """

    def begin(self, fidelity: Fidelity, image: Tensor) -> Memory:
        """The memory before the first step, which starts at `image`."""

    def estimate(
        self, fidelity: Fidelity, image: Tensor, batch: Batch, memory: Memory, step: int
    ) -> tuple[Tensor, Memory]:
        """The estimate of grad d at `image`, (..., *image_shape), in step 0, 1, ..., and the memory after it."""


@dataclass(frozen=True)
class Plain:
    """The mean over the batch, and nothing remembered: the paper's PnP-SGD.

    g = sum_b w_b grad d_{i_b}(x), w_b = 1/B unless the sampler weighs. Its variance is nu^2 / B for independent views.
    """

    is_plain: ClassVar[bool] = True

    def begin(self, fidelity: Fidelity, image: Tensor) -> Memory:
        return Memory()

    def estimate(
        self, fidelity: Fidelity, image: Tensor, batch: Batch, memory: Memory, step: int
    ) -> tuple[Tensor, Memory]:
        return fidelity.gradient(image, batch.views, batch.weights), memory


@dataclass(frozen=True)
class SAGA:
    r"""Correct the batch's gradient by the views' last gradients, kept as predictions of the data.

        g = sum_b w_b [grad d_{i_b}(x) - grad d_{i_b}(phi_{i_b})] + 1/I sum_j grad d_j(phi_j),

    where phi_j is the image at which view j was last drawn; afterwards phi_{i_b} = x. For a linear model with least
    squares the bracket is Re(H_i^H (H_i x - t_i)) with t_i = H_i phi_i: neither the data nor phi_i are needed, a step
    costs one forward and one adjoint of the batch as for plain PnP-SGD, and the table holds data, not images.

    E[g] = grad d(x) for a sampler whose weighted batches are unbiased (Uniform, Importance; each batch of Epochs). With
    convex d_i, strongly convex d, a prox as the denoiser and a step up to 1/(3L) the iterates converge linearly to
    the minimiser; 1/L often works. The mean of the gradients is updated, so its rounding error grows as the square
    root of the steps, from 1e-7 of it in single precision.

    Memory: the table is as large as the data of all views, and each step makes a copy of it since states are frozen.
    Reference: Defazio, Bach and Lacoste-Julien, NeurIPS 2014.
    """

    reduces_variance: ClassVar[bool] = True

    def begin(self, fidelity: Fidelity, image: Tensor) -> Memory:
        if not fidelity.linear:
            raise InputError("SAGA keeps predictions of a linear model; use SVRG for others")
        mean = fidelity.gradient(image)
        shape = (*mean.shape[: mean.ndim - len(fidelity.image_shape)], fidelity.n_views, *fidelity.data_shape)
        table = torch.zeros(shape, dtype=fidelity.data_dtype, device=mean.device)
        if bool(image.any()):  # otherwise every prediction is zero already
            axis = table.ndim - 1 - len(fidelity.data_shape)
            for block in torch.arange(fidelity.n_views).split(_VIEWS_AT_ONCE):
                table.index_copy_(axis, block.to(table.device), fidelity.predict(image.expand_as(mean), block))
        return Memory(table, mean)

    def estimate(
        self, fidelity: Fidelity, image: Tensor, batch: Batch, memory: Memory, step: int
    ) -> tuple[Tensor, Memory]:
        table, mean = memory.kept, memory.mean
        assert table is not None
        assert mean is not None
        views, weights = _distinct(batch, fidelity.available)
        inside = len(fidelity.data_shape)
        axis, rows = table.ndim - 1 - inside, views.to(table.device)
        prediction = fidelity.predict(image, views)
        change = fidelity.slope_change(prediction, table.index_select(axis, rows), views)
        share = fidelity.pullback(change, views)
        if bool((weights == weights[0]).all()):
            gradient = mean + float(weights[0]) * share
        else:
            factors = weights.to(device=mean.device, dtype=mean.dtype.to_real())
            gradient = mean + fidelity.pullback(factors.reshape(-1, *(1,) * inside) * change, views)
        return gradient, Memory(table.index_copy(axis, rows, prediction), mean + share / len(fidelity.available))


@dataclass(frozen=True)
class SVRG:
    r"""Correct the batch's gradient by the same views' at an image where the full gradient is known (loopless SVRG).

        g = sum_b w_b [grad d_{i_b}(x) - grad d_{i_b}(w)] + grad d(w),

    and with probability p, decided by a coin that depends on (seed, step) only, a step first moves w to x, which
    takes a pass over all views and makes g the full gradient. For a linear model with least squares the bracket is
    Re(H_i^H H_i (x - w)), which needs no data and costs as much as a plain step; other fidelities take two gradients.

    E[g] = grad d(x) as for `SAGA`. With convex d_i, strongly convex d, a prox and a step up to 1/(6L) the iterates
    converge linearly to the minimiser; 1/L often works.

    Arguments:
        probability: p, in (0, 1]; a full pass every 1/p steps on average. None: B/I, which doubles the work of a step.
        seed: of the coin.
    Memory: two images, whatever the number of views.
    Reference: Kovalev, Horvath and Richtarik, ALT 2020; Johnson and Zhang, NeurIPS 2013.
    """

    reduces_variance: ClassVar[bool] = True

    probability: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.probability is not None and not 0 < self.probability <= 1:
            raise InputError(f"the probability of a full pass must lie in (0, 1], not {self.probability}")

    def begin(self, fidelity: Fidelity, image: Tensor) -> Memory:
        mean = fidelity.gradient(image)
        return Memory(image.expand_as(mean), mean)

    def estimate(
        self, fidelity: Fidelity, image: Tensor, batch: Batch, memory: Memory, step: int
    ) -> tuple[Tensor, Memory]:
        anchor, mean = memory.kept, memory.mean
        assert anchor is not None
        assert mean is not None
        rate = self.probability
        if rate is None:
            rate = 1.0 if batch.views is None else min(1.0, len(batch.views) / len(fidelity.available))
        if coin(self.seed, step, rate):
            gradient = fidelity.gradient(image)
            return gradient, Memory(image, gradient)
        return mean + fidelity.gradient_change(image, anchor, batch.views, batch.weights), memory


ESTIMATORS: dict[str, type[Plain] | type[SAGA] | type[SVRG]] = {"plain": Plain, "saga": SAGA, "svrg": SVRG}


def steady_overlap(largest: Callable[[Batch], float], batch: Batch, available: Tensor) -> float:
    r"""The overlap that B of I views are expected to have, for a step that is the same for all batches:

        (I - B) / (B (I - 1)) max_i L_i + I (B - 1) / (B (I - 1)) L,

    with L_i and L the largest overlap of view i, and of the mean over all. A fixed point depends on the step, so that
    with a step for each batch there is none to come to, however small the gradient's noise has become.

    Arguments: largest, the largest overlap of a batch; batch, one of the sampler's; available views (I,).
    Reference: Sebbouh et al., NeurIPS 2019 (expected smoothness of draws without repeats).
    """
    n_views = len(available)
    count = n_views if batch.views is None else min(n_views, len(batch.views))
    together = largest(Batch(None))
    if count == n_views:
        return together
    alone = max(largest(Batch(view)) for view in available.split(1))
    return ((n_views - count) * alone + n_views * (count - 1) * together) / (count * (n_views - 1))


def _distinct(batch: Batch, available: Tensor) -> tuple[Tensor, Tensor]:
    """The views of a batch without repeats, and the factor of each one's gradient, both on the CPU."""
    if batch.views is None:
        return available, torch.full((len(available),), 1 / len(available), dtype=torch.float64)
    views, place = torch.unique(batch.views, return_inverse=True)
    if batch.weights is None:
        # From counts, so that equal shares are equal to the bit.
        counts = torch.bincount(place, minlength=len(views)).double()
        return views, counts / len(batch.views)
    weights = torch.zeros(len(views), dtype=torch.float64).index_add_(0, place, batch.weights.cpu().double())
    return views, weights
