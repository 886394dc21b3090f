"""
PnP-ISTA, PnP-FISTA and PnP-SGD
===============================

One step, x = D(s - gamma g), and three names: with all views and without momentum it is PnP-ISTA, with momentum
PnP-FISTA, and with a few views, drawn anew in each step, PnP-SGD. What a step costs is how many views it looks at.
"""

import matplotlib.pyplot as plt

import plugstream as ps

# %%
# A scan of 48 views that all examples of this kind share:

truth = ps.load_picture("camera", size=64)
grid = ps.Grid((64, 64), pixel=0.12 / 64)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=48, receivers=90, radius=1.6))
scan = ps.simulate(model, truth, snr=25)
fidelity = ps.LeastSquares(model, scan.data)

# %%
# The sampler and the momentum tell them apart:

tv = ps.TV(low=0.0)
algorithms = {
    "PnP-ISTA": ps.ProximalGradient(fidelity, tv, sigma=0.04),
    "PnP-FISTA": ps.ProximalGradient(fidelity, tv, sigma=0.04, momentum="nesterov"),
    "PnP-SGD(8)": ps.ProximalGradient(fidelity, tv, sigma=0.04, sampler=ps.Epochs(8)),
    "PnP-SGD(8), accelerated": ps.ProximalGradient(fidelity, tv, sigma=0.04, sampler=ps.Epochs(8), momentum="bounded"),
}
views = {"PnP-ISTA": 48, "PnP-FISTA": 48, "PnP-SGD(8)": 8, "PnP-SGD(8), accelerated": 8}
results = {
    name: ps.solve(algorithm, iterations=48, monitors=[ps.SNR(truth), ps.Distance()], every=4)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# Step by step they are alike. By the views that were used, eight of them go six times as far; what they pay is a
# floor, above which the distance to a fixed point stays.

figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for name, result in results.items():
    snr, distance = result.history["snr"], result.history["distance"]
    axes[0].plot([views[name] * step for step in snr.step], snr.value, label=name)
    axes[1].semilogy(distance.step[1:], distance.value[1:], label=name)
axes[0].set(title="SNR in dB", xlabel="views used", ylim=(12, 24), xlim=(0, 1000))
axes[1].set(title="distance to a fixed point", xlabel="step")
axes[0].legend()
axes[2].imshow(results["PnP-SGD(8), accelerated"].image, cmap="gray", vmin=0, vmax=1)
axes[2].set(title="PnP-SGD(8), accelerated", xticks=[], yticks=[])
plt.show()
