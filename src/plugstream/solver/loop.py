"""The one loop: step, measure, stop. It knows algorithms and monitors by their protocols only."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms.abilities import as_algorithm
from plugstream.algorithms.base import Algorithm, State
from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.linalg import largest_norm
from plugstream.base.progress import Listener, listening, report
from plugstream.base.quantities import HELD_OUT, TO_GO, Quantity, Series
from plugstream.fidelity.least_squares import as_fidelity, data_scale
from plugstream.images.planes import thumbnail
from plugstream.solver.monitors import Judge, Measure, Monitor, quantities_of, with_stop
from plugstream.solver.result import Callback, Progress, Result, Row, Snapshot, Stop, Turn
from plugstream.solver.verdict import Trace, Verdict, compare_arrival, estimate_arrival, judge

S = TypeVar("S", bound=State)

_MOST_ROWS = 10_000  # measurements of each quantity that a run keeps; of more, half stay, evenly spaced


def solve(
    algorithm: Algorithm[S],
    image: Array | None = None,
    *,
    iterations: int = 100,
    state: S | None = None,
    resume: Snapshot[S] | None = None,
    monitors: Sequence[Monitor] = (),
    every: int = 10,
    time_limit: float | None = None,
    distance_limit: float | None = None,
    arrive: float | None = None,
    divergence: float | None = 1e4,
    callbacks: Iterable[Callback[S]] = (),
    progress: Listener | bool | None = None,
) -> Result[S]:
    """Run an algorithm, measure now and then, and stop for a stated reason.

    Monitors measure before the first step, every `every` steps (or their own) and at the end; of more than 10,000
    measurements of a quantity half stay, all over the run. Ctrl-C ends the run after the last complete step and returns
    the best image so far; a second one is not caught.

    Arguments:
        algorithm: anything with `init`, `step` and `parameters`.
        image: where to start, (..., *image_shape); zero if not given. state: go on from this instead.
        iterations: how many (further) steps to take.
        resume: go on with this run, its clock, history and best image, as if it had not stopped: to the bit if the
            algorithm is deterministic. Monitors must be the same.
        time_limit: seconds of wall time. distance_limit: stop once a quantity that a run may stop on is within this;
            without one, `Distance` is added: ||x - T(x)||^2 relative to its start. arrive: stop once ten times as many
            steps would change the image by less than this part of it, such as 0.01; checked every `every` steps, from
            the sixteenth on.
        divergence: stop when ||x|| exceeds this many times the run's scale; None: never. The scale is the size of the
            first image that is not zero or, if larger, the length of the best step from zero down the gradient
            (`data_scale`).
        callbacks: called with a `Progress` before the first step, after each, and once more if something is measured at
            the end. One that returns True ends the run; one that returns an algorithm replaces the run's, on the same
            state, as for a scan that has grown: `replace(algorithm, fidelity=...)`; a `Turn` replaces the state too.
        progress: called now and then with the work, the amount done and the total, also while L is estimated before the
            first step (`plugstream.base.progress`). True shows it on the terminal or in a notebook. Silent if not
            given.
    """
    if distance_limit is not None:
        monitors = with_stop(monitors)
    if iterations < 0 or every < 1:
        raise InputError(f"iterations must be >= 0 and every >= 1, not {iterations} and {every}")
    if sum(start is not None for start in (image, state, resume)) > 1:
        raise InputError("give an image to start from, a state to go on from or a run to resume, not several of them")
    if resume is not None and len(resume.measured_at) != len(monitors):
        raise InputError(f"the run was measured by {len(resume.measured_at)} monitors, not by {len(monitors)}")
    with contextlib.ExitStack() as stack:
        if progress is True:
            early = arrive is not None or distance_limit is not None
            note, finish = stack.enter_context(_screen(monitors, iterations, time_limit, early))
            callbacks = [note, *callbacks]
        else:
            stack.enter_context(listening(progress or None))
        if resume is not None:
            state = resume.state
        elif state is None:
            state = algorithm.init(None if image is None else as_tensor("the first image", image))
        run = _Run(as_algorithm(algorithm), state, monitors, every, tuple(callbacks), resume)
        reason = Stop.ITERATIONS
        try:
            run.call_back(run.measure())
            end = run.state.k + iterations if iterations < sys.maxsize else 0
            for _ in range(iterations):
                report("steps", run.state.k, end)
                run.step()
                size = run.size()
                if not math.isfinite(size) or run.grew(size, divergence):
                    reason = Stop.DIVERGED if math.isfinite(size) else Stop.NOT_FINITE
                    break
                measured = run.measure()
                if run.call_back(measured):
                    reason = Stop.CALLBACK
                    break
                if distance_limit is not None and run.reaches(measured, distance_limit):
                    reason = Stop.DISTANCE
                    break
                if arrive is not None and run.has_arrived(arrive):
                    reason = Stop.ARRIVED
                    break
                if time_limit is not None and run.wall >= time_limit:
                    reason = Stop.TIME
                    break
        except KeyboardInterrupt:
            reason = Stop.INTERRUPTED
            run.drop_half()
        if not reason.failed:
            # A run that continues from here would not have measured here, so the snapshot is without it.
            before = run.snapshot(run.state)
            if measured := run.measure(last=True):
                run.call_back(measured, before)
        result = run.result(reason)
        if progress is True:
            finish(result)
    return result


@contextlib.contextmanager
def _screen(
    monitors: Sequence[Monitor], iterations: int, time_limit: float | None, early: bool
) -> Iterator[tuple[Callable[[Progress[Any]], None], Callable[[Result[Any]], None]]]:
    """Show a person how far a run is: a callback for each step, and a function to call with the result."""
    from plugstream.base.display.frame import Clock
    from plugstream.base.display.screen import Display
    from plugstream.base.display.steps import Steps

    steps = Steps(clock=Clock(time_limit, monotonic()))
    steps.declare([*quantities_of(monitors), TO_GO])
    steps.at_most = early  # it may arrive

    def note(progress: Progress[Any]) -> None:
        axes = len(progress.algorithm.fidelity.image_shape)
        steps.picture = partial(thumbnail, progress.state.image, axes)
        if steps.total == 0 and iterations < sys.maxsize:
            steps.total = progress.state.k + iterations
        steps.tick(progress.state.k, progress.time, monotonic())
        steps.measure({name: float(value.mean()) for name, value in progress.measured.items()})

    def finish(result: Result[Any]) -> None:
        steps.values = result.measured()  # of the returned image, which may be that of another step
        image = "" if result.image_step == result.state.k else f"; the image is that of step {result.image_step}"
        end = f"stopped after {result.state.k} steps and {result.time:.1f} s: {result.reason.value}"
        display.finish(steps, end + image)

    with Display(what="preparing") as display:
        display.show(steps)
        yield note, finish


@dataclass
class _Run(Generic[S]):
    """The part of a run that changes: the state, the clock, the history and the best image so far."""

    algorithm: Algorithm[S]
    state: S
    monitors: Sequence[Monitor]
    every: int
    callbacks: Sequence[Callback[S]]
    resume: InitVar[Snapshot[S] | None] = None
    time: float = 0.0
    start: float = field(default_factory=perf_counter)
    best: tuple[float, S] | None = None
    good: S | None = None
    limit: float | None = None
    trace: Trace = field(default_factory=Trace)

    def __post_init__(self, resume: Snapshot[S] | None) -> None:
        self._quantities = {quantity.name: quantity for quantity in [*quantities_of(self.monitors), TO_GO]}
        past = {} if resume is None else {name: [row[2] for row in rows] for name, rows in resume.rows.items()}
        self._measures: list[tuple[int, Measure]] = [
            (m.every or self.every, m.begin(self.algorithm, self.state, past)) for m in self.monitors
        ]
        self._measured_at = [-1] * len(self._measures)
        ranking = [quantity for quantity in self._quantities.values() if quantity.smaller_is_better is not None]
        self._ranking = min(ranking, key=lambda quantity: not quantity.needs_truth, default=None)
        # Of images that a search tries in turn the distance, of other maps each time, does not say which is better.
        alike = [quantity for quantity in ranking if quantity.needs_truth or quantity.name == HELD_OUT]
        self._ranking_in_turn = min(alike, key=lambda quantity: not quantity.needs_truth, default=self._ranking)
        self._rows: dict[str, list[Row]] = {}
        self._half: dict[str, int] = {}  # rows before the measurement in progress
        self._first = self.state.k
        self.trace.begin(self.algorithm, self.state)
        self._begun = self.size()
        self.good = self.state
        if resume is not None:
            self._first, self.time, self.limit, self.best = resume.first, resume.time, resume.limit, resume.best
            self.start = perf_counter() - resume.wall
            self._rows = {name: list(rows) for name, rows in resume.rows.items()}
            self._measured_at = list(resume.measured_at)
            if resume.trace.steps:
                self.trace = resume.trace.copy()

    @property
    def wall(self) -> float:
        return perf_counter() - self.start

    def leave_out(self, seconds: float) -> None:
        """Take seconds that somebody else had off the run's clock."""
        self.start += seconds

    def step(self) -> None:
        _synchronize(self.state.image)
        begin = perf_counter()
        state = self.algorithm.step(self.state)
        _synchronize(state.image)
        self.time += perf_counter() - begin
        self.state = state
        self.trace.follow(self.algorithm, state)

    def has_arrived(self, limit: float) -> bool:
        """Whether every image has no farther to go than this; asked every `every` steps."""
        if (self.state.k - self._first) % self.every:
            return False
        arrivals = estimate_arrival(self.trace)
        return bool(arrivals) and all(arrival.within(limit) for arrival in arrivals)

    def size(self) -> float:
        """The largest ||x|| of the images, NaN if one holds a NaN."""
        return largest_norm(self.state.image, len(self.algorithm.fidelity.image_shape))

    def grew(self, size: float, divergence: float | None) -> bool:
        """Whether an image of this size is beyond the limit, `divergence` times the scale of the run.

        The limit is set by the first image that is not zero, and checked against the scale of the data before a run
        counts as diverged: a bound, a threshold or a large sigma may have made that image very small.
        """
        if divergence is None:
            return False
        if self.limit is None:
            scale = max(size, self._begun)  # while there is no limit, every image was zero or the first one
            if scale == 0:
                return False
            self.limit = divergence * scale
        if size <= self.limit:
            return False
        self.limit = max(self.limit, divergence * data_scale(self.algorithm.fidelity, self.state.image))
        return size > self.limit

    def measure(self, last: bool = False) -> dict[str, Tensor]:
        """Measure what is due at this step (everything not yet measured here, if it is the last)."""
        k, out = self.state.k, {}
        measured_at = list(self._measured_at)  # stored once all is measured: a monitor may fail, on damaged data say
        for number, (every, measure) in enumerate(self._measures):
            if ((k - self._first) % every == 0 or last) and measured_at[number] != k:
                out.update(measure(self.algorithm, self.state))
                measured_at[number] = k
        parts = torch.tensor(
            [100 * one.to_go for one in estimate_arrival(self.trace)] if out else [], dtype=torch.float64
        )
        if len(parts) and bool(parts.isfinite().all()):
            ndim = len(self.algorithm.fidelity.image_shape)
            out[TO_GO.name] = parts.reshape(self.state.image.shape[: self.state.image.ndim - ndim])
        best = self._best_with(out)
        # Of their own: what numpy() gives keeps a whole tensor, some 800 bytes a number.
        rows = {name: (k, self.time, value.detach().cpu().double().numpy().copy()) for name, value in out.items()}
        self._half = {name: len(self._rows.get(name, ())) for name in rows}
        for name, row in rows.items():
            self._rows.setdefault(name, []).append(row)
        # One line without a call, so that Ctrl-C cannot come in between.
        self._measured_at, self.best, self.good, self._half = measured_at, best, self.state, {}
        if any(len(rows) > _MOST_ROWS for rows in self._rows.values()):
            self._rows = {name: _thin(rows) for name, rows in self._rows.items()}
        return out

    def drop_half(self) -> None:
        """Take back a measurement that Ctrl-C interrupted, so that it is made again at the end."""
        for name, length in self._half.items():
            if rows := self._rows.pop(name, [])[:length]:
                self._rows[name] = rows
        self._half = {}

    def reaches(self, measured: dict[str, Tensor], limit: float) -> bool:
        """Whether a quantity that a run may stop on is within the limit for every image."""
        stops = [quantity for quantity in self._quantities.values() if quantity.stops and quantity.name in measured]
        return any(all(q.reaches(value, limit) for value in measured[q.name].flatten().tolist()) for q in stops)

    def _best_with(self, measured: dict[str, Tensor]) -> tuple[float, S] | None:
        """The score and state of the best image, the present one included."""
        score, ranking = None, self._ranking_in_turn if self.trace.phase is None else self._ranking
        if ranking is not None and ranking.name in measured:
            score = ranking.score(float(measured[ranking.name].mean()))
        better = score is not None and (self.best is None or score > self.best[0])
        return (score, self.state) if better and score is not None else self.best

    def call_back(self, measured: dict[str, Tensor], snapshot: Snapshot[S] | None = None) -> bool:
        """Call every callback, take over the algorithm that one returns, and say whether one ends the run."""
        take = partial(self.snapshot, self.state) if snapshot is None else lambda: snapshot
        progress = Progress(
            self.algorithm, self.state, self.time, self.wall, measured, take, self.leave_out, self.trace
        )
        end = False
        for answer in [callback(progress) for callback in self.callbacks]:
            if isinstance(answer, Turn):
                self.algorithm, self.state = as_algorithm(answer.algorithm), answer.state
                self.best = None  # earlier measurements are of another problem
                self.trace.begin(self.algorithm, self.state)
            elif callable(getattr(answer, "step", None)):
                self.algorithm = as_algorithm(answer)
                self.trace.begin(self.algorithm, self.state)
            else:
                end = end or bool(answer)
        return end

    def snapshot(self, state: S) -> Snapshot[S]:
        """The run at this state, the last that callbacks saw: a step or a measurement after it may fail."""
        rows = {name: list(rows) for name, rows in self._rows.items()}
        clock = (self.time, self.wall, self.limit, self.best)
        return Snapshot(state, self._first, *clock, rows, list(self._measured_at), self.trace.copy())

    def result(self, reason: Stop) -> Result[S]:
        if reason.failed:
            assert self.good is not None
            self.state = self.good
        # The last of the images that a search tries in turn may be hardly begun.
        in_turn = self.trace.phase is None and reason in (Stop.TIME, Stop.CALLBACK)
        use_best = self.best is not None and (reason.failed or reason is Stop.INTERRUPTED or in_turn)
        chosen = self.best[1] if use_best and self.best is not None else self.state
        history = {
            name: Series(
                np.array([row[0] for row in rows], dtype=np.int64),
                np.array([row[1] for row in rows]),
                np.stack([row[2] for row in rows]),
                self._quantities.get(name) or Quantity(name),
            )
            for name, rows in self._rows.items()
        }
        fidelity = self.algorithm.fidelity
        axes, channels = len(fidelity.image_shape), as_fidelity(fidelity).channels
        verdict = self._verdict(reason, history)
        parameters = getattr(chosen, "parameters", None) or {}
        measured = (reason, history, self.time, self.wall, verdict, axes, channels)
        return Result(chosen.image, chosen.k, self.state, *measured, parameters)

    def _verdict(self, reason: Stop, history: dict[str, Series]) -> Verdict:
        arrivals = compare_arrival(self.trace)
        for monitor in self.monitors if not reason.failed else ():
            names = [quantity.name for quantity in monitor.measures if quantity.name in history]
            if isinstance(monitor, Judge) and names:
                past = {name: list(history[name].value) for name in names}
                return monitor.judge(self.algorithm, history[names[0]].step.tolist(), past, arrivals)
        return judge([], [], [], arrivals=arrivals, failure=reason.value if reason.failed else None)


def _thin(rows: list[Row]) -> list[Row]:
    """Half as many measurements as may stay, the first and the last among them, evenly spaced over the steps."""
    steps = [row[0] for row in rows]
    return [rows[n] for n in np.unique(np.searchsorted(steps, np.linspace(steps[0], steps[-1], _MOST_ROWS // 2)))]


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
