"""How steep I - D is, for a U-Net of ours: the norm of its Jacobian by power iteration, near its noise and far from it.

    python benchmarks/unet_slopes.py bsd68.npz safe.safetensors [OTHER.safetensors] [--device cuda]

A table for each file, for told noise of 2 to 50 of 255: on parts of 128 x 128 of photographs with 0 to 5 times that
noise, white and smooth, and on images unlike photographs (bars, disks, steps of 8 grey values, noise alone, photographs
of half and of twice the contrast) with as much noise as told. Median and largest of the images; power iteration bounds
from below. `benchmarks/unet.py --pack` makes the .npz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from plugstream.denoisers.networks.unet import load_unet
from plugstream.studies.training.unet import jacobian_norm

SIDE = 128


def photographs(file: Path) -> Tensor:
    stored = np.load(file)
    middle = (stored[name][96:224, 96:224].astype(np.float32) / 255 for name in sorted(stored.files)[::3])
    return torch.stack([torch.from_numpy(part) for part in middle])[:, None]


def unlike(photos: Tensor) -> dict[str, Tensor]:
    """Images unlike those of the training, eight of a kind, (8, 1, 128, 128)."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIDE, :SIDE]
    bars, disks, steps = [], [], []
    for n in range(8):
        turn, period = rng.uniform(0, np.pi), 2.0 + 2 * n
        bars.append(np.cos(2 * np.pi * (np.cos(turn) * x + np.sin(turn) * y) / period) > 0)
        centres, radii = rng.uniform(0, SIDE, (2, 12)), rng.uniform(3, 20, 12)
        disks.append(sum(np.hypot(x - a, y - b) < r for a, b, r in zip(*centres, radii, strict=True)) % 2)
        steps.append(np.kron(rng.integers(0, 8, (8, 8)) / 7, np.ones((16, 16))))
    kinds = {"bars": bars, "disks": disks, "steps": steps}
    images = {kind: torch.from_numpy(np.stack(some).astype(np.float32))[:, None] for kind, some in kinds.items()}
    return images | {
        "noise": torch.full((8, 1, SIDE, SIDE), 0.5),
        "half": photos[:8] / 2,
        "twice": 2 * photos[:8] - 0.5,
    }


def smooth(noise: Tensor) -> Tensor:
    """Noise of the same variance that has passed a window of 3 x 3."""
    blurred = F.avg_pool2d(F.pad(noise, (1, 1, 1, 1), mode="circular"), 3, 1)
    return blurred / blurred.std()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=25)
    arguments = parser.parse_args()
    photos = photographs(arguments.pictures)
    others = unlike(photos)
    draw = torch.Generator().manual_seed(0)
    noise, start = (torch.randn(photos.shape, generator=draw) for _ in range(2))
    for file in arguments.weights:
        network = load_unet(file)[0].to(arguments.device)

        def slope(images: Tensor, level: float, network=network) -> str:  # type: ignore[no-untyped-def]
            told = torch.full((len(images),), level, device=arguments.device)
            norm = jacobian_norm(
                lambda z: network(z, told),
                images.to(arguments.device),
                start[: len(images)].to(arguments.device),
                identity=1.0,
                jacobian=-1.0,
                symmetric=network.form == "safe",
                iterations=arguments.iterations,
            )
            return f"{norm.median():.2f}, {norm.max():.1f}"

        print(f"{file}: median and largest slope of I - D\n")
        kinds = [f"{what} noise x {times}" for what in ("white", "smooth") for times in (0, 1, 2, 3, 5)]
        print("| told noise of 255 |", " | ".join([*kinds, *others]), "|")
        for level in (2, 5, 15, 25, 50):
            s = level / 255
            cells = [slope(photos + t * s * n, s) for n in (noise, smooth(noise)) for t in (0, 1, 2, 3, 5)]
            cells += [slope(image + s * noise[:8], s) for image in others.values()]
            print(f"| {level} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
