"""How often a run drew each of its views: they are drawn again, since draws are a function of seed, step and views."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.algorithms.sampling import OnceEach, Sampler
from plugstream.runs.measuring import usable_views
from plugstream.runs.replay import History
from plugstream.settings import Settings

__all__ = ["view_usage"]

# Samplers that need no more than the number of views, and no code but ours.
_KNOWN = ("uniform", "epochs", "shifted", "fixed", "all")
# Steps that are drawn again at most, which takes a second, and views and bars of the chart.
_MOST_STEPS, _MOST_VIEWS, _MOST_BARS = 20_000, 1_000_000, 300


def view_usage(history: History, settings: Settings) -> dict[str, Any] | None:
    """How often views were drawn: {"size", "counts", "unused"}; None where that would take long, or cannot be known.

    A count is the mean over `size` views that follow each other, 1 where there are few; `unused` is how many views were
    never drawn, those that are damaged or held out among them.
    """
    if history.trials:  # whose sides draw the same views twice
        return None
    if history.stages:  # of which the log knows how many views they have, and not which
        return None
    if not history.views or history.step > _MOST_STEPS or settings.sampler.name not in _KNOWN:
        return None
    total = max(record.views for record in history.views)
    if not 0 < total <= _MOST_VIEWS:
        return None
    counts = _count(history, settings, total)
    size = -(-total // _MOST_BARS)
    starts = np.arange(0, total, size)
    means = np.add.reduceat(counts, starts) / np.diff([*starts, total])
    return {"size": size, "counts": [round(float(mean), 3) for mean in means], "unused": int((counts == 0).sum())}


def _count(history: History, settings: Settings, total: int) -> NDArray[np.int64]:
    sampler: Sampler = settings.sampler.build(SimpleNamespace(n_views=history.views[0].views))
    if settings.sampler.views is not None:
        sampler = OnceEach(sampler, settings.sampler.views)  # as a run does whose scan still grows
    counts = np.zeros(total, np.int64)
    for number, record in enumerate(history.views):
        later = history.views[number + 1 :]
        end = min([history.step, *(other.step for other in later[:1])])
        available = usable_views(record, settings.monitor.hold_out)
        for step in range(record.step, end):
            drawn = sampler.draw(step, available).views
            if drawn is None:  # all of them, in this and every step of this kind
                counts[available.numpy()] += end - step
                break
            np.add.at(counts, drawn.numpy(), 1)
    return counts
