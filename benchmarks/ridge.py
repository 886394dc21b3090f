"""Trains convex ridge priors of several shapes and curvatures on a GPU, and says how near each comes to BM3D and when.

    python benchmarks/ridge.py --pack Train400 BSD68 pictures.npz
    python benchmarks/ridge.py pictures.npz $OUT [--seconds 24] [--within 205] [--only NAME ...] [--device cuda]

First come the profiles that ship; --only without a name trains none. Each candidate is trained for the same time, from
the normal weights that ship; then its PSNR on the test pictures at noise 2, 5, 15, 25 and 50 of 255 and its time at
256 x 256 are measured, next to BM3D's in the same run. $OUT gets the weights with their cards, and after each part the
table as JSON. A part that fails is told in its place, and the next goes on; a candidate that could not be trained by
then is left out. It needs the library alone, not what the command line needs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.denoisers import BM3D, ConvexRidge, ridge_cuda
from plugstream.denoisers.ridge import PROFILES, load_ridge, save_ridge
from plugstream.denoisers.ridge_prior import Ridges
from plugstream.studies.training.patches import Patches
from plugstream.studies.training.quality import mean_psnr

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of the checkout

from training import ridge_triton
from training.ridge import train_ridge

LEVELS = (2, 5, 15, 25, 50)


def like_shipped(
    *, limit: float, size: int = 9, pairs: int = 24, ratios: tuple[float, ...] = (1.0, 5.0), again: int = 0
) -> Ridges:
    """The weights that ship, cut to a size, with more filters that begin weak, other ratios and another limit."""
    old, _ = load_ridge(PROFILES["normal"])
    rng = torch.Generator().manual_seed(again)
    cut = (old.size - size) // 2
    filters = torch.nn.functional.pad(old.filters, (-cut,) * 4)
    amounts = torch.full((len(old.levels), len(filters), len(ratios)), -9.0)
    for k, ratio in enumerate(old.ratios.tolist()):
        nearest = min(range(len(ratios)), key=lambda m: abs(np.log(ratios[m] / ratio)))
        amounts[..., nearest] = torch.logaddexp(amounts[..., nearest], old.amounts[..., k])
    amounts = amounts.clamp_min(float(old.amounts.min()) - 1)
    widths, more = old.widths, pairs - len(filters)
    if more > 0:
        even, odd = filters.chunk(2)
        made = [0.1 * torch.randn(more // 2, size, size, generator=rng) for _ in range(2)]
        filters = torch.cat([even, made[0], odd, made[1]])
        halves = [[part[:, : len(even)], part[:, len(even) :]] for part in (amounts, widths)]
        weak = amounts.mean(1, keepdim=True).expand(-1, more // 2, -1) - 1
        wide = widths.mean(1, keepdim=True).expand(-1, more // 2)
        amounts = torch.cat([halves[0][0], weak, halves[0][1], weak], 1)
        widths = torch.cat([halves[1][0], wide, halves[1][1], wide], 1)
    return Ridges(filters, amounts, widths, old.levels, torch.tensor(ratios), torch.tensor(float(limit)))


CANDIDATES: dict[str, Callable[[], Ridges]] = {
    "9x9-limit-15": lambda: like_shipped(limit=15),
    "7x7-limit-15": lambda: like_shipped(limit=15, size=7),
    "9x9-limit-30": lambda: like_shipped(limit=30),
    "9x9-limit-80-wide": lambda: like_shipped(limit=80, pairs=32, ratios=(1.0, 3.0, 12.0)),
    "7x7-limit-30": lambda: like_shipped(limit=30, size=7),
    "9x9-limit-80": lambda: like_shipped(limit=80),
}


def pack(train: Path, test: Path, out: Path) -> None:
    """All pictures of two folders, grey, as bytes in one file."""
    from PIL import Image

    arrays = {
        f"{kind}/{file.name}": np.asarray(Image.open(file).convert("L"))
        for kind, folder in (("train", train), ("test", test))
        for file in sorted(folder.glob("*.png"))
    }
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


def load(file: Path) -> dict[str, list[Tensor]]:
    stored = np.load(file)
    return {
        kind: [torch.from_numpy(stored[n].astype(np.float32) / 255) for n in sorted(stored.files) if n.startswith(kind)]
        for kind in ("train", "test")
    }


def milliseconds(call: Callable[[], Any], device: str, repeats: int = 20) -> float:
    """The median; on the CPU of processor time, which other processes hardly change."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    for _ in range(4):
        call()
    times = []
    for _ in range(repeats):
        _wait(device)
        begin = clock()
        call()
        _wait(device)
        times.append(clock() - begin)
    return 1e3 * statistics.median(times)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def speed(ridges: Ridges, truth: Tensor, device: str) -> dict[str, float]:
    """Milliseconds of a cold call at 256 x 256, of one from its own result, of eight images, and of BM3D's."""
    z = truth[:256, :256].to(device)
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(device)
    denoiser, bm3d = ConvexRidge(ridges), BM3D()
    out: dict[str, float] = {}
    for level in (5, 25):
        y = z + level / 255 * noise
        many = y.expand(8, *y.shape).contiguous()
        _, warm = denoiser.denoise(y, level / 255)
        calls: dict[str, Callable[[], Any]] = {
            "ridge": partial(denoiser, y, level / 255),
            "ridge again": partial(denoiser.denoise, y, level / 255, warm),
            "ridge of eight": partial(denoiser, many, level / 255),
            "bm3d": partial(bm3d, y, level / 255),
            "bm3d of eight": partial(bm3d, many, level / 255),
        }
        if device == "cpu":
            calls = {"ridge": calls["ridge"], "bm3d": calls["bm3d"]}
        out |= {f"{name}, noise {level}": round(milliseconds(call, device), 3) for name, call in calls.items()}
    return out


