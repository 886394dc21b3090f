"""Functions and networks as denoisers, and denoisers with a projection before or a damping after."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from plugstream.base.arrays import call_function
from plugstream.base.errors import InputError
from plugstream.denoisers.base import (
    Denoiser,
    Sigma,
    Wrapper,
    check_bounds,
    compose_averaged,
    levels,
    refuse_complex_box,
    require_real,
)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FromFunction(Denoiser):
    """Any function f(z, sigma), or f(z) if it knows its own strength, as a denoiser.

    Arguments: function, of tensors or of NumPy arrays; the others as the attributes of `Denoiser`. By default it is for
    real images (..., H, W) and not known to be averaged.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        *,
        averaged: float | None = None,
        min_size: int = 1,
        ndim: int = 2,
        channels: bool = False,
        takes_complex: bool = False,
    ) -> None:
        self.function, self.averaged, self.min_size = function, averaged, min_size
        self.ndim, self.channels, self.takes_complex = ndim, channels, takes_complex
        self._takes_sigma = not _takes_image_alone(function)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        arguments = (image, sigma) if self._takes_sigma else (image,)
        out = call_function(self.function, "the denoised image", image, *arguments)
        return _same_shape(out, image, "the denoiser's function"), None

    def describe(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


class FromModule(Denoiser):
    """A network of images (N, C, H, W) or volumes (N, C, D, H, W) as a denoiser of (..., H, W) and such.

    The module is put into evaluation mode, since dropout or batch statistics would make it no map, and called without
    gradients unless the image asks for them. Images of another precision or device go through a copy of the module.

    Arguments:
        module: an nn.Module.
        condition: how it gets sigma: "none" (it was trained for one), "scalar" (second argument, (N,)), or "map" (one
            more channel, the last, filled with sigma).
        residual: True if it predicts the noise instead of the image.
        ndim: 2 for images, 3 for volumes. channels: True if images are (..., C, H, W); else it gets one channel.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        condition: Literal["none", "scalar", "map"] = "none",
        residual: bool = False,
        averaged: float | None = None,
        min_size: int = 1,
        ndim: int = 2,
        channels: bool = False,
    ) -> None:
        if condition not in ("none", "scalar", "map"):
            raise InputError(f"condition must be none, scalar or map, not {condition!r}")
        self.module, self.condition, self.residual = module.eval(), condition, residual
        self.averaged, self.min_size, self.ndim, self.channels = averaged, min_size, ndim, channels
        self._copies: dict[tuple[torch.device, torch.dtype], tuple[object, nn.Module]] = {}

    def describe(self) -> str:
        return type(self.module).__name__

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        require_real(image, "a network")
        shape = image.shape[-self.axes :] if self.channels else (1, *image.shape[-self.ndim :])
        stack = image.reshape(-1, *shape)
        level = levels(sigma, image, self.axes)
        inputs: tuple[Tensor, ...] = (stack,)
        if self.condition == "map":
            level_map = level.reshape(-1, *[1] * (self.ndim + 1)).expand_as(stack[:, :1])
            inputs = (torch.cat([stack, level_map], dim=1),)
        elif self.condition == "scalar":
            inputs = (stack, level)
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and image.requires_grad):
                out = self._call(*inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:  # shapes or arguments that do not fit
            shapes = " and ".join(str(tuple(value.shape)) for value in inputs)
            raise InputError(
                f"the network {type(self.module).__name__} cannot take {shapes} with condition={self.condition!r}: "
                f"{str(error).splitlines()[0]}; it must take images (N, 1, H, W), and sigma as FromModule(network, "
                'condition=...) says: "none", "scalar" or "map"'
            ) from error
        out = _same_shape(out, stack, "the network").reshape(image.shape)
        return image - out if self.residual else out, None

    def _call(self, *inputs: Tensor) -> Tensor:
        """What the module makes of its inputs, for those that know a faster way."""
        out: Tensor = self._module_like(inputs[0])(*inputs)
        return out

    def _module_like(self, image: Tensor) -> nn.Module:
        """The module on the image's device and in its precision, copied again if its parameters have changed."""
        state = [*self.module.parameters(), *self.module.buffers()]
        floats = [value for value in state if value.is_floating_point()]
        if all(value.device == image.device and value.dtype == image.dtype for value in floats):
            return self.module
        stamp = tuple((value.data_ptr(), value._version) for value in state)
        key = (image.device, image.dtype)
        if key not in self._copies or self._copies[key][0] != stamp:
            self._copies[key] = (stamp, copy.deepcopy(self.module).to(device=image.device, dtype=image.dtype))
        return self._copies[key][1]


class Clip(Wrapper):
    """Project onto [low, high], then denoise: D(clip(z), sigma). Complex values have no order and are refused.

    The paper's code clips at zero before BM3D and TNRD, which keeps a non-negative unknown so. If D is a-averaged,
    this is (a + 1/2 - a) / (1 - a/2) = 1 / (2 - a)-averaged. None is no bound.
    """

    ordered = True

    def __init__(
        self, denoiser: Denoiser | Callable[..., Tensor], low: float | None = 0.0, high: float | None = math.inf
    ) -> None:
        super().__init__(as_denoiser(denoiser), low=low, high=high)
        self.low, self.high = check_bounds(low, high)
        self.averaged = compose_averaged(0.5, self.denoiser.averaged)

    def variant(self, ndim: int, *, channels: bool = False, complex: bool = False) -> Denoiser | None:
        if complex:
            refuse_complex_box(self.low, self.high)
        return super().variant(ndim, channels=channels, complex=complex)

    def describe(self) -> str:
        return f"{self.denoiser.describe()} after clipping to [{self.low:g}, {self.high:g}]"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if image.is_complex():
            refuse_complex_box(self.low, self.high)
            return self.denoiser.denoise(image, sigma, warm)
        return self.denoiser.denoise(image.clamp(self.low, self.high), sigma, warm)


class Damping(Wrapper):
    """Make a nonexpansive denoiser averaged: (1 - theta) z + theta D(z, sigma), 0 < theta < 1.

    It has the fixed points of D, but other ones once combined with a gradient step. If D is nonexpansive this is
    theta-averaged, if D is a-averaged it is (theta a)-averaged, and if D is k-strictly pseudo-contractive, with theta <
    1 - k, it is (theta / (1 - k))-averaged. A gradient step of g becomes one of theta g.
    Reference: Sun, Wohlberg and Kamilov, section 3.
    """

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], theta: float, *, nonexpansive: bool = False) -> None:
        if not 0 < theta < 1:
            raise InputError(f"theta must lie between 0 and 1, not {theta}")
        super().__init__(as_denoiser(denoiser), theta=theta, nonexpansive=nonexpansive)
        self.theta = theta
        inner = self.denoiser.averaged
        self.averaged = theta * inner if inner is not None else (theta if nonexpansive else None)
        potential = self.denoiser.potential
        if potential is not None:  # z - theta grad g
            self.potential = lambda image, sigma: theta * potential(image, sigma)

    def describe(self) -> str:
        return f"{self.denoiser.describe()}, damped by {self.theta:g}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out, warm = self.denoiser.denoise(image, sigma, warm)
        return torch.lerp(image, out, self.theta), warm


