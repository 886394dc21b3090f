"""Two of deepinv's own demos, with its PGD and with PnPSGD in its place, in one run.

    make test-peers                                                  # once: brings deepinv 0.5, without CUDA
    PYTHONPATH=build/bridges python examples/deepinv_demos.py [--size 128] [--out pictures]

`demo_TV_minimisation` deblurs a colour picture: min 1/2 ||A x - y||^2 + lambda TV(x). `demo_vanilla_PnP` reconstructs a
phantom from 50 projections by a denoiser. Settings are those of the demos. What they download is replaced by what is
here: the picture, the kernel (deepinv's own generator of motion blur) and the denoiser (BM3D instead of a DnCNN, the
same for both). Operators and data are deepinv's on both sides. Printed are the seconds and the PSNR of both, and the
function that is minimised, where there is one.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from skimage.data import shepp_logan_phantom
from skimage.transform import resize
from torch import Tensor

import plugstream as ps
from plugstream.denoisers.adapters import as_module

Cost = Callable[[Tensor], float]

# How many steps are tried, until the image is as good as deepinv's.
_STEPS = (10, 20, 30, 50, 80, 120, 200)


def timed(model: Any, y: Tensor, physics: Any) -> tuple[Tensor, float]:
    """The image that a model gives, and the seconds of one core that it took, whatever else the machine does."""
    began = time.process_time()
    with torch.no_grad():
        image: Tensor = model(y, physics)
    return image, time.process_time() - began


def psnr(image: Tensor, truth: Tensor) -> float:
    """In dB, of values from 0 to 1."""
    return float(-10 * (image - truth).square().mean().log10())


def row(name: str, seconds: float, image: Tensor, truth: Tensor, cost: Cost | None) -> None:
    """A line of the table."""
    told = "" if cost is None else f"   f + lambda TV = {cost(image):.3f}"
    print(f"  {name:34}{seconds:7.2f} s   {psnr(image, truth):6.2f} dB{told}", flush=True)


def deblur(dinv: Any, size: int) -> list[Tensor]:
    """demo_TV_minimisation.py: motion blur and noise of 0.05, lambda = 0.01, 300 steps of PGD with 20 of TV in each."""
    torch.manual_seed(0)
    truth = torch.from_numpy(resize(astronaut(), (size, size), anti_aliasing=True)).float().permute(2, 0, 1)[None]
    kernel = dinv.physics.generator.MotionBlurGenerator((25, 25), num_channels=1).step(1)["filter"]
    noise = dinv.physics.GaussianNoise(sigma=0.05)
    physics = dinv.physics.BlurFFT(img_size=(3, size, size), filter=kernel, noise_model=noise)
    y = physics(truth)
    prior, fidelity = dinv.optim.prior.TVPrior(n_it_max=20), dinv.optim.data_fidelity.L2()
    exact = dinv.optim.prior.TVPrior()

    def cost(image: Tensor) -> float:
        return float((physics.A(image) - y).square().sum() / 2 + 0.01 * exact.fn(image).sum())

    line = {"prior": prior, "data_fidelity": fidelity, "lambda_reg": 1e-2, "early_stop": True}
    print(f"\ndemo_TV_minimisation, 3 x {size} x {size}, lambda = 0.01")
    theirs, seconds = timed(dinv.optim.PGD(**line, stepsize=1.0, max_iter=300), y, physics)
    row("deepinv PGD, 300 steps", seconds, theirs, truth, cost)
    for steps in _STEPS:
        ours, own = timed(ps.PnPSGD(**line, momentum="nesterov", max_iter=steps), y, physics)
        if cost(ours) <= cost(theirs):
            row(f"PnPSGD, {steps} steps", own, ours, truth, cost)
            print(f"  {seconds / own:.1f} times as fast to the same value or a lower one")
            break
    ours, own = timed(ps.PnPSGD(**line, momentum="nesterov", max_iter=300), y, physics)
    row("PnPSGD, at most 300 steps", own, ours, truth, cost)
    return [truth, y, theirs, ours]


def tomography(dinv: Any, size: int) -> list[Tensor]:
    """demo_vanilla_PnP.py: 50 angles, noise of 0.03, 200 steps of PGD with sigma = 0.01 and a step of 15 pi / 100."""
    torch.manual_seed(0)
    truth = torch.from_numpy(resize(shepp_logan_phantom(), (size, size), anti_aliasing=True)).float()[None, None]
    noise = dinv.physics.GaussianNoise(sigma=0.03)
    physics = dinv.physics.Tomography(img_width=size, angles=50, normalize=True, noise_model=noise)
    y = physics(truth)
    scaling = torch.pi / 100
    prior = dinv.optim.prior.PnP(denoiser=as_module(ps.BM3D()))
    line = {
        "prior": prior,
        "data_fidelity": dinv.optim.data_fidelity.L2(),
        "stepsize": 15 * scaling,
        "sigma_denoiser": 0.01,
        "early_stop": True,
        "custom_init": lambda y, physics: physics.A_adjoint(y) * scaling,
    }
    print(f"\ndemo_vanilla_PnP, {size} x {size}, 50 angles, BM3D of 0.01")
    theirs, seconds = timed(dinv.optim.PGD(**line, max_iter=200), y, physics)
    row("deepinv PGD, 200 steps", seconds, theirs, truth, None)
    for steps in _STEPS:
        ours, own = timed(ps.PnPSGD(**line, max_iter=steps), y, physics)
        if psnr(ours, truth) >= psnr(theirs, truth):
            row(f"PnPSGD, {steps} steps of 6 angles", own, ours, truth, None)
            print(f"  {seconds / own:.1f} times as fast to as good an image or a better one")
            break
    ours, own = timed(ps.PnPSGD(**line, max_iter=200), y, physics)
    row("PnPSGD, 200 steps of 6 angles", own, ours, truth, None)
    return [truth, physics.A_dagger(y, fbp=True), theirs, ours]


def astronaut() -> Any:
    """A colour picture in the public domain, values from 0 to 1."""
    return importlib.import_module("skimage.data").astronaut() / 255


def draw(path: Path, images: list[Tensor]) -> None:
    """Truth, data or its simplest image, deepinv's and ours beside each other."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(images), figsize=(3.2 * len(images), 3.5), layout="constrained")
    for axis, title, image in zip(axes, ("truth", "measured", "deepinv PGD", "PnPSGD"), images, strict=True):
        picture = image[0].clamp(0, 1).permute(1, 2, 0).squeeze(-1).numpy()
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
        axis.set_title(title)
        axis.axis("off")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=128, help="pixels a side (128)")
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    chosen = parser.parse_args()
    try:
        dinv: Any = importlib.import_module("deepinv")
    except ImportError:
        raise SystemExit("deepinv is not installed: pip install deepinv, or see `make test-peers`") from None
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"deepinv {dinv.__version__}, torch {torch.__version__}, one core")
    for name, demo in (("deblur", deblur), ("tomography", tomography)):
        images = demo(dinv, chosen.size)
        if chosen.out is not None:
            chosen.out.mkdir(parents=True, exist_ok=True)
            draw(chosen.out / f"deepinv-{name}.png", images)


if __name__ == "__main__":
    main()