def kernels(device: str) -> dict[str, Any]:
    """How far the kernels are from the torch form on the GPU, and the time of an iteration by their settings."""
    ridges = like_shipped(limit=30).to(device).requires_grad_(False)
    x = torch.rand(1, 1, 256, 256, generator=torch.Generator().manual_seed(0)).to(device)
    potential = ridges.at(torch.tensor([25 / 255], device=device))
    exact = ridges.double().at(torch.tensor([25 / 255], dtype=torch.float64, device=device)).gradient(x.double())
    found: dict[str, Any] = {"torch gradient, ms": milliseconds(lambda: potential.gradient(x), device)}
    for name, form in (("torch", potential.gradient), ("triton", lambda v: ridge_triton.gradient(potential, v))):
        found[f"{name} error"] = float((form(x).double() - exact).norm() / exact.norm())
    usual = dict(ridge_triton._SPREAD), dict(ridge_triton._SETTLE)
    z = x.clone()
    best: dict[str, tuple[float, int, int]] = {}
    for which, settings in (("_SPREAD", [(32, 2), (32, 4), (64, 4), (128, 4), (128, 8)]),
                            ("_SETTLE", [(128, 4), (256, 2), (256, 4), (512, 4)])):  # fmt: skip
        for block, warps in settings:
            setattr(ridge_triton, which, getattr(ridge_triton, which) | {"BLOCK": block, "num_warps": warps})
            try:
                ms = _iteration(potential, z)
            except Exception as error:
                found[f"{which} {block} {warps}"] = f"{type(error).__name__}: {str(error)[:200]}"
                continue
            found[f"{which} {block} {warps}, ms an iteration"] = round(ms, 5)
            best[which] = min(best.get(which, (ms, block, warps)), (ms, block, warps))
        if which in best:
            _, block, warps = best[which]
            setattr(ridge_triton, which, getattr(ridge_triton, which) | {"BLOCK": block, "num_warps": warps})
    found["usual"], found["best"] = usual, best
    return found


