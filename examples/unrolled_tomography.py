"""Training through the projector: five unrolled steps for tomography from 30 views, on pictures of discs and boxes.

    python examples/unrolled_tomography.py [seconds]

Each step is a gradient of ||A x - y||^2 / 2 by `DifferentiableModel`, followed by a small network of its own. It is
trained on objects drawn at random and tested on others, beside filtered back-projection and TV, whose sigma is the best
of a few on training objects.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import Tensor, nn

import plugstream as ps
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.scans.baselines.filtered import filtered_back_projection

SIZE, VIEWS, NOISE = 64, 30, 0.01
RAYS, VOXELS = parallel_beam(np.pi * np.arange(VIEWS) / VIEWS, 92, 1 / SIZE), Voxels((SIZE, SIZE), 1 / SIZE)
MODEL = ps.CTModel(RAYS, VOXELS)


def draw_objects(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Overlapping discs and boxes within a circle, (count, N, N), and their noisy data."""
    draw, (y, x) = np.random.default_rng(seed), np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    images = np.zeros((count, SIZE, SIZE), np.float32)
    for image in images:
        for _ in range(draw.integers(4, 10)):
            a, b, r, s, angle = *draw.uniform(-0.5, 0.5, 2), *draw.uniform(0.05, 0.35, 2), draw.uniform(0, np.pi)
            u, v = np.cos(angle) * (x - a) + np.sin(angle) * (y - b), np.cos(angle) * (y - b) - np.sin(angle) * (x - a)
            inside = np.hypot(u / r, v / s) < 1 if draw.random() < 0.5 else (abs(u) < r) & (abs(v) < s)
            image[inside & (np.hypot(x, y) < 0.9)] = draw.uniform(0, 1)
    truth = torch.from_numpy(images)
    clean = MODEL.forward(truth)
    return truth, clean + NOISE * torch.from_numpy(draw.standard_normal(clean.shape).astype(np.float32))


class Unrolled(nn.Module):
    """x <- x - step_k A^T (A x - y), then x <- x + N_k(x, the step), k = 1 .. 5."""

    def __init__(self, steps: int = 5, channels: int = 16) -> None:
        super().__init__()
        self.project = ps.DifferentiableModel(MODEL)
        squared_norm = float(MODEL.squared_norms(torch.arange(1), 0.1)) * VIEWS
        self.step = nn.Parameter(torch.full((steps,), 1.0 / squared_norm))
        self.networks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2, channels, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(channels, 1, 3, padding=1),
            )
            for _ in range(steps)
        )

    def forward(self, data: Tensor, start: Tensor) -> Tensor:
        x = start
        for step, network in zip(self.step, self.networks, strict=True):
            change = step * self.project.adjoint(self.project(x) - data)
            x = x - change
            x = x + network(torch.stack([x, change], 1))[:, 0]
        return x


def start_of(data: Tensor) -> Tensor:
    return filtered_back_projection(data, RAYS, VOXELS, filter="hann")


def tv(data: Tensor, sigma: float) -> Tensor:
    images = []
    for one in data:
        algorithm = ps.ProximalGradient(ps.LeastSquares(MODEL, one), ps.TV(low=0.0), sigma=sigma, momentum="nesterov")
        images.append(ps.solve(algorithm, iterations=100, monitors=[]).image)
    return torch.stack(images)


def quality(images: Tensor, truth: Tensor) -> float:
    return float(np.mean([float(ps.snr(image, one)) for image, one in zip(images, truth, strict=True)]))


def main(seconds: float) -> None:
    torch.manual_seed(0)
    truth, data = draw_objects(400, 0)
    start = start_of(data)
    network = Unrolled()
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    begun, step = time.monotonic(), 0
    while (past := time.monotonic() - begun) < seconds:
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * (1 - past / seconds) + 1e-5
        some = torch.randint(len(truth), (8,))
        loss = (network(data[some], start[some]) - truth[some]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step:5d}   {past:5.0f} s   loss {loss.item():.2e}", flush=True)
        step += 1
    few = slice(0, 8)
    sigma = max((0.01, 0.02, 0.03, 0.05), key=lambda s: quality(tv(data[few], s), truth[few]))
    unseen, measured = draw_objects(16, 1)
    first = start_of(measured)
    with torch.no_grad():
        learned = network(measured, first)
    print(f"{step} steps; SNR on 16 objects that were not used, in dB: filtered back-projection", end=" ")
    print(f"{quality(first, unseen):.2f}, TV (sigma {sigma}) {quality(tv(measured, sigma), unseen):.2f}", end=", ")
    print(f"unrolled {quality(learned, unseen):.2f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
