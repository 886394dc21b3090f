"""Anscombe's transform around BM3D for counts: pictures, tomography from counts, and ptychography at low dose.

    python benchmarks/counts.py pictures           PSNR of three pictures with peaks of 1 to 64 counts
    python benchmarks/counts.py ct                 SNR of filtered back-projection with 10 to 1,000 photons a ray
    python benchmarks/counts.py ptychography       SNR of the object with 200 to 5,000 photons a frame
    python benchmarks/counts.py ct --picture docs/images/low-dose-ct.png

"one sigma" is BM3D with the noise of the mean count; "algebraic" is f^-1 in place of the exact unbiased inverse. For
tomography and ptychography, the data are denoised before the reconstruction; the usual way is beside it, a likelihood
for counts and a prior on the image.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plugstream import (
    BM3D,
    TV,
    Anscombe,
    Epochs,
    Geometric,
    Identity,
    LossFidelity,
    Overlap,
    Poisson,
    ProximalGradient,
    Transmission,
    anscombe,
    load_picture,
    open_scan,
    psnr,
    snr,
)
from plugstream.images.simulated import shepp_logan
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.scans.baselines.filtered import filtered_back_projection
from plugstream.scans.baselines.first_image import scan_model

CLEAN = Anscombe(BM3D())


def one_sigma(counts: torch.Tensor) -> torch.Tensor:
    """BM3D as if the noise were that of the mean everywhere."""
    return BM3D()(counts, float(counts.mean()) ** 0.5)


def algebraic(counts: torch.Tensor) -> torch.Tensor:
    """f^-1 after BM3D, which is biased."""
    return BM3D()(anscombe(counts), 1.0).square() / 4 - 0.375


def pictures() -> None:
    print(
        f"{'peak':>6}{'counts':>9}{'one sigma':>11}{'algebraic':>11}{'exact':>9}   PSNR in dB, mean of three pictures"
    )
    for peak in (1, 2, 4, 8, 16, 64):
        rows = []
        for name in ("camera", "coins", "moon"):
            truth = load_picture(name, 256)
            draw = np.random.default_rng(0).poisson(peak * truth.numpy() / float(truth.max()))
            counts, scaled = torch.from_numpy(draw).float(), truth / truth.max()
            images = (counts, one_sigma(counts), algebraic(counts), CLEAN(counts, 1.0))
            rows.append([float(psnr(image / peak, scaled)) for image in images])
        print(f"{peak:>6}" + "".join(f"{value:>10.2f}" for value in np.mean(rows, axis=0)), flush=True)


def ct(picture: Path | None) -> None:
    size, views = 128, 180
    truth = torch.from_numpy(shepp_logan((size, size))).float()
    rays = parallel_beam(np.pi * np.arange(views) / views, size, 1.0)
    voxels = Voxels((size, size), 1.0)
    model = CTModel(rays, voxels)
    truth = truth * (3.0 / float(model.forward(truth).max()))  # the darkest ray lets exp(-3) through
    integrals = model.forward(truth)
    print(
        f"{'photons':>8}{'none':>8}{'one sigma':>11}{'algebraic':>11}{'exact':>8}{'likelihood and TV':>20}   SNR in dB"
    )
    shown: dict[str, torch.Tensor] = {"truth": truth}
    for photons in (10, 30, 100, 1000):
        draw = np.random.default_rng(0).poisson(photons * np.exp(-integrals.numpy()))
        counts = torch.from_numpy(draw).float()
        row = []
        for clean in (counts, one_sigma(counts), algebraic(counts), CLEAN(counts, 1.0)):
            data = torch.log(photons / clean.clamp_min(0.5))
            images = [filtered_back_projection(data, rays, voxels)]
            images += [filtered_back_projection(data, rays, voxels, filter="hann", cutoff=c) for c in (1.0, 0.6, 0.4)]
            best = max(images, key=lambda image: float(snr(image, truth)))  # as good as a filter can make it
            row.append(float(snr(best, truth)))
            if photons == 30:
                shown[("filtered", "", "", "denoised counts, filtered")[len(row) - 1]] = best
        fit = LossFidelity(model, torch.log(photons / counts.clamp_min(0.5)), Transmission())
        best_of_all, image = -np.inf, truth
        for sigma in (0.007, 0.01, 0.015, 0.02, 0.03, 0.045):
            level = sigma * float(truth.max()) ** 0.5
            algorithm = ProximalGradient(fit, TV(low=0.0), sigma=level, sampler=Epochs(30), momentum="nesterov")
            state = algorithm.init()
            for _ in range(120):
                state = algorithm.step(state)
            if float(snr(state.image, truth)) > best_of_all:
                best_of_all, image = float(snr(state.image, truth)), state.image
        if photons == 30:
            shown["likelihood and TV"] = image
        print(f"{photons:>8}" + "".join(f"{value:>9.2f}" for value in (*row, best_of_all)), flush=True)
    if picture is not None:
        draw_row(picture, {name: image for name, image in shown.items() if name})


def ptychography() -> None:
    print(f"{'photons':>8}{'none':>8}{'exact':>8}{'TV':>8}{'both':>8}   SNR in dB, 20 passes, the best sigma of four")
    for photons in (200, 1_000, 5_000):
        with tempfile.TemporaryDirectory() as folder:
            words = ("simulate", "--instrument", "ptychography", "--photons", str(photons), f"{folder}/scan.zarr")
            subprocess.run([sys.executable, "-m", "plugstream", *words], check=True, capture_output=True)
            scan = open_scan(Path(folder) / "scan.zarr").load()
        assert scan.truth is not None
        truth, frames = torch.from_numpy(scan.truth), scan.read().float()
        middle = torch.fft.fftshift(frames, dim=(-2, -1))  # zero frequency in the middle, so that blocks are whole
        clean = torch.fft.ifftshift(CLEAN(middle, 1.0), dim=(-2, -1))
        row: list[float] = []
        for sigmas in ((0.0,), (0.01, 0.02, 0.04, 0.08)):
            for data in (frames, clean):
                fit = LossFidelity(scan_model(scan), data, Poisson(floor=0.02))
                row.append(max(_reconstruct(fit, truth, sigma) for sigma in sigmas))
        print(f"{photons:>8}" + "".join(f"{value:>8.2f}" for value in row), flush=True)


def _reconstruct(fit: LossFidelity, truth: torch.Tensor, sigma: float) -> float:
    """The SNR after 20 passes; without a prior at the best of them."""
    steps = 20 * -(-len(fit.available) // 12)
    settings: dict[str, Any] = {"step_size": Overlap(Geometric(1.0, 0.3, steps)), "sampler": Epochs(12)}
    level: Any = Geometric(sigma, sigma * 0.3**0.5, steps) if sigma else 0.0
    algorithm = ProximalGradient(fit, TV() if sigma else Identity(), sigma=level, momentum="bounded", **settings)
    state, found = algorithm.init(), []
    for number in range(steps):
        state = algorithm.step(state)
        if (number + 1) % (steps // 20) == 0:
            found.append(float(snr(state.image[None], truth[None])))
    return found[-1] if sigma else max(found)


def draw_row(path: Path, images: dict[str, torch.Tensor]) -> None:
    """Images side by side, on one scale of grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(images), 3.3), layout="constrained")
    most = float(images["truth"].max())
    for axis, (title, image) in zip(figure.subplots(1, len(images)), images.items(), strict=True):
        axis.imshow(image, cmap="gray", vmin=0, vmax=0.5 * most)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pictures", "ct", "ptychography"))
    parser.add_argument("--picture", type=Path)
    parsed = parser.parse_args()
    if parsed.what == "ct":
        ct(parsed.picture)
    else:
        {"pictures": pictures, "ptychography": ptychography}[parsed.what]()


if __name__ == "__main__":
    main()
