"""What suits tomographic scans whose views lack angles."""

from __future__ import annotations

from collections.abc import Iterable

from plugstream.instruments.declarations import Advice
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_plausible import outlook

__all__ = ["advise_limited", "lacks_angles"]

# Views over fewer degrees than this leave much of the image to the prior, to its bounds and to its support. Fewer views
# than these are few, whatever they cover, and more than those are too many to use all in each step.
_LIMITED, _FEW, _MANY = 150.0, 20, 1000
# Chosen on simulated discs with holes, 90 to 30 degrees, and not on data of the challenge (docs/tomography.md): sigma,
# as a share of the range, and steps of all views, of which momentum with restarts takes 200 to 400 until segments stay.
_SIGMA, _STEPS = "2%", 400


def lacks_angles(rays: Rays, voxels: Voxels) -> bool:
    """Whether there are many views, and yet they cover less than 150 degrees."""
    return len(rays) >= _FEW and outlook(rays, voxels).arc * len(rays) / (len(rays) - 1) < _LIMITED


def advise_limited(n_views: int, usual: Iterable[Advice]) -> tuple[Advice, ...]:
    """Steps of all views until the image has come to rest, with one sigma.

    Views that are held out do not see what the others miss either, and so are no judges of a prior.

    Arguments: n_views; usual, what suits scans that lack no angles.
    """
    if n_views > _MANY:
        return tuple(usual)
    why = "angles are missing"
    strength = f"sigma is {_SIGMA} of the image's range, as {why} (--sigma)"
    search = f"no views are held out to search for sigma: {why}, and none sees what the others miss (--search)"
    rest = f"there are {_STEPS} steps, since what no view sees comes to rest slowly (--iterations)"
    return (
        Advice("algorithm", "sigma", _SIGMA, strength, sigma="weight"),
        *(advice for advice in usual if advice.sigma == "noise"),
        Advice("algorithm", "search", "none", search),
        Advice("sampler", "name", "all", f"each step uses all {n_views} views, as {why} (--sampler all)"),
        Advice("momentum", "restart", "gradient", "momentum is forgotten where it leads away (--restart)"),
        Advice("algorithm", "iterations", _STEPS, rest),
    )
