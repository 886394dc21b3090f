"""
Fourier ptychography (fpm)
==========================

A microscope of small aperture takes a picture under each LED of an array. A tilted light moves another part of the
object's spectrum through the aperture, so that together the pictures hold three times the detail of one, and the
phase.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from plugstream.cli import main

folder = Path(tempfile.mkdtemp())


def plugstream(words: str) -> None:
    """Run a command as it is typed in a shell."""
    with contextlib.chdir(folder):
        assert main(words.split()) == 0


# %%
# 81 pictures of 32 x 32 pixels, for an image of 96 x 96:

plugstream("simulate scan.zarr --instrument fpm --size 96 --camera 32 --leds 9 --phase-picture coins --photons 200000")

# %%
# All views in a step, which so few of them allow:

often = "--sampler all --loss amplitude --iterations 60 --every 20"
plugstream(f"reconstruct scan.zarr --sigma 0.006 {often} --report none --out run")

# %%
# Magnitude and phase:

truth, result = np.load(folder / "run/truth.npy"), np.load(folder / "run/result.npy")
result = result * np.exp(-1j * np.angle(np.vdot(truth, result)))  # the global phase is not measured
figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
axes = axes.ravel()
pictures = {
    "truth, magnitude": (np.abs(truth), "gray"),
    "result, magnitude": (np.abs(result), "gray"),
    "truth, phase": (np.angle(truth), "viridis"),
    "result, phase": (np.angle(result), "viridis"),
}
for axis, (title, (image, colours)) in zip(axes, pictures.items(), strict=True):
    reference = np.abs(truth) if "magnitude" in title else np.angle(truth)
    axis.imshow(image, cmap=colours, vmin=reference.min(), vmax=reference.max())
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
