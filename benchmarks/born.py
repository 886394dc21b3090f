"""The fast Born method against the dense product, in one run: time, error, memory, and how they grow with the image.

    python benchmarks/born.py [--device cuda] [--threads 2] [--parts paper large growth] [--out growth.png]

paper:  256 x 256, 60 views, 360 receivers; forward and adjoint of all views, of 10 and of 1, against the dense method.
large:  1024 x 1024, 240 views, 1,440 receivers. The Green's matrix would take 12 GB, so the dense method is timed on a
        part of the views and receivers, with all pixels, and scaled by views x receivers; its blocks are set so large
        that each product runs over all of the part's views at once, which flatters it.
growth: 128 to 2048 pixels a side at the paper's 6 pixels a wavelength, once with its 60 views and 360 receivers, once
        with both growing with the side (240 and 1,440 at 1024); exponents are fitted to time against pixels.

Bars: 3 x at the paper's size with an error below 1e-5 and under 40 MB; 50 x at 1024 in under 1 GB; exponent 1.15. On a
GPU: forward, adjoint and gradient of 60 views faster than the dense product, each with a line that says pass or FAIL.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import plugstream.models.born_dense as born_dense
from plugstream import BornGeometry, BornModel, Grid

PIXEL = 0.18 / 256


def milliseconds(*functions: Callable[[], object], repeats: int = 9) -> list[float]:
    """Median times, the functions taking turns so that a busy machine slows all of them alike."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(repeats + 4):
        for function, row in zip(functions, times, strict=True):
            _wait()
            begin = time.perf_counter()
            function()
            _wait()
            if turn >= 4 or repeats < 3:  # the first turns warm caches and the library, and capture graphs
                row.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(row) for row in times]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def experiment(size: int, views: int, receivers: int) -> BornGeometry:
    """The paper's experiment with more or fewer of its pixels, views and receivers."""
    return BornGeometry.rings(Grid((size, size), PIXEL), 6 * PIXEL, views=views, receivers=receivers, radius=1.6)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(got.to(want.dtype) - want) / torch.linalg.vector_norm(want))


def paper(device: str) -> None:
    geometry = BornGeometry.paper()
    models = {}
    for method in ("dense", "fast"):
        begin = time.perf_counter()
        models[method] = BornModel(geometry, method=method, device=device)
        print(f"{method}: built in {time.perf_counter() - begin:.2f} s, {models[method].held / 1e6:.1f} MB held")
    print(f"auto takes: {BornModel(geometry, device=device).describe()}")
    dense, fast = models["dense"], models["fast"]
    x = torch.rand(256, 256, device=device)
    exact = BornModel(geometry, method="dense", dtype=torch.float64, device=device)
    y = exact.forward(x.double())
    z = y.to(torch.complex64)
    print(f"error against the dense method in double: forward {relative(fast.forward(x), y):.1e}, ", end="")
    print(f"adjoint {relative(fast.adjoint(z), exact.adjoint(y)):.1e}")
    del exact
    print(f"{'':26}{'dense':>10}{'fast':>10}{'ratio':>8}   (ms, medians)")
    for count in (60, 10, 1):
        views = None if count == 60 else torch.arange(count) * 60 // count
        data = z if views is None else z[views.to(device)]

        jobs: dict[str, list[Callable[[], object]]] = {
            "forward": [partial(model.forward, x, views) for model in (dense, fast)],
            "adjoint": [partial(model.adjoint, data, views) for model in (dense, fast)],
            "gradient": [partial(model.gradient, x, data, views) for model in (dense, fast)],
            "normal operator": [partial(model.normal(views), x) for model in (dense, fast)],
        }
        sums = [0.0, 0.0]
        for name, functions in jobs.items():
            a, b = milliseconds(*functions)
            if name in ("forward", "adjoint"):
                sums = [sums[0] + a, sums[1] + b]
            print(f"{name + f', {count} views':26}{a:10.2f}{b:10.2f}{a / b:8.1f}")
            if torch.device(device).type == "cuda" and count == 60:
                print(f"  {'pass' if b <= a else 'FAIL'}: {name} {a / b:.1f} x the dense product, promised 1 x")
        print(f"{f'forward + adjoint, {count}':26}{sums[0]:10.2f}{sums[1]:10.2f}{sums[0] / sums[1]:8.1f}")


