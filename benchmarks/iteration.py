"""Time of one iteration at the paper's setting, and where it goes: gradient or prox, denoiser, and the rest.

256 x 256 pixels, 60 views, 360 receivers, BM3D: PnP-SGD with 10 views an iteration, and the batch methods it is
measured against in the paper, PnP-FISTA and PnP-ADMM with all 60. The paper's times an iteration, in MATLAB, were
8.86, 44.94 and 382.83 s. The bar is 0.15 s for PnP-SGD(10) on two cores.

    python benchmarks/iteration.py [--steps 10] [--device cuda] [--method dense]

With --volume SIZE, on a GPU: PnP-SGD with the TV of a volume of SIZE^3, 10 of 180 views a step, parallel and cone beam,
beside the same algorithm in plain torch: projections by `grid_sample` and its own adjoint, and the torch form of TV.
The bar: TV's prox, to its tolerance of 1e-3, takes at most twice as long as the gradient.

    python benchmarks/iteration.py --volume 512
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import plugstream as ps
from plugstream.algorithms.pgm import GradientState
from plugstream.denoisers import tv_cuda, tv_triton
from plugstream.denoisers.base import Sigma
from plugstream.images.simulated import ELLIPSOIDS
from plugstream.models.base import ModelBase
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import cone_beam, parallel_beam
from plugstream.models.ct_geometry import Voxels
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
        self.inner, self.watch, self.min_size, self.ndim = inner, Watch(), inner.min_size, inner.ndim

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        with self.watch:
            return self.inner.denoise(image, sigma, warm)


class TorchParallel(ModelBase):
    """A parallel beam in plain torch: slices turned by `grid_sample` and added up; the adjoint is autograd's."""

    def __init__(self, size: int, angles: Tensor, device: str = "cuda") -> None:
        self.n_views, self.image_shape, self.data_shape = len(angles), (size,) * 3, (size, size)
        self.device, self.dtype, self.data_dtype = torch.device(device), torch.float32, torch.float32
        turn = torch.stack([angles.cos(), -angles.sin(), 0 * angles, angles.sin(), angles.cos(), 0 * angles], 1)
        self._turns = turn.reshape(-1, 2, 3).float().to(device)

    def _project(self, image: Tensor, view: int) -> Tensor:
        shape = (1, *self.image_shape)
        grid = torch.nn.functional.affine_grid(self._turns[view : view + 1], list(shape), align_corners=False)
        return torch.nn.functional.grid_sample(image[None], grid, align_corners=False)[0].sum(1)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        index = range(self.n_views) if views is None else torch.as_tensor(views).tolist()
        return torch.stack([self._project(image, view) for view in index])

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        index = range(self.n_views) if views is None else torch.as_tensor(views).tolist()
        total = torch.zeros(self.image_shape, device=self.device)
        for part, view in zip(data, index, strict=True):
            with torch.enable_grad():
                image = torch.zeros(self.image_shape, device=self.device, requires_grad=True)
                total += torch.autograd.grad(self._project(image, view), image, part)[0]
        return total


def head(size: int) -> Tensor:
    """`shepp_logan` of a volume, on the GPU."""
    along = (torch.arange(size, device="cuda") - (size - 1) / 2) * 2 / size
    z, y, x = along[:, None, None], along[:, None], along
    total = torch.zeros((size,) * 3, device="cuda")
    for value, a, b, c, x0, y0, z0, turn in ELLIPSOIDS:
        cosine, sine = math.cos(math.radians(turn)), math.sin(math.radians(turn))
        u, v = (x - x0) * cosine + (y - y0) * sine, (y - y0) * cosine - (x - x0) * sine
        total += value * ((u / a) ** 2 + (v / b) ** 2 + ((z - z0) / c) ** 2 <= 1)
    return total.clamp_min_(0)


