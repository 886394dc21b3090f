"""
RED and SNORE: the residual as a gradient
=========================================

Regularisation by denoising adds tau (x - D(x)) to the gradient: its fixed points do not depend on the step. SNORE
puts noise back before the denoiser, so that BM3D sees what it was made for. Both here are online, with eight views a
step.
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

bm3d, sampler = ps.BM3D(), ps.Epochs(8)
algorithms = {
    "PnP-SGD": ps.ProximalGradient(fidelity, bm3d, sigma=0.015, sampler=sampler, momentum="bounded"),
    "RED": ps.RED(fidelity, bm3d, sigma=0.025, tau="0.5L", sampler=sampler, momentum="bounded"),
    "SNORE": ps.RED(fidelity, bm3d, sigma=0.05, tau="0.3L", noise=1.0, sampler=sampler, momentum="bounded"),
}
results = {
    name: ps.solve(algorithm, iterations=50, monitors=[ps.SNR(truth), ps.Distance()], every=5)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# Sigma means something else in each, so each has its own.

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
