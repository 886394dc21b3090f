"""Settings for one scan: what its instrument advises where nobody says otherwise, and shares of its image's range."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from plugstream.cli.common import assignments_of, settings_of
from plugstream.runs.reasons import default_reasons

if TYPE_CHECKING:
    from plugstream.instruments.base import Advice, Columns
    from plugstream.scans import Scan
    from plugstream.settings import Settings

__all__ = ["advised_settings", "sigma_limits"]

# What says how strongly to denoise: where one of them is given, no other is advised.
_SIGMA = ("algorithm", "sigma")
_STRENGTH = {_SIGMA, ("algorithm", "lam")}
# What makes stages of a run, which a search cannot have.
_STAGES = ("algorithm", "hop")
# How many steps there are, and what ends them earlier; how many times the usual number there are at most then.
_ITERATIONS, _ARRIVE, _HOP_STEPS = ("algorithm", "iterations"), ("algorithm", "arrive"), ("algorithm", "hop_steps")
_LONGEST = 5
# How long what is not known of the instrument is refined, and when that ends before.
_REFINED_STEPS, _REFINED_WITHIN = ("algorithm", "refine_steps"), ("algorithm", "refine_tolerance")
# Where a search for sigma begins, by what the denoiser's sigma is: high, since from too small a sigma some denoisers
# never let go of the noise again.
_START = {"noise": "10%", "weight": "20%"}
# What all denoisers can be given, so that it says nothing of which one is meant.
_COMMON = ("low", "high", "damping", "equivariant", "rivals")
# What white is over the range of the first image, roughly: of scans of pictures from 0 to 1 that is 0.2 to 0.4.
_WHITE = 3
# Between which a search begins, of images from 0 to 1; of others, shares of their range.
_PLAIN = (5e-4, 0.1)


def sigma_limits(scan: Scan, low: float | None, high: float | None, denoiser: str) -> tuple[float, float]:
    """From which sigma to which a search goes: as it was asked for, else by the image's range where that is its unit.

    An instrument whose advice is a sigma by the image's range has images of any size; of others values are about 1.
    """
    from plugstream.scans.baselines.first_image import image_range
    from plugstream.settings import share_of_range

    advised = scan.instrument.advise_scan(_columns(scan), scan.n_views, None)
    by_range = any((a.section, a.key) == ("algorithm", "sigma") and str(a.value).endswith("%") for a in advised)
    if low is not None and high is not None:
        return low, high
    unit = share_of_range(1.0, image_range(scan), denoiser) if by_range else 1.0
    usual = (_PLAIN[0] * unit, _PLAIN[1] * unit)
    return usual[0] if low is None else low, usual[1] if high is None else high


def _advice(scan: Scan, batch: int | None, fixed: bool) -> tuple[Advice, ...]:
    """What an instrument advises; of another batch than the usual one, for that batch, unless it is `fixed`."""
    found = scan.instrument.advise_scan(_columns(scan), scan.n_views, batch)
    other = [one.value for one in found if (one.section, one.key) == ("sampler", "batch")]
    if fixed or not other:
        return found
    return scan.instrument.advise_scan(_columns(scan), scan.n_views, int(other[0]))


def _options(settings: Settings, section: str, presets: list[tuple[str, str, Any]]) -> set[str]:
    """The options of a section, and of the entry that is advised in it, such as the floor of Poisson's loss."""
    from plugstream.base.registry import find

    names = [value for place, key, value in presets if (place, key) == (section, "name")]
    return {
        *type(getattr(settings, section)).model_fields,
        *(key for name in names for key in find(section, name).options.model_fields),
    }


def _takes_momentum(settings: Settings) -> bool:
    """Whether the algorithm has a momentum, and none that it prefers to any other."""
    facts = settings.algorithm.entry.facts
    return "momentum" in facts.get("uses", ()) and "prefers" not in facts


def _limits_refinement(settings: Settings, given: set[tuple[str, str]], presets: list[tuple[str, str, Any]]) -> bool:
    """Whether something is refined within a limit of steps, and at its own pace: by a person's word, or by advice."""
    advised = {(section, key) for section, key, _ in presets}
    a = settings.algorithm
    return (a.refine_steps is not None or _REFINED_STEPS in advised) and a.refine_end is None


