"""Draw a noisy picture and what each denoiser makes of it: the picture of docs/denoisers.md.

python examples/compare_denoisers.py docs/images/denoisers.png
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from matplotlib.figure import Figure

import plugstream as ps

SIGMA = 25 / 255


def psnr(image: torch.Tensor, truth: torch.Tensor) -> float:
    return float(-10 * torch.log10((image - truth).square().mean()))


def main(path: str) -> None:
    truth = ps.load_picture("camera", size=256)
    noisy = truth + SIGMA * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    # TV's sigma is the root of its weight, so it is chosen by PSNR here; BM3D's is the noise's own.
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "noisy": lambda: noisy,
        "TV": lambda: ps.TV()(noisy, 0.28),
        "BM3D, stage 1 alone": lambda: ps.BM3D(stages=1)(noisy, SIGMA),
        "BM3D": lambda: ps.BM3D()(noisy, SIGMA),
    }
    figure = Figure(figsize=(12.4, 6.6), layout="constrained")
    axes = figure.subplots(2, len(makers))
    for column, (name, make) in enumerate(makers.items()):
        image = make()
        for row, part in enumerate((image, image[40:130, 90:180])):
            axes[row, column].imshow(part, cmap="gray", vmin=0, vmax=1)
            axes[row, column].set_axis_off()
        axes[0, column].set_title(f"{name}, {psnr(image, truth):.2f} dB", fontsize=10)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "denoisers.png")
