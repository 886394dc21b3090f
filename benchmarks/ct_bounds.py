"""L of every view of random beams from above, by two products: how far from the truth, and how long it takes.

    python benchmarks/ct_bounds.py [views of each kind] [size]

Beams of each kind have random sizes, directions, distances of the source from 1.15 half diagonals of the image on, and
rays 0.45 to 2.2 voxels apart. The truth is Lanczos's iteration on A A', run to 1e-6, on the same products. Prints a
table: of the views, how many are within 1 % and the worst, with the windows of `plugstream.models.ct_windows` and with
w = 1. Then the time of a window beside that of the two products that a bound takes, for larger volumes.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from plugstream.models import CTModel
from plugstream.models.ct_beams import cone_beam, fan_beam, laminography, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels

KINDS = ("parallel", "fan", "curved fan", "stack", "cone", "curved cone", "helical", "tilted", "tilted cone")
MOST = 1.01


def random_view(draw: np.random.Generator, kind: str, size: int) -> tuple[Rays, Voxels]:
    """One view of such a beam, and the voxels that it crosses."""
    height, width = (int(n) for n in draw.integers(size - size // 6, size + size // 6 + 1, 2))
    depth = int(draw.integers(max(3, size // 4), size + 1))
    half = math.hypot(height, width) / 2
    source = half * float(draw.choice([1.15, 1.5, 2.5, 5.0])) * draw.uniform(1, 1.3)
    detector = half * draw.uniform(1.0, 2.0)
    pixel = float(draw.choice([0.5, 0.8, 1.0, 1.3, 2.0])) * draw.uniform(0.9, 1.1)
    wide = pixel * (source + detector) / source
    columns, rows, angle = int(2.2 * half / pixel), int(1.2 * depth / pixel) + 2, [draw.uniform(0, 2 * np.pi)]
    flat, solid = Voxels((height, width), 1.0), Voxels((depth, height, width), 1.0)
    off = {"center": (columns - 1) / 2 + draw.uniform(-2, 2)}
    far = {"source": source, "detector": detector}
    if kind == "parallel":
        return parallel_beam(angle, columns, pixel, **off), flat
    if kind == "stack":
        return parallel_beam(angle, (rows, columns), pixel, **off), solid
    if kind in ("fan", "curved fan"):
        return fan_beam(angle, columns, wide, **far, **off, curved=kind != "fan"), flat
    if kind in ("cone", "curved cone"):
        return cone_beam(angle, (rows, columns), wide, **far, center=off["center"], curved=kind != "cone"), solid
    if kind == "helical":
        high = draw.uniform(-depth / 2, depth / 2)
        some = (max(4, rows // 2), columns)
        return cone_beam(angle, some, wide, source=source, detector=detector, height=high), solid
    tilt = draw.uniform(0.1, 1.2)
    if kind == "tilted":
        return laminography(angle, (rows, columns), pixel, tilt=tilt), solid
    far["source"] = 1.5 * source + depth
    return laminography(angle, (rows, columns), wide, tilt=tilt, **far), solid


def measure(rays: Rays, voxels: Voxels) -> tuple[float, float]:
    """Both bounds of a view as parts of the truth."""
    model, views = CTModel(rays, voxels), torch.arange(1)
    shape = (1, *rays.detector)

    def product(w: np.ndarray) -> np.ndarray:
        data = torch.from_numpy(w.astype(np.float32)).reshape(shape)
        return model.forward(model.adjoint(data)).numpy().ravel().astype(np.float64)

    rays_count = math.prod(shape)
    whole = LinearOperator((rays_count, rays_count), matvec=product, dtype=np.float64)
    start = model.windows(views).numpy().ravel().astype(np.float64)
    true = float(eigsh(whole, k=1, which="LA", tol=1e-6, v0=start, return_eigenvectors=False)[0])
    return float(model.squared_norm_bounds(views)) / true, float(product(np.ones(rays_count)).max()) / true


def time_large(size: int) -> None:
    """Print how much processor time a window of a cone takes, and its products: the least of three each."""
    rays = cone_beam(np.deg2rad([30.0]), (size, int(1.4 * size)), 1.4, source=2.5 * size, detector=1.0 * size)
    model, windows, products = CTModel(rays, Voxels((size, size, size), 1.0)), [], []
    for _ in range(3):
        begin = time.process_time()
        start = model.windows(torch.arange(1))
        middle = time.process_time()
        model.forward(model.adjoint(start))
        windows.append(middle - begin)
        products.append(time.process_time() - middle)
    print(
        f"a cone of {size}^3: window {1e3 * min(windows):.0f} ms, two products {1e3 * min(products):.0f} ms, "
        f"ratio {min(windows) / min(products):.2f}"
    )


def compare(count: int, size: int) -> bool:
    """Print the table, and whether all bounds are from above and within 1 %."""
    print("| beam | within 1 % | worst | w = 1: within 1 % | worst |\n" + "| --- " * 5 + "|")
    kept = True
    for kind in KINDS:
        draw = np.random.default_rng(17)
        found = np.array([measure(*random_view(draw, kind, size)) for _ in range(count)])
        bounds, ones = found.T
        kept &= bool((bounds >= 1 - 1e-6).all() and (bounds <= MOST).all())
        print(
            f"| {kind} | {(bounds <= MOST).mean():.1%} | {bounds.max() - 1:.2%} | {(ones <= MOST).mean():.1%} | "
            f"{ones.max() - 1:.1%} |",
            flush=True,
        )
    return kept


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    answer = "kept" if compare(*(numbers + [40, 28][len(numbers) :])) else "NOT KEPT"
    print(f"{answer}: every view from above within 1 %")
    for large in (64, 128, 256):
        time_large(large)
