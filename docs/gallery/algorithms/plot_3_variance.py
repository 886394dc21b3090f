"""
SAGA and SVRG: without the floor
================================

PnP-SGD with a constant step stops short of a fixed point, by the noise of its batches. SAGA and SVRG remember enough
of the other views for that noise to vanish, and converge with the same step and the same views.
"""

import matplotlib.pyplot as plt

import plugstream as ps

# %%

truth = ps.load_picture("camera", size=48)
grid = ps.Grid((48, 48), pixel=0.09 / 48)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=48, receivers=60, radius=1.6))
scan = ps.simulate(model, truth, snr=25)
fidelity = ps.LeastSquares(model, scan.data)

# %%

common = {"sigma": 0.03, "step_size": "1/3L", "sampler": ps.Uniform(6)}
tv = ps.TV(low=0.0)
algorithms = {
    "PnP-SGD": ps.ProximalGradient(fidelity, tv, **common),
    "PnP-SVRG": ps.ProximalGradient(fidelity, tv, gradient=ps.SVRG(0.1), **common),
    "PnP-SAGA": ps.ProximalGradient(fidelity, tv, gradient="saga", **common),
}
results = {
    name: ps.solve(algorithm, iterations=150, monitors=[ps.SNR(truth), ps.Distance()], every=15)
    for name, algorithm in algorithms.items()
}
for name, result in results.items():
    print(f"{name}: {result.history['snr'].value[-1]:.1f} dB, {result.verdict}")

# %%
# The floor is in the distance; in this image it can hardly be seen.

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
