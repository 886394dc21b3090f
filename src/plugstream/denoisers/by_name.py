"""A denoiser by its name: the entry of the registry, within bounds, damped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from plugstream.denoisers.facts import facts_of
from plugstream.errors import InputError
from plugstream.registry import find, refuse_foreign

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser

__all__ = ["make"]


def make(
    name: str, *, low: float = -math.inf, high: float = math.inf, damping: float | None = None, **options: Any
) -> Denoiser:
    """A denoiser by its name, within its bounds, damped if asked for: make("tv", low=0.0, tol=1e-4).

    Arguments: name, as `plugstream denoisers` lists them; low, high, bounds of the image: denoisers that cannot keep
    them are given an image clipped to them; damping, theta of (1 - theta) I + theta D; options, the denoiser's own.
    """
    entry = find("denoiser", name, trust=True)
    refuse_foreign("denoiser", name, options)
    if not low < high:
        raise InputError(f"denoiser.low = {low} must be below denoiser.high = {high}")
    from plugstream.denoisers.wrap import Clipped, Damped, as_denoiser

    bounded = facts_of(entry).bounded
    bounds = {"low": low, "high": high} if bounded else {}
    denoiser = as_denoiser(entry.make(name, entry.check(options), **bounds))
    if not bounded and (math.isfinite(low) or math.isfinite(high)):
        denoiser = Clipped(denoiser, low, high)
    return denoiser if damping is None else Damped(denoiser, damping)
