"""The directions in which a denoiser is worst at an image: singular vectors of its Jacobian, by a growing subspace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.algorithms.pairs import Pair, measure
from plugstream.base.progress import report
from plugstream.denoisers.base import Denoiser

Adjoint = Callable[[Tensor], Tensor]
"""The product of the transposed Jacobian at an image with a direction, (H, W) to (H, W)."""

# An adjoint is taken for that of the Jacobian if it agrees with finite differences to this.
_AGREE = 0.02


@dataclass(frozen=True, eq=False)
class Secants:
    """J v at an image by the pair of images z - h v and z + h v, which is itself a witness of the denoiser's constants.

    Arguments: denoiser, sigma; image, z, (H, W); size, the root mean square distance of the two images; warm, the start
    that denoising z gave, (1, ...), for a denoiser that iterates.
    """

    denoiser: Denoiser
    sigma: float
    image: Tensor
    size: float
    where: str = ""
    warm: Tensor | None = None

    def __call__(self, direction: Tensor) -> tuple[Tensor, Pair]:
        """(D(z + h v) - D(z - h v)) / (2 h) for a direction v of length 1, and the pair."""
        h = self.size * self.image.numel() ** 0.5 / 2
        step = (h * direction).to(self.image)
        pair = measure(self.denoiser, self.sigma, self.image + step, self.image - step, self.where, self.warm)
        return (pair.out_first - pair.out_second).double() / (2 * h), pair


def make_adjoint(secants: Secants, seed: int = 0) -> Adjoint | None:
    """The transposed Jacobian by automatic differentiation, or None if that is not available.

    Some denoisers run without gradients, and some detach a part of their computation. So <w, J v> by finite differences
    must equal <J^T w, v> for three random pairs of directions (up to a fiftieth of ||J v||, and to the step's error). A
    proximal operator needs none, since its Jacobian is symmetric.
    """
    if secants.denoiser.proximal:
        return None
    image = secants.image.clone().requires_grad_()
    try:
        with torch.enable_grad():
            out = secants.denoiser(image, secants.sigma)
    except RuntimeError:  # how torch says that an operation cannot be differentiated
        return None
    if not out.requires_grad:
        return None

    def adjoint(direction: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(out, image, direction.to(out), retain_graph=True)
        return product.detach().double()

    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        v = _unit(torch.randn(image.shape, generator=generator, dtype=torch.float64))
        jv, pair = secants(v)
        w = _unit(jv + _unit(torch.randn(image.shape, generator=generator, dtype=torch.float64)) * jv.norm())
        difference = abs(float((w * jv).sum()) - float((adjoint(w) * v).sum()))
        if not difference <= _AGREE * float(jv.norm()) + 2 * pair.margin:
            return None
    return adjoint


def worst_directions(
    secants: Secants, adjoint: Adjoint | None, *, products: int, seed: int = 0, start: list[Tensor] | None = None
) -> list[Pair]:
    r"""Look for the directions v at an image that make the three constants of a denoiser largest.

    With J its Jacobian and A = I - J, these maximise ||J v||, ||A v|| (for ||v|| = 1) and the generalised Rayleigh
    quotient

        theta(v) = ||A v||^2 / (2 <v, A v>),   whose stationary points are   A^T A v = theta (A + A^T) v.

    All three are ratios of quadratic forms, so on a subspace with basis V they are small eigenproblems of V^T J V and
    (J V)^T J V. The subspace starts with a few directions and grows by the gradients of the three in turn: J^T J v,
    A^T A v and A^T A v - theta (A + A^T) v, which need the adjoint. It contains the Krylov space of power iteration, so
    it finds no less. Without an adjoint it grows by J v, which finds the same if J is symmetric, and by random
    directions; then it may miss something.

    The numbers are those of pairs of images that were denoised, never eigenvalues: so each is attained, even if D is
    not differentiable.

    Arguments: products, how many J v to form; start, directions to begin with. Returns all pairs.
    Reference: Davidson, J. Comput. Phys. 17, 1975; for the quotient, `Pair`.
    """
    shape = secants.image.shape
    generator = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    space = _Subspace()
    pairs: list[Pair] = []
    begin: Iterator[Tensor] = iter([*(start or []), noise(), noise()])
    goals = itertools.cycle(_GOALS)
    most = min(products, secants.image.numel())
    for number in range(most):
        report("looking for the worst directions", number, most)
        direction = next(begin, None)
        if direction is None and not space.basis:
            direction = noise()
        elif direction is None:
            goal = next(goals)
            v, jv, value = space.best(goal)
            direction = jv if adjoint is None else _uphill(goal, v, jv, value, adjoint)
        fresh = space.independent(direction.double())
        if fresh is None:  # nothing new that way
            fresh = space.independent(noise())
            if fresh is None:
                break
        product, pair = secants(fresh)
        if pair.error < math.inf:
            space.add(fresh, product, pair.margin)
            pairs.append(pair)
    for goal in _GOALS if space.basis else ():
        pairs.append(secants(_unit(space.best(goal)[0]))[1])
    return pairs


_GOALS = ("lipschitz", "residual", "theta")


def _uphill(goal: str, v: Tensor, jv: Tensor, value: float, adjoint: Adjoint) -> Tensor:
    """The gradient of a ratio at v, up to what v itself adds."""
    if goal == "lipschitz":
        return adjoint(jv)
    av = v - jv
    if goal == "residual":
        return av - adjoint(av)
    inside = av - value * v  # A^T (A v - theta v) - theta A v
    return inside - adjoint(inside) - value * av


@dataclass
class _Subspace:
    """An orthonormal basis V, the products J V, and the vectors of it that make a ratio largest."""

    basis: list[Tensor] = field(default_factory=list)
    products: list[Tensor] = field(default_factory=list)
    margin: float = 0.0

    def independent(self, direction: Tensor) -> Tensor | None:
        """The part of a direction outside the space, normalised; None if there is almost none."""
        length = float(direction.norm())
        if not 0 < length < np.inf:
            return None
        v = direction / length
        if self.basis:
            stack = torch.stack(self.basis).flatten(1)
            for _ in range(2):  # once is not enough in floating point
                v = v - (stack.T @ (stack @ v.flatten())).reshape(v.shape)
        remainder = float(v.norm())
        return v / remainder if remainder > 1e-6 else None

    def add(self, v: Tensor, product: Tensor, margin: float) -> None:
        self.basis.append(v)
        self.products.append(product)
        self.margin = max(self.margin, margin)

    def best(self, goal: str) -> tuple[Tensor, Tensor, float]:
        """v, J v and the ratio, largest over the space."""
        v, j = torch.stack(self.basis).flatten(1), torch.stack(self.products).flatten(1)
        k, q = (v @ j.T).numpy(), (j @ j.T).numpy()
        c, value = _largest(goal, k, q, 2 * self.margin)
        combine = torch.from_numpy(c)
        shape = self.basis[0].shape
        out, product = (combine @ v).reshape(shape), (combine @ j).reshape(shape)
        length = float(out.norm())
        return out / length, product / length, value


def _largest(
    goal: str, k: NDArray[np.float64], q: NDArray[np.float64], noise: float
) -> tuple[NDArray[np.float64], float]:
    """Coefficients that make the ratio largest, given V^T J V and (J V)^T J V, and it; infinite theta becomes 1e6."""
    identity = np.eye(len(k))
    if goal == "lipschitz":
        values, vectors = scipy.linalg.eigh(q)
        return vectors[:, -1], float(values[-1]) ** 0.5
    twice = 2 * identity - k - k.T  # A + A^T
    residual = identity - k - k.T + q  # A^T A
    if goal == "residual":
        values, vectors = scipy.linalg.eigh(residual)
        return vectors[:, -1], max(0.0, float(values[-1])) ** 0.5
    least, vectors = scipy.linalg.eigh(twice)
    if least[0] < -2 * noise:  # D lengthens this one along itself: no theta will do
        return vectors[:, 0], 1e6
    # The noise is added to the denominator, so that directions which D does not change (0 / 0) do not stand out.
    values, vectors = scipy.linalg.eigh(residual, twice + (max(noise, 1e-12) - min(0.0, least[0])) * identity)
    return vectors[:, -1], float(values[-1])


def asymmetry(secants: Secants, adjoint: Adjoint | None, *, probes: int = 6, seed: int = 0) -> tuple[float, float]:
    r"""How far the Jacobian at an image is from symmetric: ||(J - J^T) / 2||_F / ||J||_F, between 0 and 1; an estimate.

    A proximal operator has a symmetric one, and a nonexpansive denoiser whose Jacobian is symmetric everywhere is a
    proximal operator (Sreehari's condition). For random directions, the mean square of (J - J^T) w is in proportion to
    the squared Frobenius norm, and without an adjoint so is that of <v, J w> - <w, J v>.

    Arguments: probes, the number of random directions. Returns the estimate, and what rounding alone could give.
    Reference: Sreehari et al., IEEE Trans. Comput. Imaging 2(4), 2016; Hutchinson, Commun. Stat. Simul. 19, 1990.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(secants.image.shape, generator=generator, dtype=torch.float64) for _ in range(probes)]
    directions = [_unit(draw) for draw in draws]
    measured = [secants(v) for v in directions]
    products = [product for product, _ in measured]
    margin = max(pair.margin for _, pair in measured)
    if adjoint is not None:
        skew = sum(float((jv - adjoint(v)).square().sum()) for v, jv in zip(directions, products, strict=True))
        size = sum(float(jv.square().sum()) for jv in products)
        floor = margin / max((size / probes) ** 0.5, 1e-300)
    else:
        v, j = torch.stack(directions).flatten(1), torch.stack(products).flatten(1)
        k = (v @ j.T).numpy()
        skew = float(np.square(k - k.T).sum())
        size = float(np.square(k).sum() - np.square(np.diag(k)).sum())
        # A rounding error is spread over all pixels, so that its product with a direction is small.
        typical = (size / (probes * (probes - 1))) ** 0.5
        floor = margin / secants.image.numel() ** 0.5 / max(typical, 1e-300)
    return (0.5 * (skew / size) ** 0.5 if size > 0 else 0.0), floor


def _unit(direction: Tensor) -> Tensor:
    unit: Tensor = direction / direction.norm()
    return unit