def _iteration(potential: Any, z: Tensor) -> float:
    """Milliseconds of an iteration in a CUDA graph of twenty."""
    ridge_triton.prox(potential, z, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ridge_triton.prox(potential, z, 20)
    return milliseconds(graph.replay, "cuda", 10) / 20


def train(name: str, patches: Patches, seconds: float, batch: int, device: str) -> tuple[Ridges, dict[str, Any]]:
    """A candidate after as many steps as fit into the time, by the time of the first ones."""
    start = CANDIDATES[name]()
    options: dict[str, Any] = {"batch": batch, "rate": 0.01, "start": start, "device": device}
    train_ridge(patches, steps=3, **options)
    _wait(device)
    begin = time.perf_counter()
    train_ridge(patches, steps=20, **options)
    _wait(device)
    each = (time.perf_counter() - begin) / 20
    steps = max(20, int(seconds / each))
    losses: list[float] = []
    begin = time.perf_counter()
    ridges = train_ridge(patches, steps=steps, progress=lambda k, loss: losses.append(loss), **options)
    _wait(device)
    spent = time.perf_counter() - begin
    tail, head = losses[-len(losses) // 10 :], losses[: max(1, len(losses) // 10)]
    return ridges, {
        "data": f"Train400, {len(patches.pictures)} pictures",
        "seed": patches.seed,
        "steps": steps,
        "batch": batch,
        "patch": patches.size,
        "rate": 0.01,
        "start": "the weights that shipped with plugstream 0.1.0, reshaped",
        "command": f"python benchmarks/ridge.py pictures.npz OUT --only {name} --seconds {seconds:g}",
        "device": torch.cuda.get_device_name() if device != "cpu" else "CPU",
        "torch": torch.__version__,
        "seconds": round(spent, 1),
        "loss": statistics.fmean(tail),
        "loss_begin": statistics.fmean(head),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", nargs=3, type=Path, metavar=("TRAIN", "TEST", "FILE"))
    parser.add_argument("pictures", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=24)
    parser.add_argument("--within", type=float, default=205, help="seconds for all of it")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--images", type=int, default=68)
    parser.add_argument("--only", nargs="*", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.pack:
        pack(*options.pack)
        return
    if options.pictures is None or options.out is None:
        parser.error("give the file of pictures and a folder for the results")
    begin = time.perf_counter()
    pictures = load(options.pictures)
    truths = pictures["test"][: options.images]
    table: dict[str, Any] = {}

    def tell(name: str, work: Callable[[], Any]) -> bool:
        """Do it, and say and write what it gave or how it failed; whether it did not fail."""
        try:
            table[name], done = work(), True
        except Exception:
            table[name], done = traceback.format_exc()[-1500:].splitlines(), False
        (options.out / "ridge.json").write_text(json.dumps(table, indent=1) + "\n")
        print(f"{time.perf_counter() - begin:6.1f} s  {name}: {json.dumps(table[name])}", flush=True)
        return done

    shipped = {profile: load_ridge(file)[0] for profile, file in PROFILES.items()}
    if options.device != "cpu":
        tell("kernels", lambda: kernels(options.device))
        for without in ("", "graphs", "kernels"):  # what fails is told, and the rest goes on without it
            if without == "graphs":
                os.environ["PLUGSTREAM_CUDA_GRAPHS"] = "0"
            elif without == "kernels":
                ridge_cuda.serves = lambda *_: False
            if tell(f"whole denoiser without {without or 'nothing'}", lambda: whole(shipped["normal"], options.device)):
                break
    tell("BM3D", lambda: {"psnr": mean_psnr(BM3D(), truths, options.device, LEVELS)})
    for profile, ours in shipped.items():
        tell(profile, lambda ridges=ours: {"psnr": mean_psnr(ConvexRidge(ridges), truths, options.device, LEVELS)})  # type: ignore[misc]
        tell(f"{profile}, ms", lambda ridges=ours: speed(ridges, truths[0], options.device))  # type: ignore[misc]
    patches = Patches(pictures["train"], 64, device=options.device)
    for name in options.only:
        if time.perf_counter() - begin + 1.1 * options.seconds + 6 > options.within:
            tell(name, lambda: "left out: too late")
            continue
        tell(name, lambda name=name: candidate(name, patches, truths, options))  # type: ignore[misc]


def whole(ridges: Ridges, device: str) -> dict[str, Any]:
    """The denoiser at two levels at once, often enough for a graph to be replayed."""
    z = torch.rand(2, 128, 128, generator=torch.Generator().manual_seed(0)).cumsum(-1) / 30
    sigma = torch.tensor([5 / 255, 25 / 255])
    exact = ConvexRidge(ridges, tol=1e-8, max_iterations=5000)(z.double(), sigma.double())
    denoiser = ConvexRidge(ridges)
    found = [denoiser(z.to(device), sigma.to(device)) for _ in range(5)]
    away = (found[-1].cpu() - exact).flatten(1).norm(dim=1) / (z - z.mean((-2, -1), keepdim=True)).flatten(1).norm(
        dim=1
    )
    return {"error": away.tolist(), "same bits": [torch.equal(other, found[0]) for other in found]}


def candidate(name: str, patches: Patches, truths: list[Tensor], options: argparse.Namespace) -> dict[str, Any]:
    """Train one, write it, measure it, and write it again with what was measured."""
    file = options.out / f"{name}.safetensors"
    ridges, card = train(name, patches, options.seconds, options.batch, options.device)
    ridges = ridges.cpu()
    save_ridge(file, ridges, card)
    card["psnr_bsd68"] = mean_psnr(ConvexRidge(ridges), truths, options.device, LEVELS)
    save_ridge(file, ridges, card)
    return card | {"ms": speed(ridges, truths[0], options.device)}


if __name__ == "__main__":
    main()