def time_volume(
    name: str, fidelity: WatchedFidelity, step: float, state: GradientState, truth: Tensor, steps: int
) -> tuple[tuple[float, float, float], ps.ProximalGradient, GradientState]:
    """Milliseconds of a step, of its gradient and of its prox, by medians; the algorithm, and its state after them.

    Arguments: name, to print; fidelity; step; state, from which as many steps are taken that are not timed; truth;
    steps that are timed.
    """
    denoiser = WatchedDenoiser(ps.TV(ndim=3, low=0.0))
    make = functools.partial(ps.ProximalGradient, sigma=0.02, step_size=step, sampler=ps.Epochs(10), momentum="tapered")
    algorithm, plain = make(fidelity, denoiser), make(ps.LeastSquares(fidelity.model, fidelity.data()), denoiser.inner)
    state = functools.reduce(lambda state, _: algorithm.step(state), range(steps), state)
    rows = []
    for _ in range(steps):
        fidelity.watch.seconds = denoiser.watch.seconds = 0.0
        state = algorithm.step(state)
        rows.append((1e3 * fidelity.watch.seconds, 1e3 * denoiser.watch.seconds))
    gradient, prox = (statistics.median(column) for column in zip(*rows, strict=True))
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        whole = Watch()
        with whole:
            state = plain.step(state)
        times.append(1e3 * whole.seconds)
    took, peak = statistics.median(times), torch.cuda.max_memory_allocated() / 1e9
    error = float((state.image - truth).norm() / truth.norm())
    print(
        f"{name:14}{took:8.2f} ms a step (gradient {gradient:.2f}; TV {prox:.2f}, {min(row[1] for row in rows):.2f} to "
        f"{max(row[1] for row in rows):.2f}); at most {peak:.1f} GB of memory; error {error:.3f} after {state.k} steps",
        flush=True,
    )
    return (took, gradient, prox), plain, state


def _profile(algorithm: ps.ProximalGradient, state: GradientState) -> None:
    """Print for how much of three steps the device works, and what a step of `solve` takes, its checks included."""
    _wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        state = functools.reduce(lambda state, _: algorithm.step(state), range(3), state)
        _wait()
    ranges = [event.time_range for event in profile.events() if str(event.device_type).endswith("CUDA")]
    span = max(r.end for r in ranges) - min(r.start for r in ranges)
    busy = sum(r.elapsed_us() for r in ranges)
    print(f"  the device works for {busy / 3e3:.2f} ms a step, {100 * busy / span:.0f} % of the time in a profile")
    ps.solve(algorithm, state=state, iterations=1)
    whole = Watch()
    with whole:
        ps.solve(algorithm, state=state, iterations=20)
    print(f"  in `solve`: {1e3 * whole.seconds / 20:.2f} ms a step")


def compare_volume(size: int, steps: int) -> bool:
    """A step on a volume, ours beside plain torch; whether the prox is within twice the gradient's time."""
    print(f"{torch.cuda.get_device_name()}, {size}^3 voxels, 10 of 180 views a step, 3D TV to 1e-3 (ms are medians)")
    angles = np.pi * np.arange(180) / 180
    volume, voxels = head(size), Voxels((size,) * 3, 1.0)
    beams = {
        "cone beam": cone_beam(2 * angles, (size, size), 2.0, source=4 * size, detector=4 * size),
        "parallel beam": parallel_beam(angles, (size, size), 1.0),
    }
    good, zero = True, torch.zeros_like(volume)
    for name, rays in beams.items():
        model = CTModel(rays, voxels, device="cuda")
        some = torch.tensor([0, 22, 45])  # along an axis and between two, where L_i is largest
        largest = 1.02 * float(model.squared_norm_bounds(some).max())
        data = model.forward(volume)
        noise = torch.randn(data.shape, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
        data.add_(noise, alpha=0.01 * float(data.max()))
        start = GradientState(0, zero, zero)
        (took, gradient, prox), algorithm, state = time_volume(
            name, WatchedFidelity(model, data), 1 / largest, start, volume, steps
        )
        good &= prox <= 2 * gradient
        print(f"  {'pass' if prox <= 2 * gradient else 'FAIL'}: TV takes {prox / gradient:.2f} x the gradient, bar 2 x")
    forms = tv_cuda.serves, tv_triton.serves
    tv_cuda.serves, tv_triton.serves = lambda volumes: False, lambda *arguments: False  # the torch form
    peer = WatchedFidelity(TorchParallel(size, torch.from_numpy(angles)), data)
    (slow, *_), *_ = time_volume("plain torch", peer, 1 / largest, state, volume, 2)
    tv_cuda.serves, tv_triton.serves = forms
    print(f"  a step of ours takes {slow / took:.0f} times less than this, on the same data and from the same image")
    _profile(algorithm, state)
    return good


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed, after two that are not")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="auto", help="of the Born model: auto, dense or fast")
    parser.add_argument("--picture", default="camera", help="a picture file, or the name of a scikit-image picture")
    parser.add_argument("--volume", type=int, metavar="SIZE", help="a volume of SIZE^3 on a GPU instead")
    options = parser.parse_args()
    if options.volume:
        sys.exit(0 if compare_volume(options.volume, options.steps) else 1)
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
