"""What fidelities of a model and its data share: the views, their data in memory or on disk, and their weights."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor, send
from plugstream.base.errors import DamagedError, InputError, PlugstreamWarning
from plugstream.base.linalg import broadcast_axes, largest_eigenvalue, per_image, squared_norm
from plugstream.fidelity.abilities import OfModel, Weights
from plugstream.models.base import Linearization, Model, as_model
from plugstream.models.views import Views, all_views, as_views, check_shape, spread_views

# A pass over a scan that is not in memory reads blocks of about this size.
_BLOCK_BYTES = 32 << 20
# If no L is known, it is estimated on this many views, to this tolerance, with at most this many products each.
_LOCAL_VIEWS, _LOCAL_TOL, _LOCAL_PRODUCTS = 8, 0.05, 30


class Measurements(Protocol):
    """Where a fidelity reads its data: a scan in memory, on disk or still arriving."""

    @property
    def n_views(self) -> int: ...
    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, *data_shape); all for None."""


class ModelFidelity(OfModel):
    """What every fidelity of a model and its data shares: which views there are, and their data, block by block.

    Arguments:
        model: the forward map of each view.
        data: a tensor or array (..., views, *data_shape), or anything with `read(views)`, such as a scan on disk. Of a
            scan, only a batch, or one block of a full pass, is in memory at a time.
        available: the views that can be used, (count,); all if not given. The mean is over these.
    """

    slopes_need_data: ClassVar[bool] = True
    """Whether changes of the loss's derivative, and its curvature, depend on the data."""

    def __init__(self, model: Model, data: Array | Measurements, *, available: Views = None) -> None:
        self.model = model = as_model(model)
        self._available = as_views(available, model.n_views)
        self._lipschitz_max: float | None = None
        self._view_weights: Tensor | None = None
        if isinstance(data, Tensor | np.ndarray) or not hasattr(data, "read"):
            self._source: Measurements | None = None
            kind = model.data_dtype.to_real() if model.intensities else model.data_dtype
            tensor = as_tensor("data", data, device=model.device, dtype=kind)
            check_shape("data", tensor, (self.n_views, *model.stored_shape))
            self._data = self._checked(tensor, None)
        else:
            self._source = data
            self._check_source(model)

    def _check_source(self, model: Model) -> None:
        if self._source is not None and self._source.n_views < model.n_views:
            raise InputError(f"the scan has {self._source.n_views} views, but the model has {model.n_views}")

    def with_views(self, model: Model, available: Views = None, *, lipschitz_max: float | None = None) -> Self:
        """The fidelity with the model of a scan that has grown, or with other views.

        `self` does not change; `replace(algorithm, fidelity=...)` continues with the new fidelity. With a model of part
        of the data (`PartOfData`) the rest of the data is zero.

        Arguments: model, which begins with the present views; available, as in `__init__`; lipschitz_max, a bound of
        all L_i if it is known already.
        """
        if self._source is None and model.n_views != self.n_views:
            raise InputError("data in memory cannot grow; give the fidelity a scan that it reads from")
        self._check_source(model)
        other = copy.copy(self)
        other.model = model = as_model(model)
        if self._source is None and model is not self.model:
            other._data = model.restrict(self._data)
        other._available = as_views(available, model.n_views)
        other._lipschitz_max = lipschitz_max
        outdated = ["available", "lipschitz", "curvature"]
        if model is not self.model:
            outdated.append("lipschitz_views")
        for name in outdated:
            other.__dict__.pop(name, None)
        return other

    def weigh(self, weights: Array) -> Self:
        """The fidelity in which term i of every sum over views has this factor; each L stays, which is a bound.

        Arguments: weights (views,), above 0 and up to 1: the least of all variances over that of each view.
        """
        other = copy.copy(self)
        other._view_weights = as_tensor("weights", weights, device=self.device, dtype=self.dtype.to_real())
        check_shape("weights", other._view_weights, (self.n_views,))
        return other

    def with_model(self, model: Model) -> Self:
        """The fidelity with another model of the same views; every L stays that of the present model."""
        other = copy.copy(self)
        other.model = as_model(model)
        return other

    @cached_property
    def available(self) -> Tensor:
        """The indices of the views that can be used, (count,)."""
        return all_views(self._available, self.n_views)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the data, one entry for each independent image; () for one image and for a scan."""
        if self._source is not None:
            return ()
        return tuple(self._data.shape[: self._data.ndim - 1 - len(self.model.data_shape)])

    @property
    def convex(self) -> bool:
        """Whether d is a convex function of the image."""
        return self.linear

    @property
    def has_prox(self) -> bool:
        """Whether `prox` is known."""
        return False

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known, as it is for linear models."""
        return self.model.linear

    @property
    def curvature(self) -> float:
        """A bound on the second derivative of the loss in the prediction; 1 for least squares."""
        return 1.0

    def curvature_of(self, views: Views = None) -> float:
        """The same for the data of these views."""
        return 1.0

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L at an image, for models without a known L: the largest c ||J_i(x)||^2 of a few views.

        J_i(x) is the derivative of H_i at x, whose norm comes from Lanczos iterations; c is the loss's curvature. It
        does not hold for other images, so an algorithm has to check its steps (`ProximalGradient`).

        Arguments: image (..., *image_shape), only the first counts; views, up to 8 evenly spaced ones if not given.
        """
        ndim = len(self.image_shape)
        x = image.reshape(-1, *self.image_shape)[0]
        largest = 0.0
        near = None if self.model.linear else self.model.linearized(x)
        if near is not None and not isinstance(near, Linearization):  # it has norms of its own
            return self.curvature * float(near.squared_norms(self.local_views(views), _LOCAL_TOL).max())
        for view in self.local_views(views).split(1):
            _, pullback = self.model.linearize(x, view)

            def normal(v: Tensor, view: Tensor = view, pullback: Callable[[Tensor], Tensor] = pullback) -> Tensor:
                return pullback(self.model.derivative(x, v, view)).detach()

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PlugstreamWarning)  # an estimate will do
                top = largest_eigenvalue(normal, x, tol=_LOCAL_TOL, max_iterations=_LOCAL_PRODUCTS, ndim=ndim)
            largest = max(largest, float(top))
        return self.curvature * largest

    def local_views(self, views: Views) -> Tensor:
        """The views by which `local_lipschitz` estimates L: these, or a few of those available."""
        chosen = spread_views(self.available, _LOCAL_VIEWS) if views is None else as_views(views, self.n_views)
        return self.available if chosen is None else chosen

    def value(self, image: Tensor, views: Views = None, weights: Weights = None) -> Tensor:
        """d(x) over these views, the mean of d_i(x) or the sum with these weights: (..., *image_shape) to (...).

        The image's leading axes broadcast with those of the data.
        """
        self._check_batch(image)
        total = torch.zeros((), device=self.device, dtype=self.dtype.to_real())
        for block, w in self._parts(views, weights):
            total = total + (self._values_of(image, block) * w).sum(-1)
        return total

    def values(self, image: Tensor, views: Views = None) -> Tensor:
        """d_i(x) of each of these views: (..., *image_shape) to (..., B)."""
        self._check_batch(image)
        return torch.cat([self._values_of(image, block) for block, _ in self._parts(views, None)], -1)

    def _values_of(self, image: Tensor, block: Tensor | None) -> Tensor:
        raise NotImplementedError

    def predict(self, image: Tensor, views: Views = None) -> Tensor:
        """H_i x of these views: (..., *image_shape) to (..., B, *data_shape)."""
        return self.model.forward(image, views)

    def pullback(self, slopes: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(H_i^H z_i), for a linear model: (..., B, *data_shape) to (..., *image_shape)."""
        self._needs_linear("the pullback of predictions")
        return self.model.adjoint(slopes, views)

    def overlap(self, views: Views = None, weights: Weights = None) -> Tensor | None:
        index = self._index(views)
        return self.model.overlap(index, self._weights(index, weights))

    def start_image(self) -> Tensor | None:
        return self.start(())[0]

    def start(self, names: Sequence[str]) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The first image and the first parameters of the model, which it may take from the data.

        Arguments: names of the parameters to be refined.
        """
        return self.model.start_from(self.data, self.available, names)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters by name (`ModelBase.parameters`)."""
        return dict(self.model.parameters)

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        return self.with_model(self.model.with_parameters(parameters))

    def refine(self, image: Tensor, views: Views, names: Sequence[str], pace: float = 1.0) -> dict[str, Tensor]:
        """All parameters of the model after a step on the named ones, by the data of these views.

        Arguments: image (*image_shape); views, all available ones if not given; pace, how much of the model's own step
        to take.
        """
        index = self._index(views)
        shorter = {} if pace == 1 else {"pace": pace}  # a user's model may not know it
        return self.model.refine(image, self.data(index), index, names, self._fit_derivative, **shorter)

    def comparable(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters as vectors whose differences say how far they have moved (`ModelBase.comparable`)."""
        return self.model.comparable(parameters, names)

    def _fit_derivative(self, prediction: Tensor, data: Tensor, views: Tensor | None) -> Tensor:
        """The loss's derivative, scaled so that its curvature at a fit is 1."""
        return prediction - data

    def data(self, views: Views = None) -> Tensor:
        """The measurements of these views, (..., B, *data_shape), on the model's device."""
        index = as_views(views, self.n_views)
        if self._source is not None:
            return self._checked(self._source.read(index), index)
        if index is None:
            return self._data
        return self._data.index_select(-1 - len(self.model.data_shape), send(index, self.device))

    def backprojection(self, views: Views = None) -> Tensor:
        """The simplest image of the data: the gradient at zero, scaled to fit the data best.

        x = a g with g = sum_i Re(H_i^H y_i) and a = ||g||^2 / sum_i ||H_i g||^2, one step of steepest descent over
        `views`, all if not given. For a nonlinear model H_i is its derivative at zero, and y_i the data less the
        prediction there.
        """
        model, ndim = self.model.linearized(), len(self.image_shape)
        zero = torch.zeros(self.image_shape, device=self.device, dtype=self.dtype)

        def beyond_zero(block: Tensor | None) -> Tensor:
            return self.data(block) if self.linear else self.data(block) - self.model.forward(zero, block)

        sums = (model.adjoint(beyond_zero(block), block) for block, _ in self._parts(views, None))
        g = functools.reduce(Tensor.add_, sums)
        energy = torch.zeros((), device=self.device, dtype=self.dtype.to_real())
        for block, _ in self._parts(views, None, read=False):
            # One sum over views and data, for the same rounding as ever.
            squares = model.forward(g, block).abs().square()
            energy = energy + squares.flatten(g.ndim - ndim).sum(-1)
        scale = squared_norm(g, ndim) / energy.clamp_min(torch.finfo(self.dtype).tiny)
        return per_image(scale, ndim) * g

    @property
    def _stored_dtype(self) -> torch.dtype:
        """The dtype of the data in memory."""
        return self.model.data_dtype

    def _check_batch(self, image: Tensor) -> None:
        check_shape("image", image, self.image_shape)
        lead = tuple(image.shape[: image.ndim - len(self.image_shape)])
        try:
            broadcast_axes(lead, self.batch_shape)
        except ValueError:
            raise InputError(
                f"there is data of {self.batch_shape} images, which does not go with images of leading axes {lead}"
            ) from None

    def _sums(self, terms: Tensor) -> Tensor:
        """The sum over each view's data: (..., B, *data_shape) to (..., B)."""
        inside = len(self.model.data_shape)
        return terms if inside == 0 else terms.flatten(terms.ndim - inside).sum(-1)

    def _index(self, views: Views) -> Tensor | None:
        """These views, all available ones for None; None if that is every view of the model."""
        return self._available if views is None else as_views(views, self.n_views)

    def _parts(self, views: Views, weights: Weights, *, read: bool = True) -> Iterator[tuple[Tensor | None, Tensor]]:
        """The views with their weights: at once if the data is in memory, otherwise block by block.

        With `read`, a source that can read ahead starts on the next block meanwhile.
        """
        index = self._index(views)
        w = self._weights(index, weights)
        most = self.model.views_at_once
        if self._source is None and (most is None or len(w) <= most):
            yield index, w
            return
        if index is None:
            index = all_views(None, self.n_views)
        size = math.prod(self.model.data_shape) * self.model.data_dtype.itemsize
        step = max(1, _BLOCK_BYTES // size) if most is None else most
        if len(index) <= step:  # the batch that was announced
            yield index, w
            return
        blocks = index.split(step)
        expect = getattr(self._source, "expect", None)
        for number, (block, block_weights) in enumerate(zip(blocks, w.split(step), strict=True)):
            if read and expect is not None and number + 1 < len(blocks):
                expect(list(blocks[number : number + 2]))
            yield block, block_weights

    def _weights(self, views: Views, weights: Weights) -> Tensor:
        """The factors of these views' terms, with what the views count."""
        factors, own = self._factors(views, weights), self._view_weights
        return factors if own is None else factors * (own if views is None else own[as_views(views, self.n_views)])

    def _factors(self, views: Views, weights: Weights) -> Tensor:
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
        on_gpu = self.device.type == "cuda"  # only a copy to a GPU need not be waited for
        data = data.to(device=self.device, dtype=self._stored_dtype, non_blocking=on_gpu)
        data = self.model.restrict(self.model.convert(data, views), views)
        if math.isfinite((torch.view_as_real(data) if data.is_complex() else data).sum().item()):
            return data  # a sum is finite only if all its terms are
        axis = data.ndim - 1 - len(self.model.data_shape)
        bad = ~torch.isfinite(torch.view_as_real(data).sum(-1) if data.is_complex() else data)
        if bool(bad.any()):
            places = bad.movedim(axis, 0).flatten(1).any(1).nonzero()[:, 0].tolist()
            numbers = places if views is None else views[places].tolist()
            if self._source is not None:  # damaged views of a scan can be left out
                raise DamagedError("the scan", dict.fromkeys(numbers, "it holds NaN or infinity"))
            raise InputError(
                f"view {numbers[0]} of the data holds NaN or infinity; leave the view out or mask its receivers"
            )
        return data

    def _needs_linear(self, name: str) -> None:
        if not self.model.linear:
            raise InputError(
                f"{name} is known for linear models only; give the step as a number and use a proximal gradient method"
            )
