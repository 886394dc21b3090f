"""Lines added to a table later: kept ones stay to the digit, and each picture has its best trial."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from plugstream.errors import InputError
from plugstream.experiments import additions, report
from plugstream.experiments.additions import add_line, best_of, merge, missing_lines, read_table
from plugstream.experiments.cells import Store
from plugstream.experiments.runs import Spec, outcome, run
from plugstream.experiments.scale import FULL, Scale
from plugstream.experiments.setup import Pictures, make_problem
from plugstream.experiments.successors import successor_rows

TINY = Scale("tiny", None, 3, 2, 3, 3, 1, 4, 2, (3, 2))


def cell(snr, calls=(0, 1, 2), passes=(0.0, 0.5, 1.0), sigma=0.1):
    """A cell of two pictures and two steps, as `outcome` makes one; SNR (3, 2)."""
    return {
        "names": ["house", "parrot"],
        "snr": list(snr[-1]),
        "iterations": 2,
        "seconds": 7.0,
        "passes": passes[-1],
        "calls": list(calls),
        "passes_at": list(passes),
        "device": "cpu",
        "history": {"snr": {"step": [0, 1, 2], "time": [0.0, 3.0, 7.0], "value": [list(one) for one in snr]}},
        "sigma": [sigma, sigma],
        "spec": {"method": "snore"},
        "memory": "none",
    }


@pytest.fixture
def kept(tmp_path):
    """A table of two lines, made on another device."""
    names = [row.name for row in successor_rows(FULL)]
    made = {names[0]: cell([(0, 0), (20, 24), (26, 26)]), names[2]: cell([(0, 0), (9, 9), (21.5, 23)])}
    for one in made.values():
        one["device"] = "cuda"
    tuned = {name: {"sigma": one["sigma"], "spec": one["spec"]} for name, one in made.items()}
    report.write_table(tmp_path, "successors", report.successors_table(made), {"tuned": tuned})
    return tmp_path, names


def test_kept_lines_stay_and_new_ones_come_between_them_without_seconds(kept):
    folder, names = kept
    before = json.loads((folder / "successors.json").read_text())
    new = cell([(0, 0), (25, 27), (27, 27)], sigma=0.3)
    for _ in range(2):  # the second time adds what is there already
        table, tuned = merge(read_table(folder, "born-2d"), {names[1]: new}, "born-2d")
        report.write_table(folder, "successors", table, {"tuned": tuned})
    after = json.loads((folder / "successors.json").read_text())
    assert [line["method"] for line in after["rows"]] == names[:3]
    assert [after["rows"][0], after["rows"][2]] == before["rows"]
    line = after["rows"][1]
    assert (line["SNR at the end"], line["calls to 25.85 dB"], line["passes to it"]) == (27, 1, 0.5)
    assert (line["seconds"], line["seconds to it"]) == (None, None)
    assert after["tuned"][names[1]]["sigma"] == [0.3, 0.3]
    assert list(after["tuned"]) == names[:3]
    assert after["note"].count("made later, on cpu") == 1
    assert after["note"].startswith(before["note"])


def test_the_level_is_that_of_the_kept_table(tmp_path):
    first = successor_rows(FULL)[0].name
    table = report.successors_table({first: cell([(0, 0), (22, 22), (23, 23)])}, "ct")
    report.write_table(tmp_path, "successors-ct", table, {"tuned": {}})
    new = cell([(0, 0), (22.8, 22.8), (22.95, 22.95)])
    merged, _ = merge(read_table(tmp_path, "ct"), {"online RED(10), shifted": new}, "ct")
    assert merged.head == table.head
    assert "calls to 22.9 dB" in merged.head
    assert dict(zip(merged.head, merged.rows[1], strict=True))["calls to 22.9 dB"] == 2


def test_lines_that_are_there_are_not_missing(kept):
    folder, names = kept
    missing = [row.name for row in missing_lines(read_table(folder, "born-2d"), "born-2d")]
    assert missing == [name for name in names if name not in (names[0], names[2])]
    with pytest.raises(InputError, match="plugstream reproduce successors"):
        read_table(folder, "ct")


def test_each_picture_has_its_best_trial_and_the_counts_of_the_dearest():
    trials = {
        0: cell([(0, 0), (1, 2), (9, 5)], calls=(0, 1, 2), passes=(0.0, 3.0, 4.0), sigma=0.1),
        1: cell([(0, 0), (3, 4), (8, 6)], calls=(0, 0, 3), passes=(0.0, 2.0, 5.0), sigma=0.2),
        -1: cell([(0, 0), (9, 9), (float("nan"), 1)], calls=(9, 9, 9), passes=(9.0, 9.0, 9.0), sigma=0.05),
    }
    best = best_of(trials)
    assert best["snr"] == [9, 6]
    assert best["sigma"] == [0.1, 0.2]
    assert best["history"]["snr"]["value"] == [[0, 0], [1, 4], [9, 6]]
    assert best["calls"] == [0, 1, 3]
    assert best["passes_at"] == [0.0, 3.0, 5.0]
    assert best["passes"] == 5.0


@pytest.mark.parametrize(
    ("peak", "tried"), [(0, [-1, 0, 1]), (1, [-1, 0, 1, 2]), (2, [-1, 0, 1, 2, 3]), (-9, [-3, -2, -1, 0, 1])]
)
def test_trials_go_on_beyond_an_end_that_is_best_on_the_average(tmp_path, monkeypatch, peak, tried):
    line = successor_rows(TINY)[0]

    def made(problem, result, sigma, **more):
        snr = -((np.log(sigma[0] / 0.1) / np.log(1.7) - peak) ** 2)
        return cell([(0, 0), (0, 0), (snr, snr)], sigma=sigma[0])

    monkeypatch.setattr(additions, "pilot_search", lambda *given: (line.choices[0], 0.1))
    monkeypatch.setattr(additions, "run", lambda problem, spec, sigma: sigma)
    monkeypatch.setattr(additions, "outcome", made)
    truth = torch.zeros(2, 8, 8)
    problem = SimpleNamespace(names=("house", "parrot"), truth=truth, instrument="born-2d")
    store = Store(tmp_path, lambda text: None)
    found = add_line(line, problem, problem, store, TINY)
    assert sorted(int(name[-2:]) for name in store.computed) == tried
    assert found["sigma"] == pytest.approx([0.1 * 1.7 ** max(peak, -3)] * 2)


def test_a_line_of_two_searches_is_a_run_with_what_they_found(tmp_path):
    """Pictures of a run do not change each other, so a run with each picture's sigma is the line put together."""
    truth = torch.from_numpy(np.random.default_rng(0).random((2, 16, 16)).astype(np.float32))
    both = make_problem(Pictures(("house", "parrot"), truth, True))
    pilot = make_problem(Pictures(("parrot",), truth[1:, ::2, ::2].contiguous(), True))
    line = next(row for row in successor_rows(TINY) if row.name.startswith("SNORE"))
    line = replace(line, choices=(replace(line.choices[0], denoiser="soft"),))
    store = Store(tmp_path, lambda text: None)
    found = add_line(line, both, pilot, store, TINY)
    again = outcome(both, run(both, Spec(**found["spec"]), found["sigma"]))
    assert found["snr"] == again["snr"]
    assert found["calls"] == again["calls"]
    trials = len(store.computed)
    assert {-1, 0, 1} <= {int(name[-2:]) for name in store.computed if name.startswith("trial")}
    assert add_line(line, both, pilot, store, TINY) == found
    assert len(store.computed) == trials  # nothing is computed twice
