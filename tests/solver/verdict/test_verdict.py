"""A run says whether its image has arrived: from the library, by its history, and at the command line."""

from __future__ import annotations

import math
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream import (
    SAGA,
    TV,
    Box,
    Distance,
    FixedViews,
    FunctionModel,
    Identity,
    LeastSquares,
    MatrixModel,
    Outcome,
    ProximalGradient,
    SoftThreshold,
    Stop,
    Uniform,
    solve,
)
from plugstream.base.errors import PlugstreamWarning
from plugstream.base.schedules import Geometric
from plugstream.cli import main
from plugstream.runs import events
from plugstream.runs.replay import replay
from plugstream.solver.verdict import Answer, Arrival, Verdict, judge
from small_run import with_all_views

F64 = torch.float64


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    """Twelve noisy views of a blocky image of 12 x 12, more unknowns than a batch of two has rows."""
    rng = np.random.default_rng(5)
    truth = np.zeros((12, 12))
    truth[2:6, 3:9], truth[7:10, 5:7] = 1.0, 0.5
    matrices = rng.standard_normal((12, 20, 144))
    data = matrices @ truth.ravel() + 0.5 * rng.standard_normal((12, 20))
    return LeastSquares(MatrixModel(list(matrices), (12, 12)), torch.from_numpy(data))


def outcome(algorithm, iterations, start=None, **options) -> Verdict:
    return solve(algorithm, start, iterations=iterations, monitors=[Distance()], **options).verdict


# Runs that are constructed to come out in each way.


@thorough
@pytest.mark.parametrize("momentum", effort(["nesterov"], ["none", "nesterov"]))
def test_a_full_batch_run_arrives(problem, momentum):
    algorithm = ProximalGradient(problem, TV(tol=1e-5), lam=1.0, momentum=momentum)
    verdict = outcome(algorithm, effort(250, 1500), every=25)
    assert verdict.outcome is Outcome.ARRIVED
    assert verdict.to_go < 1e-3
    assert not verdict.trusted  # nobody asked whether it explains the data


@pytest.mark.parametrize("iterations", [4, 10, 30])
def test_a_run_that_ends_too_soon_is_still_falling(problem, iterations):
    verdict = outcome(ProximalGradient(problem, TV(tol=1e-5), lam=1.0), iterations, every=2)
    assert verdict.outcome is Outcome.MOVING
    assert not verdict.trusted
    assert "more iterations" in verdict.text


def test_a_very_short_step_is_still_falling_and_not_diverged(problem):
    verdict = outcome(ProximalGradient(problem, TV(tol=1e-5), lam=1.0, step_size="1e-4/L"), 60, every=5)
    assert verdict.outcome is Outcome.MOVING


@pytest.mark.parametrize("momentum", ["bounded", "nesterov"])
@thorough
@pytest.mark.parametrize("seed", effort([0], [0, 1, 2]))
def test_small_batches_hover(problem, momentum, seed):
    algorithm = ProximalGradient(problem, TV(), lam=1.0, sampler=Uniform(2, seed), momentum=momentum)
    verdict = outcome(algorithm, effort(160, 400))
    assert verdict.outcome is Outcome.HOVERING
    assert not verdict.trusted
    assert "noise floor of the batches" in verdict.text
    assert "larger batch" in verdict.text
    assert "SAGA" in verdict.text
    assert ("bounded" in verdict.text) == (momentum == "nesterov")  # what is done already is not advised


@pytest.mark.slow
def test_advice_depends_on_what_is_done(problem):
    saga = ProximalGradient(problem, TV(tol=1e-2), lam=1.0, sampler=Uniform(2), gradient=SAGA(), step_size="1/3L")
    assert "SAGA" not in outcome(saga, 600).text
    fixed = outcome(ProximalGradient(problem, TV(), lam=1.0, sampler=FixedViews((0, 1))), 6000, every=200)
    assert fixed.outcome is Outcome.ARRIVED  # at the image of these two views
    assert "all views" in fixed.text
    assert "noise" not in fixed.text


