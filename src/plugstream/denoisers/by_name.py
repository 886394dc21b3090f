"""A denoiser by its name: the entry of the registry, within bounds, damped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.base.registry import find, refuse_foreign
from plugstream.denoisers.facts import facts_of

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser


class Prior:
    """A denoiser that was built by its name, and is put within bounds, or within others, without being built again.

    Those that keep bounds themselves (TV, say) are built with them, so that of these there is one for each pair.

    Arguments: name, as `plugstream denoisers` lists them; options, the denoiser's own; low, high, first bounds.
    """

    def __init__(self, name: str, options: Mapping[str, Any], low: float = -math.inf, high: float = math.inf) -> None:
        entry = find("denoiser", name, trust=True)
        refuse_foreign("denoiser", name, options)
        _check_bounds(low, high)
        self.bounded = facts_of(entry).bounded
        self._build = partial(entry.make, name, entry.check(dict(options)))
        self._last = (low, high)
        self._inner = self._make(low, high)

    def within(
        self, low: float, high: float, damping: float | None = None, equivariant: str | None = None, seed: int = 0
    ) -> Denoiser:
        """The denoiser within these bounds, which one that cannot keep them is given by clipping, damped if asked.

        Arguments: equivariant, "mean" or "random", as of `Equivariant`, None for neither; seed, of what is drawn.
        """
        from plugstream.denoisers.equivariant import Equivariant
        from plugstream.denoisers.wrap import Clip, Damping

        _check_bounds(low, high)
        if self.bounded and self._last != (low, high):
            self._inner, self._last = self._make(low, high), (low, high)
        denoiser = self._inner
        if not self.bounded and (math.isfinite(low) or math.isfinite(high)):
            denoiser = Clip(denoiser, low, high)
        if equivariant is not None:
            denoiser = Equivariant(denoiser, equivariant, seed)
        return denoiser if damping is None else Damping(denoiser, damping)

    def _make(self, low: float, high: float) -> Denoiser:
        from plugstream.denoisers.wrap import as_denoiser

        return as_denoiser(self._build(**({"low": low, "high": high} if self.bounded else {})))


def make(
    name: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    damping: float | None = None,
    equivariant: str | None = None,
    **options: Any,
) -> Denoiser:
    """A denoiser by its name, within its bounds, damped if asked for: make("tv", low=0.0, tol=1e-4).

    Arguments: name, as `plugstream denoisers` lists them; low, high, bounds of the image: denoisers that cannot keep
    them are given an image clipped to them; damping, theta of (1 - theta) I + theta D; equivariant,
    "mean" or "random", as of `Equivariant`; options, the denoiser's own.
    """
    return Prior(name, options, low, high).within(low, high, damping, equivariant)


def _check_bounds(low: float, high: float) -> None:
    if not low < high:
        raise InputError(f"denoiser.low = {low} must be below denoiser.high = {high}")
