"""Searches on functions whose maximum is known, scores on problems whose noise is known, and the command."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from effort import effort, thorough
from plugstream import BornGeometry, BornModel, Grid, InputError, LeastSquares, MatrixModel, save_scan, simulate
from plugstream.instruments.born import born_geometry
from plugstream.settings import resolve
from plugstream.studies.tuning import (
    Journal,
    discrepancy_score,
    golden_section,
    held_out_score,
    split_views,
    successive_halving,
)
from plugstream.studies.tuning.scan import Search, _change_settings, tune_scan
from small_run import main


@given(peaks=st.lists(st.floats(0.02, 50.0), min_size=1, max_size=4), sharpness=st.floats(0.2, 5.0))
def test_golden_section_finds_the_peak_of_every_problem(peaks, sharpness):
    """Twenty evaluations: a grid of five, then 15, the last 13 of which shrink the bracket by 1.618 each."""
    want = np.log(peaks)
    asked = []

    def objective(values):
        asked.append(values)
        return -sharpness * np.abs(np.log(values) - want)

    n = len(peaks)
    best = golden_section(objective, np.full(n, 0.01), np.full(n, 100.0), evaluations=20)
    assert len(asked) == best.evaluations == 20
    width = 2 * np.log(1e4) / 4
    assert np.abs(np.log(best.value) - want).max() <= width / 1.618**13 + 1e-9
    assert best.score == pytest.approx(objective(best.value), abs=1e-9)


def test_golden_section_prefers_anything_to_nan_and_keeps_the_best_of_many_peaks():
    best = golden_section(lambda v: np.where(v > 1, np.nan, -(np.log(v) ** 2)), 0.01, 100.0, evaluations=15)
    assert best.value[0] <= 1
    assert best.score[0] > -0.1
    ripples = golden_section(lambda v: np.sin(9 * np.log(v)), 0.01, 100.0, evaluations=30)
    assert ripples.score[0] == max(np.sin(9 * np.log(ripples.value[0])), ripples.score[0])


def test_successive_halving_spends_its_budget_on_the_best():
    spent = []

    def objective(candidate, budget):
        spent.append(budget)
        return candidate - 1 / budget  # what is best at the end is best from the start

    found = successive_halving(objective, list(range(27)), budget=90, least=3, eta=3)
    assert found[0][1] == 26
    assert spent.count(3) == 27
    assert spent.count(10) == 9
    assert spent.count(30) == 3
    assert spent.count(90) == 1
    assert np.isnan(successive_halving(lambda c, b: float("nan"), [1], budget=1)[0][0]) is np.False_


def test_a_journal_answers_from_its_file_and_outlives_a_crash(tmp_path):
    path = tmp_path / "tries.jsonl"
    first = Journal(path, {"scan": "a"})
    assert first.ask({"sigma": 0.1}, lambda: 7.5) == 7.5
    assert first.ask({"sigma": 0.2}, lambda: float("nan")) == -np.inf
    path.write_text(path.read_text() + '{"try": {"sigma": 0.3}, "sco')  # cut off in the middle of a line
    again = Journal(path, {"scan": "a"})
    assert len(again) == 2
    never = {"sigma": 0.1}, lambda: pytest.fail("it was evaluated before")
    assert again.ask(*never) == 7.5
    assert again.ask({"sigma": 0.3}, lambda: 1.0) == 1.0
    assert len(Journal(path, {"scan": "a"})) == 3
    with pytest.raises(InputError, match="journal of another search"):
        Journal(path, {"scan": "b"})


@given(n=st.integers(2, 200), part=st.floats(0.01, 0.9))
def test_every_view_is_kept_or_held_out(n, part):
    kept, out = split_views(torch.arange(n), part)
    assert len(kept) >= 1
    assert len(out) >= 1
    assert sorted(torch.cat([kept, out]).tolist()) == list(range(n))
    assert abs(len(out) - part * n) <= 1 or len(out) in (1, n - 1)


@pytest.mark.slow
def test_held_out_views_and_the_discrepancy_point_at_the_best_image():
    """Ridge regression, solved exactly for each weight: by both scores a weight near that of the least true error."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((30, 12, 100)) * np.geomspace(1, 0.01, 100)
    truth = rng.standard_normal(100)
    clean = a @ truth
    noise = 0.1 * np.linalg.norm(clean) / np.sqrt(clean.size) * rng.standard_normal(clean.shape)
    data = clean + noise
    level = 20 * np.log10(np.linalg.norm(data) / np.linalg.norm(noise))
    fidelity = LeastSquares(MatrixModel(list(a), (10, 10)), torch.from_numpy(data))
    kept, out = split_views(torch.arange(30), 0.2)

    def ridge(weight, views):
        rows, y = a[views].reshape(-1, 100), data[views].reshape(-1)
        x = np.linalg.solve(rows.T @ rows + weight * np.eye(100), rows.T @ y)
        return torch.from_numpy(x.reshape(10, 10))

    def best(score):
        return golden_section(score, 1e-6, 1e6, grid=13, evaluations=40).value[0]

    def error(weight):
        prediction = a @ ridge(weight, np.arange(30)).numpy().ravel()
        return np.linalg.norm(prediction - clean)

    by_views = best(lambda w: float(held_out_score(fidelity, ridge(w[0], kept.numpy()), out)))
    by_noise = best(lambda w: float(discrepancy_score(fidelity, ridge(w[0], np.arange(30)), level)))
    least = min(error(w) for w in np.geomspace(1e-6, 1e6, 121))
    assert error(by_views) < 1.1 * least
    assert error(by_noise) < 1.5 * least
    assert error(1e6) > 3 * least  # and it does matter


