"""Train a denoiser on a folder of pictures, with checkpoints from which it goes on to the bit."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from plugstream.cli.common import say
from plugstream.errors import InputError

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("what", choices=["ridge"], help="the denoiser to train")
    parser.add_argument("images", type=Path, help="a folder of pictures")
    parser.add_argument("out", type=Path, help="the weights to write, by custom ending in .safetensors")
    parser.add_argument("--steps", type=int, default=6000, help="steps of Adam (6000)")
    parser.add_argument("--batch", type=int, default=32, help="patches a step (32)")
    parser.add_argument("--patch", type=int, default=64, help="pixels a side of a patch (64)")
    parser.add_argument("--rate", type=float, default=0.03, help="learning rate at the start (0.03)")
    parser.add_argument("--seed", type=int, default=0, help="of patches and noise (0)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")


def run(parsed: argparse.Namespace) -> int:
    """Train, writing OUT.checkpoint every 500 steps; the same command goes on from there after a stop."""
    for name in ("steps", "batch", "patch", "rate"):
        if not getattr(parsed, name) > 0:
            raise InputError(f"--{name} must be > 0, not {getattr(parsed, name)}")
    if parsed.out.exists():
        raise InputError(f"{parsed.out} exists already; remove it or choose another name")
    if not parsed.out.parent.is_dir():
        raise InputError(f"the folder {parsed.out.parent} does not exist; make it first")
    from plugstream import __version__
    from plugstream.denoisers.ridge import Ridges, save_ridge
    from plugstream.recipes import prepare_device
    from plugstream.settings import ComputeSettings
    from plugstream.training.patches import Patches
    from plugstream.training.ridge import train_ridge

    prepare_device(ComputeSettings(device=parsed.device))
    patches = Patches.from_folder(parsed.images, parsed.patch, seed=parsed.seed)
    if parsed.patch < Ridges.initial().size:
        raise InputError(f"--patch must be at least {Ridges.initial().size}, the size of a filter, not {parsed.patch}")
    checkpoint = parsed.out.with_name(f"{parsed.out.name}.checkpoint")
    say(f"training {parsed.what} on {len(patches.pictures)} pictures; {checkpoint} keeps what is done")
    ridges = train_ridge(
        patches,
        steps=parsed.steps,
        batch=parsed.batch,
        rate=parsed.rate,
        device=parsed.device,
        checkpoint=checkpoint,
        progress=_Progress(parsed.steps),
    )
    card = {
        "what": "convex ridge denoiser, 1/2-averaged by construction",
        "data": f"{len(patches.pictures)} pictures of {parsed.images.resolve().name}",
        "command": shlex.join(["plugstream", *sys.argv[1:]]),
        "seed": parsed.seed,
        "plugstream": __version__,
    }
    save_ridge(parsed.out, ridges, card)
    checkpoint.unlink()
    say(f"wrote {parsed.out}")
    return 0


class _Progress:
    """The loss, as a mean over the last steps, and how long it will still take."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.first: int | None = None
        self.begin = self.shown = time.monotonic()
        self.mean = 0.0

    def __call__(self, step: int, loss: float) -> None:
        self.first = step if self.first is None else self.first
        share = max(0.01, 1 / (step - self.first + 1))
        self.mean += share * (loss - self.mean)
        now = time.monotonic()
        if now - self.shown > 5 or step == self.steps:
            self.shown = now
            left = (now - self.begin) / max(1, step - self.first) * (self.steps - step)
            say(f"step {step}/{self.steps}   loss {self.mean:.4f}   {left:.0f} s to go")
