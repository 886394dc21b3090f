"""What rank 0 decides once a step, and that others do as it says, whatever their own clock and signals say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plugstream.ranks import Group
from plugstream.result import Stop
from plugstream.runs.decisions import Decisions
from plugstream.runs.signals import Requests


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
