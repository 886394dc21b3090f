"""The script that trains: as commands are, with what it wrote, what it says, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plugstream.cli import main
from plugstream.denoisers.tnrd import TNRD
from plugstream.denoisers.tnrd.files import load_card
from training import run as script

EXTRA = {"ridge": [], "tnrd": ["--sigma", "25", "--stage-steps", "1"]}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (30, 28)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("what", EXTRA)
def test_it_trains_and_says_how(tmp_path, pictures, what, capsys):
    out, again = tmp_path / "w.safetensors", tmp_path / "again.safetensors"
    words = [what, str(pictures), str(out), "--steps", "2", "--batch", "1", "--patch", "16", *EXTRA[what]]
    assert main(words, script) == 0
    said = capsys.readouterr().err
    assert f"{'ridge' if what == 'ridge' else 'joint'}: 2 steps, loss " in said
    assert f"wrote {out}\n" in said
    assert not out.with_suffix(".checkpoint").exists()
    assert main(words, script) == 2
    assert "exists already" in capsys.readouterr().err
    more = [*words[:2], str(again), *words[3:], "--start"]
    if what == "tnrd":
        assert main([*more, str(out)], script) == 0
        (model,) = TNRD.load(again).models
        assert (model.sigma, model.stages) == (25, 5)
        assert load_card(again)["data"] == "3 pictures of pictures"
        assert load_card(again)["command"].startswith("python training/run.py ")
    assert main([*more, str(tmp_path / "nowhere.safetensors")], script) == 2
    assert "--start must be the file of a TNRD model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tnrd", "pictures", "x.safetensors"], "give --sigma"),
        (["ridge", "picture", "x.safetensors"], "there is no folder picture; did you mean pictures?"),
        (["ridge", ".", "x.safetensors"], "holds no pictures"),
        (["ridge", "pictures", "w.pt"], "weights are written as .safetensors"),
        (["ridge", "pictures", "x.safetensors", "--steps", "0"], "--steps must be > 0"),
        (["ridge", "pictures", "x.safetensors", "--form", "safe"], "there is no argument --form"),
        (["unet", "pictures", "x.safetensors"], "invalid choice: 'unet'"),
        (["ridge"], "for example: python training/run.py ridge pictures weights.safetensors"),
    ],
)
def test_mistakes_are_answered_in_a_line(tmp_path, pictures, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(words, script) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plugstream: ")
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]
