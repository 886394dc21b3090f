"""The paper's average of 25.85 dB: how long PnP-HQS(30) takes to it, and inexact ADMM(30) with TV first.

    python benchmarks/successors.py --images FOLDER
    python benchmarks/successors.py --images FOLDER --pictures house monarch --repeats 1
    python benchmarks/successors.py --choose /FOLDER/BSD68

PnP-HQS(30), half-quadratic splitting by up to 12 conjugate gradients on 30 views a step, was the best online row of
docs/reproduction.md before inexact ADMM. Both measure the pictures as the paper does, at 256 x 256 on the CPU, all
pictures in one run and one sigma for all of them. The runs take turns; seconds are medians over --repeats, wall time
from zero to the last image, with the circulant that inexact ADMM begins with. L, which both need, is known before.

A run ends after a fixed number of steps, and its settings are the best for that number on pictures of BSD68, by the
same search for both methods: --choose repeats it. The ratio is of the shortest run of each method that comes to the
level on the paper's pictures. Without --images four pictures of scikit-image stand in, whose level is another: there
it is the average that PnP-HQS(30) has after its longest run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from plugstream.images.pictures import load_picture

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of the checkout

from reproduction.paper import Pictures, Problem, load_pictures, make_problem
from reproduction.runs import Spec, falling, run
from reproduction.tables import LEVELS


@dataclass(frozen=True)
class Line:
    """A run: its name, what it does, and sigma of all pictures."""

    name: str
    spec: Spec
    sigma: float


def splitting(steps: int, first: float, last: float, strength: float) -> Line:
    """PnP-HQS(30) in so many steps, gamma falling from first / L to last / L, sigma = strength sqrt(gamma L)."""
    spec = falling(Spec("hqs", sampler="shifted", views=30, step=first, iterations=steps), last, steps)
    return Line(f"PnP-HQS(30), {steps} steps", spec, strength * math.sqrt(first))


def opened(tv: int, bm3d: int, gamma: float, strength: float, factor: float) -> Line:
    """Inexact ADMM(30) with so many steps of TV, at `factor` times sigma, and then of BM3D."""
    spec = Spec("inexact-admm", views=30, step=gamma, iterations=tv + bm3d, opening=("tv", tv, factor))
    return Line(f"inexact ADMM(30), {tv} x TV, {bm3d} x BM3D", spec, strength * math.sqrt(gamma))


Maker = Callable[[float, float, float], Line]
# The runs, each with its settings as --choose found them on BSD68; a search begins with them.
LINES: tuple[tuple[Maker, tuple[float, float, float]], ...] = (
    (partial(splitting, 4), (4410.0, 58.8, 0.0025)),
    (partial(splitting, 5), (8640.0, 42.0, 0.0025)),
    (partial(splitting, 6), (12100.0, 21.4, 0.0025)),
    (partial(splitting, 7), (16900.0, 21.4, 0.0025)),
    (partial(opened, 6, 1), (214.0, 0.007, 2.5)),
    (partial(opened, 7, 1), (214.0, 0.007, 2.5)),
    (partial(opened, 8, 1), (214.0, 0.005, 2.5)),
    (partial(opened, 8, 2), (300.0, 0.007, 2.5)),
)


def choose(problem: Problem, make: Maker, start: tuple[float, float, float], factor: float = 1.4) -> tuple[float, ...]:
    """The three settings with the best average SNR: one at a time is multiplied or divided for as long as it gains."""

    def score(settings: tuple[float, ...]) -> float:
        if settings not in known:
            known[settings] = average(problem, make(*settings))
        return known[settings]

    known: dict[tuple[float, ...], float] = {}
    best, rests = tuple(start), 0
    place = 0
    while rests < len(best):
        before = best
        for power in (factor, 1 / factor):
            while True:
                moved = tuple(float(f"{v * power:.3g}") if i == place else v for i, v in enumerate(best))
                if score(moved) <= score(best):
                    break
                best = moved
        rests = rests + 1 if best == before else 0
        place = (place + 1) % len(best)
        print(f"  {score(best):.3f} dB with {best} after {len(known)} runs", flush=True)
    return best


def average(problem: Problem, line: Line) -> float:
    """The average SNR of a run at its end."""
    result = run(problem, line.spec, [line.sigma] * len(problem.names), every=line.spec.iterations)
    return float(np.mean(result.history["snr"].value[-1]))


def bsd68(folder: Path) -> Pictures:
    """Three pictures of BSD68, every twentieth, to choose settings by."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".png", ".jpg"))[5::20][:3]
    return Pictures(tuple(path.stem for path in files), torch.stack([load_picture(path, 256) for path in files]), False)


