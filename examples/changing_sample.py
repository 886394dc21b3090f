"""A sample that changes while it is scanned, as a movie: the pictures of docs/live.md on windows.

    python examples/changing_sample.py docs/images/changing.png

A disc with a drop in it that grows and wanders is measured at golden angles, one view every fortieth of a second. Two
commands follow the scan: one forgets views older than the last 55, and one forgets none.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

mpl.use("Agg")
from matplotlib import pyplot as plt

from plugstream import CTModel, ScanWriter, snr
from plugstream.instruments.ct import CT
from plugstream.models.ct_beams import ordered_angles, parallel_beam
from plugstream.models.ct_geometry import Voxels

SIZE, VIEWS, RATE, WINDOW, NOISE = 128, 800, 40.0, 55, 0.003
VOXELS = Voxels((SIZE, SIZE), 1.0 / SIZE)


def sample(time: float) -> np.ndarray:
    """The attenuation at a time from 0 to 1: a disc, three holes, and a drop on its way through it."""
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    image = np.where(np.hypot(x, y) < 0.85, 1.0, 0.0)
    for angle in (0.5, 2.5, 4.6):
        image[np.hypot(x - 0.6 * np.cos(angle), y - 0.6 * np.sin(angle)) < 0.12] = 0.0
    image[np.hypot(x - 0.5 + time, y + 0.3 - 0.5 * time) < 0.1 + 0.15 * time] = 1.8
    return image.astype(np.float32)


def measure(place: Path) -> None:
    """Write the scan at its rate."""
    rays = parallel_beam(ordered_angles(VIEWS, np.pi, "golden"), 2 * SIZE // 3 * 2 + 13, 1.0 / SIZE)
    model, draw = CTModel(rays, VOXELS), np.random.default_rng(0)
    begun = time.monotonic()
    with ScanWriter(place, CT.of(rays, VOXELS)) as writer:
        for view in range(VIEWS):
            clean = model.forward(torch.from_numpy(sample(view / VIEWS)), [view]).numpy()
            noisy = clean + NOISE * draw.standard_normal(clean.shape)
            writer.append(noisy.astype(np.float32), rays=rays.vectors[view : view + 1])
            writer.commit()
            time.sleep(max(0.0, begun + view / RATE - time.monotonic()))
        writer.finish()


def reconstruct(scan: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    """Follow it, as a person would type it."""
    words = ["--follow", "--sigma", "0.02", "--iterations", "60", "--preview", "1", "--threads", "1", *more]
    return subprocess.Popen([sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(out), *words])


def main(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place, runs = Path(folder) / "scan.zarr", {"all views": (), f"the last {WINDOW}": ("--window", str(WINDOW))}
        writer = threading.Thread(target=measure, args=(place,))
        started = [reconstruct(place, Path(folder) / name, *more) for name, more in runs.items()]
        time.sleep(8)  # until both are there
        writer.start()
        writer.join()
        if any(process.wait() for process in started):
            raise SystemExit(1)
        truth = torch.from_numpy(sample(1.0))
        figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
        axes[0].imshow(truth, cmap="gray", vmin=0, vmax=1.8)
        axes[0].set_title("the sample at the end", fontsize=10)
        for axis, name in zip(axes[1:], runs, strict=True):
            image = np.load(Path(folder) / name / "result.npy")
            axis.imshow(image, cmap="gray", vmin=0, vmax=1.8)
            axis.set_title(f"{name}: {float(snr(torch.from_numpy(image), truth)):.1f} dB", fontsize=10)
        for axis in axes:
            axis.axis("off")
        figure.savefig(picture, dpi=100)
        words = [sys.executable, "-m", "plugstream", "movie", str(Path(folder) / name), "--size", "160"]
        subprocess.run([*words, "--out", str(picture.with_suffix(".gif"))], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
