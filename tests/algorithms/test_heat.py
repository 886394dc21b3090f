"""The heat of denoisers in a race for sigma: against a few lines of its own, where it is clear who wins, to the bit."""

import functools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from effort import effort
from plugstream import InputError, LeastSquares, MatrixModel, ProximalGradient, Uniform
from plugstream.algorithms import DenoiserRace, Rival, SigmaRace
from plugstream.algorithms.heat import value_range
from plugstream.denoisers import as_denoiser
from plugstream.runs.checkpoints import Checkpoints
from plugstream.solver.result import Snapshot

PIXELS, VIEWS, HELD = 64, 12, torch.tensor([3, 8, 11])


def towards(place):
    """The prox of sigma^2 / 2 ||x - place||^2: a prior of images near this one."""
    return as_denoiser(lambda image, sigma: (image + sigma**2 * place.reshape(8, 8)) / (1 + sigma**2))


TRUTH = torch.from_numpy(np.random.default_rng(0).standard_normal(PIXELS))
ZERO, GOOD, BAD = towards(0 * TRUTH), towards(0.9 * TRUTH), towards(-2 * TRUTH)
NAN = as_denoiser(lambda image, sigma: image * torch.nan)


def make_race(*rivals, own=ZERO, margin=0.0, patient=True, start=0.3, steps=100):
    noise = 2 * torch.from_numpy(np.random.default_rng(1).standard_normal((VIEWS, PIXELS)))
    model = MatrixModel(torch.eye(PIXELS).expand(VIEWS, -1, -1).contiguous(), (8, 8), dtype=torch.float64)
    whole = LeastSquares(model, TRUTH + noise)
    kept = torch.tensor([view for view in range(VIEWS) if view not in HELD.tolist()])
    fidelity = whole.with_views(model, kept, lipschitz_max=1.0)
    algorithm = ProximalGradient(
        fidelity, own, sigma=start, step_size=0.5, momentum="bounded", sampler=Uniform(4, seed=2)
    )
    if not rivals:
        return SigmaRace(algorithm, HELD, steps, patient)
    named = tuple(
        Rival(f"rival {n}", *(rival if isinstance(rival, tuple) else (rival,))) for n, rival in enumerate(rivals)
    )
    return DenoiserRace(algorithm, HELD, steps, patient, rivals=named, margin=margin)


def run(race, state=None, until=lambda state: state.ended):
    state = race.init() if state is None else state
    while not until(state):
        state = race.step(state)
    return state


@functools.cache
def run_through(*rivals, **how):
    """The last state of a race, computed once for all tests that compare with it."""
    return run(make_race(*rivals, **how))


@pytest.mark.parametrize("patient", [False, True])
def test_the_better_prior_wins_and_the_race_goes_on_with_it(patient):
    race = make_race(BAD, (GOOD, 1.5), patient=patient)
    alone, state = run_through(patient=patient), run(race)
    assert (state.choice, race.rivals[state.choice - 1].name) == (2, "rival 1")
    assert state.misfit < alone.misfit
    assert float((state.image.flatten() - TRUTH).norm()) < 0.7 * float((alone.image.flatten() - TRUTH).norm())
    assert state.k == state.used + 3 * race.length
    assert state.used <= race.steps + 4 * race.length  # two rounds for the rival's own sigma
    assert state.rounds > alone.rounds
    going, start = race.finish(state)
    assert (going.denoiser, going.sigma, start.k) == (GOOD, state.sigma, state.k)


