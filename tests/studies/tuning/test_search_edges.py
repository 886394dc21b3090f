"""A search whose best is at the end of its range goes on beyond it, and says so; what is still at an end is said."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from plugstream import BornGeometry, BornModel, Grid, PlugstreamWarning, save_scan, simulate
from plugstream.cli import main
from plugstream.settings import resolve
from plugstream.studies.tuning import golden_section
from plugstream.studies.tuning.scan import Search, tune_scan


@pytest.fixture(scope="module")
def scan():
    """A 16 x 16 disc under 8 views of 16 receivers at 20 dB, whose best sigma is about 0.13."""
    geometry = BornGeometry.rings(Grid((16, 16), 0.01), 0.06, views=8, receivers=16, radius=0.4)
    y, x = torch.meshgrid(torch.arange(16) - 7.5, torch.arange(16) - 7.5, indexing="ij")
    return simulate(BornModel(geometry), (x**2 + y**2 < 25).float(), snr=20)


SEARCHES = [(by, ends) for by in ("snr", "discrepancy") for ends in ((1e-3, 0.01), (0.3, 1.2))]


def settings(**more):
    values = {"name": "pgm", "iterations": 20, **more}
    return resolve(None, [("algorithm", k, v) for k, v in values.items()] + [("sampler", "batch", 4)])


@given(peaks=st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=4))
def test_the_peak_beyond_the_range_is_found_for_every_problem(peaks):
    want, n = np.log(peaks), len(peaks)
    asked = []

    def objective(values):
        asked.append(values)
        return -np.abs(np.log(values) - want)

    best = golden_section(objective, np.full(n, 0.01), np.full(n, 1.0), evaluations=20, widenings=9)
    assert not best.edge.any()
    assert np.abs(best.score).max() < 0.02
    assert len(asked) == best.evaluations <= 20 + 9


@pytest.mark.parametrize(("slope", "edge", "value"), [(1, 1, 10.0), (-1, -1, 1e-3)])
def test_what_rises_for_ever_is_known_as_such(slope, edge, value):
    best = golden_section(lambda v: slope * np.log(v), 0.01, 1.0, evaluations=8, widenings=2)
    assert best.edge[0] == edge
    assert best.value[0] == pytest.approx(value)
    assert best.evaluations == 10
    inside = golden_section(lambda v: -(np.log(v / 0.1) ** 2), 0.01, 1.0, widenings=2)
    assert inside.edge[0] == 0
    assert inside.evaluations == 12  # nothing is spent where nothing is to be widened


@pytest.mark.slow
@pytest.mark.parametrize(("by", "ends"), SEARCHES)
def test_tune_goes_beyond_its_range(scan, tmp_path, by, ends):
    """From a range that does not hold it, the same sigma as from one that does, and the terminal says why."""
    plan = {"by": by, "noise": 20.0, "held": 0.25, "evaluations": 10}
    reference, score = tune_scan(scan, settings(), Search(low=0.01, high=1.0, **plan), tmp_path / "a.jsonl")
    said = []
    wide = Search(low=ends[0], high=ends[1], widenings=8, **plan)
    tuned, reached = tune_scan(scan, settings(), wide, tmp_path / "b.jsonl", said.append)
    assert reached >= score - 0.1
    assert tuned.algorithm.sigma == pytest.approx(reference.algorithm.sigma, rel=0.5)
    end = "upper" if ends[1] < 0.1 else "lower"
    assert any(f"the {end} end; trying" in line for line in said) or by == "discrepancy"
    again = []
    assert tune_scan(scan, settings(), wide, tmp_path / "b.jsonl", again.append)[1] == reached  # from the journal
    assert not any(" steps: " in line for line in again)


@pytest.mark.parametrize("by", ["snr", "discrepancy"])
def test_what_is_still_at_the_end_is_said(scan, tmp_path, by):
    plan = Search(by=by, noise=20.0, low=1e-4, high=1e-3, widenings=1, evaluations=5)
    with pytest.warns(PlugstreamWarning, match="the largest that was tried") as caught:
        tuned, _ = tune_scan(scan, settings(), plan, tmp_path / "j.jsonl")
    assert tuned.algorithm.sigma == pytest.approx(1e-3 * 10**0.25)
    last = json.loads((tmp_path / "j.jsonl").read_text().splitlines()[-1])
    assert last["remark"] == str(caught[-1].message)
    assert last["try"]["sigma"] == tuned.algorithm.sigma
    before = (tmp_path / "j.jsonl").read_bytes()
    with pytest.warns(PlugstreamWarning, match="the largest that was tried"):
        tune_scan(scan, settings(), plan, tmp_path / "j.jsonl")
    assert (tmp_path / "j.jsonl").read_bytes() == before


def test_noise_that_no_sigma_reaches_is_said(scan, tmp_path):
    plan = Search(by="discrepancy", noise=60.0, low=0.01, high=1.0, evaluations=6, widenings=1)
    with pytest.warns(PlugstreamWarning, match="no sigma that was tried fits the data to its noise of 60 dB"):
        tune_scan(scan, settings(), plan, tmp_path / "j.jsonl")


def test_the_command_says_it_in_the_terminal_and_in_the_settings(scan, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_scan(scan, tmp_path / "scan.zarr")
    arguments = ["tune", "scan.zarr", "--iterations", "8", "--batch", "4", "--evaluations", "5", "--sigma-low", "1e-4"]
    assert main([*arguments, "--sigma-high", "1e-3", "--widenings", "1"]) == 0
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "the best sigma is at 0.001, the upper end; trying up to 0.0017783" in text
    assert "warning: sigma 0.0017783 is the largest that was tried" in text
    assert "# warning: sigma 0.0017783 is the largest" in (tmp_path / "tuned.toml").read_text()
    assert resolve(tmp_path / "tuned.toml").algorithm.sigma == pytest.approx(1e-3 * 10**0.25)
    assert main([*arguments, "--out", "a.toml", "--widenings", "-1"]) == 2
    assert "widened 0 times or more" in capsys.readouterr().err
