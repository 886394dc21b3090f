"""The search of a run for its sigma: which views it holds out, what its rounds say, and how the run goes on after it.

A run with the setting `algorithm.search` begins as a race of two sigmas (`plugstream.algorithms.race`), judged by views
that no step uses, or, where views are few, by a tenth of the data of each. With `denoiser.rivals` the denoiser is
chosen, too (`heat`, `falling_heat`); with `algorithm.fall` there are short runs in which sigma and the step fall
together, and the step is found (`falling`). Then the run goes on from its image, with what was found and with all data.
The rounds are in the log for a run that is resumed; at the end the settings have the result, to be repeated without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from plugstream.algorithms import DenoiserRace, FallingHeat, FallingSearch, HeatState, RaceState, SigmaRace
from plugstream.algorithms.falling_waves import FallingWaveSearch
from plugstream.algorithms.race import LEAST_STEPS
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.losses import as_loss
from plugstream.instruments.base import Advice, Columns, Instrument
from plugstream.models.base import Model
from plugstream.models.part import SHARE, PartOfData
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Chosen, FoundStep, Note, Trial, Views
from plugstream.runs.measuring import held_out_views, usable_views
from plugstream.runs.parts import find_lipschitz
from plugstream.runs.rivals import are_comparable, heat_margin, heat_share, heat_steps, make_entrants, race_steps
from plugstream.scans.scan import Scan
from plugstream.settings import Settings, is_weight, share_of_range
from plugstream.solver.result import Progress, Turn

# From which sigma to which is looked for, of images from 0 to 1; of others, shares of their range.
_LIMITS = (5e-4, 0.1)
# Every so many-th view is held out, or fewer: of a long scan twice as many as a step has judge well enough.
_EVERY, _BATCHES = 10, 2
# Of fewer views than this a part of each one's data judges: docs/sigma-search.md has what was measured.
_MANY = 25
# So many data judge at least.
_LEAST = 10


class SearchByBlocks(InputError):
    """A volume that goes by blocks of slices, which must all have one sigma, cannot search for it."""


def judges_by_data(settings: Settings, n_views: int) -> bool:
    """Whether a part of each view's data judges sigma, since views are few and nobody holds out whole ones."""
    return settings.algorithm.search is not None and settings.monitor.hold_out is None and n_views < _MANY