def test_a_step_of_3_over_l_diverges(problem):
    algorithm = ProximalGradient(problem, Identity(), sigma=0.0, step_size=3.0 / problem.lipschitz)
    with pytest.warns(PlugstreamWarning, match="beyond 2 / L"):
        result = solve(algorithm, iterations=1000, monitors=[Distance()])
    assert result.reason is Stop.DIVERGED
    assert result.verdict.outcome is Outcome.DIVERGED
    assert result.verdict.text == Stop.DIVERGED.value


def test_a_run_that_a_box_keeps_from_growing_has_diverged_too(problem):
    """It swings from side to side for ever, no farther than the box, and ended with "all iterations were done"."""
    algorithm = ProximalGradient(problem, Box(-1.0, 1.0), sigma=0.0, step_size=8.0 / problem.lipschitz)
    with pytest.warns(PlugstreamWarning, match="beyond 2 / L"):
        result = solve(algorithm, iterations=200, monitors=[Distance()])
    assert result.reason is Stop.ITERATIONS
    assert result.verdict.outcome is Outcome.DIVERGED
    assert "shorter step" in result.verdict.text


def phase_lost() -> FunctionModel:
    a = torch.from_numpy(np.random.default_rng(1).standard_normal((8, 30, 64)))
    return FunctionModel(
        lambda x, views: torch.einsum("bmn,...n->...bm", a[views], x.flatten(-2)).abs(),
        n_views=8,
        image_shape=(8, 8),
        data_shape=(30,),
        dtype=F64,
    )


def test_a_start_without_a_gradient_is_stuck_and_not_converged():
    model = phase_lost()
    fidelity = LeastSquares(model, model.forward(torch.rand(8, 8, dtype=F64)))
    algorithm = ProximalGradient(fidelity, TV(low=0.0), sigma=0.01, step_size=0.01)
    result = solve(algorithm, iterations=50, monitors=[Distance()], distance_limit=1e-3)
    assert result.verdict.outcome is Outcome.STUCK
    assert result.reason is Stop.ITERATIONS  # its distance of 0 is no distance that fell
    relative = result.history["relative_distance"].value
    assert np.array_equal(relative, np.ones_like(relative))  # 0/0 was NaN
    elsewhere = solve(algorithm, torch.full((8, 8), 0.5, dtype=F64), iterations=200, monitors=[Distance()])
    assert elsewhere.verdict.outcome is not Outcome.STUCK


def test_a_bound_that_holds_everything_is_stuck():
    model = MatrixModel([np.eye(9)], (3, 3))
    fidelity = LeastSquares(model, -torch.ones(1, 9, dtype=F64))
    assert outcome(ProximalGradient(fidelity, Box(low=0.0), sigma=0.0), 30).outcome is Outcome.STUCK


def test_a_run_that_leaves_a_start_of_distance_zero_is_not_stuck():
    """sigma falls from where it gives zero: the distance is 0, rises, and falls; it is then relative to its largest."""
    model = MatrixModel([np.diag(np.linspace(0.5, 1.0, 9))], (3, 3))
    fidelity = LeastSquares(model, torch.linspace(-1, 1, 9, dtype=F64)[None])
    algorithm = ProximalGradient(fidelity, SoftThreshold(), sigma=Geometric(10.0, 1e-2, 20))
    result = solve(algorithm, iterations=200, monitors=[Distance()], every=2)
    relative, distance = (result.history[name].value for name in ("relative_distance", "distance"))
    assert distance[0] == 0
    assert np.isfinite(relative).all()
    assert relative.max() == 1
    assert relative[-1] == pytest.approx(distance[-1] / distance.max())
    assert result.verdict.outcome is Outcome.ARRIVED


def test_nothing_is_known_after_a_few_steps(problem):
    result = solve(ProximalGradient(problem, Identity(), sigma=0.0), iterations=5)
    assert result.verdict.outcome is Outcome.NOT_MEASURED
    assert not result.verdict.trusted


def test_how_far_it_has_to_go_is_known_without_a_distance(problem):
    result = solve(ProximalGradient(problem, TV(tol=1e-5), lam=1.0), iterations=30)
    assert result.verdict.outcome is Outcome.MOVING
    assert result.verdict.to_go > 0.01


