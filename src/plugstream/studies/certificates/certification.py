"""Certify a denoiser: what is proved by construction, and what pairs of images show."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from plugstream.algorithms.pairs import Pair, bisect, denoise, measure
from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.progress import report, within
from plugstream.denoisers.base import Denoiser, Sigma
from plugstream.denoisers.shapes import adapt
from plugstream.studies.certificates.certificate import Certificate, Descent, PairNumbers, measure_descent
from plugstream.studies.certificates.paths import path_pairs, reconstruction_path, small_problem
from plugstream.studies.certificates.search import Adjoint, Secants, asymmetry, make_adjoint, worst_directions

# Halving a pair at a jump doubles its value; above this factor per halving it counts as a jump.
_JUMP = 1.5
# Pairs are no smaller than where rounding makes up this part of their distance.
_NOISE = 0.01


def certify(
    denoiser: Denoiser,
    sigma: float,
    images: Mapping[str, Array],
    *,
    sizes: tuple[float, ...] = (1.0, 0.1, 0.01),
    products: int = 36,
    steps: int = 8,
    halvings: int = 12,
    seed: int = 0,
    channels: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Certificate:
    r"""Whether a denoiser may be used where a theorem asks for an averaged one: its constants, with their witnesses.

    The Lipschitz constants of D and of I - D, the smallest theta for which D is theta-averaged and the smallest k for
    which it is k-strictly pseudo-contractive, the asymmetry of its Jacobian (Sreehari's condition) and the constant c
    of ||D(z) - z||^2 / n <= c sigma^2 (Chan's); of a gradient step, also whether it lowers its potential (`Descent`).
    What a denoiser declares (`averaged`, `proximal`, `potential`) is reported as proved by construction. Everything
    else is measured, on

    - the images with noise of sigma, each pair of two draws, and of image and noise;
    - the inputs of PnP-ISTA and PnP-SGD with this denoiser on a small diffraction tomography of each image: one step
      and the next, all views and a few, each step and the last;
    - the worst directions at a noisy image and at the path's last input (`worst_directions`), by power iteration on a
      growing subspace, with automatic differentiation if that gives the Jacobian, or else finite differences;
    - the worst of those, halved repeatedly (`bisect`), which finds jumps.

    Every number but the asymmetry is attained by a pair of images that comes with it, hence a lower bound: a search
    that finds nothing proves nothing. A pair that contradicts a property refutes it, since the possible effect of
    rounding and tolerance has been subtracted.

    Arguments:
        denoiser: any; for volumes, channels and complex images with the adapters that it needs (`adapt`).
        images: names and images of one shape, without noise, (H, W) or (D, H, W), of one dtype: float64 or complex128
            if the denoiser accepts it. Complex ones are vectors of real and imaginary parts, with noise in both.
        channels: whether the first axis is of channels.
        sizes: root mean square distances of the pairs, in units of sigma; those below the rounding are left out.
        products: of the Jacobian in a search. steps: of a reconstruction; 0 for none. halvings: of the worst pairs.
        tell: called with a line now and then.
    References: Sun, Wohlberg and Kamilov, Definition 1 and Proposition 7; Sreehari et al., 2016; Chan, Wang and
    Elgendy, IEEE Trans. Comput. Imaging 3(1), 2017; Wei et al., ICML 2024 (k); Hurault et al., ICLR 2022 (descent).
    """
    tensors = {name: as_tensor(name, image) for name, image in images.items()}
    _check(sigma, tensors, sizes, channels)
    example = next(iter(tensors.values()))
    denoiser = adapt(denoiser, tuple(example.shape), complex=example.is_complex(), channels=channels)
    if example.is_complex():
        denoiser = RealView(denoiser)
        tensors = {name: torch.view_as_real(image.resolve_conj()) for name, image in tensors.items()}
    look = _Look(denoiser, sigma, tell or (lambda text: None))
    skew, floor, how = 0.0, 0.0, set()
    for number, (name, image) in enumerate(tensors.items()):
        with within("picture", number, len(tensors)):
            generator = torch.Generator().manual_seed(seed + number)
            draws = (torch.randn(image.shape, generator=generator, dtype=torch.float64) for _ in range(2))
            noisy, other = (image + sigma * draw.to(image) for draw in draws)
            points = {f"{name} with noise": noisy}
            look.compare(image, noisy, f"{name}, without noise and with")
            look.compare(noisy, other, f"{name}, with two draws of noise")
            if steps > 1:
                look.tell(f"{name}: reconstructing")
                points[f"{name}, the last input of a reconstruction"] = look.follow(name, image, steps, seed)
            look.descend(image, name)
            for where, point in points.items():
                look.descend(point, where)
                look.tell(f"{where}: looking for the worst directions")
                outcome = look.search(where, point, sizes, products, seed + number)
                skew, floor = max((skew, floor), outcome[:2])
                how.add("automatic differentiation" if outcome[2] else "finite differences")
    if not look.best:
        raise InputError("the denoiser never reached its tolerance, so nothing can be said; allow it more iterations")
    look.tell("halving the worst pairs")
    report("halving the worst pairs")
    jumps = look.halve(halvings)
    return Certificate(
        denoiser=_name(denoiser),
        sigma=sigma,
        shape=tuple(example.shape),
        images=tuple(images),
        dtype=str(example.dtype).removeprefix("torch."),
        how=" and ".join(sorted(how)),
        averaged=denoiser.averaged,
        proximal=denoiser.proximal,
        accuracy=look.accuracy,
        lipschitz=look.best["lipschitz"],
        residual=look.best["residual"],
        theta=look.best["theta"],
        pseudo=look.best["pseudo"],
        asymmetry=skew,
        asymmetry_floor=floor,
        boundedness=look.boundedness[0],
        boundedness_where=look.boundedness[1],
        jumps=jumps,
        pairs=tuple(look.pairs),
        descent=look.descent,
        curvature=None if look.descent is None else look.curvature,
    )


@dataclass
class _Look:
    """The measurements so far: the worst pair for each constant, and the numbers of all pairs."""

    denoiser: Denoiser
    sigma: float
    tell: Callable[[str], None]
    best: dict[str, Pair] = field(default_factory=dict)
    pairs: list[PairNumbers] = field(default_factory=list)
    boundedness: tuple[float, str] = (0.0, "")
    accuracy: float = 0.0
    descent: Descent | None = None
    curvature: float = math.inf

    def add(self, pair: Pair, kind: str) -> None:
        if pair.distance == 0 or pair.error == math.inf:
            return
        self.accuracy = max(
            self.accuracy, pair.error / max(float(pair.first.norm()), float(pair.second.norm()), 1e-300)
        )
        self.pairs.append(PairNumbers(kind, pair.spread / self.sigma, pair.lipschitz, pair.residual, pair.theta))
        self.curvature = min(self.curvature, pair.curvature)
        for goal in ("lipschitz", "residual", "theta", "pseudo"):
            if goal not in self.best or getattr(pair, goal) > getattr(self.best[goal], goal):
                self.best[goal] = pair
        for image, out in ((pair.first, pair.out_first), (pair.second, pair.out_second)):
            c = float((image - out).double().square().mean()) / self.sigma**2
            if c > self.boundedness[0]:
                self.boundedness = (c, pair.where)

    def descend(self, image: Tensor, where: str) -> None:
        """Look at what a step from an image does to the potential, if there is one."""
        seen = measure_descent(self.denoiser, self.sigma, image, where)
        if seen is not None:
            self.descent = seen if self.descent is None else self.descent.join(seen)

    def compare(self, first: Tensor, second: Tensor, where: str) -> None:
        self.add(measure(self.denoiser, self.sigma, first, second, where), "noise")

    def follow(self, name: str, image: Tensor, steps: int, seed: int) -> Tensor:
        """Compare the inputs along a reconstruction, and return the last."""
        inner = self.denoiser
        if isinstance(inner, RealView):
            image, inner = torch.view_as_complex(image), inner.denoiser
        path = reconstruction_path(small_problem(image), inner, self.sigma, steps=steps, seed=seed)
        path = torch.view_as_real(path) if path.is_complex() else path
        inputs = path.flatten(0, 1)
        outputs, error, _ = denoise(self.denoiser, self.sigma, inputs)
        for i, j, label in path_pairs(path):
            pair = Pair(inputs[i], inputs[j], outputs[i], outputs[j], error, f"reconstruction of {name}, {label}")
            self.add(pair, "path")
        return path[-1, 0]

    def search(
        self, where: str, point: Tensor, sizes: tuple[float, ...], products: int, seed: int
    ) -> tuple[float, float, bool]:
        """Look for the worst directions at a point, at each size; the asymmetry, its floor, and whether by autograd."""
        outputs, error, warm = denoise(self.denoiser, self.sigma, point[None])
        length = self.sigma * point.numel() ** 0.5
        usable = [size for size in sizes if 2 * error <= _NOISE * size * length] or [max(sizes)]
        small = Secants(self.denoiser, self.sigma, point, usable[-1] * self.sigma, where, warm)
        adjoint: Adjoint | None = make_adjoint(small, seed)
        start = [(point - outputs[0]).double(), (point - point.mean()).double()]
        for size in reversed(usable):
            secants = replace(small, size=size * self.sigma)
            most = products if size == usable[-1] else (products + 1) // 2  # half, since it has a good start
            pairs = worst_directions(secants, adjoint, products=most, seed=seed, start=start)
            for pair in pairs:
                self.add(pair, "search")
            start = [(pair.first - pair.second).double() for pair in pairs[-3:]]  # the worst, for the next size
        return *asymmetry(small, adjoint, seed=seed), adjoint is not None

    def halve(self, halvings: int) -> bool:
        """Halve the worst pairs of a finite size; whether the values keep growing, as they do at a jump."""
        jumps = False
        for goal in ("lipschitz", "residual", "theta"):
            value = operator.attrgetter(goal)
            halves = bisect(self.denoiser, self.sigma, self.best[goal], value, halvings=halvings)
            for pair in halves:
                self.add(pair, "halved")
            if goal != "theta" and len(halves) >= 4:  # theta also grows without bound if D is steep along itself
                jumps = jumps or value(halves[-1]) > _JUMP**3 * value(halves[-4])
        return jumps


class RealView(Denoiser):
    """A denoiser of complex images as one of real arrays, whose last axis has real and imaginary parts."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.inside = self.denoiser = denoiser
        self.ndim, self.channels = denoiser.ndim + 1, denoiser.channels
        self.averaged, self.proximal = denoiser.averaged, denoiser.proximal

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out, warm = self.denoiser.denoise(torch.view_as_complex(image.contiguous()), sigma, warm)
        return torch.view_as_real(out.resolve_conj()), warm


def _name(denoiser: Denoiser) -> str:
    if isinstance(denoiser, RealView):
        return _name(denoiser.denoiser)
    name = type(denoiser).__name__
    return name if denoiser.inside is None else f"{name}({_name(denoiser.inside)})"


def _check(sigma: float, images: Mapping[str, Tensor], sizes: tuple[float, ...], channels: bool) -> None:
    if not 0 < sigma < math.inf:
        raise InputError(f"a certificate needs a sigma > 0, not {sigma}")
    if not images:
        raise InputError("a certificate needs at least one image to measure at")
    if not sizes or not all(0 < size < math.inf for size in sizes):
        raise InputError(f"the sizes of pairs must be numbers > 0, not {sizes}")
    first, example = next(iter(images.items()))
    for name, image in images.items():
        numbers = image.is_floating_point() or image.is_complex()
        if image.ndim - channels not in (2, 3) or not numbers or not bool(torch.isfinite(image).all()):
            raise InputError(f"{name} must be an image (H, W) or (D, H, W) of finite floating point numbers")
        if image.shape != example.shape or image.dtype != example.dtype:
            raise InputError(
                f"{name} is {tuple(image.shape)} of {image.dtype}, but {first} is {tuple(example.shape)} of "
                f"{example.dtype}; bring them to one shape and dtype"
            )
