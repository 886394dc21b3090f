"""The race for sigma: on problems whose best sigma is known, against a few lines of its own, and to the bit."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream import InputError, LeastSquares, MatrixModel, ProximalGradient, Uniform
from plugstream.algorithms import SigmaRace
from plugstream.algorithms.race import _is_chance
from plugstream.models.part import PartOfData
from plugstream.runs.checkpoints import Checkpoints
from plugstream.solver.result import Snapshot

PIXELS, VIEWS = 64, 12


def shrink(image, sigma):
    """The prox of sigma^2 / 2 ||x||^2: with a step of 1 / L = 1 its fixed point is the mean of the data, shrunk."""
    return image / (1 + sigma**2)


def make_data(noise=1.0, seed=0):
    """Views of one image, each with noise of its own; the model is the identity."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal((1, PIXELS))
    return truth + noise * random.standard_normal((VIEWS, PIXELS))


def make_fidelity(data, gains):
    model = MatrixModel(np.broadcast_to(np.diag(gains), (VIEWS, PIXELS, PIXELS)).copy(), (8, 8), dtype=torch.float64)
    return LeastSquares(model, torch.from_numpy(data))


def make_race(data, start, sampler=None, momentum="none", steps=250, gains=None):
    whole = make_fidelity(data, np.ones(PIXELS) if gains is None else gains)
    held = torch.tensor([3, 8, 11])
    kept = torch.tensor([view for view in range(VIEWS) if view not in held.tolist()])
    fidelity = whole.with_views(whole.model, kept, lipschitz_max=1.0)
    drawn = {} if sampler is None else {"sampler": sampler}
    algorithm = ProximalGradient(fidelity, shrink, sigma=start, step_size=1.0, momentum=momentum, **drawn)
    return SigmaRace(algorithm, held, steps), kept, held


def run(race, state=None):
    state = race.init() if state is None else state
    while not state.ended:
        state = race.step(state)
    return state


@pytest.mark.parametrize(("start", "seed"), [(0.02, 1), (0.5, 2), (12.0, 3)])
def test_it_finds_the_sigma_that_predicts_held_out_views_best(start, seed):
    data = make_data(2.0, seed)
    race, kept, held = make_race(data, start)
    state = run(race)
    mean, judge = data[kept].mean(0), data[held].mean(0)
    part = (mean @ judge) / (mean @ mean)  # that of the mean which comes nearest to the held-out views
    assert 0 < part < 1
    best = math.sqrt(1 / part - 1)
    assert abs(math.log(state.sigma / best)) < math.log(1.3)
    excess = [((mean / (1 + sigma**2) - judge) ** 2).sum() for sigma in (state.sigma, best)]
    assert excess[0] < 1.02 * excess[1]
    assert state.k <= race.steps


