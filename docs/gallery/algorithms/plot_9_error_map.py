"""
How sure is it? A map of the error
==================================

From the image of all views the algorithm goes on with random halves of them. How far the images of halves move is how
far the image itself would move under other noise: the half-sample estimate, for any model and denoiser. It cannot see
what all halves share, such as a texture that the denoiser takes away.
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

algorithm = ps.ProximalGradient(fidelity, ps.TV(low=0.0), sigma=0.04, sampler=ps.Epochs(8), momentum="bounded")
result = ps.solve(algorithm, iterations=80)
expected = ps.error_map(algorithm, result.state, halves=16, steps=20)
actual = (result.image - truth).abs()
share = float((actual < 2 * expected).float().mean())
print(f"mean error expected {float(expected.mean()):.3f}, actual {float(actual.mean()):.3f}")
print(f"within twice the map: {share:.0%} of the pixels")

# %%

figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
axes[0].imshow(result.image, cmap="gray", vmin=0, vmax=1)
axes[1].imshow(expected, cmap="magma", vmin=0, vmax=0.15)
shown = axes[2].imshow(actual, cmap="magma", vmin=0, vmax=0.15)
for axis, title in zip(axes, ("image", "error to expect", "error"), strict=True):
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, shrink=0.9)
plt.show()
