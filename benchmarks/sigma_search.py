"""How good the sigma is that a run finds by itself, and what it costs: Born scans of pictures, at 20, 30 and 40 dB.

    python benchmarks/sigma_search.py ../shared/data/paper-images --device cuda
    python benchmarks/sigma_search.py ../shared/data/images/BSD68 --count 8 --device cuda

Of each picture the scan of the paper (60 views, 360 receivers) is made, with noise of its own. The best sigma is found
with the truth: plain runs of 100 steps over a grid of sigma, and once more at the top of the parabola through the best
three. Against it, what `plugstream reconstruct scan.zarr` does: at most 200 steps that search, judged by six views, and
40 with all of them. Prints the average and the worst difference in SNR, and the denoiser calls of both.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms import BoundedMomentum, ProximalGradient, SigmaRace
from plugstream.denoisers import Denoiser
from plugstream.experiments.runs import make_denoiser
from plugstream.experiments.setup import PerImage
from plugstream.fidelity import LeastSquares
from plugstream.models.born import BornModel
from plugstream.models.born_geometry import BornGeometry
from plugstream.noise import add_noise
from plugstream.runs.images import load_picture
from plugstream.sampling import Uniform

GRID = np.geomspace(0.002, 0.35, 14)
STEPS, SEARCH, AFTER, BATCH = 100, 200, 40, 10
# A tenth of a first image's range that is a third of the image's; the paper's images reach from 0 to 1.
START = {"tv": 0.11, "bm3d": 0.03, "tnrd": 0.03}


def snr(image: Tensor, truth: Tensor) -> Tensor:
    """In dB, of each image."""
    return 20 * torch.log10(truth.norm() / (image - truth).flatten(-2).norm(dim=-1))


def best_with_truth(fidelity: LeastSquares, denoiser: Denoiser, truth: Tensor) -> tuple[float, float]:
    """The largest SNR of plain runs, and its sigma."""
    scores: dict[float, float] = {}

    def run(sigmas: np.ndarray) -> None:
        levels = torch.as_tensor(sigmas, dtype=truth.dtype, device=truth.device)
        algorithm = ProximalGradient(
            fidelity, PerImage(denoiser, levels), sigma=1.0, sampler=Uniform(BATCH), momentum="nesterov"
        )
        state = algorithm.init(torch.zeros(len(levels), *truth.shape, dtype=truth.dtype, device=truth.device))
        for _ in range(STEPS):
            state = algorithm.step(state)
        scores.update(zip(sigmas.tolist(), snr(state.image, truth).tolist(), strict=True))

    run(GRID)
    at = min(max(int(np.argmax([scores[sigma] for sigma in GRID])), 1), len(GRID) - 2)
    low, top, high = (scores[sigma] for sigma in GRID[at - 1 : at + 2])
    bend = low - 2 * top + high
    place = 0.5 * (low - high) / bend if bend < 0 else 0.0
    run(np.array([GRID[at] * math.exp(float(np.clip(place, -1, 1)) * math.log(GRID[1] / GRID[0]))]))
    sigma = max(scores, key=lambda one: scores[one])
    return scores[sigma], sigma


def find(fidelity: LeastSquares, denoiser: Denoiser, truth: Tensor, start: float) -> tuple[float, float, int]:
    """The SNR of a run that searches for sigma, the sigma that it found, and its denoiser calls."""
    views = torch.arange(fidelity.n_views)
    out = views % 10 == 9
    fewer = fidelity.with_views(fidelity.model, views[~out], lipschitz_max=fidelity.lipschitz_max)
    algorithm = ProximalGradient(fewer, denoiser, sigma=start, sampler=Uniform(BATCH), momentum=BoundedMomentum(8.0))
    race = SigmaRace(algorithm, views[out], SEARCH)
    state = race.init(torch.zeros_like(truth))
    while not state.ended:
        state = race.step(state)
    going, after = race.finish(state, replace(algorithm, fidelity=fidelity))
    for _ in range(AFTER):
        after = going.step(after)
    return float(snr(after.image, truth)), state.sigma, after.k


def compare(pictures: list[Path], size: int, device: str, denoisers: list[str]) -> None:
    """Print the table."""
    model = BornModel(BornGeometry.paper(size), device=device)
    print(f"{len(pictures)} pictures of {size} x {size}: {', '.join(path.stem for path in pictures)}")
    print(f"{'denoiser':9}{'input':>7}{'best':>8}{'found':>8}{'mean':>8}{'worst':>8}{'sigma / best':>20}{'calls':>7}")
    for name in denoisers:
        denoiser = make_denoiser(name)
        for level in (20.0, 30.0, 40.0):
            rows = []
            for seed, path in enumerate(pictures):
                truth = load_picture(path, size).to(device=model.device, dtype=model.dtype)
                data = add_noise(model.forward(truth).cpu(), level, seed=seed)
                fidelity = LeastSquares(model, data)
                best, sigma = best_with_truth(fidelity, denoiser, truth)
                score, found, calls = find(fidelity, denoiser, truth, START[name])
                rows.append((best, score, found / sigma, calls))
            bests, scores, ratios, counts = np.array(rows).T
            behind = scores - bests
            spread = f"{np.exp(np.log(ratios).mean()):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
            means = f"{bests.mean():8.2f}{scores.mean():8.2f}{behind.mean():+8.2f}{behind.min():+8.2f}"
            print(f"{name:9}{level:4.0f} dB{means}{spread:>20}{counts.max():7.0f}", flush=True)


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of pictures")
    parser.add_argument("--count", type=int, default=100, help="of them at most so many, evenly spaced")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--denoisers", nargs="+", default=["tv", "bm3d", "tnrd"])
    asked = parser.parse_args()
    found = sorted(asked.pictures.glob("*.png"))
    places = np.linspace(0, len(found) - 1, min(asked.count, len(found))).round().astype(int)
    compare([found[place] for place in places], asked.size, asked.device, asked.denoisers)


if __name__ == "__main__":
    main()
