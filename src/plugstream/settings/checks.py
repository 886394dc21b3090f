"""Settings that contradict each other, refused before anything slow is imported and whatever the scan is."""

from __future__ import annotations

from plugstream.base.errors import InputError
from plugstream.base.registry import entries
from plugstream.base.schedules import LONGEST_STEP, parse_step
from plugstream.settings.changes import parse_changes
from plugstream.settings.choices import Choice
from plugstream.settings.sections import Settings
from plugstream.settings.stages import parse_stages

_SINGLE = (1e-17, 1e17)  # a square of these, times what is summed, is within the range of single precision


def check_settings(settings: Settings) -> None:
    """Refuse what can be known to fail whatever the scan is, before there is one; nothing is built for it."""
    a = settings.algorithm
    _check_strength(settings)
    if a.settled is not None and settings.monitor.hold_out is None:
        raise InputError("--settled goes by views that are held out, and there are none; add --hold-out, such as 10")
    check_precision(settings, sigma=a.sigma, sigma_end=a.sigma_end, lam=a.lam)
    bends = "bends" if _says(a, "bends") else "prox"
    if _says(a, "prox") and not (_says(settings.loss, "prox") or _says(settings.loss, bends)):
        raise InputError(
            f"{a.name} needs the prox of the loss, which only {_entries_with('loss', 'prox')} has; use --algorithm "
            f"{_entries_with('algorithm', 'prox', False)}, or --loss {_entries_with('loss', 'prox')}"
        )
    for change in parse_changes(a.changes):
        check_precision(settings, sigma=change.sigma)
        if isinstance(change.step_size, str) and not isinstance(a.step_size, str):
            raise InputError(
                f"the change '{change}' is to a multiple of 1/L, but the run begins with a step that is a number; "
                "write both in one way"
            )
    if a.lam is not None and (weight := a.entry.facts.get("weight")) is not None:
        raise InputError(f"{a.name} weighs its prior by --{weight}; give --sigma, and leave --lam out")
    _check_uses(settings)
    if a.stages is not None:
        parse_stages(a.stages)
    if settings.scan.follow:
        _check_growth(settings)
    elif settings.scan.window is not None:
        raise InputError("--window forgets views of a scan that is followed; add --follow, or leave it out")


def check_precision(settings: Settings, **values: float | None) -> None:
    """Refuse numbers, and bounds of the image, whose squares leave the range of single precision, if that is used."""
    if settings.compute.dtype == "float64":
        return
    d = settings.denoiser
    for name, value in {**values, "low": None if d.low == "auto" else d.low, "high": d.upper}.items():
        if value is not None and value != 0 and not _SINGLE[0] <= abs(value) <= _SINGLE[1]:
            raise InputError(
                f"{name} = {value:g} is beyond what float32 can compute with, {_SINGLE[0]:g} to {_SINGLE[1]:g}; use "
                "--dtype float64, or scale the data"
            )


def _check_uses(settings: Settings) -> None:
    """Refuse a gradient or restarts that the algorithm, unless it is the user's, does nothing with."""
    a = settings.algorithm
    if ":" in a.name:
        return
    uses = a.entry.facts.get("uses", ())
    if a.refined and not _says(a, "refines"):
        raise InputError(
            f"{a.name} cannot refine anything beside the image; use --refine none, or use --algorithm "
            f"{_entries_with('algorithm', 'refines')}"
        )
    if a.refine_steps is not None and not a.refined:
        raise InputError("--refine-steps says how long something is refined, and nothing is; add --refine")
    if a.refine_tolerance is not None and (a.refine_steps is None or a.refine_end is not None):
        raise InputError(
            "--refine-tolerance ends what --refine-steps limits, by how its steps shrink; give --refine-steps, and no "
            "--refine-end, which makes them shorter"
        )
    if a.refine_end is not None and not a.refined:
        raise InputError("--refine-end says how something is refined at last, and nothing is; add --refine")
    if a.refined and not _says(settings.gradient, "plain"):
        raise InputError(
            f"--gradient {settings.gradient.name} remembers gradients of the model as it was; leave it or --refine out"
        )
    for section, flag, plain in (
        ("gradient", f"--gradient {settings.gradient.name}", _says(settings.gradient, "plain")),
        ("momentum", f"--restart {settings.momentum.restart}", settings.momentum.restart == "none"),
    ):
        if section not in uses and not plain:
            able = [e.name for e in entries("algorithm").values() if section in e.facts.get("uses", ())]
            raise InputError(f"{a.name} does nothing with {flag}; leave it out, or use --algorithm {' or '.join(able)}")


