"""Train the light U-Net where there is only the library and a GPU, in commands of limited time, and judge it.

    python benchmarks/unet.py pictures.npz bsd68.npz STATE OUT --form free --seconds 560
    python benchmarks/unet.py ... --form safe --start OUT/unet-free.safetensors --rate 2e-4

The .npz hold grey pictures of bytes; `--pack FOLDER FILE.npz` makes one. The first command times some steps, with
torch.compile and without, and from that sets how many fit into --total seconds, or else into its own; this plan and
the checkpoint are in STATE. Each command trains for at most --seconds and writes what it has to OUT; the same command
goes on from there. After the last step it prints the PSNR on the second file at noise 5, 15, 25 and 50 of 255, which is
also on the card of the weights.

`--time` prints the milliseconds of a call at 256 x 256 with the weights that ship, and how far what is removed is from
that of float64: by the fast forms and by torch in turns, on OMP_NUM_THREADS cores, and on a GPU if there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.version import __version__
from plugstream.denoisers.networks.light_unet import BLOCKS, CHANNELS, LightUNet
from plugstream.denoisers.networks.unet import UNet, load_unet, save_unet
from plugstream.studies.training.patches import Patches
from plugstream.studies.training.quality import mean_psnr
from plugstream.studies.training.unet import HIGHEST, train_unet

_SETTLING, _TIMED = 50, 100  # steps; losses are read from a GPU 50 at a time


def load(file: Path) -> list[Tensor]:
    stored = np.load(file)
    return [torch.from_numpy(stored[name].astype(np.float32) / 255) for name in sorted(stored.files)]


def pack(folder: Path, file: Path) -> None:
    from PIL import Image

    files = sorted(path for path in folder.iterdir() if path.suffix in (".png", ".jpg", ".bmp"))
    pixels: dict[str, Any] = {path.stem: np.asarray(Image.open(path).convert("L")) for path in files}
    np.savez_compressed(file, **pixels)


def seconds_a_step(patches: Patches, options: dict[str, Any], compiled: bool) -> float:
    """Of steps after the first ones, which compile and capture."""
    marks: dict[int, float] = {}

    def note(step: int, loss: float) -> bool:
        if step in (_SETTLING, _SETTLING + _TIMED):
            if patches.device.type == "cuda":
                torch.cuda.synchronize()
            marks[step] = time.perf_counter()
        return step >= _SETTLING + _TIMED

    train_unet(patches, **options, steps=10**6, compiled=compiled, progress=note)
    begin, end = marks.values()
    return (end - begin) / _TIMED


def plan(arguments: argparse.Namespace, patches: Patches, options: dict[str, Any], begin: float) -> dict[str, object]:
    """How to train, as the first command found it, or as the state has it.

    Arguments: begin, of this command, in whose rest all steps must fit if no total is given, with some time to spare.
    """
    file = arguments.state / f"plan-{arguments.form}.json"
    if file.exists():
        stored: dict[str, object] = json.loads(file.read_text())
        return stored
    times = {}
    for compiled in (False, True) if arguments.compiled is None else (arguments.compiled == "yes",):
        try:
            times[compiled] = seconds_a_step(patches, options, compiled)
            print(f"{'compiled' if compiled else 'plain'}: {1e3 * times[compiled]:.2f} ms a step", flush=True)
        except Exception as error:  # a compiler that is not there must not end the training
            print(f"compiled = {compiled} fails: {str(error).splitlines()[0]}", flush=True)
    compiled = min(times, key=lambda key: times[key])
    rest = arguments.seconds - arguments.reserve - (time.monotonic() - begin)
    steps = arguments.steps or max(1, int((arguments.total or 0.93 * rest) / times[compiled]))
    chosen = {"compiled": compiled, "steps": steps, "milliseconds": {str(k): 1e3 * v for k, v in times.items()}}
    file.write_text(json.dumps(chosen))
    return chosen


def milliseconds(call: Callable[[], Tensor]) -> float:
    """The median of calls, within half a second."""
    times: list[float] = []
    for _ in range(5):
        call()
    while len(times) < 5 or sum(times) < 0.5:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1e3 * sorted(times)[len(times) // 2]


def compare_times(sigma: float = 25 / 255) -> None:
    clean = torch.linspace(0, 1, 256)[:, None] * (torch.arange(256) // 32 % 2)
    z = (clean + sigma * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)))[None]
    for form in ("free", "safe"):
        denoiser = UNet(form)
        exact = z - denoiser(z.double(), sigma)

        def error(out: Tensor, exact: Tensor = exact) -> float:
            return float((z - out.reshape(-1, 256, 256)[:1].cpu() - exact).norm() / exact.norm())

        calls: dict[str, Callable[[], Tensor]] = {
            "cpu": partial(denoiser, z, sigma),
            "cpu, torch": partial(denoiser.network, z[None], torch.tensor([sigma])),
        }
        if torch.cuda.is_available():
            for count in (1, 8):
                batch = z.cuda().expand(count, -1, -1).contiguous()
                calls[f"cuda, {count}"] = partial(denoiser, batch, sigma)
        for turn in range(2):
            for name, call in calls.items():
                print(f"{form}, {name}: {milliseconds(call):.3g} ms, off by {error(call()):.1e} ({turn})", flush=True)


def train(arguments: argparse.Namespace) -> None:
    begin = time.monotonic()
    for folder in (arguments.state, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    patches = Patches(load(arguments.pictures), arguments.patch, seed=arguments.seed, device=arguments.device)
    start = None if arguments.start is None else load_unet(arguments.start)[0]
    names = ("form", "channels", "blocks", "rate", "batch", "penalty", "limit")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names} | {"start": start}
    chosen = plan(arguments, patches, options, begin)
    steps = int(str(chosen["steps"]))
    example = start or LightUNet(arguments.channels, arguments.blocks)
    size = sum(value.numel() for value in example.parameters())
    print(f"{arguments.form}: {size:,} weights, {steps} steps; {chosen}", flush=True)
    mean, reported, first = 0.0, begin, 0

    def tell(step: int, loss: float) -> bool:
        nonlocal mean, reported, first
        first = first or step
        mean += max(0.002, 1 / (step - first + 1)) * (loss - mean)
        now = time.monotonic()
        if now - reported > 15 or step == steps:
            reported = now
            left = (steps - step) * (now - begin) / max(1, step - first)
            print(f"step {step} of {steps}, loss {mean:.4f}, {now - begin:.0f} s, about {left:.0f} s left", flush=True)
        return bool(now - begin > arguments.seconds - arguments.reserve)

    network, done = train_unet(
        patches,
        **options,
        steps=steps,
        compiled=bool(chosen["compiled"]),
        checkpoint=arguments.state / f"{arguments.form}.safetensors",
        every=2500,
        progress=tell,
    )
    command = f"plugstream train unet Train400 unet-{arguments.form}.safetensors --steps {steps}"
    for name in ("form", "batch", "patch", "rate", "seed", "penalty", "limit", "device"):
        command += f" --{name} {getattr(arguments, name)}"
    command += "" if arguments.start is None else f" --start {arguments.start.name}"
    card = {"data": f"Train400, {len(patches.pictures)} pictures", "seed": arguments.seed, "steps": done, "of": steps,
            "command": command, "plugstream": __version__, "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"}  # fmt: skip
    part = "" if done == steps else "-unfinished"
    judged = load(arguments.judge)
    judged = judged if not part else judged[::8]  # a first impression; the rest of the time is for training
    file = arguments.out / f"unet-{arguments.form}{part}.safetensors"
    save_unet(file, network, card, HIGHEST)  # before anything else can fail
    denoiser = UNet(load_unet(file)[0].to(arguments.device))  # with weights of 16 bits, as they ship
    card["psnr_bsd68" if not part else f"psnr of {len(judged)}"] = mean_psnr(denoiser, judged, arguments.device)
    save_unet(file, network, card, HIGHEST)
    print(json.dumps(card, indent=1), flush=True)
    print(f"{'whole' if not part else 'to be continued'}; {time.monotonic() - begin:.0f} s in all", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--pack"]:
        pack(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    if sys.argv[1:] == ["--time"]:
        with torch.no_grad():
            compare_times()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pictures", "judge", "state", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--form", choices=["free", "safe"], default="free")
    parser.add_argument("--start", type=Path)
    parser.add_argument("--total", type=float, help="seconds that all commands together train; else those of this one")
    parser.add_argument("--seconds", type=float, default=560, help="of this command")
    parser.add_argument("--reserve", type=float, default=45, help="of these, for the checkpoint and the judgement")
    parser.add_argument("--steps", type=int, help="instead of as many as fit into --total")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--patch", type=int, default=96)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--penalty", type=float, default=0.0)
    parser.add_argument("--limit", type=float, default=0.9)
    parser.add_argument("--channels", type=int, nargs="+", default=CHANNELS)
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiled", choices=["yes", "no"], help="instead of what is faster")
    parser.add_argument("--device", default="cuda")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
