"""Commands that take long say how far they are, and what that is a part of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plugstream.base.display import screen as module
from plugstream.base.display.screen import Display
from plugstream.base.progress import Work, enclosing_work
from plugstream.cli import main
from plugstream.runs.events import Steering
from plugstream.runs.terminal import Terminal
from terminals import Screen


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Work, ...]]:
    """What a display is told of, each with what it is a part of."""
    told: list[tuple[Work, ...]] = []
    hear = Display.hear

    def listen(self: Display, *work: Any) -> None:
        told.append((*enclosing_work(), work))
        hear(self, *work)

    monkeypatch.setattr(Display, "hear", listen)
    return told


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "noise.png")
    return folder


def test_tune_counts_its_evaluations(heard: list[tuple[Work, ...]], scan: Path, tmp_path: Path) -> None:
    words = ["tune", str(scan), "--evaluations", "5", "--widenings", "0", "--iterations", "2", "--threads", "1"]
    assert main([*words, "--out", str(tmp_path / "tuned.toml")]) == 0
    steps = [work for work in heard if work[-1][0] == "steps"]
    assert [work[0] for work in steps if work[-1][1] == 0] == [("evaluation", n, 5) for n in range(5)]
    assert {work[-1] for work in steps} == {("steps", 0, 2), ("steps", 1, 2)}


def test_tune_over_more_counts_its_rounds(heard: list[tuple[Work, ...]], scan: Path, tmp_path: Path) -> None:
    words = ["tune", str(scan), "--evaluations", "5", "--widenings", "0", "--iterations", "15", "--threads", "1"]
    assert main([*words, "--over", "sigma,step_size", "--out", str(tmp_path / "tuned.toml")]) == 0
    rounds = {work[0] for work in heard if work[0][0] == "round"}
    assert rounds == {("round", 0, 2), ("round", 1, 2)}
    assert heard[-1][0] == ("evaluation", 4, 5)


def test_train_counts_its_steps(
    heard: list[tuple[Work, ...]], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "unet", str(pictures), str(tmp_path / "w.safetensors"), "--steps", "3"]
    assert main([*words, "--batch", "1", "--patch", "16", "--channels", "2", "3", "--blocks", "1", "1"]) == 0
    counts = [(what.partition(",")[0], done, total) for ((what, done, total),) in heard]
    assert counts == [("training unet", n, 3) for n in (1, 2, 3)]
    assert "unet: 3 steps, loss " in capsys.readouterr().err


def test_certify_counts_pictures_and_products(
    heard: list[tuple[Work, ...]], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugstream.studies.certificates.drawing.draw_certificate", lambda *words: None)
    words = ["certify", "--denoiser", "soft", "--sigma", "0.1", "--size", "8", "--products", "4"]
    assert main([*words, "--images", str(pictures), "--out", str(tmp_path / "certificate")]) == 0
    assert (("picture", 0, 1), ("looking for the worst directions", 3, 4)) in heard
    assert (("picture", 0, 1), ("reconstructing", 7, 8)) in heard


def test_a_pause_is_shown_and_is_no_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Screen(80))
    monkeypatch.setattr(module, "_FRAME", 10.0)  # drawn here alone
    with Display() as display:
        terminal = Terminal(display)
        steps = terminal.steps
        steps.total = 100
        steps.tick(10, 1.0, 100.0)
        steps.tick(20, 2.0, 101.0)
        display.show(steps)
        display._show_rich(0.0)
        assert "10 steps/s" in screen.shown[-1]
        assert "8 s left" in screen.shown[-1]
        terminal(Steering(20, "pause"))
        display._show_rich(0.0)
        assert "paused" in screen.shown[-1]
        assert "left" not in screen.shown[-1]
        terminal(Steering(20, "resume"))
        steps.tick(20, 2.0, 1000.0)
        steps.tick(30, 3.0, 1001.0)
        display._show_rich(0.0)
        assert "10 steps/s" in screen.shown[-1]
        assert "7 s left" in screen.shown[-1]
