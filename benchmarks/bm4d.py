"""BM4D: time and PSNR on volumes, with PyPI's bm4d in the same run where it is installed, and how time grows.

    python benchmarks/bm4d.py [--threads 2] [--device cuda] [--sizes 32 64 128] [--volume real.npy] [--slow]
        [--picture slices.png]

The volumes are a phantom of ellipsoids with a ripple and a smooth random one, and those of --volume (NPY, scaled to 0
.. 1); the noise is white, 5, 10, 15 and 25 % of the range. PyPI's is run at 64^3 and 10 % only, unless --slow is given
(it takes 17 s a volume of 64^3 on two cores, two minutes at 128^3).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pypi_bm4d import call_peer, find_peer
from torch import Tensor

import plugstream as ps
from plugstream.denoisers.bm4d.profile import PROFILES

LEVELS = (0.05, 0.1, 0.15, 0.25)


def phantom(size: int) -> Tensor:
    """Ellipsoids with a ripple, in nothing."""
    z, y, x = torch.meshgrid(*[torch.linspace(-1, 1, size)] * 3, indexing="ij")

    def inside(centre: tuple[float, float, float], radii: tuple[float, float, float]) -> Tensor:
        parts = zip((z, y, x), centre, radii, strict=True)
        return (torch.stack([((a - c) / r).square() for a, c, r in parts]).sum(0) < 1).float()

    out = 0.5 * inside((0, 0, 0), (0.9, 0.7, 0.8)) - 0.2 * inside((0.1, 0, 0), (0.8, 0.6, 0.7))
    out += 0.35 * inside((0.3, 0.2, -0.2), (0.2, 0.3, 0.15)) + 0.25 * inside((-0.3, -0.2, 0.25), (0.25, 0.15, 0.3))
    out += 0.4 * inside((0, 0.1, 0.3), (0.1, 0.1, 0.1)) - 0.2 * inside((-0.1, -0.3, -0.3), (0.15, 0.3, 0.1))
    return (out + 0.06 * torch.sin(18 * x + 9 * y) * inside((0, 0, 0), (0.8, 0.6, 0.7))).clamp(0, 1)


def smooth(size: int) -> Tensor:
    """Noise without its high frequencies, from 0 to 1."""
    field = torch.randn((size,) * 3, generator=torch.Generator().manual_seed(7))
    waves = torch.fft.fftfreq(size).square()
    decay = torch.exp(-180 * (waves[:, None, None] + waves[:, None] + waves))
    low = torch.fft.ifftn(torch.fft.fftn(field) * decay).real
    return unit_range(low)


def unit_range(volume: Tensor) -> Tensor:
    out: Tensor = (volume - volume.min()) / (volume.max() - volume.min())
    return out


def psnr(a: Tensor, b: Tensor) -> float:
    return float(-10 * torch.log10((a.double() - b.double()).square().mean()))


def median_time(call: Callable[[], Tensor], repeats: int = 3) -> float:
    """Seconds, after a call that compiles what there is to compile."""
    call()
    times = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def draw(path: Path, volumes: dict[str, Tensor], device: str) -> None:
    """The middle slice of each volume: clean, with noise of 10 %, after BM3D on slices along three axes, after BM4D."""
    import matplotlib.pyplot as plt

    del volumes["smooth"]
    figure, axes = plt.subplots(len(volumes), 4, figsize=(8, 2.2 * len(volumes)), squeeze=False)
    for row, (name, clean) in zip(axes, volumes.items(), strict=True):
        z = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
        images = {name: clean, "noise 10 %": z, "BM3D, three axes": ps.adapt(ps.BM3D(), tuple(clean.shape))(z, 0.1)}
        images["BM4D"] = ps.BM4D()(z.to(device), 0.1).cpu()
        for axis, (title, volume) in zip(row, images.items(), strict=True):
            axis.imshow(volume[len(volume) // 2], cmap="gray", vmin=0, vmax=1)
            axis.set_title(title if volume is clean else f"{title}: {psnr(volume, clean):.1f} dB", fontsize=8)
            axis.axis("off")
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--volume", type=Path, nargs="*", default=[])
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--picture", type=Path, help="draw slices before and after, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peer = find_peer()
    if peer is None:
        print("PyPI's bm4d is not installed here (it has no build for ARM): its columns are left out")

    volumes = {"phantom": phantom(64), "smooth": smooth(64)}
    for path in options.volume:
        volumes[path.stem] = unit_range(torch.from_numpy(np.load(path)).float())
    if options.picture is not None:
        draw(options.picture, volumes, options.device)
        return
    print("PSNR in dB: volume, noise, noisy, normal, fast, PyPI's")
    for name, clean in volumes.items():
        for level in LEVELS:
            z = clean + level * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
            ours = [psnr(ps.BM4D(p)(z.to(options.device), level).cpu(), clean) for p in PROFILES]
            theirs = ""
            if peer is not None and (options.slow or level == 0.1):
                out, taken = call_peer(peer, z.numpy(), level, options.threads)
                theirs = f"{psnr(torch.from_numpy(out), clean):.2f} ({taken:.1f} s)"
            print(
                f"{name:10} {level:.2f} {psnr(z, clean):.2f}", *(f"{value:.2f}" for value in ours), theirs, flush=True
            )
    print(f"Time on {options.device}, {options.threads} threads: side, profile, seconds, nanoseconds a voxel")
    for size in options.sizes:
        clean = phantom(size)
        z = clean + 0.1 * torch.randn((size,) * 3, generator=torch.Generator().manual_seed(1))
        for name in PROFILES:
            seconds = median_time(partial(ps.BM4D(name), z.to(options.device), 0.1))
            print(f"{size} {name:6} {seconds:.4f} {1e9 * seconds / size**3:.1f}", flush=True)
        if peer is not None and options.slow:
            out, taken = call_peer(peer, z.numpy(), 0.1, options.threads)
            print(f"{size} PyPI's {taken:.2f}, {psnr(torch.from_numpy(out), clean):.2f} dB", flush=True)


if __name__ == "__main__":
    main()
