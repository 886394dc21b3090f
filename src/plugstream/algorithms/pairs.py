"""What two images say about a denoiser: how it changes their distance, and the least theta it could be averaged for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from plugstream.base.errors import PlugstreamWarning
from plugstream.denoisers.base import Denoiser

# What rounding does to a denoiser's output, in units of the precision it computes in: sums of some hundred terms.
_ROUNDINGS = 8.0


@dataclass(frozen=True, eq=False)
class Pair:
    r"""Two images z, z' and what a denoiser makes of them, D(z), D(z'): a witness of its constants.

    With u = z - z', w = D(z) - D(z') and r = u - w, whatever D is,

        its Lipschitz constant is at least  ||w|| / ||u||,
        that of the residual I - D          ||r|| / ||u||,
        it is not theta-averaged for a theta below            ||r||^2 / (2 <u, r>),
        and not k-strictly pseudo-contractive for a k below   1 - 2 <u, r> / ||r||^2.

    The last: D is theta-averaged exactly if ||w||^2 <= ||u||^2 - (1 - theta)/theta ||r||^2 for all pairs. Since
    ||w||^2 = ||u||^2 - 2 <u, r> + ||r||^2, that is ||r||^2 <= 2 theta <u, r>. So no theta at all will do where
    <u, r> <= 0 and r is not 0: D then lengthens u along itself. D is k-strictly pseudo-contractive, k < 1, if
    ||w||^2 <= ||u||^2 + k ||r||^2 for all pairs; then (1 - t) I + t D is averaged for t < 1 - k. So k = 1 - 1 / theta.

    D(z) and D(z') are known up to `error` each (`denoise`), which is subtracted, so that the numbers are lower bounds
    of the exact map's constants.

    Arguments: the images, of any kind, and the outputs; error, a length; where, in words.
    References: Sun, Wohlberg and Kamilov, Proposition 7(c); Bauschke and Combettes, Proposition 4.35; Browder and
    Petryshyn, J. Math. Anal. Appl. 20, 1967, and Wei et al., ICML 2024, for k.
    """

    first: Tensor
    second: Tensor
    out_first: Tensor
    out_second: Tensor
    error: float = 0.0
    where: str = ""

    @cached_property
    def _lengths(self) -> tuple[float, float, float, float]:
        """||u||, ||w||, ||r|| and <u, r>."""
        u = _parts(self.first - self.second).double()
        w = _parts(self.out_first - self.out_second).double()
        r = u - w
        return float(u.norm()), float(w.norm()), float(r.norm()), float((u * r).sum())

    @property
    def distance(self) -> float:
        """||u||."""
        return self._lengths[0]

    @property
    def spread(self) -> float:
        """The root mean square of u: the distance in the unit of sigma."""
        return self.distance / math.sqrt(_parts(self.first).numel())

    @property
    def margin(self) -> float:
        """The error of w relative to u."""
        return 2 * self.error / self.distance if self.distance > 0 else math.inf

    @property
    def lipschitz(self) -> float:
        """A lower bound of the Lipschitz constant of D."""
        u, w, _, _ = self._lengths
        return max(0.0, w - 2 * self.error) / u if u > 0 else 0.0

    @property
    def residual(self) -> float:
        """A lower bound of the Lipschitz constant of I - D."""
        u, _, r, _ = self._lengths
        return max(0.0, r - 2 * self.error) / u if u > 0 else 0.0

    @property
    def theta(self) -> float:
        """A lower bound of the smallest theta that D can be averaged for; infinite if there is none."""
        u, _, r, inner = self._lengths
        r, inner = max(0.0, r - 2 * self.error), inner + 2 * self.error * u
        if u == 0 or r == 0:
            return 0.0
        return r * r / (2 * inner) if inner > 0 else math.inf

    @property
    def pseudo(self) -> float:
        """A lower bound of the smallest k >= 0 that D can be pseudo-contractive for, strictly if it is below 1."""
        u, _, r, inner = self._lengths
        inner += 2 * self.error * u
        r = max(0.0, r - 2 * self.error) if inner > 0 else r + 2 * self.error
        return max(0.0, 1 - 2 * inner / (r * r)) if u > 0 and r > 0 else 0.0

    @property
    def curvature(self) -> float:
        """An upper bound of the least curvature of g, if D = I - grad g: <u, r> / ||u||^2."""
        u, _, _, inner = self._lengths
        return (inner + 2 * self.error * u) / (u * u) if u > 0 else math.inf


def denoise(
    denoiser: Denoiser, sigma: float, images: Tensor, warm: Tensor | None = None
) -> tuple[Tensor, float, Tensor | None]:
    """What a denoiser makes of images, (N, H, W), their largest error (`error_of`), and the next warm start.

    The error is infinite if the denoiser warns that it stopped short of its tolerance, so that nothing follows.
    """
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        out, warm = denoiser.denoise(images, sigma, warm)
    if any(issubclass(warning.category, PlugstreamWarning) for warning in caught):
        return out, math.inf, warm
    return out, error_of(denoiser, images, out), warm


def error_of(denoiser: Denoiser, images: Tensor, out: Tensor) -> float:
    """How far an output may be from the exact map's, as a length, the largest for several images.

    It is ||z|| times the denoiser's `tol`, or eight times the machine precision in which it computes; outputs in double
    precision that fit into single precision were computed in that.
    """
    real = _parts(out)
    single = real.dtype == torch.float32 or bool((real.float().double() == real.double()).all())
    eps = torch.finfo(torch.float32 if single else torch.float64).eps
    double = images.to(torch.complex128 if images.is_complex() else torch.float64)
    length = float(torch.linalg.vector_norm(double, dim=tuple(range(-denoiser.axes, 0))).max())
    return max(_tolerance(denoiser), _ROUNDINGS * eps) * length


def _parts(values: Tensor) -> Tensor:
    """Complex values as vectors of real and imaginary parts; real ones as they are."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _tolerance(denoiser: Denoiser) -> float:
    """The tolerance of a denoiser, or of the one inside it."""
    return max(denoiser.tol, 0.0 if denoiser.inside is None else _tolerance(denoiser.inside))


def measure(
    denoiser: Denoiser, sigma: float, first: Tensor, second: Tensor, where: str = "", warm: Tensor | None = None
) -> Pair:
    """Denoise two images, (H, W) each; `warm` is the start for an image near both, (1, ...)."""
    both = None if warm is None else torch.cat([warm, warm])
    out, error, _ = denoise(denoiser, sigma, torch.stack([first, second]), both)
    return Pair(first, second, out[0], out[1], error, where)


def bisect(
    denoiser: Denoiser, sigma: float, pair: Pair, value: Callable[[Pair], float], *, halvings: int, most: float = 0.05
) -> list[Pair]:
    r"""Halve the distance of a pair again and again, keeping the half with the larger value, in search of steep places.

    With the midpoint m, ||D(z) - D(z')|| <= ||D(z) - D(m)|| + ||D(m) - D(z')||, so one half has a ratio at least that
    of the whole; the same holds for I - D, and for theta, since ||r + s||^2 <= 2 (||r||^2 + ||s||^2). Where D is smooth
    the values settle, where it jumps they double with every halving.

    Arguments: value, the number of a pair that matters; most, the largest margin: smaller distances drown in rounding.
    Returns the pairs, largest distance first.
    """
    pairs: list[Pair] = []
    warm: Tensor | None = None
    for _ in range(halvings):
        if 2 * pair.margin > most:
            break
        middle = (pair.first + pair.second) / 2
        out, error, warm = denoise(denoiser, sigma, middle[None], warm)
        error = max(pair.error, error)
        halves = [
            Pair(pair.first, middle, pair.out_first, out[0], error, pair.where),
            Pair(middle, pair.second, out[0], pair.out_second, error, pair.where),
        ]
        pair = max(halves, key=value)
        pairs.append(pair)
    return pairs


def damping_for(theta: float) -> float | None:
    r"""The damping that would have made a denoiser averaged on all measured pairs; None if there is none.

    Damping(D, t) = (1 - t) I + t D has the residual t (I - D), so a pair with the bound theta for D has t theta for it,
    which is below 1 for t < 1 / theta. If theta is infinite, no damping helps.

    Arguments: theta, the largest measured. Returns t with t theta = 0.9 at most, in two digits.
    Reference: Sun, Wohlberg and Kamilov, section 3.
    """
    if not theta < math.inf:
        return None
    damping = min(0.99, 0.9 / max(theta, 1e-12))
    digits = 2 - math.ceil(math.log10(damping))
    return float(math.floor(damping * 10.0**digits) / 10.0**digits)
