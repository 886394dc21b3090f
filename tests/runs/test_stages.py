"""Stages of a run: which views each has, what begins anew, and that a run with stages goes on to the bit."""

import tomllib

import numpy as np
import pytest
import torch

from effort import effort
from plugstream import TV, InputError, LeastSquares, MatrixModel, ProximalGradient, Uniform, open_scan, solve
from plugstream.instruments.spectrum import LIGHT
from plugstream.runs.replay import replay
from plugstream.settings import AlgorithmSettings, parse_stages, plan_stages
from plugstream.solver.monitors import Distance
from plugstream.solver.result import Turn
from plugstream.solver.verdict import Arrival, Outcome
from small_run import RUN, main

GIGA = LIGHT / 1e9
WAVES = np.repeat(GIGA / np.array([2.0, 3.0, 4.0]), 4)
SCAN = ["--size", "16", "--views", "4", "--receivers", "16", "--radius", "0.4", "--frequencies", "6,9,12GHz"]
_HOP = ["--hop", "auto"]
STAGES = "6GHz: 6, sigma=0.05; 6-9GHz: 7; all: 8, sigma=0.02"


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    place = tmp_path_factory.mktemp("stages") / "scan.zarr"
    assert main(["simulate", str(place), *SCAN]) == 0
    return place


def run(scan, out, *words):
    few = [*RUN, "--iterations", "21", "--every", "3"]
    return main(["reconstruct", str(scan), "--out", str(out), *few, *words])


def planned(**settings):
    return plan_stages(AlgorithmSettings.of(name="pgm", iterations=60, **settings), WAVES, 12)


def test_stages_are_read_as_people_write_them():
    first, second, last = planned(stages="2GHz: 10, sigma=0.2; 3-4GHz: 20 steps; all")
    assert (first.begin, second.begin, last.begin) == (0, 10, 30)
    assert first.views.tolist() == [0, 1, 2, 3]
    assert second.views.tolist() == list(range(4, 12))
    assert last.views.tolist() == list(range(12))
    assert (first.sigma, second.sigma) == (0.2, None)
    assert planned(stages="2,4GHz: 1; 0-2,7: 1; 3GHz")[0].views.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert planned(stages="2,4GHz: 1; 0-2,7: 1; 3GHz")[1].views.tolist() == [0, 1, 2, 7]
    assert planned() == ()


def test_a_hop_goes_from_low_to_high_frequencies_in_equal_parts():
    stages = planned(hop="2,4GHz", hop_keep=True)
    assert [(stage.begin, stage.views.tolist()) for stage in stages] == [
        (0, [0, 1, 2, 3]),
        (30, [0, 1, 2, 3, 8, 9, 10, 11]),
    ]
    alone = planned(hop="auto", hop_steps=10)
    assert [(stage.begin, stage.views[0]) for stage in alone] == [(0, 0), (10, 4), (20, 8)]
    assert all(len(stage.views) == 4 for stage in alone)
    many = plan_stages(AlgorithmSettings.of(name="pgm", hop="auto"), GIGA / np.linspace(2, 18, 17), 17)
    assert [len(stage.views) for stage in many] == [4, 4, 3, 3, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": "2GHz; all"}, "does not say how many steps"),
        ({"stages": "2GHz: 10; 5GHz: 50"}, "the scan has no 5 GHz; it has 2, 3, 4 GHz"),
        ({"stages": "5-6GHz"}, "no frequencies in '5-6GHz'"),
        ({"stages": "0-12"}, "there are views 0 to 11"),
        ({"stages": "2GHz: 10; all: 40"}, "the stages take 50 steps, but 60 iterations"),
        ({"stages": "2GHz: 60; all"}, "begin after step 60"),
        ({"stages": "2GHz: 10, sigma=-1; all"}, "sigma must be a number >= 0"),
        ({"stages": "2GHz: ten; all"}, "cannot read 'ten'"),
        ({"stages": ":;"}, "cannot read the stage"),
        ({"hop": "4,2GHz"}, "from low to high"),
        ({"hop": "auto", "stages": "all"}, "both asked for"),
        ({"hop": "2,3,4GHz", "hop_steps": 30}, "begin after step 60"),
    ],
)
def test_stages_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        planned(**settings)
    assert parse_stages(STAGES)[0].sigma == 0.05


def test_each_stage_is_a_run_of_its_own_from_the_image_before(scan, tmp_path):
    """What the command gives is what three runs by hand give, each from the last image of the one before."""
    words = ["--stages", STAGES, "--momentum", "nesterov", "--sampler", "uniform", "--dtype", "float64"]
    assert run(scan, tmp_path / "run", *words) == 0
    stored = open_scan(scan)
    model = stored.instrument.build_model(stored.columns, 12, device=torch.device("cpu"), dtype=torch.float64)
    whole, state = LeastSquares(model, stored.read()), None
    for begin, end, views, sigma in ((0, 6, 4, 0.05), (6, 13, 8, 0.02), (13, 21, 12, 0.02)):
        algorithm = ProximalGradient(
            whole.with_views(model, list(range(views))),
            TV(low=0.0),
            sigma=sigma,
            momentum="nesterov",
            sampler=Uniform(4),
        )
        state = algorithm.init() if state is None else algorithm.renew(state)
        assert state.k == begin
        assert state.q == 1.0
        state = solve(algorithm, state=state, iterations=end - begin).state
    assert np.allclose(np.load(tmp_path / "run" / "result.npy"), state.image.numpy(), atol=1e-6)
    told = replay(tmp_path / "run" / "events.jsonl").stages
    assert [(stage.step, stage.number, stage.views, stage.sigma) for stage in told] == [
        (0, 1, 4, 0.05),
        (6, 2, 8, 0.02),
        (13, 3, 12, 0.02),
    ]
    # L is that of the stage's views, and so is the step.
    norms = whole.lipschitz_views
    want = [1 / float(norms[:count].max()) for count in (4, 8, 12)]
    assert [stage.step_size for stage in told] == pytest.approx(want, rel=0.02)


