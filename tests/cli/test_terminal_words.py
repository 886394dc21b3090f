"""What a person types is answered at once, and what they read is broken between words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugstream.base.display.region import wrap_for
from plugstream.base.text import wrap_words
from plugstream.cli import main
from plugstream.cli.lists import _block
from terminals import Screen

# The words after which a scan, a run or a file must be named, and what they are answered with.
MISSING = [
    (["reconstruct", "scam.zarr", "--sigma", "0.1"], "there is no scan at scam.zarr; did you mean scan.zarr?"),
    (["tune", "elsewhere/a.zarr", "--out", "b.toml"], "there is no scan at elsewhere/a.zarr"),
    (["info", "nothere"], "there is no scan, run or file at nothere"),
    (["report", "nothere"], "nothere is not the folder of a run: it is not there"),
    (["import", "ct", "scan.h5"], "there is no file scan.h5"),
    (["denoise", "a.png", "b.png", "--sigma", "0.1"], "there is no picture at a.png"),
    (["train", "unet", "pictures", "a.safetensors"], "there is no folder pictures"),
    (["reconstruct", "scan.zarr"], "scan.zarr is not a scan: no Zarr v3 group can be read there"),
    (
        ["verify", "text.txt"],
        "text.txt is not a scan: neither a folder nor a zip file; 'plugstream import' makes one of a recording, "
        "'plugstream follow' of one that still grows",
    ),
    (
        ["reconstruct", "new.zarr", "--out", "scan.zarr"],
        "the output scan.zarr exists already; choose another with --out",
    ),
    (["reconstruct", "new.zarr", "--out=text.txt"], "the output text.txt exists already; choose another with --out"),
    (["reconstruct", "new.zarr", "--out", "no/run"], "the folder no does not exist; make it first"),
    (["simulate", "text.txt/new.zarr"], "text.txt is not a folder"),
    (["serve", "a.zarr"], "a.zarr is a scan, not a run; 'plugstream reconstruct a.zarr' makes one"),
    (["simulate", "scan.zarr"], "scan.zarr exists already; remove it or choose another name"),
]


@pytest.mark.parametrize(("words", "answer"), MISSING, ids=["-".join(words[:3]) for words, _ in MISSING])
def test_what_is_not_there_is_told_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], answer: str
) -> None:
    (tmp_path / "scan.zarr").mkdir()
    (tmp_path / "text.txt").write_text("no scan")
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"plugstream: {answer}")


def test_neither_torch_nor_pydantic_is_imported_for_that(tmp_path: Path) -> None:
    code = (
        "import sys; from plugstream.cli import main; status = main(['reconstruct', 'nothere.zarr']);"
        "sys.exit(status if not {'torch', 'numpy', 'pydantic'} & set(sys.modules) else 99)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "plugstream: there is no scan at nothere.zarr\n")


def test_a_scan_that_is_awaited_and_help_are_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plugstream.cli.places import check_place

    monkeypatch.chdir(tmp_path)
    for more in (["--follow"], ["--set=scan.follow=true"], ["--help"]):
        check_place(["reconstruct", "later.zarr", *more])
    check_place(["reconstruct", "s3://bucket/scan.zarr"])
    check_place([])


def test_words_stay_whole_and_so_does_a_command() -> None:
    text = "  stopped; a word-with-hyphens and more, go on with: plugstream resume 'a folder' --trust"
    lines = wrap_words(text, 24).splitlines()
    assert all(len(line) <= 24 or "plugstream" in line for line in lines)
    assert " ".join(line.strip() for line in lines) == text.strip()
    assert lines[-1] == "    plugstream resume 'a folder' --trust"
    assert wrap_words("short", 24) == "short"


def test_lines_are_wrapped_for_terminals_alone(tmp_path: Path) -> None:
    text = "one of the many words " * 10
    assert max(map(len, wrap_for(Screen(40), text).splitlines())) <= 40
    with open(tmp_path / "log", "w") as log:
        assert wrap_for(log, text) == text


def test_a_table_wider_than_the_terminal_becomes_blocks() -> None:
    lines = _block(["name", "here", "options", "what it is"], ["ct", "yes", "--a " * 30, "a tomograph " * 9], 60)
    assert lines[0].startswith("ct: a tomograph")
    assert all(len(line) <= 60 for line in lines)
    assert "options --a" in "".join(lines)
    assert "here" not in "".join(lines)


def test_a_long_mistake_is_broken_between_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(50)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["reconstrukt" * 3]) == 2
    assert all(len(line) <= 50 for line in screen.lines)
    assert os.linesep.join(screen.lines).split()[:4] == ["plugstream:", "there", "is", "no"]
