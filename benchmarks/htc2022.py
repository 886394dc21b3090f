"""Score of the Helsinki Tomography Challenge 2022, level by level, from its files; nothing but the size is set.

    python benchmarks/htc2022.py [FOLDER] [--only 01b 07b] [--flags '--sigma 2%']

FOLDER has `htc2022_01a_limited.mat`, `htc2022_01a_recon_fbp_seg.mat` and so on (zenodo.org/records/8041800, CC-BY
4.0): seven levels of 90, 80, ..., 30 degrees with three phantoms each. A phantom's score is the Matthews correlation of
its segments, here by Otsu's threshold, with those of the full scan, on all 512 x 512 pixels; a level's is the sum of
its three, so at most 3. Filtered back-projection goes through the same threshold beside it.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from skimage.filters import threshold_otsu

from plugstream.cli import main as plugstream

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "ct" / "htc2022"


def score(image: NDArray[Any], truth: NDArray[np.bool_]) -> float:
    """The Matthews correlation of Otsu's segments, which is the correlation of zeros and ones."""
    return float(np.corrcoef((image > threshold_otsu(image)).ravel(), truth.ravel())[0, 1])


def run(*words: object) -> None:
    if plugstream([str(word) for word in words]) not in (0, 3):
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=DATA)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="such as 01b")
    parser.add_argument("--flags", default="", help="more flags of reconstruct")
    options = parser.parse_args()
    found = {re.findall(r"\d\d\w", file.name[7:])[0]: file for file in options.folder.glob("htc2022_*_limited.mat")}
    names = [name for name in sorted(found) if options.only is None or name in options.only]
    if not names:
        print(f"there are no files of the challenge in {options.folder}")
        return
    levels: dict[int, list[tuple[float, float]]] = {}
    for name in names:
        truth = loadmat(options.folder / f"htc2022_{name}_recon_fbp_seg.mat")["reconFullFbpSeg"].astype(bool)
        with tempfile.TemporaryDirectory() as place:
            scan, out, first = (Path(place) / part for part in ("scan.zarr", "run", "first"))
            begun = time.monotonic()
            run("import", "ct", found[name], scan, "--size", 512)
            run("reconstruct", scan, "--out", out, "--report", "none", *shlex.split(options.flags))
            seconds = time.monotonic() - begun
            run("baseline", scan, first)
            # Our rows go with y, the challenge's against it.
            ours, filtered = (score(np.load(file)[::-1], truth) for file in (out / "result.npy", f"{first}.npy"))
        levels.setdefault(int(name[:2]), []).append((ours, filtered))
        print(f"{name}: {ours:.4f}, filtered back-projection {filtered:.4f}, {seconds:.0f} s", flush=True)
    print("\nlevel  degrees  phantoms  sum of scores  mean  filtered back-projection, mean")
    for level, scores in levels.items():
        ours, filtered = np.transpose(scores)
        line = f"{level:5d}  {100 - 10 * level:7d}  {len(scores):8d}  {sum(ours):13.4f}  {np.mean(ours):.3f}"
        print(f"{line}  {np.mean(filtered):.3f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
