"""MRI: real and simulated multi-coil data beside CG-SENSE, and our transforms beside sigpy's and mri-nufft's.

    python benchmarks/mri.py                             times, beside peers where build/peers has them
    python benchmarks/mri.py --cpu                       seconds of the processor, one thread, for a busy machine
    python benchmarks/mri.py --real kspace.npy           held-out residuals of a real scan, (coils, H, W)
    python benchmarks/mri.py --real kspace.npy --picture docs/images/brain.png
    python benchmarks/mri.py --simulated                 SNR of simulated spokes and spirals, undersampled by 4 and 8

Of a real scan a tenth of the samples outside the fully sampled middle is left out of all reconstructions and judges
them: ||y - H x|| / ||y||. CG-SENSE is at its best iteration, which those samples choose in its favour. Everything is by
command. Peers have a Python of their own, build/peers (`make bench-peers`), or that of --peer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream import open_scan, snr
from plugstream.cli import main
from plugstream.first_image import form_image, relative_residual, scan_model
from plugstream.instruments.mri_simulation import ring_coils
from plugstream.models.kspace import centered_voxels
from plugstream.models.mri import MRIModel
from plugstream.models.trajectories import radial_spokes, spiral_interleaves

PEER = Path("build/peers/bin/python")
QUIET = ["--report-format", "none"]


def command(*words: object) -> None:
    """Run plugstream in this process, without what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main([str(word) for word in words])
    if code:
        raise SystemExit(said.getvalue())


def reconstruct(scan: Path, *words: object) -> tuple[torch.Tensor, float]:
    """The image of a run, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command("reconstruct", scan, "--out", f"{folder}/run", *QUIET, *words)
        return torch.from_numpy(np.load(f"{folder}/run/result.npy")), time.perf_counter() - begin


def judge_real(file: Path, place: Path, picture: Path | None) -> None:
    """Held-out residuals of a real scan."""
    shown: dict[str, torch.Tensor] = {}
    for crop in ("0.9", "0"):
        kept, held = place / f"kept{crop}.zarr", place / f"held{crop}.zarr"
        words = ["import", "mri", file]
        command(*words, kept, "--leave-out", "0.1", "--crop", crop)
        command(*words, held, "--leave-out", "0.1", "--held-out", "--crop", crop)
        scan = open_scan(held)
        model = scan_model(scan)
        curve: list[tuple[float, int, torch.Tensor]] = []

        def look(k: int, image: torch.Tensor, _: float, scan: Any = scan, model: Any = model) -> None:
            curve.append((relative_residual(scan, image, model), k, image))  # noqa: B023  called before the next crop

        form_image(open_scan(kept), "cg-sense", iterations=16, look=look)
        best, k, image = min(curve, key=lambda one: one[0])
        print(f"maps cropped at {crop}: CG-SENSE {best:.4f} at its best iteration, {k}", flush=True)
        views = open_scan(kept).n_views
        cases = [
            ("TV, all samples", ["--denoiser", "tv", "--sampler", "all", "--iterations", 40]),
            ("BM3D, all samples", ["--denoiser", "bm3d", "--sampler", "all", "--iterations", 40]),
        ]
        if crop == "0":
            shown["CG-SENSE"] = image
            few = max(1, views // 10)
            online = ["--batch", few, "--iterations", 800]
            cases += [(f"TV, {few} of {views} views a step", ["--denoiser", "tv", *online])]
            cases += [(f"BM3D, {few} of {views} views a step", ["--denoiser", "bm3d", *online])]
        for name, more in cases:
            image, took = reconstruct(kept, *more)
            left = relative_residual(scan, image, model)
            print(f"    {name}: {left:.4f}, {100 * (1 - left / best):.1f} % below, {took:.0f} s", flush=True)
            if crop == "0" and "all" in name:
                shown[name.split(",")[0]] = image
        if picture is not None and crop == "0":
            draw(shown, picture)


def draw(images: dict[str, torch.Tensor], path: Path) -> None:
    """Amplitude above, phase below where there is any amplitude, with one scale for all."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(images), figsize=(2.6 * len(images), 6.4), squeeze=False, layout="constrained")
    most = max(float(image.abs().quantile(0.998)) for image in images.values())
    for column, (name, image) in zip(axes.T, images.items(), strict=True):
        size = image.abs()
        shown = column[0].imshow(size, cmap="gray", vmin=0, vmax=most)
        faint = (size / (0.25 * most)).clamp(0, 1).numpy()
        turned = column[1].imshow(image.angle(), cmap="twilight", vmin=-np.pi, vmax=np.pi, alpha=faint)
        column[0].set_title(name)
        for axis in column:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_facecolor("black")
    figure.colorbar(shown, ax=axes[0], shrink=0.8, label="amplitude")
    figure.colorbar(turned, ax=axes[1], shrink=0.8, label="phase (rad)")
    figure.savefig(path, dpi=80)