def _columns(scan: Scan) -> Columns:
    """Of the views that there are, which of a scan that is followed may be none yet."""
    return scan.columns if scan.n_views else {}


def advised_settings(
    parsed: argparse.Namespace,
    scan: Scan,
    decide: Callable[[Callable[[], float]], float] | None = None,
    *,
    strength: bool = True,
    search: bool = True,
) -> tuple[Settings, tuple[str, ...]]:
    """The settings that the arguments say for a scan, and in words what was added to them, and why.

    A file of settings says everything, so that nothing is added to it. A scan that is followed has only its first
    views: of it, what holds whatever comes (`Advice.always`).

    Arguments: parsed; scan, opened; decide, of several processes what makes the first one's number that of all;
    strength, whether to say how strongly to denoise, too, which `tune` finds; it has no stages either. search, whether
    a run may search for sigma where nobody says so.
    """
    from plugstream.base.values import parse_value
    from plugstream.scans.baselines.first_image import image_range
    from plugstream.settings import is_weight

    notes: list[str] = []
    usual_steps: list[str] = []  # reasons for a number of steps, which is a limit where they end by arrival

    @cache
    def find_range() -> float:
        found = image_range(scan) if decide is None else decide(lambda: image_range(scan))
        unit = scan.instrument.image.value_unit
        notes.insert(0, f"the first image ranges over {found:.4g}{' ' + unit if unit else ''}")
        return found

    name = scan.instrument.name
    typed = assignments_of(parsed)
    given = {(section, key) for section, key, _ in typed}
    # A range of 1 for now, which changes nothing that advice depends on; sigma in per cent asks for the image later.
    first = settings_of(parsed, instrument=name, image_range=lambda: 1.0)
    meaning = "weight" if is_weight(first.denoiser.name) else "noise"
    presets: list[tuple[str, str, Any]] = []
    later: list[tuple[Advice, tuple[str, str, Any]]] = []
    begin = ""
    if parsed.settings is None:
        for advice in _advice(scan, first.sampler.views, ("sampler", "batch") in given):
            if (first.scan.follow and not advice.always) or advice.sigma not in (None, meaning):
                continue
            place = (advice.section, advice.key)
            if advice.section == "momentum" and not _takes_momentum(first):
                continue
            if advice.key not in _options(first, advice.section, presets) and not advice.search:
                continue  # an option that the entry which was chosen does not have
            if place in given or (place in _STRENGTH and (given & _STRENGTH or not strength)):
                continue
            if not advice.search and any((section, key) == place for section, key, _ in presets):
                continue  # what is advised first counts, and this where that is pointless
            if given.intersection(advice.unless) or (place == _STAGES and not strength):
                continue
            if place == _REFINED_STEPS and ("algorithm", "refine") in given and not first.algorithm.refined:
                continue  # --refine none: there is nothing to do for so many steps
            if place == _REFINED_WITHIN and not _limits_refinement(first, given, presets):
                continue
            value = parse_value(advice.value) if isinstance(advice.value, str) else advice.value
            if advice.search:
                later.append((advice, (*place, value)))
                continue
            presets.append((*place, value))
            if advice.reason not in notes:  # which is that of several settings
                notes.append(advice.reason)
            usual_steps += [advice.reason] if place == _ITERATIONS else []
            begin = advice.reason if place == _SIGMA else begin
    search = search or ("algorithm", "search") in given
    if parsed.settings is None and strength and search and not given & _STRENGTH and not first.scan.follow:
        if any(section == "denoiser" and key not in _COMMON for section, key in given):  # somebody means one
            later = [one for one in later if one[0].section != "denoiser"]
        added = _search(parsed, scan, first, given, presets, [preset for _, preset in later], notes)
        if added:
            notes = [text for text in notes if text != begin]  # which is where the search begins, and no more
            presets += added + [preset for _, preset in later] + _white(later, find_range)
            notes += dict.fromkeys(advice.reason for advice, _ in later)
    if parsed.settings is None and not first.scan.follow:
        presets += _fit_batch(settings_of(parsed, presets, name, lambda: 1.0), scan.n_views, given, presets, notes)
        presets += _take_turns(settings_of(parsed, presets, name, lambda: 1.0), scan.n_views, given, presets, notes)
    if parsed.settings is None and strength and not first.scan.follow:
        presets = _until_arrived(first, given, presets, notes)
        notes = [text for text in notes if text not in usual_steps or _ARRIVE not in {one[:2] for one in presets}]
    settings = settings_of(parsed, presets, name, None if first.scan.follow else find_range)
    if parsed.settings is None:
        views = None if first.scan.follow else scan.n_views
        chosen = given | {(section, key) for section, key, _ in presets}
        notes += default_reasons(settings, scan.instrument.image, views, chosen)
    return settings, tuple(notes)


