"""A search by runs in which sigma and the step fall together: against its formula in NumPy, and what it finds."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from plugstream import ADMM, FromFunction, InputError, LeastSquares, ProximalGradient
from plugstream.algorithms import All, Epochs, FallingHeat, FallingSearch, Rival
from plugstream.models.matrix import MatrixModel

FALL = 5


def shrink(z, sigma):
    """The prox of sigma^2 |x|^2 / 2: what a Gaussian prior of variance 1 asks for."""
    return z / (1 + sigma**2)


def problem(noise, views=12, rows=8, pixels=16, out=2, seed=0):
    """White images seen by random views with noise, the last of which are held out."""
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((views, rows, pixels)) / math.sqrt(pixels)
    x = draw.standard_normal(pixels)
    y = a @ x + noise * draw.standard_normal((views, rows))
    model = MatrixModel(torch.from_numpy(a), (4, pixels // 4))
    whole = LeastSquares(model, torch.from_numpy(y))
    kept = torch.arange(views - out)
    fewer = whole.with_views(model, kept, lipschitz_max=whole.lipschitz_max)
    algorithm = ADMM(fewer, FromFunction(shrink), sigma=0.1, step_size=0.3)
    return a, y, whole, FallingSearch(algorithm, torch.arange(views - out, views), 400, growing=True, fall=FALL)


def run(search):
    state = search.init()
    while not state.ended:
        state = search.step(state)
    return state


def test_a_run_is_admm_with_the_unscaled_dual_of_each_gamma():
    a, y, whole, search = problem(0.3)
    matrix = np.concatenate(a[:10]).T @ np.concatenate(a[:10]) / 10
    right = np.concatenate(a[:10]).T @ np.concatenate(y[:10]) / 10
    lam = 0.1**2 / 0.3
    first = min(3.75 * 0.1, math.sqrt(500 * lam / whole.lipschitz_max))
    x, u = np.zeros(16), np.zeros(16)  # u = s / gamma
    state = search.init()
    for k in range(FALL):
        sigma = first * (0.1 / first) ** (k / (FALL - 1))
        gamma = sigma**2 / lam
        z = np.linalg.solve(np.eye(16) + gamma * matrix, x - gamma * u + gamma * right)
        x = shrink(z + gamma * u, sigma)
        u = u + (z - x) / gamma
        state = search.step(state)
        np.testing.assert_allclose(state.image.flatten().numpy(), x, atol=2e-4)
    residual = np.concatenate(a[10:]) @ x - np.concatenate(y[10:])
    assert state.misfits[0] == pytest.approx(residual @ residual / 4, rel=1e-3)


@pytest.mark.parametrize("target", [-4.3, -2.2, -0.2, 0.4, 6.1])
def test_lam_is_found_at_the_bottom_of_the_misfit(target, monkeypatch):
    """A misfit that is a parabola of log(lam), whose bottom is found wherever it is."""
    a, _, _, search = problem(0.3)
    ended: list[int] = []
    state = search.init()

    def misfit(self, side):
        ended.append(state.power)
        return 1 + (state.power - target) ** 2, None

    monkeypatch.setattr(FallingSearch, "_look", misfit)
    while not state.ended:
        state = search.step(state)
    assert state.place_found == pytest.approx(target)
    curvature = np.concatenate(a[:10])[:, 10] @ np.concatenate(a[:10])[:, 10] / 10  # of the pixel (2, 2) of 4 x 4
    assert search.found_step(state) == pytest.approx(
        max(0.3 / 2**target, min(0.3 / 2 ** (target - 0.5), 0.55 / curvature))
    )
    assert list(state.powers) == ended
    assert len(set(ended)) == len(ended) <= 3 + 6


@pytest.mark.parametrize(("noise", "order"), [(0.3, 1), (0.01, -1)])
def test_the_side_of_the_noise_is_tried_first(noise, order, monkeypatch):
    """Of two minima of the misfit the one on that side is found, where neighbours of the first run are equally good."""
    search = replace(problem(noise)[-1], fall=2)
    misfits = {0: 1.0, 1: 0.9, -1: 0.9, 2: 1.1, -2: 1.1}
    scale = search._weight(order) * 10 * 8 / (2 * 0.64)  # as of noise that asks for the neighbour on that side
    monkeypatch.setattr(FallingSearch, "_look", lambda self, side: (scale * misfits[state.power], None))
    state = search.init()
    while not state.ended:
        state = search.step(state)
    assert state.powers == (0, order, 2 * order)


@pytest.mark.parametrize("target", [-9.3, -2.6])
def test_a_long_step_lowers_the_last_sigma_instead(target, monkeypatch):
    """gamma L ends at 150 at most, and lam = sigma^2 / gamma is what was found."""
    search = replace(problem(0.3)[-1], growing=False)  # whose misfit says nothing of noise
    monkeypatch.setattr(FallingSearch, "_look", lambda self, side: (1 + (state.power - target) ** 2, None))
    state = search.init()
    while not state.ended:
        state = search.step(state)
    longest = 150 / search.fidelity.lipschitz_max
    gamma = search.found_step(state)
    assert gamma == pytest.approx(min(0.3 / 2**target, longest))  # as long as that of the best run, since it is long
    assert state.sigma == pytest.approx(min(0.1, math.sqrt(0.1**2 / 0.3 * 2**target * longest)))
    algorithm, start = search.finish(state)
    assert (algorithm.sigma, algorithm.step_size) == (state.sigma, gamma)
    best = state.powers[int(np.argmin(state.misfits))]
    assert torch.allclose(start.s, state.trunk.s * (gamma / min(0.3 / 2.0**best, longest)))


def test_an_averaged_denoiser_keeps_the_weight_that_was_found(monkeypatch):
    search = problem(0.3)[-1]
    search = replace(search, algorithm=replace(search.algorithm, denoiser=FromFunction(shrink, averaged=0.5)))
    monkeypatch.setattr(FallingSearch, "_look", lambda self, side: (1 + (state.power - 0.4) ** 2, None))
    state = search.init()
    while not state.ended:
        state = search.step(state)
    assert state.sigma**2 / search.found_step(state) == pytest.approx(0.1**2 / 0.3 * 2**0.4)


def arrive(search, state):
    """What a search found, gone on with for as many steps as two runs: the algorithm, the state, and what is expected
    of its misfit."""
    algorithm, state = search.finish(state)
    misfits = []
    for _ in range(2):
        for _ in range(FALL):
            state = algorithm.step(state)
        misfits.append(float(search.misfit(state)))
    return algorithm, state, misfits[1] * max(1.0, misfits[1] / misfits[0]) ** 8


def heat_of(own, *rivals):
    return FallingHeat(**{field.name: getattr(own, field.name) for field in fields(own)}, rivals=rivals)


@pytest.mark.parametrize(("offset", "shift", "chosen"), [(0.3, 2, 1), (-0.3, 1, 0), (0.0, 0, 0)])
def test_among_denoisers_each_search_is_that_of_its_own(offset, shift, chosen):
    """The least misfit of what each comes to wins, and of two that are equal (another sigma for the same prior) the
    first. The rival begins where the first ended, and so many powers further."""
    own = problem(0.3)[-1]
    denoiser = FromFunction(lambda z, sigma: z / (1 + sigma**2 / 4) + offset * sigma**2)
    alone = replace(own, algorithm=replace(own.algorithm, denoiser=denoiser, sigma=0.2))
    heat = heat_of(own, Rival("other", denoiser, 2.0, shift=shift))
    first = run(own)
    second = replace(alone.init(), power=round(first.place_found) + shift)
    while not second.ended:
        second = alone.step(second)
    state, ends = run(heat), [arrive(own, first), arrive(alone, second)]
    assert list(state.heat) == [misfit for *_, misfit in ends]
    algorithm, end, _ = ends[chosen]
    assert state.entrant == chosen
    assert state.k == state.rival.k + sum(one.used + 2 * FALL for one in (first, second))
    assert heat.found_step(state) == algorithm.step_size
    final, start = heat.finish(state)
    assert (final.sigma, final.step_size) == (algorithm.sigma, algorithm.step_size)
    assert final.denoiser is algorithm.denoiser
    assert torch.equal(start.image, end.image)
    assert torch.equal(start.s, end.s)


def test_a_denoiser_is_judged_by_what_it_comes_to_and_not_by_a_run():
    """One that spoils the image a little in every call is better after few of them."""
    own = problem(0.3)[-1]
    calls: list[int] = []

    def spoil(z, sigma):
        calls.append(1)
        return shrink(z, sigma) + (3.0 if len(calls) > 100 else 0.0)

    good, late = Rival("good", FromFunction(shrink), 1.0), run(own)
    assert len(late.powers) * FALL < 100  # the search is over by then; it is what follows that is spoilt
    spoilt = replace(own, algorithm=replace(own.algorithm, denoiser=FromFunction(spoil)))
    calls.extend([1] * (99 - len(late.powers) * FALL))
    state = run(heat_of(spoilt, good))
    assert state.entrant == 1
    assert state.heat[0] > 2 * state.heat[1]


@pytest.mark.parametrize(
    ("level", "shift", "runs", "on"), [(1.05, 1, 3, 2 * FALL), (1.3, 1, 3, 0), (2.0, 1, 1, 0), (1.05, 0, 1, 0)]
)
def test_a_rival_far_behind_gives_up(level, shift, runs, on, monkeypatch):
    """Its misfit is that of the first times `level`, whatever its lam."""

    def misfit(self, side):
        power = state.power if state.place_found is None else state.place_found
        return (level if state.entrant == 1 else 1.0) * (1 + (power - 0.2) ** 2 / 10), None

    monkeypatch.setattr(FallingSearch, "_look", misfit)
    heat = heat_of(replace(problem(0.3)[-1], growing=False), Rival("other", FromFunction(shrink), shift=shift))
    state = heat.init()
    while not state.ended:
        state = heat.step(state)
    assert state.entrant == 0
    assert state.k == 3 * FALL + 2 * FALL + runs * FALL + on


@pytest.mark.parametrize(("margin", "chosen"), [(0.04, 1), (0.06, 0)])
def test_a_rival_must_be_better_by_more_than_chance(margin, chosen, monkeypatch):
    """Its misfit is lower by a tenth, which must be two margins."""
    monkeypatch.setattr(FallingSearch, "_look", lambda self, side: (0.9 if state.entrant == 1 else 1.0, None))
    heat = replace(heat_of(problem(0.3)[-1], Rival("other", FromFunction(shrink))), margin=margin)
    state = heat.init()
    while not state.ended:
        state = heat.step(state)
    assert state.entrant == chosen


def test_it_goes_on_from_the_best_run_with_its_dual_and_the_step_found():
    _, _, whole, search = problem(0.3)
    state = run(search)
    algorithm, start = search.finish(state, replace(search.algorithm, fidelity=whole))
    assert (algorithm.sigma, algorithm.step_size) == (0.1, search.found_step(state))
    assert start.k == state.k == FALL * len(state.powers)
    assert torch.equal(start.image, state.trunk.image)
    best = state.powers[int(np.argmin(state.misfits))]
    gamma = 0.3 / 2.0**best
    torch.testing.assert_close(start.s / algorithm.step_size, state.trunk.s / gamma)
    for _ in range(60):
        start = algorithm.step(start)
    size = float(start.image.square().sum())
    assert float(algorithm.residual(start)) < 1e-8 * size  # the fixed point of P at this gamma and sigma
    with pytest.raises(InputError, match="has ended"):
        search.step(state)


def test_too_few_steps_end_it_with_the_best_run_so_far():
    search = replace(problem(0.3)[-1], steps=22)
    state = run(search)
    assert state.used == 20
    assert state.place_found == state.powers[int(np.argmin(state.misfits))] or len(state.powers) > 3


def test_what_cannot_be_is_refused():
    search = problem(0.3)[-1]
    with pytest.raises(InputError, match="2 steps at least"):
        replace(search, fall=1)
    with pytest.raises(InputError, match="for ADMM"):
        replace(search, algorithm=ProximalGradient(search.algorithm.fidelity, FromFunction(shrink), sigma=0.1))
    with pytest.raises(InputError, match="for ADMM"):
        replace(search, algorithm=replace(search.algorithm, dual=False))


def test_of_many_views_runs_use_some_and_the_step_is_for_all():
    _, _, whole, search = problem(0.3, views=22)
    few = replace(search, most=5, algorithm=replace(search.algorithm, sampler=All()))
    state = run(few)
    views = torch.tensor([0, 4, 8, 12, 16])
    fewer = whole.with_views(whole.model, views, lipschitz_max=whole.lipschitz_max)
    alone = replace(search, algorithm=replace(search.algorithm, fidelity=fewer))
    same = run(alone)
    assert (state.powers, state.misfits) == (same.powers, same.misfits)
    assert torch.equal(state.image, same.image)
    assert few.found_step(state) == pytest.approx(4 * alone.found_step(same))  # 20 views, where runs have 5
    algorithm, start = few.finish(state)
    assert algorithm.sampler == All()
    assert algorithm.step_size == few.found_step(state)
    torch.testing.assert_close(start.s, alone.finish(same)[1].s * 4)
    heats = [heat_of(one, Rival("same", FromFunction(shrink))) for one in (few, alone)]
    ends = [run(heat) for heat in heats]
    assert ends[0].heat == ends[1].heat  # what they come to is judged by the views of the runs as well
    (large, s), (small, t) = ((*heat.finish(end),) for heat, end in zip(heats, ends, strict=True))
    assert large.step_size == pytest.approx(4 * small.step_size)
    torch.testing.assert_close(s.s, 4 * t.s)
    assert replace(few, algorithm=replace(few.algorithm, sampler=Epochs(5)))._views is None
