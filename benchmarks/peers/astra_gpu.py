"""ASTRA's CUDA projectors on tensors that are on the GPU already: seconds of a projection and of a back-projection.

Where there is no CUDA toolkit, PyPI's astra-toolbox needs libcudart.so.12 (of the wheel nvidia-cuda-runtime-cu12) and a
libcufft.so.11 on LD_LIBRARY_PATH; projections use no FFT, so a library with five empty functions serves as the latter
(cufftPlan1d, cufftExecR2C, cufftExecC2R, cufftDestroy, cufftSetStream; its soname and version node libcufft.so.11).
"""

from __future__ import annotations

import statistics
import time

import astra
import numpy as np
import torch


def astra_seconds(kind: str, size: int, views: int) -> tuple[float, float]:
    """Medians of five after one that does not count, for the beams of `gpu_cases` in benchmarks/ct.py."""
    turn = np.linspace(0, 2 * np.pi, views, endpoint=False)
    if kind == "parallel":
        geometry = astra.create_proj_geom("parallel3d", 1.0, 1.0, size, size, turn / 2)
    else:
        geometry = astra.create_proj_geom("cone", 2.0, 2.0, size, size, turn, 4 * size, 4 * size)
    if kind == "rolled cone":  # the detector turned a little in its plane
        geometry = astra.geom_2vec(geometry)
        across, up = geometry["Vectors"][:, 6:9].copy(), geometry["Vectors"][:, 9:12].copy()
        geometry["Vectors"][:, 6:9] = np.cos(0.01) * across + np.sin(0.01) * up
        geometry["Vectors"][:, 9:12] = np.cos(0.01) * up - np.sin(0.01) * across
    volume, data = torch.rand((size,) * 3, device="cuda"), torch.rand((size, views, size), device="cuda")
    links = [
        astra.data3d.link("-vol", astra.create_vol_geom(size, size, size), volume),
        astra.data3d.link("-sino", geometry, data),
    ]
    medians = []
    for name, target in (("FP3D_CUDA", "VolumeDataId"), ("BP3D_CUDA", "ReconstructionDataId")):
        algorithm = astra.algorithm.create({"type": name, target: links[0], "ProjectionDataId": links[1], "option": {}})
        times = []
        for _ in range(6):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            astra.algorithm.run(algorithm)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        astra.algorithm.delete(algorithm)
        medians.append(statistics.median(times[1:]))
    astra.data3d.delete(links)
    return medians[0], medians[1]
