"""
Diffraction tomography (born-2d)
================================

A weakly scattering object stands among 36 transmitters and 120 receivers. Each view is the field that it scatters, in
the first Born approximation. PnP-SGD forms its image from six views a step, with total variation as the prior.
"""

import matplotlib.pyplot as plt

import plugstream as ps

# %%
# The object, the experiment, and a scan with noise at 30 dB:

truth = ps.load_picture("camera", size=96)
grid = ps.Grid((96, 96), pixel=0.18 / 96)
geometry = ps.BornGeometry.rings(grid, wavelength=0.0084, views=36, receivers=120, radius=1.6)
model = ps.BornModel(geometry)
scan = ps.simulate(model, truth, snr=30, y_axis="down")

# %%
# One algorithm: gradients of six views, then the denoiser, then momentum.

algorithm = ps.ProximalGradient(
    ps.LeastSquares(model, scan.data), ps.TV(low=0.0), sigma=0.03, sampler=ps.Epochs(6), momentum="nesterov"
)
result = ps.solve(algorithm, iterations=80, monitors=[ps.SNR(truth), ps.Distance()], every=4)
print(result)

# %%
# The first step is a back-projection of six views; eighty steps later:

first = algorithm.step(algorithm.init()).image
figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
axes = axes.ravel()
last = result.history["snr"].value[-1]
images = {"truth": truth, "one step": first, f"80 steps: {last:.1f} dB": result.image}
for axis, (title, image) in zip(axes, images.items(), strict=False):
    axis.imshow(image, cmap="gray", vmin=0, vmax=float(image.max()))
    axis.set(title=title, xticks=[], yticks=[])
axes[3].plot(result.history["snr"].step, result.history["snr"].value)
axes[3].set(xlabel="step", title="SNR in dB")
plt.show()
