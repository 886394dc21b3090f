"""Error maps: the standard deviation where it is known, halves that are halves, and runs that go on with theirs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream import InputError, LeastSquares, MatrixModel, ProximalGradient, Uniform
from plugstream.algorithms.sampling import All, FixedViews, OnceEach
from plugstream.runs import error_maps
from plugstream.runs.replay import replay
from plugstream.solver.uncertainty import coverage, error_sums, half_of_views
from small_run import RUN, SMALL, main

PIXELS, NOISE = 144, 0.7


def shrink(image, sigma):
    return image / (1 + sigma**2)


def make_mean(views, seed=0, sigma=0.5, **also):
    """An algorithm whose fixed point is the mean of the data over 1 + sigma^2, and its data."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal((1, PIXELS))
    data = truth + NOISE * random.standard_normal((views, PIXELS))
    model = MatrixModel(np.broadcast_to(np.eye(PIXELS), (views, PIXELS, PIXELS)).copy(), (12, 12), dtype=torch.float64)
    fidelity = LeastSquares(model, torch.from_numpy(data))
    return ProximalGradient(fidelity, shrink, sigma=sigma, step_size=1.0, **also), data


@pytest.mark.parametrize("views", [8, 15])
def test_the_map_of_a_mean_is_its_standard_deviation(views):
    algorithm, _ = make_mean(views)
    state = algorithm.step(algorithm.init())
    found = ps.error_map(algorithm, state, halves=40, steps=2)
    known = NOISE / np.sqrt(views) / (1 + 0.5**2)
    assert float(found.square().mean().sqrt()) == pytest.approx(known, rel=0.08)


def test_a_half_is_the_mean_of_its_views_and_a_sum_can_go_on():
    algorithm, data = make_mean(10)
    state = algorithm.step(algorithm.init())
    sums = list(error_sums(algorithm, state, halves=6, steps=1, seed=3))
    half = half_of_views(torch.arange(10), 0, seed=3)
    known = (data[half].mean(0) / 1.25 - data.mean(0) / 1.25) ** 2
    assert sums[0].total.flatten().numpy() == pytest.approx(known, rel=1e-9)
    rest = list(error_sums(algorithm, state, halves=6, steps=1, seed=3, begun=sums[2]))
    assert [one.count for one in rest] == [4, 5, 6]
    assert torch.equal(rest[-1].total, sums[-1].total)


@pytest.mark.parametrize("count", [4, 7, 60])
def test_halves_are_drawn_in_pairs_that_share_no_view(count):
    available = torch.arange(count) * 3 + 1
    seen = set()
    for number in range(0, 8, 2):
        one, other = (half_of_views(available, number + k, seed=5) for k in (0, 1))
        assert len(one) == len(other) == count // 2
        assert not set(one.tolist()) & set(other.tolist())
        assert set(one.tolist()) | set(other.tolist()) <= set(available.tolist())
        assert torch.equal(one, one.sort().values)
        seen.add(tuple(one.tolist()))
    assert len(seen) > 1
    with pytest.raises(InputError, match="3 are too few; 4 are needed"):
        half_of_views(torch.arange(3), 0)


@pytest.mark.parametrize("sampler", [OnceEach(Uniform(5), 5), FixedViews(range(5))])
def test_a_batch_of_more_views_than_a_half_has_all_of_them(sampler):
    algorithm, _ = make_mean(6, sampler=sampler)
    state = algorithm.init()
    for _ in range(5):
        state = algorithm.step(state)
    expected = ps.error_map(replace(algorithm, sampler=All()), state, halves=4, steps=3)
    assert float(expected.min()) > 0
    assert torch.equal(ps.error_map(algorithm, state, halves=4, steps=3), expected)


class Turned(ProximalGradient):
    """Each step turns the image by an angle, and changes nothing else."""

    def step(self, state):
        turn = torch.polar(torch.tensor(1.0), torch.tensor(0.3)).to(state.image)
        return replace(state, k=state.k + 1, image=turn * state.image)


@pytest.mark.parametrize(("phase", "wrong"), [("free", 0.0), ("measured", 2 * np.sin(0.3))])
def test_a_turned_phase_is_an_error_only_where_it_is_measured(phase, wrong):
    matrices = np.random.default_rng(0).standard_normal((6, 12, 16)) + 0j
    model = MatrixModel(matrices, (4, 4), dtype=torch.complex128)
    fidelity = LeastSquares(model, torch.ones(6, 12, dtype=torch.complex128))
    algorithm = Turned(fidelity, ps.TV(), sigma=1.0)
    state = algorithm.init(torch.full((4, 4), 3.0 + 4.0j, dtype=torch.complex128))
    found = ps.error_map(algorithm, state, halves=2, steps=2, phase=phase)
    assert found.numpy() == pytest.approx(np.full((4, 4), 5 * wrong), abs=1e-6)


def test_coverage_counts_pixels():
    assert coverage(torch.tensor([1.0, -3.0, 0.5, 2.0]), torch.ones(4)) == 0.5


def test_a_run_makes_its_map_and_goes_on_with_one_that_was_interrupted(tmp_path, monkeypatch):
    scan, whole, cut = (str(tmp_path / name) for name in ("scan.zarr", "whole", "cut"))
    assert main(["simulate", scan, *SMALL]) == 0
    words = [*RUN, "--iterations", "20", "--uncertainty", "4"]
    assert main(["reconstruct", scan, "--out", whole, *words]) == 0
    found = np.load(tmp_path / "whole" / "uncertainty.npy")
    assert found.shape == (24, 24)
    assert (found >= 0).all()
    texts = [note.text for note in replay(tmp_path / "whole" / "events.jsonl").notes]
    assert any("within twice that at" in text for text in texts)

    keep = error_maps.ErrorMap._save

    def interrupt(self, sums, state):
        keep(self, sums, state)
        if sums.count == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(error_maps.ErrorMap, "_save", interrupt)
        main(["reconstruct", scan, "--out", cut, *words])
    assert (tmp_path / "cut" / "result.npy").exists()  # the image is there whatever becomes of its map
    assert not (tmp_path / "cut" / "uncertainty.npy").exists()
    assert main(["resume", cut]) == 0
    assert (tmp_path / "cut" / "uncertainty.npy").read_bytes() == (tmp_path / "whole" / "uncertainty.npy").read_bytes()
    texts = [note.text for note in replay(tmp_path / "cut" / "events.jsonl").notes]
    assert any("2 are there already" in text for text in texts)


def test_too_few_views_are_refused_before_anything_is_written(tmp_path, capsys):
    scan, out = tmp_path / "scan.zarr", tmp_path / "run"
    assert main(["simulate", str(scan), *SMALL, "--views", "3"]) == 0
    assert (
        main(["reconstruct", str(scan), "--sigma", "0.1", "--batch", "2", "--uncertainty", "4", "--out", str(out)]) == 2
    )
    assert "halves of the views, and the scan has 3" in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()
