"""How close an image is to the truth, as papers report it: PSNR and SSIM."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.linalg import image_axes, squared_norm
from plugstream.images.global_phase import Phase, align_phase, check_phase

WINDOW = 11
_SIGMA, _K1, _K2 = 1.5, 0.01, 0.03


def value_range(truth: Tensor, ndim: int = 2) -> Tensor:
    """The range of each true image, (..., *image_shape) to (...): largest less least, of a complex one its largest."""
    axes = image_axes(ndim)
    return truth.abs().amax(axes) if truth.is_complex() else truth.amax(axes) - truth.amin(axes)


def psnr(image: Array, truth: Array, peak: float | None = None, ndim: int = 2, *, phase: Phase = "free") -> Tensor:
    """The peak signal-to-noise ratio in dB: 10 log10(peak^2 / mean |x_hat - x|^2), of each image.

    Arguments: image and truth (..., *image_shape), whose last `ndim` axes are an image's; peak, the range that values
    can have, 1 for pictures from 0 to 1; that of the truth, its largest less its least value, if not given; phase, of
    complex images, as for `plugstream.snr`. Returns (...).
    """
    check_phase(phase)
    x, target = _matching(image, truth, ndim)
    if phase == "free":
        x = align_phase(x, target, ndim)
    top = _peak_value(peak, target, ndim).to(target.real)
    pixels = target[(0,) * (target.ndim - ndim)].numel()
    return 10 * torch.log10(top.square() / (squared_norm(x - target, ndim) / pixels))


def ssim(image: Array, truth: Array, peak: float | None = None) -> Tensor:
    r"""The structural similarity of real images, 1 where they are equal: the mean over all windows of

        (2 m_x m_y + c_1) (2 s_xy + c_2) / ((m_x^2 + m_y^2 + c_1) (s_x^2 + s_y^2 + c_2)),

    where m, s^2 and s_xy are means, variances and covariance with the weights of a Gaussian window of 11 x 11 pixels
    and standard deviation 1.5, c_1 = (0.01 peak)^2 and c_2 = (0.03 peak)^2. Only windows that lie in the image count.
    It is computed in double precision.

    Arguments: image and truth (..., H, W), at least 11 x 11; peak as for `psnr`. Returns (...).
    Reference: Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Process. 13(4), 2004.
    """
    x, y = _matching(image, truth, 2)
    if x.is_complex() or y.is_complex():
        raise InputError("SSIM is defined for real images; compare magnitudes or real parts")
    if min(x.shape[-2:]) < WINDOW:
        raise InputError(f"SSIM needs images of at least {WINDOW} x {WINDOW} pixels, not {tuple(x.shape[-2:])}")
    top = _peak_value(peak, y).double()[..., None, None]
    x, y = torch.broadcast_tensors(x.double(), y.double())
    c1, c2 = (_K1 * top).square(), (_K2 * top).square()
    mx, my = _blur(x), _blur(y)
    vx, vy, vxy = _blur(x * x) - mx * mx, _blur(y * y) - my * my, _blur(x * y) - mx * my
    map_ = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return map_.mean((-2, -1))


def _blur(image: Tensor) -> Tensor:
    """Weighted means over the windows that lie in the image, (..., H, W) to (..., H - 10, W - 10)."""
    place = torch.arange(WINDOW, dtype=image.dtype, device=image.device) - WINDOW // 2
    weights = torch.exp(-place.square() / (2 * _SIGMA**2))
    weights = weights / weights.sum()
    stack = image.reshape(-1, 1, *image.shape[-2:])
    stack = torch.nn.functional.conv2d(stack, weights.reshape(1, 1, -1, 1))
    stack = torch.nn.functional.conv2d(stack, weights.reshape(1, 1, 1, -1))
    return stack.reshape(*image.shape[:-2], *stack.shape[-2:])


def _matching(image: Array, truth: Array, ndim: int) -> tuple[Tensor, Tensor]:
    x = as_tensor("the image", image)
    target = as_tensor("the truth", truth).to(x.device)
    if min(x.ndim, target.ndim) < ndim or x.shape[x.ndim - ndim :] != target.shape[target.ndim - ndim :]:
        raise InputError(f"the image is {tuple(x.shape)}, but the truth {tuple(target.shape)}; they must be alike")
    return x, target


def _peak_value(peak: float | None, truth: Tensor, ndim: int = 2) -> Tensor:
    if peak is None:
        return value_range(truth, ndim)
    if not isinstance(peak, int | float | np.number) or not peak > 0:
        raise InputError(f"the peak must be a number > 0, not {peak!r}")
    return torch.as_tensor(float(peak), device=truth.device)