def _until_arrived(
    settings: Settings, given: set[tuple[str, str]], presets: list[tuple[str, str, Any]], notes: list[str]
) -> list[tuple[str, str, Any]]:
    """The presets with what ends a run when its image has arrived, where nobody says how many steps there are.

    The number of steps is then a limit: that of a search, and five times the usual number. Changes that are spread over
    all steps, such as a sigma that falls, need their number.

    Arguments: settings, without what is advised; given, what a person said; presets; notes, to which the reason is
    added.
    """
    from plugstream.solver.verdict import ARRIVED

    a = settings.algorithm
    fixed = a.sigma_end is not None or a.step_size_end is not None or a.stages is not None or a.changes is not None
    refused = _ARRIVE in given and a.arrive is None
    if _ITERATIONS in given or refused or a.time_limit is not None or fixed:
        return presets
    advised = {(section, key): value for section, key, value in presets}
    if _STAGES in advised and (a.hop_steps is None and _HOP_STEPS not in advised):
        return presets  # whose stages are parts of all steps
    asked = advised.get(("algorithm", "search"), a.search)
    searched = asked if isinstance(asked, int) else 0  # and not "none"
    usual = a.iterations if searched else int(advised.get(_ITERATIONS, a.iterations))
    limit = searched + _LONGEST * usual
    notes.append(f"steps end when the image has arrived, after {limit} at most (--iterations for a fixed number)")
    kept = [preset for preset in presets if preset[:2] != _ITERATIONS]
    return [*kept, (*_ITERATIONS, limit), (*_ARRIVE, a.arrive or ARRIVED)]


def _white(
    later: list[tuple[Advice, tuple[str, str, Any]]], find_range: Callable[[], float]
) -> list[tuple[str, str, Any]]:
    """What tells a trained denoiser that is advised how large the values of images are, as a power of ten."""
    from plugstream.base.registry import find

    names = [value for advice, (_, key, value) in later if (advice.section, key) == ("denoiser", "name")]
    if not any("white" in find("denoiser", name).options.model_fields for name in names):
        return []
    return [("denoiser", "white", 10.0 ** round(math.log10(_WHITE * find_range())))]


