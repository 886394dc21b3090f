"""What a pair of images says of a map's averagedness, for images of any kind."""

from __future__ import annotations

from torch import Tensor

from plugstream.denoisers.base import Denoiser


def excess(denoiser: Denoiser, theta: float, z: Tensor, other: Tensor, sigma: float) -> float:
    """||Dz - Dz'||^2 - ||z - z'||^2 + (1 - theta)/theta ||(I - D)z - (I - D)z'||^2: at most 0 if D is theta-averaged.

    Complex images are vectors of real and imaginary parts. The identity, up to rounding, is what is 0-averaged.
    """
    u = z - other
    w = denoiser(z, sigma) - denoiser(other, sigma)
    moved, kept = (float(v.abs().square().sum()) for v in (u - w, w))
    share = 0.0 if moved < 1e-20 * kept else (1 - theta) / theta * moved
    return kept - float(u.abs().square().sum()) + share


def slack(z: Tensor, other: Tensor, tol: float = 1e-5) -> float:
    """What an error of tol ||z|| in each output can add to `excess`, with a margin."""
    return 8 * tol * float(z.norm() + other.norm()) * float((z - other).norm())