@pytest.mark.parametrize("patient", [False, True])
def test_a_heat_is_the_few_lines_that_it_is_said_to_be(patient):
    """Up to the heat it is the race for sigma alone; then all start from its last state, on the same views."""
    race, plain = make_race((BAD, 0.5), (GOOD, 1.5, 1.1), patient=patient), make_race(patient=patient)
    state = run(race, until=lambda state: state.entrant is not None)
    same = run(plain)
    assert same.k == state.k
    shared = [field.name for field in fields(same.trunk) if field.name not in ("image", "s")]
    assert all(getattr(same.trunk, name) == getattr(state.trunk, name) for name in shared)
    assert torch.equal(same.trunk.s, state.trunk.s)
    assert same.sigma == state.sigma
    misfits, ends = [], []
    for denoiser, sigma in ((ZERO, same.sigma), (BAD, 0.5 * same.sigma), (GOOD, 1.5 * same.sigma**1.1)):
        algorithm = replace(race.algorithm, denoiser=denoiser, sigma=sigma)
        side = state.trunk
        for _ in range(plain.length):
            side = algorithm.step(side)
        misfits.append(float(race.fidelity.value(side.image, HELD)))
        ends.append(side.image)
    over = run(race, state, until=lambda state: state.decided)
    assert list(over.heat) == misfits
    assert over.misfit == min(misfits) == misfits[2]
    assert torch.equal(over.trunk.image, ends[2])
    assert over.sigma == 1.5 * state.sigma**1.1
    assert over.ratio == 2**0.5


def test_its_own_denoiser_stays_unless_a_rival_is_better_by_the_margin():
    assert run_through(BAD).choice == 0
    assert run_through(ZERO).choice == 0  # itself
    heat = run_through(GOOD).heat
    gain = 1 - heat[1] / heat[0]
    assert gain > 0
    assert run_through(GOOD, margin=1.01 * gain).choice == 0
    assert run_through(GOOD, margin=0.99 * gain).choice == 1


@pytest.mark.parametrize("patient", [False, True])
def test_where_its_own_denoiser_stays_the_rounds_are_those_of_the_race_for_sigma_alone(patient):
    race = make_race(BAD, patient=patient)
    state, alone = run(race), run_through(patient=patient)
    assert (state.sigma, state.rounds, state.used, state.misfit) == (
        alone.sigma,
        alone.rounds,
        alone.used,
        alone.misfit,
    )
    assert state.k == alone.k + 2 * race.length
    assert torch.equal(state.image, alone.image)
    assert torch.equal(state.trunk.s, alone.trunk.s)


def test_an_image_that_is_not_finite_never_wins():
    assert run_through(NAN).choice == 0
    assert run_through(NAN, GOOD).choice == 2
    broken = make_race(GOOD, own=ZERO)
    state = run(broken, until=lambda state: state.entrant is not None)
    own = replace(broken, algorithm=replace(broken.algorithm, denoiser=NAN))
    assert run(own, state, until=lambda state: state.decided).choice == 1


def test_the_heat_comes_with_the_last_round_where_sigma_never_turns():
    race = make_race(GOOD, start=1e-6, steps=40, patient=False)
    state = run(race, until=lambda state: state.entrant is not None)
    assert state.streak > 0
    assert state.used == race.steps
    state = run(race, state)
    assert state.decided
    assert state.k == state.used + 2 * race.length


@pytest.mark.parametrize("rounds", [6, 9])
def test_a_rival_has_two_rounds_at_least_for_its_own_sigma(rounds):
    """However many of its own the race has had: here it is said to be over after so many."""
    race = make_race(GOOD, patient=False)
    state = run(race, until=lambda state: state.rounds == rounds and state.entrant is None)
    state = run(race, race._begin_round(replace(state, ended=True), state.trunk))
    assert state.choice == 1
    assert state.rounds >= rounds + 2
    assert state.used <= race.steps + 4 * race.length


def test_a_race_that_is_stopped_anywhere_in_the_heat_goes_on_to_the_bit(tmp_path):
    race = make_race(BAD, (GOOD, 1.5), steps=100)
    state = run(race, until=lambda state: state.entrant is not None)
    one = run(race)
    for place in range(3 * race.length + 1):
        if place % effort(7, 1):
            state = race.step(state)
            continue
        saved = Checkpoints(tmp_path / f"{state.k}", {})
        saved.save(Snapshot(state, 0, 0.0, 0.0, None, None, {}, []))
        other = run(race, saved.load().snapshot(race.init()).state)
        assert (one.k, one.sigma, one.choice) == (other.k, other.sigma, other.choice)
        assert torch.equal(one.image, other.image)
        assert torch.equal(one.trunk.s, other.trunk.s)
        state = race.step(state)
    assert state.decided