def as_denoiser(denoiser: Any) -> Denoiser:
    """A denoiser; a network becomes a `FromModule`, any other callable a `FromFunction`.

    A network with one argument is taken to know its noise level, one with two to take sigma second.
    """
    if isinstance(denoiser, Denoiser):
        return denoiser
    if isinstance(denoiser, type):
        raise InputError(f"{denoiser.__name__} is a class; make a denoiser of it first: {denoiser.__name__}(...)")
    if isinstance(denoiser, nn.Module):
        return FromModule(denoiser, condition="scalar" if _takes_sigma(denoiser) else "none")
    if callable(denoiser):
        return FromFunction(denoiser)
    raise InputError(f"a denoiser must be a Denoiser, an nn.Module or a function, not {type(denoiser).__name__}")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of some that are not Python's
        return []


def _takes_sigma(module: nn.Module) -> bool:
    """Whether a network needs a second argument, or has one that is called sigma."""
    second = _parameters(module.forward)[1:2]
    if not second or second[0].kind not in _POSITIONAL:
        return False
    return second[0].default is inspect.Parameter.empty or second[0].name in ("sigma", "noise_level", "level", "std")


def _takes_image_alone(function: Callable[..., Any]) -> bool:
    """Whether a function is known to take one positional argument only."""
    kinds = [parameter.kind for parameter in _parameters(function)]
    return inspect.Parameter.VAR_POSITIONAL not in kinds and sum(kind in _POSITIONAL for kind in kinds) == 1


def _same_shape(out: Tensor, image: Tensor, name: str) -> Tensor:
    if not isinstance(out, Tensor) or out.shape != image.shape:
        result = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"{name} returned {result} for an image of shape {tuple(image.shape)}; it must keep the shape")
    return out