def test_of_several_images_the_worst_counts():
    model = MatrixModel([np.eye(4)], (2, 2))
    data = torch.stack([-torch.ones(1, 4, dtype=F64), torch.ones(1, 4, dtype=F64)])
    algorithm = ProximalGradient(LeastSquares(model, data), Box(low=0.0), sigma=0.0)
    verdict = outcome(algorithm, 20, torch.zeros(2, 2, 2, dtype=F64), every=2)
    assert verdict.outcome is Outcome.STUCK
    assert verdict.text.startswith("image 0 of 2")


def test_a_run_that_goes_on_comes_to_the_same_verdict(problem):
    """Wherever it was stopped, also between two measurements, where one more is taken at the end."""
    algorithm = ProximalGradient(problem, TV(), lam=1.0, sampler=Uniform(2))
    whole = solve(algorithm, iterations=60, monitors=[Distance()])
    for k in (0, 7, 30, 59):
        snapshots = []
        solve(algorithm, iterations=k, monitors=[Distance()], callbacks=[lambda p, s=snapshots: s.append(p.snapshot())])
        rest = solve(algorithm, resume=snapshots[-1], iterations=60 - k, monitors=[Distance()])
        assert rest.verdict == whole.verdict
        assert np.array_equal(rest.history["relative_distance"].value, whole.history["relative_distance"].value)


def test_the_largest_distance_is_known_to_a_run_that_goes_on():
    model = MatrixModel([np.eye(9)], (3, 3))
    fidelity = LeastSquares(model, torch.linspace(-1, 1, 9, dtype=F64)[None])
    algorithm = ProximalGradient(fidelity, SoftThreshold(), sigma=Geometric(10.0, 1e-2, 40), step_size=0.5)
    whole = solve(algorithm, iterations=100, monitors=[Distance()], every=1)
    snapshots = []
    solve(
        algorithm, iterations=50, monitors=[Distance()], every=1, callbacks=[lambda p: snapshots.append(p.snapshot())]
    )
    rest = solve(algorithm, resume=snapshots[-1], iterations=50, monitors=[Distance()], every=1)
    assert np.array_equal(rest.history["relative_distance"].value, whole.history["relative_distance"].value)
    assert rest.verdict == whole.verdict


# The rules, on histories that are written out.


def verdict_of(values, every: int = 10) -> Outcome:
    values = np.asarray(values, dtype=float)
    return judge(every * np.arange(len(values)), values, values / values[0]).outcome


@pytest.mark.parametrize("end", [1e-9, 3e-2, 0.3, 1.2, 50.0])
def test_a_distance_alone_never_says_that_an_image_has_arrived(end):
    """Short steps along slow directions add up: a limited-angle image changed by 10 % at 3.9e-7 of its start."""
    rng = np.random.default_rng(0)
    for shape in (np.geomspace(1, end, 12), np.r_[1.0, np.full(11, end)], np.r_[1.0, end * rng.lognormal(0, 0.3, 11)]):
        assert verdict_of(shape) is not Outcome.ARRIVED
    if end > 1:
        assert verdict_of(np.r_[1.0, np.full(11, end)]) is Outcome.DIVERGED
        assert verdict_of(np.geomspace(1, end, 12)) is Outcome.DIVERGED


def test_noise_about_a_level_is_told_from_a_fall_and_a_rise():
    """Of a hundred histories each, with a scatter of a factor of two about a level, a fall by half, and a rise."""
    level = falling = rising = 0
    for seed in range(100):
        noise = np.random.default_rng(seed).lognormal(0, 0.35, 40)
        level += verdict_of(np.r_[1.0, 1e-3 * noise]) is Outcome.NOT_MEASURED
        falling += verdict_of(np.r_[1.0, np.geomspace(1e-2, 1e-5, 40) * noise]) is Outcome.MOVING
        rising += verdict_of(np.r_[1.0, np.geomspace(1e-3, 6e-3, 40) * noise]) is Outcome.RISING
    assert level >= 90
    assert falling >= 95
    assert rising >= 90


