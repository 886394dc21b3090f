"""The operator P = D_sigma(I - gamma grad d) of the theory, the distance to its fixed points, and the bounds on it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.linalg import inner, squared_norm
from plugstream.denoisers.base import Denoiser
from plugstream.fidelity.least_squares import Fidelity
from plugstream.models.views import Views


@torch.no_grad()
def fixed_point_map(
    image: Array,
    fidelity: Fidelity,
    denoiser: Denoiser,
    gamma: float,
    sigma: float,
    warm: Tensor | None = None,
    views: Views = None,
) -> Tensor:
    """The operator whose fixed points the algorithms seek: P(x) = D_sigma(x - gamma grad d(x)).

    Arguments: image (..., *image_shape); warm, which only saves an iterative denoiser work; views, all if not given.
    Reference: Sun, Wohlberg and Kamilov, eq. (12).
    """
    x = as_tensor("the image", image, device=fidelity.device, dtype=fidelity.dtype)
    return denoiser.denoise(x - gamma * fidelity.gradient(x, views), sigma, warm)[0]


def fixed_point_distance(
    image: Array,
    fidelity: Fidelity,
    denoiser: Denoiser,
    gamma: float,
    sigma: float,
    warm: Tensor | None = None,
    views: Views = None,
) -> Tensor:
    """How far an image is from being reconstructed: dist(x) = ||x - P(x)||_2^2, zero exactly at fixed points.

    Arguments: as `fixed_point_map`. Returns one number for each image, (...).
    Reference: Sun, Wohlberg and Kamilov, eq. (24).
    """
    x = as_tensor("the image", image, device=fidelity.device, dtype=fidelity.dtype)
    move = x - fixed_point_map(x, fidelity, denoiser, gamma, sigma, warm, views)
    return squared_norm(move, len(fidelity.image_shape))


def bound(
    theta: float,
    distance: float,
    t: int,
    *,
    gamma: float | None = None,
    lipschitz: float | None = None,
    nu: float = 0.0,
    batch: int | None = None,
) -> float:
    r"""How far from a fixed point the iterates can be on average: the right-hand side of Propositions 2 and 5.

    With all views in every step (nu = 0),

        1/t sum_{k<=t} ||x^{k-1} - P(x^{k-1})||^2 <= 2 (1 + theta)/(1 - theta) ||x^0 - x*||^2 / t,

    and with B independent, uniformly drawn views in a step, in expectation,

        <= 2 (1 + theta)/(1 - theta) [gamma^2 nu^2 / B + 2 gamma nu ||x^0 - x*|| / sqrt(B) + ||x^0 - x*||^2 / t].

    Holds for convex d_i with L-Lipschitz gradients, a theta-averaged denoiser, a fixed point x*, a step up to 1/L and
    no momentum (q_k = 1). A longer step, where L is given, is refused: nothing is known of it.

    Arguments:
        theta: of the denoiser, 0 < theta < 1. distance: ||x^0 - x*||. t: iterations.
        gamma: the step, needed where nu > 0. lipschitz: L. nu: of `gradient_variance`. batch: B.
    Reference: Sun, Wohlberg and Kamilov, Propositions 2 and 5.
    """
    if not 0 < theta < 1:
        raise InputError(f"theta must lie between 0 and 1, not {theta}: the bound is for averaged denoisers")
    if t < 1 or not distance >= 0 or not nu >= 0:
        raise InputError(f"the bound needs t >= 1, a distance >= 0 and nu >= 0, not {t}, {distance} and {nu}")
    if gamma is not None and lipschitz is not None and gamma > (1 + 1e-9) / lipschitz:
        raise InputError(f"the step {gamma:g} is beyond 1/L = {1 / lipschitz:g}, where the bound does not hold")
    noise = 0.0
    if nu > 0:
        if gamma is None or batch is None or gamma <= 0 or batch < 1:
            raise InputError("with nu > 0 the bound needs a step gamma > 0 and a batch >= 1")
        noise = gamma**2 * nu**2 / batch + 2 * gamma * nu * distance / math.sqrt(batch)
    return 2 * (1 + theta) / (1 - theta) * (noise + distance**2 / t)


def corollary(
    case: Literal["a", "b", "c"], theta: float, distance: float, t: int, *, lipschitz: float, nu: float
) -> tuple[float, int, float]:
    r"""The step, the batch and the rate with which PnP-SGD reaches fixed points, in the corollary's three cases.

    (a) gamma = 1/(L sqrt(t)), B = 1: A / sqrt(t).  (b) gamma = 1/L, B = t: A / sqrt(t).
    (c) gamma = 1/(L sqrt(t)), B = t: A / t.    A = 2 (1 + theta)/(1 - theta) (||x^0 - x*|| + nu/L)^2.

    Holds as `bound` does. Returns gamma, B and the bound on the average of ||x - P(x)||^2 over t iterations.
    Reference: Sun, Wohlberg and Kamilov, Corollary 1.
    """
    if case not in ("a", "b", "c"):
        raise InputError(f"the corollary has the cases a, b and c, not {case!r}")
    bound(theta, distance, t, nu=0.0)  # checks the arguments that both take
    if not lipschitz > 0 or not nu >= 0:
        raise InputError(f"the corollary needs L > 0 and nu >= 0, not {lipschitz} and {nu}")
    constant = 2 * (1 + theta) / (1 - theta) * (distance + nu / lipschitz) ** 2
    gamma = 1 / lipschitz if case == "b" else 1 / (lipschitz * math.sqrt(t))
    return gamma, 1 if case == "a" else t, constant / (t if case == "c" else math.sqrt(t))


@torch.no_grad()
def gradient_variance(image: Array, fidelity: Fidelity, views: Views = None) -> Tensor:
    r"""How much the gradient of a single view differs from that of all: nu^2 of Assumption 2 at an image.

    nu^2(x) = 1/I sum_i ||grad d_i(x) - grad d(x)||^2 over the I available views, so that
    E||grad d - mean of B||^2 = nu^2 / B for B independent, uniform views. The nu of the theory is the largest over all
    images of a run.

    With `views`, distinct ones drawn at random, it is estimated without bias: the sum of squares about their own mean
    over one less than their number, times (I - 1)/I.

    Arguments: image (..., *image_shape); views, at least two, or all if not given. Returns a number for each image,
    (...).
    Reference: Sun, Wohlberg and Kamilov, Assumption 2(d).
    """
    total = len(fidelity.available)
    chosen = fidelity.available if views is None else torch.as_tensor(views, dtype=torch.int64)
    if views is not None and len(views) < 2:
        raise InputError("the variance of gradients needs at least two views")
    image = as_tensor("the image", image, device=fidelity.device, dtype=fidelity.dtype)
    ndim, double = len(fidelity.image_shape), torch.complex128 if image.is_complex() else torch.float64
    mean = torch.zeros(fidelity.image_shape, dtype=double, device=image.device)
    squares = torch.zeros((), dtype=torch.float64, device=image.device)
    for k, view in enumerate(chosen.split(1)):  # Welford's, one view at a time: no gradients are kept
        gradient = fidelity.gradient(image, view).to(double)
        step = gradient - mean
        mean = mean + step / (k + 1)
        squares = squares + inner(step, gradient - mean, ndim)
    return squares / total if views is None else squares / (len(chosen) - 1) * (total - 1) / total
