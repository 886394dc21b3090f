"""
X-ray tomography from counts (ct-counts)
========================================

A detector counts photons. With few of them the logarithm that makes line integrals is biased, and loud where little
light comes through. Scans of ``ct-counts`` keep the integers; Poisson's likelihood of them weighs each ray by what it
knows.
"""

import contextlib
import tempfile
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

from plugstream.cli import main

folder = Path(tempfile.mkdtemp())


def plugstream(words: str) -> None:
    """Run a command as it is typed in a shell."""
    with contextlib.chdir(folder):
        assert main(words.split()) == 0


# %%
# A disc with a hole, in a beam that is seven times as strong at one end, 60 photons a pixel on average. The file is
# one of the APS' Data Exchange, as tomographs write it.

angles = np.pi * np.arange(60) / 60
place = np.arange(64) - 32.0
hole = place - 9 * np.cos(angles)[:, None]
integrals = 0.08 * (np.sqrt(np.maximum(26.0**2 - place**2, 0)) - np.sqrt(np.maximum(8.0**2 - hole**2, 0)))
beam = 60 * np.linspace(0.25, 1.75, 64)
counts = np.random.default_rng(0).poisson(beam * np.exp(-integrals))
with h5py.File(folder / "disc.h5", "w") as file:
    file["exchange/data"] = (counts + 10)[:, None].astype(np.uint16)
    file["exchange/data_white"] = (beam + 10)[None, None].astype(np.float32)
    file["exchange/data_dark"] = np.full((1, 1, 64), 10.0, np.float32)
    file["exchange/theta"] = np.rad2deg(angles)

# %%
# Import them as counts, and reconstruct with Poisson's likelihood:

plugstream("import ct disc.h5 scan.zarr --center 32 --air 0 --counts")
plugstream("baseline scan.zarr first")
often = "--sigma 4% --iterations 120 --every 40 --report none"
plugstream(f"reconstruct scan.zarr --loss transmission {often} --out run")

# %%
# Filtered back-projection has no way to know which rays to trust.

images = {
    "filtered back-projection": np.load(folder / "first.npy"),
    "Poisson's likelihood and TV": np.load(folder / "run/result.npy"),
}
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for axis, (title, image) in zip(axes, images.items(), strict=True):
    shown = axis.imshow(image, cmap="gray", vmin=0, vmax=0.1, origin="lower")
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="1 / pixel", shrink=0.9)
plt.show()
