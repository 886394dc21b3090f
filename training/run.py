"""Train TNRD or ridge filters on a folder of pictures, with checkpoints from which it goes on to the bit.

    python training/run.py tnrd PICTURES weights.safetensors --sigma 25
    python training/run.py ridge PICTURES weights.safetensors

`plugstream train unet` trains the network.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: what is beside it is found as training.X
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from plugstream.base.errors import InputError
from plugstream.cli import main
from plugstream.cli.places import check_place
from plugstream.cli.train import Progress, add_shared, train
from plugstream.cli.values import number, whole_number

if TYPE_CHECKING:
    from plugstream.studies.training.patches import Patches

EXAMPLE = "python training/run.py ridge pictures weights.safetensors"
_USUAL = {
    "ridge": {"steps": 2000, "batch": 32, "patch": 64, "rate": 0.02},
    "tnrd": {"steps": 6000, "batch": 16, "patch": 96, "rate": 0.02},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=[*_USUAL], help="the denoiser to train; steps of tnrd are of all its stages")
    add_shared(parser, _USUAL)
    parser.add_argument("--sigma", type=number(1e4), help="tnrd: the noise it is for, on the scale 0 .. 255")
    parser.add_argument(
        "--stage-steps", type=whole_number(10**9), default=500, help="tnrd: steps of each stage alone (500)"
    )
    parser.add_argument("--start", type=Path, help="tnrd: weights of any noise to start from, instead of by stages")


def run(parsed: argparse.Namespace) -> int:
    """Train, with checkpoints beside OUT now and then; the same command goes on from there after a stop."""
    check_place(["train", parsed.what, str(parsed.images)])
    if parsed.what == "tnrd" and (parsed.sigma is None or not parsed.sigma > 0 or parsed.stage_steps < 1):
        raise InputError("tnrd is trained for one noise level: give --sigma, such as 25, and --stage-steps >= 1")
    if parsed.start is not None and (parsed.what == "ridge" or not parsed.start.is_file()):
        raise InputError(f"--start must be the file of a TNRD model, to train tnrd, not {parsed.start}")
    return train(parsed, _USUAL, _train, bytes_a_pixel=400, program="python training/run.py")


def _train(parsed: argparse.Namespace, patches: Patches, checkpoint: Path, card: dict[str, Any]) -> bool:
    common: dict[str, Any] = {"batch": parsed.batch, "rate": parsed.rate, "device": parsed.device}
    progress = Progress()
    if parsed.what == "tnrd":
        from plugstream.denoisers.tnrd.files import load_models, save_model
        from training.tnrd import train_tnrd

        start = None if parsed.start is None else load_models(parsed.start)[0]
        steps = {"stage_steps": parsed.stage_steps, "joint_steps": parsed.steps}
        checkpoint.mkdir(exist_ok=True)
        common |= {"checkpoint": checkpoint, "progress": progress}
        save_model(train_tnrd(patches, parsed.sigma, start=start, **steps, **common), parsed.out, card)
    else:
        from plugstream.denoisers.ridge import save_ridge
        from training.ridge import train_ridge

        def tell(step: int, loss: float) -> None:
            progress("ridge", step, parsed.steps, loss)

        checkpoint.mkdir(exist_ok=True)
        common |= {"checkpoint": checkpoint / "ridge.safetensors", "progress": tell}
        save_ridge(parsed.out, train_ridge(patches, steps=parsed.steps, **common), card)
    return True


if __name__ == "__main__":
    sys.exit(main(script=sys.modules[__name__]))