def test_a_rising_distance_is_a_verdict_of_its_own_unless_the_image_hardly_moves():
    values = np.r_[1.0, np.geomspace(1e-3, 6e-3, 40)]
    found = judge(range(41), values, values, arrivals=[Arrival(0.05, 0.02, 0.03)])
    assert found.outcome is Outcome.RISING
    assert "1.0e-03 of its start at step 1, and 6.0e-03 now" in found.text
    assert judge(range(41), values, values, arrivals=[Arrival(0.001, 0.001, 0.0)]).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("power", [1, 2])
def test_slow_convergence_is_a_fall(power):
    assert verdict_of(1 / np.arange(1, 60) ** power) is Outcome.MOVING


def test_how_far_the_image_has_to_go_decides():
    level = np.full(20, 1e-5)

    def outcome_of(*arrivals):
        distances = np.tile(level[:, None], len(arrivals))
        return judge(range(20), distances, distances, arrivals=arrivals)

    assert outcome_of(Arrival(0.007, 0.006, 0.001)).outcome is Outcome.ARRIVED
    assert outcome_of(Arrival(0.009, 0.008, 0.001)).outcome is Outcome.MOVING  # three times the drift is above 2 %
    assert outcome_of(Arrival(0.009, 0.001, 0.006)).outcome is Outcome.ARRIVED
    assert outcome_of(Arrival(0.02, 0.019, 0.001)).outcome is Outcome.MOVING
    assert outcome_of(Arrival(0.05, 0.01, 0.034)).outcome is Outcome.HOVERING
    both = outcome_of(Arrival(0.007, 0.006, 0.001), Arrival(0.12, 0.12, 0.001))
    assert both.outcome is Outcome.MOVING
    assert both.text.startswith("image 1 of 2: ten times as many steps would change the image by about 12 %")
    assert both.arrival.number == pytest.approx(12)


def test_measurements_that_say_nothing():
    assert judge([0], [1.0], [1.0]).outcome is Outcome.NOT_MEASURED
    assert judge([0, 10, 20], [1.0, 1.1, 1.2], [1.0, 1.1, 1.2]).outcome is Outcome.NOT_MEASURED
    assert judge([0, 10], [1.0, 0.5], [1.0, 0.5]).outcome is Outcome.MOVING
    assert judge([0, 10], [1.0, math.nan], [1.0, math.nan]).outcome is Outcome.NOT_MEASURED
    assert judge([0, 10], [0.0, 0.0], [1.0, 1.0]).outcome is Outcome.STUCK
    assert judge([0, 10], [1.0, 0.0], [1.0, 0.0]).outcome is Outcome.ARRIVED


def test_all_three_answers_make_a_result_one_to_trust():
    yes, no = Answer("yes", True, "it is"), Answer("no", False, "it is not")
    assert Verdict(Outcome.ARRIVED, "", 0.001, yes, yes).trusted
    assert not Verdict(Outcome.ARRIVED, "", 0.001, yes, no).trusted
    assert not Verdict(Outcome.ARRIVED, "", 0.001, no, yes).trusted
    assert not Verdict(Outcome.HOVERING, "", 0.02, yes, yes).trusted
    nothing = Verdict(Outcome.MOVING, "far", 0.5).with_explanation(no, nothing=True)
    assert nothing.outcome is Outcome.UNEXPLAINED
    assert Verdict(Outcome.DIVERGED, "off").with_explanation(no, nothing=True).outcome is Outcome.DIVERGED


# At the command line.

RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--report"]
REPORT = effort("html", "svg")  # of which drawing the second takes most of the time of a run


def stop_of(folder: Path) -> events.Stop:
    stop = replay(folder / "events.jsonl").stop
    assert stop is not None
    return stop


def words_of(folder: Path) -> str:
    """What the report says, which matplotlib writes beside the outlines of its letters."""
    (report,) = folder.glob("report.*")
    lines = re.findall(r"<!-- (.*?) -->", report.read_text(), flags=re.DOTALL)
    return " ".join(lines) if report.suffix == ".svg" else report.read_text()


