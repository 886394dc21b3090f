"""
IPA and block ADMM: the prox of a few views
===========================================

Incremental ADMM (IPA) takes the prox of the views of a step in place of their gradient: no step can be too long.
Block ADMM also remembers each block's dual, and has the fixed points of PnP-ADMM on all views, where IPA stops at a
floor. Inexact ADMM leaves the prox of IPA after two conjugate gradients, so that its steps cost little.
"""

import matplotlib.pyplot as plt

import plugstream as ps

# %%

truth = ps.load_picture("camera", size=48)
grid = ps.Grid((48, 48), pixel=0.09 / 48)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=24, receivers=60, radius=1.6))
scan = ps.simulate(model, truth, snr=25)
fidelity = ps.LeastSquares(model, scan.data)

# %%
# Four blocks of six interleaved views:

tv, sampler = ps.TV(low=0.0), ps.ShiftedViews(6)
algorithms = {
    "PnP-ADMM, all views": ps.ADMM(fidelity, tv, sigma=0.12, step_size="10/L"),
    "IPA": ps.IncrementalADMM(fidelity, tv, sigma=0.12, step_size="10/L", sampler=sampler),
    "inexact ADMM": ps.InexactADMM(fidelity, tv, sigma=0.12, step_size="10/L", sampler=sampler),
    "block ADMM": ps.BlockADMM(fidelity, tv, sigma=0.12, step_size="10/L", sampler=sampler),
}
results = {
    name: ps.solve(algorithm, iterations=56, monitors=[ps.SNR(truth), ps.Distance()], every=8)
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
axes[0].set(title="SNR in dB", xlabel="step", ylim=(17, None))
axes[1].set(title="distance to a fixed point", xlabel="step")
axes[0].legend()
for axis, (name, result) in zip(axes[2:], list(results.items())[-2:], strict=True):
    axis.imshow(result.image, cmap="gray", vmin=0, vmax=1)
    axis.set(title=name, xticks=[], yticks=[])
plt.show()
