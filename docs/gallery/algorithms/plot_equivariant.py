"""
Equivariant denoisers: turned, denoised, turned back
====================================================

An image has no preferred direction, but a denoiser may have one: this one takes the median of five pixels of a row, and
knows nothing of columns. ``Equivariant`` turns or mirrors the image before the denoiser sees it and turns it back, all
eight ways or one at random in each step. It keeps what is proved of the denoiser.
"""

import matplotlib.pyplot as plt
import torch

import plugstream as ps

# %%

truth = ps.load_picture("camera", size=64)
grid = ps.Grid((64, 64), pixel=0.12 / 64)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=48, receivers=90, radius=1.6))
scan = ps.simulate(model, truth, snr=25)
fidelity = ps.LeastSquares(model, scan.data)

# %%


def along_rows(image: torch.Tensor, sigma: float) -> torch.Tensor:
    return torch.stack([image.roll(shift, -1) for shift in range(-2, 3)]).median(dim=0).values


plain = ps.Damping(ps.FromFunction(along_rows), 0.5)
common = {"sigma": 0.0, "sampler": ps.Epochs(8), "momentum": "bounded"}
algorithms = {
    "along rows": ps.ProximalGradient(fidelity, plain, **common),
    "a random turn": ps.ProximalGradient(fidelity, ps.Equivariant(plain, "random"), **common),
    "mean of eight turns": ps.ProximalGradient(fidelity, ps.Equivariant(plain, "mean"), **common),
}
results = {
    name: ps.solve(algorithm, iterations=60, monitors=[ps.SNR(truth)], every=4)
    for name, algorithm in algorithms.items()
}

# %%
# A random turn costs one call a step, as the denoiser alone does; the mean costs eight, and is steadier.

figure, axes = plt.subplots(2, 2, figsize=(8, 7.4), layout="constrained")
axes = axes.ravel()
for axis, (name, result) in zip(axes[1:], results.items(), strict=True):
    snr = result.history["snr"]
    axes[0].plot(snr.step, snr.value, label=name)
    axis.imshow(result.image, cmap="gray", vmin=0, vmax=1)
    axis.set(title=f"{name}, {snr.value[-1]:.1f} dB", xticks=[], yticks=[])
axes[0].set(title="SNR in dB", xlabel="step", ylim=(10, None))
axes[0].legend()
plt.show()
