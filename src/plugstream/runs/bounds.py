"""Where the image may be other than zero, and how large its values may be, by what the data says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.images.space import ImageSpace
from plugstream.models import ct_support
from plugstream.models.base import Model
from plugstream.models.views import spread_views

Box = tuple[Tensor | float, Tensor | float]

_WORDS = ("auto", "none", "disc", "hull")
# Views that two images are fitted to, and steps of the fits; every fourth value of each view judges them.
_VIEWS, _STEPS, _PART = 64, 80, 4
# An image within bounds is as good where it leaves no more of the held-out data than this factor, and of these is off
# by so many times the noise more at no more than this part: a small thing that is denser than the rest shows there.
# Where views are few a true bound keeps noise out, and is better by this factor at least.
_FACTOR, _SIGMAS, _RARE, _BETTER = 1.0, (2.0, 3.0), (0.01, 0.003), 0.8
_FAR, _FAR_RARE = 5.0, 0.001  # times the noise, by which a disc must not be off where the hull is not
_WORSE = 2.0  # standard errors over views, by which a disc must not explain the data worse than the hull
# Rays that cross less than this part of the longest way through the support say little of the material, and where this
# part of the others shows more than the bound, it is noise, and the edge of the detector's blur.
_WAY, _ABOVE = 0.25, 0.02
# A bound that is a little too low is refused, and one that is a little too high still helps.
_LOOSER = (1.0, 1.03, 1.06, 1.1)


@dataclass(frozen=True)
class Bounds:
    """low, high and support as settings hold them, and the reasons for those that the data gave."""

    low: float | str | None
    high: float | str | None
    support: str
    reasons: tuple[str, ...] = ()

    def add(self, reason: str, **bound: Any) -> Bounds:
        """The bounds with another one, and its reason."""
        return replace(self, **bound, reasons=(*self.reasons, reason))


@dataclass(frozen=True)
class Preferred:
    """The bound that the data asks for, as a setting holds it, and why, in one sentence."""

    value: float | str | None
    reason: str


def build_support(text: str, space: ImageSpace) -> Tensor | None:
    """Where an image may be other than zero, of its shape or of a slice's, as the setting says; None for everywhere.

    Arguments: text, "none"; "disc X Y R" or "hull X Y X Y ...", a circle or the corners of a convex polygon in the
    image's unit; or the path of an .npy, 0 outside. Where the data is still to be asked (auto, disc, hull) it is None.
    """
    word, *rest = text.split() or [""]
    if word in _WORDS and not rest:
        return None
    if word in ("disc", "hull"):
        return _draw(word, rest, space)
    path = Path(text).expanduser()
    if path.suffix != ".npy":
        raise InputError(f"--support {text}: give auto, none, disc, hull or the path of an .npy, 0 outside the support")
    try:
        mask = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"the support {path} cannot be read: {error}") from error
    if tuple(mask.shape) not in (tuple(space.spatial), tuple(space.spatial[-2:])) or mask.dtype.kind not in "buif":
        sizes = (" x ".join(map(str, shape)) for shape in (mask.shape, space.spatial))
        raise InputError("the support is {} but the image {}; give real numbers of its shape".format(*sizes))
    if not (mask != 0).any():
        raise InputError(f"the support {path} is empty: no pixel of it is other than 0")
    return torch.from_numpy(mask != 0)


def _draw(word: str, numbers: list[str], space: ImageSpace) -> Tensor:
    """The pixels whose centre is inside a disc or a convex polygon, or not further than half a pixel from it."""
    try:
        values = np.array([float(number) for number in numbers])
    except ValueError:
        values = np.zeros(0)
    fits = len(values) == 3 if word == "disc" else len(values) >= 6 and len(values) % 2 == 0
    if not fits or not np.isfinite(values).all() or space.spacing is None or space.origin is None:
        form = "disc X Y R" if word == "disc" else "hull X Y X Y X Y ..."
        raise InputError(f"--support {word} is followed by nothing, or by numbers in the image's unit: {form}")
    (height, width), (dy, dx), (y0, x0) = space.spatial[-2:], space.spacing[-2:], space.origin[-2:]
    y, x = y0 + dy * np.arange(height)[:, None], x0 + dx * np.arange(width)[None, :]
    half = max(dx, dy) / 2
    if word == "disc":
        inside = np.hypot(x - values[0], y - values[1]) <= values[2] + half
    else:
        corners = values.reshape(-1, 2)
        edges = np.roll(corners, -1, 0) - corners
        turn = np.sign(np.sum(corners[:, 0] * np.roll(corners[:, 1], -1) - corners[:, 1] * np.roll(corners[:, 0], -1)))
        inside = np.ones((height, width), bool)
        for (px, py), (ex, ey) in zip(corners, edges, strict=True):
            inside &= turn * (ex * (y - py) - ey * (x - px)) >= -half * math.hypot(ex, ey)
    if not inside.any():
        raise InputError(f"--support {word} holds no pixel of the image")
    return torch.from_numpy(inside)


def prefer_support(fidelity: DataFidelity, kind: str) -> Preferred:
    """Where the object is, by the rays of the data that touch it; "none" where that cannot be known.

    A disc where the tangents of all views are those of one and an image within it explains held-out data as well as one
    within the hull does, else their hull, which holds every object that views show whole.

    Arguments: fidelity; kind, "auto", or "disc" or "hull", which are refused where they cannot be.
    """
    model = fidelity.model

    def decline(why: str) -> Preferred:
        if kind != "auto":
            raise InputError(f"--support {kind}: {why}; give a FILE.npy, or leave it out")
        return Preferred("none", f"the image may be other than 0 everywhere: {why}")

    if model.rays is None or len(model.data_shape) != 1:
        return decline("only data of ct without detector rows tells where the object is")
    views = fidelity.available
    mask = model.restrict(torch.ones(len(views), *model.data_shape), views) != 0
    data = fidelity.data(views).double().cpu().numpy()
    tangents = ct_support.find_tangents(model.rays.select(views.cpu().numpy()), data, mask.numpy())
    if tangents.refusal:
        return decline(tangents.refusal)
    corners = ct_support.hull(tangents, model.voxels)
    if len(corners) < 3:
        return decline("its tangent rays leave nothing of the image")
    hull = Preferred(_text("hull", corners), "the image is 0 outside the convex hull that its tangent rays leave")
    (x, y, radius), mean, worst = ct_support.fit_disc(tangents)
    disc, is_disc = _text("disc", np.array([x, y, radius])), ct_support.fits(mean, worst)
    if kind == "hull" or (kind == "auto" and not is_disc):
        return hull
    if not is_disc:
        return decline(f"tangent rays are off the nearest disc by {mean:.2g} columns in the mean, {worst:.2g} at most")
    if kind == "auto":
        space = ImageSpace(model.voxels.shape, spacing=model.voxels.spacing, origin=model.voxels.origin)
        inside, outside = (_box(0.0, math.inf, build_support(text, space)) for text in (disc, str(hull.value)))
        if not _Trial(fidelity).prefers(inside, outside):
            return hull
    place = f"({x:.6g}, {y:.6g}), radius {radius:.6g}"
    return Preferred(disc, f"the image is 0 outside the disc about {place}, which its tangent rays touch")


def prefer_high(fidelity: DataFidelity, low: float | None, support: Tensor | None) -> Preferred:
    r"""The largest value of the image, where it is that of a material: None where the data does not allow one.

    Along a ray the mean value of the image over the support is y / l, with l the length of the ray within it, so the
    largest value is at least the largest y / l. It is that where some ray runs in one material alone, and there is no
    denser one. To see whether that holds, one image within the bound and one without are fitted to a part of the data:
    the bound holds where both explain the rest equally well, at every place.

    Arguments: fidelity, of a linear model without negative entries; low and support of the image.
    """
    model = fidelity.model

    def decline(why: str) -> Preferred:
        return Preferred(None, f"the image has no upper bound: {why}")

    if not model.linear or not model.nonnegative or low is None or low < 0 or support is None:
        return decline("none can be found without a lower bound and a support")
    trial = _Trial(fidelity)
    if not trial.possible:
        return decline("there is too little data to ask for one")
    way = model.forward(support.to(model.device, model.dtype), trial.views)
    long = way >= _WAY * way.max()
    mean = (trial.data / way.clamp_min(1e-30))[long]
    bound = float(mean.double().quantile(1 - _ABOVE))
    if not bound > low:
        return decline("rays show no material")
    for factor in _LOOSER:
        high = float(f"{factor * bound:.5g}")
        if trial.allows(_box(low, high, support), _box(low, math.inf, support)):
            return Preferred(high, f"the image is kept below {high:g}, which explains the data as well as none")
    return decline(f"values above {high:.4g}, which most rays show, are needed to explain the data")


def _text(word: str, numbers: np.ndarray) -> str:
    return " ".join([word, *(f"{number:.7g}" for number in numbers.reshape(-1))])


def _box(low: float, high: float, support: Tensor | None) -> Box:
    if support is None:
        return low, high
    return torch.where(support, low, 0.0), torch.where(support, high, 0.0)


class _Trial:
    """Two images that are fitted to three quarters of the data of a few views, judged by the last quarter."""

    def __init__(self, fidelity: DataFidelity) -> None:
        spread = spread_views(fidelity.available, _VIEWS)
        self.model: Model = fidelity.model
        self.views = fidelity.available if spread is None else spread
        self.data = fidelity.data(self.views)
        shape = self.model.data_shape
        place = torch.arange(math.prod(shape)).reshape(1, *shape)
        turn = torch.arange(len(self.views)).reshape(-1, *(1,) * len(shape))
        self.judges = ((place + turn) % _PART == 0).to(self.data.device)
        self.possible = len(self.views) >= 2 and bool(self.data.isfinite().all()) and bool((self.data != 0).any())

    def prefers(self, one: Box, other: Box) -> bool:
        """Whether an image within the first bounds explains the data no worse than one within the second, everywhere.

        The first are narrower, so that where they hold neither image is better but by the noise: what one view says
        for one and the next for the other is no evidence.
        """
        ratio, parts, worse = self._compare(one, other, (_FAR,))
        return ratio <= _BETTER or (worse <= _WORSE and parts[0] <= _FAR_RARE)

    def allows(self, one: Box, other: Box) -> bool:
        """Whether an image within the first bounds explains the data as well as one within the second."""
        ratio, parts, _ = self._compare(one, other, _SIGMAS)
        same = ratio <= _FACTOR and all(part <= most for part, most in zip(parts, _RARE, strict=True))
        return same or ratio <= _BETTER

    def _compare(self, one: Box, other: Box, sigmas: tuple[float, ...]) -> tuple[float, list[float], float]:
        """What the first leaves of the second's energy, the parts where it is off by so many times the noise more, and
        by how many standard errors over views it leaves more."""
        bounded, free = self._residual(*one), self._residual(*other)
        ratio = float((bounded**2).sum()) / max(float((free**2).sum()), 1e-300)
        excess = (bounded**2 - free**2).flatten(1).sum(1).double()
        worse = float(excess.mean()) * math.sqrt(len(excess)) / max(float(excess.std()), 1e-300)
        noise = 1.4826 * float(free[self.judges].abs().median())
        more = (bounded.abs() - free.abs())[self.judges]
        return ratio, [float((more > times * noise).double().mean()) for times in sigmas], worse

    @torch.no_grad()
    def _residual(self, low: Tensor | float, high: Tensor | float) -> Tensor:
        """What the fit leaves of held-out data, zero for the others."""
        model, views = self.model, self.views
        like = torch.zeros(model.image_shape, device=model.device, dtype=model.dtype)
        low, high = (torch.as_tensor(bound).to(like).expand_as(like) for bound in (low, high))

        def normal(image: Tensor) -> Tensor:
            return model.adjoint(model.forward(image, views) * ~self.judges, views)

        step = 1 / float(largest_eigenvalue(normal, like, tol=0.2, ndim=like.ndim))
        x = s = like
        q = 1.0
        for _ in range(_STEPS):
            gradient = model.adjoint((model.forward(s, views) - self.data) * ~self.judges, views)
            before, q_before = x, q
            x = torch.minimum(torch.maximum(s - step * gradient, low), high)
            q = (1 + math.sqrt(1 + 4 * q * q)) / 2
            s = x + ((q_before - 1) / q) * (x - before)
        return (model.forward(x, views) - self.data) * self.judges