def draw_no_more(folder: Path) -> None:
    """Have a run go on without a report, of which drawing takes most of the time."""
    path = folder / "settings.toml"
    text = path.read_text()
    asked = re.search('report = "(svg|html)"', text)
    assert asked is not None
    path.write_text(text.replace(asked[0], 'report = "none"'))


def test_the_terminal_the_report_and_the_log_tell_the_verdict(scan, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, "svg", "--iterations", "6", "--every", "1"]) == 0
    told = capsys.readouterr().err
    assert "verdict: not to be trusted yet (still moving" in told
    assert "has the image arrived? still moving: its distance" in told
    assert "does the model explain the data? " in told
    assert "was the strength chosen by the data? " in told
    assert stop_of(out).verdict == "still moving"
    assert stop_of(out).trusted is False
    assert next(answer["word"] for answer in stop_of(out).answers.values()) == "still moving"
    for question in stop_of(out).answers:
        assert question in words_of(out)
    draw_no_more(out)
    assert main(["resume", str(out), "--iterations", "12"]) == 0
    longer, words = tmp_path / "longer", [*RUN, "none", "--iterations", "12", "--every", "1"]
    assert main(["reconstruct", str(scan), "--out", str(longer), *words]) == 0
    same = ("verdict", "trusted", "explanation", "step", "answers")
    assert [getattr(stop_of(out), name) for name in same] == [getattr(stop_of(longer), name) for name in same]


def test_a_diverged_run_says_so_everywhere_and_has_status_1(scan, tmp_path, capsys):
    out = tmp_path / "run"
    words = [
        "reconstruct", str(scan), "--out", str(out), *RUN, "svg", "--iterations", "60", "--step-size", "40/L", "--low",
        "none",
    ]  # fmt: skip
    assert main(words) == 1
    assert "has the image arrived? diverged: the image grew" in capsys.readouterr().err
    assert stop_of(out).verdict == "diverged"
    assert "diverged: the image grew without bound" in words_of(out)


@thorough
@pytest.mark.parametrize("sampler", effort(["uniform"], ["all", "uniform"]))
def test_a_stuck_run_says_so_everywhere_and_has_status_3(scan, tmp_path, capsys, sampler):
    """An upper bound below every value that the data asks for; a batch's noise may move it a little."""
    out = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(out), *RUN, REPORT, "--iterations", "12", "--every", "2"]
    words = with_all_views(words) if sampler == "all" else [*words, "--sampler", sampler]
    assert main([*words, "--high", "0", "--low", "none"]) == 3
    assert "has the image arrived? stuck at its start" in capsys.readouterr().err
    assert stop_of(out).verdict == "stuck at its start"
    assert stop_of(out).trusted is False
    assert "stuck at its start" in words_of(out)
    assert "of the image sits on its upper bound 0" in words_of(out)
    draw_no_more(out)
    assert main(["resume", str(out)]) == 3


def test_a_run_of_three_steps_says_that_nothing_is_known(scan, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(out), *RUN, "none", "--iterations", "3"]
    words += ["--set", "monitor.distance=false"]
    assert main(words) == 0
    assert "has the image arrived? not measured" in capsys.readouterr().err


def test_the_guide_starts_its_nonlinear_example_where_it_moves():
    guide = (Path(__file__).parents[3] / "docs" / "guide.md").read_text()
    block = guide[guide.index("    import torch, plugstream as ps\n    a = torch.randn(8, 30, 64)") :]
    code = block[: block.index("\n\n")]
    names: dict = {}
    exec("\n".join(line[4:] for line in code.splitlines()), names)
    assert names["result"].verdict.outcome in (Outcome.MOVING, Outcome.ARRIVED, Outcome.HOVERING)
    assert names["result"].history["distance"].value[0] > 0


def test_a_long_run_is_judged_in_little_memory():
    """Its trend compares pairs of measurements, and not of all: here 400 million."""
    steps = np.arange(20_000)
    distance = 1 / (1 + steps)
    tracemalloc.start()
    verdict = judge(steps, distance, distance)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (verdict.outcome, peak < 100e6) == (Outcome.MOVING, True)
