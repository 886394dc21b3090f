"""Momentum and sampler by instrument: SNR after so many steps of small scans, all with the same views a step.

    python benchmarks/momenta.py ../shared/data/images/BSD68 --count 2 --instrument ct mri
    python benchmarks/momenta.py ../shared/data/images/BSD68 --instrument ct --views 360 --batch 10 --size 128
    python benchmarks/momenta.py --tooth ../shared/data/ct/tooth.h5 --steps 300

Of each picture a small scan is made at two levels of noise. Its sigma is the one whose converged image is best, that of
FISTA with all views, so that no way to draw views and no momentum has chosen it. Then each sampler with each momentum.
The SNR is the mean over pictures; of each row also, over pictures,

    drop    the most that SNR falls from step 100 to the last one
    steps   the most steps that it takes, as a multiple of those of the row that is marked as of before, to come within
            0.1 dB of the best that one has after 25, 50, 75 and 100 steps; inf where it never does

With --tooth, a real scan whose truth nobody knows: the residual of views that no step uses, in per cent.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sigma_search import OTHERS, Problem, simulate

from plugstream import open_scan
from plugstream.algorithms import BoundedMomentum, TaperedMomentum
from plugstream.algorithms.sampling import All, Epochs, ShiftedViews, Uniform
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.runs.advice import advised_settings
from plugstream.runs.plan import plan

MOMENTA: dict[str, tuple[Any, str]] = {
    "none": ("none", "none"),
    "bounded 3": (BoundedMomentum(3.0), "none"),
    "bounded 8": (BoundedMomentum(8.0), "none"),
    "tapered 8": (TaperedMomentum(8.0), "none"),
    "tapered 12": (TaperedMomentum(12.0), "none"),
    "tapered 20": (TaperedMomentum(20.0), "none"),
    "tapered 50": (TaperedMomentum(50.0), "none"),
    "nesterov": ("nesterov", "none"),
    "restart gradient": ("nesterov", "gradient"),
    "restart residual": ("nesterov", "residual"),
}
SAMPLERS: dict[str, Callable[[int], Any]] = {"uniform": Uniform, "epochs": Epochs, "shifted": ShiftedViews}
MARKS = (10, 25, 50, 100, 200, 400, 600)
LEVELS = (25, 50, 75, 100)
RATIO = 1.5  # between sigmas that are tried
# What the command did before momentum was tapered: of few views a pass they were drawn independently.
BEFORE = {"mri": "bounded 3", "fpm": "bounded 3", "ptychography": "bounded 3"}
PASSES = {"ct": 4, "mri": 4, "fpm": 2, "ptychography": 3}


def curve(problem: Problem, algorithm: Any, steps: int) -> np.ndarray:
    """The SNR after each step."""
    state, found = algorithm.init(), []
    for _ in range(steps):
        state = algorithm.step(state)
        found.append(problem.snr(state.image))
    return np.array(found)


def adequate_sigma(problem: Problem, base: Any, begin: float, steps: int) -> float:
    """The sigma with the best image by steps of all views, going up or down from the first for as long as it gains."""
    known: dict[int, float] = {}

    def score(power: int) -> float:
        if power not in known:
            algorithm = replace(base, sigma=begin * RATIO**power, momentum="nesterov", sampler=All())
            state = algorithm.init()
            for _ in range(steps):
                state = algorithm.step(state)
            known[power] = problem.snr(state.image)
        return known[power]

    at = 0
    for way in (3, 1):
        if score(at + way) > score(at):
            while score(at + way) > score(at):
                at += way
        else:
            while score(at - way) > score(at):
                at -= way
    return float(begin * RATIO**at)


def steps_beside(before: np.ndarray, now: np.ndarray) -> float:
    """How many times the steps of `before` it takes to come within 0.1 dB of it, the most of several levels."""
    ratios = []
    for step in LEVELS:
        level = before[:step].max() - 0.1
        first = int(np.argmax(before >= level)) + 1
        ratios.append((int(np.argmax(now >= level)) + 1) / first if now.max() >= level else math.inf)
    return max(ratios)


def compare(name: str, level: float, pictures: list[Path], views: int | None, asked: argparse.Namespace) -> None:
    """Print the rows of one instrument at one level of noise."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    batch = n_views = 0
    for picture in pictures:
        scan = simulate(name, picture, level, views, asked.size)
        words = () if asked.batch is None else ("--batch", f"{asked.batch}")
        problem = Problem(scan, (*words, "--denoiser", asked.denoiser))
        base: Any = problem.planned.algorithm(problem.whole)
        sigma, views_a_step = problem.settings.algorithm.sigma, problem.settings.sampler.views
        assert sigma is not None
        assert views_a_step is not None
        batch, n_views = views_a_step, scan.n_views
        base = replace(base, sigma=adequate_sigma(problem, base, sigma, asked.full))
        for sampler in asked.samplers:
            for momentum in asked.momenta:
                sequence, restart = MOMENTA[momentum]
                algorithm = replace(base, momentum=sequence, restart=restart, sampler=SAMPLERS[sampler](batch))
                found.setdefault((sampler, momentum), []).append(curve(problem, algorithm, asked.steps))
        whole = replace(base, momentum="nesterov", sampler=All())
        found.setdefault(("all", "nesterov"), []).append(curve(problem, whole, asked.steps))
    old = ("epochs" if n_views >= PASSES.get(name, math.inf) * batch else "uniform", BEFORE.get(name, "nesterov"))
    marks = [mark for mark in MARKS if mark <= asked.steps]
    print(f"{name}, {batch} of {n_views} views a step, noise {level:g}, {len(pictures)} pictures")
    print(f"{'':26}{''.join(f'{mark:7d}' for mark in marks)}   drop  steps")
    for row, curves in found.items():
        mean = np.mean(curves, axis=0)
        drop = max(float(one[min(100, len(one)) - 1] - one[-1]) for one in curves)
        beside = [steps_beside(*pair) for pair in zip(found[old], curves, strict=True)] if old in found else [math.nan]
        text = "".join(f"{mean[mark - 1]:7.2f}" for mark in marks)
        print(f"{row[0]:8}{row[1]:18}{text}{drop:7.2f}{max(beside):7.2f}{' before' * (row == old)}", flush=True)


