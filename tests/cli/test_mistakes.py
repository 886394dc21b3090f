"""The command answers what a person meant: commands, runs, options of denoisers, and noise levels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

import plugstream as ps
import warm
from plugstream.base.registry import entries
from plugstream.cli import main
from plugstream.denoisers.by_name import make
from plugstream.denoisers.facts import unavailable
from plugstream.runs.folder import is_locked
from small_run import RUN
from waiting import wait_until


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a mistake is answered."""
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("recontruct", "reconstruct"),
        ("inf", "info"),
        ("simulat", "simulate"),
        ("denoisse", "denoise"),
        ("DEMO", "demo"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_right_one(wrong, right, capsys):
    assert answer([wrong, "scan.zarr", "--sigma", "1"], capsys).endswith(f"did you mean {right!r}?")


def test_a_command_like_no_other_is_answered_with_all(capsys):
    text = answer(["xyz"], capsys)
    assert "reconstruct" in text
    assert "denoise" in text


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    assert main(["info", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line[:12].strip(): line[12:] for line in lines}


@pytest.mark.slow
def test_info_describes_a_run_from_its_begin_to_its_end(scan, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(out), *RUN]
    assert main([*words, "--iterations", "20", "--report", "png"]) == 0
    rows = shown(out, capsys)
    assert "finished" in rows["run"]
    assert rows["steps"].startswith("20 of 20")
    assert "all iterations were done" in rows["ended"]
    assert ": " in rows["has the imag"]  # the first of the three answers, whose question is longer than the column
    assert "SNR" in rows["measured"]
    assert "tv" in rows["algorithm"]
    assert "4 views a step" in rows["algorithm"]
    assert "--sigma 0.02" in rows["settings"]
    assert "result.npy" in rows["images"]
    assert rows["report"] == "report.png"
    assert rows["go on with"] == f"plugstream resume {out} --iterations 40"
    command = rows["go on with"].split()[1:]
    assert main(command) == 0
    assert shown(out, capsys)["steps"].startswith("40 of 40")
    assert rows["repeat with"].startswith("plugstream reconstruct")


def test_info_of_a_run_that_was_killed_says_so_and_how_to_go_on(scan, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(out), *RUN, "--iterations", "1000000"]
    process = warm.Popen([sys.executable, "-m", "plugstream", *words], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(out.glob("checkpoints/*.safetensors")))
        assert is_locked(out)
        rows = shown(out, capsys)
        assert "running" in rows["run"]
        assert "go on with" not in rows
    finally:
        process.kill()
        process.wait(timeout=150)
    assert not is_locked(out)
    rows = shown(out, capsys)
    assert "died at step" in rows["run"]
    assert rows["go on with"] == f"plugstream resume {out}"
    assert rows["images"] == "none yet"


@pytest.mark.parametrize("damage", ["run.json", "settings.toml", "events.jsonl"])
def test_info_of_a_damaged_run_is_one_line(scan, tmp_path, capsys, damage):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, "--iterations", "2"]) == 0
    capsys.readouterr()
    (out / damage).write_text('{"nonsense\n')
    assert damage in answer(["info", str(out)], capsys)


def test_info_of_a_run_whose_scan_went_away_and_whose_name_is_hostile(scan, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, "--iterations", "2"]) == 0
    about = json.loads((out / "run.json").read_text())
    about["scan"] = "/not/there\x1b[2J.zarr"
    (out / "run.json").write_text(json.dumps(about))
    rows = shown(out, capsys)
    assert "not there" in rows["scan"]
    assert "\x1b" not in rows["scan"]


@pytest.mark.parametrize(
    ("name", "options", "users"),
    [
        ("tv", {"profile": "fast"}, "bm3d or bm4d or ridge"),
        ("bm3d", {"tol": 1e-4}, "tv or tv-anisotropic or ridge"),
        ("nlm", {"max_iterations": 3}, "tv or tv-anisotropic or ridge"),
        ("tv", {"white": 255.0}, "tnrd or ridge"),
        ("soft", {"profile": "fast"}, "bm3d or bm4d or ridge"),
    ],
)
def test_an_option_that_a_denoiser_has_no_use_for_is_refused(name, options, users):
    with pytest.raises(ps.InputError, match=f"{name} has no use for {next(iter(options))}; .* choose {users}"):
        make(name, **options)


