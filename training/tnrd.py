"""Training of TNRD: stage by stage, each on the output of the earlier ones, and then all stages together."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.tnrd.model import ReactionDiffusion, dct_filters, diffuse
from plugstream.denoisers.tnrd.tables import BUMPS, PRECISION, SPACING
from plugstream.studies.training.fit import Training, fit
from plugstream.studies.training.graphed import GraphedStep
from plugstream.studies.training.patches import Patches
from training import tnrd_triton

# Adam moves every number by about its rate: the numbers of filters are of size 1, and so are the others in these units.
_RATES = {"coefficients": 1.0, "log_reaction": 1.0, "weights": 0.2}
_NOISE = 15.0  # that a model meets inside: the bumps are then two thirds of the noise wide and reach to 20 times it


def initial_weights(sigma: float, filters: int) -> Tensor:
    """Weights whose influence functions shrink values that are small against the noise and keep large ones.

    phi(x) = a x / (1 + (x / tau)^2) with tau = 3 sigma and a = 0.5 / (filters + 1): filters and mean are a basis
    of norm 1, so that a step then takes off half of the small responses. Fitted by least squares: (filters, 63).
    """
    x = np.linspace(-310, 310, 1241)
    centres = SPACING * (np.arange(BUMPS) - BUMPS // 2)
    bumps = np.exp(-PRECISION / 2 * (x[:, None] - centres) ** 2)
    target = 0.5 / (filters + 1) * x / (1 + (x / (3 * sigma)) ** 2)
    fitted = np.linalg.lstsq(bumps, target, rcond=1e-6)[0]
    return torch.from_numpy(fitted).float().expand(filters, BUMPS).clone()


class _Stages:
    """The parameters of some stages, as leaves; calling it applies these stages."""

    def __init__(self, coefficients: Tensor, log_reaction: Tensor, weights: Tensor) -> None:
        self.coefficients, self.log_reaction, self.weights = (
            t.detach().clone().requires_grad_(True) for t in (coefficients, log_reaction, weights)
        )
        size = round((coefficients.shape[-1] + 1) ** 0.5)
        self.basis = torch.from_numpy(dct_filters(size)).to(coefficients)

    @classmethod
    def initial(cls, size: int, device: str) -> _Stages:
        """One stage: the DCT's filters, and functions that shrink."""
        filters = size * size - 1
        eye, weights = torch.eye(filters)[None], initial_weights(_NOISE, filters)[None]
        return cls(eye.to(device), torch.full((1,), -2.0, device=device), weights.to(device))

    @classmethod
    def joined(cls, parts: list[_Stages]) -> _Stages:
        """The stages of all, one after the other, as leaves of their own."""
        return cls(*(torch.cat([part.parameters()[name] for part in parts]) for name in _RATES))

    def parameters(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _RATES}

    def __call__(self, u: Tensor, noisy: Tensor) -> Tensor:
        unit = self.coefficients / torch.linalg.vector_norm(self.coefficients, dim=-1, keepdim=True)
        kernels = torch.einsum("tib,bjk->tijk", unit, self.basis)
        fused = tnrd_triton.serves(u) and kernels.shape[-1] == 7 and min(u.shape[1:]) >= 7
        step = tnrd_triton.diffuse if fused else diffuse
        for k, p, w in zip(kernels, self.log_reaction.exp(), self.weights, strict=True):
            u = step(u, noisy, k, p, w)
        return u


