"""Training of TNRD: stage by stage, each on what the stages before leave, and then all stages together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plugstream.denoisers.tnrd.influence import BUMPS, PRECISION, SPACING
from plugstream.denoisers.tnrd.model import ReactionDiffusion, dct_filters, diffuse
from plugstream.errors import InputError
from plugstream.training.fit import Training, fit
from plugstream.training.patches import Patches

__all__ = ["initial_weights", "train_tnrd"]

# Adam moves every number by about its rate: the numbers of filters are of size 1, and so are the others in these units.
_RATES = {"coefficients": 1.0, "log_reaction": 1.0, "weights": 0.2}


def initial_weights(sigma: float, filters: int) -> Tensor:
    """Weights whose influence functions shrink what is small against the noise and leave alone what is large.

    phi(x) = a x / (1 + (x / tau)^2) with tau = 3 sigma and a = 0.5 / (filters + 1): filters and mean are a basis
    of norm 1, so that a step then takes off half of the small responses. Fitted by least squares: (filters, 63).
    """
    x = np.linspace(-310, 310, 1241)
    centres = SPACING * (np.arange(BUMPS) - BUMPS // 2)
    bumps = np.exp(-PRECISION / 2 * (x[:, None] - centres) ** 2)
    wanted = 0.5 / (filters + 1) * x / (1 + (x / (3 * sigma)) ** 2)
    fitted = np.linalg.lstsq(bumps, wanted, rcond=1e-6)[0]
    return torch.from_numpy(fitted).float().expand(filters, BUMPS).clone()


class _Stage:
    """The parameters of one stage, as leaves."""

    def __init__(self, sigma: float, size: int, device: str) -> None:
        filters = size * size - 1
        self.coefficients = torch.eye(filters, device=device, requires_grad=True)
        self.log_reaction = torch.full((), -2.0, device=device, requires_grad=True)
        self.weights = initial_weights(sigma, filters).to(device).requires_grad_(True)
        self.basis = torch.from_numpy(dct_filters(size)).float().to(device)

    def named(self, prefix: str) -> dict[str, Tensor]:
        return {f"{prefix}.{name}": getattr(self, name) for name in _RATES}

    @torch.no_grad()
    def copy(self, other: _Stage) -> None:
        for name in _RATES:
            getattr(self, name).copy_(getattr(other, name))

    def __call__(self, u: Tensor, noisy: Tensor) -> Tensor:
        unit = self.coefficients / torch.linalg.vector_norm(self.coefficients, dim=-1, keepdim=True)
        kernels = torch.einsum("ib,bjk->ijk", unit, self.basis)
        return diffuse(u, noisy, kernels, self.log_reaction.exp(), self.weights)


def train_tnrd(
    patches: Patches,
    sigma: float,
    *,
    stages: int = 5,
    size: int = 7,
    stage_steps: int = 500,
    joint_steps: int = 5000,
    batch: int = 16,
    rate: float = 0.005,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[str, int, int, float], None] | None = None,
) -> ReactionDiffusion:
    """Learn the filters, influence functions and reactions of a TNRD model for one noise level.

    The loss is the mean of (u_T - x)^2 / sigma^2 over pixels: 1 for the noisy image itself. Stage t is first trained on
    its own output with the stages before it fixed, starting as a copy of the one before; then all are trained together.
    The authors used L-BFGS on all crops at once; this is Adam on random patches.

    Arguments:
        sigma: the noise on the scale 0 .. 255; patches have values from 0 to 1. stages, size: of the model.
        stage_steps, joint_steps: of each stage alone, and of all together. batch: patches a step.
        checkpoint: a folder with a file for each phase, from which a stopped training goes on to the bit.
        progress: told the phase, the step, the phase's steps and the loss.
    Reference: Chen and Pock, IEEE Trans. Pattern Anal. Mach. Intell. 39(6), 2017.
    """
    if not sigma > 0 or stages < 1 or size < 3 or size % 2 == 0:
        raise InputError(f"TNRD needs sigma > 0, stages >= 1 and an odd size >= 3, not {sigma}, {stages} and {size}")
    if checkpoint is not None:
        checkpoint.mkdir(exist_ok=True)
    about = {"what": "tnrd", "pictures": len(patches.pictures), "patch": patches.size, "seed": patches.seed,
             "sigma": sigma, "stages": stages, "size": size, "stage_steps": stage_steps, "joint_steps": joint_steps,
             "batch": batch, "rate": rate}  # fmt: skip
    parts = [_Stage(sigma, size, device) for _ in range(stages)]

    def phase(name: str, number: int, fixed: list[_Stage], learning: list[_Stage], steps: int) -> None:
        named = {key: leaf for k, part in enumerate(learning) for key, leaf in part.named(str(k)).items()}
        rates = {key: _RATES[key.split(".")[1]] for key in named}

        def gradients(step: int) -> float:
            at = step + number * 1_000_000  # so that no two phases draw the same patches
            clean = 255 * patches.draw(at, batch).to(device)
            noisy = clean + sigma * patches.noise(at, batch)[0].to(device)
            u = noisy
            with torch.no_grad():
                for part in fixed:
                    u = part(u, noisy)
            for part in learning:
                u = part(u, noisy)
            loss = (u - clean).square().mean() / sigma**2
            loss.backward()
            return float(loss.detach())

        def tell(step: int, loss: float) -> None:
            if progress is not None:
                progress(name, step, steps, loss)

        file = None if checkpoint is None else checkpoint / f"{name.replace(' ', '-')}.safetensors"
        training = Training(named, {**about, "phase": name}, rates)
        fit(training, gradients, steps=steps, rate=rate, checkpoint=file, progress=tell)

    for t in range(stages):
        if t > 0:
            parts[t].copy(parts[t - 1])
        phase(f"stage {t + 1}", t, parts[:t], [parts[t]], stage_steps)
    phase("joint", stages, [], parts, joint_steps)
    c, p, w = (torch.stack([getattr(part, name).detach().cpu() for part in parts]) for name in _RATES)
    return ReactionDiffusion(c, p, w, sigma).requires_grad_(False)
