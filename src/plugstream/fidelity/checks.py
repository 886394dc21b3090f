"""Checks of your own models and fidelities: the adjoint of the forward map, and the gradient of the value."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import inner, norm
from plugstream.fidelity.least_squares import Fidelity, data_scale
from plugstream.models.base import Model
from plugstream.models.views import Views, as_views, spread_views

# How many views are checked by default.
_VIEWS = 8
# Relative errors up to these are rounding.
_ADJOINT_TOL = {torch.float32: 1e-4, torch.float64: 1e-8}
_GRADIENT_TOL = {torch.float32: 1e-2, torch.float64: 1e-5}
# Differences are taken over these parts of the image's length; the best counts, since long ones see the gradient
# change, and short ones rounding.
_PARTS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@torch.no_grad()
def check_adjoint(
    model: Model, views: Views = None, *, image: Tensor | None = None, tol: float | None = None, seed: int = 0
) -> float:
    """The relative error of <H x, z> = <x, H^H z> at random x and z; above `tol` it is refused (`InputError`).

    The inner product is <a, b> = Re(sum conj(a) b) of both images and data, so that the adjoint is H^H z for complex
    images and Re(H^H z) for real ones. For a nonlinear model H is its derivative at `image`: `derivative` is compared
    with the pullback of `linearize`. z is once random, and once the prediction of another image; the larger error
    counts, relative to ||H x|| ||z||.

    Arguments: model; views to check, up to 8 evenly spaced ones if not given; image (*image_shape), at which a
    nonlinear model is differentiated, zero if not given; tol, 1e-4 in single and 1e-8 in double precision if not given;
    seed of the random numbers.
    """
    available = torch.arange(model.n_views)
    chosen = spread_views(available, _VIEWS) if views is None else as_views(views, model.n_views)
    index = available if chosen is None else chosen
    limit = _ADJOINT_TOL[model.dtype.to_real()] if tol is None else tol
    draw = torch.Generator().manual_seed(seed)
    x, other = (_random(model.image_shape, model.dtype, model.device, draw) for _ in range(2))
    point = None if model.linear else torch.zeros_like(x) if image is None else image.to(x)
    names = ("forward", "adjoint") if point is None else ("derivative", "the pullback of linearize")

    def forward(direction: Tensor) -> Tensor:
        return model.forward(direction, index) if point is None else model.derivative(point, direction, index)

    def adjoint(data: Tensor) -> Tensor:
        return model.adjoint(data, index) if point is None else model.linearize(point, index)[1](data)

    prediction = forward(x)
    shape = (len(index), *model.data_shape)
    if tuple(prediction.shape) != shape:
        raise InputError(f"{names[0]} of {len(index)} views gives shape {tuple(prediction.shape)}, not {shape}")
    noise = model.restrict(_random(shape, model.data_dtype, model.device, draw), index)
    worst = 0.0
    for z in (noise, forward(x + other)):
        pulled = adjoint(z)
        if tuple(pulled.shape) != tuple(model.image_shape):
            raise InputError(
                f"{names[1]} gives an image of shape {tuple(pulled.shape)}, not {tuple(model.image_shape)}"
            )
        size = float(norm(prediction, len(shape)) * norm(z, len(shape)))
        if size == 0:
            continue
        in_data = float(inner(prediction, z, len(shape)))
        in_image = float(inner(x, pulled, len(model.image_shape)))
        error = abs(in_data - in_image) / size
        if not error <= limit:  # a NaN is refused too
            raise InputError(
                f"{names[1]} of {type(model).__name__} does not match {names[0]}: <H x, z> = {in_data:.6g}, but "
                f"<x, H^H z> = {in_image:.6g}, a relative error of {error:.2g} where {limit:.0e} is allowed; see "
                "whether the adjoint conjugates, sums over all views, and takes the real part if the image is real"
            )
        worst = max(worst, error)
    if not bool(prediction.any()):
        raise InputError(f"{names[0]} of {type(model).__name__} is zero here, so nothing is checked; give `image`")
    return worst


@torch.no_grad()
def check_gradient(
    fidelity: Fidelity, image: Tensor | None = None, views: Views = None, *, tol: float | None = None, seed: int = 0
) -> float:
    """The relative error of `gradient` against differences of `value`; above `tol` it is refused (`InputError`).

    (d(x + h v) - d(x - h v)) / 2h should be <grad d(x), v>. v is the gradient plus a random vector of its length; the
    error is relative to ||grad d(x)|| ||v||, and the smallest over several h counts.

    Arguments: fidelity; image (*image_shape), a random one of the data's scale if not given; views, all available ones
    if not given; tol, 1e-2 in single and 1e-5 in double precision if not given; seed of the random numbers.
    """
    shape, ndim = fidelity.image_shape, len(fidelity.image_shape)
    limit = _GRADIENT_TOL[fidelity.dtype.to_real()] if tol is None else tol
    draw = torch.Generator().manual_seed(seed)
    x = _random(shape, fidelity.dtype, fidelity.device, draw)
    if image is not None:
        x = image.to(x)
    elif (scale := data_scale(fidelity, x)) > 0:
        x = x * (scale / float(norm(x, ndim)))
    gradient = fidelity.gradient(x, views)
    if tuple(gradient.shape) != tuple(x.shape):
        raise InputError(f"the gradient has shape {tuple(gradient.shape)}, not that of the image, {tuple(x.shape)}")
    length = float(norm(gradient, ndim))
    if length == 0:
        raise InputError("the gradient is zero at this image, so nothing is checked; give another `image`")
    noise = _random(shape, fidelity.dtype, fidelity.device, draw)
    v = gradient / length + noise / norm(noise, ndim)
    slope, size = float(inner(gradient, v, ndim)), length * float(norm(v, ndim))
    best, difference = float("inf"), float("nan")
    for part in _PARTS:
        h = part * (float(norm(x, ndim)) or 1.0)
        rise = (fidelity.value(x + h * v, views).double() - fidelity.value(x - h * v, views).double()) / (2 * h)
        if (error := abs(float(rise) - slope) / size) < best:
            best, difference = error, float(rise)
    if not best <= limit:
        raise InputError(
            f"the gradient of {type(fidelity).__name__} does not match its value: along a direction d changes by "
            f"{difference:.6g}, but the gradient says {slope:.6g}, a relative error of {best:.2g} where {limit:.0e} is "
            "allowed; check whether it is the mean over views, and check the model by check_adjoint"
        )
    return best


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, draw: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=dtype).to(device)