def test_every_option_is_used_by_what_takes_it_and_defaults_are_never_refused():
    for entry in entries("denoiser").values():
        if unavailable(entry) is None and not entry.is_pattern:
            make(entry.name, low=0.0, high=1.0)
    make("tv", tol=1e-4, max_iterations=5)
    make("ridge", tol=1e-3, max_iterations=5, white=2.0)
    make("bm3d", profile="fast")
    assert make("ridge", profile="fast").ridges.size < make("ridge").ridges.size


def test_the_command_refuses_it_too(scan, tmp_path, capsys):
    words = ["reconstruct", str(scan), "--sigma", "0.02", "--out", str(tmp_path / "run")]
    assert "no use for profile" in answer([*words, "--profile", "fast"], capsys)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def pictures(tmp_path) -> dict[str, Path]:
    values = np.random.default_rng(0).random((24, 24))
    paths = {"8.png": tmp_path / "8.png", "16.png": tmp_path / "16.png", "f.tif": tmp_path / "f.tif"}
    Image.fromarray((255 * values).astype(np.uint8)).save(paths["8.png"])
    Image.fromarray((65535 * values).astype(np.uint16)).save(paths["16.png"])
    tifffile.imwrite(paths["f.tif"], values.astype(np.float32))
    tifffile.imwrite(tmp_path / "f255.tif", (255 * values).astype(np.float32))
    return {**paths, "f255.tif": tmp_path / "f255.tif"}


@pytest.mark.parametrize("command", ["denoise", "certify"])
@pytest.mark.parametrize("option", [["--along", "x"], ["--opening", "tv"], ["--equivariant", "random"]])
def test_what_only_a_reconstruction_has_is_refused_where_pictures_are_denoised(
    pictures, tmp_path, capsys, command, option
):
    own = ["--sigma", "0.1", *([str(pictures["8.png"]), str(tmp_path / "o.png")] if command == "denoise" else [])]
    assert option[0] in answer([command, *own, "--denoiser", "bm3d", *option], capsys)
    assert not (tmp_path / "o.png").exists()


@pytest.mark.parametrize(
    ("picture", "sigma", "asks"),
    [
        ("8.png", "25", "did you mean 25/255?"),
        ("8.png", "1.5", "did you mean 1.5/255?"),
        ("16.png", "2000", "did you mean 2000/65535?"),
        ("8.png", "1000", "such as 25/255"),
    ],
)
def test_a_noise_level_on_another_scale_is_asked_about(pictures, tmp_path, capsys, picture, sigma, asks):
    out = tmp_path / f"out{pictures[picture].suffix}"
    assert asks in answer(["denoise", str(pictures[picture]), str(out), "--sigma", sigma], capsys)
    assert not out.exists()
    assert (
        main(["denoise", str(pictures[picture]), str(out), "--sigma", sigma, "--large-sigma", "--denoiser", "soft"])
        == 0
    )
    assert out.exists()


def test_a_noise_level_beyond_floating_point_values_is_doubted(pictures, tmp_path, capsys):
    assert main(["denoise", str(pictures["f.tif"]), str(tmp_path / "o.tif"), "--sigma", "25"]) == 0
    assert "is it on their scale?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("picture", "sigma"), [("8.png", "25/255"), ("8.png", "1"), ("f255.tif", "25"), ("f.tif", "0.1")]
)
def test_a_noise_level_that_can_be_is_not_asked_about(pictures, tmp_path, capsys, picture, sigma):
    out = tmp_path / f"out{pictures[picture].suffix}"
    assert main(["denoise", str(pictures[picture]), str(out), "--sigma", sigma]) == 0
    assert "scale" not in capsys.readouterr().err
