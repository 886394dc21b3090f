"""Settings for one scan: what its instrument advises where nobody says otherwise, and shares of its image's range."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from plugstream.cli.common import assignments_of, settings_of
from plugstream.cli.reasons import default_reasons

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
# How long what is not known of the instrument is refined, and when that ends before.
_REFINED_STEPS, _REFINED_WITHIN = ("algorithm", "refine_steps"), ("algorithm", "refine_tolerance")
# Where a search for sigma begins, by what the denoiser's sigma is: high, since from too small a sigma some denoisers
# never let go of the noise again.
_START = {"noise": "10%", "weight": "20%"}
# Between which a search begins, of images from 0 to 1; of others, shares of their range.
_PLAIN = (5e-4, 0.1)


def sigma_limits(scan: Scan, low: float | None, high: float | None, denoiser: str) -> tuple[float, float]:
    """From which sigma to which a search goes: as it was asked for, else by the image's range where that is its unit.

    An instrument whose advice is a sigma by the image's range has images of any size; of others values are about 1.
    """
    from plugstream.first_image import image_range
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
    from plugstream.registry import find

    names = [value for place, key, value in presets if (place, key) == (section, "name")]
    return {
        *type(getattr(settings, section)).model_fields,
        *(key for name in names for key in find(section, name).options.model_fields),
    }


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
    from plugstream.first_image import image_range
    from plugstream.settings import is_weight, parse_value

    notes: list[str] = []

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
            notes.append(advice.reason)
            begin = advice.reason if place == _SIGMA else begin
    search = search or ("algorithm", "search") in given
    if parsed.settings is None and strength and search and not given & _STRENGTH and not first.scan.follow:
        added = _search(parsed, scan, first, given, presets, meaning, notes)
        presets += added
        if added:
            notes = [text for text in notes if text != begin]  # which is where the search begins, and no more
            presets += [preset for _, preset in later]
            notes += dict.fromkeys(advice.reason for advice, _ in later)
    if parsed.settings is None and not first.scan.follow:
        presets += _fit_batch(settings_of(parsed, presets, name, lambda: 1.0), scan.n_views, given, presets, notes)
    settings = settings_of(parsed, presets, name, None if first.scan.follow else find_range)
    if parsed.settings is None:
        views = None if first.scan.follow else scan.n_views
        chosen = given | {(section, key) for section, key, _ in presets}
        notes += default_reasons(settings, scan.instrument.image, views, chosen)
    return settings, tuple(notes)


def _search(
    parsed: argparse.Namespace,
    scan: Scan,
    settings: Settings,
    given: set[tuple[str, str]],
    presets: list[tuple[str, str, Any]],
    meaning: str,
    notes: list[str],
) -> list[tuple[str, str, Any]]:
    """What makes a run find its sigma by itself, where nobody gave one and it can; else nothing.

    Whether it can is for `plugstream.runs.search` to say: what is added here is tried there. Where a person asks for a
    search it is added all the same, and the plan refuses it with the reason.

    Arguments: parsed; settings, without what is advised; given, what a person said; presets, what is advised; meaning
    of the denoiser's sigma; notes, to which the reasons are added.
    """
    from plugstream.errors import InputError
    from plugstream.runs.search import check_judges, check_search

    advised = {(section, key): value for section, key, value in presets}
    a, asked = settings.algorithm, ("algorithm", "search") in given
    if (asked and a.search is None) or ("algorithm", "search") in advised:  # none is wanted
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
    if steps is None:
        steps = total * 5 // 6 if _SIGMA in advised else total * 5 // 6 // 20 * 20
        added.append(("algorithm", "search", steps))
    try:
        tried = settings_of(parsed, [*presets, *added], scan.instrument.name, lambda: 1.0)
        check_search(tried)
        check_judges(tried, scan.n_views, scan.instrument.data_shape)
    except InputError:
        return added if asked else []
    rest = "(--sigma, or --search none)"
    notes.append(f"no sigma is given, so that {steps} of {total} steps search for it, from {begin} on {rest}")
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
