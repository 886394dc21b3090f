"""
Magnetic resonance imaging (mri)
================================

Radial lines through k-space, four times fewer than a full scan takes, with four coils. A view is a line; a step sees
a few of them. CG-SENSE is what a scanner would make of the same lines.
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
# A phantom, with a phase that varies and noise at 30 dB:

plugstream("simulate scan.zarr --instrument mri --size 96 --acceleration 4 --coils 4")

# %%
# The usual method, and ours:

plugstream("baseline scan.zarr first --method cg-sense --iterations 10")
plugstream("reconstruct scan.zarr --sigma 2% --iterations 100 --every 25 --report none --out run")

# %%
# Magnitudes:

truth, result = np.load(folder / "run/truth.npy"), np.load(folder / "run/result.npy")
first = np.load(folder / "first.npy")
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for axis, (title, image) in zip(
    axes, {"truth": truth, "CG-SENSE": first, "PnP-SGD with TV": result}.items(), strict=True
):
    shown = axis.imshow(np.abs(image), cmap="gray", vmin=0, vmax=np.abs(truth).max(), origin="lower")
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="magnitude", shrink=0.9)
plt.show()