def _check_growth(settings: Settings) -> None:
    """Refuse to follow a scan with what needs all of its views from the beginning."""
    a, window, batch = settings.algorithm, settings.scan.window, settings.sampler.views or 1
    if window is not None and window < batch:
        raise InputError(f"a window of {window} views is smaller than a batch of {batch}; use a smaller --batch")
    if a.settled is not None:
        raise InputError("a scan that is followed has other views to judge by as it grows; leave --settled out")
    for choice, kind in ((a, "algorithm"), (settings.sampler, "sampler")):
        if not _says(choice, "grows"):
            able = _entries_with(kind, "grows")
            raise InputError(f"the {kind} {choice.name} cannot take views that are still to come; follow with {able}")
    if "gradient" in a.entry.facts.get("uses", ()) and not _says(settings.gradient, "grows"):
        raise InputError(
            f"{settings.gradient.name} remembers the gradients of all views, so it cannot follow a scan that "
            f"grows; follow with --gradient {_entries_with('gradient', 'grows')}"
        )


def _check_strength(settings: Settings) -> None:
    """Refuse a noise level that is not given, or twice, and steps that are none."""
    a = settings.algorithm
    if a.sigma is None and a.lam is None:
        # `search.check_search` refuses a search for sigma beside these.
        alone = a.sigma_end or a.stages or a.hop or a.changes or a.refined or a.settled or a.distance_limit
        others = "--sigma (for TV and values from 0 to 1, 0.01 to 0.03 is a good start)"
        if settings.scan.follow:
            others = "--like RUN, an earlier run of a scan like this one, whose data chose it, or --sigma or --lam"
        elif alone or settings.denoiser.opening:
            others += " or --lam"
        else:
            others += ", --lam, or --search 250 --iterations 300"
        raise InputError(f"it is not clear how strongly to denoise; use {others}")
    if a.sigma is not None and a.lam is not None:
        raise InputError("both sigma and lam are given; leave one out")
    if a.sigma_end is not None and not a.sigma:
        raise InputError("sigma_end needs a sigma > 0 to start from")
    for name, step in (("step_size", a.step_size), ("step_size_end", a.step_size_end)):
        if isinstance(step, str):
            parse_step(step)
        elif step is not None and not 0 < step <= LONGEST_STEP:
            raise InputError(f"{name} must be more than 0 and finite, not {step:g}; write a number, or 0.5/L")
    if a.step_size_end is not None and _step_kind(a.step_size) != _step_kind(a.step_size_end):
        raise InputError(
            f"step_size {a.step_size} and step_size_end {a.step_size_end} must both be numbers or "
            "multiples of 1/L, or both follow the overlap"
        )


def _step_kind(step: float | str) -> type:
    """What a step is: a number, a multiple of 1/L, or one that follows the overlap."""
    return type(parse_step(step)) if isinstance(step, str) else float


def _says(choice: Choice, fact: str) -> bool:
    """Whether the chosen entry says this of itself."""
    return bool(choice.entry.facts.get(fact, False))


def _entries_with(kind: str, fact: str, value: bool = True) -> str:
    """The entries of a kind that say this of themselves, or that do not, in words."""
    names = [e.name for e in entries(kind).values() if bool(e.facts.get(fact, False)) == value and ":" not in e.name]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)
