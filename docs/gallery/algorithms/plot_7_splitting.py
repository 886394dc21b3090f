"""
Splitting by gradients: few calls of a costly denoiser
======================================================

Fifteen accelerated gradient steps, each on other views, stand for the prox of half-quadratic splitting; then BM3D
once. Sigma falls from call to call. Six calls of the denoiser make this image.
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

bm3d, sampler = ps.BM3D(), ps.ShiftedViews(8)
sigma = ps.Geometric(0.2, 0.08, 90)
algorithms = {
    "PnP-SGD, 90 calls": ps.ProximalGradient(fidelity, bm3d, sigma=0.015, sampler=sampler, momentum="bounded"),
    "splitting, 6 calls": ps.GradientSplitting(
        fidelity, bm3d, sigma=sigma, sampler=sampler, momentum="nesterov", inner=15
    ),
}
results = {
    name: ps.solve(algorithm, iterations=90, monitors=[ps.SNR(truth), ps.Distance()], every=15)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%

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
