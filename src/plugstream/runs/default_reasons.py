"""Why settings that nobody chose or advised are what they are, in a line each."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from plugstream.settings import Settings

if TYPE_CHECKING:
    from plugstream.images.space import ImageSpace

# Why a momentum is the usual one, of all views and of a few a step.
_MOMENTA = {
    "nesterov": "it grows from step to step, which takes the fewest steps",
    "tapered": "it grows at first, and then falls so that the noise of a few views averages out",
}


def default_reasons(
    settings: Settings, image: ImageSpace, n_views: int | None, chosen: Collection[tuple[str, str]], rival: str
) -> list[str]:
    """A line for each of batch, momentum and denoiser that is a default, with the flag that changes it.

    `chosen` has sections and keys of settings that have their reasons already; n_views is None while views arrive;
    `rival` says why TV has no rival.
    """
    reasons = []
    batch = settings.sampler.views
    if batch is not None and ("sampler", "batch") not in chosen:
        reasons.append(_why_batch(batch, n_views))
    has_momentum = "momentum" in settings.algorithm.entry.facts.get("uses", ())
    if has_momentum and settings.momentum.name in _MOMENTA and ("momentum", "name") not in chosen:
        reasons.append(f"momentum {settings.momentum.name}: {_MOMENTA[settings.momentum.name]} (--momentum)")
    if settings.denoiser.name == "tv" and ("denoiser", "name") not in chosen and settings.denoiser.rivals is None:
        why = rival if rival and settings.algorithm.search is not None else _why_tv(image)
        reasons.append(f"denoiser tv: {why} (--denoiser)")
    return reasons


def _why_batch(batch: int, n_views: int | None) -> str:
    views = f"{batch} view{'s' * (batch > 1)}"
    if n_views is None:
        return f"batch {batch}: steps of {views} begin while others still arrive (--batch)"
    if batch >= n_views:
        return f"batch {batch}: the scan is small, so that a step may use all of its {n_views} views (--batch)"
    return f"batch {batch}: steps of {views} take less time than steps of all {n_views} (--batch)"


def _why_tv(image: ImageSpace) -> str:
    if len(image.spatial) == 3:
        return "it needs no training, and smooths along all three axes; bm4d takes longer and is often better"
    if image.is_complex:
        return "it needs no training, and takes complex values as they are"
    return "it needs no training, suits any image, and is quick; bm3d takes longer and is often better"
