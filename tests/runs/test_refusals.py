"""Runs that cannot be: refused in one line before a folder is made, or with the folder gone again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from effort import effort, thorough
from plugstream.base.checked_jsonl import LineWriter
from small_run import SMALL, main

RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "2"]


@pytest.fixture(scope="module")
def run(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["reconstruct", str(scan), *RUN, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    "flags",
    [
        ["--step", "0"], ["--step", "-1"], ["--step", "0/L"], ["--step", "1e400/L"], ["--step-end", "0/L"],
        ["--sigma", "1e308"], ["--sigma", "--"], ["--sigma=--"], ["--sigma", "1e50"], ["--seed", str(2**128)],
        ["--threads", "2147483648"], ["--threads", "100000"], ["--low", "9" * 5000], ["--low", "1e200"],
        ["--tol", "1e308"],
    ],
    ids=lambda flags: " ".join(flags)[:24],
)  # fmt: skip
def test_one_line_and_no_folder(scan, tmp_path, capsys, flags):
    assert main(["reconstruct", str(scan), *RUN, *flags, "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("plugstream: ")
    assert list(tmp_path.iterdir()) == []


def test_settings_nested_three_thousand_deep_are_one_line(scan, tmp_path, capsys):
    file = tmp_path / "deep.toml"
    file.write_text("a = " + "[" * 3000 + "]" * 3000)
    assert main(["reconstruct", str(scan), "--settings", str(file), "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "is not TOML" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_refusal_that_is_found_late_leaves_no_folder(scan, tmp_path, capsys, monkeypatch):
    """L is known once every view was looked at; L = 0 is what masks, or lengths of 1e-300, give."""
    monkeypatch.setattr("plugstream.fidelity.least_squares.LeastSquares.lipschitz_max", property(lambda self: 0.0))
    assert main(["reconstruct", str(scan), *RUN, "--out", str(tmp_path / "r")]) == 2
    assert "L is 0" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    words = ["demo", *SMALL]
    assert main([*words, "--batch", "2", "--out", str(tmp_path / "r")]) == 2
    assert "L is 0" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--views", "1000000000000"], "takes about"),
        (["--receivers", "100000000"], "of memory"),
        (["--views", "300000", "--receivers", "300000"], "takes about"),
        (
            ["--size", "4096", "--method", "dense", "--receivers", "16000"],
            "the dense model takes about 2.15 TB of memory",
        ),
        (["--size", "4096", "--wavelength", "1.5e-5"], "of memory"),
        (["--wavelength", "1e300"], "cannot be used"),
        (["--wavelength", "1e-300"], "cannot be used"),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_begun(tmp_path, capsys, flags, reason):
    assert main(["simulate", str(tmp_path / "s.zarr"), *flags]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert len(said) == 1
    assert reason in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "null", "1", '"text"', "{}", "[" * 100_000, '{"scan": 1, "command": "c"}',
        '{"scan": "s", "command": 1}',
        '{"scan": null, "command": "c"}', '{"scan": ["a"], "command": "c"}', '{"scan": "\\u0000", "command": "c"}',
        '{"scan": {}, "command": []}', '{"scan": ' + "9" * 5000 + "}",
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_a_run_json_of_the_wrong_kind_is_one_line(run, tmp_path, capsys, content):
    folder = shutil.copytree(run, tmp_path / "r")
    (folder / "run.json").write_text(content)
    for command in ("resume", "info"):
        assert main([command, str(folder)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "run.json" in said or "there is no scan at" in said


WRONG_KINDS = [
    ("views", "step", "0"), ("views", "step", -1), ("views", "step", 1.5), ("views", "step", None),
    ("views", "views", "12"), ("views", "views", 2**80), ("views", "views", True), ("views", "damaged", 3),
    ("views", "damaged", ["a"]), ("views", "damaged", [-1]), ("views", "damaged", None), ("views", "ended", "yes"),
    ("views", "lipschitz", "1"), ("views", "lipschitz", []), ("measured", "values", []), ("measured", "values", 1),
    ("measured", "values", {"snr": "high"}), ("measured", "step", {}), ("start", "iterations", "x"),
    ("stop", "step", "x"),
    ("stop", "reason", 1), ("stop", "failed", 1), ("views", "event", 1), ("views", "event", None),
]  # fmt: skip
OF_EACH_KEY = list({(kind, key): (kind, key, value) for kind, key, value in WRONG_KINDS}.values())


@thorough
@pytest.mark.parametrize(("kind", "key", "value"), effort(OF_EACH_KEY, WRONG_KINDS))
def test_an_event_of_the_wrong_kind_is_one_line(run, tmp_path, capsys, kind, key, value):
    """With checksums that are right, as another program would write them."""
    folder = shutil.copytree(run, tmp_path / "r")
    log = folder / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    writer = LineWriter(log, "the event log")
    for event in events:
        event.pop("check")
        if event.get("event") == kind:
            event[key] = value
        writer.add(event)
    writer.close()
    for command in ("resume", "info"):
        assert main([command, str(folder)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "of the event log" in said
