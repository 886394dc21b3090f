"""deepinv's Physics and data as a fidelity of ours."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor, nn

from plugstream.base.errors import InputError
from plugstream.bridges.likelihoods import Likelihood, read_likelihood
from plugstream.bridges.physics import (
    Layout,
    Part,
    PhysicsModel,
    SingleView,
    is_deepinv,
    is_linear,
    list_physics,
    split_views,
)
from plugstream.bridges.stack import warn_of_mismatch
from plugstream.denoisers import adapters
from plugstream.denoisers.base import Denoiser
from plugstream.fidelity.by_loss import DataFidelity, make_fidelity
from plugstream.fidelity.losses import Loss


@overload
def from_deepinv(physics: nn.Module) -> Denoiser: ...
@overload
def from_deepinv(
    physics: Any,
    y: Any,
    *,
    loss: Loss | Likelihood | None = None,
    views: int | None = None,
    image_shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    complex_images: bool | None = None,
) -> DataFidelity: ...
def from_deepinv(
    physics: Any,
    y: Any = None,
    *,
    loss: Loss | Likelihood | None = None,
    views: int | None = None,
    image_shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    complex_images: bool | None = None,
) -> DataFidelity | Denoiser:
    r"""How far an image is from what a deepinv Physics measured: a fidelity for every algorithm of ours.

        d(x) = (1/I) sum_i loss(A_i(x), y_i),

    deepinv's own is I times as much, so that its step there is I times its step here. The model goes through A and
    A_adjoint, or A_vjp if it is not linear; L is found by products with them. What a view is:

    | physics                                   | a view               |
    | ----------------------------------------- | -------------------- |
    | a list, or `StackedPhysics`               | each of them         |
    | `Tomography`, `TomographyWithAstra`, `PET` | an angle            |
    | `MultiCoilMRI`                            | a coil               |
    | `SequentialMRI`                           | a frame              |
    | any other                                 | all of it            |

    Images keep deepinv's axes, (B, C, H, W) or (B, C, D, H, W), B and a single channel being independent images here.
    The two channels of deepinv's MRI are the real and imaginary part of a complex image, (B, H, W), for denoisers of
    complex images; `fidelity.model.to_deepinv(image)` has two channels again.

        fidelity = ps.from_deepinv(physics, physics(x))
        algorithm = ps.ProximalGradient(fidelity, ps.TV(), sigma=0.02, sampler=ps.Epochs(6))
        x_hat = ps.solve(algorithm, iterations=100).image  # (B, C, H, W), as physics.A_adjoint(y)

    With a denoiser of deepinv's in place of a Physics and without data, it is that denoiser as one of ours.

    Arguments:
        physics: a `deepinv.physics.Physics`, a list of them, or anything with `A` and `A_adjoint`.
        y: its data, (B, ...), or a list or TensorList for several.
        loss: how to compare, a loss or a `Likelihood`; by the physics' noise model if not given
            (`plugstream.bridges.likelihoods`).
        views: how many to make: 1 for all together; for tomography a number that divides that of the angles, each view
            then having interleaved ones.
        image_shape: (C, H, W) where the physics does not tell, as some that are not linear. dtype: of images.
        complex_images: whether two channels are a complex image; of deepinv's MRI they are if not given.
    Reference: deepinv, https://deepinv.github.io.
    """
    if y is None:
        if isinstance(physics, nn.Module) and not callable(getattr(physics, "A", None)):
            return adapters.from_deepinv(physics)
        raise InputError("give the data too: from_deepinv(physics, y)")
    likelihood = read_likelihood(physics, loss)
    parts, data = split_views(physics, y, views)
    first = parts[0].physics if isinstance(parts[0], SingleView) else physics
    shape, kind = _image_of(first, y if first is physics else data[0], image_shape, dtype)
    layout = _layout(physics, shape, kind, complex_images)
    if layout == "complex":
        kind = kind.to_complex()
    real = kind.to_real()
    is_complex = any(one.is_complex() for one in data)
    model = PhysicsModel(
        parts,
        shape if layout == "channels" else shape[1:],
        layout=layout,
        dtype=kind,
        data_dtype=real.to_complex() if is_complex else real,
        device=data[0].device,
        scale=likelihood.scale,
        images=_own_images(parts[0], shape, real if layout == "complex" else kind, data[0]),
    )
    rows = data if likelihood.data_scale == 1 else [likelihood.data_scale * one for one in data]
    packed = model.pack([one.unsqueeze(1) for one in rows] if layout == "grey" else rows)
    if model.linear:
        warn_of_mismatch(model, lead=(model.images,) if model.images else ())
    if likelihood.variance is not None and len(data[0]) > 1:
        raise InputError("the weights of this noise are of one image; take several one by one, or give loss=")
    return make_fidelity(model, packed, likelihood.weigh(packed, (model.n_views, *model.data_shape)))


def _image_of(
    physics: Any, y: Any, shape: tuple[int, ...] | None, dtype: torch.dtype | None
) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape (C, *spatial) of an image, and its dtype: those of A_adjoint's, where there is one."""
    real = y.dtype.to_real() if y.is_floating_point() or y.is_complex() else torch.float32
    if is_linear(physics):
        try:
            with torch.no_grad():
                back: Tensor = physics.A_adjoint(y)
        except (RuntimeError, ValueError) as error:  # as torch and deepinv say that shapes do not fit
            reason = str(error).splitlines()[0]
            raise InputError(f"{type(physics).__name__} cannot take data of {tuple(y.shape)}: {reason}") from error
        shape = tuple(back.shape[1:]) if shape is None else tuple(shape)
        kind = dtype or (real.to_complex() if back.is_complex() else real)
    else:
        shape = getattr(physics, "img_size", None) if shape is None else shape
        if shape is None:
            raise InputError(f"{type(physics).__name__} does not tell an image's size; give image_shape=(C, H, W)")
        shape, kind = tuple(int(size) for size in shape), dtype or real
    if len(shape) < 2:
        raise InputError(f"an image has channels and one to three axes more, (C, H, W), not {shape}")
    return shape, kind


def _own_images(part: Part, shape: tuple[int, ...], kind: torch.dtype, y: Tensor) -> int:
    """How many images there are if a Physics has parameters of its own for each; 0 if one may come alone."""
    if len(y) == 1:
        return 0
    with torch.no_grad():
        try:
            data = part.predict(torch.zeros((1, *shape), dtype=kind, device=y.device), [0])[0]
        except (RuntimeError, ValueError):  # as torch and deepinv say that shapes do not fit
            return len(y)
    return len(y) if len(data) == len(y) else 0


def _layout(physics: Any, shape: tuple[int, ...], kind: torch.dtype, complex_images: bool | None) -> Layout:
    """How deepinv's channels are read."""
    if complex_images is None:
        mri = all(is_deepinv(one, "MRIMixin") for one in list_physics(physics))
        complex_images = shape[0] == 2 and not kind.is_complex and mri
    if complex_images:
        if shape[0] != 2 or kind.is_complex:
            raise InputError(f"complex images are two real channels of deepinv's, but there are {shape[0]} of {kind}")
        return "complex"
    return "grey" if shape[0] == 1 else "channels"
