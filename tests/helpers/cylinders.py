"""Round cylinders: their exact scattered field, all multiple scattering included, and their average over pixels."""

import numpy as np
from scipy.special import h1vp, hankel1, jv, jvp


def exact_field(geometry, cylinders, orders=14):
    """The field that round cylinders scatter: (views, receivers).

    Around cylinder p it is sum_m c_pm H_m(k rho_p) exp(i m phi_p), with c_p = T_p (incident + what the others send),
    the latter by Graf's addition theorem.

    Arguments: cylinders, each of x, y and radius in mm, and its permittivity; the background has 1.
    """
    m, k = np.arange(-orders, orders + 1), geometry.wavenumber
    centers = 1e-3 * np.array([c[:2] for c in cylinders])

    def waves(points, center, sign):
        d = points - center
        return hankel1(m[:, None], k * np.hypot(*d.T)) * np.exp(sign * 1j * m[:, None] * np.arctan2(d[:, 1], d[:, 0]))

    size = len(m)
    matrix = np.eye(len(cylinders) * size, dtype=complex)
    right = np.empty((len(cylinders) * size, geometry.n_views), dtype=complex)
    for p, (_, _, radius, eps) in enumerate(cylinders):
        a, inner = 1e-3 * radius, k * np.sqrt(eps)
        top = k * jvp(m, k * a) * jv(m, inner * a) - inner * jv(m, k * a) * jvp(m, inner * a)
        t = -top / (k * h1vp(m, k * a) * jv(m, inner * a) - inner * hankel1(m, k * a) * jvp(m, inner * a))
        rows = slice(p * size, (p + 1) * size)
        right[rows] = t[:, None] * 0.25j * waves(geometry.transmitters, centers[p], -1)
        for q in range(len(cylinders)):
            if q != p:
                x, y = centers[p] - centers[q]
                order = m[None, :] - m[:, None]
                shift = hankel1(order, k * np.hypot(x, y)) * np.exp(1j * order * np.arctan2(y, x))
                matrix[rows, q * size : (q + 1) * size] -= t[:, None] * shift
    parts = np.linalg.solve(matrix, right).reshape(len(cylinders), size, -1)
    return sum(part.T @ waves(geometry.receivers, center, 1) for part, center in zip(parts, centers, strict=True))
