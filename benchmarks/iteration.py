"""Time of one iteration at the paper's setting, and where it goes: gradient or prox, denoiser, and the rest.

256 x 256 pixels, 60 views, 360 receivers, BM3D: PnP-SGD with 10 views an iteration, and the batch methods it is
measured against in the paper, PnP-FISTA and PnP-ADMM with all 60. The paper's times an iteration, in MATLAB, were
8.86, 44.94 and 382.83 s. The bar is 0.15 s for PnP-SGD(10) on two cores.

    python benchmarks/iteration.py [--steps 10] [--device cuda] [--method dense]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor

import plugstream as ps
from plugstream.denoisers.base import Sigma
from plugstream.models.views import Views

PAPER = {"PnP-SGD(10)": 8.86, "PnP-FISTA(60)": 44.94, "PnP-ADMM(60)": 382.83}


class Watch:
    """Adds up the seconds spent in a part of each step."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        _wait()
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        _wait()
        self.seconds += time.perf_counter() - self._begin


class WatchedFidelity(ps.LeastSquares):
    """Least squares with a watch on its gradient and prox."""

    watch = Watch()

    def gradient(self, image: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        with self.watch:
            return super().gradient(image, views, weights)

    def prox(
        self,
        image: Tensor,
        gamma: float,
        views: Views = None,
        weights: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        with self.watch:
            return super().prox(image, gamma, views, weights, start)


class WatchedDenoiser(ps.Denoiser):
    """A denoiser with a watch."""

    def __init__(self, inner: ps.Denoiser) -> None:
        self.inner, self.watch, self.min_size = inner, Watch(), inner.min_size

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        with self.watch:
            return self.inner.denoise(image, sigma, warm)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after two that are not")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="auto", help="of the Born model: auto, dense or fast")
    parser.add_argument("--picture", default="camera", help="a picture file, or the name of a scikit-image picture")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"CPU, {torch.get_num_threads()} threads"
    model = ps.BornModel(ps.BornGeometry.paper(), method=options.method, device=options.device)
    print(f"on {where}; {model.describe()}")
    scan = ps.simulate(model, ps.load_picture(options.picture, 256), snr=40)
    fidelity = WatchedFidelity(model, scan.data)
    begin = time.perf_counter()
    largest = fidelity.lipschitz_max
    print(f"max_i L_i = {largest:.3e}, found in {time.perf_counter() - begin:.2f} s")
    denoiser = WatchedDenoiser(ps.Clip(ps.BM3D(), 0.0))
    sigma = 0.6 / 255
    algorithms: dict[str, ps.Algorithm[Any]] = {
        "PnP-SGD(10)": ps.ProximalGradient(
            fidelity, denoiser, sigma=sigma, sampler=ps.ShiftedViews(10), momentum="nesterov"
        ),
        "PnP-FISTA(60)": ps.ProximalGradient(fidelity, denoiser, sigma=sigma, momentum="nesterov"),
        "PnP-ADMM(60)": ps.ADMM(fidelity, denoiser, sigma=sigma, step_size="10/L"),
    }
    print(
        f"{'':16}{'iteration':>11}{'gradient':>10}{'denoiser':>10}{'rest':>8}{'paper':>10}{'ratio':>8}   (ms, medians)"
    )
    for name, algorithm in algorithms.items():
        state, rows = algorithm.init(), []
        for step in range(options.steps + 2):
            fidelity.watch.seconds = denoiser.watch.seconds = 0.0
            whole = Watch()
            with whole:
                state = algorithm.step(state)
            if step >= 2:
                rows.append((whole.seconds, fidelity.watch.seconds, denoiser.watch.seconds))
        total, data, prior = (1e3 * statistics.median(column) for column in zip(*rows, strict=True))
        paper = PAPER[name]
        print(
            f"{name:16}{total:11.1f}{data:10.1f}{prior:10.1f}{total - data - prior:8.1f}"
            f"{1e3 * paper:10.0f}{1e3 * paper / total:8.0f}"
        )
    print("for PnP-ADMM the gradient's column is its prox, by conjugate gradients")


if __name__ == "__main__":
    main()
