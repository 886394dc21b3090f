"""Names of any bytes that a file system takes: they work, to the end, or are refused before anything is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from effort import effort, thorough
from plugstream import open_scan
from plugstream.models.born_geometry import ring
from plugstream.runs.folder import open_run
from small_run import SMALL, main

NAMES = [
    "new\nline",
    "escape\x1b[31m",
    "not-utf8-\udcff\udcfe",
    "quote'\"`$(x)\\",
    "é漢\u202e",
    "-dash",
    " ",
    "x" * 240,
]
RUN = ["--sigma", "0.02", "--batch", "4", "--iterations", "3", "--threads", "1"]


@thorough
@pytest.mark.parametrize("name", effort(NAMES[:3], NAMES))
def test_a_run_of_any_name_is_made_described_and_resumed(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    scan, run = f"./{name}", f"./{name}-run"[:255]
    assert main(["simulate", *SMALL, "--", scan]) == 0
    assert main(["reconstruct", *RUN, f"--out={run}", "--", scan]) == 0
    assert open_run(Path(run)).source == (tmp_path / scan).resolve()
    assert main(["info", "--", scan]) == 0
    assert main(["info", "--", run]) == 0
    assert main(["verify", "--", scan]) == 0
    assert main(["resume", "--iterations", "5", "--", run]) == 0
    said = "".join(capfd.readouterr())
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(scan).name, Path(run).name])


@thorough
@pytest.mark.parametrize("name", effort([NAMES[2], NAMES[3], NAMES[5]], NAMES))
def test_the_command_that_repeats_a_run_works_in_a_shell(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *SMALL, "--", f"./{name}"]) == 0
    assert main(["reconstruct", *RUN, "--out=first", "--", f"./{name}"]) == 0
    command = open_run(Path("first")).command
    assert command in Path("first/settings.toml").read_text(encoding="utf-8")
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, timeout=150, check=True
    ).stdout.split(b"\0")[1:-1]
    assert main([*map(os.fsdecode, words), "--out", "second"]) == 0
    assert np.array_equal(np.load("first/result.npy"), np.load("second/result.npy"))


@pytest.mark.parametrize("name", NAMES[:4])
def test_imports_take_files_of_any_name(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    file = Path(f"{name}.npz")
    arrays = {"receivers": ring(5, 0.5), "transmitters": ring(4, 0.5), "data": np.ones((4, 5), dtype=np.complex64)}
    with file.open("wb") as opened:
        np.savez(opened, **arrays, wavelength=0.03, size=16, width=0.1)
    assert main(["import", "npz", "--", f"./{file}", "./s.zarr"]) == 0
    scan = open_scan("s.zarr")
    assert scan.read().numpy() == pytest.approx(arrays["data"])
    assert scan.provenance["file"] == os.fsencode(file).decode(errors="backslashreplace")
    capsys.readouterr()
    assert main(["info", "s.zarr"]) == 0
    assert re.search(r"views +4\b", capsys.readouterr().out)


def test_a_setting_that_cannot_be_written_down_is_refused_before_anything_is(scan, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save(os.fsdecode(b"guide-\xff.npy"), np.zeros((24, 24)))
    before = sorted(os.listdir(os.fsencode(tmp_path)))
    flags = ["--denoiser", "nlm", "--nlm-guide", os.fsdecode(b"guide-\xff.npy")]
    assert main(["reconstruct", str(scan), *RUN, *flags, "--out", "r"]) == 2
    said = capsys.readouterr().err
    assert "holds bytes that are not UTF-8" in said
    assert said.count("\n") == 1
    assert sorted(os.listdir(os.fsencode(tmp_path))) == before


@pytest.mark.parametrize("text", ["2020/07", "1/2", "true", "[1]", "7"])
def test_a_file_whose_name_looks_like_a_number_is_taken_by_its_name(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "s.zarr", *SMALL, "--picture", text]) == 2
    assert f"there is no picture {text}" in capsys.readouterr().err


@pytest.mark.parametrize("length", [256, 5000])
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "{}"],
        ["reconstruct", "{}", "--sigma", "0.02"],
        ["reconstruct", "s.zarr", "--sigma", "0.02", "--out", "{}"],
        ["reconstruct", "s.zarr", "--settings", "{}"],
        ["reconstruct", "s.zarr", "--sigma", "0.02", "--denoiser", "tnrd", "--weights", "{}"],
        ["demo", "--out", "{}"],
        ["resume", "{}"],
        ["import", "npz", "{}"],
        ["info", "{}"],
        ["verify", "{}"],
        ["acquire", "{}"],
        ["denoise", "{}", "o.png", "--sigma", "1"],
        ["train", "unet", "{}", "w.safetensors"],
        ["tune", "{}"],
        ["certify", "--sigma", "1", "--images", "{}"],
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else str(words),
)
def test_names_that_no_file_system_takes_are_one_line(tmp_path, monkeypatch, capsys, words, length):
    monkeypatch.chdir(tmp_path)
    assert main([word.format("n" * length) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 1500
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_standard_output_takes_names_of_any_bytes(tmp_path):
    """Python's own would refuse a byte that is not UTF-8."""
    arrays = {"receivers": ring(5, 0.5), "transmitters": ring(4, 0.5), "data": np.ones((4, 5), dtype=np.complex64)}
    with (tmp_path / "d.npz").open("wb") as opened:
        np.savez(opened, **arrays, wavelength=0.03, size=16, width=0.1)
    place = os.fsencode(tmp_path) + b"/\xff.zarr"
    assert main(["import", "npz", str(tmp_path / "d.npz"), os.fsdecode(place)]) == 0
    words = [sys.executable, "-m", "plugstream", "info", place]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert b"\\xff.zarr (complete)" in done.stdout
