"""
Losses: when some of the data are wrong
=======================================

Least squares, the loss of Gaussian noise, believes every value alike, and a few wrong ones streak through the whole
image. Huber's loss follows large errors with their size, not with their square, and the same data give a clean image.
Nothing else changes: gradient, step and algorithm follow from the loss. Those for counts and for the intensities of
waves are in the examples of ptychography and of CT with a detector's counts.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import plugstream as ps
from plugstream.images.simulated import shepp_logan
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels

# %%
# X-ray tomography of a phantom, 60 views, with 2 % of noise; one value in twenty is anything at all:

truth = torch.from_numpy(shepp_logan((48, 48))).float()
model = CTModel(parallel_beam(np.pi * np.arange(60) / 60, 72, 1.0), Voxels((48, 48), 1.0))
clean = model.forward(truth)
generator = torch.Generator().manual_seed(0)
noisy = clean + 0.02 * clean.max() * torch.randn(clean.shape, generator=generator)
wrong = torch.rand(clean.shape, generator=generator) < 0.05
data = torch.where(wrong, clean.max() * torch.rand(clean.shape, generator=generator), noisy)

# %%
# Errors beyond twice the noise count by their size. Each loss has the sigma that is best for it:

fidelities = {
    "least squares": (ps.LeastSquares(model, data), 0.02),
    "Huber": (ps.LossFidelity(model, data, ps.Huber(0.04 * float(clean.max()))), 0.01),
}
results = {}
for name, (fidelity, sigma) in fidelities.items():
    algorithm = ps.ProximalGradient(fidelity, ps.TV(low=0.0), sigma=sigma, sampler=ps.Epochs(10), momentum="nesterov")
    results[name] = ps.solve(algorithm, iterations=120, monitors=[ps.SNR(truth)], every=120)

# %%

figure, axes = plt.subplots(2, 2, figsize=(7, 7.2), layout="constrained")
axes = axes.ravel()
axes[0].imshow(data, cmap="gray", aspect="auto")
axes[0].set(title="data: views and columns", xticks=[], yticks=[])
axes[1].imshow(truth, cmap="gray", vmin=0, vmax=0.6, origin="lower")
axes[1].set(title="truth", xticks=[], yticks=[])
for axis, (name, result) in zip(axes[2:], results.items(), strict=True):
    axis.imshow(result.image, cmap="gray", vmin=0, vmax=0.6, origin="lower")
    axis.set(title=f"{name}, {result.history['snr'].value[-1]:.1f} dB", xticks=[], yticks=[])
plt.show()
