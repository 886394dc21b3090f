"""Compute the paper's tables and figures again, beside the printed values."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from plugstream.base.errors import InputError, StorageError
from plugstream.base.progress import within
from plugstream.cli.common import say
from plugstream.cli.values import number, whole_number

# As in `plugstream.studies.experiments.reproduce`, which imports torch.
_WHAT = ("table1", "table2", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "beyond", "successors", "all")


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


def run(parsed: argparse.Namespace) -> int:
    """Compute what is missing and write it; every cell is kept, so the same command goes on after a stop."""
    if parsed.size < 32:
        raise InputError(f"--size must be at least 32, not {parsed.size}")
    if parsed.tnrd is not None and not parsed.tnrd.exists():
        raise InputError(f"there are no weights {parsed.tnrd}")
    from plugstream.runs.checks import prepare_device
    from plugstream.settings import ComputeSettings
    from plugstream.studies.experiments.cells import FULL, QUICK, OutOfTimeError, Store
    from plugstream.studies.experiments.reproduce import WHAT, Reproduction, write
    from plugstream.studies.experiments.setup import load_pictures, make_problem

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
    kind = scale.name if parsed.size == 256 else f"{scale.name}-{parsed.size}"
    store = Store(parsed.out / kind, say, None if parsed.seconds is None else begin + parsed.seconds)
    work = Reproduction(problem, store, scale, tnrd, parsed.tnrd)
    try:
        asked = WHAT if "all" in parsed.what else tuple(dict.fromkeys(parsed.what))
        for number, what in enumerate(asked):
            with within(what, number, len(asked)):
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


def _has_tnrd(weights: Path | None) -> bool:
    from plugstream.denoisers import TNRD

    try:
        _ = TNRD() if weights is None else TNRD.load(weights)
    except InputError:
        if weights is not None:
            raise
        return False
    return True
