"""Filtered back-projection on a GPU of a volume that goes slab by slab, with transfers behind the work.

    python benchmarks/ct_large.py                                2048 x 2048 x 256 voxels, 2048 views, 8 GB of the GPU
    python benchmarks/ct_large.py --beam cone --size 1024 --memory 2GB
    python benchmarks/ct_large.py --file volume.npy              slices go to a file, as those of a volume beyond memory
    python benchmarks/ct_large.py --step --beam cone --size 512 --slices 512 --memory 3GB    a step of an iteration

Data are line integrals of balls in closed form, in page-locked memory. It prints the time by slabs, beside that of the
same work with everything on the GPU, how far both images are from each other and from the truth, and what 2048^3 would
take at this rate. What is promised has pass or fail; the exit status is 1 where something fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from plugstream import TV, Tiles
from plugstream.base.capacity import format_size, parse_size
from plugstream.base.volume_file import VolumeFile, make_volume
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import cone_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_slabs import SlabbedCT
from plugstream.scans.baselines.filtered import filtered_back_projection

# x, y, z, radius and value of balls, in halves of the volume's width
BALLS = ((0.0, 0.0, 0.0, 0.8, 1.0), (0.3, -0.2, 0.0, 0.25, 0.5), (-0.35, 0.25, 0.02, 0.2, -0.4))
HIDDEN = 1.2  # times what the work takes with everything on the GPU


def integrals(rays: Rays, views: slice, half: float) -> torch.Tensor:
    """Exact line integrals of the balls, (views, rows, columns), on the GPU."""
    first, centre, u, v = (torch.as_tensor(part, device="cuda") for part in np.moveaxis(rays.vectors[views], 1, 0))
    rows, columns = (torch.arange(n, device="cuda") - (n - 1) / 2 for n in rays.detector)
    total = torch.zeros((len(first), *rays.detector), dtype=torch.float64, device="cuda")

    def along(axis: int) -> torch.Tensor:
        place = centre[:, axis, None, None] + rows[:, None] * v[:, axis, None, None]
        return place + columns * u[:, axis, None, None]

    pixel = [along(axis) for axis in range(3)]
    if rays.parallel:
        way = [first[:, axis, None, None].expand(total.shape) for axis in range(3)]
    else:
        way = [pixel[axis] - first[:, axis, None, None] for axis in range(3)]
    square = torch.stack([part * part for part in way]).sum(0)
    for *middle, radius, value in BALLS:
        off = [pixel[axis] - half * middle[axis] for axis in range(3)]
        part = torch.stack([a * b for a, b in zip(off, way, strict=True)]).sum(0)
        distance = torch.stack([a * a for a in off]).sum(0) - part * part / square
        total += 2 * value * ((half * radius) ** 2 - distance).clamp_min(0).sqrt()
    return total.float()


def ball_volume(voxels: Voxels, half: float) -> torch.Tensor:
    """The balls, on the CPU."""
    z, y, x = places(voxels)
    truth = torch.zeros(voxels.shape)
    for x0, y0, z0, radius, value in BALLS:
        squares = (z - half * z0)[:, None, None] ** 2 + (y - half * y0)[:, None] ** 2 + (x - half * x0) ** 2
        truth += value * (squares < (half * radius) ** 2)
    return truth


def places(voxels: Voxels) -> list[torch.Tensor]:
    """Where voxels are along z, y and x."""
    axes = zip(voxels.origin, voxels.shape, voxels.spacing, strict=True)
    return [torch.as_tensor(o + s * np.arange(n), dtype=torch.float32) for o, n, s in axes]


def error_of(image: torch.Tensor, voxels: Voxels, half: float) -> tuple[float, float]:
    """Mean and rms error of slices away from edges."""
    z, y, x = (place.to(image.device) for place in places(voxels))
    truth = ball_volume(voxels, half).to(image.device)
    inside = (y[:, None] ** 2 + x**2 < (0.95 * half) ** 2).expand(image.shape).clone()  # what all views see
    for x0, y0, z0, radius, _ in BALLS:
        squares = (z - half * z0)[:, None, None] ** 2 + (y - half * y0)[:, None] ** 2 + (x - half * x0) ** 2
        inside &= (squares.sqrt() - half * radius).abs() > 4
    error = (image - truth)[inside]
    return float(error.mean()), float(error.square().mean().sqrt())


class Nowhere:
    """Where slices go to be forgotten."""

    def write(self, first: int, slices: np.ndarray) -> None: ...


def seconds(rays: Rays, voxels: Voxels, data: torch.Tensor, **more: object) -> tuple[float, torch.Tensor]:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    image = filtered_back_projection(data, rays, voxels, device="cuda", **more)  # type: ignore[arg-type]
    torch.cuda.synchronize()
    return time.perf_counter() - begun, image


def step(rays: Rays, voxels: Voxels, memory: float) -> bool:
    """A step of ten views with its volume in the memory of the CPU and slabs of it on the GPU, and all on the GPU."""
    gpu = torch.device("cuda", 0)
    views = torch.arange(10) * len(rays) // 10
    whole, slabs = CTModel(rays, voxels, device=gpu), SlabbedCT(CTModel(rays, voxels), gpu, memory)
    volume = ball_volume(voxels, voxels.shape[-1] / 2)
    data = whole.forward(volume.to(gpu), views).cpu()
    image = volume + 0.1 * torch.randn(volume.shape, generator=torch.Generator().manual_seed(0))
    tv = TV(ndim=3, tol=1e-3)
    tile = max(1, int(memory / (20 * 4 * voxels.shape[1] * voxels.shape[2])) - 2 * int(tv.halo or 0))
    jobs: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
        "gradient": (
            lambda x: whole.adjoint(whole.forward(x, views) - data.to(x.device), views),
            lambda x: slabs.adjoint(slabs.forward(x, views) - data, views),
        ),
        "TV": (lambda x: tv(x, 0.1), lambda x: Tiles(tv, tile, device=gpu)(x, 0.1)),
    }
    good = True
    for name, (at_once, by_slabs) in jobs.items():
        taken, found = [], []
        for work, place in ((at_once, gpu), (by_slabs, image.device)):
            x = image.to(place)
            work(x)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            found.append(work(x).cpu())
            taken.append(time.perf_counter() - begun)
        held = torch.cuda.max_memory_allocated()
        apart = float((found[0] - found[1]).norm() / (found[0] - (image if name == "TV" else 0)).norm())
        kept = apart <= 2e-3 and held <= memory
        good = good and kept
        print(
            f"  {name} by slabs {taken[1]:.3f} s in {format_size(held)}, all on the GPU {taken[0]:.3f} s with the way "
            f"back; the same to {apart:.0e} of what it changes, promised 2e-3 within {format_size(memory)}: "
            f"{'pass' if kept else 'FAIL'}",
            flush=True,
        )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam", choices=("parallel", "cone"), default="parallel")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--slices", type=int, default=256)
    parser.add_argument("--views", type=int, default=2048)
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--step", action="store_true")
    asked = parser.parse_args()
    size, slices, views, half = asked.size, asked.slices, asked.views, asked.size / 2
    voxels = Voxels((slices, size, size), 1.0)
    if asked.beam == "parallel":
        rays = parallel_beam(np.pi * np.arange(views) / views, (slices, size), 1.0)
    else:
        turn = 2 * np.pi * np.arange(views) / views
        rays = cone_beam(turn, (slices * 5 // 4, size), 2.0, source=4 * size, detector=4 * size)
    if asked.step:
        print(f"{torch.cuda.get_device_name()}, {asked.beam} beam, {size} x {size} x {slices} voxels, ten views a step")
        sys.exit(0 if step(rays, voxels, parse_size(asked.memory)) else 1)
    data = torch.empty((views, *rays.detector), pin_memory=True)
    for first in range(0, views, 20):
        data[first : first + 20] = integrals(rays, slice(first, min(first + 20, views)), half)
    few = rays.select(slice(0, 20))
    seconds(few, voxels.slices(0, 4), data[:20])  # compiles the kernels
    work = slices * size * size * views
    print(
        f"{torch.cuda.get_device_name()}, {asked.beam} beam, {size} x {size} x {slices} voxels from {views} views of "
        f"{rays.detector[0]} x {rays.detector[1]}: {format_size(4 * data.numel())} of data, "
        f"{format_size(4 * slices * size**2)} of image",
        flush=True,
    )
    here = data.cuda()
    on_gpu, whole = seconds(rays, voxels, here)
    on_gpu = min(on_gpu, seconds(rays, voxels, here)[0])
    print(f"  all of it on the GPU: {on_gpu:.3f} s, {work / on_gpu / 1e9:.0f} G voxel-views a second", flush=True)
    mean, rms = error_of(
        whole[slices // 2 - 2 : slices // 2 + 2], voxels.slices(slices // 2 - 2, slices // 2 + 2), half
    )
    print(f"  away from edges the middle slices are off by {mean:+.1e} in the mean, {rms:.1e} rms", flush=True)
    del here
    memory = parse_size(asked.memory)
    target: VolumeFile | Nowhere = make_volume(asked.file, voxels.shape) if asked.file else Nowhere()
    took = min(seconds(rays, voxels, data, memory=memory, target=target)[0] for _ in range(2))
    parts = seconds(rays, voxels, data, memory=memory)[1]
    apart = max(
        float((parts[n : n + 16].cuda() - whole[n : n + 16]).abs().max()) for n in range(0, slices, 16)
    ) / float(whole.abs().max())
    good = apart <= 1e-6 and abs(mean) <= 0.01 and took <= HIDDEN * on_gpu
    print(
        f"  by slabs within {format_size(memory)}, from page-locked memory to {asked.file or 'nowhere'}: {took:.3f} s, "
        f"{work / took / 1e9:.0f} G voxel-views a second, {took / on_gpu:.2f} x the time on the GPU, promised "
        f"{HIDDEN:g} x; image the same to {apart:.0e}: {'pass' if good else 'FAIL'}"
    )
    if asked.beam == "parallel":
        print(f"  2048^3 from {views} views at this rate: {took * 2048**3 / (slices * size**2):.1f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
