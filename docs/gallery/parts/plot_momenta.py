"""
Momentum: how much of it
========================

With all views in every step, momentum that grows (Nesterov's, as in FISTA, or Chambolle and Dossal's) brings the image
to its fixed point in far fewer steps. With a few views a step it also gathers their noise: there a bounded
momentum is faster than none and steadier than Nesterov's, and a tapered one, which grows at first and then falls,
is as quick as Nesterov's and settles.
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

results = {}
for views, sampler in (("24 views", ps.All()), ("3 views", ps.Uniform(3))):
    for momentum in ("none", "bounded", "tapered", "nesterov", "chambolle-dossal"):
        algorithm = ps.ProximalGradient(fidelity, ps.TV(low=0.0), sigma=0.03, sampler=sampler, momentum=momentum)
        result = ps.solve(algorithm, iterations=48, monitors=[ps.SNR(truth), ps.Distance()], every=4)
        results[views, momentum] = result
        print(f"{views} a step, {momentum}: {result.history['snr'].value[-1]:.1f} dB")

# %%

figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
for (views, momentum), result in results.items():
    row = axes[0] if views == "24 views" else axes[1]
    snr, distance = result.history["snr"], result.history["distance"]
    row[0].plot(snr.step, snr.value, label=momentum)
    row[1].semilogy(distance.step[1:], distance.value[1:])
    row[0].set(title=f"{views} a step: SNR in dB", xlabel="step", ylim=(8, None))
    row[1].set(title="distance to a fixed point", xlabel="step")
axes[0, 0].legend()
plt.show()
