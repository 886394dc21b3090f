"""
PnP-ADMM and half-quadratic splitting
=====================================

Where the denoiser costs more than the data, take steps that do more with the data: a prox, by conjugate gradients on
all views. PnP-ADMM arrives in a few denoiser calls; half-quadratic splitting, with sigma and step that fall together,
in the fewest.
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

tv = ps.TV(low=0.0)
falling = {"sigma": ps.Geometric(0.3, 0.1, 10), "step_size": ps.OverL(ps.Geometric(100, 5, 10))}
algorithms = {
    "PnP-FISTA": ps.ProximalGradient(fidelity, tv, sigma=0.04, momentum="nesterov"),
    "PnP-ADMM": ps.ADMM(fidelity, tv, sigma=0.12, step_size="10/L"),
    "half-quadratic": ps.ADMM(fidelity, tv, dual=False, **falling),
}
results = {
    name: ps.solve(algorithm, iterations=16, monitors=[ps.SNR(truth), ps.Distance()], every=1)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# Each step is one call of the denoiser. The maps differ, so that distances do not compare.

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