def compare_tooth(file: Path, count: int, asked: argparse.Namespace) -> None:
    """Print the residual of views of the tooth that are left out, from so many of the others, with advised settings."""
    import ct_tooth

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        ct_tooth.import_views(file, folder, (count,))
        scan, held = open_scan(folder / f"{count}.zarr"), open_scan(folder / "held.zarr")
        typed = ["scan.zarr", "--instrument", "ct", "--search", "none", "--denoiser", asked.denoiser]
        settings, _ = advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), scan)
        planned = plan(settings, scan)
        whole = planned.parts.fidelity(planned.model(scan.columns, scan.n_views), scan.read())
        base: Any = planned.with_bounds(planned.settle_bounds(whole, scan.columns)).algorithm(whole)
        data = torch.as_tensor(held.read())
        model = held.instrument.build_model(
            held.columns, held.n_views, None, device=torch.device("cpu"), dtype=torch.float32
        )
        marks = [mark for mark in MARKS if mark <= asked.steps]
        print(f"tooth, {settings.sampler.views} of {count} views a step: residual of views left out, in per cent")
        print(f"{'':26}{''.join(f'{mark:7d}' for mark in marks)}")
        for momentum in asked.momenta:
            sequence, restart = MOMENTA[momentum]
            algorithm = replace(base, momentum=sequence, restart=restart)
            state, text = algorithm.init(), ""
            for step in range(1, asked.steps + 1):
                state = algorithm.step(state)
                if step in marks:
                    text += f"{100 * float((model.forward(state.image) - data).norm() / data.norm()):7.3f}"
            print(f"{settings.sampler.name:8}{momentum:18}{text}", flush=True)


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, nargs="?", help="a folder of pictures")
    parser.add_argument("--count", type=int, default=2, help="of them at most so many, evenly spaced")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--instrument", nargs="+", choices=sorted(OTHERS), default=["ct"])
    parser.add_argument("--levels", type=float, nargs="+", help="doses or input SNRs; the first and last usual ones")
    parser.add_argument("--views", type=int, nargs="+", default=[None], help="of the scans, where there is a choice")
    parser.add_argument("--size", type=int, help="pixels a side")
    parser.add_argument("--batch", type=int, help="views a step; as advised if not given")
    parser.add_argument("--denoiser", default="tv")
    parser.add_argument("--momenta", nargs="+", choices=list(MOMENTA), default=list(MOMENTA))
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=["uniform", "epochs"])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument(
        "--full", type=int, default=250, help="steps of all views, by which sigma is found; 0 for the advised one"
    )
    parser.add_argument("--tooth", type=Path, help="the file of the tooth, in place of pictures")
    parser.add_argument("--counts", type=int, nargs="+", default=[60, 163], help="views of the tooth")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # scans are small, and threads that wait for each other are slow
    if asked.tooth is not None:
        for count in asked.counts:
            compare_tooth(asked.tooth, count, asked)
        return
    if asked.pictures is None:
        parser.error("a folder of pictures is needed")
    files = sorted(asked.pictures.glob("*.png"))[asked.first :]
    pictures = files[:: max(1, len(files) // asked.count)][: asked.count]
    for name in asked.instrument:
        usual = OTHERS[name][2]
        for views in asked.views:
            for level in asked.levels or (usual[0], usual[-1]):
                compare(name, level, pictures, views, asked)


if __name__ == "__main__":
    main()