def large(device: str) -> None:
    size, views, receivers = 1024, 240, 1440
    geometry = experiment(size, views, receivers)
    begin = time.perf_counter()
    fast = BornModel(geometry, method="fast", device=device)
    print(f"fast: built in {time.perf_counter() - begin:.2f} s: {fast.describe()}")
    x = torch.rand(size, size, device=device)
    y = fast.forward(x)
    few_views, few_receivers = 32, 96
    part = BornGeometry(
        transmitters=geometry.transmitters[:: views // few_views][:few_views],  # type: ignore[index]
        receivers=geometry.receivers[:: receivers // few_receivers],
        wavelength=geometry.wavelength,
        grid=geometry.grid,
    )
    dense = BornModel(part, method="dense", device=device)
    blocks, born_dense._BLOCK_VALUES = born_dense._BLOCK_VALUES, few_views * size**2
    data = dense.forward(x)
    a = milliseconds(lambda: dense.forward(x), lambda: dense.adjoint(data), repeats=2)
    born_dense._BLOCK_VALUES = blocks
    b = milliseconds(lambda: fast.forward(x), lambda: fast.adjoint(y), lambda: fast.gradient(x, y), repeats=5)
    same = fast.forward(x, torch.arange(0, views, views // few_views)[:few_views])[:, :: receivers // few_receivers]
    scale = views / few_views * receivers / few_receivers
    print(f"dense: {few_views} views and {few_receivers} receivers took {a[0]:.0f} + {a[1]:.0f} ms ", end="")
    print(f"({dense.held / 1e9:.2f} GB); times {scale:g} is {scale * sum(a) / 1e3:.1f} s for all, forward + adjoint")
    print(f"fast: all views and receivers took {b[0]:.0f} + {b[1]:.0f} ms, the gradient {b[2]:.0f} ms; ", end="")
    print(f"ratio {scale * sum(a) / (b[0] + b[1]):.0f}; error on that part {relative(same, data):.1e}")


def growth(device: str, sizes: list[int], out: Path | None) -> None:
    curves = {}
    for name, grow in (("60 views, 360 receivers", False), ("views and receivers growing with the side", True)):
        print(name)
        print(f"{'side':>6}{'views':>7}{'receivers':>11}{'waves':>7}{'FFT':>10}{'forward':>10}{'adjoint':>10}{'MB':>8}")
        times = []
        for size in sizes:
            views, receivers = (60 * size // 256, 360 * size // 256) if grow else (60, 360)
            model = BornModel(experiment(size, views, receivers), method="fast", device=device)
            engine = model.engine
            x = torch.rand(size, size, device=device)
            y = model.forward(x)
            repeats = 9 if size <= 512 else 3
            a, b = milliseconds(partial(model.forward, x), partial(model.adjoint, y), repeats=repeats)
            times.append(a + b)
            form, waves = engine.nufft.name, engine.waves  # type: ignore[union-attr]
            print(f"{size:6d}{views:7d}{receivers:11d}{waves:7d}{form:>10}{a:10.2f}{b:10.2f}{model.held / 1e6:8.0f}")
            del model, engine
        exponent = float(np.polyfit(2 * np.log(sizes), np.log(times), 1)[0])
        print(f"time grows as pixels^{exponent:.2f}; the dense product's as pixels^{2 if grow else 1}")
        curves[f"{name}: pixels^{exponent:.2f}"] = times
    if out is not None:
        _plot(sizes, curves, out)


def _plot(sizes: list[int], curves: dict[str, list[float]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    pixels = np.array(sizes) ** 2
    for (label, times), marker in zip(curves.items(), "os", strict=True):
        axes.loglog(pixels, times, marker=marker, label=label)
    first = next(iter(curves.values()))[0]
    axes.loglog(pixels, first * pixels / pixels[0], color="0.6", linestyle="--", label="pixels^1")
    axes.set_xticks(pixels, [f"{s}²" for s in sizes])
    axes.minorticks_off()
    axes.set_xlabel("pixels")
    axes.set_ylabel("forward + adjoint of all views, ms")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=150)
    print(f"wrote {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of the CPU; one is steadier on a busy machine")
    parser.add_argument("--parts", nargs="+", default=["paper", "large", "growth"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--out", type=Path, help="where to put the plot of the growth, a PNG")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"CPU, {torch.get_num_threads()} threads"
    print(f"on {where}")
    if "paper" in options.parts:
        print("\n-- the paper's size: 256 x 256, 60 views, 360 receivers")
        paper(options.device)
    if "large" in options.parts:
        print("\n-- 1024 x 1024, 240 views, 1,440 receivers")
        large(options.device)
    if "growth" in options.parts:
        print(f"\n-- growth from {min(options.sizes)} to {max(options.sizes)} pixels a side")
        growth(options.device, options.sizes, options.out)


if __name__ == "__main__":
    main()
