"""The best settings for one scan: sigma, and on request step and momentum, with or without a truth."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plugstream.algorithms.race import LEAST_STEPS, SigmaRace
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.progress import within
from plugstream.base.registry import entries
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.runs.plan import Plan, plan
from plugstream.scans.scan import Scan, fingerprint
from plugstream.settings import MomentumSettings, Settings, resolve
from plugstream.solver.loop import solve
from plugstream.solver.monitors import snr
from plugstream.solver.result import Result, Stop
from plugstream.studies.tuning.journal import Journal
from plugstream.studies.tuning.scores import held_out_score, residual_excess, split_views
from plugstream.studies.tuning.search import golden_section, largest_crossing, successive_halving

# Multiples of the requested step. Beyond twice 1/L the gradient step is not nonexpansive.
_STEPS = (1.0, 0.5, 1.5)
_SIGMAS = 4  # that successive halving combines with the other settings


@dataclass(frozen=True)
class Search:
    """What to search for, and by what.

    by: "snr" (needs a truth), "held-out" (a part `held` of the views judges), "race" (the same, in one run of two
    sigmas side by side, `plugstream.algorithms.race`) or "discrepancy" (needs `noise`, the input SNR in dB). over:
    sigma, and if named step_size and momentum. low, high: of sigma. evaluations: of the golden section.
    """

    by: str = "snr"
    over: tuple[str, ...] = ("sigma",)
    low: float = 5e-4
    high: float = 0.1
    evaluations: int = 12
    held: float = 0.1
    noise: float | None = None
    widenings: int = 4

    def __post_init__(self) -> None:
        if self.by not in ("snr", "held-out", "race", "discrepancy"):
            raise InputError(f"there is no score {self.by!r}; choose snr, held-out, race or discrepancy")
        if self.by == "race" and self.over != ("sigma",):
            raise InputError("a race is for sigma alone; use --by held-out, or leave --over out")
        if unknown := set(self.over) - {"sigma", "step_size", "momentum"}:
            raise InputError(f"cannot search over {sorted(unknown)[0]!r}; choose among sigma, step_size and momentum")
        if self.by == "discrepancy" and (self.noise is None or not math.isfinite(self.noise)):
            raise InputError("the discrepancy principle needs the noise in the data: give its input SNR, --noise DB")
        if self.noise is not None and not -100 <= self.noise <= 300:  # float64 has 16 digits, which is 320 dB
            raise InputError(f"data cannot have an input SNR of {self.noise:g} dB; give --noise from -100 to 300")
        if not 0 < self.low < self.high:
            raise InputError(f"sigma is searched from low to high, 0 < low < high, not from {self.low} to {self.high}")
        if self.evaluations < 5:
            raise InputError(f"at least 5 evaluations are needed, not {self.evaluations}")
        if self.widenings < 0:
            raise InputError(f"the range of sigma can be widened 0 times or more, not {self.widenings}")


def tune_scan(
    scan: Scan, settings: Settings, search: Search, journal: Path, say: Callable[[str], None] = lambda text: None
) -> tuple[Settings, float]:
    """The settings that reconstruct a scan best, and their score (dB; larger is better).

    For sigma alone: a grid of five and golden section or, by discrepancy, bisection of where the residual last crosses
    the noise's energy. With step or momentum: first successive halving over their combinations with four values of
    sigma. Each evaluation is a reconstruction of `settings.algorithm.iterations` steps (fewer in the first rounds of
    halving), scored at its last step and written to the journal, from which a stopped search continues.

    If the best sigma is at an end of the range, the range is widened. If it is still at the end of the values tried, or
    the residual never crosses the noise's energy, there is a warning and a remark in the journal.

    Arguments: settings, everything that is not searched; their sigma, if any, is only used to check them.
    """
    level = settings.algorithm.sigma or search.low
    planned = plan(_change_settings(settings, sigma=level, lam=None), scan)
    settings = planned.settings
    if search.by == "snr" and scan.truth is None:
        raise InputError("the scan has no true image to measure the SNR against; use --by held-out or discrepancy")
    if settings.algorithm.changes is not None:
        raise InputError("a search is for one sigma and step for all iterations; leave --changes out")
    if settings.algorithm.stages is not None or settings.algorithm.hop is not None:
        raise InputError("a search is for one problem from start to end; leave --stages and --hop out")
    if settings.algorithm.sigma_end is not None:
        raise InputError("sigma_end is not scaled with sigma, so it cannot be searched; leave it out")
    judge = _Judge(scan, planned, search)  # before the journal, since it refuses what cannot be judged
    settings = judge.settle_bounds(say)
    about = {
        "scan": fingerprint(scan),
        "views": scan.n_views,
        "plan": [search.by, list(search.over), search.low, search.high, search.held, search.noise],
        "settings": _change_settings(settings, sigma=1.0).model_dump(
            mode="json", exclude={"simulate", "monitor", "run", "scan"}
        ),
    }
    book = Journal(journal, about)
    if len(book):
        say(f"{journal} holds {len(book)} evaluations already")
    count = before = expected = 0  # evaluations in all, those before the search of sigma, and how many that takes

    def score(changes: dict[str, Any], iterations: int) -> float:
        nonlocal count
        count += 1
        fresh = len(book)
        number = count - before - 1
        with within("evaluation", number, expected if number < expected else 0):
            value = book.ask({**changes, "iterations": iterations}, lambda: judge(changes, iterations))
        if len(book) > fresh:
            setting = ", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in changes.items())
            unit = "dB above the noise" if search.by == "discrepancy" else "dB"
            say(f"{count}: {setting}, {iterations} steps: {value:.3f} {unit}")
        return value

    steps = settings.algorithm.iterations
    winner: dict[str, Any] = {}
    if set(search.over) & {"step_size", "momentum"}:
        candidates = [
            {**other, "sigma": float(sigma)}
            for other in _combinations(settings, search.over)
            for sigma in np.geomspace(search.low, search.high, _SIGMAS + 2)[1:-1]
        ]

        def order(changes: dict[str, Any], iterations: int) -> float:
            value = score(changes, iterations)
            return -abs(value) if search.by == "discrepancy" else value

        best = successive_halving(order, candidates, budget=steps, least=max(1, min(steps, 5)))[0][1]
        winner = {key: value for key, value in best.items() if key != "sigma"}
    if search.by == "race":
        length = max(2 * steps, LEAST_STEPS)
        say(f"two sigmas race, {length} steps in all")
        start = math.sqrt(search.low * search.high)
        sigma = book.ask({"race": length, "start": start}, lambda: judge.race(start, length))
        return _change_settings(settings, sigma=sigma), judge({"sigma": sigma}, steps)
    before, expected = count, search.evaluations
    find = _by_discrepancy if search.by == "discrepancy" else _by_score
    sigma, best_score, remark = find(search, lambda sigma: score({**winner, "sigma": sigma}, steps), say)
    if not math.isfinite(best_score):
        raise InputError("no setting that was tried gave an image; choose another range of sigma, or a shorter step")
    if remark:
        book.conclude({**winner, "sigma": sigma, "iterations": steps}, remark)
        warnings.warn(remark, PlugstreamWarning, stacklevel=2)
    return _change_settings(settings, **winner, sigma=sigma), best_score


def _by_score(
    search: Search, score: Callable[[float], float], say: Callable[[str], None]
) -> tuple[float, float, str | None]:
    """The sigma with the largest score, that score, and a remark if there is one."""
    bounds = _Range(search, say)
    result = golden_section(
        lambda sigma: score(bounds.note(float(sigma[0]))),
        search.low,
        search.high,
        evaluations=search.evaluations,
        widenings=search.widenings,
    )
    sigma, best = float(result.value[0]), float(result.score[0])
    remark = None
    if result.edge[0]:
        last, beyond, flag = ("least", "smaller", "low") if result.edge[0] < 0 else ("largest", "larger", "high")
        remark = (
            f"sigma {sigma:.5g} is the {last} that was tried, so the best may be {beyond}: give a {beyond} "
            f"--sigma-{flag}, unless the score hardly depends on sigma there"
        )
    return sigma, best, remark


def _by_discrepancy(
    search: Search, excess: Callable[[float], float], say: Callable[[str], None]
) -> tuple[float, float, str | None]:
    """The sigma at which the residual equals the noise's energy, minus the distance from it, and a remark."""
    bounds = _Range(search, say)

    def above(sigma: float) -> float:
        value = excess(bounds.note(sigma))
        return value if math.isfinite(value) else math.inf  # a run that failed fits nothing

    crossing = largest_crossing(
        above, search.low, search.high, evaluations=search.evaluations, widenings=search.widenings
    )
    remark = None
    if crossing.edge > 0:
        remark = (
            f"even sigma {crossing.value:.5g}, the largest that was tried, leaves {-crossing.excess:.2g} dB less than "
            f"the noise of {search.noise:g} dB: the data have less noise than that, or give a larger --sigma-high"
        )
    elif crossing.edge < 0:
        remark = (
            f"no sigma that was tried fits the data to its noise of {search.noise:g} dB; {crossing.value:.5g} comes "
            f"closest and leaves {crossing.excess:.2g} dB more: the data have more noise than that, or give more "
            "--iterations or a larger --batch"
        )
    return crossing.value, -abs(crossing.excess), remark


