"""
Ptychography
============

A focused beam goes over an object in overlapping steps, and a detector far away counts photons. The phase is lost at
the detector and comes back from the overlap. Magnitude and phase of the object are two different pictures here.
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
# 196 positions, 100,000 photons a frame:

plugstream("simulate scan.zarr --instrument ptychography --frame 32 --across 14 --phase-picture coins --photons 100000")

# %%
# The step and the loss that suit counts are chosen by the instrument:

plugstream("reconstruct scan.zarr --sigma 0.008 --iterations 80 --every 20 --report none --out run")

# %%
# Where the beam never was, at the border, nothing is known.

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
