"""What is refined beside the image ends when it has arrived: by how its steps shrink, in the state, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import All, Amplitude, Epochs, Identity, InputError, LossFidelity, ProximalGradient, solve
from plugstream.algorithms.pgm import Refinement, way_left
from plugstream.models.ptychography import PtychographyModel
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.refined import describe_end

N, SIDE, LIMIT, TOLERANCE = 8, 20, 400, 0.025


def sequence(rho: float, count: int, noise: float = 0.0, size: int = 50) -> tuple[torch.Tensor, float]:
    """Steps of x_j = rho^j e + noise, and how far its last member is from zero."""
    draw = np.random.default_rng(0)
    way = draw.standard_normal(size)
    members = np.stack([rho**j * way + noise * draw.standard_normal(size) for j in range(count + 1)])
    return torch.from_numpy(np.diff(members, axis=0)), float(rho**count * np.linalg.norm(way))


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.8])
def test_what_shrinks_by_a_factor_has_the_rest_of_its_series_to_go(rho):
    steps, left = sequence(rho, 4)
    assert float(way_left(steps)) == pytest.approx(left, rel=1e-9)
    noisy, left = sequence(rho, 4, noise=0.05 * rho**4)
    assert left / 3 < float(way_left(noisy)) < 3 * left


def test_what_hovers_has_nowhere_to_go_and_what_does_not_shrink_has_far():
    hovering, _ = sequence(0.0, 12, noise=1.0)
    assert all(float(way_left(hovering[j : j + 3])) == 0 for j in range(1, 9))
    steady = torch.ones(3, 50)
    assert float(way_left(steady)) == pytest.approx(9 * 0.9**0.5 * 50**0.5)
    assert float(way_left(torch.zeros(3, 5))) == 0


def scan(dtype=torch.float64):
    """A small object under a beam that goes over it, and a model whose probe is wrong by a fifth."""
    y, x = np.indices((N, N)) - (N - 1) / 2
    probe = 30 * np.exp(-(y**2 + x**2) / 12 + 0.1j * (y**2 + x**2))
    grid = np.arange(0, SIDE - N + 1, 3)
    places = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2).astype(float)
    rows, columns = np.indices((SIDE, SIDE)) / SIDE
    texture = 0.1 * np.random.default_rng(0).standard_normal((SIDE, SIDE))
    truth = torch.from_numpy((1 - 0.3 * (rows > 0.5)) * np.exp(1j * (texture + np.sin(7 * columns))))
    counts = PtychographyModel(places, probe, (SIDE, SIDE), dtype=dtype).forward(truth).abs().square().sum(-3)
    model = PtychographyModel(places, probe * (1 + 0.2 * np.exp(1j * y)), (SIDE, SIDE), dtype=dtype)
    return LossFidelity(model, counts, Amplitude())


def algorithm(fidelity, **settings):
    usual = {"sigma": 0.0, "step_size": "overlap", "sampler": Epochs(5, seed=1), "momentum": "bounded"}
    usual |= {"refine": ("probe",), "refine_steps": LIMIT}
    return ProximalGradient(fidelity, Identity(), **(usual | settings))


def test_a_probe_stays_once_it_has_arrived_and_five_times_the_steps_move_it_no_farther():
    fidelity = scan()
    made = algorithm(fidelity, refine_tolerance=TOLERANCE)
    state = made.init()
    while not state.refinement.ended and state.k < LIMIT:
        state = made.step(state)
    assert 0 < state.refinement.ended == state.k < LIMIT / 2
    arrived = "probe: arrived at step "
    assert describe_end(made, state).startswith(arrived)
    later = made.step(made.step(state))
    assert later.parameters["probe"] is state.parameters["probe"]
    assert later.refinement is state.refinement
    assert made.parameters(state.k + 1, state)[1] == made.sigma  # denoising begins
    further = solve(algorithm(fidelity, refine_steps=None), iterations=5 * state.k).state
    one, other = (fidelity.comparable(s.parameters, ("probe",))["probe"] for s in (state, further))
    start = fidelity.comparable(fidelity.parameters, ("probe",))["probe"]
    assert float((one - other).norm()) < 3 * TOLERANCE
    assert float((one - other).norm()) < 0.5 * float((start - other).norm())


def test_where_the_limit_comes_first_it_says_how_far_it_was():
    made = algorithm(scan(), refine_tolerance=1e-9, refine_steps=60)
    state = made.init()
    for _ in range(61):
        state = made.step(state)
    assert state.refinement.ended == 60
    said = describe_end(made, state)
    assert "fixed at step 60, the limit, before they had arrived" in said
    assert "give more --refine-steps" in said


def test_how_it_has_moved_survives_a_checkpoint_so_that_the_end_is_the_same(tmp_path):
    made = algorithm(scan(torch.float32), refine_tolerance=TOLERANCE)
    whole, states = made.init(), []
    while not whole.refinement.ended:
        whole = made.step(whole)
        states.append(whole)
    snapshots = []
    begun = len(states) - 7  # in the middle of its last pass
    solve(made, iterations=begun, callbacks=[lambda p: snapshots.append(p.snapshot()) if p.state.k == begun else None])
    checkpoints = Checkpoints(tmp_path / "checkpoints", {})
    checkpoints.save(snapshots[0])
    state = checkpoints.load().snapshot(made.init()).state
    assert (state.refinement.count, state.refinement.ended) == (states[begun - 1].refinement.count, 0)
    while not state.refinement.ended:
        state = made.step(state)
    assert state.k == whole.k
    assert torch.equal(state.image, whole.image)
    assert torch.equal(state.parameters["probe"], whole.parameters["probe"])
    assert torch.equal(state.refinement.left, whole.refinement.left)


def test_a_pass_of_all_views_at_once_is_eight_steps():
    made = algorithm(scan(), refine_tolerance=1e-9, sampler=All())
    state = made.init()
    for _ in range(32):
        state = made.step(state)
        assert (state.refinement.left is None) == (state.k < 32)
    assert state.refinement.steps.shape[0] == 3


def test_without_a_tolerance_nothing_is_followed_and_what_cannot_be_is_refused():
    fidelity = scan()
    assert algorithm(fidelity).init().refinement is None
    with pytest.raises(InputError, match="leave one of them out"):
        algorithm(fidelity, refine_tolerance=0.02, refine_pace=0.5)
    with pytest.raises(InputError, match="tolerance > 0"):
        algorithm(fidelity, refine_tolerance=0.0)
    assert Refinement().follow(1, {}, 5, 25, 0.1) == Refinement()