def _search(
    parsed: argparse.Namespace,
    scan: Scan,
    settings: Settings,
    given: set[tuple[str, str]],
    presets: list[tuple[str, str, Any]],
    later: list[tuple[str, str, Any]],
    notes: list[str],
) -> list[tuple[str, str, Any]]:
    """What makes a run find its sigma by itself, where nobody gave one and it can; else nothing.

    Whether it can is for `plugstream.runs.search` to say: what is added here is tried there. Where a person asks for a
    search it is added all the same, and the plan refuses it with the reason.

    Arguments: parsed; settings, without what is advised; given, what a person said; presets, what is advised, and
    later, what is for runs that search; notes, to which the reasons are added.
    """
    from plugstream.base.errors import InputError
    from plugstream.runs.search import check_judges, check_search, heat_steps
    from plugstream.settings import is_weight, needs_sigma

    advised = {(section, key): value for section, key, value in presets}
    chosen = {key: value for section, key, value in later if section == "denoiser"}
    meaning = "weight" if is_weight(chosen.get("name", settings.denoiser.name)) else "noise"
    rivals = str(chosen.get("rivals") or settings.denoiser.rivals or "")
    a, asked = settings.algorithm, ("algorithm", "search") in given
    unused = not asked and not rivals and not needs_sigma(settings.denoiser.name)
    if (asked and a.search is None) or ("algorithm", "search") in advised or unused:  # none is wanted
        return []
    if not asked and _SIGMA in advised and ("algorithm", "iterations") in given:
        # Who says how many steps there are means steps with one sigma, where there is one to begin with.
        return []
    added: list[tuple[str, str, Any]] = []
    begin = advised.get(_SIGMA, _START[meaning])
    if _SIGMA not in advised:
        added.append((*_SIGMA, begin))
    steps, total = a.search, a.iterations
    if ("algorithm", "iterations") not in given:
        usual = int(advised.get(("algorithm", "iterations"), total))
        most = usual * 3 if _SIGMA in advised else usual * 12 // 5
        total = most if steps is None else steps * 6 // 5
        added.append(("algorithm", "iterations", total))
        if steps is None and rivals:
            steps = heat_steps(most * 5 // 6, rivals.count(",") + 1) + most * 5 // 6
            added[-1] = ("algorithm", "iterations", total := steps + most // 6)
            added.append(("algorithm", "search", steps))
    if steps is None:
        steps = total * 5 // 6 if _SIGMA in advised else total * 5 // 6 // 20 * 20
        added.append(("algorithm", "search", steps))
    try:
        tried = settings_of(parsed, [*presets, *added, *later], scan.instrument.name, lambda: 1.0)
        check_search(tried)
        check_judges(tried, scan.n_views, scan.instrument.data_shape)
    except InputError:
        return added if asked or ("denoiser", "rivals") in given else []
    rest = "(--sigma, or --search none)"
    notes.append(f"no sigma is given, so that the first {steps} steps search for it, from {begin} on {rest}")
    return added


def _fit_batch(
    settings: Settings,
    n_views: int,
    given: set[tuple[str, str]],
    presets: list[tuple[str, str, Any]],
    notes: list[str],
) -> list[tuple[str, str, Any]]:
    """What makes a step use no more views than there are, where nobody says how many; else nothing.

    All of them, and of a sampler that is asked for or advised as many as steps have.

    Arguments: settings, with the presets; given, what a person said; presets; notes, to which the reason is added.
    """
    from plugstream.runs.search import count_judges

    batch = settings.sampler.views
    out = count_judges(settings, n_views)
    if settings.algorithm.search is None and settings.monitor.hold_out is not None:
        out = n_views // settings.monitor.hold_out
    most = n_views - out
    if ("sampler", "batch") in given or batch is None or not 0 < most < batch:
        return []
    if ("sampler", "name") in given or any(section == "sampler" for section, _, _ in presets):
        notes.append(f"there are {n_views} views, of which a step uses {most} (--batch)")
        return [("sampler", "batch", most)]
    few = f"{most} view{'s' * (most > 1)}"
    notes.append(f"steps have {few}, fewer than a usual batch of {batch}, so that each uses all (--sampler all)")
    return [("sampler", "name", "all")]


def _take_turns(
    settings: Settings,
    n_views: int,
    given: set[tuple[str, str]],
    presets: list[tuple[str, str, Any]],
    notes: list[str],
) -> list[tuple[str, str, Any]]:
    """What makes every view come once before any comes again, where steps have a few and nobody says which.

    No scan of benchmarks/momenta.py was better by independent draws, of which the theory of --watch-theory is.

    Arguments: as of `_fit_batch`.
    """
    place, batch = ("sampler", "name"), settings.sampler.views
    if place in given or settings.monitor.watch_theory or any((section, key) == place for section, key, _ in presets):
        return []
    if batch is None or batch >= n_views:
        return []
    notes.append("every view is used once before any again, which takes noise out of batches (--sampler epochs)")
    return [(*place, "epochs")]
