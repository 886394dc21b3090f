"""Defaults for tomographic scans, by the number of their views, and for missing angles."""

from __future__ import annotations

import math
from collections.abc import Iterable

from plugstream.instruments.advice import advise_momentum
from plugstream.instruments.declarations import Advice
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_plausible import outlook

# Views are many where going through all of them takes this many steps: drawing them with replacement would then leave
# out a third of them in as many steps.
_PASS = 4
# Between which q of the momentum ends its rise, at twice the views of a step: few views leave more noise to gather, and
# the image is far away, so that less momentum takes more steps (benchmarks/momenta.py, docs/tuning.md).
_LEAST_MOMENTUM, _MOST_MOMENTUM = 5.0, 20.0
# How strongly to denoise where nobody says, by what sigma is for the denoiser, of the range of the filtered image. On
# phantoms of 60 and 180 views, 1e3 to 1e5 photons, and on the tooth of docs/tomography.md the best was
# 0.6 to 2 % for TV and 0.15 to 0.6 % for BM3D.
_SHARES = {"weight": "1%", "noise": "0.3%"}
# Fewer views leave streaks, which BM3D takes for the image where it is told of less noise: from 30 views of the tooth,
# 384 pixels wide, the held-out residual is 0.0215 with 0.3 %, 0.0149 with 0.5 % and 0.0160 with 0.8 %; a phantom of 128
# pixels has 12.9, 12.6 and 11.3 dB from 10 views, and 15.4, 13.2 and 11.5 dB from 20. Below this part of the pi/2 views
# a pixel that resolve an image, sigma grows with this power of what is lacking, up to so many per cent.
_SPARSE, _POWER, _MOST_SHARE = 0.1, 0.75, 1.0
# How well TV solves its problem: a step of a few views moves the image by less than the usual 1e-3 of it, and where TV
# lets that pass the noise of the batches stays in the image (docs/tomography.md).
_TOL = 2e-4
# Views over fewer degrees than this leave much of the image to the prior, to its bounds and to its support. Fewer views
# than these are few, whatever they cover, and more than those are too many to use all in each step.
_LIMITED, _FEW, _MANY = 150.0, 20, 1000
# Chosen on simulated discs with holes, 90 to 30 degrees, and not on data of the challenge (docs/tomography.md): sigma,
# as a share of the range, and steps of all views, of which momentum with restarts takes 200 to 400 until segments stay.
_SIGMA, _STEPS = "2%", 400


def advise_views(pixels: int, n_views: int, batch: int | None) -> tuple[Advice, ...]:
    """Every view once before any comes again, momentum by the views of a step, and sigma by the image's range.

    Arguments: pixels, of the longer side of a slice; n_views; batch, the views of a step, None for all.
    """
    advice = []
    for kind, usual in _SHARES.items():
        share, why = usual, ""
        lack = _SPARSE * math.pi / 2 * pixels / max(n_views, 1)
        if kind == "noise" and lack > 1:
            share = f"{min(_MOST_SHARE, float(usual[:-1]) * lack**_POWER):.1g}%"
        if share != usual:
            why = f", not {usual}, since {n_views} view{'s' * (n_views > 1)} of {pixels} pixels leave streaks"
        reason = f"sigma is {share} of the image's range{why}; --sigma says another"
        advice.append(Advice("algorithm", "sigma", share, reason, sigma=kind))
    if batch is not None and n_views >= _PASS * batch:
        steps = -(-n_views // batch)
        reason = f"views are many, {batch} of {n_views} a step: each is used once in {steps} steps (--sampler epochs)"
        advice.append(Advice("sampler", "name", "epochs", reason))
        reason = f"TV is solved to {_TOL:g} of the image, as steps of a few views need it (--tol)"
        advice.append(Advice("denoiser", "tol", _TOL, reason, sigma="weight"))
    if batch is not None and batch < n_views:
        advice += advise_momentum(min(_MOST_MOMENTUM, max(_LEAST_MOMENTUM, 2.0 * batch)), batch)
    return tuple(advice)


def lacks_angles(rays: Rays, voxels: Voxels) -> bool:
    """Whether many views cover less than 150 degrees."""
    return len(rays) >= _FEW and outlook(rays, voxels).arc * len(rays) / (len(rays) - 1) < _LIMITED


def advise_limited(n_views: int, usual: Iterable[Advice]) -> tuple[Advice, ...]:
    """Steps with all views until the image has settled, with a fixed sigma.

    Held-out views miss the same angles as the others, so they cannot judge a prior.

    Arguments: n_views; usual, the advice for scans without missing angles.
    """
    if n_views > _MANY:
        return tuple(advice for advice in usual if not (advice.falling and advice.section == "denoiser"))
    why = "angles are missing"
    strength = f"sigma is {_SIGMA} of the image's range, as {why} (--sigma)"
    search = f"no views are held out to search for sigma: {why}, and none sees what the others miss (--search)"
    rest = f"there are {_STEPS} steps, since what no view sees comes to rest slowly (--iterations)"
    return (
        Advice("algorithm", "sigma", _SIGMA, strength, sigma="weight"),
        *(advice for advice in usual if advice.sigma == "noise" and not advice.search),
        Advice("algorithm", "search", "none", search),
        Advice("sampler", "name", "all", f"each step uses all {n_views} views, as {why} (--sampler all)"),
        Advice("momentum", "restart", "gradient", "momentum restarts when it leads away (--restart)"),
        Advice("algorithm", "iterations", _STEPS, rest),
    )