@pytest.mark.parametrize("in_memory", ["256", "0"], ids=["memory", "disk"])
def test_a_run_that_was_stopped_goes_on_to_the_bit(scan, tmp_path, in_memory):
    words = ["--hop", "auto", "--in-memory", in_memory, "--checkpoint", "0"]
    assert run(scan, tmp_path / "whole", *words) == 0
    for stop in effort((7,), (4, 7, 8, 14, 20)):  # at the end of a stage, and within one
        folder = tmp_path / f"stopped{stop}"
        assert run(scan, folder, *words, "--changes", f"{stop}: stop") == 0
        assert main(["resume", str(folder)]) == 0
        one, other = (replay(place / "events.jsonl").measured for place in (folder, tmp_path / "whole"))
        assert {e.step: e.values for e in other}.items() <= {e.step: e.values for e in one}.items()
        assert np.array_equal(*(np.load(place / "result.npy") for place in (folder, tmp_path / "whole")))
        assert [s.step for s in replay(folder / "events.jsonl").stages] == [0, 7, 14]
    told = tomllib.loads((tmp_path / "whole" / "settings.toml").read_text())["algorithm"]
    assert told["hop"] == "auto"


@pytest.mark.parametrize("how", effort([_HOP], [_HOP, ["--stages", "6GHz: 6; 9-12GHz: 15"]]), ids=str)
def test_more_iterations_are_of_the_last_stage(scan, tmp_path, capsys, how):
    folder = tmp_path / "run"
    assert run(scan, folder, *how) == 0
    before = [stage.step for stage in replay(folder / "events.jsonl").stages]
    assert main(["info", str(folder)]) == 0
    assert f"stage       {len(before)} of {len(before)}, from step {before[-1] + 1} on: " in capsys.readouterr().out
    assert main(["resume", str(folder), "--iterations", "26"]) == 0
    after = replay(folder / "events.jsonl")
    assert [stage.step for stage in after.stages] == before
    assert after.stop.step == 26
    toml = folder / "settings.toml"
    toml.write_text(toml.read_text().replace("hop_steps = 7", "hop_steps = 6").replace("6GHz: 6", "6GHz: 5"))
    assert main(["resume", str(folder), "--iterations", "30"]) == 2
    assert "stage" in capsys.readouterr().err


def test_the_verdict_is_on_the_last_stage():
    steps = list(range(0, 60, 5))
    falling = [np.array(10.0**-k) for k in range(6)]  # in the first stage, and then nothing moves any more
    settled = falling + [np.array(1e-3 * (1 + 0.01 * (-1) ** k)) for k in range(6)]
    past = {"distance": settled, "relative_distance": settled}
    rng = np.random.default_rng(1)
    fidelity = LeastSquares(MatrixModel(list(rng.standard_normal((2, 3, 4))), (2, 2)), rng.standard_normal((2, 3)))
    algorithm = ProximalGradient(fidelity, TV(), sigma=0.1)
    arrivals = [Arrival(0.02, 0.001, 0.014)]
    assert Distance(begins=(25,)).judge(algorithm, steps, past, arrivals).outcome is Outcome.HOVERING
    few = Distance(begins=(25, 50)).judge(algorithm, steps, past)
    assert few.outcome is Outcome.NOT_MEASURED
    assert "how far the image still has to go in the last stage" in few.text


def test_momentum_memory_and_duals_begin_anew():
    rng = np.random.default_rng(2)
    fidelity = LeastSquares(MatrixModel(list(rng.standard_normal((6, 5, 12))), (3, 4)), rng.standard_normal((6, 5)))
    for gradient in ("plain", "saga", "svrg"):
        some, rest = (fidelity.with_views(fidelity.model, views) for views in ([0, 1, 2], [3, 4, 5]))
        make = {"sigma": 0.01, "sampler": Uniform(2), "gradient": gradient, "momentum": "nesterov"}
        first, second = (ProximalGradient(one, TV(), **make) for one in (some, rest))

        def turn(progress, second=second):
            return Turn(second, second.renew(progress.state)) if progress.state.k == 5 else None

        both = solve(first, iterations=12, callbacks=[turn]).state
        middle = solve(first, iterations=5).state
        alone = solve(second, state=second.renew(middle), iterations=7).state
        assert torch.equal(both.image, alone.image)
        assert second.renew(middle).k == 5
        assert second.renew(middle).q == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stages", "6GHz: 10; all", "--distance-limit", "0.1"], "the distance is of one stage alone"),
        (["--hop", "5,6GHz"], "the scan has no 5 GHz"),
        (["--stages", "6GHz: 0; all"], "cannot read '0'"),
    ],
)
def test_what_does_not_go_with_stages_is_refused_before_anything_is_written(scan, tmp_path, capsys, words, message):
    assert run(scan, tmp_path / "run", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
