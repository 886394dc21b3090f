"""What rank 0 decides once a step, and that others do as it says, whatever their own clock and signals say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugstream.base.processes import Group
from plugstream.runs.commands import Command, Inbox, Requests, send_command
from plugstream.runs.decisions import Decisions, Steerage
from plugstream.runs.event_log import EventLog, SilentLog, read_events
from plugstream.runs.events import Steering
from plugstream.runs.steering import Course
from plugstream.settings import Settings, parse_changes
from plugstream.solver.result import Stop


class Told(Group):
    """A process that hears what another one has decided."""

    rank, size = 1, 2

    def __init__(self, other: Decisions, progress: Any) -> None:
        self.other, self.progress = other, progress

    def decide(self, decision: Any) -> Any:
        return self.other._decide(self.progress)


def progress(step: int, wall: float) -> Any:
    return SimpleNamespace(state=SimpleNamespace(k=step), wall=wall)


def test_time_is_that_of_rank_0() -> None:
    first = Decisions(Group(), Requests(), None, time_limit=5.0)
    assert first.after_step(progress(0, 9.0)) is None  # before a step there is nothing to stop
    assert first.after_step(progress(1, 4.9)) is None
    other = Decisions(Told(first, progress(2, 4.9)), Requests(), None, time_limit=5.0)
    assert other.after_step(progress(2, 99.0)) is None
    assert first.after_step(progress(3, 5.0)) is True
    assert first.reason is Stop.TIME
    other = Decisions(Told(first, progress(3, 5.0)), Requests(), None, time_limit=5.0)
    assert other.after_step(progress(3, 0.0)) is True


def test_a_signal_counts_where_rank_0_heard_it_and_once_a_step() -> None:
    requests = Requests(several=True)
    first = Decisions(Group(), requests, None, None)
    requests.came = True
    with pytest.raises(KeyboardInterrupt):
        first.after_step(progress(4, 0.0))
    assert first.after_step(progress(4, 0.0)) is None  # where the last step is measured again
    deaf = Decisions(Group(), Requests(several=True), None, None)
    mine = Requests(several=True)
    mine.came = True
    assert Decisions(Told(deaf, progress(5, 0.0)), mine, None, None).after_step(progress(5, 0.0)) is None


@dataclass(frozen=True)
class Iteration:
    """What can be steered."""

    sigma: float
    step_size: float

    def parameters(self, k: int, state: Any) -> tuple[float, float]:
        return self.step_size, self.sigma


def test_what_is_asked_for_is_heard_by_rank_0_and_done_by_all(tmp_path: Path) -> None:
    def steerage(log: EventLog, folder: Path) -> Steerage:
        return Steerage(Course(parse_changes("3: step=2.0"), log), Inbox(folder, every=0.0), Settings())

    log = EventLog(tmp_path / "events.jsonl")
    first = Decisions(Group(), Requests(), None, None, steerage(log, tmp_path))
    (tmp_path / "elsewhere").mkdir()
    hears = steerage(SilentLog(tmp_path / "none"), tmp_path / "elsewhere")
    algorithm, made = Iteration(0.1, 1.0), []
    for step in (1, 2, 3):
        if step == 2:
            send_command(tmp_path, Command("change", sigma=0.5))
        now = SimpleNamespace(algorithm=algorithm, state=SimpleNamespace(k=step), wall=0.0)
        decided = first._decide(now)
        group = SimpleNamespace(decide=lambda _, decided=decided: decided)
        first.group = group  # type: ignore[assignment]
        other = Decisions(group, Requests(), None, None, hears)  # type: ignore[arg-type]
        answers = [decisions.after_step(now) for decisions in (first, other)]
        assert answers[0] == answers[1]
        made.append(answers[0])
        algorithm = answers[0] or algorithm  # type: ignore[assignment]
    log.close()
    assert made == [None, Iteration(0.5, 1.0), None]  # whoever changed sigma has put the step off that was planned
    assert [event for event in read_events(log.path) if isinstance(event, Steering)] == [Steering(2, "change", 0.5)]
    assert not list((tmp_path / "commands").iterdir())
