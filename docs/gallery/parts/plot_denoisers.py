"""
Denoisers: five priors for one scan
===================================

The prior is a function that removes noise from an image. Total variation likes flat regions, BM3D and non-local means
look for patches that repeat, and TNRD is a small network that has learned from photographs. A function of your own is a
prior as well: here a median of nine pixels, in three lines.
"""

import matplotlib.pyplot as plt
import torch

import plugstream as ps

# %%
# Few views and much noise, so that the prior matters:

truth = ps.load_picture("camera", size=64)
grid = ps.Grid((64, 64), pixel=0.12 / 64)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=24, receivers=90, radius=1.6))
scan = ps.simulate(model, truth, snr=20)
fidelity = ps.LeastSquares(model, scan.data)

# %%
# Sigma, the strength, means something else to each of them, so each has its own. The median, which has none, is made
# weaker by damping, (1 - theta) z + theta D(z):


def median(image: torch.Tensor, sigma: float) -> torch.Tensor:
    padded = torch.nn.functional.pad(image[None, None], (1, 1, 1, 1), mode="replicate")
    return padded.unfold(-2, 3, 1).unfold(-2, 3, 1).flatten(-2).median(dim=-1).values[0, 0]


denoisers = {
    "no prior": (ps.Box(low=0.0), 0.0),
    "TV": (ps.TV(low=0.0), 0.08),
    "BM3D": (ps.BM3D(), 0.02),
    "non-local means": (ps.NLM(), 0.03),
    "TNRD": (ps.TNRD(), 0.02),
    "yours: a median": (ps.Damping(ps.FromFunction(median), 0.2), 0.0),
}
results = {}
for name, (denoiser, sigma) in denoisers.items():
    algorithm = ps.ProximalGradient(fidelity, denoiser, sigma=sigma, sampler=ps.Epochs(8), momentum="bounded")
    results[name] = ps.solve(algorithm, iterations=30, monitors=[ps.SNR(truth)], every=30)

# %%

figure, axes = plt.subplots(2, 3, figsize=(9, 6.4), layout="constrained")
for axis, (name, result) in zip(axes.ravel(), results.items(), strict=True):
    axis.imshow(result.image, cmap="gray", vmin=0, vmax=1)
    axis.set(title=f"{name}, {result.history['snr'].value[-1]:.1f} dB", xticks=[], yticks=[])
plt.show()
