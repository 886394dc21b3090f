"""Training of `ConvexRidge`: the mean squared error of the prox itself, differentiated implicitly."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.base.circulant import preconditioned_steps
from plugstream.denoisers.ridge_prior import RidgePotential, Ridges, prox
from plugstream.studies.training.fit import Training, fit
from plugstream.studies.training.patches import Patches
from training import ridge_triton


def ridge_gradients(
    ridges: Ridges, clean: Tensor, noise: Tensor, sigma: Tensor, *, iterations: int = 30, solves: int = 14
) -> Tensor:
    r"""The loss of the prox on noisy patches, with its gradient left in the parameters of `ridges`.

    loss = mean of ||D(x + sigma n, sigma) - x||^2 / (pixels sigma^2), so that all noise levels count alike. With x* the
    prox, x* - z + grad R(x*) = 0, hence d loss = -<v, d(grad R)(x*)> for the v that solves (I + Hess R(x*)) v =
    grad loss: conjugate gradients, and one backward pass through <v, grad R> at fixed images. No iteration of the
    solver is differentiated or kept, and none waits for the device: the limit on the Hessian makes a fixed number
    enough.

    Holds where the profiles' slopes are continuous at x*, hence almost everywhere, and to the accuracy of the prox: the
    error left after k iterations falls about as (1 - 2 / sqrt(1 + limit))^k.

    Arguments: clean, noise (N, h, w); sigma (N,). iterations: of the prox, an even number. solves: conjugate gradients.
    """
    level = sigma[:, None, None, None]
    x = clean[:, None]
    z = x + level * noise[:, None]
    learned = ridges.at(sigma)
    with torch.no_grad():
        fixed = learned.detach()
        fast = ridge_triton.serves(ridges.size, len(ridges.filters), z)
        denoised = (
            ridge_triton.prox(fixed, z, iterations) if fast else prox(fixed, z, 0.0, iterations, patience=iterations)[0]
        )
        error = (denoised - x) / level
        loss = error.square().mean()
        hessian, slope = _hessian_at(fixed, denoised, fast), 2 * error / level / error.numel()
        # (I + Hess R)^{-1} slope; without a preconditioner.
        v = preconditioned_steps(lambda p: p + hessian(p), lambda r: r, torch.zeros_like(slope), slope, solves, 3)
    torch.autograd.backward(learned.gradient_along(denoised, v), torch.full_like(loss, -1))
    return loss


def _hessian_at(potential: RidgePotential, image: Tensor, fast: bool) -> Callable[[Tensor], Tensor]:
    if fast:
        tables = ridge_triton.Tables.of(potential)
        return lambda v: ridge_triton.hessian(potential, image, v, tables)
    curvature = potential.curvature(image)
    return lambda v: potential.hessian(curvature, v)


def train_ridge(
    patches: Patches,
    *,
    steps: int = 2000,
    batch: int = 32,
    rate: float = 0.02,
    low: float = 1 / 255,
    high: float = 55 / 255,
    start: Ridges | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[int, float], Any] | None = None,
) -> Ridges:
    """Learn the filters and profiles of a convex prior for noise levels between `low` and `high`, evenly in their log.

    Arguments: patches; batch: patches a step; rate: of Adam; start: whose shape and limit it keeps, `Ridges.initial()`
    if not given, and unchanged; device; checkpoint, progress: as in `fit`.
    Reference: Goujon et al., IEEE Trans. Comput. Imaging 9, 2023 (there with unrolled or few steps of the solver).
    """
    initial = Ridges.initial() if start is None else start
    ridges = Ridges(**initial.state_dict()).to(device)
    about = {
        "what": "ridge",
        "pictures": len(patches.pictures),
        "size": patches.size,
        "seed": patches.seed,
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "sigma": [low, high],
        "limit": float(ridges.limit),
    }
    # So many that the error they leave is far below what the prox itself leaves of the noise.
    root = math.sqrt(1 + float(ridges.limit))
    iterations, solves = 2 * math.ceil(1.65 * root), math.ceil(1.55 * root)
    # The numbers of a filter are about 0.2, those of amounts and widths are logarithms.
    training = Training(dict(ridges.named_parameters()), about, {"filters": 0.1})

    def gradients(step: int) -> Tensor:
        clean = patches.draw(step, batch).to(device)
        noise, place = (t.to(device) for t in patches.noise(step, batch))
        return ridge_gradients(ridges, clean, noise, low * (high / low) ** place, iterations=iterations, solves=solves)

    fit(training, gradients, steps=steps, rate=rate, checkpoint=checkpoint, progress=progress)
    return ridges.requires_grad_(False)
