"""`ps.advise` gives what the command would use, and the guide's example of it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import plugstream as ps
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.runs.advice import advised_settings
from small_run import main

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "scan.zarr"
    assert main(["simulate", str(place), "--instrument", "ct", "--size", "24", "--views", "30"]) == 0
    return place


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], []),
        (["algorithm.sigma=1%", "denoiser.name=bm3d"], ["--sigma", "1%", "--denoiser", "bm3d"]),
        (["algorithm.search=none", "sampler.batch=7"], ["--search", "none", "--batch", "7"]),
    ],
)
def test_python_gets_the_advice_of_the_command(changes: list[str], words: list[str], place: Path) -> None:
    scan, typed = ps.open_scan(place), [str(place), *words]
    draft = draft_of(command_parser("reconstruct", ["reconstruct", *typed]).parse_args(typed))
    assert ps.advise(scan, *changes) == advised_settings(draft, scan)


@pytest.mark.parametrize(
    ("changes", "damping"),
    [
        (["denoiser.name=unet", "algorithm.sigma=1%"], 0.3),
        (["denoiser.name=unet", "denoiser.profile=free", "sampler.batch=7"], 0.3),
        (["denoiser.name=mine.pt", "algorithm.sigma=1%"], 0.3),
        (["denoiser.name=unet"], None),  # where sigma falls
        (["denoiser.name=unet", "algorithm.sigma=1%", "denoiser.damping=none"], None),
        (["denoiser.name=bm3d", "algorithm.sigma=1%"], None),
    ],
)
def test_networks_are_damped_in_steps_of_one_sigma(changes: list[str], damping: float | None, place: Path) -> None:
    settings, reasons = ps.advise(ps.open_scan(place), *changes)
    assert settings.denoiser.damping == damping
    assert any("--damping" in reason for reason in reasons) == (damping is not None)


def test_a_file_says_everything(place: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[algorithm]\nsigma = 0.3\n")
    settings, reasons = ps.advise(ps.open_scan(place), file=tmp_path / "own.toml")
    assert settings.algorithm.sigma == 0.3
    assert settings.sampler.name == "uniform"
    assert reasons == ()


def test_the_example_of_the_guide_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place.parent)
    text = GUIDE.read_text(encoding="utf-8").partition("## Settings that suit a scan")[2]
    code = "\n".join(re.findall(r"^ {4}(.*)$", text, re.MULTILINE))
    names = {"ps": ps}
    exec(code, names)
    assert "arrived" in capsys.readouterr().out
    assert names["result"].image.shape == (24, 24)
