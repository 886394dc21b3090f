"""
Samplers: which views a step uses
=================================

Five ways to choose 6 of 36 views. Taken evenly spaced and moved on, or each once before any comes again, they disturb
the image less than independent draws, which the theory is about. Where some views count for more than others, as here,
importance sampling draws those more often, and its steps may be longer. The same few views in every step never learn
what the others saw.
"""

import matplotlib.pyplot as plt
import torch

import plugstream as ps

# %%
# Every sixth view was measured for longer, with a third of the noise. Divided by their noise, views are comparable, and
# those count nine times as much as others:

truth = ps.load_picture("camera", size=48)
grid = ps.Grid((48, 48), pixel=0.09 / 48)
born = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=36, receivers=40, radius=1.6), method="dense")
scan = ps.simulate(born, truth, snr=20)
clean = born.forward(truth)
noise = torch.where(torch.arange(36) % 6 == 0, 1 / 3, 1.0)[:, None]
model = ps.FunctionModel(
    lambda image, views: born.forward(image, views) / noise[views],
    n_views=36,
    image_shape=(48, 48),
    data_shape=born.data_shape,
    data_dtype=clean.dtype,
    linear=True,
)
data = (clean + (scan.data - clean) * noise) / noise
fidelity = ps.LeastSquares(model, data)

# %%
# The step is 1 / L with L the largest constant of a view; importance sampling may take their mean instead.

constants = fidelity.lipschitz_views
samplers = {
    "fixed": ps.FixedViews(range(3, 36, 6)),
    "uniform": ps.Uniform(6),
    "epochs": ps.Epochs(6),
    "shifted": ps.ShiftedViews(6),
    "importance": ps.Importance(6, constants),
}
results = {}
for name, sampler in samplers.items():
    longer = float(constants.max() / constants.mean()) if name == "importance" else 1.0
    algorithm = ps.ProximalGradient(
        fidelity,
        ps.TV(low=0.0),
        sigma=0.02 * longer**0.5,  # TV's weight is sigma ** 2, and goes with the step
        step_size=longer / float(constants.max()),
        sampler=sampler,
        momentum="bounded",
    )
    results[name] = ps.solve(algorithm, iterations=48, monitors=[ps.SNR(truth), ps.Distance()], every=8)
    print(f"{name}: {results[name].history['snr'].value[-1]:.1f} dB")

# %%

figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
axes = axes.ravel()
for name, result in results.items():
    snr, distance = result.history["snr"], result.history["distance"]
    axes[0].plot(snr.step, snr.value, label=name)
    axes[1].semilogy(distance.step[1:], distance.value[1:] / distance.value[1])
axes[0].set(title="SNR in dB", xlabel="step", ylim=(8, None))
axes[1].set(title="distance to a fixed point, of the first", xlabel="step")
axes[0].legend(loc="lower right")
for axis, name in zip(axes[2:], ("fixed", "importance"), strict=True):
    axis.imshow(results[name].image, cmap="gray", vmin=0, vmax=1)
    axis.set(title=name, xticks=[], yticks=[])
plt.show()
