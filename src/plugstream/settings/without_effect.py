"""Settings that somebody typed and that would do nothing are refused, with what would have use for them."""

from __future__ import annotations

from collections.abc import Collection

from plugstream.base.errors import InputError
from plugstream.base.registry import entries
from plugstream.settings.sections import Settings

__all__ = ["refuse_momentum", "refuse_seed"]


def refuse_momentum(settings: Settings, typed: Collection[tuple[str, str]]) -> None:
    """Refuse a momentum that somebody typed and that the algorithm does nothing with.

    One of a file is accepted: a run's settings.toml had every setting once, also those that nobody chose, and runs that
    were begun with such a file must go on.
    """
    a, momentum = settings.algorithm, settings.momentum
    if ":" in a.name or "momentum" in a.entry.facts.get("uses", ()) or momentum.entry.facts.get("plain", False):
        return
    asked = [key for section, key in typed if section == "momentum" and key != "restart"]  # which has words of its own
    if asked:
        flag = "momentum" if "name" in asked else asked[0].replace("_", "-")
        able = [e.name for e in entries("algorithm").values() if "momentum" in e.facts.get("uses", ())]
        raise InputError(
            f"{a.name} has no momentum, so that --{flag} would do nothing; leave it out, or use --algorithm "
            f"{', '.join(able[:-1])} or {able[-1]}"
        )


def refuse_seed(settings: Settings, typed: Collection[tuple[str, str]]) -> None:
    """Refuse a seed that somebody typed where neither the sampler nor anything else that makes the image draws."""
    sampler, used = settings.sampler.entry, settings.algorithm.entry.facts.get("uses", ())
    gradient = settings.gradient.entry if "gradient" in used else None
    drawing = (
        sampler.facts.get("seeded", False) or "seed" in sampler.option_names,
        settings.algorithm.entry.facts.get("seeded", False) or ":" in settings.algorithm.name,
        gradient is not None and (gradient.facts.get("seeded", False) or ":" in gradient.name),
        settings.denoiser.equivariant == "random",
        settings.algorithm.search is not None or settings.monitor.watch_theory,
        settings.run.uncertainty is not None,
    )
    if ("sampler", "seed") in typed and not any(drawing):
        able = [entry.name for entry in entries("sampler").values() if entry.facts.get("seeded", False)]
        raise InputError(
            f"--sampler {settings.sampler.name} draws nothing, so that --seed would do nothing; leave it out, or use "
            f"--sampler {', '.join(able[:-1])} or {able[-1]}"
        )
