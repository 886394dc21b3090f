"""What `plugstream info` says of a run before it is begun: by the same rules as the run, and what it took."""

from __future__ import annotations

import re
import time

import pytest

from plugstream.denoisers.tv import TV
from plugstream.runs.advice import advise
from plugstream.runs.outlook import describe_outlook
from plugstream.scans.store import open_scan
from small_run import main


@pytest.fixture(scope="module")
def ct(tmp_path_factory):
    place = tmp_path_factory.mktemp("ct") / "ct.zarr"
    assert main(["simulate", str(place), "--instrument", "ct", "--size", "24", "--views", "30"]) == 0
    return place


def test_it_says_what_the_run_will_do_and_the_flag_that_changes_each(ct, capsys):
    assert main(["info", str(ct)]) == 0
    rows = dict(re.findall(r"^(\S[^\n]{10}) ((?:.|\n {12})*)", capsys.readouterr().out, re.MULTILINE))
    rows = {name.strip(): " ".join(text.split()) for name, text in rows.items()}
    settings = advise(open_scan(ct)).settings
    names = [settings.denoiser.name, *settings.denoiser.rival_names]
    assert rows["prior"].startswith(" or ".join(names))
    assert rows["strength"].startswith("found by a search on held-out data")
    assert rows["a step"].startswith("27 of 30 views; 3 are held out")
    assert all(name in rows["time"] for name in names)
    assert f"at most {settings.algorithm.iterations} steps" in rows["time"]
    flags = {"prior": "--denoiser", "strength": "--sigma", "a step": "--batch", "memory": "--device"}
    for row, flag in {**flags, "time": "--iterations"}.items():
        assert flag in rows[row]


def test_the_time_is_measured(ct, monkeypatch):
    """A denoiser that takes a tenth of a second more makes a step take that much more."""
    denoise = TV.denoise
    monkeypatch.setattr(TV, "denoise", lambda *values: (time.sleep(0.1), denoise(*values))[1])
    text = describe_outlook(open_scan(ct))["time"]
    seconds = {name: float(value) for value, name in re.findall(r"([\d.e-]+) s with (\w+)", text)}
    assert seconds["tv"] > 0.1


def test_what_a_run_would_refuse_is_said(tmp_path):
    place = tmp_path / "few.zarr"
    words = ["--instrument", "born-2d", "--size", "16", "--views", "1", "--receivers", "3", "--radius", "0.4"]
    assert main(["simulate", str(place), *words, "--wavelength", "0.03"]) == 0
    (text,) = describe_outlook(open_scan(place)).values()
    assert text.startswith("'plugstream reconstruct' refuses it: ")
