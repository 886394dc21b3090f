"""BM4D on volumes that none of its parameters was chosen on: PSNR beside PyPI's bm4d, and how flat the optimum is.

    python benchmarks/bm4d_unseen.py --side 48 --threads 12     with PyPI's in the same run where it is installed
    python benchmarks/bm4d_unseen.py --noisy DIR                write the noisy volumes, NAME_SIGMA.npy, or read them
    python benchmarks/bm4d_unseen.py --noisy DIR --theirs DIR   compare with what PyPI's made of them, same names
    python benchmarks/bm4d_unseen.py --changes                  PSNR with single parameters changed

Random ellipsoids, cells of Voronoi with walls, fibres, two waves with bent fronts, pictures of --pictures (a folder of
PNG such as BSD68) that move and turn from slice to slice, two of each kind, and the volumes of --volume (NPY, of values
from 0 to 1). PyPI's has no build for ARM and may be run elsewhere, or emulated, on the files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pypi_bm4d import call_peer, find_peer
from scipy import ndimage

from plugstream import BM4DProfile, bm4d, load_picture

SIDE = 28  # or --side
LEVELS = (0.1, 0.25, 0.05)
CHANGES: tuple[dict[str, Any], ...] = (
    {"alike1": 0.0, "alike2": 0.0},
    {"alike1": 0.75},
    {"alike1": 2.2},
    {"alike2": 0.1},
    {"threshold": 2.65},
    {"threshold": 2.95},
    {"wiener": 0.45},
    {"wiener": 0.75},
    {"kaiser": 2.0},
    {"group2": 16},
)


def scaled(volume: np.ndarray) -> np.ndarray:
    values = volume.astype(np.float64)
    out: np.ndarray = (values - values.min()) / np.ptp(values)
    return out.astype(np.float32)


def places() -> np.ndarray:
    return np.stack(np.meshgrid(*[np.linspace(-1, 1, SIDE)] * 3, indexing="ij"))


def along(vector: np.ndarray, field: np.ndarray) -> np.ndarray:
    return np.tensordot(vector, field, 1)


def ellipsoids(seed: int) -> np.ndarray:
    rng, out = np.random.default_rng(seed), np.zeros((SIDE,) * 3)
    for _ in range(14):
        turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        centre, radii = rng.uniform(-0.8, 0.8, 3), rng.uniform(0.15, 0.7, 3)
        inside = ((along(turn, places() - centre[:, None, None, None]) / radii[:, None, None, None]) ** 2).sum(0) < 1
        out += rng.uniform(-0.4, 0.8) * inside
    return scaled(out)


def cells(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    seeds = rng.uniform(-1, 1, (3, 40))
    squares = ((places().reshape(3, -1, 1) - seeds[:, None]) ** 2).sum(0)
    near = np.sqrt(np.sort(squares, 1)[:, :2])
    values = rng.uniform(0.2, 1, 40)[squares.argmin(1)]
    return scaled(np.where(near[:, 1] - near[:, 0] < 0.09, 0, values).reshape((SIDE,) * 3))


def fibres(seed: int) -> np.ndarray:
    rng, out = np.random.default_rng(seed), np.zeros((SIDE,) * 3)
    for _ in range(18):
        centre, axis = rng.uniform(-1, 1, 3), rng.normal(size=3) * [0.4, 0.4, 1.0]
        axis /= np.linalg.norm(axis)
        offset = places() - centre[:, None, None, None]
        distance = np.sqrt(np.maximum((offset**2).sum(0) - along(axis, offset) ** 2, 0))
        value = rng.uniform(0.5, 1)
        out = np.maximum(out, value / (1 + np.exp(40 * (distance - rng.uniform(0.07, 0.14)))))
    return scaled(out)


def waves(seed: int) -> np.ndarray:
    rng, out = np.random.default_rng(seed), np.zeros((SIDE,) * 3)
    field = ndimage.gaussian_filter(rng.normal(size=out.shape), 6)
    for region in (field > np.median(field), field <= np.median(field)):
        wave = rng.normal(size=3)
        wave *= rng.uniform(7, 14) / np.linalg.norm(wave)
        bend = 60 * ndimage.gaussian_filter(rng.normal(size=out.shape), 5)
        out += region * (np.sin(along(wave, places()) + bend) + rng.uniform(-1, 1))
    return scaled(out)


def moving(path: Path, seed: int) -> np.ndarray:
    picture, rng = load_picture(path).double().numpy(), np.random.default_rng(seed)
    centre = [rng.integers(60, length - 60) for length in picture.shape]
    shift, turn = rng.uniform(-1, 1, 2), rng.uniform(-0.015, 0.015)
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    slices = []
    for k in range(SIDE):
        c, s = np.cos(turn * k), np.sin(turn * k)
        at = [centre[0] + c * y - s * x + shift[0] * k, centre[1] + s * y + c * x + shift[1] * k]
        slices.append(ndimage.map_coordinates(picture, at, order=3, mode="reflect"))
    out: np.ndarray = np.clip(np.stack(slices), 0, 1)
    return out.astype(np.float32)


def middle(volume: np.ndarray) -> np.ndarray:
    """What is left of 28 x 28 x 28 voxels where an emulated PyPI's takes long; larger volumes as they are."""
    return volume[:22, 3:25, 3:25] if SIDE == 28 else volume


def volumes(options: argparse.Namespace) -> Iterator[tuple[str, np.ndarray]]:
    for make in (ellipsoids, cells, fibres, waves):
        for seed in (1, 2):
            volume = make(seed)
            yield f"{make.__name__}{seed}", volume if make in (ellipsoids, cells) else middle(volume)
    if options.pictures is not None:
        for number, seed in ((3, 1), (24, 4)):
            path = sorted(options.pictures.glob("*.png"))[number - 1]
            yield f"moving{number}", middle(moving(path, seed))
    for path in options.volume:
        yield path.stem, np.load(path)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((a.astype(np.float64) - b) ** 2)))


def main() -> None:
    global SIDE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--volume", type=Path, nargs="*", default=[])
    parser.add_argument("--noisy", type=Path)
    parser.add_argument("--theirs", type=Path)
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    SIDE, peer = options.side, find_peer()
    if options.changes:
        print("volume, noise, PSNR, and its change with", *CHANGES)
    for name, clean in volumes(options):
        for level in LEVELS:
            z = clean + (level * np.random.default_rng(5).normal(size=clean.shape)).astype(np.float32)
            label = f"{name}_{level}.npy"
            if options.noisy is not None and (options.noisy / label).exists():
                z = np.load(options.noisy / label)
            elif options.noisy is not None:
                options.noisy.mkdir(exist_ok=True)
                np.save(options.noisy / label, z)
            ours = psnr(bm4d(z, level), clean)
            line = f"{name:12} {level:.2f} {ours:.2f}"
            if options.changes:
                changed = [psnr(bm4d(z, level, replace(BM4DProfile(), **c)), clean) - ours for c in CHANGES]
                line += "".join(f" {change:+.2f}" for change in changed)
            if options.theirs is not None and (options.theirs / label).exists():
                theirs = psnr(np.load(options.theirs / label), clean)
                line += f", PyPI's {theirs:.2f}, difference {ours - theirs:+.2f}"
            elif peer is not None:
                theirs = psnr(call_peer(peer, z, level, options.threads)[0], clean)
                line += f", PyPI's {theirs:.2f}, difference {ours - theirs:+.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
