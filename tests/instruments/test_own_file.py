"""Mistakes in an instrument of one's own are told in one line, before anything is written; scans cannot name code."""

import json
from pathlib import Path

import pytest

from plugstream.scans.peek import peek_instrument
from small_run import main

TOY = (Path(__file__).parents[1] / "helpers" / "toy_holograph.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("@declare\n", "", "is not declared as an instrument; write @declare"),
        ('str] = "toy-holograph"', 'str] = "born-2d"', "is called 'born-2d', and so is another instrument"),
        ("return Experiment(", "return (", "simulate_views of toy-holograph must return an Experiment, not tuple"),
        ("def simulate_views(", "def simulate_all(", "toy-holograph has no simulation; import a scan"),
        ("probe = np.exp(", "probe = np.ex(", "has no attribute 'ex' at "),
        ("data_shape=self.data_shape", "data_shape=(5, 3)", "returned shape (6, 3, 5), but should return (6, 5, 3)"),
        ("draw.astype(np.uint16)", "draw.astype(np.float32)", "data is float32, which cannot be stored as uint16"),
        ('"tilt": 2.4 * k', '"tilt": 2.4 * k[1:]', "for its views: phase from a slice to the next"),
    ],
)
def test_mistakes_of_an_own_instrument_are_told(tmp_path, capsys, before, after, message):
    assert before in TOY
    (tmp_path / "own.py").write_text(TOY.replace(before, after))
    words = ["simulate", str(tmp_path / "s.zarr"), "--instrument", f"{tmp_path / 'own.py'}:ToyHolograph"]
    assert main([*words, "--views", "6"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "s.zarr").exists()


def test_a_scan_that_names_code_runs_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(f"{TOY}\nopen('ran', 'w').close()\n")
    assert main(["simulate", "s.zarr", "--instrument", "evil.py:ToyHolograph", "--views", "6"]) == 0
    Path("ran").unlink()
    place = Path("s.zarr/zarr.json")
    content = json.loads(place.read_text())
    content["attributes"]["instrument"] = "evil.py:ToyHolograph"
    del content["attributes"]["crc32c"]
    place.write_text(json.dumps(content))
    assert peek_instrument("s.zarr") is None
    capsys.readouterr()
    for words in (["reconstruct", "s.zarr", "--sigma", "1"], ["verify", "s.zarr"], ["info", "s.zarr"]):
        for trust in [[], ["--trust"]] if words[0] == "reconstruct" else [[]]:
            assert main([*words, *trust]) == 2
            assert "there is no instrument 'evil.py:ToyHolograph'; install the package" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reconstruct", "s.zarr", "--trust", "--help"])
    assert not Path("ran").exists()