def search_interval(settings: Settings, n_views: int) -> int | None:
    """Every how many-th view is held out while sigma is searched for; None without a search, or by data.

    A tenth, of many views twice as many as a step uses, unless a person holds out others.
    """
    if settings.algorithm.search is None or judges_by_data(settings, n_views):
        return None
    if settings.monitor.hold_out is not None:
        return settings.monitor.hold_out
    batch = settings.sampler.views
    enough = _EVERY if batch is None else -(-n_views // (_BATCHES * batch))
    return min(n_views // 2, max(_EVERY, enough))


def count_judges(settings: Settings, n_views: int) -> int:
    """How many of so many views no step uses while sigma is searched for."""
    interval = search_interval(settings, n_views)
    return 0 if interval is None else n_views // interval


def check_judges(settings: Settings, n_views: int, data_shape: Sequence[int]) -> None:
    """Refuse to search for sigma by a part of each view's data where those are hardly any."""
    count = n_views * math.prod(data_shape)
    if judges_by_data(settings, n_views) and count * SHARE < _LEAST:
        raise InputError(
            f"sigma cannot be searched for: all views together have {count} data, a tenth of which is too few to "
            "judge by; give --sigma"
        )


def check_search(settings: Settings, *, blocks: bool = False) -> None:
    """Refuse what a search for sigma cannot be combined with; `blocks` says that a volume goes by blocks of slices."""
    a = settings.algorithm
    if a.fall is not None and a.search is None:
        raise InputError("sigma and the step fall in the runs of a search, and there is none; leave --fall out")
    if a.search is None:
        if settings.denoiser.rivals is not None:
            raise InputError("a denoiser is chosen by the search for sigma, and there is none; leave --rivals out")
        return
    name, rivals = settings.denoiser.name, settings.denoiser.rival_names
    other = next((rival for rival in rivals if a.fall is None and not are_comparable(name, rival)), "")
    share, waves = heat_share(name, rivals), settings.loss.entry.facts.get("bends", False)
    for wrong, advice in (
        (a.sigma is None, "it starts from a sigma, and not from a lam; give --sigma in its place"),
        (a.sigma == 0, "it starts from a sigma > 0"),
        (a.sigma_end is not None, "it is for one sigma for all steps; leave --sigma-end out"),
        (a.stages is not None or a.hop is not None, "it is for one problem from start to end; leave stages out"),
        (bool(a.refined), "what is refined would change while sigmas are compared; use --refine none"),
        (settings.denoiser.opening is not None, "it is for one denoiser in all steps; leave --opening out"),
        (a.changes is not None, "leave --changes out"),
        (settings.scan.follow, "a scan that is followed grows while sigmas are compared; wait for its end"),
        (a.settled is not None, "a search ends by itself; leave --settled out"),
        (a.distance_limit is not None, "the distance is of one sigma; leave --distance-limit out"),
        (":" in a.name, f"it is for our own algorithms, and not for {a.name}"),
        (
            bool(rivals) and a.fall is None and race_steps(a.search, share) < LEAST_STEPS,
            f"with {len(rivals)} rivals it takes at least {LEAST_STEPS + heat_steps(LEAST_STEPS, share)} steps",
        ),
        (name in rivals, f"{name} cannot be a rival of itself; leave it out of --rivals"),
        (bool(other), f"sigma of {other} means something else than that of {name}; leave {other} out of --rivals"),
        (
            a.fall is not None and not a.entry.facts.get("falls", False),
            f"--fall is for admm, ipa and inexact-admm, and not for {a.name}",
        ),
        (a.fall is not None and bool(rivals) and waves, "denoisers of waves compete by a race; add --fall none"),
        (
            a.fall is not None and a.search // (1 + len(rivals)) < 4 * a.fall,
            f"four runs of --fall take {4 * (a.fall or 0)} steps" + " for each denoiser" * bool(rivals),
        ),
        (a.search >= a.iterations, f"it takes {a.search} of {a.iterations} steps; more must be left for the image"),
    ):
        if wrong:
            without = ", or use --search none" + " --fall none" * (a.fall is not None) + " and --sigma" * bool(a.sigma)
            raise InputError(f"sigma cannot be searched for: {advice}{'' if rivals else without}")
    if blocks:
        raise SearchByBlocks(
            "sigma cannot be searched for: this volume goes by blocks of slices, which must all have one sigma; give "
            "--sigma, such as 1%, or use --search none"
        )


def advised_sigma(settings: Settings, instrument: Instrument, columns: Columns, n_views: int) -> Advice | None:
    """The sigma that an instrument advises for the settings' denoiser, from which a search can be patient, if any."""
    meaning = "weight" if is_weight(settings.denoiser.name) else "noise"
    for advice in instrument.advise_scan(columns, n_views, None):
        is_sigma = not advice.search and (advice.section, advice.key) == ("algorithm", "sigma")
        if is_sigma and advice.sigma in (None, meaning):
            return advice
    return None


def sigma_limits(scan: Scan, low: float | None, high: float | None, denoiser: str) -> tuple[float, float]:
    """From which sigma to which a search goes, where these are not given: by the image's range where that is its unit.

    An instrument that advises a sigma by the image's range has images of any size; of others values are about 1.
    """
    from plugstream.scans.baselines.first_image import image_range

    advised = scan.instrument.advise_scan(scan.columns if scan.n_views else {}, scan.n_views, None)
    by_range = any((a.section, a.key) == ("algorithm", "sigma") and str(a.value).endswith("%") for a in advised)
    if low is not None and high is not None:
        return low, high
    unit = share_of_range(1.0, image_range(scan), denoiser) if by_range else 1.0
    usual = (_LIMITS[0] * unit, _LIMITS[1] * unit)
    return usual[0] if low is None else low, usual[1] if high is None else high


def make_race(
    settings: Settings,
    algorithm: Any,
    judges: Tensor,
    advised: Advice | None,
    judge: DataFidelity | None = None,
    rivals: Sequence[Denoiser] = (),
) -> SigmaRace:
    """The race for sigma that the settings ask for, of an instrument that advises one, or none.

    Arguments: algorithm, judges and judge as of `SigmaRace`; advised, whose `spread` says how far to trust it where the
    loss is a known part of a likelihood; rivals, those that the settings name.
    """
    search, nats = settings.algorithm.search, as_loss(settings.loss.build()).nats
    assert search is not None
    name, names, fall = settings.denoiser.name, settings.denoiser.rival_names, settings.algorithm.fall
    expected, pull = None, 0.0
    if advised is not None and advised.spread is not None and nats is not None:
        expected, pull = float(advised.value), 1 / (nats * max(1, len(judges)) * advised.spread**2)
    patient, growing = advised is not None, not is_weight(name)
    steps = race_steps(search, heat_share(name, names)) if fall is None else search // (1 + len(names))
    race = (algorithm, judges, steps, patient, judge, growing, expected, pull)
    if not names:
        falling = FallingSearch if algorithm.fidelity.loss is None else FallingWaveSearch
        return SigmaRace(*race) if fall is None else falling(*race, fall)
    entrants = [e for one, denoiser in zip(names, rivals, strict=True) for e in make_entrants(settings, one, denoiser)]
    model = algorithm.fidelity.model
    count = len(judges) * math.prod(model.data_shape) * (2 if model.data_dtype.is_complex else 1)
    margin = heat_margin(max(1, round(count if judge is None else count * SHARE)))
    if fall is not None:
        return FallingHeat(*race, fall, rivals=tuple(entrants), margin=margin)
    return DenoiserRace(*race, tuple(entrants), margin)


def last_trial(trials: Sequence[Trial], step: int) -> Trial | None:
    """The round with which the search of a run that goes on from this step was over before it, None if it was not."""
    return next((trial for trial in trials if trial.ended and trial.step < step), None)


def last_choice(chosen: Sequence[Chosen]) -> str | None:
    """The denoiser that the search of a run has chosen, None where it has not, or had no choice."""
    return chosen[-1].denoiser if chosen else None


def last_step(found: Sequence[FoundStep]) -> float | None:
    """The step that the search of a run has found, None where it has not, or looked for none."""
    return found[-1].step_size if found else None


def with_strength(settings: Settings, sigma: float, step: float | None = None, most: int | None = None) -> Settings:
    """The settings with the sigma and the step that were found; for so many steps in all, without a search."""
    update: dict[str, Any] = {"sigma": sigma} | ({} if step is None else {"step_size": step})
    update |= {} if most is None else {"search": None, "fall": None, "iterations": most}
    return settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update=update)})