@pytest.fixture(scope="module")
def small_scan():
    """A 16 x 16 disc under 8 views of 16 receivers at 20 dB."""
    geometry = BornGeometry.rings(Grid((16, 16), 0.01), 0.06, views=8, receivers=16, radius=0.4)
    y, x = torch.meshgrid(torch.arange(16) - 7.5, torch.arange(16) - 7.5, indexing="ij")
    model = BornModel(geometry)
    return simulate(model, (x**2 + y**2 < 25).float(), snr=20)


def _settings(**more):
    values = {"name": "pgm", "iterations": 12, **more}
    return resolve(None, [("algorithm", k, v) for k, v in values.items()] + [("sampler", "batch", 4)])


def test_tune_finds_the_sigma_that_a_fine_scan_finds(small_scan, tmp_path):
    """The best of many values of sigma, each reconstructed, against twelve evaluations of the search."""
    from plugstream import SNR, solve
    from plugstream.runs.parts import prepare

    plan = Search(low=1e-3, high=0.4, evaluations=12)
    best, score = tune_scan(small_scan, _settings(), plan, tmp_path / "j.jsonl")
    fidelity = LeastSquares(BornModel(born_geometry(small_scan)), small_scan.data)

    def final(sigma):
        algorithm = prepare(_settings(sigma=float(sigma))).algorithm(fidelity)
        monitor = SNR(torch.from_numpy(small_scan.truth))
        return float(solve(algorithm, iterations=12, monitors=[monitor], every=12).history["snr"].value[-1])

    fine = max(final(sigma) for sigma in np.geomspace(1e-3, 0.4, effort(12, 60)))
    assert score == pytest.approx(final(best.algorithm.sigma), abs=1e-6)
    assert score > fine - 0.05
    assert final(1e-3) < fine - 0.5  # it was worth searching
    assert final(0.4) < fine - 0.5


def test_another_momentum_of_a_search_has_options_of_its_own():
    """The limit that one was asked with is not handed to one that has none, or another."""
    asked = resolve(None, [("momentum", "name", "bounded"), ("momentum", "momentum_limit", 5)])
    assert _change_settings(asked, momentum="nesterov").momentum.name == "nesterov"
    assert _change_settings(asked, momentum="tapered").momentum.momentum_limit == 20
    assert _change_settings(asked, momentum="bounded", sigma=0.1).momentum.momentum_limit == 5


