"""What a model is: the forward map of each view, and what follows from it being linear."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from plugstream.base.arrays import accept_arrays_in, call_function
from plugstream.base.defaults import with_defaults
from plugstream.base.eigenvalue_bounds import largest_eigenvalue_bounds, nonnegative_bound
from plugstream.base.errors import InputError
from plugstream.base.linalg import broadcast_axes, largest_eigenvalue
from plugstream.base.progress import report
from plugstream.models.abilities import ModelAbilities
from plugstream.models.views import Views

# Views, each with its own image, and their pixels in all, for which L_i are estimated at once.
_VIEWS_AT_ONCE = 64
_LANCZOS_PIXELS = 1 << 24
# A view's bound may be above its rough bound by this factor, since each of them is only above ||H_i||^2.
_ROUGH = 1.02
_WINDOW_VALUES = 1 << 18  # data values of the windows that are computed at once


def _with_numpy(method: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    """A method of a model whose results may be arrays, of the dtype that the model's attribute of this name says."""

    @functools.wraps(method)
    def calling(self: Any, value: Tensor, *arguments: Any, **keywords: Any) -> Any:
        like = torch.empty(0, dtype=getattr(self, dtype), device=value.device)
        name = f"what {type(self).__name__}.{method.__name__} returned"
        return call_function(functools.partial(method, self, **keywords), name, like, value, *arguments)

    return calling


@runtime_checkable
class Model(ModelAbilities, Protocol):
    """The forward map H_i of each view i, from an image to that view's measurements.

    `image_shape` is (H, W), a volume's (D, H, W) or either with channels before it, and `data_shape` the shape of one
    view's measurements. Images and data may have the same leading axes, for independent images. `dtype` is the image's,
    real or complex, and `data_dtype` the data's.
    """

    n_views: int
    image_shape: tuple[int, ...]
    data_shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    data_dtype: torch.dtype
    linear: bool

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *data_shape): H_i x for each of the B views."""

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *data_shape) to (..., *image_shape): the sum over views of Re(H_i^H z_i)."""

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The prediction at `image`, and the adjoint of the derivative there."""

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v, the derivative of each view's prediction at an image along a direction: (..., B, *data_shape)."""

    def linearized(self, at: Tensor | None = None) -> Model:
        """The derivative J(at) as a linear model, at zero if no image (*image_shape) is given; itself if linear."""

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with entries that the model does not predict, such as masked receivers, set to zero."""

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """sum_i w_i Re(J_i^H (H_i x - y_i)), J_i the derivative of H_i at x: (..., *image_shape) to the same."""

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(H_i^H H_i x), prepared for repeated use: (..., *image_shape) to the same."""

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(H_i^H H_i x_i) with an image of its own for each view: (B, *image_shape) to the same."""

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """The largest eigenvalue of each view's Re(H_i^H H_i), from above to a relative tol: (B,), double, CPU."""

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """Upper bounds of the same that cost little for many views: (B,), double, CPU."""

    def largest_norm_bound(self, views: Tensor, beyond: float = 0.0) -> float:
        """The largest of these bounds; views whose bounds cannot be beyond a number may be left out, 0 if all are."""


