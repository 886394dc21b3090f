"""What rank 0 decides once a step, and that others do as it says, whatever their own clock and signals say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugstream.base.processes import Group
from plugstream.runs.commands import Command, Inbox, Requests, send_command
from plugstream.runs.controls import RunControls, reason_to_end
from plugstream.runs.event_log import EventLog, SilentLog, read_events
from plugstream.runs.events import Steering
from plugstream.runs.steering import PlannedChanges
from plugstream.settings import Settings, parse_changes
from plugstream.solver.result import Stop
from plugstream.solver.verdict import ARRIVED, Arrival, Outcome, Trace, judge


class Told(Group):
    """A process that hears what another one has decided."""

    rank, size = 1, 2

    def __init__(self, other: RunControls, progress: Any) -> None:
        self.other, self.progress = other, progress

    def decide(self, decision: Any) -> Any:
        return self.other._decide(self.progress)


def progress(step: int, wall: float) -> Any:
    return SimpleNamespace(algorithm=None, state=SimpleNamespace(k=step), wall=wall)


def context(folder: Path, group: Any = None, log: EventLog | None = None, changes: str | None = None) -> Any:
    """What controls need of a run."""
    log = log or SilentLog(folder / "none")
    return SimpleNamespace(
        group=group or Group(),
        settings=Settings(),
        log=log,
        commands=Inbox(folder, every=0.0),
        changes=PlannedChanges(parse_changes(changes), log),
        callbacks=(),
        population=None,
        stages=None,
        search=None,
    )


def test_time_is_that_of_rank_0(tmp_path: Path) -> None:
    first = RunControls(context(tmp_path), Requests(), time_limit=5.0)
    assert first.after_step(progress(0, 9.0)) is None  # before a step there is nothing to stop
    assert first.after_step(progress(1, 4.9)) is None
    other = RunControls(context(tmp_path, Told(first, progress(2, 4.9))), Requests(), time_limit=5.0)
    assert other.after_step(progress(2, 99.0)) is None
    assert first.after_step(progress(3, 5.0)) is True
    assert first.reason is Stop.TIME
    other = RunControls(context(tmp_path, Told(first, progress(3, 5.0))), Requests(), time_limit=5.0)
    assert other.after_step(progress(3, 0.0)) is True


def test_a_signal_counts_where_rank_0_heard_it_and_once_a_step(tmp_path: Path) -> None:
    requests = Requests(several=True)
    first = RunControls(context(tmp_path), requests)
    requests.came = True
    with pytest.raises(KeyboardInterrupt):
        first.after_step(progress(4, 0.0))
    assert first.after_step(progress(4, 0.0)) is None  # where the last step is measured again
    deaf = RunControls(context(tmp_path), Requests(several=True))
    mine = Requests(several=True)
    mine.came = True
    other = RunControls(context(tmp_path, Told(deaf, progress(5, 0.0))), mine)
    assert other.after_step(progress(5, 0.0)) is None


@dataclass(frozen=True)
class Iteration:
    """What can be steered."""

    sigma: float
    step_size: float
    lam: float | None = None

    def parameters(self, k: int, state: Any) -> tuple[float, float]:
        return self.step_size, self.sigma


def test_what_is_asked_for_is_heard_by_rank_0_and_done_by_all(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    first = RunControls(context(tmp_path, log=log, changes="3: step=2.0"), Requests())
    (tmp_path / "elsewhere").mkdir()
    hears = context(tmp_path / "elsewhere", changes="3: step=2.0")
    algorithm, made = Iteration(0.1, 1.0), []
    for step in (1, 2, 3):
        if step == 2:
            send_command(tmp_path, Command("change", sigma=0.5))
        now = SimpleNamespace(algorithm=algorithm, state=SimpleNamespace(k=step), wall=0.0)
        decided = first._decide(now)  # type: ignore[arg-type]
        group = SimpleNamespace(decide=lambda _, decided=decided: decided)
        first.run.group = hears.group = group  # type: ignore[assignment]
        answers = [controls.after_step(now) for controls in (first, RunControls(hears, Requests()))]
        assert answers[0] == answers[1]
        made.append(answers[0])
        algorithm = answers[0] or algorithm  # type: ignore[assignment]
    log.close()
    assert made == [None, Iteration(0.5, 1.0), None]  # whoever changed sigma has put the step off that was planned
    assert [event for event in read_events(log.path) if isinstance(event, Steering)] == [Steering(2, "change", 0.5)]
    assert not list((tmp_path / "commands").iterdir())


@pytest.mark.parametrize(
    ("arrivals", "reason"),
    [
        ([Arrival(0.005, 0.001, 0.003)], Stop.ARRIVED),
        ([Arrival(0.02, 0.005, 0.0137)], Stop.HOVERS),
        ([Arrival(0.011, 0.009, 0.0045)], None),  # most of the rest is drift, of which more steps would be the end
        ([Arrival(0.02, 0.011, 0.0118)], None),
        ([Arrival(0.02, 0.005, 0.0137), Arrival(0.005, 0.001, 0.003)], Stop.HOVERS),
        ([Arrival(0.02, 0.005, 0.0137), Arrival(0.011, 0.009, 0.0045)], None),
    ],
)
def test_a_run_ends_as_hovering_only_where_its_verdict_says_so_too(
    arrivals: list[Arrival], reason: Stop | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugstream.runs.controls.estimate_arrival", lambda trace: arrivals)
    assert reason_to_end(Trace(phase=0), ARRIVED) is reason
    if reason is not None:
        worst = judge([], [], [], arrivals=arrivals).outcome
        assert worst is (Outcome.ARRIVED if reason is Stop.ARRIVED else Outcome.HOVERING)
