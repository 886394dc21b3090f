"""How good the denoiser is that a run chooses by itself, beside four that are named, and what the choice costs.

    python benchmarks/denoiser_choice.py ../shared/data/images/BSD68 --count 10 --processes 16
    python benchmarks/denoiser_choice.py ../shared/data/images/BSD68 --first 3 --every 7 --size 48 --pixel 0.67

Of each picture scans of born-2d are made (60 views), with noise of its own at each level. Each is reconstructed as
`plugstream reconstruct scan.zarr` does, until the image has arrived: with each denoiser that is named, and with nothing
set, which chooses. Prints the SNR of each, what was chosen, and at the end averages by level and of all: SNR, how far
the run that chooses is below the best of the four of each scan, how far below the denoiser that is best on the average,
and its steps, which are denoiser calls, over those of TV. A pixel is given in wavelengths: of the paper's scan 1/6,
where the data say nothing of the finest details; from 1/2 on they say something of all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

DENOISERS = ("tv", "bm3d", "tnrd", "ridge")
WAVELENGTH = 6 * 0.18 / 256


def reconstruct(scan: Path, words: list[str]) -> dict[str, Any]:
    """SNR, steps and denoiser of a run, the misfits by which it chose, and what each of the rounds found."""
    import torch

    from plugstream import open_scan
    from plugstream.cli import main as command
    from plugstream.runs.replay import replay
    from plugstream.solver.monitors import snr

    with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(io.StringIO()):
        out, usual = Path(made) / "run", ["--threads", "1", "--checkpoint", "0", "--report", "none"]
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            code = command(["reconstruct", str(scan), "--out", str(out), *usual, *words])
        if code != 0:
            raise RuntimeError(told.getvalue())
        history, truth = replay(out / "events.jsonl"), open_scan(scan).truth
        assert truth is not None
        image = torch.from_numpy(np.load(out / "result.npy"))
        chosen = history.chosen[-1] if history.chosen else None
        return {
            "snr": float(snr(image, torch.from_numpy(np.asarray(truth)), image.ndim)),
            "steps": history.step,
            "sigma": history.trials[-1].sigma,
            "misfit": history.trials[-1].misfit,
            "chosen": words[1] if chosen is None else chosen.denoiser,
            "heat": {} if chosen is None else chosen.misfits,
        }


def compare(job: tuple[Path, float, int, argparse.Namespace]) -> dict[str, Any]:
    """All runs of one picture at one level of noise."""
    from plugstream.cli import main as command

    path, level, seed, asked = job
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as made:
        scan, width = Path(made) / "scan.zarr", asked.size * asked.pixel * WAVELENGTH
        shape = ["--size", asked.size, "--width", f"{width:.9g}", "--receivers", asked.receivers]
        noise = ["--input-snr", f"{level:g}", "--noise-seed", seed]
        words = ["simulate", scan, "--instrument", "born-2d", "--picture", path, *shape, *noise]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command([str(word) for word in words])
        device = ["--device", asked.device]
        runs = {name: reconstruct(scan, ["--denoiser", name, *device]) for name in asked.denoisers}
        runs["nothing set"] = reconstruct(scan, device)
    return {"picture": path.stem, "level": level, "size": asked.size, "pixel": asked.pixel, "runs": runs}


def summarize(rows: list[dict[str, Any]], names: list[str], text: str) -> None:
    """Print the averages of some rows."""
    runs = [[row["runs"][name] for name in [*names, "nothing set"]] for row in rows]
    scores = np.array([[run["snr"] for run in one] for one in runs])
    steps = np.array([[run["steps"] for run in one] for one in runs])
    means, own = scores.mean(0), scores[:, -1]
    each = (own - scores[:, :-1].max(1)).mean()
    more = steps[:, -1].mean() / steps[:, 0].mean()
    print(
        f"{text:6}{len(rows):4d}" + "".join(f"{mean:8.2f}" for mean in means)
        + f"{each:+14.2f}{own.mean() - means[:-1].max():+7.2f}{more:7.2f}"
    )  # fmt: skip


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, nargs="+", help="pictures, or folders of them")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--every", type=int, default=1, help="every so many-th")
    parser.add_argument("--count", type=int, default=1000, help="at most so many")
    parser.add_argument("--size", type=int, default=64, help="pixels a side")
    parser.add_argument("--pixel", type=float, default=1 / 6, help="a pixel in wavelengths")
    parser.add_argument("--receivers", type=int, default=180)
    parser.add_argument("--levels", type=float, nargs="+", default=[20.0, 30.0, 40.0], help="input SNRs, in dB")
    parser.add_argument(
        "--denoisers", nargs="+", default=list(DENOISERS), help="calls are compared with those of the first"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="so many scans at a time")
    parser.add_argument("--out", type=Path, help="a file to which each scan adds a line of JSON")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started
    found = [file for one in asked.pictures for file in ([one] if one.is_file() else sorted(one.glob("*.png")))]
    paths = found[asked.first :: asked.every][: asked.count]
    jobs = [(path, level, seed, asked) for seed, path in enumerate(paths) for level in asked.levels]
    rows = []
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(compare, jobs):
            rows.append(row)
            last = row["runs"]["nothing set"]
            told = ", ".join(f"{name} {row['runs'][name]['snr']:.2f}" for name in asked.denoisers)
            text = f"{row['picture']:16}{row['level']:4.0f} dB  {told}, chosen {last['chosen']} {last['snr']:.2f}"
            print(text, [run["steps"] for run in row["runs"].values()], flush=True)
            if asked.out is not None:
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    columns = "".join(f"{name:>8}" for name in [*asked.denoisers, "nothing"])
    print(f"{'':6}{'':4}{columns}  below best: each, mean; calls")
    for level in asked.levels:
        summarize([row for row in rows if row["level"] == level], asked.denoisers, f"{level:.0f} dB")
    summarize(rows, asked.denoisers, "all")


if __name__ == "__main__":
    main()