class _Range:
    """Reports when a search goes beyond its initial range."""

    def __init__(self, search: Search, say: Callable[[str], None]) -> None:
        self.low, self.high, self.say = search.low, search.high, say

    def note(self, sigma: float) -> float:
        if sigma > self.high * (1 + 1e-9):
            self.say(f"the best sigma is at {self.high:.5g}, the upper end; trying up to {sigma:.5g}")
            self.high = sigma
        elif sigma < self.low * (1 - 1e-9):
            self.say(f"the best sigma is at {self.low:.5g}, the lower end; trying down to {sigma:.5g}")
            self.low = sigma
        return sigma


class _Judge:
    """Reconstructs with some settings and scores the image; by discrepancy the score has a sign, and zero is best."""

    def __init__(self, scan: Scan, planned: Plan, search: Search) -> None:
        self.planned, self.search, self.columns = planned, search, scan.columns
        model, settings = planned.model(scan.columns, scan.n_views), planned.settings
        data = scan.read()
        self.complete = LeastSquares(model, data)
        self.truth = None if scan.truth is None else torch.from_numpy(scan.truth).to(model.device)
        self.fidelity, self.held_out = planned.parts.fidelity(model, data), torch.arange(0)
        if search.by in ("held-out", "race"):
            used, self.held_out = split_views(torch.arange(scan.n_views), search.held)
            if settings.sampler.entry.facts.get("draws") == "same":
                raise InputError(
                    f"the sampler {settings.sampler.name} may need views that are held out; use another, or "
                    "--by discrepancy"
                )
            self.fidelity = planned.parts.fidelity(model, data, available=used)
        self.sampler = planned.parts.sampler(self.fidelity)

    def settle_bounds(self, say: Callable[[str], None]) -> Settings:
        """The settings with the bounds that follow from all of the data."""
        bounds = self.planned.settle_bounds(self.complete, self.columns)
        self.planned = self.planned.with_bounds(bounds)
        for reason in bounds.reasons:
            say(reason)
        return self.planned.settings

    def __call__(self, changes: dict[str, Any], iterations: int) -> float:
        planned = self.planned.revise(_change_settings(self.planned.settings, **changes))
        result = self._solve(planned.algorithm(self.fidelity, self.sampler), iterations)
        if result.reason.failed:
            return -math.inf
        if self.search.by == "snr":
            assert self.truth is not None
            return float(snr(result.image, self.truth, self.truth.ndim, phase=self.planned.instrument.image.phase))
        if self.search.by in ("held-out", "race"):
            return float(held_out_score(self.complete, result.image, self.held_out))
        assert self.search.noise is not None
        return float(residual_excess(self.complete, result.image, self.search.noise))

    def race(self, start: float, steps: int) -> float:
        """The sigma at which a race from this one ends."""
        planned = self.planned.revise(_change_settings(self.planned.settings, sigma=start))
        race = SigmaRace(planned.algorithm(self.fidelity, self.sampler), self.held_out, steps, patient=False)
        result = self._solve(race, steps, callbacks=[lambda progress: progress.state.ended])
        if result.reason.failed:
            raise InputError(f"the race was lost: {result.reason.value}")
        return float(result.state.sigma)

    @staticmethod
    def _solve(algorithm: Any, iterations: int, **more: Any) -> Result[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlugstreamWarning)  # a step that is too long shows in the score
            result = solve(algorithm, iterations=iterations, **more)
        if result.reason is Stop.INTERRUPTED:
            raise KeyboardInterrupt
        return result


