"""report.html is whole, can load nothing, and is made of whatever there is of a run; mistakes are one line."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from page_runs import ball, write_run
from plugstream import ImageSpace, InputError
from plugstream.runs.pages import SCRIPTS, report as pages_report
from plugstream.runs.pages.report import compare_reports, write_report
from plugstream.runs.replay import replay
from small_run import main

BREAKS = """
from plugstream.denoisers import FromFunction


def build():
    calls = []

    def smooth(image, sigma):
        calls.append(sigma)
        return image if len(calls) < 20 else 1 / 0

    return FromFunction(smooth)
"""
SHORT = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "10"]


@pytest.fixture(scope="module")
def flat(tmp_path_factory) -> Path:
    truth = ball((8, 8))
    return write_run(tmp_path_factory.mktemp("flat") / "run", ImageSpace((8, 8)), truth, truth)


def embedded(page: str) -> Any:
    """What stands in a report."""
    return json.loads(re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.S)[1])


def test_a_report_allows_its_own_script_and_style_and_nothing_else(flat, tmp_path):
    page = write_report(flat, tmp_path / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    (script,) = re.findall(r"<script>(.*?)</script>\n</body>", page, re.S)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r'(src|href)="(?!data:,)', page)  # nothing that a browser would fetch
    assert not re.search(r' style="| on\w+="', page)
    assert "Permission is hereby granted" in script  # uPlot's licence, which goes where uPlot goes
    assert page.count("<script") == 2  # its data, and its script: what a run wrote ends neither
    assert "</script><script>alert" in embedded(page)[0]["content"]["notes"][1]["text"]


def test_every_script_says_what_it_is_for():
    for name in SCRIPTS[1:]:
        assert pages_report.read_asset(name).startswith("// ")


def test_a_run_ends_with_its_report_which_knows_how_it_ended(scan, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *SHORT, "--report", "html"]) == 0
    assert "report.html shows them" in capsys.readouterr().err
    (run,) = embedded((folder / "report.html").read_text(encoding="utf-8"))
    assert run["content"]["state"] == "ended"
    assert run["content"]["stop"]["reason"] == "all iterations were done"
    assert set(run["pictures"]) == {"result", "backprojection", "start", "truth"}
    assert run["content"]["scores"]["result"].endswith(" dB")


@pytest.mark.parametrize("out", [".", "/"])
def test_a_report_is_not_written_over_a_folder(flat, tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(flat), "--out", out]) == 2
    assert capsys.readouterr().err == f"plugstream: cannot write {out}: Is a directory\n"
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_told_and_the_run_has_ended(scan, tmp_path, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pages_report, "write_whole", full)
    folder = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *SHORT, "--report", "html"]) == 0
    told = capsys.readouterr().err
    assert "warning: cannot write" in told
    assert "No space left on device" in told
    assert "plugstream report" in told
    history = replay(folder / "events.jsonl")
    assert history.stop is not None
    assert not history.stop.failed
    assert not (folder / "report.html").exists()


def test_a_run_that_fails_has_a_report_that_says_why(scan, tmp_path):
    code = tmp_path / "breaks.py"
    code.write_text(BREAKS)
    folder = tmp_path / "run"
    words = [*SHORT, "--iterations", "40", "--denoiser", f"{code}:build", "--report", "html"]
    assert main(["reconstruct", str(scan), "--out", str(folder), *words]) == 2
    (run,) = embedded((folder / "report.html").read_text(encoding="utf-8"))
    assert run["content"]["stop"]["failed"]
    assert "division by zero" in run["content"]["stop"]["reason"]
    assert run["content"]["roles"][0] == "checkpoint"
    assert run["pictures"]["checkpoint"]["step"] == run["content"]["step"] > 0


def test_the_command_reports_on_what_there_is_of_a_run(flat, tmp_path, capsys):
    folder = Path(shutil.copytree(flat, tmp_path / "run"))
    (folder / "report.html").unlink(missing_ok=True)
    (folder / "truth.npy").write_bytes(b"nothing")
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "events.jsonl").write_bytes(b"".join(lines[:-1]))  # it did not say how it ended
    assert main(["report", str(folder)]) == 0
    assert "wrote" in capsys.readouterr().err
    (run,) = embedded((folder / "report.html").read_text(encoding="utf-8"))
    assert run["content"]["stop"] is None
    assert set(run["pictures"]) == {"result", "start"}
    assert "cannot read" in run["content"]["notes"][-1]["text"]
    for name in ("result.npy", "start.npy", "truth.npy", "settings.toml", "run.json"):
        (folder / name).unlink()
    assert main(["report", str(folder), "--out", str(tmp_path / "bare.html")]) == 0
    (run,) = embedded((tmp_path / "bare.html").read_text(encoding="utf-8"))
    assert run["pictures"] == {}
    assert run["content"]["settings"]["algorithm"]["iterations"] == 100


def test_a_log_without_the_newer_kinds_of_events_still_gives_a_report(flat, tmp_path):
    folder = Path(shutil.copytree(flat, tmp_path / "run"))
    lines = (folder / "events.jsonl").read_text().splitlines()
    old = [line for line in lines if '"event": "machine"' not in line and '"event": "space"' not in line]
    assert len(old) == len(lines) - 2
    from plugstream.base.checked_jsonl import LineWriter

    (folder / "events.jsonl").unlink()
    writer = LineWriter(folder / "events.jsonl", "the log")
    for line in old:
        writer.add({name: value for name, value in json.loads(line).items() if name != "check"})
    writer.close()
    (run,) = embedded(write_report(folder).read_text(encoding="utf-8"))
    assert (run["content"]["machine"], run["content"]["space"]) == (None, None)
    assert run["pictures"]["result"]["panels"][0]["shape"] == [8, 8]


def test_a_folder_of_anybody_can_be_reported_on(flat, tmp_path):
    """What leads out of it, is no image or cannot be written as JSON is left out or text; a pipe is not waited for."""
    folder = Path(shutil.copytree(flat, tmp_path / os.fsdecode(b"odd \xff <name>")))
    (folder / "truth.npy").rename(tmp_path / "private.npy")
    (folder / "truth.npy").symlink_to(tmp_path / "private.npy")
    np.save(folder / "start.npy", np.array(["text"]))
    (folder / "preview.safetensors").write_bytes(b"nothing")
    os.mkfifo(folder / "backprojection.npy")
    (folder / "settings.toml").write_text(
        "a = 1\n[algorithm]\nsigma = inf\nwhen = 2026-01-01\n[scan]\nfollow = false\n"
    )
    page = write_report(folder).read_text(encoding="utf-8")
    (run,) = embedded(page)
    assert set(run["pictures"]) == {"result"}
    assert "and no image" in run["content"]["notes"][-1]["text"]
    assert run["content"]["settings"] == {
        "algorithm": {"sigma": "inf", "when": "2026-01-01"}, "scan": {"follow": False},
    }  # fmt: skip
    assert r"<title>odd \xff &lt;name&gt; - plugstream</title>" in page
    (folder / "events.jsonl").unlink()
    os.mkfifo(folder / "events.jsonl")
    with pytest.raises(InputError, match="cannot be used"):
        write_report(folder)


def test_several_runs_go_into_one_file_that_is_new(flat, tmp_path):
    out = compare_reports([flat, flat], tmp_path / "both.html")
    assert len(embedded(out.read_text(encoding="utf-8"))) == 2
    with pytest.raises(InputError, match="exists already"):
        compare_reports([flat, flat], out)
    with pytest.raises(InputError, match="two runs or more"):
        compare_reports([flat], tmp_path / "one.html")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report"], "RUN"),
        (["report", "nowhere"], "nowhere is not the folder of a run"),
        (["report", "{run}", "nowhere", "--out", "{new}"], "nowhere is not the folder of a run"),
        (["report", "{run}", "{run}", "--out", "{run}/no/c.html"], "does not exist; make it first"),
        (["report", "{run}", "--out", "{run}/no/c.html"], "cannot write"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(flat, tmp_path, words, told, capsys):
    before = sorted(flat.iterdir())
    words = [word.format(run=flat, new=tmp_path / "new.html") for word in words]
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert sorted(flat.iterdir()) == before
    assert list(tmp_path.iterdir()) == []


def test_a_figure_is_drawn_where_it_is_asked_for_by_the_run_or_later(scan, tmp_path, capsys):
    """The same to the byte; a run that draws none does not import what draws."""
    plain, drawn, later = tmp_path / "plain", tmp_path / "drawn", tmp_path / "later.png"
    code = "import sys; from plugstream.cli import main; main(sys.argv[1:]); print('matplotlib' in sys.modules)"
    words = [sys.executable, "-c", code, "reconstruct", str(scan), "--out", str(plain), *SHORT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"
    assert {path.name for path in plain.glob("report.*")} == {"report.html"}
    assert main(["reconstruct", str(scan), "--out", str(drawn), *SHORT, "--report", "png,svg"]) == 0
    assert {path.name for path in drawn.glob("report.*")} == {"report.png", "report.svg"}
    assert main(["report", str(drawn), "--out", str(later)]) == 0
    assert f"wrote {later}: open it" in capsys.readouterr().err
    assert later.read_bytes() == (drawn / "report.png").read_bytes()
    with Image.open(later) as picture:
        assert min(picture.size) > 500


def test_a_figure_is_of_one_run_that_has_a_result(flat, tmp_path, capsys):
    assert main(["report", str(flat), str(flat), "--out", str(tmp_path / "both.png")]) == 2
    assert "is of one run" in capsys.readouterr().err
    folder = Path(shutil.copytree(flat, tmp_path / "run"))
    (folder / "result.npy").write_bytes(b"nothing")
    assert main(["report", str(folder), "--out", str(tmp_path / "one.svg")]) == 2
    assert "cannot read the images" in capsys.readouterr().err
    (folder / "result.npy").unlink()
    assert main(["report", str(folder), "--out", str(tmp_path / "one.svg")]) == 2
    assert "no result to draw" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