@pytest.mark.parametrize("growing", [False, True])
def test_it_is_the_few_lines_that_it_is_said_to_be(growing):
    data = make_data(1.5, 4)
    race, kept, held = make_race(data, 0.3, Uniform(3, seed=5), steps=300)
    race = replace(race, growing=growing)
    draws = Uniform(3, seed=5)
    x, sigma, r, k, left = np.zeros(PIXELS), 0.3, 2.0, 0, 300

    def error(image):
        return ((image - data[held]) ** 2).sum(-1).mean() / 2

    def go(y, sigma, start, end):
        nonlocal left
        left -= end - start
        for step in range(start, end):
            y = shrink(y - (y - data[draws.draw(step, kept).views]).mean(0), sigma)
        return y

    first = before = error(x)
    while True:
        x, k = go(x, sigma, k, k + 12), k + 12
        fell, before = before - error(x), error(x)
        if fell < 0.1 * (before if growing else first - before) or k + 12 > 100:
            break
    turn, streak, rounds, last, m, ended = 0, 0, 0, 0.0, 12, False
    while not ended:
        m = min(m, left // 4 * 2)
        if m < 12:
            sigma *= r ** (0 if growing and streak == 0 else -turn / 2)
            break
        strong, weak = (go(x, side, k, k + m // 2) for side in (sigma * r, sigma / r))
        leads, n, drawn = [error(strong) - error(weak)], m // 2, False
        while True:
            strong, weak, n = go(strong, sigma * r, k + n, k + 2 * n), go(weak, sigma / r, k + n, k + 2 * n), 2 * n
            leads.append(error(strong) - error(weak))
            drawn = n > m and abs(leads[-1]) < 0.05 * abs(last)
            unclear = leads[-1] * leads[-2] < 0 or abs(leads[-1]) < 0.9 * abs(leads[-2])
            if drawn or not unclear or 2 * n > left:
                break
        x = strong if leads[-1] < 0 else weak
        way = 0 if drawn else 1 if leads[-1] < 0 else -1
        streak = 0 if way * turn < 0 or drawn else streak + 1
        r = math.sqrt(r) if streak == 0 else min(2.0, r**2) if streak >= 3 else r
        sigma, turn, last, k, rounds = sigma * r**way, way or turn, leads[-1], k + n, rounds + 1
        m = max(2 * m if streak == 0 else m, n // 4 * 2) if growing else max(12, n // 4 * 2)
        ended = r < 1.05 and error(x) >= 0.995 * before
        before = error(x)
    state = run(race)
    assert state.rounds == rounds
    assert state.sigma == pytest.approx(sigma, rel=1e-12)
    assert state.image.flatten().numpy() == pytest.approx(x, rel=1e-9)
    assert state.misfit == pytest.approx(before, rel=1e-12)
    assert state.k == 300 - left


def test_in_a_hurry_it_is_these_few_lines():
    data = make_data(1.5, 4)
    race, kept, held = make_race(data, 0.3, Uniform(3, seed=5), steps=200)
    race = replace(race, patient=False)
    x, sigma, ratio, turn, k = np.zeros(PIXELS), 0.3, 2.0, 0, 0
    draws = Uniform(3, seed=5)
    error = lambda image: ((image - data[held]) ** 2).sum(-1).mean() / 2  # noqa: E731
    before, rounds = math.inf, 0
    for _ in range(10):
        rounds += 1
        sides = []
        for side in (sigma * ratio, sigma / ratio):
            y = x
            for step in range(10):
                views = draws.draw(k + step, kept).views
                y = shrink(y - (y - data[views]).mean(0), side)
            sides.append((error(y), y, side))
        k += 10
        up = sides[0][0] < sides[1][0]
        (now, x, sigma), way = (sides[0], 1) if up else (sides[1], -1)
        ratio = math.sqrt(ratio) if way * turn < 0 else ratio
        turn = way
        if ratio < 1.1 and now >= 0.995 * before:
            break
        before = now
    state = run(race)
    assert state.rounds == rounds
    assert state.sigma == pytest.approx(sigma, rel=1e-12)
    assert state.image.flatten().numpy() == pytest.approx(x, rel=1e-9)
    assert state.misfit == pytest.approx(now, rel=1e-12)


@pytest.mark.parametrize("gain", [0.5, 0.2])
def test_it_is_right_where_half_of_the_image_is_slow(gain):
    """Pixels that views see less of come to their place in about 1 / gain^2 steps, and want another sigma."""
    random, quick = np.random.default_rng(1), PIXELS // 2
    gains = np.r_[np.ones(quick), np.full(PIXELS - quick, gain)]
    clean = random.standard_normal(PIXELS) * np.r_[np.ones(quick), np.full(PIXELS - quick, 3.0)]
    data = clean + 3 * random.standard_normal((VIEWS, PIXELS))
    race, kept, held = make_race(data, 0.05, gains=gains)
    mean, judge = data[kept].mean(0), data[held].mean(0)

    def excess(sigma):  # of the fixed point of this sigma, pixel by pixel
        return ((gains**2 / (gains**2 + sigma**2) * mean - judge) ** 2).sum()

    best = min(np.geomspace(1e-3, 10, 2000), key=excess)
    found = run(race)
    assert found.k <= race.steps
    assert abs(math.log(found.sigma / best)) < math.log(1.15)
    assert excess(found.sigma) < 1.005 * excess(best)


@pytest.mark.parametrize("growing", [False, True])
def test_where_rounds_grow_the_way_in_lasts_while_the_misfit_falls(growing):
    """A slow problem with little noise: e soon is a small part of the first one, and still falls."""
    race, _, held = make_race(make_data(0.05), 1e-3, gains=np.full(PIXELS, 0.3))
    race = replace(race, growing=growing)
    state, misfits = race.init(), [math.inf]
    while not state.begun:
        state = race.step(state)
        if state.k % 10 == 0:
            misfits.append(float(race.fidelity.value(state.image, held).mean()))
    falls = [1 - after / before for before, after in itertools.pairwise(misfits)]
    assert all(fall >= 0.1 for fall in falls[:-1])
    assert (falls[-1] < 0.1) == growing
    assert state.k < race.steps // 3


def test_both_sides_of_a_round_draw_the_same_views_and_none_that_are_held_out():
    class Noted(Uniform):
        def draw(self, step, available):
            batch = super().draw(step, available)
            drawn.append((step, batch.views.tolist()))
            return batch

    drawn: list = []
    race, kept, _ = make_race(make_data(), 0.5, Noted(3, seed=0))
    state = race.init()
    while not state.begun:
        state = race.step(state)
    drawn.clear()
    for _ in range(20):
        state = race.step(state)
    assert drawn[:5] == drawn[5:10]  # up to the first look, and from there to the next
    assert drawn[10:15] == drawn[15:]
    assert drawn[10][0] == drawn[0][0] + 5
    assert {view for _, views in drawn for view in views} <= set(kept.tolist())


@functools.cache
def whole_race(growing: bool):
    """A race with momentum and random views, and the state in which it ends."""
    race, *_ = make_race(make_data(), 0.5, Uniform(3), momentum="nesterov")
    race = replace(race, growing=growing)
    return race, run(race)


@thorough
@pytest.mark.parametrize(
    ("stop", "growing"),
    effort([(27, False), (60, True)], [(3, False), (20, False), (27, False), (34, False), (60, False), (60, True)]),
)
def test_a_race_that_is_saved_and_goes_on_is_the_same_to_the_bit(tmp_path, stop, growing):
    race, one = whole_race(growing)
    state = race.init()
    for _ in range(stop):
        state = race.step(state)
    saved = Checkpoints(tmp_path, {})
    saved.save(Snapshot(state, 0, 0.0, 0.0, None, None, {}, []))
    again = saved.load().snapshot(race.init()).state
    assert again.k == stop
    other = run(race, again)
    assert one.sigma == other.sigma
    assert torch.equal(one.image, other.image)
    assert torch.equal(one.trunk.s, other.trunk.s)
    assert one.trunk.q == other.trunk.q


def test_the_run_goes_on_with_what_was_found():
    race, *_ = make_race(make_data(), 0.5)
    state = run(race)
    algorithm, start = race.finish(state)
    assert algorithm.sigma == state.sigma
    assert start.k == state.k
    assert torch.equal(start.image, state.image)
    with pytest.raises(InputError, match="has ended; go on with"):
        race.step(state)


def test_a_sigma_that_makes_no_difference_stays():
    race, *_ = make_race(make_data(), 0.5)
    race = replace(race, algorithm=replace(race.algorithm, denoiser=lambda image, sigma: 0.5 * image))
    assert run(race).sigma == 0.5


def test_what_cannot_be_searched_is_refused():
    race, *_ = make_race(make_data(), 0.5)
    for change, text in (
        ({"algorithm": replace(race.algorithm, sigma=0.0)}, "one sigma > 0"),
        ({"algorithm": replace(race.algorithm, sigma=lambda k: 1.0)}, "one sigma > 0"),
        ({"steps": 19}, "at least 20 steps, not 19"),
        ({"held_out": torch.tensor([], dtype=torch.int64)}, "hold some out"),
        ({"held_out": torch.tensor([3, 4])}, "view 4 is held out, but steps may use it"),
    ):
        with pytest.raises(InputError, match=text):
            replace(race, **change)


def make_judged(start, noise=1.0):
    """A race of all views, judged by a tenth of the data of each."""
    whole = make_fidelity(make_data(noise), np.ones(PIXELS))
    left, judge = (whole.with_views(PartOfData(whole.model, 3, judge=which), lipschitz_max=1.0) for which in (0, 1))
    algorithm = ProximalGradient(left, shrink, sigma=start, step_size=1.0, momentum="none")
    return SigmaRace(algorithm, torch.arange(VIEWS), judge=judge)


def test_a_part_of_each_views_data_judges_in_place_of_views():
    race = make_judged(12.0)  # by which next to nothing is left of the image
    state = run(race)
    assert 0.05 < state.sigma < 3
    nothing = replace(state, image=torch.zeros_like(state.image))
    assert float(race.misfit(state)) < 0.8 * float(race.misfit(nothing))
    each = race.judge.values(state.image, race.held_out)
    assert each.shape == (VIEWS,)
    torch.testing.assert_close(each.mean(), race.misfit(state))


def test_a_lead_that_chance_explains_moves_nothing():
    one = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert _is_chance(one, one + 1e-3 * torch.tensor([1.0, -1.0, 1.0, -0.9]))
    assert not _is_chance(one, one + 1e-3 * torch.tensor([1.0, 1.1, 1.0, 0.9]))  # all say the same
    assert not _is_chance(one, one + torch.tensor([1.0, -1.0, 1.0, -0.9]))  # more than next to nothing
    assert not _is_chance(one[:2], one[:2] + 1e-3 * torch.tensor([1.0, -0.9]))  # of two nothing is known
    race = make_judged(0.5)
    flat = replace(race, algorithm=replace(race.algorithm, denoiser=lambda image, sigma: image))
    state = run(flat)  # both sides are alike whatever sigma is
    assert state.sigma == 0.5


@thorough
@pytest.mark.parametrize("pull", effort([4.0, 1e3], [4.0, 20.0, 1e3]))
def test_a_sigma_that_is_expected_counts_as_its_prior_does(pull):
    data = make_data(2.0, 1)
    race, kept, held = make_race(data, 0.5, steps=400)
    expected = 4.0
    state = run(replace(race, expected=expected, pull=pull))
    mean, sigmas = data[kept].mean(0), np.geomspace(0.01, 20, 2000)
    errors = ((mean / (1 + sigmas[:, None, None] ** 2) - data[held]) ** 2).sum(-1).mean(-1) / 2
    best = sigmas[np.argmin(errors + pull * np.log(sigmas / expected) ** 2 / 2)]
    free = sigmas[np.argmin(errors)]
    assert abs(math.log(best / free)) > math.log(1.2)  # so that it makes a difference
    assert abs(math.log(state.sigma / best)) < math.log(1.25)


def test_an_expected_sigma_that_counts_nothing_changes_nothing():
    data = make_data(1.5, 4)
    race, *_ = make_race(data, 0.3, Uniform(3, seed=5))
    one, other = run(race), run(replace(race, expected=4.0, pull=0.0))
    assert one.sigma == other.sigma
    assert torch.equal(one.image, other.image)
