"""What a run writes down of its settings is what it used, and still repeats it; files that say more are read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from plugstream.cli import main
from plugstream.runs.event_log import read_events
from plugstream.runs.pages.content import run_content
from plugstream.settings import Settings, resolve, to_toml

SMALL = ["--instrument", "ct", "--size", "12", "--views", "8", "--photons", "1e4"]
QUICK = ["--iterations", "3", "--batch", "4", "--sigma", "0.1", "--report", "none"]


def shown(folder: Path) -> dict[str, set[str]]:
    """The sections of the settings, wherever a run shows them."""
    start = next(event for event in read_events(folder / "events.jsonl") if event.kind == "start")
    return {
        "settings.toml": set(tomllib.loads((folder / "settings.toml").read_text())),
        "log": set(start.settings),
        "page": set(run_content(folder)["settings"]),
    }


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("used")
    assert main(["simulate", str(folder / "s.zarr"), *SMALL]) == 0
    return folder / "s.zarr"


@pytest.fixture(scope="module")
def measured(scan) -> Path:
    assert main(["reconstruct", str(scan), "--out", str(scan.parent / "run"), *QUICK]) == 0
    return scan.parent / "run"


def test_a_run_on_a_scan_shows_no_simulation(measured):
    for place, sections in shown(measured).items():
        assert "simulate" not in sections, place
        assert {"algorithm", "momentum", "gradient", "scan"} <= sections, place


def test_a_run_without_momentum_shows_none(scan, tmp_path):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--algorithm", "ipa", "--step", "1e3", *QUICK]
    assert main(words) == 0
    for place, sections in shown(tmp_path / "run").items():
        assert not {"simulate", "momentum", "gradient"} & sections, place
    assert main(["resume", str(tmp_path / "run"), "--iterations", "5"]) == 0


def test_settings_without_a_simulation_repeat_the_run(measured, scan, tmp_path):
    words = ["--settings", str(measured / "settings.toml"), "--out", str(tmp_path / "again")]
    assert main(["reconstruct", str(scan), *words]) == 0
    assert np.array_equal(np.load(tmp_path / "again" / "result.npy"), np.load(measured / "result.npy"))
    assert main(["resume", str(tmp_path / "again"), "--iterations", "5"]) == 0
    assert "simulate" not in shown(tmp_path / "again")["settings.toml"]


def test_a_demo_shows_the_simulation_that_repeats_it(tmp_path):
    assert main(["demo", *SMALL, *QUICK, "--out", str(tmp_path / "demo")]) == 0
    assert main(["resume", str(tmp_path / "demo"), "--iterations", "5"]) == 0
    for place, sections in shown(tmp_path / "demo").items():
        assert "simulate" in sections, place
    assert tomllib.loads((tmp_path / "demo" / "settings.toml").read_text())["simulate"]["views"] == 8


def test_files_with_a_simulation_are_read_and_not_shown_again(measured, scan, tmp_path):
    file = tmp_path / "with.toml"
    text = (measured / "settings.toml").read_text()
    assert "[simulate]" not in text
    file.write_text(f'{text}\n[simulate]\npicture = "shepp-logan"\nviews = 180\n')
    assert main(["reconstruct", str(scan), "--settings", str(file), "--out", str(tmp_path / "run")]) == 0
    assert "simulate" not in shown(tmp_path / "run")["settings.toml"]
    assert main(["resume", str(tmp_path / "run"), "--iterations", "5"]) == 0
    for place, sections in shown(tmp_path / "run").items():
        assert "simulate" not in sections, place


def test_what_is_tuned_for_a_scan_has_no_simulation(scan, tmp_path):
    words = ["--evaluations", "5", "--iterations", "2", "--by", "snr", "--widenings", "0"]
    assert main(["tune", str(scan), "--out", str(tmp_path / "tuned.toml"), *words]) == 0
    assert "simulate" not in tomllib.loads((tmp_path / "tuned.toml").read_text())


def test_settings_without_a_simulation_come_back_the_same(tmp_path):
    used = Settings.model_fields.keys() - {"simulate"}
    settings = resolve(None, [("instrument", "name", "ct"), ("algorithm", "sigma", 0.1)], used=used)
    (tmp_path / "s.toml").write_text(to_toml(settings))
    assert settings.simulate is None
    assert resolve(tmp_path / "s.toml", used=used) == settings
    assert resolve(tmp_path / "s.toml").simulate.views == 180  # which `demo` takes the defaults of
