"""What fidelities of a model and its data share: the views, their data in memory or on a disk, and their weights."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from plugstream.base.arrays import Array, accept_arrays_in, as_tensor
from plugstream.base.errors import DamagedError, InputError, PlugstreamWarning
from plugstream.base.linalg import broadcast_axes, largest_eigenvalue, per_image, squared_norm
from plugstream.fidelity.abilities import FidelityAbilities
from plugstream.models.base import Linearization, Model, as_model
from plugstream.models.views import Views, all_views, as_views, check_shape, spread_views

__all__ = ["Measurements", "ModelFidelity"]

# A pass over all views of a scan that is not in memory takes blocks of about this size.
_BLOCK_BYTES = 32 << 20
# Where no L is known, it is estimated on so many views, to this tolerance, with no more products of each.
_LOCAL_VIEWS, _LOCAL_TOL, _LOCAL_PRODUCTS = 8, 0.05, 30


class Measurements(Protocol):
    """Where a fidelity reads its data: a scan in memory, on disk or still arriving."""

    @property
    def n_views(self) -> int: ...
    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, *data_shape); all for None."""


class ModelFidelity(FidelityAbilities):
    """What every fidelity of a model and its data shares: which views there are, their data, block by block.

    Arguments:
        model: the forward map of each view.
        data: a tensor or array (..., views, *data_shape), or anything with `read(views)`, such as a scan on disk, of
            which no more than a batch, or a block of views in a pass over all of them, is in memory at a time.
        available: the views that can be used, (count,); all if not given. The mean is over these.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        accept_arrays_in(cls, ("value", "gradient", "gradient_change", "prox", "predict", "pullback"))

    model: Model

    def __init__(self, model: Model, data: Array | Measurements, *, available: Views = None) -> None:
        self.model = model = as_model(model)
        self._available = as_views(available, model.n_views)
        self._lipschitz_max: float | None = None
        if isinstance(data, Tensor | np.ndarray) or not hasattr(data, "read"):
            self._source: Measurements | None = None
            kind = model.data_dtype.to_real() if model.intensities else model.data_dtype  # of waves
            tensor = as_tensor("data", data, device=model.device, dtype=kind)
            check_shape("data", tensor, (self.n_views, *model.stored_shape))
            self._data = self._checked(tensor, None)
        else:
            if data.n_views < model.n_views:
                raise InputError(f"the scan has {data.n_views} views, but the model has {model.n_views}")
            self._source = data

    def with_views(self, model: Model, available: Views = None, *, lipschitz_max: float | None = None) -> Self:
        """The fidelity of the same data with the model of a scan that has grown, or with other views of it.

        This one stays as it is, so that an algorithm that has it does too; `replace(algorithm, fidelity=...)` is the
        algorithm that goes on with the new one. Of a model of fewer data (`PartOfData`) it has zeros for the others.

        Arguments: model, with the views of the present one first; available as at the beginning; lipschitz_max, a
        bound of all L_i where it is known already.
        """
        if self._source is None and model.n_views != self.n_views:
            raise InputError("data in memory cannot grow; give the fidelity a scan that it reads from")
        if self._source is not None and self._source.n_views < model.n_views:
            raise InputError(f"the scan has {self._source.n_views} views, but the model has {model.n_views}")
        other = copy.copy(self)
        other.model = model = as_model(model)
        if self._source is None and model is not self.model:
            other._data = model.restrict(self._data)
        other._available = as_views(available, model.n_views)
        other._lipschitz_max = lipschitz_max
        # These were computed from the present views.
        for name in ("available", "lipschitz", "lipschitz_views", "curvature"):
            if name != "lipschitz_views" or model is not self.model:  # which are of all views of the model
                other.__dict__.pop(name, None)
        return other

    @property
    def n_views(self) -> int:
        return self.model.n_views

    @cached_property
    def available(self) -> Tensor:
        """The indices of the views that can be used, (count,)."""
        return all_views(self._available, self.n_views)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.model.image_shape

    @property
    def channels(self) -> bool:
        """Whether the first axis of an image is of channels."""
        return self.model.channels

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

    @property
    def linear(self) -> bool:
        """Whether predictions are a linear function of the image."""
        return self.model.linear

    @property
    def convex(self) -> bool:
        """Whether d is a convex function of the image."""
        return self.linear

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of a view's predictions."""
        return self.model.data_shape

    @property
    def data_dtype(self) -> torch.dtype:
        """The dtype of predictions."""
        return self.model.data_dtype

    @property
    def has_lipschitz(self) -> bool:
        """Whether L is known, as it is for linear models."""
        return self.model.linear

    @property
    def curvature(self) -> float:
        """A bound on the second derivative of the loss in the prediction; 1 for least squares."""
        return 1.0

    def local_lipschitz(self, image: Tensor, views: Views = None) -> float:
        """L at an image, for models of which no L is known: the largest c ||J_i(x)||^2 of a few views.

        J_i(x) is the derivative of H_i there, whose norm comes from Lanczos iterations through its products with images
        and with data; c is the loss's curvature. It says nothing of other images, so whoever steps by it has to look
        whether each step does what it should (`ProximalGradient`).

        Arguments: image (..., *image_shape), of which the first counts; views to look at, up to 8 evenly spaced ones if
        not given.
        """
        ndim = len(self.image_shape)
        x = image.reshape(-1, *self.image_shape)[0]
        largest = 0.0
        near = None if self.model.linear else self.model.linearized(x)
        if near is not None and not isinstance(near, Linearization):  # it has norms of its own
            return self.curvature * float(near.squared_norms(self._looked_at(views), _LOCAL_TOL).max())
        for view in self._looked_at(views).split(1):
            _, pullback = self.model.linearize(x, view)

            def normal(v: Tensor, view: Tensor = view, pullback: Callable[[Tensor], Tensor] = pullback) -> Tensor:
                return pullback(self.model.derivative(x, v, view)).detach()

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PlugstreamWarning)  # an estimate will do
                top = largest_eigenvalue(normal, x, tol=_LOCAL_TOL, max_iterations=_LOCAL_PRODUCTS, ndim=ndim)
            largest = max(largest, float(top))
        return self.curvature * largest

    def _looked_at(self, views: Views) -> Tensor:
        """The views that tell L at an image: these, or a few that are available."""
        some = spread_views(self.available, _LOCAL_VIEWS) if views is None else as_views(views, self.n_views)
        return self.available if some is None else some

    def predict(self, image: Tensor, views: Views = None) -> Tensor:
        """H_i x of these views: (..., *image_shape) to (..., B, *data_shape)."""
        return self.model.forward(image, views)

    def pullback(self, slopes: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(H_i^H z_i), for a linear model: (..., B, *data_shape) to (..., *image_shape).

        With the derivatives of the loss at predictions as z it is the sum of the views' gradients.
        """
        self._needs_linear("the pullback of predictions")
        return self.model.adjoint(slopes, views)

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """The diagonal of sum_i w_i H_i^H H_i over these views, of a model where it is diagonal; None of others.

        Arguments: weights (B,), 1/B each if not given, as of the gradient.
        """
        index = self._index(views)
        return self.model.overlap(index, self._weights(index, weights))

    def start_image(self) -> Tensor | None:
        """The image to begin with where nobody gives one, (*image_shape), None for zero."""
        return self.start(())[0]

    def start(self, names: Sequence[str]) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The image and the model's parameters to begin with, which the model may ask the data for.

        Arguments: names of the parameters that are refined.
        """
        return self.model.start_from(self.data, self.available, names)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What the model depends on besides the image and the views, by name (`ModelBase.parameters`)."""
        return dict(self.model.parameters)

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The fidelity of the same data with a model of these parameters; what was found of L is of the first ones."""
        other = copy.copy(self)
        other.model = as_model(self.model.with_parameters(parameters))
        return other

    def refine(self, image: Tensor, views: Views, names: Sequence[str], pace: float = 1.0) -> dict[str, Tensor]:
        """All parameters of the model after a step on those of these names, by the data of these views.

        Arguments: image (*image_shape); views, all that are available if not given; pace, the part of the model's own
        step that is taken.
        """
        index = self._index(views)
        shorter = {} if pace == 1 else {"pace": pace}  # models of one's own may know no pace
        return self.model.refine(image, self.data(index), index, names, self._fit_derivative, **shorter)

    def comparable(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Parameters as vectors whose differences tell how much they have moved (`ModelBase.comparable`)."""
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
        return self._data.index_select(-1 - len(self.model.data_shape), index.to(self.device))

    def backprojection(self, views: Views = None) -> Tensor:
        """The simplest image of the data: the gradient at zero, scaled so that it fits the data best.

        x = a g with g = sum_i Re(H_i^H y_i) and a = ||g||^2 / sum_i ||H_i g||^2, one step of steepest descent; the sums
        are over `views`, all if not given. Of a nonlinear model it is that of its derivative at zero, with the data
        less what the model predicts there; it is zero where that derivative is.
        """
        model = self.model.linearized()
        sums = (model.adjoint(self._beyond_zero(some), some) for some, _ in self._parts(views, None))
        g = functools.reduce(Tensor.add_, sums)
        energy = torch.zeros((), device=self.device, dtype=self.dtype.to_real())
        for some, _ in self._parts(views, None, read=False):
            # In one sum over views and data, whose rounding is what it was.
            squares = model.forward(g, some).abs().square()
            energy = energy + squares.flatten(g.ndim - len(self.image_shape)).sum(-1)
        ndim = len(self.image_shape)
        scale = squared_norm(g, ndim) / energy.clamp_min(torch.finfo(self.dtype).tiny)
        return per_image(scale, ndim) * g

    def _beyond_zero(self, views: Tensor | None) -> Tensor:
        """The data less the prediction of a zero image, which of a linear model is zero."""
        data = self.data(views)
        if self.model.linear:
            return data
        zero = torch.zeros(self.image_shape, device=self.device, dtype=self.dtype)
        return data - self.model.forward(zero, views)

    @property
    def _stored_dtype(self) -> torch.dtype:
        """Of the data once it is here."""
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

    def _energies(self, data: Tensor) -> Tensor:
        """||z_i||^2 of each view: (..., B, *data_shape) to (..., B)."""
        return self._sums(data.abs().square())

    def _sums(self, terms: Tensor) -> Tensor:
        """The sum over each view's data: (..., B, *data_shape) to (..., B)."""
        inside = len(self.model.data_shape)
        return terms if inside == 0 else terms.flatten(terms.ndim - inside).sum(-1)

    def _index(self, views: Views) -> Tensor | None:
        """The views asked for, all that are available for None; None if that is every view of the model."""
        return self._available if views is None else as_views(views, self.n_views)

    def _parts(
        self, views: Views, weights: Tensor | None, *, read: bool = True
    ) -> Iterator[tuple[Tensor | None, Tensor]]:
        """The views with their weights: at once if the data is in memory, otherwise block by block.

        With `read`, a source that can read ahead begins with the next block while this one is worked on.
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
        if len(index) <= step:  # a batch, as it was announced
            yield index, w
            return
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
        there = data.to(device=self.device, dtype=self._stored_dtype, non_blocking=on_gpu)
        data = self.model.restrict(self.model.convert(there, views), views)
        if math.isfinite((torch.view_as_real(data) if data.is_complex() else data).sum().item()):
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
