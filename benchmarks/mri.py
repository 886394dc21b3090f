"""MRI: simulated multi-coil data beside CG-SENSE, and our transforms beside sigpy's and mri-nufft's.

    python benchmarks/mri.py                             times, beside peers where build/peers has them
    python benchmarks/mri.py --threads 2 --rounds 5      the same on two threads, ours and theirs in turns, the median
    python benchmarks/mri.py --cpu                       seconds of the processor, one thread, for a busy machine
    python benchmarks/mri.py --device cuda               ours on a GPU beside ours on the CPU
    python benchmarks/mri.py --simulated                 SNR of simulated spokes and spirals, undersampled by 4 and 8

Everything is by command. Peers have a Python of their own, build/peers (`make bench-peers`), or that of --peer. A real
scan is that of benchmarks/mri_real.py.
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
from plugstream.instruments.mri_simulation import ring_coils
from plugstream.models.kspace import centered_voxels
from plugstream.models.mri import MRIModel
from plugstream.models.trajectories import radial_spokes, spiral_interleaves
from plugstream.scans.baselines.first_image import form_image

PEER = Path("build/peers/bin/python")
BARS = {"forward": 0.5, "adjoint": 1.0}  # ms for radial and spiral paths of 256 x 256 and 8 coils on an H200
QUIET = ["--report", "none"]


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
    """The least time of a call, after four that do not count, by which graphs are captured."""
    clock = time.process_time if cpu else time.perf_counter
    for _ in range(4):
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


def time_transforms(peer: Path, place: Path, size: int, coils: int, cpu: bool, rounds: int) -> None:
    """Forward, adjoint and H^H H, which is one iteration of CG-SENSE but for a few sums, in the same run as peers.

    In each round ours come first and then theirs, so that a machine that slows down does so for all; the ratio is the
    median over rounds, with the least and the largest.
    """
    print(f"{size} x {size}, {coils} coils, {torch.get_num_threads()} threads; ms, and peers as a multiple of ours")
    for kind in ("radial", "spiral"):
        path, model, image = problem(kind, size, coils)
        data = model.forward(image)
        exact = MRIModel(path, model.voxels, model.coil_maps.numpy(), dtype=torch.float64).forward(image)
        error = float((data - exact).norm() / exact.norm())
        np.savez(
            place / "problem.npz",
            path=path,
            maps=model.coil_maps.numpy(),
            image=image.numpy(),
            data=exact.to(torch.complex64).numpy().transpose(1, 0, 2),
        )
        calls = {"forward": (model.forward, image), "adjoint": (model.adjoint, data), "normal": (model.normal(), image)}
        own: dict[str, list[float]] = {name: [] for name in calls}
        theirs: dict[str, dict[str, list[float]]] = {}
        for _ in range(rounds):
            for name, (function, value) in calls.items():
                own[name].append(least(function, value, cpu=cpu))
            for name, times in ask_peers(peer, place / "problem.npz", cpu).items():
                if "failed" in times:
                    print(f"    {name}: {times['failed']}")
                    continue
                for what, values in theirs.setdefault(name, {what: [] for what in (*own, "error")}).items():
                    values.append(times[what])
        text = ", ".join(f"{name} {1e3 * min(values):.1f}" for name, values in own.items())
        print(f"{kind}, {path.shape[0]} x {path.shape[1]} samples: {text}; error {error:.1e}", flush=True)
        for name, kept in theirs.items():
            ratios = []
            for what, values in own.items():
                each = sorted(other / ours for other, ours in zip(kept[what], values, strict=True))
                spread = f" ({each[0]:.2f} to {each[-1]:.2f})" if rounds > 1 else ""
                ratios.append(f"{what} {float(np.median(each)):.2f} x{spread}")
            print(f"    {name}: {', '.join(ratios)}; error {kept['error'][0]:.1e}", flush=True)


def time_device(device: str, size: int, coils: int) -> None:
    """Our transforms on another device, and the CPU's time in the same run over theirs."""
    print(f"{size} x {size}, {coils} coils, {device} beside {torch.get_num_threads()} threads; ms")
    for kind in ("radial", "spiral"):
        path, model, image = problem(kind, size, coils)
        there = MRIModel(path, model.voxels, model.coil_maps.numpy(), device=device)
        exact = MRIModel(path, model.voxels, model.coil_maps.numpy(), dtype=torch.float64).forward(image)
        words = []
        for name in ("forward", "adjoint", "normal"):
            times = []
            for one in (model, there):
                value = (exact if name == "adjoint" else image).to(one.device, torch.complex64)
                function = one.normal() if name == "normal" else getattr(one, name)

                def call(function: Any = function, value: Any = value) -> None:
                    function(value)
                    if value.is_cuda:
                        torch.cuda.synchronize()

                times.append(least(call))
            words.append(f"{name} {1e3 * times[1]:.2f} ({times[0] / times[1]:.1f} x faster)")
            if (bar := BARS.get(name)) is not None and (size, coils) == (256, 8):
                met = "pass" if 1e3 * times[1] <= bar else "FAIL"
                print(f"  {met}: {kind} {name} {1e3 * times[1]:.2f} ms, promised {bar:g} ms on an H200")
        error = float((there.forward(image.to(device)).cpu() - exact).norm() / exact.norm())
        print(f"{kind}, {path.shape[0]} x {path.shape[1]} samples: {', '.join(words)}; error {error:.1e}", flush=True)


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
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--object", default="camera", help="what is simulated: a picture, or shepp-logan")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--coils", type=int, default=8)
    parser.add_argument("--peer", type=Path, default=PEER)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of ours and of peers; all there are if not given")
    parser.add_argument("--rounds", type=int, default=1, help="how often ours and theirs are timed in turns")
    chosen = parser.parse_args()
    if chosen.threads is not None or chosen.cpu:
        torch.set_num_threads(1 if chosen.cpu else chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.simulated:
            judge_simulated(Path(folder), chosen.size, chosen.object)
        elif chosen.device != "cpu":
            time_device(chosen.device, chosen.size, chosen.coils)
        else:
            time_transforms(chosen.peer, Path(folder), chosen.size, chosen.coils, chosen.cpu, chosen.rounds)
