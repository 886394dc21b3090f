"""Compute cells on a machine that has torch, NumPy and SciPy only, within a time limit, and pack them into one file.

    PYTHONPATH=src python -m plugstream.studies.experiments --images FOLDER --out OUT --device cuda --seconds 420

makes OUT/cells.tar.gz. Unpacked into results/ elsewhere, `plugstream reproduce all --out results` writes tables and
figures from it without computing anything again. Pictures may be .npy of 8 bits, which need no library to be read.
--cells names a folder of cells of an earlier run to continue from. Another --size needs scikit-image.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import time
import traceback
from pathlib import Path

from plugstream.studies.experiments.cells import FULL, QUICK, OutOfTimeError, Store
from plugstream.studies.experiments.reproduce import Reproduction, compute, summary
from plugstream.studies.experiments.setup import load_pictures, make_problem

# The most important first: Figs. 6 and 7 come with Table 2, and Fig. 3 with Fig. 2.
_ORDER = ("table2", "beyond", "successors", "fig2", "fig4", "fig5", "table1")


def main() -> int:
    """Compute the cells, report them, and pack them even if something failed."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", default=_ORDER)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--tnrd", type=Path)
    parser.add_argument("--cells", type=Path)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:7.1f} {text}", flush=True)

    scale = QUICK if options.quick else FULL
    pictures = load_pictures(options.images, options.size)
    problem = make_problem(pictures if scale.images is None else pictures.only(scale.images), device=options.device)
    say(f"{problem.counted.describe()}; L = {problem.fidelity.lipschitz_max:.4g}")
    folder = options.out / scale.name
    folder.mkdir(parents=True, exist_ok=True)
    if options.cells is not None and options.cells.is_dir():
        shutil.copytree(options.cells, folder, dirs_exist_ok=True)
    store = Store(folder, say, None if options.seconds is None else begin + options.seconds)
    work = Reproduction(problem, store, scale, True, options.tnrd)
    failed = False
    for what in options.what:
        try:
            compute(what, work)
        except OutOfTimeError as error:
            say(f"time is up, before {error}")
            break
        except Exception:  # the others may still work, and all cells must come back
            traceback.print_exc()
            failed = True
    print(summary(work))
    with tarfile.open(options.out / "cells.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname=scale.name)
    say("done")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
