"""The certificate of a denoiser: what is proved, measured and refuted, as text, JSON and arrays."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.algorithms.pairs import Pair, damping_for
from plugstream.denoisers.base import Denoiser

# A theta above this counts as 1, such as that of -I, whose pairs give it up to rounding.
AT_THE_LIMIT = 1 - 1e-6

# So far the slope of a potential may be from what its gradient step took, in a difference of finite size.
_MISMATCH = 0.02

Status = Literal["proved", "refuted", "open"]
_ROUNDINGS = 64.0  # of a potential, which is a sum over all pixels, in units of the precision
_STEP = 1e-3  # of the difference that checks the gradient, in units of sigma


@dataclass(frozen=True)
class PairNumbers:
    """The numbers of a pair: its kind, its root mean square distance over sigma, and its three lower bounds."""

    kind: str
    size: float
    lipschitz: float
    residual: float
    theta: float


@dataclass(frozen=True, eq=False)
class Certificate:
    """The result of `certify`.

    Attributes:
        averaged, proximal: what holds by construction; None and False if nothing is claimed. accuracy: of outputs,
        relative to the input; subtracted from all measurements. how: the method for the transposed Jacobian. lipschitz,
        residual, theta, pseudo: the pairs with the largest lower bounds, of the Lipschitz constants of D and I - D, of
        theta and of k. descent, curvature: of a gradient step, what it does to its potential, and the potential's least
        curvature; None for others. asymmetry: the largest estimate of ||(J - J^T) / 2||_F
        / ||J||_F, and asymmetry_floor, what rounding could give. boundedness: the largest ||D(z) - z||^2 / (n sigma^2).
        jumps: whether the ratio of the worst pair grew at each halving. pairs: the numbers of every pair.
    """

    denoiser: str
    sigma: float
    shape: tuple[int, ...]
    images: tuple[str, ...]
    dtype: str
    how: str
    averaged: float | None
    proximal: bool
    accuracy: float
    lipschitz: Pair
    residual: Pair
    theta: Pair
    pseudo: Pair
    asymmetry: float
    asymmetry_floor: float
    boundedness: float
    boundedness_where: str
    jumps: bool
    pairs: tuple[PairNumbers, ...]
    descent: Descent | None = None
    curvature: float | None = None

    @property
    def nonexpansive_status(self) -> Status:
        """Whether D is nonexpansive."""
        if self.lipschitz.lipschitz > 1:
            return "refuted"
        return "open" if self.averaged is None else "proved"

    @property
    def averaged_status(self) -> Status:
        """Whether D is theta-averaged for some theta < 1."""
        if self.theta.theta >= AT_THE_LIMIT or self.lipschitz.lipschitz > 1:
            return "refuted"
        return "open" if self.averaged is None else "proved"

    @property
    def pseudo_contractive_status(self) -> Status:
        """Whether D is k-strictly pseudo-contractive for some k < 1."""
        if self.pseudo.pseudo >= AT_THE_LIMIT:
            return "refuted"
        return "open" if self.averaged is None else "proved"

    @property
    def contradicted(self) -> bool:
        """Whether a measurement contradicts a proof: a mistake in the code or in the proof."""
        if self.descent is not None and self.descent.mismatch > _MISMATCH:
            return True
        return self.averaged is not None and self.theta.theta > max(self.averaged, 1e-9) * (1 + 1e-9)

    def proofs(self) -> list[str]:
        """What holds by construction, in sentences."""
        if self.descent is not None:
            return ["a gradient step of a potential, D = I - grad g, so its Jacobian is symmetric where there is one"]
        if self.averaged is None:
            return []
        theta = f"{self.averaged:.6g}"
        twice = f"{2 * self.averaged:.6g}"
        lines = [f"{theta}-averaged, hence nonexpansive, and I - D has a Lipschitz constant of at most {twice}"]
        if self.proximal:
            lines.append("the proximal operator of a convex function, so its Jacobian is symmetric where there is one")
        lines.append(f"this is of the exact map; outputs are known to a relative error of {self.accuracy:.1e}")
        return lines

    def refutations(self) -> list[str]:
        """What a pair of images shows not to hold, in sentences."""
        lines = []
        lipschitz, theta = self.lipschitz.lipschitz, self.theta.theta
        if self.nonexpansive_status == "refuted":
            digits = 4 if lipschitz > 1.001 else 6
            lines.append(f"not nonexpansive: the distance of two images grows by the factor {lipschitz:.{digits}g}")
        if self.jumps:
            lines.append("apparently not continuous: the factor keeps growing as their distance is halved")
        if self.descent is not None and self.descent.rate > 0:
            lines.append(f"a step can raise its potential: by {self.descent.rate:.3g} ||z - D(z)||^2")
        if self.averaged_status == "refuted":
            if theta == math.inf and self.descent is not None:
                lines.append("not averaged, and no damping makes it so: its potential is not convex")
            elif theta == math.inf:
                lines.append("not averaged, and no damping makes it so: a difference of images grows along itself")
            elif theta > 1 / AT_THE_LIMIT:
                damping = damping_for(theta)
                lines.append(
                    f"not averaged: theta would have to be at least {theta:.4g}; damped with theta = {damping:g}, "
                    "(1 - theta) I + theta D, it would agree with all pairs seen"
                )
            elif theta >= AT_THE_LIMIT:
                lines.append("not averaged: the smallest theta is 1 to six digits; any damping makes it so")
        if self.contradicted:
            lines.append("WHAT WAS PROVED IS CONTRADICTED: please report this")
        return lines

    def questions(self) -> list[str]:
        """What was neither proved nor refuted, in sentences."""
        lines = []
        if self.nonexpansive_status == "open":
            lines.append("whether it is nonexpansive: no pair seen contradicts it, which proves nothing")
        if self.descent is not None:
            most = self.residual.residual
            need = "as it is" if most < 1 else f"damped with theta = {damping_for(most):g}, below 1 over that constant"
            lines.append(f"whether it is the prox of a weakly convex function: {need}, no pair seen contradicts it")
        if self.pseudo_contractive_status == "open" and self.pseudo.pseudo > 0:
            lines.append(
                f"whether it is pseudo-contractive: if so, strictly with a k of at least {self.pseudo.pseudo:.4g}"
            )
        if self.averaged_status == "open":
            lines.append(f"whether it is averaged: if so, with a theta of at least {self.theta.theta:.4g}")
        if not self.proximal and self.descent is None and self.asymmetry <= 3 * self.asymmetry_floor:
            lines.append("whether its Jacobian is symmetric everywhere: at the images measured it is, up to rounding")
        return lines

    def rows(self) -> list[tuple[str, str, str]]:
        """Rows of a table: what, its value, and where."""

        def row(name: str, value: float, pair: Pair) -> tuple[str, str, str]:
            text = "none will do" if value == math.inf else f">= {_number(value)}"
            return name, text, f"two images {pair.spread / self.sigma:.2g} sigma apart: {pair.where}"

        c, below = self.boundedness, self.asymmetry <= 3 * self.asymmetry_floor
        asymmetry = f"< {_number(3 * self.asymmetry_floor)}" if below else f"{_number(self.asymmetry)}"
        rows = [
            row("Lipschitz constant of D", self.lipschitz.lipschitz, self.lipschitz),
            row("Lipschitz constant of I - D", self.residual.residual, self.residual),
            row("smallest theta", self.theta.theta, self.theta),
            row("pseudo-contraction k", self.pseudo.pseudo, self.pseudo),
            ("Chan's constant c", f">= {_number(c)}", self.boundedness_where),
            ("asymmetry of the Jacobian", asymmetry, "an estimate; 0 is symmetric, 1 antisymmetric"),
        ]
        if self.descent is not None:
            seen = f"at {self.descent.images} images, the worst {self.descent.where}; below 0 a step lowers g"
            rows.append(("(g(D z) - g(z)) / |z - D z|^2", f">= {self.descent.rate:.4f}", seen))
        if self.curvature is not None:
            rows.append(("least curvature of g", f"<= {self.curvature:.4f}", "below 0 it is not convex"))
        return rows

    def text(self) -> str:
        """The whole certificate as readable text."""
        sides = " x ".join(map(str, self.shape))
        lines = [
            f"{self.denoiser}, sigma {self.sigma:.6g}, on {', '.join(self.images)} ({sides}, {self.dtype}); "
            f"{len(self.pairs)} pairs of images; {self.how}"
        ]
        none = ["nothing"]
        for title, statements in (("proved by construction", self.proofs()), ("refuted by a pair", self.refutations())):
            lines += ["", title, *(f"  {line}" for line in statements or none)]
        rows = self.rows()
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines += ["", "measured, as a lower bound that is attained"]
        lines += [f"  {name:<{wide[0]}}  {value:<{wide[1]}}  {where}" for name, value, where in rows]
        lines += ["", "open", *(f"  {line}" for line in self.questions() or none)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Numbers and words, without the images; null where theta or what rounding gives is infinite."""

        def finite(value: float) -> float | None:
            return value if math.isfinite(value) else None

        def witness(goal: str, pair: Pair) -> dict[str, Any]:
            value = getattr(pair, goal)
            return {
                "at_least": finite(value),
                "infinite": not math.isfinite(value),
                "distance_over_sigma": pair.spread / self.sigma,
                "where": pair.where,
                "images": f"{goal}_first, {goal}_second",
            }

        return {
            "denoiser": self.denoiser,
            "sigma": self.sigma,
            "shape": list(self.shape),
            "images": list(self.images),
            "dtype": self.dtype,
            "jacobian": self.how,
            "accuracy": self.accuracy,
            "pairs": len(self.pairs),
            "proved": {"averaged": self.averaged, "proximal": self.proximal, "sentences": self.proofs()},
            "measured": {
                "lipschitz": witness("lipschitz", self.lipschitz),
                "residual_lipschitz": witness("residual", self.residual),
                "theta": witness("theta", self.theta),
                "pseudo_contraction": witness("pseudo", self.pseudo),
                "boundedness": {"at_least": self.boundedness, "where": self.boundedness_where},
                "asymmetry": {"estimate": self.asymmetry, "rounding": finite(self.asymmetry_floor)},
            },
            "refuted": self.refutations(),
            "open": self.questions(),
            "nonexpansive": self.nonexpansive_status,
            "theta_averaged": self.averaged_status,
            "strictly_pseudo_contractive": self.pseudo_contractive_status,
            "descent": None if self.descent is None else {**asdict(self.descent), "curvature": self.curvature},
            "contradicted": self.contradicted,
        }

    def witnesses(self) -> dict[str, NDArray[Any]]:
        """The pairs of images that attain the four constants, and their outputs, by name."""
        out = {}
        for goal in ("lipschitz", "residual", "theta", "pseudo"):
            pair: Pair = getattr(self, goal)
            for name in ("first", "second", "out_first", "out_second"):
                out[f"{goal}_{name}"] = np.asarray(getattr(pair, name).detach().cpu().numpy())
        return out


