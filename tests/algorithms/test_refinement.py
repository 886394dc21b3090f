"""Steps that follow the overlap of views, and parameters of a model that are found along with the image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream import (
    ADMM,
    All,
    Amplitude,
    Distance,
    Epochs,
    Identity,
    InputError,
    LossFidelity,
    MatrixModel,
    Overlap,
    Poisson,
    ProximalGradient,
    Sharded,
    Uniform,
    process_group,
    solve,
)
from plugstream.base.schedules import Cooling, parse_step
from plugstream.models.ptychography import PtychographyModel
from plugstream.runs.checkpoints import Checkpoints

N, SIDE = 8, 20


def scan(loss=None, probe_error: float = 0.0, dtype=torch.float64):
    """A small object, and a beam that goes over it in steps of three pixels."""
    y, x = np.indices((N, N)) - (N - 1) / 2
    probe = 30 * np.exp(-(y**2 + x**2) / 12 + 0.1j * (y**2 + x**2))
    grid = np.arange(0, SIDE - N + 1, 3)
    places = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2).astype(float)
    rows, columns = np.indices((SIDE, SIDE)) / SIDE
    texture = 0.1 * np.random.default_rng(0).standard_normal((SIDE, SIDE))  # so that no pixel is dark by symmetry
    truth = torch.from_numpy((1 - 0.3 * (rows > 0.5)) * np.exp(1j * (texture + np.sin(7 * columns))))
    counts = PtychographyModel(places, probe, (SIDE, SIDE), dtype=dtype).forward(truth).abs().square().sum(-3)
    off = probe * (1 + probe_error * np.exp(1j * y))
    model = PtychographyModel(places, off, (SIDE, SIDE), dtype=dtype)
    return LossFidelity(model, counts, loss or Amplitude()), truth


def algorithm(fidelity, **settings):
    usual = {"sigma": 0.0, "step_size": "overlap", "sampler": Epochs(5, seed=1)}
    return ProximalGradient(fidelity, Identity(), **(usual | settings))


def test_steps_are_read():
    assert parse_step("overlap") == Overlap(1.0)
    assert parse_step(" 0.5 overlap") == parse_step("0.5*overlap") == Overlap(0.5)
    for text in ("overlaps", "x overlap", "-1 overlap"):
        with pytest.raises(InputError, match="step"):
            parse_step(text)


def test_the_step_is_1_over_l_of_the_batch_and_the_losses_agree():
    fidelity, _ = scan()
    made = algorithm(fidelity)
    state = made.init()
    for k in (1, 4):
        views = made.sampler.draw(k - 1, fidelity.available).views
        largest = float(fidelity.model.overlap(views).max()) / len(views)
        assert made.parameters(k, state)[0] == pytest.approx(1 / largest, rel=1e-12)
        assert made.parameters(k, state)[0] > 1.5 / fidelity.lipschitz_max
    poisson = algorithm(scan(Poisson(floor=0.05))[0])
    assert 4 * poisson.parameters(1, state)[0] == pytest.approx(made.parameters(1, state)[0])
    once = algorithm(fidelity, sampler=Uniform(1)).parameters(1)[0]
    assert once == pytest.approx(1 / fidelity.lipschitz_max)  # a batch of one view overlaps with itself alone


@pytest.mark.parametrize("gradient", ["svrg", "saga"])
def test_with_reduced_variance_the_step_is_the_same_for_all_batches(gradient):
    """By the overlap that B of I views are expected to have; with all of them that of their mean."""
    fidelity, _ = scan()
    made = algorithm(fidelity, gradient=gradient)
    state = made.init()
    steps = {made.parameters(k, state)[0] for k in (1, 2, 5)}
    assert len(steps) == 1
    count, batch = len(fidelity.available), len(made.sampler.draw(0, fidelity.available).views)
    alone = max(float(fidelity.overlap(view).max()) for view in fidelity.available.split(1))
    together = float(fidelity.overlap().max())
    expected = (count - batch) / (batch * (count - 1)) * alone + count * (batch - 1) / (batch * (count - 1)) * together
    assert steps.pop() == pytest.approx(1 / expected, rel=1e-12)
    assert together < expected < alone
    assert algorithm(fidelity, gradient=gradient, sampler=All()).parameters(1)[0] == pytest.approx(1 / together)


def test_both_losses_take_the_same_first_steps_near_a_fit():
    (one, truth), (other, _) = scan(), scan(Poisson(floor=1e-12))
    start = truth * (1 + 1e-7 * torch.randn(SIDE, SIDE, dtype=torch.float64))
    moved = [algorithm(fidelity).step(algorithm(fidelity).init(start)).image - start for fidelity in (one, other)]
    assert torch.linalg.norm(moved[0] - moved[1]) < 0.05 * torch.linalg.norm(moved[0])


def test_it_begins_in_free_space_and_finds_the_object():
    fidelity, truth = scan()
    made = algorithm(fidelity, momentum="bounded")
    assert torch.equal(made.init().image, torch.ones(SIDE, SIDE, dtype=torch.complex128))
    result = solve(made, iterations=300, monitors=[Distance(every=100)])
    lit = fidelity.model.overlap() > 0.1 * fidelity.model.overlap().max()
    turn = (truth * result.image.conj())[lit].sum()
    off = (truth - turn / turn.abs() * result.image)[lit]
    assert torch.linalg.norm(off) < 0.1 * torch.linalg.norm(truth[lit])
    assert result.history["relative_distance"].value[-1] < 1e-3


def test_a_model_without_an_overlap_keeps_1_over_l():
    fidelity = LossFidelity(MatrixModel(np.eye(4)[None].repeat(2, 0), (2, 2)), torch.ones(2, 4), Amplitude())
    with pytest.raises(InputError, match="use a multiple of 1/L"):
        algorithm(fidelity, sampler=Epochs(1)).init()


def test_a_refined_probe_explains_what_a_wrong_one_does_not():
    fidelity, _ = scan(probe_error=0.2)
    fixed, refined = (
        solve(algorithm(fidelity, momentum="bounded", refine=names), iterations=80) for names in ((), ("probe",))
    )
    left = fidelity.with_parameters(refined.parameters).value(refined.image)
    assert float(left) < 0.4 * float(fidelity.value(fixed.image))
    assert fixed.parameters == {}
    assert refined.state.parameters["probe"] is refined.parameters["probe"]


def test_steps_are_a_pure_function_of_the_state_and_the_distance_is_of_its_parameters():
    fidelity, _ = scan(probe_error=0.2)
    made = algorithm(fidelity, refine=("probe",))
    before = fidelity.model.probe.clone()
    state = made.step(made.init())
    one, other = made.step(state), made.step(state)
    assert torch.equal(one.image, other.image)
    assert torch.equal(one.parameters["probe"], other.parameters["probe"])
    assert torch.equal(fidelity.model.probe, before)
    plain = algorithm(fidelity.with_parameters(state.parameters))
    assert float(made.residual(state)) == float(plain.residual(replace(plain.init(state.image), k=1)))


def test_shorter_steps_on_the_probe_average_their_noise():
    fidelity, truth = scan(probe_error=0.05)
    moved = {}
    for pace in (1.0, 0.25):
        made = algorithm(fidelity, refine=("probe",), refine_pace=pace)
        moved[pace] = made.step(made.init(truth)).parameters["probe"] - fidelity.model.probe
    # But for the beam's power, which is kept, a quarter of the pace is a quarter of the way.
    assert torch.linalg.norm(moved[0.25] - moved[1.0] / 4) < 0.05 * torch.linalg.norm(moved[0.25])
    cooling = Cooling(0.01, 60)
    assert [cooling(k) for k in (1, 20, 40, 60, 99)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    exact, _ = scan()
    counts = torch.poisson(exact.data()[:, 0], generator=torch.Generator().manual_seed(0))
    beam, drawn = exact.model.probe, Epochs(5, seed=1)
    off = []
    for pace in (lambda k: 1.0, Cooling(0.03, 60)):
        noisy = LossFidelity(exact.model.with_parameters({"probe": beam}), counts, Amplitude())
        for k in range(60):
            views = drawn.draw(k, noisy.available).views
            noisy = noisy.with_parameters(noisy.refine(truth, views, ("probe",), pace(k + 1)))
        off.append(float(torch.linalg.norm(noisy.model.probe - beam)))
    assert off[1] < 0.75 * off[0]


def test_refined_parameters_survive_a_checkpoint_to_the_bit(tmp_path):
    made = algorithm(scan(probe_error=0.2, dtype=torch.float32)[0], refine=("probe",), momentum="bounded")
    snapshots = []
    whole = solve(made, iterations=6, callbacks=[lambda p: snapshots.append(p.snapshot()) if p.state.k == 3 else None])
    checkpoints = Checkpoints(tmp_path / "checkpoints", {})
    checkpoints.save(snapshots[0])
    saved = checkpoints.load().snapshot(made.init())
    again = solve(made, iterations=3, resume=saved)
    assert torch.equal(again.image, whole.image)
    assert torch.equal(again.parameters["probe"], whole.parameters["probe"])


def test_what_cannot_be_refined_is_refused():
    fidelity, _ = scan()
    with pytest.raises(InputError, match="no 'pupil' to refine along with the image: it has probe"):
        algorithm(fidelity, refine=("pupil",))
    with pytest.raises(InputError, match="plain gradient"):
        algorithm(fidelity, refine=("probe",), gradient="svrg")

    class Own(PtychographyModel):
        def refine(self, image, data, views, names, derivative):
            return self.parameters

    own = LossFidelity(Own([[0, 0]], np.ones((N, N)), (SIDE, SIDE)), torch.ones(1, N, N), Amplitude())
    algorithm(own, refine=("probe",))
    with pytest.raises(InputError, match="no pace at which it refines; leave --refine-end out"):
        algorithm(own, refine=("probe",), refine_pace=0.5)
    with pytest.raises(InputError, match="above 0 and up to 1"):
        Cooling(0.0, 5)
    with pytest.raises(InputError, match="one process"):
        algorithm(Sharded(fidelity, process_group(), shards=2), refine=("probe",))
    with pytest.raises(TypeError):
        ADMM(fidelity, Identity(), sigma=0.0, refine=("probe",))
