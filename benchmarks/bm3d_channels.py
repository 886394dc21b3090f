"""BM3D of coils, energies and times: SNR in dB of all channels, each alone and with shared groups.

python benchmarks/bm3d_channels.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from plugstream import bm3d, bm3d_rgb, load_picture

SIZE = 128


def series() -> Iterator[tuple[str, Any, float]]:
    """Images (H, W, C) without noise, and the noise's standard deviation, of each part if they are complex."""
    camera, coins = (load_picture(name, SIZE).double().numpy() for name in ("camera", "coins"))
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5
    maps = [
        np.exp(-((y - 0.6 * np.sin(t)) ** 2 + (x - 0.6 * np.cos(t)) ** 2) / 0.3 + 1j * (3 * t + 4 * x * np.cos(2 * t)))
        for t in 2 * np.pi * np.arange(8) / 8
    ]
    yield "eight coils", camera[..., None] * np.stack(maps, -1), 0.05
    yield "six energies", np.stack([camera * np.exp(-k / 3) + coins * 0.3 * (1 + 0.2 * k) for k in range(6)], -1), 0.1
    yield "eight times", np.stack([np.roll(camera, (k // 2, k // 3), (0, 1)) for k in range(8)], -1), 0.1


def main() -> None:
    for name, clean, sigma in series():
        rng = np.random.default_rng(0)
        noise = rng.standard_normal((2, *clean.shape))
        z = clean + sigma * (noise[0] + (1j * noise[1] if np.iscomplexobj(clean) else 0))
        images = {
            "noisy": z,
            "one by one": np.stack([bm3d(z[..., c], sigma) for c in range(z.shape[2])], -1),
            "groups of the first": bm3d(z, sigma),
            "opp": bm3d_rgb(z, sigma),
            "principal": bm3d_rgb(z, sigma, colorspace="principal"),
        }
        power = np.mean(np.abs(clean) ** 2)
        values = {how: 10 * np.log10(power / np.mean(np.abs(v - clean) ** 2)) for how, v in images.items()}
        print(f"{name:<14}" + "   ".join(f"{how} {value:.2f}" for how, value in values.items()), flush=True)


if __name__ == "__main__":
    main()
