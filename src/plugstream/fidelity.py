"""How far an image is from the measurements: d(x), the mean over views of d_i(x), its gradient, prox and L."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from plugstream.errors import DamagedError, InputError
from plugstream.linalg import conjugate_gradient, largest_eigenvalue, per_image, squared_norm
from plugstream.models.base import Model, Views, as_views, check_shape

__all__ = ["Fidelity", "LeastSquares", "Measurements"]

# A pass over all views of a scan that is not in memory takes blocks of about this size.
_BLOCK_BYTES = 32 << 20


@runtime_checkable
class Fidelity(Protocol):
    """d(x) = mean over views of d_i(x), with everything an algorithm asks of it.

    `views` are indices (None: all that are available), `weights` the factor of each view's term (None: 1 / number of
    views), so that a sampler that draws unevenly can keep the gradient unbiased.
    """

    @property
    def n_views(self) -> int: ...
    @property
    def available(self) -> int | Tensor:
        """What samplers draw from: the number of views, or the indices of those that can be used."""

    @property
    def image_shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def value(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """(..., *image_shape) to (...)."""

    def gradient(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """(..., *image_shape) to the same."""

    def prox(
        self,
        image: Tensor,
        gamma: float,
        views: Views = None,
        weights: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """argmin_z 1/2 ||z - x||^2 + gamma d(z), (..., *image_shape) to the same."""

    @property
    def lipschitz(self) -> float:
        """L of grad d, all views together."""

    @property
    def lipschitz_max(self) -> float:
        """max_i L_i, which bounds every grad d_i (the paper's Assumption 2)."""


class Measurements(Protocol):
    """Where a fidelity reads its data: a scan in memory, on disk or still arriving."""

    @property
    def n_views(self) -> int: ...
    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, *data_shape); all for None."""


class LeastSquares:
    r"""How badly an image explains complex or real measurements with Gaussian noise.

    d(x) = (1/I) sum_i d_i(x),  d_i(x) = 1/2 ||H_i x - y_i||^2,  grad d_i(x) = Re(H_i^H (H_i x - y_i)).

    For a nonlinear model the gradient uses the derivative of H_i at x; `prox` and L are then refused, since they
    hold for linear models only.

    Arguments:
        model: the forward map of each view.
        data: a tensor (..., views, *data_shape), or anything with `read(views)`, such as a scan on disk, of which no
            more than a batch, or a block of views in a pass over all of them, is in memory at a time.
        available: the views that can be used, (count,); all if not given. The mean is over these.
        lipschitz_tol: relative tolerance of L and max_i L_i, which are estimated on first use and kept.
        lipschitz_most: with more views than this, L_i are not estimated but bounded (`squared_norm_bounds`).
        prox_tol, prox_iterations: when the conjugate gradients of `prox` stop: relative residual, and limit.

    Reference: Sun, Wohlberg and Kamilov, eqs. (3), (6), (7) and (17).
    """

    def __init__(
        self,
        model: Model,
        data: Tensor | Measurements,
        *,
        available: Tensor | None = None,
        lipschitz_tol: float = 1e-2,
        lipschitz_most: int = 1000,
        prox_tol: float = 1e-5,
        prox_iterations: int = 200,
    ) -> None:
        self.model = model
        self.lipschitz_tol = lipschitz_tol
        self.lipschitz_most = lipschitz_most
        self._available = as_views(available, model.n_views)
        self._lipschitz_max: float | None = None
        self.prox_tol = prox_tol
        self.prox_iterations = prox_iterations
        if isinstance(data, Tensor):
            self._source: Measurements | None = None
            check_shape("data", data, (self.n_views, *model.data_shape))
            self._data = self._checked(data, None)
        else:
            if data.n_views < model.n_views:
                raise InputError(f"the scan has {data.n_views} views, but the model has {model.n_views}")
            self._source = data

    def grow(self, model: Model, available: Tensor | None = None, *, lipschitz_max: float | None = None) -> None:
        """Go over to the model of a scan that has grown, or to other views of it.

        Arguments: model, with the views of the present one first; available as at the beginning; lipschitz_max, a
        bound of all L_i where it is known already.
        """
        if self._source is None:
            raise InputError("data in memory cannot grow; give the fidelity a scan that it reads from")
        if self._source.n_views < model.n_views:
            raise InputError(f"the scan has {self._source.n_views} views, but the model has {model.n_views}")
        self.model = model
        self._available = as_views(available, model.n_views)
        self._lipschitz_max = lipschitz_max
        for name in ("lipschitz", "lipschitz_views"):
            self.__dict__.pop(name, None)

    @property
    def n_views(self) -> int:
        return self.model.n_views

    @property
    def available(self) -> int | Tensor:
        """The number of views, or the indices of those that can be used."""
        return self.n_views if self._available is None else self._available

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.model.image_shape

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the data, which are independent images; () for the data of one, and for a scan."""
        if self._source is not None:
            return ()
        return tuple(self._data.shape[: self._data.ndim - 1 - len(self.model.data_shape)])

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def data(self, views: Views = None) -> Tensor:
        """The measurements of these views, (..., B, *data_shape), on the model's device."""
        index = as_views(views, self.n_views)
        if self._source is not None:
            return self._checked(self._source.read(index), index)
        if index is None:
            return self._data
        return self._data.index_select(-1 - len(self.model.data_shape), index.to(self.device))

    def value(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """d(x) over these views: the mean of 1/2 ||H_i x - y_i||^2, or its sum with the given weights.

        (..., *image_shape) to (...), the image's leading axes broadcast with those of the data.
        """
        self._check_batch(image)
        total = torch.zeros((), device=self.device, dtype=self.dtype.to_real())
        for some, w in self._parts(views, weights):
            residual = self.model.forward(image, some) - self.data(some)
            total = total + (self._energies(residual) / 2 * w).sum(-1)
        return total

    def gradient(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """grad d(x) over these views: the mean of Re(H_i^H (H_i x - y_i)), or its sum with the given weights.

        (..., *image_shape) to the same, the image's leading axes broadcast with those of the data.
        """
        self._check_batch(image)
        parts = (self.model.gradient(image, self.data(some), some, w) for some, w in self._parts(views, weights))
        return functools.reduce(Tensor.add_, parts)

    def prox(
        self,
        image: Tensor,
        gamma: float,
        views: Views = None,
        weights: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """The image that trades closeness to `image` against the data, by conjugate gradients.

        Solves (I + gamma sum_i w_i H_i^H H_i) z = x + gamma sum_i w_i H_i^H y_i from `start` (x if not given) to
        the tolerance `prox_tol`. (..., *image_shape) to the same, the image's leading axes broadcast with those of the
        data.
        """
        self._needs_linear("prox")
        self._check_batch(image)
        b = image
        for some, w in self._parts(views, weights):
            b = b + gamma * self.model.adjoint(self._spread(w) * self.data(some), some)
        index = self._index(views)
        normal = self.model.normal(index, self._weights(index, weights))
        solution = conjugate_gradient(
            lambda z: z + gamma * normal(z),
            b,
            start=(image if start is None else start).expand_as(b),
            tol=self.prox_tol,
            max_iterations=self.prox_iterations,
            ndim=len(self.image_shape),
        )
        return solution.image

    @cached_property
    def lipschitz(self) -> float:
        """L of grad d: the largest eigenvalue of (1/I) sum_i Re(H_i^H H_i), within `lipschitz_tol` from above."""
        self._needs_linear("L")
        normal = self.model.normal(self._available, self._weights(self._available, None))
        like = torch.empty(self.image_shape, device=self.device, dtype=self.dtype)
        return float(largest_eigenvalue(normal, like, tol=self.lipschitz_tol, ndim=len(self.image_shape)))

    @cached_property
    def lipschitz_views(self) -> Tensor:
        """Every L_i, the largest eigenvalue of Re(H_i^H H_i): (views,), in double precision on the CPU."""
        self._needs_linear("L_i")
        return self.model.squared_norms(torch.arange(self.n_views), self.lipschitz_tol)

    @property
    def lipschitz_max(self) -> float:
        """A bound of all L_i: the largest estimate, or for very many views the largest bound."""
        if self._lipschitz_max is None:
            self._needs_linear("L_i")
            index = torch.arange(self.n_views) if self._available is None else self._available
            if len(index) > self.lipschitz_most:
                self._lipschitz_max = float(self.model.squared_norm_bounds(index).max())
            else:
                self._lipschitz_max = float(self.lipschitz_views[index].max())
        return self._lipschitz_max

    def backprojection(self, views: Views = None) -> Tensor:
        """The simplest image of the data: the gradient at zero, scaled so that it fits the data best.

        x = a g with g = sum_i Re(H_i^H y_i) and a = ||g||^2 / sum_i ||H_i g||^2, one step of steepest descent; the sums
        are over `views`, all if not given.
        """
        self._needs_linear("back-projection")
        sums = (self.model.adjoint(self.data(some), some) for some, _ in self._parts(views, None))
        g = functools.reduce(Tensor.add_, sums)
        energy = torch.zeros((), device=self.device, dtype=self.dtype.to_real())
        for some, _ in self._parts(views, None, read=False):
            energy = energy + self._energies(self.model.forward(g, some)).sum(-1)
        ndim = len(self.image_shape)
        scale = squared_norm(g, ndim) / energy.clamp_min(torch.finfo(self.dtype).tiny)
        return per_image(scale, ndim) * g

    def _check_batch(self, image: Tensor) -> None:
        check_shape("image", image, self.image_shape)
        lead = tuple(image.shape[: image.ndim - len(self.image_shape)])
        try:
            torch.broadcast_shapes(lead, self.batch_shape)
        except RuntimeError:
            raise InputError(
                f"there is data of {self.batch_shape} images, which does not go with images of leading axes {lead}"
            ) from None

    def _energies(self, data: Tensor) -> Tensor:
        """||z_i||^2 of each view: (..., B, *data_shape) to (..., B)."""
        squares = data.abs().square()
        inside = len(self.model.data_shape)
        return squares if inside == 0 else squares.flatten(squares.ndim - inside).sum(-1)

    def _index(self, views: Views) -> Tensor | None:
        """The views asked for, all that are available for None; None if that is every view of the model."""
        return self._available if views is None else as_views(views, self.n_views)

    def _parts(
        self, views: Views, weights: Tensor | None, *, read: bool = True
    ) -> Iterator[tuple[Tensor | None, Tensor]]:
        """The views with their weights: at once if the data is in memory, otherwise block by block.

        With `read`, a source that can read ahead is told of the next block while this one is worked on.
        """
        index = self._index(views)
        w = self._weights(index, weights)
        if self._source is None:
            yield index, w
            return
        index = torch.arange(self.n_views) if index is None else index
        size = math.prod(self.model.data_shape) * self.model.data_dtype.itemsize
        step = max(1, _BLOCK_BYTES // size)
        blocks = index.split(step)
        expect = getattr(self._source, "expect", None)
        for number, (some, some_w) in enumerate(zip(blocks, w.split(step), strict=True)):
            if read and expect is not None and number + 1 < len(blocks):
                expect(list(blocks[number : number + 2]))
            yield some, some_w

    def _weights(self, views: Views, weights: Tensor | None) -> Tensor:
        count = self.n_views if views is None else len(views)
        if weights is None:
            return torch.full((count,), 1 / count, device=self.device, dtype=self.dtype.to_real())
        if weights.shape != (count,):
            raise InputError(f"weights have shape {tuple(weights.shape)}, but there are {count} views to weigh")
        return weights.to(device=self.device, dtype=self.dtype.to_real())

    def _spread(self, weights: Tensor) -> Tensor:
        return weights.reshape(-1, *(1,) * len(self.model.data_shape))

    def _checked(self, data: Tensor, views: Tensor | None) -> Tensor:
        """Data of these views on the model's device, masked receivers at zero; NaN and infinity are refused."""
        # From pinned memory a GPU copies by itself; towards the CPU one has to wait for it.
        on_gpu = self.device.type == "cuda"
        there = data.to(device=self.device, dtype=self.model.data_dtype, non_blocking=on_gpu)
        data = self.model.restrict(there, views)
        if bool(torch.isfinite(torch.view_as_real(data).sum() if data.is_complex() else data.sum())):
            return data  # a sum is finite only where all of its terms are
        axis = data.ndim - 1 - len(self.model.data_shape)
        bad = ~torch.isfinite(torch.view_as_real(data).sum(-1) if data.is_complex() else data)
        if bool(bad.any()):
            places = bad.movedim(axis, 0).flatten(1).any(1).nonzero()[:, 0].tolist()
            numbers = places if views is None else views[places].tolist()
            if self._source is not None:  # a scan, of which views that are damaged can be left out
                raise DamagedError("the scan", dict.fromkeys(numbers, "it holds NaN or infinity"))
            raise InputError(
                f"view {numbers[0]} of the data holds NaN or infinity; leave the view out or mask its receivers"
            )
        return data

    def _needs_linear(self, what: str) -> None:
        if not self.model.linear:
            raise InputError(
                f"{what} is known for linear models only; give the step as a number and use a proximal gradient method"
            )
