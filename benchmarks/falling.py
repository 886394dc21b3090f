"""Sigma and the step that fall together (--fall 12, for ct 16) against the race for sigma (--fall none), else unset.

    python benchmarks/falling.py ../shared/data/paper-images --count 3 --size 128
    python benchmarks/falling.py ../shared/data/images/BSD68 --first 4 --every 17 --size 128
    python benchmarks/falling.py ../shared/data/paper-images --count 2 --instrument ct mri
    python benchmarks/falling.py ../shared/data/paper-images --count 2 --instrument ct --views 600 --levels 200 2000

Of each picture scans are made at three levels of noise, with noise of its own, and reconstructed as `plugstream
reconstruct scan.zarr --denoiser bm3d` does, until the image has arrived. Prints SNR, denoiser calls and seconds of both
for each scan, and the means by instrument, with whether they come to the bars: 0.5 dB more, in half the calls.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from denoiser_choice import WAVELENGTH, reconstruct
from sigma_search import OTHERS

from plugstream.cli import main as command

GAIN, CALLS = 0.5, 0.5
FALLS = {"born-2d": "12", "ct": "16", "mri": "12"}  # as runs have it by themselves


def simulate(
    scan: Path, name: str, picture: Path, size: int, level: float, seed: int, views: int | None = None
) -> None:
    """Write a scan of a picture."""
    words, flag, _ = OTHERS[name]
    given = dict(zip(words[::2], words[1::2], strict=True)) | {"--size": size}
    if views is not None:
        given |= {"--acceleration": math.pi / 2 * size / views} if name == "mri" else {"--views": views}
    if name == "born-2d":
        given["--width"] = f"{size / 6 * WAVELENGTH:.9g}"
    typed = ["simulate", scan, "--instrument", name, "--picture", picture, flag, f"{level:g}", "--noise-seed", seed]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if command([str(word) for word in [*typed, *(word for pair in given.items() for word in pair)]]) != 0:
            raise SystemExit(f"cannot simulate {name}")


def compare(name: str, pictures: list[Path], asked: argparse.Namespace) -> None:
    """Print the rows of an instrument and their means."""
    rows, denoiser = [], asked.denoiser
    for seed, picture in enumerate(pictures):
        for level in asked.levels or OTHERS[name][2]:
            with tempfile.TemporaryDirectory() as made:
                scan, row = Path(made) / "scan.zarr", []
                simulate(scan, name, picture, asked.size, level, seed, asked.views)
                for way in ("none", FALLS[name]):
                    begun = time.perf_counter()
                    found = reconstruct(scan, ["--denoiser", denoiser, "--fall", way])
                    row += [found["snr"], found["steps"], time.perf_counter() - begun]
            rows.append(row)
            before, now = (f"{one[0]:6.2f} dB {one[1]:4.0f} calls {one[2]:5.0f} s" for one in (row[:3], row[3:]))
            print(
                f"{name:9}{picture.stem:12}{level:7g}  race {before}  falling {now} {row[3] - row[0]:+.2f}", flush=True
            )
    means = np.array(rows).mean(0)
    gain, part = means[3] - means[0], means[4] / means[1]
    for bar, holds in ((f"{gain:+.2f} dB, bar {GAIN}", gain >= GAIN), (f"{part:.2f} of the calls", part <= CALLS)):
        print(f"{'pass' if holds else 'fail'}: {name}, {len(rows)} scans, {bar}", flush=True)


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of pictures")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--every", type=int, default=1, help="every so many-th")
    parser.add_argument("--count", type=int, default=4, help="at most so many")
    parser.add_argument("--size", type=int, default=64, help="pixels a side")
    parser.add_argument("--instrument", nargs="+", choices=("born-2d", "ct", "mri"), default=["born-2d"])
    parser.add_argument("--denoiser", default="bm3d")
    parser.add_argument("--views", type=int, help="views of a scan, 60 or 25 spokes if not given")
    parser.add_argument("--levels", type=float, nargs="+", help="photons or input SNRs, three usual ones if not given")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    pictures = sorted(asked.pictures.glob("*.png"))[asked.first :: asked.every][: asked.count]
    for name in asked.instrument:
        compare(name, pictures, asked)


if __name__ == "__main__":
    main()
