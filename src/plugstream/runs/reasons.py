"""Why a run has the batch, momentum and denoiser that it has, where neither a person nor the instrument chose them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugstream.images.space import ImageSpace
    from plugstream.settings import Settings

__all__ = ["default_reasons"]

# Why a momentum is the usual one, of all views and of a few a step.
_MOMENTA = {
    "nesterov": "it grows from step to step, which takes the fewest steps",
    "tapered": "it grows at first, and then falls so that the noise of a few views averages out",
}


def default_reasons(
    settings: Settings, image: ImageSpace, n_views: int | None, chosen: Collection[tuple[str, str]]
) -> list[str]:
    """One line for each of batch, momentum and denoiser that is the usual one, with the flag that changes it.

    The step has a line of its own once L is known ("the step is 1/L, ...").

    Arguments: settings of the run; image, that it looks for; n_views of the scan, None while they still arrive; chosen,
    sections and keys of settings that a person gave or an instrument advised, which have their reasons already.
    """
    found = []
    batch = settings.sampler.views
    if batch is not None and ("sampler", "batch") not in chosen:
        found.append(_batch(batch, n_views))
    has_momentum = "momentum" in settings.algorithm.entry.facts.get("uses", ())
    if has_momentum and settings.momentum.name in _MOMENTA and ("momentum", "name") not in chosen:
        found.append(f"momentum {settings.momentum.name}: {_MOMENTA[settings.momentum.name]} (--momentum)")
    if settings.denoiser.name == "tv" and ("denoiser", "name") not in chosen:
        found.append(f"denoiser tv: {_tv(image)} (--denoiser)")
    return found


def _batch(batch: int, n_views: int | None) -> str:
    """Why a step uses so many views."""
    views = f"{batch} view{'s' * (batch > 1)}"
    if n_views is None:
        return f"batch {batch}: steps of {views} begin while others still arrive (--batch)"
    if batch >= n_views:
        return f"batch {batch}: the scan is small, so that a step may use all of its {n_views} views (--batch)"
    return f"batch {batch}: steps of {views} take less time than steps of all {n_views} (--batch)"


def _tv(image: ImageSpace) -> str:
    """Why an image of this kind is denoised by total variation where nobody says otherwise."""
    if len(image.spatial) == 3:
        return "it needs no training, and smooths a volume along all three axes at once"
    if image.is_complex:
        return "it needs no training, and takes complex values as they are"
    return "it needs no training, suits any image, and is quick; bm3d takes longer and is often better"
