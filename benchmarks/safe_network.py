"""Whether the paper's iteration converges with a denoiser that is called safe: random problems of all instruments.

    python benchmarks/safe_network.py ../shared/data/images/BSD68 --problems 100 --processes 2
    python benchmarks/safe_network.py ../shared/data/images/BSD68 --only few --gradient svrg
    python benchmarks/safe_network.py ../shared/data/images/BSD68 --flags --denoiser bm3d

The seed of a problem draws an instrument, a picture, a level of noise, a constant sigma of 0.5 to 10 % of the true
image's range (of a complex one its largest modulus), and whether a step uses all views or few. `plugstream
reconstruct` then goes so many steps without momentum, as it does by default or with the flags that are given last, in
which RANGE stands for that range; it stops earlier once the distance to a fixed point ||x - P(x)||^2 is --until of its
start. Counts the runs whose distance ends above its start, which diverge, those that end above a tenth of it, which
may hover there, and those that reach --until, and prints how far the distance falls, and in how many steps, for the
median and the worst problem: with all views, and with few, whose plain gradients have a variance that keeps it from
zero, so that these go on to the last step.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

# A small scan of each instrument, what says how noisy it is, and three values of that.
SCANS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "born-2d": ("--size 48 --width 0.034 --views 60 --receivers 180", "--input-snr", (20, 30, 40)),
    "ct": ("--size 48 --views 60", "--photons", (1e3, 1e4, 1e5)),
    "mri": ("--size 48", "--input-snr", (10, 20, 30)),
    "fpm": ("--size 64 --camera 24 --leds 7", "--photons", (200, 2000, 20000)),
    "ptychography": ("--frame 32 --across 6", "--photons", (200, 2000, 20000)),
    "scattering-2d": ("--size 32 --width 0.0227 --views 16 --receivers 60", "--input-snr", (10, 20, 30)),
    "odt-3d": ("--size 16 --views 40", "--input-snr", (10, 20, 30)),
}


def draw(pictures: list[Path], seed: int) -> tuple[dict[str, Any], list[Any]]:
    """A problem, and the flags that simulate its scan."""
    rng = np.random.default_rng(seed)
    instrument = sorted(SCANS)[seed % len(SCANS)]
    words, noise, levels = SCANS[instrument]
    place, level = int(rng.integers(len(pictures))), levels[rng.integers(3)]
    sigma, few = float(np.exp(rng.uniform(np.log(0.5), np.log(10)))), bool(rng.integers(2))
    simulate: list[Any] = ["--instrument", instrument, *words.split(), noise, level, "--noise-seed", seed]
    simulate += [] if instrument == "odt-3d" else ["--picture", pictures[place]]
    if instrument in ("fpm", "ptychography"):
        simulate += ["--phase-picture", pictures[place - 1]]
    return {"seed": seed, "instrument": instrument, "noise": level, "sigma": sigma, "few": few}, simulate


def solve(
    pictures: list[Path], iterations: int, until: float, gradient: str, flags: list[str], seed: int
) -> dict[str, Any]:
    """One problem: what it was, the distance to a fixed point at first, and which part of it remains after how many
    steps."""
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    from plugstream.cli import main as command
    from plugstream.runs.replay import replay
    from plugstream.scans import open_scan
    from plugstream.solver.verdict import Answer

    # A run asks at its end whether sigma suits the data, which takes as long as the run.
    unasked = patch("plugstream.runs.answers.probe_strength", return_value=Answer("not asked", None, "not asked here"))
    problem, words = draw(pictures, seed)
    sigma, few = problem["sigma"], problem["few"]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        scan, out, errors = Path(folder) / "scan.zarr", Path(folder) / "run", io.StringIO()
        with contextlib.redirect_stderr(errors), unasked:
            code = command([str(word) for word in ("simulate", scan, *words)])
            if code == 0:
                truth = np.asarray(open_scan(scan).truth)
                span = float(np.abs(truth).max() if np.iscomplexobj(truth) else np.ptp(truth))
                run: list[Any] = ["reconstruct", scan, "--out", out, "--sigma", f"{sigma / 100 * span:.3g}"]
                run += ["--momentum", "none", "--threads", 1, "--iterations", iterations, "--checkpoint", 0]
                run += ["--report", "none", *(["--gradient", gradient] if few else ["--sampler", "all"])]
                run += [] if few and gradient == "plain" else ["--distance-limit", until]
                run += [f"{span:.3g}" if flag == "RANGE" else flag for flag in flags]
                code = command([str(word) for word in run])
        if code not in (0, 3):
            return problem | {"error": errors.getvalue().strip().splitlines()[-1]}
        measured = [m for m in replay(out / "events.jsonl").measured if "distance" in m.values]
    values = [m.values["distance"] for m in measured]
    distances = [float("inf") if value is None else value for value in values]
    ratios = [value / distances[0] for value in distances]
    curve = {m.step: float(f"{ratio:.3g}") for m, ratio in zip(measured, ratios, strict=True)}
    some = [*list(curve)[:: max(1, len(curve) // 12)], *list(curve)[-5:]]
    shown = {step: curve[step] for step in sorted(set(some))}
    return problem | {"first": distances[0], "steps": measured[-1].step, "ratio": ratios[-1], "curve": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of PNG files")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--iterations", type=int, default=1500, help="of plain gradients of few views 400 are enough")
    parser.add_argument("--until", type=float, default=1e-6, help="stop at this part of the first distance")
    kinds = ["all", "few"]
    parser.add_argument("--only", nargs="+", default=kinds, choices=[*kinds, *SCANS], help="problems of such a kind")
    parser.add_argument("--gradient", default="plain", help="of few views: plain, or svrg, without that variance")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="file to add each problem's result to, as a line of JSON")
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=["--denoiser", "unet", "--white", "RANGE"], metavar="FLAG"
    )
    arguments = parser.parse_args()
    pictures = sorted(arguments.pictures.glob("*.png"))
    work = partial(solve, pictures, arguments.iterations, arguments.until, arguments.gradient, arguments.flags)
    results = []
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        numbers = range(arguments.first, arguments.first + arguments.problems)
        problems = [draw(pictures, seed)[0] for seed in numbers]
        seeds = [p["seed"] for p in problems if {p["instrument"], "few" if p["few"] else "all"} & set(arguments.only)]
        for future in as_completed([pool.submit(work, seed) for seed in seeds]):
            results.append(future.result())
            line = json.dumps(results[-1])
            print(line, flush=True)
            if arguments.results is not None:
                with arguments.results.open("a") as file:
                    file.write(line + "\n")
    show(results, arguments.until)


def show(results: list[dict[str, Any]], until: float) -> None:
    print(f"{sum('error' in r for r in results)} of {len(results)} problems ended with an error")
    results = [r for r in results if "error" not in r]
    for few in (False, True):
        for instrument in (*sorted(SCANS), None):
            some = [r for r in results if r["few"] == few and instrument in (None, r["instrument"])]
            if not some:
                continue
            ratios = np.sort([r["ratio"] for r in some])
            name = f"{instrument or 'all instruments'}, {'few' if few else 'all'} views"
            gone, high, there = (int(np.sum(which)) for which in (~(ratios < 1), ~(ratios < 0.1), ratios <= until))
            steps = np.sort([r["steps"] for r in some])
            print(f"{name}: {len(some)} problems, {gone} diverge, {high} end above 0.1, {there} reach {until:g}, to "
                  f"{np.median(ratios):.1e} of its start, at worst {ratios[-1]:.1e}, in {np.median(steps):.0f} steps, "
                  f"at most {steps[-1]}")  # fmt: skip


if __name__ == "__main__":
    main()