class _Step(GraphedStep):
    """The loss of some patches, with its gradients left in the learning stages.

    Arguments: fixed: earlier stages, not trained. learning: the trained ones. sigma: of the noise.
    """

    def __init__(self, fixed: _Stages | None, learning: _Stages, sigma: float) -> None:
        self.fixed, self.learning, self.sigma = fixed, learning, sigma
        super().__init__(self._compute, list(learning.parameters().values()))

    def _compute(self, clean: Tensor, noise: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        u = noisy = clean + self.sigma * noise
        if self.fixed is not None:
            with torch.no_grad():
                u = self.fixed(u, noisy)
        loss = (self.learning(u, noisy) - clean).square().mean() / self.sigma**2
        return loss.detach(), torch.autograd.grad(loss, self.leaves)


def train_tnrd(
    patches: Patches,
    sigma: float,
    *,
    stages: int = 5,
    size: int = 7,
    stage_steps: int = 500,
    joint_steps: int = 5000,
    batch: int = 16,
    rate: float = 0.02,
    start: ReactionDiffusion | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[str, int, int, float], Any] | None = None,
) -> ReactionDiffusion:
    """Learn the filters, influence functions and reactions of a TNRD model for one noise level.

    The loss is the mean of (u_T - x)^2 / sigma^2 over pixels: 1 for the noisy image itself. Stage t is first trained on
    its own, starting as a copy of the one before, with the earlier stages fixed; then all are trained together. Images
    are scaled so that the noise inside is 15 whatever sigma is (`scale` of the model), so a model for another noise
    level is a start for training all stages together. The authors used L-BFGS on all crops at once, unscaled; this is
    Adam on random patches.

    Arguments:
        sigma: the noise on the scale 0 .. 255; patches have values from 0 to 1. stages, size: of the model.
        stage_steps, joint_steps: of each stage alone, and of all together. batch: patches a step.
        start: a model to start from; then stages, size and stage_steps do not matter.
        device: the patches' own is best.
        checkpoint: a folder with a file for each phase, from which a stopped training goes on to the bit.
        progress: called with the phase, the step, the phase's steps and the loss; if it returns true, the phase ends.
    Reference: Chen and Pock, IEEE Trans. Pattern Anal. Mach. Intell. 39(6), 2017.
    """
    if not sigma > 0 or stages < 1 or size < 3 or size % 2 == 0:
        raise InputError(f"TNRD needs sigma > 0, stages >= 1 and an odd size >= 3, not {sigma}, {stages} and {size}")
    if patches.size < size - 1:
        raise InputError(f"filters of {size} x {size} need patches of at least {size - 1}, not {patches.size}")
    if checkpoint is not None:
        checkpoint.mkdir(exist_ok=True)
    # A model's noise inside is its own; the loss has the same value in any units.
    scale = _NOISE / sigma if start is None else start.sigma * start.scale / sigma
    about = {"what": "tnrd", "pictures": len(patches.pictures), "patch": patches.size, "seed": patches.seed,
             "sigma": sigma, "stages": stages, "size": size, "stage_steps": stage_steps, "joint_steps": joint_steps,
             "batch": batch, "rate": rate, "start": None if start is None else _digest(start)}  # fmt: skip

    def phase(name: str, number: int, fixed: _Stages | None, learning: _Stages, steps: int) -> None:
        compute = _Step(fixed, learning, scale * sigma)

        def gradients(step: int) -> Tensor:
            unique = step + number * 1_000_000  # so that no two phases draw the same patches
            clean, noise = patches.draw(unique, batch), patches.noise(unique, batch)[0]
            return compute(255 * scale * clean.to(device), noise.to(device))

        def tell(step: int, loss: float) -> Any:
            return None if progress is None else progress(name, step, steps, loss)

        file = None if checkpoint is None else checkpoint / f"{name.replace(' ', '-')}.safetensors"
        training = Training(learning.parameters(), {**about, "phase": name}, _RATES)
        fit(training, gradients, steps=steps, rate=rate, checkpoint=file, progress=tell)

    if start is None:
        parts: list[_Stages] = []
        for t in range(stages):
            new = _Stages.joined(parts[-1:]) if parts else _Stages.initial(size, device)
            phase(f"stage {t + 1}", t, _Stages.joined(parts) if parts else None, new, stage_steps)
            parts.append(new)
        every = _Stages.joined(parts)
    else:
        every = _Stages(*(getattr(start, name).to(device, torch.float32) for name in _RATES))
    phase("joint", stages, None, every, joint_steps)
    c, p, w = (leaf.detach().cpu() for leaf in every.parameters().values())
    return ReactionDiffusion(c, p, w, sigma, scale).requires_grad_(False)


def _digest(model: ReactionDiffusion) -> int:
    """A hash of the start, so that a checkpoint with another start is refused."""
    return zlib.crc32(b"".join(getattr(model, name).detach().cpu().contiguous().numpy().tobytes() for name in _RATES))