def _number(value: float) -> str:
    """Four decimal places, cut off rather than rounded: a lower bound must not grow when it is printed."""
    if not 1e-3 <= value < 1e3:
        return f"{value:.3g}"
    return f"{math.floor(value * 1e4 + 1e-6) / 1e4:.4f}"


@dataclass(frozen=True)
class Descent:
    r"""What was seen of D(z) = z - grad g(z) with the potential g.

    If grad g is L-Lipschitz, g(D(z)) <= g(z) - (1 - L/2) ||z - D(z)||^2, so `rate` is below 0 everywhere if L < 2.

    Attributes:
        rate: the largest (g(D(z)) - g(z)) / ||z - D(z)||^2, less what rounding may add: above 0, a step raises g.
        where: the image of it. images: how many there were.
        mismatch: the largest difference of <z - D(z), v> and a central difference of g along v = (z - D(z)) / ||.||,
            relative to ||z - D(z)||.
    """

    rate: float
    where: str
    images: int
    mismatch: float

    def join(self, other: Descent) -> Descent:
        """Both together."""
        worst = max(self, other, key=lambda one: one.rate)
        mismatch = max(self.mismatch, other.mismatch)
        return Descent(worst.rate, worst.where, self.images + other.images, mismatch)


@torch.no_grad()
def measure_descent(denoiser: Denoiser, sigma: float, image: Tensor, where: str) -> Descent | None:
    """At one image, None if the denoiser has no potential or leaves the image as it is."""
    potential = denoiser.potential
    if potential is None:
        return None
    out = denoiser.denoise(image, sigma)[0]
    gradient = image - out
    length = float(gradient.norm())
    before, after = (float(potential(one, sigma)) for one in (image, out))
    noise = _ROUNDINGS * torch.finfo(image.dtype).eps * max(before, after)
    if length == 0 or noise > 0.1 * length**2:
        return None
    h = _STEP * sigma * image.numel() ** 0.5
    step = gradient * (h / length)
    slope = float(potential(image + step, sigma) - potential(image - step, sigma)) / (2 * h)
    return Descent((after - before - noise) / length**2, where, 1, abs(slope - length) / length)
