"""Compute the paper's tables and figures again, beside the printed values.

    python reproduction/run.py table1 --images FOLDER
    python reproduction/run.py all --images FOLDER --out OUT --device cuda --seconds 420 --pack

The second computes cells alone, on a machine that may have no Matplotlib, and makes OUT/cells.tar.gz. Unpacked into
results/ elsewhere, the first writes tables and figures from it without computing anything again. Pictures may be .npy
of 8 bits, which need no library to be read. Another --size needs scikit-image.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file: what is beside it is found as reproduction.X
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from plugstream.base.errors import InputError, StorageError
from plugstream.base.progress import within
from plugstream.cli import main
from plugstream.cli.common import say
from plugstream.cli.values import number, whole_number

if TYPE_CHECKING:
    from reproduction.results import Reproduction

EXAMPLE = "python reproduction/run.py table2 --images pictures"
# As in `reproduction.results`, which imports torch.
_WHAT = ("table1", "table2", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "beyond", "successors", "all")
# Where time may be short, the most important first, each with those that have the same cells.
_PACKED = ("table2", "fig6", "fig7", "beyond", "successors", "fig2", "fig3", "fig4", "fig5", "table1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", choices=_WHAT, metavar="WHAT", help=", ".join(_WHAT))
    parser.add_argument("--images", type=Path, help="the folder of the paper's eight images; others without it")
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder for tables and figures (results)")
    parser.add_argument("--quick", action="store_true", help="two images, fewer iterations, settings as found before")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--tnrd", type=Path, help="TNRD's weights, such as the authors' TNRD_sigma=5.mat; ours without")
    parser.add_argument("--size", type=whole_number(4096), default=256, help="pixels a side; the paper's is 256")
    parser.add_argument(
        "--seconds", type=number(1e9), help="begin nothing new after this time; the same command goes on"
    )
    parser.add_argument("--pack", action="store_true", help="compute only, and pack the cells into OUT/cells.tar.gz")
    parser.add_argument("--cells", type=Path, metavar="FOLDER", help="cells of an earlier run to continue from")


def run(parsed: argparse.Namespace) -> int:
    """Compute what is missing and write it; every cell is kept, so the same command goes on after a stop."""
    if parsed.size < 32:
        raise InputError(f"--size must be at least 32, not {parsed.size}")
    if parsed.tnrd is not None and not parsed.tnrd.exists():
        raise InputError(f"there are no weights {parsed.tnrd}")
    if parsed.cells is not None and not parsed.cells.is_dir():
        raise InputError(f"there is no folder {parsed.cells} of cells")
    from plugstream.runs.checks import prepare_device
    from plugstream.settings import ComputeSettings
    from reproduction.cells import FULL, QUICK, OutOfTimeError, Store
    from reproduction.paper import load_pictures, make_problem
    from reproduction.results import WHAT, Reproduction, write

    begin = time.monotonic()
    prepare_device(ComputeSettings(device=parsed.device))
    scale = QUICK if parsed.quick else FULL
    pictures = load_pictures(parsed.images, parsed.size)
    if not pictures.printed:
        say(f"without --images, pictures of scikit-image stand in: {', '.join(pictures.names)}")
    if scale.images is not None:
        pictures = pictures.only(scale.images)
    tnrd = _has_tnrd(parsed.tnrd)
    if not tnrd:
        say("there are no weights of TNRD, so its rows are left out; give some with --tnrd")
    problem = make_problem(pictures, device=parsed.device)
    say(f"{len(problem.names)} images measured in {problem.seconds:.1f} s on {problem.device}")
    folder = parsed.out / (scale.name if parsed.size == 256 else f"{scale.name}-{parsed.size}")
    store = Store(folder, say, None if parsed.seconds is None else begin + parsed.seconds)
    work = Reproduction(problem, store, scale, tnrd, parsed.tnrd)
    asked = WHAT if "all" in parsed.what else tuple(dict.fromkeys(parsed.what))
    try:
        if parsed.cells is not None:
            shutil.copytree(parsed.cells, folder, dirs_exist_ok=True)
        if parsed.pack:
            return _pack(sorted(asked, key=_PACKED.index), work, parsed.out / "cells.tar.gz")
        for place, what in enumerate(asked):
            with within(what, place, len(asked)):
                for path in write(what, work, parsed.out):
                    say(f"wrote {path}")
    except OutOfTimeError as error:
        say(f"time is up, before {error}; the same command goes on from there")
        return 130
    except KeyboardInterrupt:
        say("stopped; the same command goes on from the last cell")
        return 130
    except OSError as error:
        raise StorageError(f"cannot write to {parsed.out}: {error.strerror or error}") from error
    return 0


def _pack(asked: list[str], work: Reproduction, out: Path) -> int:
    """Compute the cells, report them, and pack them even if something failed."""
    from reproduction.cells import OutOfTimeError
    from reproduction.results import compute, summary

    failed = False
    work.store.folder.mkdir(parents=True, exist_ok=True)
    for place, what in enumerate(asked):
        try:
            with within(what, place, len(asked)):
                compute(what, work)
        except OutOfTimeError as error:
            say(f"time is up, before {error}")
            break
        except Exception:  # the others may still work, and all cells must come back
            traceback.print_exc()
            failed = True
    print(summary(work))
    with tarfile.open(out, "w:gz") as tar:
        tar.add(work.store.folder, arcname=work.store.folder.name)
    say(f"wrote {out}")
    return int(failed)


def _has_tnrd(weights: Path | None) -> bool:
    from plugstream.denoisers import TNRD

    try:
        _ = TNRD() if weights is None else TNRD.load(weights)
    except InputError:
        if weights is not None:
            raise
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(script=sys.modules[__name__]))
