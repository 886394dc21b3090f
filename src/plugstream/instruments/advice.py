"""Defaults that several instruments advise: momentum, epochs, and settings for intensities of waves."""

from __future__ import annotations

import math

from plugstream.instruments.declarations import Advice

# Views with which sigma and the step fall together: few enough to use all in the last steps (docs/sigma-search.md has 3
# to 1,500), and of waves, whose steps take longer, little more than were tried (465).
_FEWEST, _MOST, _MOST_WAVES = 3, 2048, 512
# Pixels a side that trained denoisers need, pixels of an image whose two hundred calls of them take two minutes on a
# CPU, and views with which to choose a denoiser.
_LEAST_SIDE, _MOST_PIXELS, MANY = 8, {"tnrd": 1 << 20, "unet": 1 << 19}, 25

FEW_PHOTONS = 20.0
"""With fewer photons of the beam a pixel of the detector, roots of counts are biased in the dark parts of a frame,
where it matters, and Poisson's loss gives the better image; with more, roots give the same image sooner."""


def advise_momentum(limit: float, batch: int) -> tuple[Advice, ...]:
    """Momentum that grows to a limit and then falls, for steps of `batch` views."""
    views = f"{batch} view{'s' * (batch > 1)} a step"
    reason = (
        f"momentum tapered: it grows to {limit:g} and then falls, so that noise of {views} averages out (--momentum)"
    )
    name = ("momentum", "name")
    return Advice(*name, "tapered", reason), Advice("momentum", "momentum_limit", limit, reason, unless=(name,))


def advise_fall(n_views: int, steps: int, most: int = _MOST) -> tuple[Advice, ...]:
    """Runs of so many steps in which sigma and the step fall together, where sigma is searched for.

    For linear models of two-dimensional images. Each step after the search uses all views, so there must not be too
    many.
    """
    if not _FEWEST <= n_views <= most:
        return ()
    short = (("algorithm", "iterations"), ("algorithm", "search"))
    reason = "sigma and the step fall together, which takes the fewest denoiser calls (--fall none)"
    return (Advice("algorithm", "fall", steps, reason, search=True, falling=True, unless=short),)


def suits_network(shape: tuple[int, ...], name: str = "unet") -> bool:
    """Whether this trained denoiser takes images of this shape, and not too long for them."""
    return min(shape) >= _LEAST_SIDE and math.prod(shape) <= _MOST_PIXELS[name]


def advise_trained(
    fall: tuple[Advice, ...], shape: tuple[int, ...], name: str = "unet", rivals: str | None = "tv"
) -> tuple[Advice, ...]:
    """A trained denoiser where sigma falls by this advice, and rivals of which held-out views choose, if none is given.

    The network is safe: a gradient step of a potential. Nothing bounds TNRD, which draws patterns along hard edges
    where data say little of the finest details, until nothing else is left.

    Arguments: fall, of `advise_fall`; shape of the image; name of the denoiser; rivals, as of `--rivals`.
    """
    if not fall or not suits_network(shape, name):
        return ()
    place, kind = ("denoiser", "name"), {"search": True, "falling": True}
    why = f"no denoiser is given, so that it is {name}, better than tv where sigma falls (--denoiser)"
    own = Advice(*place, name, why, unless=fall[0].unless, **kind)  # type: ignore[arg-type]
    if rivals is None:
        return (own,)
    another = f"unless held-out views ask for {rivals.replace(',', ' or ')} (--rivals)"
    unless = (place, *fall[0].unless)
    return own, Advice("denoiser", "rivals", rivals, another, unless=unless, **kind)  # type: ignore[arg-type]


def advise_fall_of_waves(n_views: int, shape: tuple[int, ...], sigma: float) -> tuple[Advice, ...]:
    """The same for intensities of waves, to this sigma, with a short prox, and TNRD where nobody names another.

    Arguments: n_views; shape of the image; sigma.
    """
    if not (fall := advise_fall(n_views, 24, _MOST_WAVES)):
        return ()
    # Few steps after the search: where hardly any light comes, the prior goes on changing the image for hundreds.
    fixed = {"sigma": sigma, "step_size": "overlap", "prox_products": 2, "search": 144, "iterations": 192}
    kind = {"search": True, "falling": True, "unless": fall[0].unless}
    steps = (Advice("algorithm", key, value, fall[0].reason, **kind) for key, value in fixed.items())  # type: ignore[arg-type]
    return (*fall, *advise_trained(fall, shape, "tnrd", None), *steps)


def advise_waves(data: str, floor: float, views: str) -> tuple[Advice, ...]:
    """Settings for measured intensities of waves: compare amplitudes, and let the step follow the overlap.

    Arguments: data and views, in words; floor of Poisson's loss.
    """
    step = f"the step follows how much the {views} of a batch overlap (--step overlap), longer than 1/L"
    return (
        Advice("loss", "name", "amplitude", f"{data} are compared by their roots (--loss amplitude)", True),
        Advice("loss", "floor", floor, f"of waves Poisson's loss begins below one photon (--floor {floor:g})", True),
        Advice("algorithm", "step_size", "overlap", step, True),
    )


def advise_batches(n_views: int, batch: int | None, rounds: int, few: int) -> list[Advice]:
    """Epochs where all views take several steps, and bounded momentum where a step has few views.

    Arguments: n_views; batch, views a step, None for all; rounds, steps an epoch from which epochs pay; few, views a
    step below which momentum is bounded.
    """
    advice = []
    if batch is not None and n_views >= rounds * batch:
        advice.append(Advice("sampler", "name", "epochs", "every view is used once before any is repeated", True))
    if batch is not None and batch < few:
        reason = f"{batch} views a step are too few for momentum that grows (--momentum bounded)"
        advice.append(Advice("momentum", "name", "bounded", reason, True))
    return advice
