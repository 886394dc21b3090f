"""Draw a noisy picture and what each denoiser makes of it: the picture of docs/denoisers.md.

    python examples/compare_denoisers.py docs/images/denoisers.png [NAME=WEIGHTS ...]

Denoisers without weights here are left out, unless weights are given, such as tnrd=folder.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import plugstream as ps
from plugstream.base.registry import find
from plugstream.denoisers.by_name import make
from plugstream.denoisers.facts import facts_of, unavailable

NOISE = 25 / 255
NAMES = ("tv", "nlm", "ridge", "bm3d", "tnrd", "skimage-nlm", "skimage-wavelet", "skimage-bilateral")


def psnr(image: Tensor, truth: Tensor) -> float:
    return float(-10 * torch.log10((image - truth).square().mean()))


def denoised(noisy: Tensor, weights: dict[str, str]) -> dict[str, Tensor]:
    """What every denoiser that is here makes of it, with the sigma that its entry says for this noise."""
    results = {"noisy": noisy}
    for name in NAMES:
        entry = find("denoiser", name)
        if name in weights or unavailable(entry) is None:
            options: dict[str, Any] = {"weights": weights[name]} if name in weights else {}
            denoiser = make(name, **options)
            results[name] = denoiser(noisy, facts_of(entry).noise(NOISE))
            if name == "nlm":  # averaged: the first result, no longer changing, as the guide, which has less noise
                results["nlm, guided by that"] = ps.NLM(results[name])(noisy, NOISE / 2)
    return results


def main(path: str, *weights: str) -> None:
    truth = ps.load_picture("camera", size=256)
    noisy = truth + NOISE * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    results = denoised(noisy, dict(entry.split("=", 1) for entry in weights))
    columns = (len(results) + 1) // 2
    figure = Figure(figsize=(3.1 * columns, 12.6), layout="constrained")
    axes = figure.subplots(4, columns)
    for axis in axes.flat:
        axis.set_axis_off()
    for number, (name, image) in enumerate(results.items()):
        top, column = 2 * (number // columns), number % columns
        for row, part in enumerate((image, image[40:130, 90:180])):
            axes[top + row, column].imshow(part, cmap="gray", vmin=0, vmax=1)
        axes[top, column].set_title(f"{name}, {psnr(image, truth):.2f} dB", fontsize=11)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=70)
    Image.open(drawn).convert("L").save(path, optimize=True)  # it has no colours: half the size


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["denoisers.png"]))
