"""Rivals of a denoiser in the search for sigma: what is known of each on the average, and how many steps they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from plugstream.algorithms import Rival
from plugstream.denoisers.base import Denoiser
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Advice
from plugstream.settings import Settings, is_weight

# The best sigma of a denoiser in the loop, factor * sigma^power of that of tnrd, over white: docs/sigma-search.md.
_SIGMAS = {"bm3d": (1.4, 1.0), "ridge": (2.5, 1.25)}
# A rival must win by this part of the standard deviation that noise gives the misfit of the data that judge.
_MARGIN = 1 / 3
# One in so many steps of the race for sigma an entrant of the heat takes, which come to these, and a side of the two
# rounds that a rival has after it.
_HEAT, _SIDES = 20, 4


class _Other(NamedTuple):
    """A rival whose sigma is a level of noise, of one whose sigma^2 is the weight of a prior.

    factor, power: with R the image's range, its best sigma / R is about factor * (sigma / sqrt(R))^power; spread, with
    which multiples of that it enters; rounds that it has for its own sigma afterwards.
    """

    factor: float
    power: float
    spread: tuple[float, ...]
    rounds: int


# How many margins such a rival, which takes far longer, must be ahead with its sigma: the whole standard deviation.
# docs/sigma-search.md has what was measured.
_PROOF = 3.0
_OTHERS = {("tv", "bm4d"): _Other(0.3, 1.0, (0.5, 1.0, 2.0), 6)}
# sigma of a weight over the root of a level of noise, where both fall; and by how many powers of two its best weight is
# then further from that of its first run: 1.9 to 4.2 in seven scans of two instruments.
_FALLING, _SHIFT = 0.28, 3
# Seconds that BM4D takes for a real voxel, times threads on the CPU, between Xeon (2.5e-6) and Neoverse N1 (5.6e-6),
# and on an H200 (docs/denoisers.md). A run has hundreds of calls, so that nobody should wait for longer ones unasked.
_SECONDS, _MOST_SECONDS = {"cpu": 4e-6, "cuda": 1.2e-8}, 2.0
# BM4D's cubes have four voxels a side: along a shorter axis there is little to compare.
_LEAST_SIDE = 8


def are_comparable(own: str, rival: str) -> bool:
    """Whether sigma means the same to both denoisers, or how it differs is known."""
    return is_weight(own) == is_weight(rival) or (own, rival) in _OTHERS


def heat_share(own: str, rivals: Sequence[str]) -> int:
    """How many twentieths of the race for sigma the heat of these has and what a rival does after it, 0 for none."""
    others = [_OTHERS[own, rival] for rival in rivals if (own, rival) in _OTHERS]
    entrants = len(rivals) + sum(len(other.spread) - 1 for other in others)
    sides = max([_SIDES, *(2 * other.rounds for other in others)])
    return 1 + entrants + sides if rivals else 0


def race_steps(search: int, share: int) -> int:
    """How many of the steps of a search look for sigma; the heat of denoisers and what follows it has the others."""
    return search * _HEAT // (_HEAT + share)


def heat_steps(race: int, share: int) -> int:
    """How many steps the heat has, and a rival after it, beside these of the race for sigma; share, of `heat_share`."""
    return race * share // _HEAT


def heat_margin(n_data: int) -> float:
    """By which part of the misfit a rival must win that so many real numbers judge, whose sum of squares is chi^2."""
    return min(0.5, _MARGIN * math.sqrt(2 / n_data))


def make_entrants(settings: Settings, name: str, denoiser: Denoiser) -> list[Rival]:
    """A rival of the settings' denoiser, with what is known of both on the average, once for each sigma to try.

    Where sigma falls, the search finds the weight of its prior, and its sigma falls as that of the settings' denoiser.
    """
    own = settings.denoiser.name
    if settings.algorithm.fall is not None:
        kind = is_weight(name) - is_weight(own)
        factor, power = {0: (1.0, 1.0), 1: (_FALLING, 0.5), -1: (_FALLING**-2, 2.0)}[kind]
        return [Rival(name, denoiser, factor, power, growing=not is_weight(name), shift=kind * _SHIFT)]
    if (own, name) in _OTHERS:
        factor, power, spread, rounds = _OTHERS[own, name]
        unit = 1 - power / 2
        how = {"power": power, "unit": unit, "rounds": rounds, "growing": True, "proves": _PROOF}
        return [Rival(name, denoiser, factor * times, **how) for times in spread]  # type: ignore[arg-type]
    white = next((d.white for d in map(settings.denoiser.chosen, (own, name)) if hasattr(d, "white")), 1.0)
    (a, u), (b, v) = (_SIGMAS.get(one, (1.0, 1.0)) for one in (own, name))
    power = v / u
    return [Rival(name, denoiser, b * white / (a * white) ** power, power)]


def advise_rival(image: ImageSpace, device: str, threads: float) -> tuple[Advice | None, str]:
    """That BM4D is a rival of TV in runs on volumes which search for sigma, None if it is not, and why not.

    Arguments: image, of three spatial axes; device and threads of the run.
    """
    if image.channels or min(image.spatial) < _LEAST_SIDE:
        return None, ""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    parts = 2 if image.is_complex else 1
    seconds = parts * math.prod(image.spatial) * _SECONDS[kind] / (threads if kind == "cpu" else 1)
    if seconds > _MOST_SECONDS:
        return None, f"it needs no training; bm4d is not tried, since a call would take about {seconds:.2g} s here"
    ask = f"unless held-out views ask for bm4d, about {seconds:.1g} s a call"
    why = f"denoiser tv: it needs no training, {ask} (--denoiser, --rivals)"
    unless = (("denoiser", "name"), ("algorithm", "iterations"), ("algorithm", "search"))
    return Advice("denoiser", "rivals", "bm4d", why, search=True, unless=unless), ""
