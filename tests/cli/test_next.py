"""A command that has written something ends with the next command, in one line that works as it is printed."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
from PIL import Image

from plugstream.runs.replay import replay
from small_run import RUN, SMALL, main

FEW = [*RUN[:-3], "4"]  # steps after which the image still moves


def next_of(said: str) -> list[str]:
    assert said.count("\nnext: plugstream ") == 1
    return shlex.split(said.splitlines()[-1].removeprefix("next: plugstream "))


def test_the_chain_from_a_scan_to_a_run_that_goes_on(tmp_path, capsys):
    place, run = tmp_path / "a scan.zarr", tmp_path / "its run"
    assert main(["simulate", str(place), *SMALL]) == 0
    words = next_of(capsys.readouterr().err)
    assert words == ["reconstruct", str(place)]
    assert main([*words, "--out", str(run), *FEW]) == 0
    words = next_of(capsys.readouterr().err)
    assert words == ["resume", str(run), "--iterations", "8"]
    assert main(words) == 0
    assert replay(run / "events.jsonl").step == 8
    assert next_of(capsys.readouterr().err) == ["resume", str(run), "--iterations", "16"]
    assert main(["reconstruct", str(place), "--out", str(tmp_path / "json"), "--progress", "json", *FEW]) == 0
    said = capsys.readouterr()
    assert "next: " not in said.out + said.err
    assert json.loads(said.out.splitlines()[-1])["event"] == "exit"


@pytest.mark.parametrize("limit", [["--time-limit", "0.001"], ["--distance-limit", "0.9", "--every", "1"]])
def test_a_run_that_a_limit_ended_takes_the_steps_that_are_asked_for(scan, tmp_path, capsys, limit):
    run = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(run), *FEW[:-1], "30", *limit]) == 0
    assert replay(run / "events.jsonl").step < 30
    words = next_of(capsys.readouterr().err)
    assert words == ["resume", str(run), "--iterations", "30"]
    assert main(words) == 0
    assert replay(run / "events.jsonl").step == 30


def test_a_search_that_a_limit_ended_goes_on(scan, tmp_path, capsys):
    assert (
        main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--time-limit", "0.05", "--threads", "1"]) == 0
    )
    words = next_of(capsys.readouterr().err)
    assert words[:3] == ["resume", str(tmp_path / "run"), "--iterations"]


def test_every_other_command_that_writes_names_one_that_works(scan, tmp_path, capsys):
    noisy, run, tuned, keys = (tmp_path / name for name in ("noisy.png", "run", "tuned.toml", "keys"))
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16)).astype(np.uint8)).save(noisy)
    assert main(["reconstruct", str(scan), "--out", str(run), *RUN, "--preview", "0.001"]) == 0
    capsys.readouterr()
    search = ["--evaluations", "5", "--iterations", "2", "--by", "snr", "--widenings", "0", "--threads", "1"]
    commands = {
        "denoisers": ["denoise", str(noisy), str(tmp_path / "clean.png"), "--sigma", "0.1", "--denoiser", "tv"],
        f"serve {run}": ["report", str(run), "--out", str(tmp_path / "report.html")],
        f"reconstruct {scan} --settings {tuned}": ["tune", str(scan), "--out", str(tuned), *search],
        f"acquire scan.zarr --listen tcp://*:5577 --remote --keys {keys}": ["keys", str(keys)],
    }
    for words, command in commands.items():
        assert main(command) == 0
        assert next_of(capsys.readouterr().err) == words.split()
        if words.startswith(("denoisers", "reconstruct")):
            out = ["--out", str(tmp_path / "again")] if words.startswith("reconstruct") else []
            assert main([*words.split(), *out]) == 0
            capsys.readouterr()


def test_the_demo_is_ct_and_its_report_says_in_80_words_what_was_done(tmp_path):
    run = tmp_path / "run"
    words = ["--size", "24", "--views", "20", "--sigma", "1%", "--iterations", "20", "--threads", "1"]
    assert main(["demo", "--out", str(run), *words, "--report", "html"]) == 0
    page = (run / "report.html").read_text()
    (one,) = json.loads(re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1])
    about, content = one["content"]["about"], one["content"]
    assert len(about.split()) <= 80
    truth, result = np.load(run / "truth.npy"), np.load(run / "result.npy")
    snr = 20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(truth - result))
    for part in (
        "20 noisy views (X-ray tomography) of shepp-logan",
        "20 steps with tv",
        f"SNR of the image is {snr:.2f} dB",
    ):
        assert part in about
    assert "Its strength was given" in about
    assert content["settings"]["instrument"]["name"] == "ct"


def test_the_demo_of_the_paper_is_as_it_was(tmp_path):
    assert main(["demo", "--out", str(tmp_path / "run"), *SMALL, "--iterations", "2", "--threads", "1"]) == 0
    begun = replay(tmp_path / "run" / "events.jsonl").settings
    assert (begun["algorithm"]["sigma"], begun["algorithm"]["name"]) == (0.016, "pgm")
    assert (begun["sampler"]["name"], begun["sampler"]["batch"], begun["denoiser"]["name"]) == ("shifted", 10, "tv")
