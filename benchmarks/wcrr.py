"""Noisy BSD68 as WCRR's code judges denoisers: our PSNR beside the scores that its authors publish.

    python benchmarks/wcrr.py [--data BSD68] [--published denoising/] [--noisy denoising/noisy_image] [--only bm3d tnrd]

Without `--noisy` the noise is drawn as their `test_WCRR-NN.py` does: torch's generator with seed 0, one picture after
another, (3, 1, H, W) numbers for the levels 5, 15 and 25 of 255. Their pictures come in another order, so a picture has
other noise there: means of all can be compared, to some hundredths, and single pictures cannot. `--published` is the
folder `denoising` of github.com/axgoujon/weakly_convex_ridge_regularizer, whose two tables are shown beside ours, and
`--noisy` the one in it with `SIGMA/test_noisy_N.npy` and `test_clean_N.npy`, which are then denoised instead.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plugstream import load_picture
from plugstream.base.registry import find
from plugstream.denoisers.by_name import make
from plugstream.denoisers.facts import facts_of

LEVELS = (5, 15, 25)
NAMES = ("tv", "ridge", "bm3d", "tnrd")
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "images" / "BSD68"
Scores = dict[int, list[float]]


def draw_pictures(data: Path, count: int | None) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Level, truth and noisy picture, with their seed and order of drawing."""
    generator = torch.Generator().manual_seed(0)
    for file in sorted(data.glob("*.png"))[:count]:
        truth = load_picture(file).float()
        noise = torch.empty((len(LEVELS), 1, *truth.shape)).normal_(generator=generator)
        for level, part in zip(LEVELS, noise[:, 0], strict=True):
            yield level, truth, truth + level / 255 * part


def stored_pictures(folder: Path, count: int | None) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The same of the arrays that they store."""
    for level in LEVELS:
        for number in range(1, 69)[:count]:
            names = (folder / str(level) / f"test_{kind}_{number}.npy" for kind in ("clean", "noisy"))
            truth, noisy = (torch.from_numpy(np.load(name)).float() for name in names)
            yield level, truth, noisy


def psnr(image: Tensor, truth: Tensor) -> float:
    return -10 * float(torch.log10((image - truth).double().square().mean()))


def read_published(folder: Path) -> dict[str, Scores]:
    found: dict[str, Scores] = {}
    for name in ("CRR", "WCRR"):
        scores: Scores = defaultdict(list)
        with (folder / f"test_{name}_NN.csv").open() as file:
            for row in csv.DictReader(file):
                scores[int(row["sigma"])].append(float(row["psnr"]))
        found[f"{name}-NN, published"] = scores
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder BSD68")
    parser.add_argument("--images", type=int, help="only the first of them")
    parser.add_argument("--published", type=Path, help="the folder `denoising` of their code")
    parser.add_argument("--noisy", type=Path, help="the folder `noisy_image` in it")
    parser.add_argument("--only", nargs="+", default=NAMES, metavar="NAME")
    options = parser.parse_args()
    if options.noisy is None and not options.data.is_dir():
        print(f"BSD68 is not at {options.data}; give --data")
        return
    source = draw_pictures(options.data, options.images)
    pictures = list(source if options.noisy is None else stored_pictures(options.noisy, options.images))
    table: dict[str, Scores] = {} if options.published is None else read_published(options.published)
    for name in ("noisy", *options.only):
        scores: Scores = defaultdict(list)
        facts, denoiser = (None, None) if name == "noisy" else (facts_of(find("denoiser", name)), make(name))
        for level, truth, noisy in pictures:
            image = noisy if facts is None or denoiser is None else denoiser(noisy, facts.noise(level / 255))
            scores[level].append(psnr(image, truth))
        table[name] = scores
        print(name, {level: round(float(np.mean(values)), 2) for level, values in scores.items()}, flush=True)
    print(f"\nmean PSNR in dB of {len(pictures) // len(LEVELS)} pictures" + "".join(f"{level:>9}" for level in LEVELS))
    for name, scores in table.items():
        print(f"{name:<33}" + "".join(f"{np.mean(scores[level]):>9.2f}" for level in LEVELS))


if __name__ == "__main__":
    main()
