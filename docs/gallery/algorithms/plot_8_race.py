"""
A race for sigma
================

How strongly to denoise is the one number that nobody knows beforehand. Two sides go on from one state, with a larger
and a smaller sigma; views that neither uses decide which wins, and the next round starts there. From 100 times apart,
two races come to the same sigma. ``plugstream reconstruct`` without ``--sigma`` does this by itself.
"""

import matplotlib.pyplot as plt
import torch

import plugstream as ps

# %%
# Every eighth view is held out:

truth = ps.load_picture("camera", size=48)
grid = ps.Grid((48, 48), pixel=0.09 / 48)
model = ps.BornModel(ps.BornGeometry.rings(grid, 0.0084, views=48, receivers=60, radius=1.6))
scan = ps.simulate(model, truth, snr=25)
numbers = torch.arange(48)
held_out, others = numbers[numbers % 8 == 3], numbers[numbers % 8 != 3]
fidelity = ps.LeastSquares(model, scan.data, available=others)

# %%

paths = {}
for start in (0.004, 0.4):
    algorithm = ps.ProximalGradient(
        fidelity, ps.TV(low=0.0, tol=1e-2), sigma=start, sampler=ps.Epochs(7), momentum="bounded"
    )
    race = ps.SigmaRace(algorithm, held_out, steps=200)
    state, path = race.init(), []
    while not state.ended:
        state = race.step(state)
        path.append((state.k, state.sigma, float(ps.snr(state.image, truth))))
    paths[start] = path
    print(f"from {start}: sigma {state.sigma:.3f} after {state.k} steps, {path[-1][2]:.1f} dB")

# %%

figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
for start, path in paths.items():
    steps, sigmas, ratios = zip(*path, strict=True)
    axes[0].semilogy(steps, sigmas, label=f"from {start}")
    axes[1].plot(steps, ratios)
axes[0].set(title="sigma", xlabel="step")
axes[0].legend()
axes[1].set(title="SNR in dB", xlabel="step", ylim=(5, None))
axes[2].imshow(state.image, cmap="gray", vmin=0, vmax=1)
axes[2].set(title="image of the second race", xticks=[], yticks=[])
plt.show()
