"""The gradient of multiple scattering against that of the fast Born model, in one run, and deepinv's beside it.

    python benchmarks/scattering.py [--device cuda] [--threads 1] [--sizes 64 256] [--clock wall] [--profile]

Ten views of discs in an image of 20 cm, line sources and receivers on a circle of 76 cm, in single precision, to a
relative residual of 1e-3. At 64 x 64 the wavelength is 75 mm (24 pixels, 4 GHz), at 256 x 256 18.7 mm (again 24 pixels,
16 GHz), so that the objects are four times as many wavelengths wide:

discs:  of contrast 1 and 0.5, 30 and 40 mm wide; 1.6 and 2.1 wavelengths at the higher frequency.
foam:   a rod of contrast 2, 31 mm wide, beside foam of 0.45, 80 mm wide, as the Institut Fresnel has them.
filled: contrast 0.05 everywhere but at the edge, which no box makes smaller.

Where deepinv is installed its `Scattering` computes the same gradient by its default solver, LSQR, in single precision
to the same tolerance (its BiCGStab fails in its version 0.5.0).

Bars: 25 x Born at 64 and 60 x at 256 on a CPU; 6, 10 and 7 ms for the three at 256 x 256 on an H200, each with a line
that says pass or FAIL, and the exit status is 1 where one fails. --profile says where the time of a gradient goes,
by torch's operations and, on a GPU, by its kernels. The clock is the process's CPU time unless --clock wall is given,
since other work makes a wall clock useless; with one thread both are the same on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from plugstream import BornGeometry, BornModel, Grid, ScatteringModel
from plugstream.base.block_gmres import Solutions
from plugstream.images.simulated import disc
from plugstream.models.field_equation import FieldEquation

WIDTH, VIEWS, RECEIVERS, RADIUS = 0.2, 10, 72, 0.76
BARS = {"discs": 6.0, "foam": 10.0, "filled": 7.0}  # ms at 256 x 256 on an H200


def milliseconds(*functions: Callable[[], object], repeats: int = 7, clock: str = "cpu") -> list[float]:
    """Median times, the functions taking turns; the first ones warm caches and the library, and capture graphs."""
    now = time.perf_counter if clock == "wall" else time.process_time
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(repeats + 4):
        for function, row in zip(functions, times, strict=True):
            _wait()
            begin = now()
            function()
            _wait()
            if turn >= 4:
                row.append(1e3 * (now() - begin))
    return [statistics.median(row) for row in times]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def experiment(size: int) -> BornGeometry:
    """24 pixels a wavelength, whatever the size."""
    pixel = WIDTH / size
    return BornGeometry.rings(Grid((size, size), pixel), 24 * pixel, views=VIEWS, receivers=RECEIVERS, radius=RADIUS)


def objects(grid: Grid) -> dict[str, torch.Tensor]:
    rod = disc(grid, (-0.0555, 0.0), 0.0155)
    inner = np.zeros(grid.shape)
    inner[2:-2, 2:-2] = 0.05
    found = {
        "discs": disc(grid, (0.0, 0.03), 0.015) + 0.5 * disc(grid, (-0.02, -0.03), 0.02),
        "foam": 0.45 * disc(grid, (0.0, 0.0), 0.04) + 2 * rod,
        "filled": inner,
    }
    return {name: torch.from_numpy(image).float() for name, image in found.items()}


def count_products(call: Callable[[], object]) -> str:
    """Products with blocks of views within a call, by the box: the object's first, then those of coarser grids."""
    taken: Counter[tuple[int, ...]] = Counter()
    solve = FieldEquation.solve

    def watched(self: FieldEquation, *arguments: Any, **options: Any) -> Solutions:
        found = solve(self, *arguments, **options)
        taken[tuple(self.contrast.shape)] += found.iterations
        return found

    FieldEquation.solve = watched  # type: ignore[method-assign]
    try:
        call()
    finally:
        FieldEquation.solve = solve  # type: ignore[method-assign]
    return ", ".join(f"{taken[shape]} of {shape[0]}x{shape[1]}" for shape in sorted(taken, reverse=True))


def profile(call: Callable[[], object]) -> None:
    """Print the operations of a call that take longest, and how many there are."""
    on_gpu = torch.cuda.is_available()
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=kinds) as found:
        call()
        _wait()
    rows = found.key_averages()
    print(f"     {sum(row.count for row in rows)} calls")
    for order in ("self_cpu_time_total", *(["self_cuda_time_total"] if on_gpu else [])):
        print(rows.table(sort_by=order, row_limit=12, max_name_column_width=48))


def peer_gradients(size: int, geometry: BornGeometry, device: str) -> dict[str, Callable[..., object]]:
    """deepinv's gradient J^H (A(x) - y) of the same experiment, by solver; empty where it is not installed.

    Its pixels reach from edge to edge of its box, so that the box here is a pixel smaller; its y points the other way.
    """
    if importlib.util.find_spec("deepinv") is None:
        return {}
    scattering: Any = importlib.import_module("deepinv.physics").Scattering
    assert geometry.transmitters is not None
    made: dict[str, Callable[..., object]] = {}
    for solver in ("lsqr",):
        physics = scattering(
            img_width=size,
            receivers=torch.from_numpy(geometry.receivers.T.copy()),
            transmitters=torch.from_numpy(geometry.transmitters.T.copy()),
            background_wavenumber=geometry.wavenumber,
            solver_config=scattering.SolverConfig(solver=solver, tol=1e-3),
            box_length=WIDTH - geometry.grid.pixel,
            device=device,
            dtype=torch.complex64,
        )

        def gradient(x: torch.Tensor, physics: Any = physics) -> object:
            image = x[None, None].to(torch.complex64)
            residual = physics.A(image) * 0.1
            return physics.A_vjp(image, residual)

        made[solver] = gradient
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--clock", choices=["cpu", "wall"])
    parser.add_argument("--profile", action="store_true", help="print what a gradient spends its time on")
    parser.add_argument("--no-peer", action="store_true", help="leave deepinv out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = options.clock or ("cpu" if options.device == "cpu" else "wall")
    print(f"on {options.device}, {options.threads} threads, {clock} clock; gradients of {VIEWS} views, ms")
    failed = 0
    for size in options.sizes:
        geometry = experiment(size)
        born = BornModel(geometry, method="fast", device=options.device)
        model = ScatteringModel(geometry, device=options.device)
        peers = {} if options.no_peer else peer_gradients(size, geometry, options.device)
        for name, image in objects(geometry.grid).items():
            x = image.to(options.device)
            y = 0.9 * model.forward(x)

            ours, weak = partial(model.gradient, x, y), partial(born.gradient, x, y)
            b, s = milliseconds(weak, ours, clock=clock)
            steps = count_products(ours)
            print(
                f"{size:4d} {name:8} Born {b:8.2f}  scattering {s:8.1f}  ratio {s / b:6.1f}  products {steps}",
                flush=True,
            )
            if size == 256 and torch.device(options.device).type == "cuda":
                met = s <= BARS[name]
                failed |= not met
                print(f"     {'pass' if met else 'FAIL'}: {s:.1f} ms, promised {BARS[name]:g} on an H200", flush=True)
            if options.profile:
                profile(ours)
            for solver, gradient in peers.items():
                (p,) = milliseconds(partial(gradient, x), repeats=1, clock=clock)
                print(f"{'':14}deepinv by {solver:9} {p:10.1f}  {p / s:.1f} times ours", flush=True)
        if not peers:
            print("     deepinv is not installed, or left out")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