@pytest.mark.slow
@thorough
def test_tune_over_step_and_momentum_is_no_worse_and_goes_on_from_its_journal(small_scan, tmp_path):
    only = tune_scan(
        small_scan, _settings(), Search(low=1e-3, high=1.0, evaluations=effort(6, 12)), tmp_path / "a.jsonl"
    )[1]
    plan = Search(over=("sigma", "step_size", "momentum"), low=1e-3, high=1.0, evaluations=effort(6, 12))
    lines = []
    best, score = tune_scan(small_scan, _settings(), plan, tmp_path / "b.jsonl", lines.append)
    assert score >= only - 0.05
    assert best.algorithm.step_size in ("1/L", "0.5/L", "1.5/L")

    whole = (tmp_path / "b.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "c.jsonl").write_text("".join(whole[:9]))
    again = []
    assert tune_scan(small_scan, _settings(), plan, tmp_path / "c.jsonl", again.append) == (best, score)
    assert len(again) == len(lines) - 8 + 1  # one line says how many were there
    assert (tmp_path / "c.jsonl").read_text().splitlines(keepends=True) == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sigma .* that was tried")  # of the range of one value, which only scores it
@thorough
@pytest.mark.parametrize("by", ["held-out", "race", "discrepancy"])
def test_tune_without_a_truth_comes_near_the_best(small_scan, tmp_path, by):
    plan = Search(low=1e-3, high=1.0)
    best = tune_scan(small_scan, _settings(), plan, tmp_path / "a.jsonl")[1]
    blind = dataclasses.replace(small_scan, truth=None)
    with pytest.raises(InputError, match="no true image"):
        tune_scan(blind, _settings(), plan, tmp_path / "b.jsonl")
    found, _ = tune_scan(
        blind, _settings(), dataclasses.replace(plan, by=by, noise=20.0, held=0.25), tmp_path / "c.jsonl"
    )
    judged = dataclasses.replace(plan, low=found.algorithm.sigma * 0.9999, high=found.algorithm.sigma, evaluations=5)
    assert tune_scan(small_scan, _settings(), judged, tmp_path / "d.jsonl")[1] > best - 2.0


def test_the_command_writes_settings_that_reconstruct_reads(small_scan, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_scan(small_scan, tmp_path / "scan.zarr")
    search = ["tune", "scan.zarr", "--iterations", "6", "--batch", "4", "--sigma-low", "0.01", "--evaluations", "6"]
    assert main(search) == 0
    assert main([*search, "--out", "tuned.toml"]) == 2
    assert "exists already" in capsys.readouterr().err
    entries = [json.loads(line) for line in (tmp_path / "tuned.jsonl").read_text().splitlines()]
    best = max(entries[1:], key=lambda entry: entry["score"])
    settings = resolve(tmp_path / "tuned.toml")
    assert settings.algorithm.sigma == best["try"]["sigma"]
    assert settings.sampler.batch == 4
    assert main(["reconstruct", "scan.zarr", "--settings", "tuned.toml", "--out", "run"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a.txt"], "written as .toml"),
        (["--by", "eye"], "no score 'eye'"),
        (["--by", "race", "--over", "sigma,momentum"], "a race is for sigma alone"),
        (["--over", "sigma,batch"], "cannot search over 'batch'"),
        (["--by", "discrepancy"], "--noise DB"),
        (["--sigma-low", "2", "--sigma-high", "1"], "0 < low < high"),
        (["--evaluations", "2"], "at least 5"),
        (["--batch", "4", "--sigma", "0.1", "--sigma-end", "0.01"], "sigma_end is not scaled"),
        (["--batch", "4", "--sigma", "0.1", "--changes", "3: stop"], "leave --changes out"),
        (["--batch", "4", "--sigma", "0.1", "--stages", "0-1: 2; all"], "leave --stages and --hop out"),
        (["--batch", "4", "--by", "held-out", "--held", "2"], "cannot hold out"),
    ],
)
def test_mistakes_are_told_before_the_search(small_scan, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    save_scan(small_scan, tmp_path / "scan.zarr")
    assert main(["tune", "scan.zarr", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl"))
