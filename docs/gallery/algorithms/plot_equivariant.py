"""
Equivariant denoisers: turned, denoised, turned back
====================================================

An image has no preferred direction, but most denoisers do. ``Equivariant`` turns or mirrors the image, at random in
each step or all eight ways, before the denoiser sees it, and turns it back. It keeps what is proved of the denoiser.
"""

import matplotlib.pyplot as plt

import plugstream as ps

# %%

truth = ps.load_picture("camera", size=64)
grid = ps.Grid((64, 64), pixel=0.12 / 64)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=48, receivers=90, radius=1.6))
scan = ps.simulate(model, truth, snr=25)
fidelity = ps.LeastSquares(model, scan.data)

# %%

common = {"sigma": 0.012, "sampler": ps.Epochs(8), "momentum": "bounded"}
algorithms = {
    "BM3D": ps.ProximalGradient(fidelity, ps.BM3D(), **common),
    "a random turn": ps.ProximalGradient(fidelity, ps.Equivariant(ps.BM3D(), "random"), **common),
    "mean of eight turns": ps.ProximalGradient(fidelity, ps.Equivariant(ps.BM3D(), "mean"), **common),
}
results = {
    name: ps.solve(algorithm, iterations=30, monitors=[ps.SNR(truth), ps.Distance()], every=5)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# A random turn costs one call a step, as BM3D alone does; the mean costs eight.

figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
axes = axes.ravel()
for name, result in results.items():
    snr, distance = result.history["snr"], result.history["distance"]
    axes[0].plot(snr.step, snr.value, label=name)
    axes[1].semilogy(distance.step[1:], distance.value[1:], label=name)
axes[0].set(title="SNR in dB", xlabel="step", ylim=(14, None))
axes[1].set(title="distance to a fixed point", xlabel="step")
axes[0].legend()
for axis, (name, result) in zip(axes[2:], list(results.items())[-2:], strict=True):
    axis.imshow(result.image, cmap="gray", vmin=0, vmax=1)
    axis.set(title=name, xticks=[], yticks=[])
plt.show()