def compare(problem: Problem, repeats: int, level: float | None) -> None:
    """Run all lines in turn, print what each reaches and takes, and the ratio of the shortest that reach the level."""
    lines = [make(*settings) for make, settings in LINES]
    # The first calls load kernels; those of the longest runs have all.
    for line in (lines[0], lines[-1]):
        average(problem, replace(line, spec=replace(line.spec, iterations=max(2, line.spec.iterations // 4))))
    wall: list[list[float]] = [[] for _ in lines]
    spent: list[list[float]] = [[] for _ in lines]
    snr, counts = [0.0] * len(lines), [(0, 0.0)] * len(lines)
    for _ in range(repeats):
        for i, line in enumerate(lines):
            begin, processor = time.perf_counter(), time.process_time()
            snr[i] = average(problem, line)
            wall[i].append(time.perf_counter() - begin)
            spent[i].append(time.process_time() - processor)
            counts[i] = (problem.counted.calls, problem.counted.visits / problem.fidelity.n_views)
    level = snr[[line.spec.method for line in lines].index("inexact-admm") - 1] if level is None else level
    print("                                         SNR   calls  passes  seconds  processor seconds")
    for i, line in enumerate(lines):
        calls, passes = counts[i]
        mark = "" if snr[i] >= level else f"  below {level:.2f} dB"
        print(
            f"{line.name:37s} {snr[i]:6.2f}  {calls:5d}  {passes:6.1f}  {np.median(wall[i]):7.2f}  "
            f"{np.median(spent[i]):7.2f}{mark}"
        )
    shortest = []
    for method in ("hqs", "inexact-admm"):
        able = [i for i, line in enumerate(lines) if line.spec.method == method and snr[i] >= level]
        if not able:
            print(f"no run of {method} came to {level:.2f} dB")
            return
        shortest.append(min(able, key=lambda i: float(np.median(wall[i]))))
    old, new = shortest
    print(
        f"{level:.2f} dB: {lines[new].name} takes {np.median(wall[new]) / np.median(wall[old]):.2f} of the time of "
        f"{lines[old].name}, ratio {np.median(wall[old]) / np.median(wall[new]):.2f}; of processor time "
        f"{np.median(spent[old]) / np.median(spent[new]):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="the paper's eight pictures")
    parser.add_argument("--pictures", nargs="+", help="some of them; the level is then that of PnP-HQS(30)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch; as many as there are cores if not given")
    parser.add_argument("--choose", type=Path, metavar="BSD68", help="search the settings again, and print them")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.choose:
        problem = make_problem(bsd68(options.choose))
        for make, start in LINES:
            print(make(*start).name, flush=True)
            choose(problem, make, start)
        return
    pictures = load_pictures(options.images)
    if options.pictures:
        pictures = pictures.only(tuple(options.pictures))
    problem = make_problem(pictures)
    print(f"{', '.join(problem.names)}, 256 x 256, torch threads: {torch.get_num_threads()}")
    compare(problem, options.repeats, LEVELS[-1] if pictures.printed and not options.pictures else None)


if __name__ == "__main__":
    main()
