"""
Multiple scattering (scattering-2d)
===================================

Two plastic discs that scatter microwaves so strongly that each sees the waves of the other. The model solves for the
field inside the object, with all multiple scattering; the Born approximation, which leaves it out, is beside it.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import plugstream as ps
from plugstream.cli import main

folder = Path(tempfile.mkdtemp())


def plugstream(words: str) -> None:
    """Run a command as it is typed in a shell."""
    with contextlib.chdir(folder):
        assert main(words.split()) == 0


# %%
# The image is 20 cm wide, 2.7 wavelengths; the discs have contrasts of 1 and 0.5.

plugstream("simulate scan.zarr --instrument scattering-2d --size 32 --views 12 --receivers 36")

# %%
# PnP-SGD with total variation. The derivative of the model comes from a second field, lit from the receivers.

plugstream("reconstruct scan.zarr --sigma 0.02 --iterations 80 --every 20 --report none --out run")

# %%
# The Born model of the same data, by the library:

scan = ps.open_scan(folder / "scan.zarr")
born = ps.BornModel(ps.born_geometry(scan))
algorithm = ps.ProximalGradient(
    ps.LeastSquares(born, scan.read()), ps.TV(low=0.0), sigma=0.02, sampler=ps.Epochs(6), momentum="bounded"
)
np.save(folder / "first.npy", ps.solve(algorithm, iterations=80).image)

# %%
# Born finds something else; the field equation finds the discs.

truth, result = np.load(folder / "run/truth.npy"), np.load(folder / "run/result.npy")
first = np.load(folder / "first.npy")
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for axis, (title, image) in zip(
    axes, {"truth": truth, "Born": first, "multiple scattering": result}.items(), strict=True
):
    shown = axis.imshow(image, cmap="gray", vmin=0, vmax=1.1, origin="lower")
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, label="permittivity contrast", shrink=0.9)
plt.show()
