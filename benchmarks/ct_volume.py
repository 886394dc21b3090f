"""A volume larger than memory: 512 x 512 x 512 voxels from 360 projections of 512 x 512, within 2 GB.

The scan is made view by view from the ellipsoids of Shepp and Logan's head, whose line integrals are known in closed
form, with photon noise, so that the volume is nowhere in memory. `plugstream reconstruct --along z --memory 2GB` then
runs as a process of its own, and its memory is the peak of what it has resident, all of it: Python, torch and our code
as well. The SNR is of the whole volume against the ellipsoids, read some slices at a time.

    python benchmarks/ct_volume.py [--size 512] [--views 360] [--memory 2GB] [--iterations 20] [--folder /tmp]

The bar: the peak is within --memory. A line of JSON at the end has the numbers from which docs/tomography.md tells what
larger volumes take: seconds and bytes, a voxel and view, and a slice.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import format_size, parse_size
from plugstream.base.volume_file import open_volume
from plugstream.images.simulated import ELLIPSOIDS, shepp_logan
from plugstream.instruments.ct import CT
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans import ScanWriter

WIDTH = 0.0256  # metres
ATTENUATION = 100.0  # 1/m, where the phantom is 1
PHOTONS = 1e4
AT_ONCE = 8  # slices


def integrals(rays: Rays, view: int, voxels: Voxels) -> NDArray[np.float64]:
    """The line integrals of the head through all pixels of a view, (rows, columns)."""
    _, centre, u, v = rays.vectors[view]
    pixel, half = np.linalg.norm(u), WIDTH / 2
    across = u[:2] / pixel
    rows, columns = (np.arange(size) - (size - 1) / 2 for size in rays.detector)
    s = (centre[:2] @ across + columns * pixel) / half
    z = (centre[2] + rows * v[2])[:, None] / (voxels.shape[0] * voxels.spacing[0] / 2)
    total = np.zeros(rays.detector)
    for value, a, b, c, x0, y0, z0, turn in ELLIPSOIDS:
        angle = np.arctan2(across[1], across[0]) - np.deg2rad(turn)
        wide = (a * np.cos(angle)) ** 2 + (b * np.sin(angle)) ** 2  # half of the shadow, squared
        share = np.maximum(0, 1 - ((z - z0) / c) ** 2)  # of the slice's ellipse, squared
        chord = np.sqrt(np.maximum(0, wide * share - (s - across @ (x0, y0)) ** 2))
        total += 2 * value * a * b * chord / wide
    return ATTENUATION * half * total


def make_scan(place: Path, size: int, views: int) -> None:
    """A scan of the head in a parallel beam over half a turn."""
    rng = np.random.default_rng(0)
    voxels = Voxels((size, size, size), WIDTH / size)
    rays = parallel_beam(np.pi * np.arange(views) / views, (size, size), WIDTH / size)
    with ScanWriter(place, CT.of(rays, voxels)) as writer:
        for view in range(views):
            counts = rng.poisson(PHOTONS * np.exp(-integrals(rays, view, voxels)))
            data = np.log(PHOTONS / np.maximum(counts, 0.5)).astype(np.float32)
            writer.append(data[None], rays=rays.vectors[view : view + 1])
        writer.finish()


def signal_to_noise(path: Path) -> float:
    """||x||^2 / ||x - y||^2 of the volume y in a file, in dB."""
    volume = open_volume(path)
    energy = error = 0.0
    for first in range(0, volume.shape[0], AT_ONCE):
        last = min(first + AT_ONCE, volume.shape[0])
        truth = ATTENUATION * shepp_logan(volume.shape, slice(first, last))
        energy += float((truth**2).sum())
        error += float(((truth - volume.read(first, last)) ** 2).sum())
    return 10 * float(np.log10(energy / error))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--views", type=int, default=360)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--sigma", type=float, default=0.1)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    size, views = asked.size, asked.views
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        scan, run = Path(temporary) / "scan.zarr", Path(temporary) / "run"
        begun = time.perf_counter()
        make_scan(scan, size, views)
        made = time.perf_counter() - begun
        print(
            f"a scan of {views} x {size} x {size}, {format_size(4 * views * size**2)}, made in {made:.0f} s", flush=True
        )
        words = ["reconstruct", str(scan), "--out", str(run), "--along", "z", "--memory", asked.memory]
        words += ["--sampler", "epochs", "--batch", str(asked.batch), "--iterations", str(asked.iterations)]
        words += ["--sigma", str(asked.sigma), "--momentum", "bounded", "--low", "0"]
        words += ["--every", str(asked.iterations), "--measured-views", "36"]
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "plugstream", *words], check=True)
        seconds = time.perf_counter() - begun
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak, processor = 1024 * used.ru_maxrss, used.ru_utime + used.ru_stime
        partition = run / "blocks.json"
        edges = json.loads(partition.read_text())["edges"] if partition.exists() else [0, size]
        quality = signal_to_noise(run / "result.npy")
    limit = parse_size(asked.memory)
    print(
        f"{size}^3 voxels from {views} projections, {len(edges) - 1} blocks of up to {max(np.diff(edges))} slices, "
        f"{asked.iterations} steps of {asked.batch} views: {seconds:.0f} s, of processors {processor:.0f} s, peak "
        f"{format_size(peak)} of "
        f"{format_size(limit)}, SNR {quality:.2f} dB: {'pass' if peak <= limit else 'FAIL'}"
    )
    numbers = {
        "size": size,
        "views": views,
        "blocks": len(edges) - 1,
        "seconds": seconds,
        "processor_seconds": processor,
        "peak": peak,
        "snr": quality,
        "processor_nanoseconds_a_voxel_and_step": 1e9 * processor / size**3 / asked.iterations,
    }
    print(json.dumps(numbers))
    sys.exit(peak > limit)


if __name__ == "__main__":
    main()