@pytest.mark.parametrize(("change", "text"), [({"rivals": ()}, "needs a rival"), ({"margin": 1.0}, "from 0 to 1")])
def test_what_cannot_be_is_refused(change, text):
    with pytest.raises(InputError, match=text):
        replace(make_race(GOOD), **change)


def good_then_bad(good, steps):
    """A prior that is good for so many of its steps in the heat and bad after them, as one that gathers noise."""
    count = {"calls": 0}

    def denoise(image, sigma):
        count["calls"] += 1
        return (good if count["calls"] <= steps else BAD)(image, sigma)

    return as_denoiser(denoise)


def other_race(denoiser, *, factors=(0.5, 1.5, 3.0), margin=0.0):
    """A rival to which sigma means something else: it enters with several and must prove itself with its own."""
    rivals = [(denoiser, factor, 1.0, 0.0, 4, True, 3.0) for factor in factors]
    return make_race(*rivals, margin=margin)


def test_a_rival_that_must_prove_itself_wins_with_the_best_of_its_sigmas_and_more_rounds():
    race = other_race(GOOD)
    state = run(race)
    assert state.choice == 1 + int(np.argmin(state.heat[1:]))
    assert state.proof == state.misfit < state.heat[0]
    assert state.used <= race.steps + 8 * race.length
    assert race._grows(state)
    assert not race.growing


def test_a_rival_that_does_not_prove_itself_leaves_the_race_as_if_it_had_not_been_there():
    """It is ahead in the heat, and worse once it has looked for a sigma of its own."""
    race = other_race(good_then_bad(GOOD, 4), factors=(1.5,))
    state, alone = run(race), run_through()
    assert state.leader == 1
    assert state.heat[1] < state.heat[0] <= state.proof
    assert (state.choice, state.sigma, state.misfit) == (0, alone.sigma, state.heat[0])
    assert torch.equal(state.image, alone.image)
    assert torch.equal(state.trunk.s, alone.trunk.s)
    going, _ = race.finish(state)
    assert (going.denoiser, going.sigma) == (ZERO, alone.sigma)


def test_a_rival_proves_itself_by_so_many_margins():
    proof = run(other_race(GOOD))
    gain = 1 - proof.proof / proof.heat[0]
    assert gain > 0
    assert run(other_race(GOOD, margin=0.32 * gain)).choice > 0
    assert run(other_race(GOOD, margin=0.34 * gain)).choice == 0


def test_a_race_with_a_rival_that_proves_itself_goes_on_to_the_bit(tmp_path):
    race = other_race(GOOD)
    one = run(race)
    state = run(race, until=lambda state: state.decided)
    for place in range(2 * race.length + 1):
        if place % effort(5, 1) == 0:
            saved = Checkpoints(tmp_path / f"{state.k}", {})
            saved.save(Snapshot(state, 0, 0.0, 0.0, None, None, {}, []))
            other = run(race, saved.load().snapshot(race.init()).state)
            assert (one.k, one.sigma, one.choice, one.proof) == (other.k, other.sigma, other.choice, other.proof)
            assert torch.equal(one.image, other.image)
        state = race.step(state)


def test_a_level_of_noise_follows_a_weight_as_the_units_of_both_ask():
    """Images c times as large have a weight of TV sqrt(c) times as large, and noise c times as large."""
    rival = Rival("noise", ZERO, 0.3, 1.0, unit=0.5)
    image = torch.rand(9, 9, 9, generator=torch.Generator().manual_seed(0))
    for c in (0.01, 7.0):
        assert rival.sigma(0.2 * c**0.5, c * image) == pytest.approx(c * rival.sigma(0.2, image))
    assert value_range(image) == pytest.approx(1, rel=0.02)
    assert value_range(torch.polar(image, 9 * image)) == pytest.approx(value_range(image))