class Search:
    """The search of a run: which views judge, what its rounds say, and how the run turns to the problem of all views.

    `running` is whether sigma is still looked for, and `sigma`, `step` and `denoiser` what was found, None before that.

    Arguments: settings; scan, and how many of its views the run has; log; go_on, from a sigma, a step and a denoiser's
    name, None for the run's own, to the algorithm on all views, called once; ended, the last round of a search that a
    run which goes on has behind it, and found and chosen, its step and denoiser; rival, from a name to that denoiser.
    """

    def __init__(
        self,
        settings: Settings,
        scan: Scan,
        n_views: int,
        log: EventLog,
        go_on: Callable[[float, float | None, str | None], Any],
        ended: Trial | None = None,
        found: Sequence[FoundStep] = (),
        chosen: Sequence[Chosen] = (),
        rival: Callable[[str], Denoiser] | None = None,
    ) -> None:
        self.settings, self.log, self.go_on, self.rival = settings, log, go_on, rival
        self.advised = advised_sigma(settings, scan.instrument, scan.columns, n_views)
        self.sigma = None if ended is None else ended.sigma
        self.step = last_step(found)
        self._end = None if ended is None else ended.step
        self.denoiser = last_choice(chosen)
        self._views, self._interval = n_views, search_interval(settings, n_views)
        self._by_data, self._seed = judges_by_data(settings, n_views), settings.sampler.seed
        self._rounds: int | None = None
        self._decided = False

    @property
    def running(self) -> bool:
        """Whether sigma is still looked for."""
        return self.sigma is None

    @property
    def interval(self) -> int | None:
        """Every how many-th view no step uses by now, None once it is over."""
        return self._interval if self.running else None

    def restrict_data(self, model: Model) -> Model:
        """The model of the data that steps use by now, of the views that they use."""
        return PartOfData(model, self._seed) if self._by_data and self.running else model

    def restrict_views(self, fidelity: DataFidelity) -> DataFidelity:
        """The fidelity of all views, in memory, on those that steps use by now; L stays that of all."""
        if not self.running:
            return fidelity
        usable = usable_views(Views(0, self._views, (), None, True), self._interval)
        bound = find_lipschitz(self.settings, fidelity)
        return fidelity.with_views(self.restrict_data(fidelity.model), usable, lipschitz_max=bound)

    def begin(self, algorithm: Any, damaged: tuple[int, ...], fidelity: DataFidelity) -> Any:
        """The race of the algorithm on what steps use, judged by the rest of the data; itself once it is over."""
        if not self.running:
            return algorithm
        record, judge = Views(0, self._views, damaged, None, True), None
        judges = usable_views(record, None) if self._by_data else held_out_views(record, self._interval)
        if len(judges) == 0:
            raise InputError("all views that would judge sigma are damaged; give --sigma")
        steps = self.settings.algorithm.search
        assert steps is not None
        few = f"{len(judges)} view{'s' * (len(judges) > 1)}"
        if self._by_data:
            model = fidelity.model.whole if isinstance(fidelity.model, PartOfData) else fidelity.model
            judge = fidelity.with_views(PartOfData(model, self._seed, judge=True), judges)
            few = f"a tenth of the data of {few if len(judges) == 1 else f'each of {few}'}"
        d = self.settings.denoiser
        names = "" if d.rivals is None else f", and the best of {', '.join((d.name, *d.rival_names))}"
        self.log.add(Note(f"at most {steps} steps search for sigma{names}, judged by {few} that no step uses"))
        rivals = [] if self.rival is None else [self.rival(name) for name in d.rival_names]
        return make_race(self.settings, algorithm, judges, self.advised, judge, rivals)

    def turn(self, progress: Progress[Any]) -> Turn[Any] | None:
        """Tell what a round said; where it was the last, how to go on."""
        race, state = progress.algorithm, progress.state
        if not isinstance(race, SigmaRace):
            return None
        assert isinstance(state, RaceState)
        if self._rounds is None:  # of a run that goes on: those that are in the log
            self._rounds = state.rounds - state.ended
        if isinstance(race, DenoiserRace) and isinstance(state, HeatState) and state.decided and not self._decided:
            self._decided = True  # a run that goes on logs it again, since the one before may not have
            self._tell_heat(race, state)
        if state.rounds == self._rounds and not state.ended:
            return None
        self._rounds = state.rounds
        self._tell(race, state)
        if not state.ended:
            return None
        self.sigma, self._end = state.sigma, state.k
        if isinstance(race, FallingHeat):
            self._tell_choice(race, state)
        if isinstance(race, DenoiserRace) and isinstance(state, HeatState):
            self.denoiser, misfits = self._name(race, state.choice), self._misfits(race, state)
            self.log.add(Chosen(state.k, self.denoiser, misfits))  # type: ignore[arg-type]
            if state.proof is not None:
                self._tell_proof(race, state)
            self.log.sync()
        if isinstance(race, FallingSearch):
            self.step = race.found_step(state)
            self.log.add(FoundStep(state.k, self.step))
            self.log.sync()
        algorithm, start = race.finish(state, self.go_on(state.sigma, self.step, self.denoiser))
        return Turn(algorithm, start)

    @property
    def last(self) -> int:
        """The last step that may come after the search, or, while it goes on, of all."""
        a = self.settings.algorithm
        return a.iterations if self._end is None else self._end + a.iterations - (a.search or 0)

    def repeat(self, settings: Settings) -> Settings:
        """The settings with what was found and as many steps, to repeat the run with or go on, without a search."""
        assert self.sigma is not None
        if self.denoiser is not None:
            settings = settings.model_copy(update={"denoiser": settings.denoiser.chosen(self.denoiser)})
        return with_strength(settings, self.sigma, self.step, self.last)

    def _tell_choice(self, race: FallingHeat, state: Any) -> None:
        """Which denoiser is expected to come to the least misfit."""
        misfits = {self._name(race, number): misfit for number, misfit in enumerate(state.heat)}
        self.denoiser = self._name(race, state.entrant)
        self.log.add(Chosen(state.k, self.denoiser, misfits))
        words = ", ".join(f"{name} {misfit:.5g}" for name, misfit in misfits.items())
        words += f"; a rival must be {100 * race.needed:.2g} % better, as less may be noise"
        self.log.add(Note(f"denoiser {self.denoiser} was chosen: expected misfit of held-out data {words}"))
        self.log.sync()

    def _name(self, race: DenoiserRace | FallingHeat, number: int) -> str:
        """The name of an entrant of the heat."""
        return self.settings.denoiser.name if number == 0 else race.rivals[number - 1].name

    def _misfits(self, race: DenoiserRace, state: HeatState) -> dict[str, float]:
        """The misfit of each denoiser in the heat, of one that entered with several sigmas the least."""
        misfits: dict[str, float] = {}
        for number, misfit in enumerate(state.heat):
            name = self._name(race, number)
            misfits[name] = misfit if math.isnan(misfits.get(name, math.nan)) else min(misfits[name], misfit)
        return misfits

    def _tell_heat(self, race: DenoiserRace, state: HeatState) -> None:
        """Which denoiser has won the heat, and why."""
        misfits = ", ".join(f"{name} {misfit:.5g}" for name, misfit in self._misfits(race, state).items())
        bar = f"a rival must be {100 * race.margin:.2g} % better, as less may be noise"
        proves = state.leader > 0 and race.rivals[state.leader - 1].proves > 0
        won = "is ahead, and looks for its sigma" if proves else "was chosen"
        won = f"denoiser {self._name(race, state.leader)} {won}"
        self.log.add(Note(f"{won}: held-out misfit after as many steps {misfits}; {bar}"))

    def _tell_proof(self, race: DenoiserRace, state: HeatState) -> None:
        """Whether a rival that had to prove itself with a sigma of its own was kept."""
        own, rival = self.settings.denoiser.name, self._name(race, state.leader)
        text = f"held-out misfit {state.proof:.5g} with its own sigma, where {own} had {state.heat[0]:.5g}"
        bar = f"{100 * race.margin * race.rivals[state.leader - 1].proves:.2g} % may be noise"
        self.log.add(Note(f"denoiser {self.denoiser} was chosen: {rival} came to a {text}; {bar}"))

    def _tell(self, race: SigmaRace, state: Any) -> None:
        numbers = (state.rounds, state.sigma, state.ratio, state.misfit, *state.tried, state.ended)
        self.log.add(Trial(state.k, *numbers))
        by_runs = self.settings.algorithm.fall is not None
        text = f"sigma {state.sigma:.4g} after round {state.rounds}, held-out misfit {state.misfit:.4g}"
        number = state.entrant - (state.used == 0) if isinstance(race, FallingHeat) else 0  # the next may have begun
        whose = f", with {self._name(race, number)}" if isinstance(race, FallingHeat) else ""
        text = f"run {state.rounds} of the search{whose}: held-out misfit {state.tried[0]:.4g}" if by_runs else text
        if state.ended:
            text = f"sigma {state.sigma:.4g} was found in {state.rounds} rounds; the run continues from the last image"
            text = f"the step was found in {state.rounds} runs; the best of them continues" if by_runs else text
            if self.settings.monitor.hold_out is None:
                text += f", with the {'data' if self._by_data else 'views'} that were held out"
        self.log.add(Note(text))
        self.log.sync()


def without_strength(about: dict[str, Any], *, step: bool = False, denoiser: bool = False) -> dict[str, Any]:
    """What a checkpoint belongs to, but for sigma, which a search changes, and step and denoiser where it did those."""
    free = ("the setting algorithm.sigma", *(("the setting denoiser.",) if denoiser else ()))
    free += ("the setting algorithm.step_size",) * step
    return {name: value for name, value in about.items() if not name.startswith(free)}
