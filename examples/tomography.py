"""Pictures of docs/tomography.md, by commands: a tooth from 60 views and a plastic disc from 90 degrees.

    python examples/tomography.py ../shared/data/ct docs/images

needs tooth.h5 (Data Exchange, of TomoPy's documentation) and htc2022_tb_90deg.mat (Helsinki Tomography Challenge 2022).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from plugstream.cli import main


def run(*words: object) -> None:
    """Run a command of plugstream as a person would type it."""
    print("plugstream", *words)
    if main([str(word) for word in words]) != 0:
        raise SystemExit(1)


def show(path: Path, images: dict[str, np.ndarray], largest: float, cut: slice) -> None:
    """Images beside each other, y up, on one scale from 0."""
    figure, axes = plt.subplots(1, len(images), figsize=(4 * len(images), 4.3), layout="constrained")
    for axis, (title, image) in zip(np.atleast_1d(axes), images.items(), strict=True):
        axis.imshow(image[cut, cut], cmap="gray", vmin=0, vmax=largest, origin="lower")
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    figure.savefig(path, dpi=100)


def tooth(data: Path, out: Path, folder: Path) -> None:
    """A slice of a tooth: 60 views to reconstruct from, and every tenth of the file's left out to judge by."""
    choice = ("--rows", 0, "--size", 384, "--stripes", 21)
    run("import", "ct", data / "tooth.h5", folder / "tooth.zarr", *choice, "--omit", "5::10", "--count", 60)
    run("import", "ct", data / "tooth.h5", folder / "held.zarr", *choice, "--select", "5::10")
    run("baseline", folder / "tooth.zarr", folder / "filtered", "--filter", "shepp-logan", "--cutoff", 0.3)
    run("reconstruct", folder / "tooth.zarr", "--iterations", 300, "--out", folder / "tv")
    run("reconstruct", folder / "tooth.zarr", "--denoiser", "bm3d", "--iterations", 150, "--out", folder / "bm3d")
    run("residual", folder / "held.zarr", folder / "filtered.npy", folder / "tv", folder / "bm3d")
    images = {
        "filtered back-projection, shepp-logan to 0.3": np.load(folder / "filtered.npy"),
        "TV": np.load(folder / "tv" / "result.npy"),
        "BM3D": np.load(folder / "bm3d" / "result.npy"),
    }
    show(out / "tooth.png", images, 0.012, slice(20, 330))


def disc(data: Path, out: Path, folder: Path) -> None:
    """A disc of plastic with holes, seen from a quarter of the circle only."""
    scan = folder / "disc.zarr"
    run("import", "ct", data / "htc2022_tb_90deg.mat", scan, "--size", 512, "--hardening", "none")
    run("baseline", scan, folder / "disc", "--filter", "hann")
    often = ("--sampler", "epochs", "--batch", 10, "--iterations", 1500)
    run("reconstruct", scan, "--sigma", 0.15, "--high", 42, "--support", "none", *often, "--out", folder / "disc-tv")
    images = {
        "filtered back-projection, hann": np.load(folder / "disc.npy"),
        "TV, from 0 to 42 / m": np.load(folder / "disc-tv" / "result.npy"),
    }
    show(out / "helsinki.png", images, 45.0, slice(None))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as place:
        tooth(Path(sys.argv[1]), Path(sys.argv[2]), Path(place))
        disc(Path(sys.argv[1]), Path(sys.argv[2]), Path(place))
