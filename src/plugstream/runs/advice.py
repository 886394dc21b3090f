"""Settings for one scan: what its instrument advises where nobody says otherwise, with reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plugstream.base.errors import InputError
from plugstream.base.registry import find
from plugstream.base.text import parse_value
from plugstream.denoisers.facts import Facts, facts_of
from plugstream.settings import Draft, Settings, SettingsFile, is_weight, needs_sigma, parse_assignment

if TYPE_CHECKING:  # what needs torch is imported when it is used, so that mistakes are reported at once
    from plugstream.images.space import ImageSpace
    from plugstream.instruments.base import Advice
    from plugstream.scans import Scan

_SIGMA, _SEARCH, _STAGES = ("algorithm", "sigma"), ("algorithm", "search"), ("algorithm", "hop")
_ITERATIONS, _ARRIVE, _HOP_STEPS = ("algorithm", "iterations"), ("algorithm", "arrive"), ("algorithm", "hop_steps")
_REFINED_STEPS, _REFINED_WITHIN = ("algorithm", "refine_steps"), ("algorithm", "refine_tolerance")
_SAMPLER, _BATCH, _STEP = ("sampler", "name"), ("sampler", "batch"), ("algorithm", "step_size")
_FALL, _DENOISER, _RIVALS = ("algorithm", "fall"), ("denoiser", "name"), ("denoiser", "rivals")
# What says how strongly to denoise: where one of them is given, no other is advised.
_STRENGTH = {_SIGMA, ("algorithm", "lam")}
# How many times the usual number of steps there are at most where they end by arrival.
_LONGEST = 5
# Where a search begins, by what sigma is: high, since from a small one some denoisers never let go of the noise again.
_START = {"noise": "10%", "weight": "20%"}
# Where sigma and the step fall together, the algorithm, the step of the first run, and the most runs.
_PROX = {("algorithm", "prox_products"): 24, ("algorithm", "prox_tolerance"): 0.01}
_BY_FALL = {("algorithm", "name"): "inexact-admm", **_PROX, _STEP: "160/L", _SAMPLER: "all"}
_FALLS, _UNUSED = 12, ("sampler", "momentum")
# To which sigma it falls, of images whose first image is as large as the last.
_FALL_END = "8%"
# Where nothing may be given for sigma and the step to fall together by themselves, but for some limits.
_OTHERS = ("algorithm", "momentum", "gradient", "sampler", "loss")
_ALIKE = {_FALL, _ARRIVE, ("algorithm", "time_limit")}
# Settings of all denoisers, which do not say that a certain one is meant.
_COMMON = ("low", "high", "damping", "equivariant", "rivals")
# What white is over the range of the first image, roughly: of scans of pictures from 0 to 1 that is 0.2 to 0.4.
_WHITE = 3
# Why a momentum is the usual one, of all views and of a few a step.
_MOMENTA = {
    "nesterov": "it grows from step to step, which takes the fewest steps",
    "tapered": "it grows at first, and then falls so that the noise of a few views averages out",
}


class Advised(NamedTuple):
    """Settings for a scan, and in words what was added to those that were given, and why."""

    settings: Settings
    reasons: tuple[str, ...]


def advise(scan: Scan, *changes: str, file: Path | str | None = None, trust: bool = False) -> Advised:
    """The settings that `plugstream reconstruct` would use for a scan, and why.

    `plugstream.runs.plan.plan` makes the model, the fidelity and the algorithm of them.

    Arguments: scan, opened; changes, what you choose yourself, each as "section.key=value", such as
    "algorithm.sigma=1%" or "denoiser.name=bm3d"; file of settings, to which nothing is added; trust, whether what that
    names may be run.
    """
    source = None if file is None else SettingsFile(file)
    used = Settings.model_fields.keys() - {"simulate"}
    typed = [parse_assignment(text) for text in changes]
    draft = Draft.of(source, typed, instrument=scan.instrument.name, trust=trust, used=used)
    return advised_settings(draft, scan)


def advised_settings(
    draft: Draft,
    scan: Scan,
    decide: Callable[[Callable[[], float]], float] | None = None,
    *,
    strength: bool = True,
    search: bool = True,
) -> Advised:
    """The settings of a draft for a scan, and in words what was added to them, and why.

    Nothing is added to a file of settings. Where a scan is followed only its first views are there, and only what holds
    whatever comes (`Advice.always`) is added.

    Arguments: draft; scan, opened; decide, which makes the first process's number that of all; strength, whether to say
    how strongly to denoise, and in which stages, which `tune` finds; search, whether a run may search for sigma by
    itself.
    """
    from plugstream.scans.baselines.first_image import image_range

    advisor = _Advisor(draft, scan, decide)

    @cache
    def find_range() -> float:
        size = image_range(scan) if decide is None else decide(lambda: image_range(scan))
        unit = scan.instrument.image.value_unit
        advisor.notes.insert(0, f"the first image ranges over {size:.4g}{' ' + unit if unit else ''}")
        return size

    follow = advisor.typed.scan.follow
    if draft.file is None:
        advisor.ask_instrument(strength=strength)
        if not follow:
            if strength and (search or _SEARCH in advisor.given):
                advisor.search_sigma(find_range)
            advisor.choose_views()
            if strength:
                advisor.end_on_arrival()
        advisor.damp()
    settings = advisor.draft.for_range(None if follow else find_range)
    notes = advisor.notes
    if draft.file is None:
        views = None if follow else scan.n_views
        chosen = advisor.given | advisor.presets.keys()
        notes = notes + default_reasons(settings, scan.instrument.image, views, chosen, advisor.without_rival)
    return Advised(settings, tuple(notes))


class _Advisor:
    """What is added to a draft: `presets`, reasons in `notes`; `typed` is without them, `given` what was chosen."""

    def __init__(self, draft: Draft, scan: Scan, decide: Callable[[Callable[[], float]], float] | None = None) -> None:
        name = ("instrument", "name", scan.instrument.name)  # not known before, where the scan was not there yet
        self.draft = draft if "name" in draft.tables.get("instrument", {}) else draft.add([name])
        self.scan, self.typed, self.given = scan, self.draft.settings, draft.typed | draft.preset
        self.presets: dict[tuple[str, str], Any] = {}
        self.notes: list[str] = []
        self._if_searched: list[Advice] = []
        self._decide = decide
        self.without_rival = ""  # why no rival of TV is tried on a volume
        self._reasons: dict[tuple[str, str], str] = {}
        self._after_search = 0  # how many steps after a search at most, where an instrument says that
        self._sure_of_range = False  # whether the first image is as large as the last

    def add(self, presets: Mapping[tuple[str, str], Any]) -> None:
        """Add presets to those that there are."""
        self.presets |= presets
        self.draft = self.draft.add([(*place, value) for place, value in presets.items()])

    def _forget(self, *places: tuple[str, str]) -> None:
        """Take back the reasons of settings that will be others, or of no use."""
        gone = {self._reasons[place] for place in places if place in self._reasons}
        self.notes = [text for text in self.notes if text not in gone]

    def ask_instrument(self, *, strength: bool) -> None:
        """Take over what the instrument advises, unless a person said otherwise or it would do nothing."""
        meaning = _meaning(self.typed.denoiser.name)
        for advice in self._all_advice():
            place = (advice.section, advice.key)
            by_range = advice.sigma is None or str(advice.value).endswith("%")
            self._sure_of_range |= place == _SIGMA and by_range and not advice.falling
            if (self.typed.scan.follow and not advice.always) or advice.sigma not in (None, meaning):
                continue
            if not self._applies(advice, place, strength=strength):
                continue
            if advice.search:
                self._if_searched.append(advice)
                continue
            self.presets[place] = _value(advice)
            if advice.reason not in self.notes:  # which is that of several settings
                self.notes.append(advice.reason)
            self._reasons[place] = advice.reason
        self.add(self.presets)

    def _all_advice(self) -> tuple[Advice, ...]:
        """What an instrument advises; where it advises another batch than the usual one, its advice for that."""
        instrument, n_views = self.scan.instrument, self.scan.n_views
        columns = self.scan.columns if n_views else {}  # of a scan that is followed there may be none yet
        advice = instrument.advise_scan(columns, n_views, self.typed.sampler.views)
        batches = [one.value for one in advice if (one.section, one.key) == _BATCH]
        if _BATCH not in self.given and batches:
            advice = instrument.advise_scan(columns, n_views, int(batches[0]))
        rival = None if any(one.section == "denoiser" and one.search for one in advice) else self._advise_rival()
        return advice if rival is None else (*advice, rival)

    def _advise_rival(self) -> Advice | None:
        """A rival of the usual denoiser of volumes, None if it has none."""
        if len(self.scan.instrument.image.spatial) != 3:
            return None
        import torch

        from plugstream.runs.rivals import advise_rival

        threads = self.typed.compute.threads or torch.get_num_threads
        count = threads if isinstance(threads, int) else threads() if self._decide is None else self._decide(threads)
        rival, self.without_rival = advise_rival(self.scan.instrument.image, self.typed.compute.device, count)
        return rival

    def _applies(self, advice: Advice, place: tuple[str, str], *, strength: bool) -> bool:
        """Whether a piece of advice is of use, and contradicts nothing that was given."""
        a = self.typed.algorithm
        if advice.section == "momentum":  # unless there is none, or one that the algorithm prefers to any other
            facts = a.entry.facts
            if "momentum" not in facts.get("uses", ()) or "prefers" in facts:
                return False
        if not advice.search and advice.key not in self._options(advice.section):
            return False  # an option that the entry which was chosen does not have
        if place in self.given or (place in _STRENGTH and (self.given & _STRENGTH or not strength)):
            return False
        if not advice.search and place in self.presets:
            return False  # what is advised first counts, and this where that is pointless
        unless = {*advice.unless, _FALL} if advice.falling and place in (_SEARCH, _ITERATIONS) else advice.unless
        if self.given.intersection(unless) or (place == _STAGES and not strength):  # so many runs, however long
            return False
        if place == _REFINED_STEPS and ("algorithm", "refine") in self.given and not a.refined:
            return False  # --refine none: there is nothing to do for so many steps
        # A tolerance is for what is refined within a limit of steps, and at its own pace.
        limited = (a.refine_steps is not None or _REFINED_STEPS in self.presets) and a.refine_end is None
        return place != _REFINED_WITHIN or limited

    def _options(self, section: str) -> set[str]:
        """The options of a section, and of the entry that is advised in it, such as the floor of Poisson's loss."""
        name = self.presets.get((section, "name"))
        options = () if name is None else find(section, name).options.model_fields
        return {*type(getattr(self.typed, section)).model_fields, *options}

    def search_sigma(self, find_range: Callable[[], float]) -> None:
        """Let the run find its sigma by itself, where nobody gave one and `plugstream.runs.search` says that it can.

        Where a person asks for a search it is added in any case, and the plan refuses it with the reason.
        """
        from plugstream.runs.search import check_judges, check_search

        if self.given & _STRENGTH:
            if _SIGMA in self.draft.shares:
                self.add(self._white({}, find_range))
            return
        later = self._if_searched
        advised = {a.value for a in later if a.falling and (a.section, a.key) == _DENOISER}
        if any(section == "denoiser" and key not in _COMMON for section, key in self.given):  # somebody means one
            later = [advice for advice in later if advice.section != "denoiser"]
        d = self.typed.denoiser
        waves = self.draft.settings.loss.entry.facts.get("bends", False)  # whose denoisers compete by a race
        fits = waves if any(a.falling and a.value == "overlap" for a in later) else self.typed.loss.name == "gaussian"
        alike = _ALIKE | {("loss", "name")} if fits else _ALIKE
        others = any(section in _OTHERS or key == "opening" for section, key in self.given - alike)
        # Where another algorithm is meant, or the usual one, nothing falls; and where it does, denoisers are others.
        fallers = [advice for advice in later if advice.falling or advice.section != "denoiser"]
        known = _facts(d.name).falls(d) or d.name in advised or any((a.section, a.key) == _DENOISER for a in fallers)
        usual = others or not known or bool(waves and d.rival_names)
        falls = not usual and (self.typed.algorithm.fall is not None or any((a.section, a.key) == _FALL for a in later))
        later = fallers if falls else [advice for advice in later if not advice.falling]
        theirs = {(advice.section, advice.key): _value(advice) for advice in later}
        added = self._search_presets(theirs)
        if added is None:
            return
        both = added | theirs
        try:
            tried = self.draft.add([(*place, value) for place, value in both.items()]).settings
            check_search(tried)
            check_judges(tried, self.scan.n_views, self.scan.instrument.data_shape)
        except InputError:
            if not self.given & {_SEARCH, _RIVALS, _FALL}:
                return
        else:
            begin, steps = both.get(_SIGMA, self.presets.get(_SIGMA)), both.get(_SEARCH, self.typed.algorithm.search)
            text = f"no sigma is given, so at most the first {steps} steps search for it, starting at {begin}"
            self.notes.append(f"{text} (--sigma, or --search none)")
            if not added:  # a person said everything
                return
        self._after_search = int(theirs[_ITERATIONS]) - int(theirs[_SEARCH]) if _ITERATIONS in theirs else 0
        # Sigma is now where a search begins; and where it falls, each step uses all views, without momentum.
        fall = theirs.get(_FALL, self.typed.algorithm.fall)
        gone = ("denoiser",) * (_DENOISER in theirs) + _UNUSED * (fall is not None)
        self._forget(_SIGMA, *(place for place in self._reasons if place[0] in gone))
        self.add(both | self._white(theirs, find_range))
        self.notes += dict.fromkeys(advice.reason for advice in later)

    def _search_presets(self, later: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any] | None:
        """What makes a run search for sigma, None for no search; `later` is what is advised to runs that search."""
        from plugstream.runs.rivals import heat_share, heat_steps

        a, chosen, advised = self.typed.algorithm, _SEARCH in self.given, self.presets
        rivals = str(later.get(_RIVALS) or self.typed.denoiser.rivals or "")
        if a.fall is not None or _FALL in later:
            return self._fall_presets(a.fall or later[_FALL], 1 + len(rivals.split(",")) * bool(rivals))
        unused = not chosen and not rivals and not needs_sigma(self.typed.denoiser.name)
        if (chosen and a.search is None) or _SEARCH in advised or unused:
            return None
        if not chosen and _SIGMA in advised and _ITERATIONS in self.given:
            return None  # whoever gives the number of steps means steps with one sigma, where one is advised
        added: dict[tuple[str, str], Any] = {}
        if _SIGMA not in advised:
            added[_SIGMA] = _START[_meaning(later.get(_DENOISER, self.typed.denoiser.name))]
        steps, total = a.search, a.iterations
        if _ITERATIONS not in self.given:
            usual = int(advised.get(_ITERATIONS, total))
            most = usual * 3 if _SIGMA in advised else usual * 12 // 5
            added[_ITERATIONS] = total = most if steps is None else steps * 6 // 5
            if steps is None and rivals:
                own = str(later.get(_DENOISER, self.typed.denoiser.name))
                steps = heat_steps(most * 5 // 6, heat_share(own, rivals.split(","))) + most * 5 // 6
                added |= {_ITERATIONS: steps + most // 6, _SEARCH: steps}
        if steps is None:
            added[_SEARCH] = total * 5 // 6 if _SIGMA in advised else total * 5 // 6 // 20 * 20
        return added

    def _fall_presets(self, steps: int, denoisers: int) -> dict[tuple[str, str], Any]:
        """What makes a run search by runs of so many steps, in which sigma and the step fall together."""
        sigma = f"{self._growth() * float(_FALL_END[:-1]):g}%"
        search = _FALLS * steps * denoisers
        added = {**_BY_FALL, _SIGMA: sigma, _FALL: steps, _SEARCH: search, _ITERATIONS: search + 5 * steps}
        return {place: value for place, value in added.items() if place not in self.given}

    def _white(self, later: dict[tuple[str, str], Any], find_range: Callable[[], float]) -> dict[tuple[str, str], Any]:
        """How large the values of images are, for a trained denoiser, as a power of ten.

        TNRD chooses among its models by it, so that a wrong one costs decibels: where the range is known, it is that.
        """
        place = ("denoiser", "white")
        name = later.get(_DENOISER, self.typed.denoiser.name)
        if place in self.given or ":" in name or "white" not in find("denoiser", name).options.model_fields:
            return {}
        white = self._growth() * find_range()
        exact = self._sure_of_range and name == "tnrd"
        white = float(f"{white:.2g}") if exact else 10.0 ** round(math.log10(white))
        if name == self.typed.denoiser.name and white != 1:
            self.notes.append(f"white is {white:g} for {name}, which was trained on images from 0 to 1 (--white)")
        return {place: white}

    def _growth(self) -> float:
        """What white is over the range of the first image: 1 for instruments that advise a sigma by it."""
        return 1.0 if self._sure_of_range else _WHITE

    def damp(self) -> None:
        """Damp a network in steps of one sigma, which diverge with some."""
        settings, place = self.draft.settings, ("denoiser", "damping")
        theta = _facts(settings.denoiser.name).damping(settings.denoiser)
        if theta is not None and place not in self.given and settings.algorithm.fall is None:
            why = "without which steps of one sigma can diverge (--damping)"
            self.notes.append(f"{settings.denoiser.name} is damped by {theta:g}, {why}")
            self.add({place: theta})

    def choose_views(self) -> None:
        """Say how many views a step uses, and which, where nobody does.

        Where the usual batch is more than there are, a step uses all. Every view comes once before any comes again: no
        scan of benchmarks/momenta.py was better with independent draws.
        """
        from plugstream.runs.search import count_judges

        settings, n_views = self.draft.settings, self.scan.n_views
        batch = settings.sampler.views
        out = count_judges(settings, n_views)
        if settings.algorithm.search is None and settings.monitor.hold_out is not None:
            out = n_views // settings.monitor.hold_out
        most = n_views - out
        if _BATCH not in self.given and batch is not None and 0 < most < batch:
            if _SAMPLER in self.given or any(section == "sampler" for section, _ in self.presets):
                self.notes.append(f"there are {n_views} views, of which a step uses {most} (--batch)")
                self.add({_BATCH: most})
                batch = most
            else:
                few = f"{most} view{'s' * (most > 1)}"
                reason = f"fewer than a usual batch of {batch}, so that each uses all (--sampler all)"
                self.notes.append(f"steps have {few}, {reason}")
                self.add({_SAMPLER: "all"})
        if _SAMPLER in self.given or _SAMPLER in self.presets:
            return
        if batch is not None and batch < n_views:
            self.notes.append(
                "every view is used once before any is repeated, which makes batches less noisy (--sampler epochs)"
            )
            self.add({_SAMPLER: "epochs"})

    def end_on_arrival(self) -> None:
        """End the run when its image has arrived, where nobody says how many steps there are.

        Their number is then a limit: that of a search, and five times the usual number. It stays where changes, such as
        a sigma that falls, are spread over all steps.
        """
        from plugstream.solver.verdict import ARRIVED

        a, advised = self.typed.algorithm, self.presets
        fixed = a.sigma_end is not None or a.step_size_end is not None or a.stages is not None or a.changes is not None
        refused = _ARRIVE in self.given and a.arrive is None
        if _ITERATIONS in self.given or refused or a.time_limit is not None or fixed:
            return
        if _STAGES in advised and (a.hop_steps is None and _HOP_STEPS not in advised):
            return  # whose stages are parts of all steps
        search = advised.get(_SEARCH, a.search)
        searched = search if isinstance(search, int) else 0  # and not "none"
        usual = a.iterations if searched else int(advised.get(_ITERATIONS, a.iterations))
        limit = searched + (self._after_search or _LONGEST * usual)
        self._forget(_ITERATIONS)
        self.notes.append(
            f"the run ends when the image has arrived, after at most {limit} steps (--iterations for a fixed number)"
        )
        self.add({_ITERATIONS: limit, _ARRIVE: a.arrive or ARRIVED})


def _facts(denoiser: str) -> Facts:
    """What is known of a denoiser."""
    return facts_of(find("denoiser", denoiser))


def _meaning(denoiser: str) -> str:
    """What sigma is to a denoiser, as advice has it."""
    return "weight" if is_weight(denoiser) else "noise"


def _value(advice: Advice) -> Any:
    return parse_value(advice.value) if isinstance(advice.value, str) else advice.value


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
