"""Denoisers that treat all orientations of an image alike: the mean over turns and mirror images, or one a step."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from plugstream.base.draws import Stream, fraction
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper, repeat_sigma, require_axes
from plugstream.denoisers.wrap import as_denoiser

# Pixels that go through a denoiser in one call; of larger images one orientation after the other.
_PIXELS = 1 << 22


class Orientation(NamedTuple):
    """A way to lay an image: its last two axes exchanged or not, and then reversed along some of its spatial axes."""

    transposed: bool
    reversed: tuple[int, ...]

    def apply(self, image: Tensor) -> Tensor:
        """T z."""
        return (image.mT if self.transposed else image).flip(self.reversed)

    def undo(self, image: Tensor) -> Tensor:
        """T^{-1} z."""
        out = image.flip(self.reversed)
        return out.mT.contiguous() if self.transposed else out


def orientations(spatial: tuple[int, ...]) -> list[Orientation]:
    """The ways to lay an image of this shape that keep its shape, the identity first.

    The eight of the square (turns by 90 degrees, each mirrored or not), the four of a rectangle (half turn and mirror
    images), and of a volume the eight that reverse some of its axes.
    """
    axes = range(-len(spatial), 0)
    flips = [chosen for count in range(len(spatial) + 1) for chosen in itertools.combinations(axes, count)]
    square = len(spatial) == 2 and spatial[0] == spatial[1]
    return [
        Orientation(transposed, chosen) for transposed in ((False, True) if square else (False,)) for chosen in flips
    ]


class Equivariant(Wrapper):
    r"""A denoiser that is blind to orientation: the mean over turns and mirror images, or one of them drawn each step.

    With T_1 ... T_n the orientations that keep the image's shape (`orientations`):

        D_mean(z) = 1/n sum_j T_j^{-1} D(T_j z),    or, in a step, T_j^{-1} D(T_j z) with j drawn at random.

    D_mean is a pure map with D_mean(T z) = T D_mean(z). It costs n calls of D, a draw one. With "random" algorithms
    draw (`Denoiser.draw`), from (seed, step) only; called by itself it is D_mean, whose fixed points are sought and
    measured. As with few views, the draws keep an algorithm with a constant step from settling entirely.

    Asymmetry of D's Jacobian, expansion along patterns of one direction, stripes and blocks that begin at a corner
    average out in the mean. If D is theta-averaged so are D_mean and each draw, since the T_j are orthogonal:
    T^{-1} D T is (1 - theta) I + theta T^{-1} N T with N nonexpansive, and the mean of nonexpansive maps is one. If D
    is the prox of a convex function, so are they.

    Arguments: denoiser; how, "mean" or "random"; seed, of the draws. A denoiser with an image of its own, such as NLM
    with a guide, is refused.
    The warm start of the mean is that of D for (..., n, *image); draws have none.
    Reference: Terris, Moreau, Pustelnik and Tachella, CVPR 2024.
    """

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], how: str = "mean", seed: int = 0) -> None:
        super().__init__(as_denoiser(denoiser), how=how, seed=seed)
        if how not in ("mean", "random"):
            raise InputError(f"equivariant must be mean or random, not {how!r}")
        if _innermost(self.denoiser).guide is not None:
            raise InputError(
                f"{self.denoiser.describe()} has a guide, which lies one way, so the image cannot be turned; "
                "leave the guide or equivariant out"
            )
        self.how, self.seed = how, seed

    def draw(self, step: int) -> Denoiser:
        if self.how == "mean":
            return super().draw(step)
        return _Turned(self.denoiser.draw(step), fraction(self.seed, step, Stream.ORIENTATION))

    def describe(self) -> str:
        name = self.denoiser.describe()
        if self.how == "random":
            return f"{name}, on one of its turns and mirror images a step"
        return f"{name}, the mean over turns and mirror images"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        ways = orientations(tuple(image.shape[-self.ndim :]))
        lead = image.ndim - self.axes
        if warm is not None and (warm.ndim <= lead or warm.shape[lead] != len(ways)):
            raise InputError(f"the warm start has shape {tuple(warm.shape)}, but is one of each orientation")
        if not self.stacked and len(ways) * image.numel() <= _PIXELS:
            stack = torch.stack([way.apply(image) for way in ways], lead)
            out, after = self.denoiser.denoise(stack, repeat_sigma(sigma, len(ways)), warm)
            parts = [way.undo(one) for way, one in zip(ways, out.unbind(lead), strict=True)]
            return _mean(parts), after
        parts, warms = [], []
        for number, way in enumerate(ways):
            start = None if warm is None else warm.select(lead, number)
            one, after = self.denoiser.denoise(way.apply(image).contiguous(), sigma, start)
            parts.append(way.undo(one))
            warms.append(after)
        starts = [start for start in warms if start is not None]
        return _mean(parts), torch.stack(starts, lead) if len(starts) == len(warms) else None


class _Turned(Wrapper):
    """T^{-1} D(T z) for one orientation, chosen among those of the image by a number from 0 to 1."""

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser, place: float) -> None:
        super().__init__(denoiser, place=place)
        self.place = place

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        ways = orientations(tuple(image.shape[-self.ndim :]))
        way = ways[math.floor(self.place * len(ways))]
        out, _ = self.denoiser.denoise(way.apply(image).contiguous(), sigma)
        return way.undo(out), None


def _mean(parts: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, parts) / len(parts)


def _innermost(denoiser: Denoiser) -> Denoiser:
    """What is inside all wrappers and adapters."""
    while (inner := denoiser.inside) is not None:
        denoiser = inner
    return denoiser