def judge_simulated(place: Path, size: int, picture: str) -> None:
    """SNR of simulated scans with a known truth: each prior with all views a step and with few, at its usual sigma."""
    print(f"{picture}, {size} x {size}, 8 coils, 30 dB; SNR in dB", flush=True)
    for trajectory in ("radial", "spiral"):
        for factor in (4, 8):
            path = place / f"{trajectory}{factor}.zarr"
            words = ["--trajectory", trajectory, "--acceleration", factor, "--size", size, "--picture", picture]
            command("simulate", path, "--instrument", "mri", *words)
            scan = open_scan(path)
            truth = torch.from_numpy(np.asarray(scan.truth))
            curve: list[float] = []

            def look(k: int, image: torch.Tensor, _: float, curve: Any = curve, truth: Any = truth) -> None:
                curve.append(float(snr(image, truth)))

            form_image(scan, "cg-sense", iterations=20, look=look)
            grid = float(snr(form_image(scan, "gridding"), truth))
            found = [f"gridding {grid:.2f}", f"CG-SENSE {max(curve):.2f} ({1 + int(np.argmax(curve))})"]
            few = max(2, scan.n_views // 5)
            for name in ("tv", "bm3d", "tnrd"):
                for more in (
                    ["--sampler", "all", "--iterations", 40],
                    ["--batch", few, "--iterations", 40 * scan.n_views // few],
                ):
                    image, _ = reconstruct(path, "--denoiser", name, *more)
                    found.append(f"{name} {'all' if more[0] == '--sampler' else few} {float(snr(image, truth)):.2f}")
            print(f"{trajectory} / {factor}, {scan.n_views} views: {', '.join(found)}", flush=True)


def least(function: Callable[..., Any], *arguments: Any, cpu: bool = False, seconds: float = 3.0) -> float:
    """The least time of a call, after two that do not count."""
    clock = time.process_time if cpu else time.perf_counter
    function(*arguments)
    function(*arguments)
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        begin = clock()
        function(*arguments)
        times.append(clock() - begin)
    return min(times)


def problem(kind: str, size: int, coils: int) -> tuple[NDArray[np.float64], MRIModel, torch.Tensor]:
    """A path in cycles a pixel, its model, and an image of noise."""
    voxels = centered_voxels((size, size), 1.0)
    spokes = round(np.pi * size / 8)
    path = radial_spokes(voxels, spokes) if kind == "radial" else spiral_interleaves(voxels, size // 8, 1.0)
    model = MRIModel(path, voxels, ring_coils((size, size), coils)[:, 0])
    return path, model, torch.randn((size, size), dtype=torch.complex64)


def time_transforms(peer: Path, place: Path, size: int, coils: int, cpu: bool) -> None:
    """Forward, adjoint and H^H H, which is one iteration of CG-SENSE but for a few sums, in the same run as peers."""
    print(f"{size} x {size}, {coils} coils, {torch.get_num_threads()} threads; ms, and peers as a multiple of ours")
    for kind in ("radial", "spiral"):
        path, model, image = problem(kind, size, coils)
        data = model.forward(image)
        exact = MRIModel(path, model.voxels, model.coil_maps.numpy(), dtype=torch.float64).forward(image)
        ours = {
            "forward": least(model.forward, image, cpu=cpu),
            "adjoint": least(model.adjoint, data, cpu=cpu),
            "normal": least(model.normal(), image, cpu=cpu),
        }
        error = float((data - exact).norm() / exact.norm())
        text = ", ".join(f"{name} {1e3 * value:.1f}" for name, value in ours.items())
        print(f"{kind}, {path.shape[0]} x {path.shape[1]} samples: {text}; error {error:.1e}", flush=True)
        np.savez(
            place / "problem.npz",
            path=path,
            maps=model.coil_maps.numpy(),
            image=image.numpy(),
            data=exact.to(torch.complex64).numpy().transpose(1, 0, 2),
        )
        for name, times in ask_peers(peer, place / "problem.npz", cpu).items():
            if "failed" in times:
                print(f"    {name}: {times['failed']}")
                continue
            ratios = ", ".join(f"{what} {times[what] / value:.2f} x" for what, value in ours.items())
            print(f"    {name}: {ratios}; error {times['error']:.1e}", flush=True)


def ask_peers(peer: Path, file: Path, cpu: bool) -> dict[str, Any]:
    """Times of sigpy and mri-nufft, with as many threads as we have."""
    if not peer.exists():
        return {"peers": {"failed": f"{peer} is not there; make bench-peers installs them"}}
    threads = str(torch.get_num_threads())
    more = {f"{name}_NUM_THREADS": threads for name in ("OMP", "NUMBA", "MKL", "OPENBLAS")}
    script = Path(__file__).parent / "peers" / "mri_peers.py"
    done = subprocess.run(
        [str(peer), str(script), str(file), *["--cpu"] * cpu],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | more,
    )
    if done.returncode:
        return {"peers": {"failed": done.stderr.strip().splitlines()[-1]}}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--object", default="camera", help="what is simulated: a picture, or shepp-logan")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--coils", type=int, default=8)
    parser.add_argument("--peer", type=Path, default=PEER)
    parser.add_argument("--cpu", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.real is not None:
            judge_real(chosen.real, Path(folder), chosen.picture)
        elif chosen.simulated:
            judge_simulated(Path(folder), chosen.size, chosen.object)
        else:
            if chosen.cpu:
                torch.set_num_threads(1)
            time_transforms(chosen.peer, Path(folder), chosen.size, chosen.coils, chosen.cpu)
