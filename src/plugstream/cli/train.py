"""Train a denoiser on a folder of pictures, with checkpoints from which it goes on to the bit."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.text import printable, shell_join
from plugstream.cli.common import check_new, say
from plugstream.cli.values import SEEDS, number, whole_number

if TYPE_CHECKING:
    from plugstream.studies.training.patches import Patches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["tnrd", "ridge"], help="the denoiser to train")
    parser.add_argument("images", type=Path, help="a folder of pictures")
    parser.add_argument("out", type=Path, help="the weights to write, ending in .safetensors")
    parser.add_argument("--sigma", type=number(1e4), help="tnrd: the noise it is for, on the scale 0 .. 255")
    parser.add_argument(
        "--steps",
        type=whole_number(10**9),
        help="steps of Adam, for tnrd those of all stages together (ridge 2000, tnrd 6000)",
    )
    parser.add_argument(
        "--stage-steps", type=whole_number(10**9), default=500, help="tnrd: steps of each stage alone (500)"
    )
    parser.add_argument(
        "--start", type=Path, help="tnrd: a model of any noise level to start from, instead of by stages"
    )
    parser.add_argument("--batch", type=whole_number(65_536), help="patches a step (ridge 32, tnrd 16)")
    parser.add_argument("--patch", type=whole_number(8192), help="pixels a side of a patch (ridge 64, tnrd 96)")
    parser.add_argument("--rate", type=number(1e3), help="learning rate at the start (ridge 0.02, tnrd 0.02)")
    parser.add_argument("--seed", type=whole_number(SEEDS, 0), default=0, help="of patches and noise (0)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")


_DEFAULTS = {
    "ridge": {"steps": 2000, "batch": 32, "patch": 64, "rate": 0.02},
    "tnrd": {"steps": 6000, "batch": 16, "patch": 96, "rate": 0.02},
}


def run(parsed: argparse.Namespace) -> int:
    """Train, with checkpoints beside OUT every 500 steps; the same command goes on from there after a stop."""
    for name, value in _DEFAULTS[parsed.what].items():
        if getattr(parsed, name) is None:
            setattr(parsed, name, value)
        if not getattr(parsed, name) > 0:
            raise InputError(f"--{name} must be > 0, not {getattr(parsed, name)}")
    if parsed.what == "tnrd" and (parsed.sigma is None or not parsed.sigma > 0 or parsed.stage_steps < 1):
        raise InputError("tnrd is trained for one noise level: give --sigma, such as 25, and --stage-steps >= 1")
    if parsed.start is not None and (parsed.what != "tnrd" or not parsed.start.is_file()):
        raise InputError(f"--start must be the file of a TNRD model, to train tnrd, not {parsed.start}")
    if parsed.out.suffix != ".safetensors":
        raise InputError(f"weights are written as .safetensors, not as {parsed.out.name!r}")
    check_new(parsed.out)
    from plugstream.base.capacity import check_memory
    from plugstream.runs.checks import prepare_device
    from plugstream.settings import ComputeSettings
    from plugstream.studies.training.patches import Patches

    least = 7  # the size of a filter of both
    if parsed.patch < least:
        raise InputError(f"--patch must be at least {least}, the size of a filter, not {parsed.patch}")
    prepare_device(ComputeSettings(device=parsed.device))
    # Patches, their noise, and what the gradient keeps of the responses of tens of filters.
    check_memory(400 * parsed.batch * parsed.patch**2, "a step of the training", "use a smaller --batch or --patch")
    patches = Patches.from_folder(parsed.images, parsed.patch, seed=parsed.seed, device=parsed.device)
    checkpoint = parsed.out.with_suffix(".checkpoint")
    say(f"training {parsed.what} on {len(patches.pictures)} pictures; {checkpoint} keeps what is done")
    try:
        _train(parsed, patches, checkpoint)
    except InputError:
        with contextlib.suppress(OSError):  # a folder with a checkpoint stays
            checkpoint.rmdir()
        raise
    except KeyboardInterrupt:
        if not parsed.out.exists():  # else it is whole, and only the checkpoint is left to remove
            say(f"stopped; the same command goes on from {checkpoint}")
            return 130
    shutil.rmtree(checkpoint)
    say(f"wrote {parsed.out}")
    return 0


def _train(parsed: argparse.Namespace, patches: Patches, checkpoint: Path) -> None:
    from plugstream.base.version import __version__

    common: dict[str, Any] = {"batch": parsed.batch, "rate": parsed.rate, "device": parsed.device}
    progress = _Progress()
    card = {
        "data": f"{len(patches.pictures)} pictures of {printable(parsed.images.resolve().name)}",
        "command": shell_join(["plugstream", *sys.argv[1:]]),
        "seed": parsed.seed,
        "plugstream": __version__,
    }
    if parsed.what == "tnrd":
        from plugstream.denoisers.tnrd.files import load_models, save_model
        from plugstream.studies.training.tnrd import train_tnrd

        start = None if parsed.start is None else load_models(parsed.start)[0]
        steps = {"stage_steps": parsed.stage_steps, "joint_steps": parsed.steps}
        checkpoint.mkdir(exist_ok=True)
        common |= {"checkpoint": checkpoint, "progress": progress}
        save_model(train_tnrd(patches, parsed.sigma, start=start, **steps, **common), parsed.out, card)
    else:
        from plugstream.denoisers.ridge import save_ridge
        from plugstream.studies.training.ridge import train_ridge

        def tell(step: int, loss: float) -> None:
            progress("ridge", step, parsed.steps, loss)

        checkpoint.mkdir(exist_ok=True)
        common |= {"checkpoint": checkpoint / "ridge.safetensors", "progress": tell}
        save_ridge(parsed.out, train_ridge(patches, steps=parsed.steps, **common), card)


class _Progress:
    """Reports the loss of a phase, as a mean over its last steps."""

    def __init__(self) -> None:
        self.phase = ""

    def __call__(self, phase: str, step: int, steps: int, loss: float) -> None:
        if phase != self.phase:
            self.phase, self.first, self.mean = phase, step, loss
        self.mean += max(0.01, 1 / (step - self.first + 1)) * (loss - self.mean)
        report(f"training {phase}, loss {self.mean:.4f}", step, steps)
        if step == steps:
            say(f"{phase}: {steps} steps, loss {self.mean:.4f}")
