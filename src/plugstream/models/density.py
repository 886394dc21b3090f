"""How much of k-space each sample of a trajectory stands for."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.models.kspace import KSpace
from plugstream.models.nufft_spread import SpreadNufft

__all__ = ["sample_density"]


def sample_density(kspace: KSpace, iterations: int = 30, weights: Tensor | None = None) -> NDArray[np.float32]:
    r"""Weights of all samples, (views, samples), with which the adjoint of the transform is nearly its inverse.

    They are the fixed point of w <- w / (C w), C being the convolution of samples with the kernel of the non-uniform
    FFT for twice the image's field of view. There, the weights of samples near each other add up to the same
    everywhere, so that each is the part of k-space that its sample stands for, 1 on the image's own grid. Samples too
    far apart for a kernel to reach the next one have equal weights.

    Arguments: kspace; iterations; weights (views, samples), 0 for samples that do not count.
    Reference: Pipe and Menon, Magn. Reson. Med. 41(1), 1999.
    """
    views = torch.arange(len(kspace.trajectory))
    shape = tuple(axis.period or 2 * size for size, axis in zip(kspace.voxels.shape, kspace.axes, strict=True))
    plan = SpreadNufft(
        shape, 1e-3, axes=kspace.axes, is_complex=True, points=1, device=kspace.device, dtype=kspace.dtype
    )
    points = plan.place(kspace.frequencies(views))
    counts = torch.ones(len(points), device=kspace.device, dtype=kspace.dtype)
    if weights is not None:
        counts = (weights.reshape(-1) > 0).to(counts)
    # C w for one sample at each step of the image's own grid: reading and writing are one kernel each, whose integral
    # is in steps of the finer grid.
    integral = float(plan.kernel.transform(np.zeros(1))[0]) ** 2
    even = 1.0
    for size, fine, axis in zip(kspace.voxels.shape, plan.sizes, kspace.axes, strict=True):
        even *= (1.0 if axis.period is not None else integral) * size / fine
    density = counts.clone()
    for _ in range(iterations):
        grid = plan.zeros(1)
        plan.write(density.to(kspace.dtype.to_complex())[None], points, grid)
        near = plan.read(grid, points)[0].real / even
        density = torch.where(counts > 0, density / near.clamp_min(1e-6 * float(near.max())), density)
    return density.view(kspace.trajectory.shape[:2]).cpu().numpy().astype(np.float32)
