"""What the paper prints, and the hyperparameters its authors' code used: numbers to stand beside ours, nothing else.

Reference: Sun, Wohlberg and Kamilov, IEEE Trans. Comput. Imaging 5(3), 2019, Tables I and II and section V; their
MATLAB code for the strengths of BM3D and TV.
"""

from __future__ import annotations

IMAGES = ("barbara", "boat", "foreman", "house", "lenna", "monarch", "parrot", "pepper")

# Minimal distance ||x - P(x)||^2 to a fixed point, averaged over the images; not divided by its value at x^0, as a
# comparison with ours shows (docs/reproduction.md). First the steps 1/L, 1/4L and
# 1/16L with 30 views, then 10, 20 and 30 views with the step 1/L.
TABLE1 = {
    "tv": (1.96e-5, 1.47e-6, 7.83e-8, 3.18e-4, 6.71e-5, 1.96e-5),
    "bm3d": (1.47e-5, 6.26e-6, 3.22e-6, 1.78e-4, 4.07e-5, 1.47e-5),
    "tnrd": (4.20e-2, 9.18e-3, 1.44e-3, 3.12e-1, 1.14e-1, 4.20e-2),
}

METHODS = ("PnP-ADMM(10)", "PnP-ADMM(30)", "PnP-FISTA(10)", "PnP-FISTA(30)", "PnP-SGD(10)", "PnP-SGD(30)")

# SNR in dB, a row for each image and a column for each method.
TABLE2 = {
    "barbara": (15.62, 21.18, 13.32, 20.21, 23.61, 23.90),
    "boat": (15.94, 23.10, 13.69, 22.01, 24.87, 25.15),
    "foreman": (23.10, 29.19, 18.46, 28.61, 29.61, 29.80),
    "house": (19.23, 26.43, 15.68, 26.79, 28.29, 28.41),
    "lenna": (15.52, 23.17, 13.49, 22.91, 25.30, 25.38),
    "monarch": (11.46, 19.66, 8.80, 20.69, 23.51, 23.65),
    "parrot": (17.29, 24.05, 13.72, 24.32, 26.38, 26.47),
    "pepper": (15.49, 22.90, 11.68, 22.96, 24.92, 25.15),
}
# As printed. For PnP-FISTA and PnP-SGD they are not the means of the rows above: 13.61, 23.56, 25.81 and 25.99.
AVERAGE = (16.71, 23.71, 14.26, 23.73, 25.85, 26.04)

# sigma of BM3D for each image, on the scale 0 .. 255.
BM3D_SIGMA = (0.448, 0.623, 0.583, 0.620, 0.548, 0.575, 0.550, 0.562)
# Weight of TV for each image beside a *sum* over 30 views; d here is a mean, so lambda is a thirtieth of it.
TV_LAMBDA = tuple(tau * 1e-7 / 30 for tau in (3.05, 5.53, 9.73, 7.29, 4.95, 4.88, 6.07, 5.28))
# The model that the authors took, without tuning.
TNRD_SIGMA = 5.0
