"""A learned denoiser with a guarantee: the proximal operator of a convex sum of ridge functions."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError, PlugstreamWarning, StorageError
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.denoisers import ridge_cuda, ridge_native
from plugstream.denoisers.base import Denoiser, Sigma, per_image, require_real
from plugstream.denoisers.ridge_prior import Ridges, prox

_WEIGHTS = Path(__file__).parent / "weights"
PROFILES = {"normal": _WEIGHTS / "ridge.safetensors", "fast": _WEIGHTS / "ridge-fast.safetensors"}
_FORMAT = "plugstream-ridge-2"
_TENSORS = ("filters", "amounts", "widths", "levels", "ratios", "limit")


class ConvexRidge(Denoiser):
    r"""A learned prior with a guarantee: the exact prox of a convex function, hence 1/2-averaged.

    D(z, sigma) = argmin_x 1/2 ||x - z||^2 + R_sigma(x), with R_sigma a convex sum of ridge functions of learned filters
    and profiles (see `Ridges`). A prox of a convex function is firmly nonexpansive, so D is 1/2-averaged whatever was
    learned. Every D(., sigma) commutes with adding a constant and with mirroring the image.

    Holds up to the accuracy of the solver: the result is within tol ||z - mean(z)|| of the prox, by the strong
    convexity of the problem. It was trained on values of range 1; give any other range as `scale`.

    Arguments:
        weights: "normal" (also if not given) or "fast", which ship with plugstream, or a file made by `plugstream train
            ridge`; a file that is called fast is `Path("fast")`. "fast" has filters of 7 x 7 instead of 9 x 9 and a
            Hessian of at most 15 instead of 80: a third of the time on the CPU and two fifths on a GPU, and on BSD68
            0.01 dB less at noise 2 of 255, 0.03 at 5, 0.13 at 15, 0.21 at 25 and 0.36 at 50.
        scale: D(z, sigma) = scale D_1(z / scale, sigma / scale).
        tol, max_iterations: when to stop.
    `denoise` takes and returns the last result as its warm start.

    Reference: Goujon et al., IEEE Trans. Comput. Imaging 9, 2023; Moreau, Bull. Soc. Math. France 93, 1965.
    """

    averaged = 0.5
    proximal = True
    halo = 32

    def __init__(
        self,
        weights: str | Path | Ridges | None = None,
        *,
        scale: float = 1.0,
        tol: float = 1e-4,
        max_iterations: int = 500,
    ) -> None:
        if not scale > 0 or not tol > 0 or max_iterations < 1:
            raise InputError(f"scale and tol must be > 0 and max_iterations >= 1, not {scale}, {tol}, {max_iterations}")
        weights = weights or "normal"
        profile = PROFILES.get(weights) if isinstance(weights, str) else None
        self.ridges = weights if isinstance(weights, Ridges) else load_ridge(profile or weights)[0]
        self.scale, self.tol, self.max_iterations = scale, tol, max_iterations
        self._copies: dict[tuple[torch.device, torch.dtype], Ridges] = {}
        self._solvers: dict[torch.device, ridge_cuda.Solver | None] = {}
        self._native: ridge_native.Solver | None = None
        self._patience = self.ridges.patience(tol)
        self.min_size = max(1, self.ridges.size // 2)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # Images of a loop come to a GPU again and again, which waits for all these lines.
        if type(sigma) is float and sigma >= 0 and self.scale == 1 and (warm is None or warm.shape == image.shape):
            fast = self._solver(image)
            if fast is not None and (warm is None or ridge_cuda.takes(warm)):
                out, near = fast(image, sigma, warm)
                if near is None:
                    return out, out
        return self._denoise(image, sigma, warm)

    @torch.no_grad()
    def _denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None) -> tuple[Tensor, Tensor]:
        require_real(image, "ridge")
        if min(image.shape[-2:]) < self.min_size:
            raise InputError(
                f"the image is {image.shape[-2]} x {image.shape[-1]}, but this denoiser needs at least "
                f"{self.min_size} pixels a side"
            )
        if warm is not None and warm.shape != image.shape:
            raise InputError(f"the warm start has shape {tuple(warm.shape)}, but must be {tuple(image.shape)}")
        z = image.reshape(-1, 1, *image.shape[-2:])
        z = z if self.scale == 1 else z / self.scale
        level = per_image(sigma, image)
        if isinstance(level, Tensor):
            level = level.expand(*image.shape[:-2], 1, 1).reshape(-1) / self.scale
        elif self.scale != 1:  # rounded as a tensor of levels would be
            level = float(torch.tensor(level, dtype=image.dtype) / self.scale)
        start = None if warm is None else warm.to(z).reshape(z.shape)
        start = start if start is None or self.scale == 1 else start / self.scale
        out, accurate = self._solve(z, level, start)
        if not accurate:
            warnings.warn(
                f"ConvexRidge stopped after {self.max_iterations} iterations, short of its relative tolerance "
                f"{self.tol:.1e}; allow more iterations, or a larger tolerance",
                PlugstreamWarning,
                stacklevel=3,
            )
        result = (out if self.scale == 1 else out * self.scale).reshape(image.shape)
        return result, result

    def _solve(self, z: Tensor, level: float | Tensor, start: Tensor | None) -> tuple[Tensor, bool]:
        """The prox of each image of (N, 1, H, W), by the fastest form that serves, and whether all reached `tol`."""
        if ridge_native.serves(z):
            if self._native is None:
                self._native = ridge_native.Solver(self.ridges)
            return self._native(
                z, _each(level, z), start, tol=self.tol, patience=self._patience, max_iterations=self.max_iterations
            )
        out, iterations, near = z, self.max_iterations, None
        fast = self._solver(z)
        if fast is not None:
            out, near = fast(z, level, start)
            if near is None:
                return out, True
            iterations -= fast.limit
        ridges, levels = self._ridges_like(z), _each(level, z)
        near = levels <= 0 if near is None else near
        if bool(near.all()):
            return out, True
        begin = out if fast is not None else start
        rest, accurate = prox(
            ridges.at(levels[~near]),
            z[~near],
            self.tol,
            iterations,
            None if begin is None else begin[~near],
            patience=self._patience if fast is None else 0,
        )
        return out.index_put((~near,), rest), accurate

    def _solver(self, z: Tensor) -> ridge_cuda.Solver | None:
        """The heavy ball on CUDA, if there is a kernel that takes these images."""
        if not ridge_cuda.takes(z):
            return None
        if z.device not in self._solvers:
            ridges, limit = self._ridges_like(z), min(self._patience, self.max_iterations)
            found = ridge_cuda.Solver(ridges, self.tol, limit) if ridge_cuda.serves(ridges, z.device) else None
            self._solvers[z.device] = found
        return self._solvers[z.device]

    def _ridges_like(self, z: Tensor) -> Ridges:
        """The ridges on the images' device and in their precision."""
        key = (z.device, z.dtype)
        if key not in self._copies:
            self._copies[key] = copy.deepcopy(self.ridges).to(z)
        return self._copies[key]


