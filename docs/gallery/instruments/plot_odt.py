"""
Optical diffraction tomography (odt-3d)
=======================================

A cell turns under a microscope that records the wave behind it. Each view has a cap of the Ewald sphere of the
object's three-dimensional spectrum; together they leave a missing cone, which the prior fills.
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
# A small volume, to keep this quick: 32 voxels a side, 32 views.

plugstream("simulate scan.zarr --instrument odt-3d --size 32 --views 32")

# %%
# PnP-SGD with total variation in three dimensions:

plugstream("reconstruct scan.zarr --sigma 5% --iterations 50 --every 10 --report none --out run")

# %%
# The three middle slices, of the truth and of the result: the contrast of n squared.

truth, result = np.load(folder / "run/truth.npy"), np.load(folder / "run/result.npy")
figure, axes = plt.subplots(2, 3, figsize=(9, 6), layout="constrained")
for row, (title, volume) in zip(axes, {"truth": truth, "PnP-SGD": result}.items(), strict=True):
    for axis, number, plane in zip(row, range(3), ("xy", "xz", "yz"), strict=True):
        shown = axis.imshow(volume.take(16, axis=number), cmap="magma", vmin=0, vmax=truth.max(), origin="lower")
        axis.set(title=f"{title}, {plane}", xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="contrast", shrink=0.9)
plt.show()
