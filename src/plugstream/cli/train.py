"""Train a denoiser on a folder of pictures, with checkpoints from which it goes on to the bit.

What is not for the U-Net alone also serves `training/run.py` of a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.text import printable, shell_join
from plugstream.cli.common import check_new, say, say_next
from plugstream.cli.values import SEEDS, number, whole_number

if TYPE_CHECKING:
    from plugstream.studies.training.patches import Patches

Fit = Callable[[argparse.Namespace, "Patches", Path, dict[str, Any]], bool]
"""Trains on patches, with its checkpoints in a folder, and writes the weights with their card.

False if the time was over before the last step."""
_USUAL = {"unet": {"steps": 40_000, "batch": 64, "patch": 96, "rate": 6e-4}}
# Of the network alone, by the arguments of `train_unet`.
_NETWORK = ("form", "channels", "blocks", "penalty", "limit", "compiled", "every")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", type=_trained_here, choices=[*_USUAL], help="the denoiser to train")
    add_shared(parser, _USUAL)
    parser.add_argument("--start", type=Path, help="weights to start from, of any form")
    parser.add_argument("--form", choices=["free", "safe"], help="safe is a gradient step of a potential (free)")
    parser.add_argument("--channels", type=whole_number(4096, 1), nargs="+", help="of each level (32 64 128 256)")
    parser.add_argument("--blocks", type=whole_number(64, 1), nargs="+", help="of each level (4 4 4 2)")
    parser.add_argument("--penalty", type=number(1e6, 0), help="weight of the Jacobian's norm in the loss (0)")
    parser.add_argument("--limit", type=number(100, 0), help="what the penalty asks for: safe ||I - J||, free k (0.9)")
    parser.add_argument("--compiled", action="store_const", const=True, help="by torch.compile")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="pictures to measure the PSNR on at the end")
    parser.add_argument("--every", type=whole_number(10**9, 1), help="steps between checkpoints (1000)")
    parser.add_argument("--time-limit", type=number(1e9, 0), help="seconds after which to stop with a checkpoint")


def _trained_here(what: str) -> str:
    if what in ("tnrd", "ridge"):
        command = f"python training/run.py {what} PICTURES OUT"
        raise argparse.ArgumentTypeError(f"{what} is trained in a checkout of plugstream, by '{command}'")
    return what


def run(parsed: argparse.Namespace) -> int:
    """Train, with checkpoints beside OUT now and then; the same command goes on from there after a stop."""
    if parsed.start is not None and not parsed.start.is_file():
        raise InputError(f"--start must be the file of a U-Net, not {parsed.start}")
    if parsed.judge is not None and not parsed.judge.is_dir():
        raise InputError(f"there is no folder {parsed.judge} of pictures to judge by")
    levels = [value for value in (parsed.channels, parsed.blocks) if value is not None]
    if len({len(value) for value in levels} | ({4} if len(levels) == 1 else set())) > 1:
        raise InputError("--channels and --blocks have a number for each level: as many of one as of the other")
    return train(parsed, _USUAL, _train, bytes_a_pixel=3000)


def add_shared(parser: argparse.ArgumentParser, usual: Mapping[str, Mapping[str, float]]) -> None:
    """Give a parser the arguments of every training, after that of what is trained.

    Arguments: usual, the values of steps, batch, patch and rate where none is typed, by what is trained.
    """

    def values(name: str) -> str:
        return ", ".join(f"{what} {options[name]:g}" for what, options in usual.items())

    parser.add_argument("images", type=Path, help="a folder of pictures")
    parser.add_argument("out", type=Path, help="the weights to write, ending in .safetensors")
    parser.add_argument("--steps", type=whole_number(10**9), help=f"steps of Adam ({values('steps')})")
    parser.add_argument("--batch", type=whole_number(65_536), help=f"patches a step ({values('batch')})")
    parser.add_argument("--patch", type=whole_number(8192), help=f"pixels a side of a patch ({values('patch')})")
    parser.add_argument("--rate", type=number(1e3), help=f"learning rate at the start ({values('rate')})")
    parser.add_argument("--seed", type=whole_number(SEEDS, 0), default=0, help="of patches and noise (0)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")


def train(
    parsed: argparse.Namespace,
    usual: Mapping[str, Mapping[str, float]],
    fit: Fit,
    *,
    bytes_a_pixel: int,
    program: str = "plugstream",
) -> int:
    """Train `parsed.what`, say how it ended, and return the exit status.

    Arguments: usual, as in `add_shared`; bytes_a_pixel, of a step; program, whose command it is, for the card.
    """
    for name, value in usual[parsed.what].items():
        if getattr(parsed, name) is None:
            setattr(parsed, name, value)
        if not getattr(parsed, name) > 0:
            raise InputError(f"--{name} must be > 0, not {getattr(parsed, name)}")
    if parsed.out.suffix != ".safetensors":
        raise InputError(f"weights are written as .safetensors, not as {parsed.out.name!r}")
    check_new(parsed.out)
    from plugstream.base.capacity import check_memory
    from plugstream.base.version import __version__
    from plugstream.runs.checks import prepare_device
    from plugstream.settings import ComputeSettings
    from plugstream.studies.training.patches import Patches

    least = 7  # the size of a filter
    if parsed.patch < least:
        raise InputError(f"--patch must be at least {least}, the size of a filter, not {parsed.patch}")
    prepare_device(ComputeSettings(device=parsed.device))
    # Patches, their noise, and what the gradient keeps of the responses of tens of filters, or of a network.
    memory = bytes_a_pixel * parsed.batch * parsed.patch**2
    check_memory(memory, "a step of the training", "use a smaller --batch or --patch")
    patches = Patches.from_folder(parsed.images, parsed.patch, seed=parsed.seed, device=parsed.device)
    checkpoint = parsed.out.with_suffix(".checkpoint")
    say(f"training {parsed.what} on {len(patches.pictures)} pictures; {checkpoint} keeps what is done")
    card = {
        "data": f"{len(patches.pictures)} pictures of {printable(parsed.images.resolve().name)}",
        "command": f"{program} {shell_join(sys.argv[1:])}",
        "seed": parsed.seed,
        "plugstream": __version__,
    }
    try:
        whole = fit(parsed, patches, checkpoint, card)
    except InputError:
        with contextlib.suppress(OSError):  # a folder with a checkpoint stays
            checkpoint.rmdir()
        raise
    except KeyboardInterrupt:
        if not parsed.out.exists():  # else it is whole, and only the checkpoint is left to remove
            say(f"stopped; the same command goes on from {checkpoint}")
            return 130
        whole = True
    if not whole:
        say(f"the time is over; the same command goes on from {checkpoint}")
        return 0
    shutil.rmtree(checkpoint)
    say(f"wrote {parsed.out}")
    say_next("certify", "--denoiser", parsed.what, "--weights", parsed.out, "--sigma", "15/255")
    return 0


def _train(parsed: argparse.Namespace, patches: Patches, checkpoint: Path, card: dict[str, Any]) -> bool:
    import torch

    from plugstream.denoisers.networks.unet import UNet, load_unet, save_unet
    from plugstream.runs.commands import Requests
    from plugstream.studies.training.patches import load_pictures
    from plugstream.studies.training.quality import mean_psnr
    from plugstream.studies.training.unet import HIGHEST, train_unet

    pictures = [] if parsed.judge is None else load_pictures(parsed.judge)
    start = None if parsed.start is None else load_unet(parsed.start)[0]
    options = {name: getattr(parsed, name) for name in _NETWORK if getattr(parsed, name) is not None}
    options |= {"steps": parsed.steps, "batch": parsed.batch, "rate": parsed.rate, "start": start}
    progress, end = Progress(), time.monotonic() + (parsed.time_limit or math.inf)
    checkpoint.mkdir(exist_ok=True)
    with Requests() as requests:

        def tell(step: int, loss: float) -> bool:
            progress("unet", step, parsed.steps, loss)
            return requests.came or time.monotonic() > end

        file = checkpoint / "unet.safetensors"
        network, done = train_unet(patches, checkpoint=file, progress=tell, **options)
    if done < parsed.steps:
        if requests.came:
            raise KeyboardInterrupt
        return False
    card |= {name: value for name, value in options.items() if name not in ("start", "every")}
    gpu = parsed.device.startswith("cuda")
    card |= {"patch": parsed.patch, "torch": torch.__version__}
    card |= {"device": torch.cuda.get_device_name(parsed.device) if gpu else "cpu"}
    if pictures:
        denoiser = UNet(network.to(parsed.device))
        card["psnr"] = mean_psnr(denoiser, pictures, parsed.device)
        text = ", ".join(f"{psnr:.2f} dB at {level}" for level, psnr in card["psnr"].items())
        say(f"PSNR on {len(pictures)} pictures of {printable(parsed.judge.name)}: {text} of 255")
        network.cpu()
    save_unet(parsed.out, network, card, HIGHEST)
    return True


class Progress:
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
