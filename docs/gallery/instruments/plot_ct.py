"""
X-ray tomography (ct)
=====================

Forty views of a parallel beam, where a usual scan has some two hundred, with 20,000 photons a pixel. Filtered
back-projection leaves streaks. PnP-SGD with total variation removes them, from ten views a step.
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
# A scan of the Shepp-Logan phantom, made by the command line:

plugstream("simulate scan.zarr --instrument ct --size 128 --views 40 --photons 20000")

# %%
# The usual method, and ours:

plugstream("baseline scan.zarr first")
plugstream("reconstruct scan.zarr --sigma 1.5% --iterations 150 --every 30 --report none --out run")

# %%
# Both beside the truth; values are attenuations in 1/m.

truth, result = np.load(folder / "run/truth.npy"), np.load(folder / "run/result.npy")
first = np.load(folder / "first.npy")
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for axis, (title, image) in zip(
    axes, {"truth": truth, "filtered back-projection": first, "PnP-SGD with TV": result}.items(), strict=True
):
    shown = axis.imshow(image, cmap="gray", vmin=0, vmax=40, origin="lower")
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="1/m", shrink=0.9)
plt.show()
