"""What followed the paper against PnP-SGD(10): processor seconds, denoiser calls and passes to the same SNR.

    python benchmarks/successors.py                                     scikit-image's camera
    python benchmarks/successors.py --images FOLDER --picture house     one of the paper's

One image, one thread, BM3D, the paper's data. The level is what PnP-SGD(10) has after 64 steps, less --below dB, and a
method's seconds are those of its run up to the step that first reaches it; `ratio` is PnP-SGD(10)'s over them. Settings
of the newer methods were chosen by hand on House, knowing the truth.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from plugstream.experiments.known import known_settings
from plugstream.experiments.runs import Spec, outcome, run
from plugstream.experiments.setup import load_pictures, make_problem


def settings(picture: str) -> dict[str, tuple[Spec, float]]:
    """The methods, each with its settings and sigma: those of before as tuned, the others as found by hand on House."""
    lines = {}
    for name, most in (("PnP-SGD(10), shifted", 70), ("PnP-HQS(30), shifted, falling", 9), ("PnP-ADMM(60)", 5)):
        known = known_settings(name, (picture,), most)
        assert known is not None
        lines[name] = (known.spec, known.sigma[0])
    plain = Spec(iterations=81)
    splitting = replace(plain, method="sgd-splitting", options=(("inner_steps", 27),), sigma_end=0.25)
    skip = replace(plain, method="proxskip", momentum="bounded", iterations=120)
    lines["splitting(10), 3 runs of 27 steps"] = (splitting, 0.15)
    lines["ProxSkip(10), p = 0.5"] = (replace(skip, options=(("denoise_probability", 0.5),)), 0.0044)
    lines["ProxSkip(10), p = 0.2"] = (replace(skip, options=(("denoise_probability", 0.2),)), 0.006)
    lines["online RED(10)"] = (replace(plain, method="red", options=(("tau", "0.5L"),)), 0.0045)
    lines["PnP-SGD(10), turned at random"] = (replace(lines["PnP-SGD(10), shifted"][0], equivariant="random"), 0.0032)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--picture", default="house")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--below", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = load_pictures(options.images, options.size)
    problem = make_problem(pictures.only((options.picture,)))
    (picture,) = problem.names
    print(f"{picture}, {options.size} x {options.size}, one thread, processor time")
    level = first = None
    for name, (spec, sigma) in settings(picture).items():
        begin = time.process_time()
        cell = outcome(problem, run(problem, spec, [sigma]))
        seconds = time.process_time() - begin
        snr = np.asarray(cell["history"]["snr"]["value"]).mean(1)
        level = float(snr[min(64, len(snr) - 1)]) - options.below if level is None else level
        reached = np.flatnonzero(snr >= level)
        text = f"{name:36s} {snr[-1]:6.2f} dB at the end"
        if len(reached):
            place = int(reached[0])
            spent = seconds * place / (len(snr) - 1)
            first = spent if first is None else first
            text += f"; {level:.2f} dB in {cell['calls'][place]:3d} calls, {cell['passes_at'][place]:5.1f} passes, "
            text += f"{spent:5.2f} s, ratio {first / spent:.1f}"
        else:
            text += f"; never {level:.2f} dB, at most {snr.max():.2f}"
        print(text, flush=True)


if __name__ == "__main__":
    main()
