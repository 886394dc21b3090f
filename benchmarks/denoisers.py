"""Every denoiser that has a name, and the peers that are installed: PSNR on BSD68 and time at 256 x 256, as one table.

    python benchmarks/denoisers.py [--images 10] [--device cuda] [--data carry/data/bsd68.npz] [--json table.json]

The noise is white and the same for all; sigma is what its entry says for that noise. PyPI's bm3d would take an hour
for all pictures, so only its time is measured unless --slow is given; --images takes some of the pictures, evenly. With
ridge and bm3d in the table, both are timed again in turns, and the ratio of their times is printed. It
needs the library alone, not what the command line needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.registry import entries
from plugstream.denoisers.by_name import make
from plugstream.denoisers.facts import facts_of, unavailable
from plugstream.studies.training.quality import mean_psnr

LEVELS = (5, 15, 25, 50)
SLOW = ("pypi-bm3d",)
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "images" / "BSD68"
Call = Callable[[Tensor, float], Tensor]


def pictures(data: Path, count: int | None) -> list[Tensor]:
    """BSD68 from a folder of pictures or an .npz of bytes, grey, with values from 0 to 1; `count` of them, evenly."""
    if data.is_dir():
        from plugstream import load_picture

        files = sorted(file for file in data.iterdir() if file.suffix in (".png", ".jpg", ".tif"))
        load: Callable[[Any], Tensor] = load_picture
    elif data.is_file():
        stored = np.load(data)
        files = sorted(stored.files)
        load = lambda name: torch.from_numpy(stored[name].astype(np.float32) / 255)  # noqa: E731
    else:
        sys.exit(f"there are no pictures at {data}; give a folder or an .npz with --data")
    if count is not None and count < len(files):
        files = [files[k * len(files) // count] for k in range(count)]
    return [load(file) for file in files]


def denoisers(weights: dict[str, str]) -> tuple[dict[str, Call], dict[str, str]]:
    """What there is here, with the sigma for a noise level; and why the rest is absent."""
    here: dict[str, Call] = {"noisy": lambda z, noise: z}
    absent = {}
    for name, entry in entries("denoiser").items():
        facts = facts_of(entry)
        if facts.sigma == "unused" or name == "soft" or entry.is_pattern:
            continue  # not meant to remove white noise from photographs, or anyone's
        missing = None if name in weights else unavailable(entry)
        if missing is not None:
            absent[name] = missing
            continue
        try:
            options: dict[str, Any] = {"weights": weights[name]} if name in weights else {}
            denoiser = make(name, **options)
        except InputError as error:
            absent[name] = str(error)
            continue
        here[name] = lambda z, noise, d=denoiser, f=facts.noise: d(z, f(noise))  # type: ignore[misc]
    triton_peer = _peer("bm3d_triton")
    if triton_peer is None or not torch.cuda.is_available():
        absent["bm3d-triton"] = "it is not installed" if triton_peer is None else "there is no GPU"
    else:  # it takes (N, C, H, W) and clips its input to [0, 1]
        here["bm3d-triton"] = lambda z, noise: triton_peer.denoise(z[None, None], noise)[0, 0]
    return here, absent


def _peer(name: str) -> Any | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def noisy_waves(device: torch.device) -> Tensor:
    """What is timed: 256 x 256 pixels with noise of 25/255."""
    y, x = np.mgrid[:256, :256] / 20
    truth = 0.5 + 0.25 * np.sin(x * x / 4 + y) + 0.25 * np.sign(np.sin(x) * np.cos(y))
    noise = np.random.default_rng(0).standard_normal(truth.shape)
    return torch.from_numpy((truth + 25 / 255 * noise).astype(np.float32)).to(device)


def ratios(call: Call, peer: Call, device: torch.device, calls: int = 15) -> tuple[float, float]:
    """Time and processor time of a call over those of a peer's, called in turns: of the least of each.

    On a machine that others use as well the least says what the work takes; the rest is waiting.
    """
    z = noisy_waves(device)
    spent: dict[Call, list[tuple[float, float]]] = {call: [], peer: []}
    for _ in range(calls + 1):
        for one, found in spent.items():
            _wait(device)
            begin, busy = time.perf_counter(), time.process_time()
            one(z, 25 / 255)
            _wait(device)
            found.append((time.perf_counter() - begin, time.process_time() - busy))
    ours, theirs = ([min(times) for times in zip(*found[1:], strict=True)] for found in spent.values())
    return ours[0] / theirs[0], ours[1] / theirs[1]


def milliseconds(call: Call, device: torch.device) -> float:
    """The median time of a call at 256 x 256 and noise 25/255: of 20 calls, or of as many as fit into 3 seconds."""
    z = noisy_waves(device)
    call(z, 25 / 255)
    times: list[float] = []
    while len(times) < 3 or (len(times) < 20 and sum(times) < 3):
        _wait(device)
        begin = time.perf_counter()
        call(z, 25 / 255)
        _wait(device)
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="a folder of pictures, or an .npz of bytes")
    parser.add_argument("--images", type=int, help="how many of them; all if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--slow", action="store_true", help="the quality of slow ones too")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--weights", nargs="+", default=[], metavar="NAME=PATH", help="such as tnrd=folder")
    parser.add_argument("--json", type=Path, help="write the table there too")
    options = parser.parse_args()
    # This folder has scripts named like peers, which must not be taken for them.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent.resolve()]
    device = torch.device(options.device)
    truths = pictures(options.data, options.images)
    calls, absent = denoisers(dict(entry.split("=", 1) for entry in options.weights))
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"PSNR in dB on {len(truths)} pictures of BSD68 by noise level (of 255), and time at 256 x 256; {where}")
    print(f"{'denoiser':<18}" + "".join(f"{level:>8}" for level in LEVELS) + f"{'ms':>10}  averaged")
    rows = {}
    for name, call in calls.items():
        if name in options.skip or (options.only is not None and name not in options.only):
            continue
        found = {} if name in SLOW and not options.slow else mean_psnr(call, truths, device, LEVELS)
        spent_ms = None if name == "noisy" else milliseconds(call, device)
        rows[name] = {"psnr": found, "ms": spent_ms}
        known = entries("denoiser").get(name)
        theta = None if known is None else facts_of(known).averaged
        numbers = "".join(f"{found[level]:>8.2f}" if found else f"{'-':>8}" for level in LEVELS)
        spent = "" if spent_ms is None else f"{spent_ms:.2f}"
        print(f"{name:<18}{numbers}{spent:>10}  {'' if theta is None else theta}", flush=True)
    against = None
    if {"ridge", "bm3d"} <= set(rows):
        against = ratios(calls["ridge"], calls["bm3d"], device)
        processor = "" if device.type == "cuda" else f", {against[1]:.2f} times its processor time"
        print(
            f"ridge takes {against[0]:.2f} times bm3d's time{processor}, called in turns "
            f"({'pass' if against[0] <= 2 else 'fail'}: at most 2)"
        )
    for name, why in absent.items():
        print(f"absent: {name} ({why})")
    if options.json is not None:
        table = {"device": where, "images": len(truths), "torch": torch.__version__, "rows": rows, "absent": absent}
        table["ridge_over_bm3d"] = against
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
