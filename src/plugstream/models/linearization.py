"""A model that is not linear, near an image: its derivative there, which is a linear model."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.models.base import Linearization, Model

__all__ = ["linearized_model"]


def linearized_model(model: Model, at: Tensor | None = None) -> Model:
    """`model.linearized(at)`, also of a model that was written before there was such a method."""
    if hasattr(model, "linearized"):
        return model.linearized(at)
    if model.linear:
        return model
    zero = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
    return Linearization(model, zero if at is None else at)