class ModelBase(ModelAbilities, ABC):
    """A base class for models: a linear model needs only `forward` and `adjoint`, and the rest of `Model` follows.

    Image and data may each be real or complex. The inner product of both is <a, b> = Re(sum conj(a) b), so the adjoint
    of H is z -> H^H z for complex images and z -> Re(H^H z) for real ones.
    """

    n_views: int
    image_shape: tuple[int, ...]
    data_shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    data_dtype: torch.dtype
    linear: bool = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not cls.__module__.startswith("plugstream."):  # a person's own, which may be written with NumPy
            for name, dtype in (("forward", "data_dtype"), ("adjoint", "dtype")):
                if inspect.isfunction(method := vars(cls).get(name)):
                    setattr(cls, name, _with_numpy(method, dtype))
        accept_arrays_in(cls, ("forward", "adjoint", "linearize", "restrict", "gradient"))

    @abstractmethod
    def forward(self, image: Tensor, views: Views = None) -> Tensor: ...

    @abstractmethod
    def adjoint(self, data: Tensor, views: Views = None) -> Tensor: ...

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.forward(image, views), lambda data: self.adjoint(data, views)

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v, which is H_i v for a linear model; a nonlinear one overrides it."""
        if not self.linear:
            raise InputError(f"{type(self).__name__} is not linear, and has no derivative along a direction")
        return self.forward(direction, views)

    def linearized(self, at: Tensor | None = None) -> Model:
        """J(at), the derivative at an image, as a linear model; a linear model itself.

        H(at + v) = H(at) + J(at) v to first order, so that J(0) gives a nonlinear model an L to begin with and a
        back-projection. Models with a faster form override it: the derivative of multiple scattering at zero is the
        Born model.

        Arguments: at, an image (*image_shape), zero if not given.
        """
        if self.linear:
            return self
        zero = torch.zeros(self.image_shape, device=self.device, dtype=self.dtype)
        return Linearization(self, zero if at is None else at)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        return data

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """The gradient of sum_i w_i/2 ||H_i x - y_i||^2: sum_i w_i Re(J_i^H (H_i x - y_i)), J_i = H_i if it is linear.

        A model that need not go through memory twice overrides it.

        Arguments: image (..., *image_shape); data (..., B, *data_shape), already restricted; weights (B,), ones if not
        given. Leading axes broadcast: one image may come with the data of several.
        """
        lead = broadcast_axes(
            image.shape[: image.ndim - len(self.image_shape)], data.shape[: data.ndim - 1 - len(self.data_shape)]
        )
        image = image.expand(*lead, *self.image_shape)  # a pullback takes data of the prediction's shape
        prediction, pullback = self.linearize(image, views)
        residual = prediction - data
        return pullback(residual if weights is None else self.spread(weights) * residual)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(H_i^H H_i x) for repeated use, of a linear model; override it to prepare something."""

        def apply(image: Tensor) -> Tensor:
            data, pullback = self.linearize(image, views)
            return pullback(data if weights is None else self.spread(weights) * data)

        return apply

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(H_i^H H_i x_i) with an image for each view, for Lanczos iterations for every L_i: (B, *image_shape).

        A model whose views share work overrides this loop.
        """
        out = torch.empty_like(images)
        for b, view in enumerate(views.split(1)):
            data, pullback = self.linearize(images[b], view)
            out[b] = pullback(data)
        return out

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """The largest eigenvalue of each view's Re(H_i^H H_i), by Lanczos iterations, some views at a time.

        For a non-negative model they are `squared_norm_bounds`, whatever `tol`.
        """
        if self.nonnegative:
            return self.squared_norm_bounds(views)
        norms: list[Tensor] = []
        for part in views.split(_VIEWS_AT_ONCE):
            products = 0

            def normal(images: Tensor, part: Tensor = part) -> Tensor:
                nonlocal products
                products += 1
                report(f"estimating L of every view, product {products}", _VIEWS_AT_ONCE * len(norms), len(views))
                return self.normal_each(images, part)

            like = torch.empty((len(part), *self.image_shape), device=self.device, dtype=self.dtype)
            norms.append(largest_eigenvalue(normal, like, tol=tol, ndim=len(self.image_shape)))
        return torch.cat(norms)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """Upper bounds of each view's largest eigenvalue; the largest bound is within 20 % of the largest of all.

        They need a quarter of the products of `squared_norms` if all views are alike, far fewer if one stands out, and
        hold with a probability of 0.999 (`largest_eigenvalue_bounds`). For a non-negative model they need two products
        a view, and always hold (`nonnegative_bound`). Models with something cheaper override it.
        """
        if self.nonnegative:
            return self._nonnegative_bounds(views)
        parts: list[Tensor] = []
        largest, finished = 0.0, 0
        at_once = max(1, min(_VIEWS_AT_ONCE, _LANCZOS_PIXELS // math.prod(self.image_shape)))
        for part in views.split(at_once):

            def normal(images: Tensor, which: Tensor, part: Tensor = part) -> Tensor:
                return self.normal_each(images, part[which])

            def look(settled: int, finished: int = finished) -> None:
                report("bounding L of every view", finished + settled, len(views))

            look(0)
            like = torch.empty((len(part), *self.image_shape), device=self.device, dtype=self.dtype)
            failure, ndim = 1e-3 * len(part) / len(views), len(self.image_shape)
            bounds, largest = largest_eigenvalue_bounds(
                normal, like, tol=0.2, failure=failure, largest=largest, ndim=ndim, look=look
            )
            parts.append(bounds)
            finished += len(part)
        return torch.cat(parts)

    def largest_norm_bound(self, views: Tensor, beyond: float = 0.0) -> float:
        """The largest of `squared_norm_bounds`, the same number, without those that cannot be the largest.

        Views are looked at in the order of their `rough_norm_bounds`, as long as one could be beyond this number and
        those so far. 0 if none could.
        """
        rough = self.rough_norm_bounds(views)
        if rough is None:
            return float(self.squared_norm_bounds(views).max())
        largest, order = 0.0, rough.argsort(descending=True, stable=True)
        for bound, view in zip((_ROUGH * rough[order]).tolist(), views[order].split(1), strict=True):
            if bound <= max(beyond, largest):
                break
            largest = max(largest, float(self.squared_norm_bounds(view)))
        return largest

    def windows(self, views: Tensor) -> Tensor:
        """Positive data of each view from which the bounds of L of a non-negative model start: (B, *data_shape).

        Bounds hold for any, and are closer the nearer these are to the eigenvector of H_i H_i^T with the largest
        eigenvalue.
        """
        return torch.ones((len(views), *self.data_shape), device=self.device, dtype=self.data_dtype)

    def _nonnegative_bounds(self, views: Tensor) -> Tensor:
        bounds: list[float] = []
        for part in views.split(max(1, _WINDOW_VALUES // math.prod(self.data_shape))):
            for view, start in zip(part.split(1), self.windows(part).split(1), strict=True):
                report("bounding L of every view", len(bounds), len(views))
                bounds.append(self._nonnegative_bound(view, start))
        return torch.tensor(bounds, dtype=torch.float64)

    def _nonnegative_bound(self, view: Tensor, start: Tensor) -> float:
        return float(nonnegative_bound(lambda x: self.forward(x, view), lambda z: self.adjoint(z, view), start))

    def spread(self, weights: Tensor) -> Tensor:
        """Weights of views, (B,), shaped to multiply data, on the model's device."""
        return weights.to(device=self.device, dtype=self.dtype.to_real()).reshape(-1, *(1,) * len(self.data_shape))


