"""
A step for every pixel
======================

One step for all pixels is as short as the pixel asks for that most rays meet. For X-ray tomography the sums of the
projector's columns bound the curvature pixel by pixel, and ``Diagonal`` takes a step of its own for each.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import plugstream as ps
from plugstream.images.simulated import shepp_logan
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import fan_beam
from plugstream.models.ct_geometry import Voxels

# %%
# A fan beam about the Shepp-Logan phantom, 60 views; lengths are in pixels:

truth = torch.from_numpy(shepp_logan((64, 64))).float()
rays = fan_beam(2 * np.pi * np.arange(60) / 60, 96, 1.5, source=100, detector=60)
model = CTModel(rays, Voxels((64, 64), 1.0))
clean = model.forward(truth)
data = clean + 0.01 * clean.max() * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
fidelity = ps.LeastSquares(model, data)

# %%

common = {"sigma": 0.012, "sampler": ps.Epochs(10), "momentum": "nesterov"}
tv = ps.TV(low=0.0)
algorithms = {
    "one step": ps.ProximalGradient(fidelity, tv, **common),
    "a step for every pixel": ps.ProximalGradient(fidelity, tv, gradient=ps.Diagonal(), **common),
}
results = {
    name: ps.solve(algorithm, iterations=80, monitors=[ps.SNR(truth), ps.Distance()], every=4)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# Nearer to the truth at every step, for one more image in memory. The maps differ, so that distances do not compare.

figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
axes = axes.ravel()
for name, result in results.items():
    snr, distance = result.history["snr"], result.history["distance"]
    axes[0].plot(snr.step, snr.value, label=name)
    axes[1].semilogy(distance.step[1:], distance.value[1:], label=name)
axes[0].set(title="SNR in dB", xlabel="step", ylim=(5, None))
axes[1].set(title="distance to a fixed point", xlabel="step")
axes[0].legend()
for axis, (name, result) in zip(axes[2:], list(results.items())[-2:], strict=True):
    axis.imshow(result.image, cmap="gray", vmin=0, vmax=1, origin="lower")
    axis.set(title=name, xticks=[], yticks=[])
plt.show()
