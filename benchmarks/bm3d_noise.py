"""BM3D of colour pictures and of noise with a power spectrum beside PyPI's `bm3d`, where that is installed: PSNR in dB.

    python benchmarks/bm3d_noise.py FOLDER         FOLDER has the grey pictures test005, test011 and test030 of BSD68
    python benchmarks/bm3d_noise.py FOLDER docs/images/bm3d-spectrum.png     only the picture of test030 with lines

Parts of 256 x 256 pixels. Noise with a spectrum has the standard deviation 25/255: alike along lines of 31 pixels
("line"), in waves across the diagonal ("diagonal"), over two or three pixels ("blob"), 1/f ("pink"), and f ("ramp"),
which filtered back-projection leaves. PyPI's 4.0.3 asks NumPy for trapz, which newer NumPys call trapezoid.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plugstream import bm3d, bm3d_rgb, load_picture

SHAPE, SIGMA = (256, 256), 25 / 255
PARTS = {"astronaut": np.s_[0:512:2, 0:512:2], "coffee": np.s_[60:316, 150:406], "chelsea": np.s_[20:276, 100:356],
         "rocket": np.s_[100:356, 200:456]}  # fmt: skip


def spectrum(kind: str) -> Any:
    """E|fft2(n)|^2 of noise n."""
    y, x = np.mgrid[-16:17, -16:17]
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(SHAPE[0]), np.fft.fftfreq(SHAPE[1]), indexing="ij"))
    kernels = {
        "line": np.maximum(16 - np.abs(x), 0) * (y == 0),
        "diagonal": np.cos(x + y) * np.exp(-(x**2 + y**2) / 50),
        "blob": np.exp(-(x**2 + y**2) / 2),
    }
    simple = {"pink": 1 / np.maximum(f, 1 / SHAPE[0]), "ramp": f + 1e-3}
    power = simple[kind] if kind in simple else np.abs(np.fft.fft2(kernels[kind], SHAPE)) ** 2
    return power / power.mean() * SIGMA**2 * power.size


def cases(folder: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    """A name, the picture, the noisy one, and sigma or a spectrum."""
    from skimage import data

    for name, part in PARTS.items():
        picture = np.asarray(getattr(data, name)())[..., :3][part] / 255
        for sigma in (15, 25, 50):
            noise = np.random.default_rng(7).standard_normal(picture.shape)
            yield f"{name}, {sigma}/255", picture, picture + sigma / 255 * noise, sigma / 255
    for number in (5, 11, 30):
        picture = load_picture(folder / f"test{number:03d}.png").double().numpy()[20:276, 20:276]
        for kind in ("line", "diagonal", "blob", "pink", "ramp"):
            white = np.fft.fft2(np.random.default_rng(11).standard_normal(SHAPE))
            power = spectrum(kind)
            noise = np.fft.ifft2(white * np.sqrt(power / power.size)).real
            yield f"test{number:03d}, {kind}", picture, picture + noise, power


def draw(folder: Path, target: Path) -> None:
    """The picture, with noise along lines, denoised as if that were white, and by its spectrum."""
    from PIL import Image

    clean, noisy, power = next(case[1:] for case in cases(folder) if case[0] == "test030, line")
    row = np.hstack([clean, noisy, bm3d(noisy, SIGMA), bm3d(noisy, power)])
    Image.fromarray(np.rint(255 * np.clip(row, 0, 1)).astype(np.uint8)).save(target)


def main() -> None:
    if len(sys.argv) > 2:
        draw(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    sys.path.pop(0)  # this folder, which has a script of PyPI's name
    theirs = importlib.import_module("bm3d") if importlib.util.find_spec("bm3d") else None
    if not hasattr(np, "trapz"):
        vars(np)["trapz"] = np.trapezoid
    for name, picture, noisy, sigma in cases(Path(sys.argv[1])):
        calls = [bm3d_rgb if picture.ndim == 3 else bm3d]
        if theirs is not None:
            calls.append(theirs.bm3d_rgb if picture.ndim == 3 else theirs.bm3d)
        values = [-10 * np.log10(np.mean((call(noisy, sigma) - picture) ** 2)) for call in calls]
        beside = f"   PyPI's {values[1]:.2f} ({values[0] - values[1]:+.2f})" if len(values) > 1 else ""
        print(f"{name:<22} ours {values[0]:.2f}{beside}", flush=True)


if __name__ == "__main__":
    main()