def as_model(model: Any) -> Model:
    """The model itself, or, if it is not a `ModelBase`, with the defaults of `ModelBase` for what it lacks."""
    completed: Model = model if isinstance(model, ModelBase) else with_defaults(model, _OwnModel)
    return completed


class _OwnModel(ModelBase):
    """The defaults of a model that was not written on `ModelBase`, whose norms are its own."""

    estimated_views = 1000


class Linearization(ModelBase):
    """The derivative J_i(at) of each view's prediction, v -> J_i(at) v, as a linear model.

    H_i(at + v) = H_i(at) + J_i(at) v + O(||v||^2), so near `at`, least squares with H are those with the linear model
    J(at) and the data y_i - H_i(at).

    Holds where the model can be differentiated; it needs its `derivative` and `linearize`.

    Arguments: model; at, an image (*image_shape).
    """

    def __init__(self, model: Model, at: Tensor) -> None:
        self.model = model = as_model(model)
        self.at = at.to(device=model.device, dtype=model.dtype)
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self.channels = model.channels

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """J_i(at) v: (..., *image_shape) to (..., B, *data_shape)."""
        return self.model.derivative(self.at.expand_as(image), image.to(self.dtype), views).detach()

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(J_i(at)^H z_i): (..., B, *data_shape) to (..., *image_shape)."""
        lead = data.shape[: data.ndim - 1 - len(self.data_shape)]
        return self._pullback(self.at.expand(*lead, *self.image_shape), views)(data)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        return self.model.restrict(data, views)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(J_i^H J_i x), with the pullback prepared once."""
        pullbacks: dict[torch.Size, Callable[[Tensor], Tensor]] = {}

        def apply(image: Tensor) -> Tensor:
            if image.shape not in pullbacks:
                pullbacks[image.shape] = self._pullback(self.at.expand_as(image), views)
            data = self.forward(image, views)
            return pullbacks[image.shape](data if weights is None else self.spread(weights) * data)

        return apply

    def _pullback(self, at: Tensor, views: Views) -> Callable[[Tensor], Tensor]:
        return self.model.linearize(at, views)[1]


class WrappedModel(ModelBase):
    """A model with the shapes, facts and conversions of another one, `whole`; subclasses define products and norms."""

    def __init__(self, model: Model) -> None:
        self.whole = model = as_model(model)
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self.linear, self.nonnegative, self.channels = model.linear, model.nonnegative, model.channels
        self.intensities, self.incoherent, self.recording = model.intensities, model.incoherent, model.recording
        self.counts, self.estimated_views, self.views_at_once = model.counts, model.estimated_views, model.views_at_once

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.whole.stored_shape

    def describe(self) -> str:
        return self.whole.describe()

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        return self.whole.convert(data, views)

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor | None:
        """That of the wrapped model, which is a bound for a part of its data."""
        return self.whole.overlap(views, weights)

    def start_image(self) -> Tensor | None:
        return self.whole.start_image()
