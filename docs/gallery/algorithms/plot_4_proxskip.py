"""
ProxSkip: a denoiser now and then
=================================

A denoiser may cost more than all else in a step. ProxSkip calls it with probability p, one step in four here, and
between two calls a shift stands in for it. The fixed points are those of a step 1/p as long, so that sigma grows by
1/sqrt(p).
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

tv, sampler = ps.TV(low=0.0), ps.Epochs(8)
algorithms = {
    "PnP-SGD": ps.ProximalGradient(fidelity, tv, sigma=0.04, sampler=sampler, momentum="bounded"),
    "ProxSkip, p = 1/4": ps.ProxSkip(fidelity, tv, sigma=0.08, sampler=sampler, probability=0.25),
}
results = {
    name: ps.solve(algorithm, iterations=80, monitors=[ps.SNR(truth), ps.Distance()], every=4)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# A quarter of the calls, for an image that is nearly as good and less steady.

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
