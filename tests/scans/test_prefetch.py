"""Reading ahead: the right data, whatever is expected and asked for, and never more than a few batches of it."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import given, strategies as st

from plugstream import InputError, Uniform
from plugstream.algorithms.sampling import All, Announcer
from plugstream.scans.prefetch import Prefetcher
from waiting import wait_until


class Source:
    """View i reads as i; counts what is read, slowly if asked to, and fails for views that are marked."""

    def __init__(self, views: int = 50, pause: float = 0.0) -> None:
        self.n_views, self.pause = views, pause
        self.threads: list[str] = []
        self.bad: set[int] = set()

    def read(self, views=None):
        self.threads.append(threading.current_thread().name)
        time.sleep(self.pause)
        views = torch.arange(self.n_views) if views is None else views
        if self.bad & set(views.tolist()):
            raise InputError("damaged")
        return views.float()


@given(data=st.data())
def test_what_is_read_is_what_was_asked_for(data):
    batch = st.lists(st.integers(0, 49), min_size=1, max_size=4)
    with Prefetcher(Source(), threads=2, keep=3) as ahead:
        for _ in range(data.draw(st.integers(1, 15))):
            views = data.draw(batch)
            if data.draw(st.booleans()):
                ahead.expect(
                    [torch.tensor(v) for v in data.draw(st.lists(st.one_of(st.just(views), batch), max_size=5))]
                )
            assert ahead.read(torch.tensor(views)).tolist() == views
            assert len(ahead._coming) <= 3
        assert len(ahead.read()) == 50


def test_a_sampler_that_announces_is_read_by_other_threads():
    source = Source(pause=0.001)
    with Prefetcher(source, threads=2) as ahead:
        sampler = Announcer(Uniform(4, seed=3), ahead.expect, ahead=2)
        for step in range(20):
            views = sampler.draw(step, torch.arange(50)).views
            assert torch.equal(views, Uniform(4, seed=3).draw(step, torch.arange(50)).views)
            assert torch.equal(ahead.read(views), views.float())
    assert all(name.startswith("plugstream-read") for name in source.threads)
    assert 20 <= len(source.threads) <= 22  # every batch once, and up to two beyond the last
    told = []
    assert Announcer(All(), told.append).draw(0, torch.arange(50)).views is None
    assert told == []


def test_a_step_is_drawn_once_and_anew_when_other_views_are_available():
    class Counted(Uniform):
        def draw(self, step, available):
            steps.append(step)
            return super().draw(step, available)

    steps, some, more = [], torch.arange(40), torch.arange(50)
    sampler = Announcer(Counted(4), lambda batches: None, ahead=2)
    for step in range(5):
        sampler.draw(step, some)
    assert steps == list(range(7))
    for step, available in ((5, more), (2, more), (3, some), (3, some)):  # grown, resumed from before, as it was
        assert torch.equal(sampler.draw(step, available).views, Uniform(4).draw(step, available).views)
    assert len(steps) == 7 + 3 + 3 + 3


def test_the_next_batches_are_read_before_they_are_asked_for():
    source = Source()
    with Prefetcher(source, threads=2) as ahead:
        sampler = Announcer(Uniform(4), ahead.expect, ahead=2)
        ahead.read(sampler.draw(0, torch.arange(50)).views)
        wait_until(lambda: len(source.threads) >= 3)
        assert len(source.threads) == 3
        ahead.read(sampler.draw(1, torch.arange(50)).views)
        ahead.read(sampler.draw(2, torch.arange(50)).views)
        assert source.threads.count(threading.current_thread().name) == 0


def test_an_error_comes_where_its_batch_is_asked_for():
    source = Source()
    source.bad = {7}
    with Prefetcher(source) as ahead:
        ahead.expect([torch.tensor([7]), torch.tensor([8])])
        assert ahead.read(torch.tensor([8])).tolist() == [8]
        with pytest.raises(InputError, match="damaged"):
            ahead.read(torch.tensor([7]))
    with pytest.raises(InputError, match="at least one thread"):
        Prefetcher(source, threads=0)