def _combinations(settings: Settings, over: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of step and momentum to try, the current ones first."""
    options: dict[str, list[Any]] = {}
    if "step_size" in over:
        step = settings.algorithm.step_size
        options["step_size"] = [_times(step, factor) for factor in _STEPS]
    if "momentum" in over and "momentum" in settings.algorithm.entry.facts.get("uses", ()):
        current, momenta = settings.momentum.name, entries("momentum")
        rivals = [name for name, entry in momenta.items() if entry.facts.get("tuned") and name != current]
        options["momentum"] = [current, *rivals]
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def _times(step: float | str, factor: float) -> float | str:
    if isinstance(step, str):
        from plugstream.base.schedules import parse_step, value_at

        return f"{factor * value_at(parse_step(step).multiple, 1):g}/L"
    return factor * step


def _change_settings(settings: Settings, **changes: Any) -> Settings:
    """The settings with some changes, checked again; another momentum gets its own options."""
    tables = settings.model_dump(exclude={"simulate"} if settings.simulate is None else None)
    if changes.get("momentum", settings.momentum.name) != settings.momentum.name:
        tables["momentum"] = {key: tables["momentum"][key] for key in MomentumSettings.model_fields}
    used = tables.keys() if settings.simulate is None else None
    # The seed is not typed here, and a sampler may not use it.
    seed = ("sampler", "seed", tables["sampler"].pop("seed"))
    values = [(section, key, value) for section, table in tables.items() for key, value in table.items()]
    for key, value in changes.items():
        values.append(("momentum", "name", value) if key == "momentum" else ("algorithm", key, value))
    return resolve(None, values, presets=[seed], used=used)
