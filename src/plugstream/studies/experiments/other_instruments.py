"""The same pictures with two other instruments, to show that a gain is not limited to diffraction tomography."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
import torch

from plugstream.base.errors import InputError
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.images.simulated import add_noise
from plugstream.models.base import Model
from plugstream.studies.experiments.setup import CountingModel, Pictures, Problem

__all__ = ["OTHERS", "VIEWS", "make_other_problem"]

# As many as the paper's scans have, so that a batch of 10 or 30 means the same.
VIEWS = 60
# What is asked for, and input SNR in dB.
OTHERS = {"ct": 40.0, "mri": 30.0, "mri-density": 30.0}
_COILS = 4


def make_other_problem(name: str, pictures: Pictures, *, device: torch.device | str = "cpu") -> Problem:
    """Pictures measured by "ct" or "mri" from 60 views, with white noise whose seed is the picture's place.

    ct: a parallel beam over half a turn, at 40 dB. mri: spokes turned by the golden angle, four coils on a ring, at 30
    dB; the image is complex with a phase that varies smoothly. "mri-density" is the same data, its samples weighted by
    the part of k-space that they stand for. The prox is as that of `make_problem`.
    """
    if name not in OTHERS:
        raise InputError(f"there is no problem {name!r}; choose one of {', '.join(OTHERS)}")
    begin = time.perf_counter()
    size = int(pictures.truth.shape[-1])
    model, phase = (_tomograph(size, device), None) if name == "ct" else _scanner(size, device, name == "mri-density")
    truth = pictures.truth if phase is None else pictures.truth * phase
    truth = truth.to(device=model.device, dtype=model.dtype)
    clean = _scanner(size, device, False)[0].forward(truth).cpu() if phase is not None else model.forward(truth).cpu()
    data = torch.stack([add_noise(one, OTHERS[name], seed=seed) for seed, one in enumerate(clean)])
    counted = CountingModel(model)
    fidelity = LeastSquares(cast(Model, counted), data, prox_tol=1e-4, prox_iterations=12)
    assert fidelity.lipschitz_max > 0  # found now, and not within the first run's time
    return Problem(pictures, truth, fidelity, counted, time.perf_counter() - begin, name)


def _tomograph(size: int, device: torch.device | str) -> Any:
    """A parallel beam; pixels and voxels have side 1."""
    from plugstream.models.ct import CTModel
    from plugstream.models.ct_beams import parallel_beam
    from plugstream.models.ct_geometry import Voxels

    angles = np.arange(VIEWS) * np.pi / VIEWS
    return CTModel(parallel_beam(angles, int(1.45 * size), 1.0), Voxels((size, size), 1.0), device=device)


def _scanner(size: int, device: torch.device | str, weighted: bool) -> tuple[Any, torch.Tensor]:
    """Spokes and coils, and the phase of an image."""
    from plugstream.instruments.mri_simulation import ring_coils
    from plugstream.models.kspace import KSpace, centered_voxels, encoded_voxels, sample_density
    from plugstream.models.mri import MRIModel
    from plugstream.models.trajectories import radial_spokes

    voxels = centered_voxels((size, size), 1e-3)
    path = radial_spokes(voxels, VIEWS)
    density = sample_density(KSpace(path, encoded_voxels(voxels, 2), 1e-4)) if weighted else None
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    phase = torch.from_numpy(np.exp(0.5j * np.sin(2 * x + 0.5) * np.cos(1.5 * y - 0.3)).astype(np.complex64))
    maps = ring_coils((size, size), _COILS)[:, 0]
    return MRIModel(path, voxels, maps, density=density, device=device), phase
