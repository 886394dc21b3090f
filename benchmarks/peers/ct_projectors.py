"""The peers of `benchmarks/ct.py`, in a Python of their own: one JSON line {name: seconds} for each that is installed.

build/peers/bin/python benchmarks/peers/ct_projectors.py THREADS SIZE COLUMNS VIEWS CONE CONE_VIEWS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """The median time of a call, after one that does not count."""
    times = []
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        function()
        if turn:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def astra_times(n: int, columns: int, views: int) -> dict[str, float]:
    """ASTRA's CPU projectors, which use one thread."""
    import astra

    angles, found = np.linspace(0, np.pi, views, endpoint=False), {}
    volume = astra.create_vol_geom(n, n)
    random = np.random.default_rng(0)
    image, data = random.random((n, n), np.float32), random.random((views, columns), np.float32)
    beams = {
        "parallel": (astra.create_proj_geom("parallel", 1.0, columns, angles), "linear"),
        "fan": (astra.create_proj_geom("fanflat", 2.0, columns, 2 * angles, 3.0 * n, 3.0 * n), "line_fanflat"),
    }
    for name, (geometry, kind) in beams.items():
        projector = astra.create_projector(kind, geometry, volume)

        def forward(projector: int = projector) -> None:
            astra.data2d.delete(astra.create_sino(image, projector)[0])

        def adjoint(projector: int = projector) -> None:
            astra.data2d.delete(astra.create_backprojection(data, projector)[0])

        found[f"{name} forward"], found[f"{name} adjoint"] = seconds(forward), seconds(adjoint)
    return found


def skimage_times(n: int, views: int) -> dict[str, float]:
    from skimage.transform import iradon, radon

    image = np.random.default_rng(0).random((n, n), np.float32)
    angles = np.linspace(0, 180, views, endpoint=False)
    data = radon(image, angles, circle=False)
    return {
        "parallel forward": seconds(lambda: radon(image, angles, circle=False), 1),
        "parallel adjoint": seconds(lambda: iradon(data, angles, circle=False, filter_name=None), 1),
    }


def torch_times(n: int, views: int) -> dict[str, float]:
    """What one writes with torch alone: turn the image by grid_sample, and add up columns; the adjoint by autograd."""
    import torch
    from torch.nn.functional import affine_grid, grid_sample

    angles = torch.arange(views) * (torch.pi / views)
    cosine, sine, zero = torch.cos(angles), torch.sin(angles), torch.zeros(views)
    turns = torch.stack([torch.stack([cosine, -sine, zero], 1), torch.stack([sine, cosine, zero], 1)], 1)
    image, data = torch.rand(1, 1, n, n), torch.rand(views, n)

    def project(image: torch.Tensor) -> torch.Tensor:
        grids = (affine_grid(turn[None], [1, 1, n, n], align_corners=False) for turn in turns)
        return torch.stack([grid_sample(image, grid, align_corners=False).sum(2)[0, 0] for grid in grids])

    def adjoint() -> torch.Tensor:
        leaf = image.clone().requires_grad_()
        (found,) = torch.autograd.grad(project(leaf), leaf, data)
        return found

    with torch.no_grad():
        forward = seconds(lambda: project(image), 1)
    # The adjoint has to go forward first, which is not counted.
    return {"parallel forward": forward, "parallel adjoint": max(seconds(adjoint, 1) - forward, 0.0)}


def diffct_times(n: int, views: int) -> dict[str, float]:
    """diffct's cone beam on the CPU."""
    import diffct
    import torch

    path = diffct.circular_trajectory_3d(views, 4.0 * n, 8.0 * n, device="cpu")
    projector = diffct.Projector(path, (n, n, n), (n, n), beam="cone", detector_spacing=2.0, backend="torch")
    volume = torch.rand(n, n, n)
    data = projector.project(volume)
    return {
        "cone forward": seconds(lambda: projector.project(volume), 1),
        "cone adjoint": seconds(lambda: projector.backproject(data), 1),
    }


if __name__ == "__main__":
    threads, size, columns, views, cone, cone_views = map(int, sys.argv[1:])
    try:
        import torch

        torch.set_num_threads(threads)
    except ImportError:
        pass
    peers: dict[str, Callable[[], dict[str, float]]] = {
        "ASTRA": lambda: astra_times(size, columns, views),
        "scikit-image": lambda: skimage_times(size, views),
        "torch": lambda: torch_times(size, views),
        "diffct": lambda: diffct_times(cone, cone_views),
    }
    for peer, measure in peers.items():
        try:
            print(json.dumps({peer: measure()}), flush=True)
        except ImportError:
            continue
