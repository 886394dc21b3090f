"""deepinv's priors and denoisers as denoisers of ours, for images in the layout of a model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from plugstream.base.errors import InputError
from plugstream.bridges.physics import PhysicsModel, is_deepinv
from plugstream.denoisers import TV, Channels, Denoiser, Identity, RealImaginary
from plugstream.denoisers.base import Sigma
from plugstream.denoisers.wrap import as_denoiser

# Of TV where it is a term of a function that is minimised: with ten times this, values settle 3e-5 above the least.
_TV_TOL = 1e-4


class ChannelDenoiser(Denoiser):
    """A denoiser of deepinv's, which takes (N, C, *spatial) and sigma, on images as a model of ours has them.

    D(z, sigma) = f(z, sigma) of a module, or prox_{sigma^2 g}(z) of a prior. A complex image becomes two channels, as
    in deepinv's own algorithms. Pure, even if the module remembers its last call: a module without weights is copied.

    Arguments: module, deepinv's; model, of the images; prox, whether it is a prior, whose prox is taken.
    """

    def __init__(self, module: Any, model: PhysicsModel, *, prox: bool = False) -> None:
        self.module, self.model, self.prox = module, model, prox
        self.channels = model.channels
        self.ndim = len(model.image_shape) - model.channels
        self.takes_complex = model.dtype.is_complex
        parameters = getattr(module, "parameters", None)
        self._weights = parameters is not None and any(True for _ in parameters())

    @torch.no_grad()
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        model, ndim = self.model, len(self.model.image_shape)
        theirs = model.stack_for_deepinv(image.reshape(-1, *model.image_shape))
        level = torch.as_tensor(sigma, dtype=theirs.dtype, device=theirs.device)
        level = level.expand(image.shape[: image.ndim - ndim]).reshape(-1)
        module = self.module if self._weights else copy.deepcopy(self.module)
        if self.prox:
            weight = level.square().reshape(-1, *[1] * (theirs.ndim - 1))
            out = module.prox(theirs, gamma=float(weight[0]) if len(weight.unique()) == 1 else weight)
        else:
            out = module(theirs, float(level[0]) if len(level.unique()) == 1 else level)
        if not isinstance(out, Tensor) or out.shape != theirs.shape:
            raise InputError(f"{self.describe()} does not keep the shape {tuple(theirs.shape)} of the images")
        return model.stack_from_deepinv(out).reshape(image.shape), None

    def describe(self) -> str:
        return f"deepinv's {type(self.module).__name__}"


def read_prior(prior: Any, model: PhysicsModel) -> tuple[Denoiser, bool]:
    """A denoiser of a prior or denoiser, deepinv's or ours, and whether it is a prox, so that lambda has a meaning.

    | prior                                   | denoiser                                              |
    | --------------------------------------- | ----------------------------------------------------- |
    | `PnP(denoiser)`                         | that denoiser                                         |
    | `TVPrior`                               | our `TV` on each channel: the same function, exact    |
    | any other with `prox`                   | that prox, prox_{sigma^2 g}                           |
    | a `Denoiser` of deepinv's               | that                                                  |
    | one of ours, a function, a network      | as everywhere in plugstream                           |
    """
    if isinstance(prior, list | tuple) and len(prior) == 1:
        prior = prior[0]
    if prior is None or is_deepinv(prior, "ZeroPrior"):
        return Identity(), True
    if is_deepinv(prior, "PnP"):
        module = prior.denoiser
        ours = getattr(module, "denoiser", None)  # one that `as_module` made a module of
        return (ours if isinstance(ours, Denoiser) else _read_denoiser(module, model)), False
    if is_deepinv(prior, "TVPrior") and type(prior).__name__ == "TVPrior":
        return _plain_tv(model), True
    if is_deepinv(prior, "RED", "ScorePrior"):
        raise InputError(f"{type(prior).__name__} has no prox; use deepinv's PnP(denoiser), or ps.RED for RED")
    if is_deepinv(prior, "Prior"):
        return ChannelDenoiser(prior, model, prox=True), True
    return _read_denoiser(prior, model), False


def _plain_tv(model: PhysicsModel) -> Denoiser:
    """TV as deepinv has it: summed over channels, real and imaginary parts included. Ours sees edges that all have."""
    each = TV(ndim=len(model.image_shape) - model.channels, tol=_TV_TOL)
    if model.layout == "complex":
        return RealImaginary(each)
    return Channels(each) if model.layout == "channels" else each


def _read_denoiser(denoiser: Any, model: PhysicsModel) -> Denoiser:
    """A denoiser of deepinv's, a module written for its images, or anything else that plugstream takes for one."""
    if is_deepinv(denoiser, "Denoiser") or isinstance(denoiser, nn.Module):
        return ChannelDenoiser(denoiser, model)
    return as_denoiser(denoiser)
