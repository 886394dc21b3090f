"""Training of `ConvexRidge`: the mean squared error of the prox itself, differentiated implicitly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from plugstream.denoisers.ridge import RidgePotential, Ridges, prox
from plugstream.training.fit import Training, fit
from plugstream.training.patches import Patches

__all__ = ["ridge_gradients", "train_ridge"]


def ridge_gradients(
    ridges: Ridges, clean: Tensor, noise: Tensor, sigma: Tensor, *, tol: float = 1e-4, most: int = 100
) -> float:
    r"""The loss of the prox on noisy patches, with its gradient left in the parameters of `ridges`.

    loss = mean of ||D(x + sigma n, sigma) - x||^2 / (pixels sigma^2), so that all noise levels count alike. With x* the
    prox, x* - z + grad R(x*) = 0, hence d loss = -<v, d(grad R)(x*)> for the v that solves (I + Hess R(x*)) v =
    grad loss: conjugate gradients, and one backward pass through grad R at a fixed image. No iteration of the solver is
    differentiated or kept.

    Holds where the profiles' slopes are continuous at x*, hence almost everywhere.

    Arguments: clean, noise (N, h, w); sigma (N,). tol: of the prox. most: conjugate gradients.
    """
    level = sigma[:, None, None, None]
    x = clean[:, None]
    z = x + level * noise[:, None]
    with torch.no_grad():
        found, _ = prox(ridges.at(sigma), z, tol, 400)
        error = (found - x) / level
        loss = error.square().mean()
        v = _solve(ridges.at(sigma), found, 2 * error / level / error.numel(), most)
    torch.autograd.backward(ridges.at(sigma).gradient(found), -v)
    return float(loss)


def _solve(potential: RidgePotential, at: Tensor, b: Tensor, most: int) -> Tensor:
    """(I + Hess R(at))^{-1} b by conjugate gradients, each image on its own, to a relative residual of 1e-3."""
    curvature = potential.curvature(at)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((1, 2, 3), keepdim=True)

    v, r = torch.zeros_like(b), b
    p, energy = r, dot(r, r)
    goal = 1e-6 * energy
    for k in range(most):
        if k % 5 == 0 and bool((energy <= goal).all()):
            break
        q = p + potential.hessian(curvature, p)
        step = energy / dot(p, q).clamp_min(torch.finfo(b.dtype).tiny)
        v, r = v + step * p, r - step * q
        before, energy = energy, dot(r, r)
        p = r + energy / before.clamp_min(torch.finfo(b.dtype).tiny) * p
    return v


def train_ridge(
    patches: Patches,
    *,
    steps: int = 6000,
    batch: int = 32,
    rate: float = 0.02,
    low: float = 1 / 255,
    high: float = 55 / 255,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Ridges:
    """Learn the filters and profiles of a convex prior for noise levels between `low` and `high`, evenly in their log.

    Arguments: patches; batch: patches a step; rate: of Adam; device; checkpoint, progress: as in `fit`.
    Reference: Goujon et al., IEEE Trans. Comput. Imaging 9, 2023 (there with unrolled or few steps of the solver).
    """
    ridges = Ridges.initial().to(device)
    about = {
        "what": "ridge",
        "pictures": len(patches.pictures),
        "size": patches.size,
        "seed": patches.seed,
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "sigma": [low, high],
    }
    # The numbers of a filter are about 0.02, and those that softplus makes amounts of go from -8 to 2.
    training = Training({"filters": ridges.filters, "amounts": ridges.amounts}, about, {"filters": 0.02})

    def gradients(step: int) -> float:
        clean = patches.draw(step, batch).to(device)
        noise, place = (t.to(device) for t in patches.noise(step, batch))
        return ridge_gradients(ridges, clean, noise, low * (high / low) ** place)

    fit(training, gradients, steps=steps, rate=rate, checkpoint=checkpoint, progress=progress)
    return ridges.requires_grad_(False)