def _each(level: float | Tensor, z: Tensor) -> Tensor:
    """The level of each image, (N,); a number is filled in on the device, without a copy to wait for."""
    return level if isinstance(level, Tensor) else torch.full((len(z),), level, dtype=z.dtype, device=z.device)


def save_ridge(path: str | Path, ridges: Ridges, card: Mapping[str, Any]) -> None:
    """Write the ridges as safetensors, with a model card (data, seed, command, results) and a checksum of all."""
    try:
        save_tensors(Path(path), ridges.state_dict(), {"format": _FORMAT, "card": json.dumps(dict(card))})
    except OSError as error:
        raise StorageError(f"cannot write the ridge weights {path}: {error.strerror}") from error


def load_ridge(path: str | Path) -> tuple[Ridges, dict[str, Any]]:
    """Read what `save_ridge` wrote: the ridges, without gradients, and their card."""
    file = Path(path)
    if not file.is_file():
        raise InputError(
            f"there are no ridge weights at {file}; train some in a checkout ('python training/run.py ridge'), or take "
            f"a profile of ours: {' or '.join(PROFILES)}"
        )
    try:
        metadata, tensors = load_tensors(file, _FORMAT)
    except InputError as error:
        raise InputError(f"the ridge weights {file} cannot be used: {error}") from error
    if set(tensors) != set(_TENSORS):
        raise InputError(f"{file} holds other weights than those of a convex ridge denoiser")
    ridges = Ridges(**tensors)
    return ridges.requires_grad_(False), json.loads(metadata.get("card", "{}"))
