"""Streams that are closed or full, limits of the system, signals, bugs: one line each, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest

import warm
from plugstream.base.errors import InputError
from plugstream.base.text import one_line, printable, shell_quote
from plugstream.cli.faults import BUG
from plugstream.runs.event_log import read_events
from plugstream.runs.folder import lock, whole_folder
from small_run import SMALL, main
from waiting import wait_until

PLUGSTREAM = [sys.executable, "-m", "plugstream"]
RUN = ["--report", "none", "--sigma", "0.02", "--batch", "4", "--iterations", "3", "--threads", "1"]


def shell(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which "$@" is a command of plugstream."""
    words = ["bash", "-c", line, "bash", *PLUGSTREAM, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["2>/dev/full", "2>&- >&- <&-"])
def test_a_run_whose_standard_error_fails_ends_with_its_results(scan, tmp_path, where):
    done = shell(f'"$@" {where}', "reconstruct", scan, *RUN, "--report", "png", "--out", tmp_path / "r")
    assert done.returncode == 0
    assert np.isfinite(np.load(tmp_path / "r" / "result.npy")).all()
    assert (tmp_path / "r" / "report.png").exists()
    log = (tmp_path / "r" / "events.jsonl").read_text()  # which did not get the number of the closed stream
    assert all(line.startswith(('{"event"', '{"format"')) for line in log.splitlines())


@pytest.mark.slow
def test_output_that_cannot_be_written_is_told_in_one_line(scan):
    done = shell('"$@" >/dev/full', "info", scan)
    assert done.returncode == 2
    assert done.stderr == "plugstream: No space left on device; make room on the disk, and try again\n"


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(scan):
    done = shell('"$@" | head -1; exit ${PIPESTATUS[0]}', "denoisers", "--json")
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("limit", ["ulimit -v 900000", "ulimit -n 20"])
def test_limits_too_small_to_start_are_one_line(scan, tmp_path, limit):
    done = shell(f'{limit}; "$@"', "reconstruct", scan, *RUN, "--report", "png", "--out", tmp_path / "r")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "ulimit" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_one_line(scan, tmp_path):
    (tmp_path / "gone").mkdir()
    done = shell(f'cd {tmp_path}/gone; rmdir ../gone; "$@"', "reconstruct", scan, *RUN)
    assert done.returncode == 2
    assert done.stderr.startswith("plugstream: the current folder cannot be found")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_settings_may_come_through_a_pipe(scan, tmp_path):
    line = '"$@" --settings <(printf "[algorithm]\nsigma = 0.02\niterations = 1\n[sampler]\nbatch = 4\n")'
    done = shell(line, "reconstruct", scan, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    start = next(read_events(tmp_path / "r" / "events.jsonl"))
    assert start.iterations == 1
    assert start.settings["algorithm"]["sigma"] == 0.02
    assert start.settings["sampler"]["batch"] == 4
    assert np.load(tmp_path / "r" / "result.npy").any()


def test_memory_that_runs_out_is_one_line(tmp_path, capfd):
    """In a process of its own, whose limit leaves room to start but not for the dense model."""
    code = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "import plugstream.instruments.born\n"
        "plugstream.instruments.born.check_memory = lambda *a: None\n"  # what would refuse it before
        "from plugstream.cli import main\n"
        "most = 4096 * int(Path('/proc/self/statm').read_text().split()[0]) + 500_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["demo", "--size", "512", "--receivers", "2000", "--views", "4", "--batch", "2", "--method", "dense"]
    words += ["--instrument", "born-2d"]
    words += ["--threads", "1", "--out", str(tmp_path / "r")]
    done = warm.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "there is not enough memory" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "there is not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("can't start new thread"), "not enough memory, or threads"),
        (OSError(24, "Too many open files"), "ulimit -n"),
        (OSError(28, "No space left on device", "/x/y"), "/x/y: No space left on device; make room"),
        (ImportError("No module named 'torch'"), "a package cannot be loaded: No module named 'torch'"),
    ],
)
def test_what_the_machine_lacks_is_told_with_what_to_do(monkeypatch, capsys, error, words):
    def fail(parsed: object) -> int:
        raise error

    monkeypatch.setattr("plugstream.cli.lists.run", fail)
    assert main(["denoisers"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_shortage_is_not_taken_for_damage(monkeypatch, capsys):
    def fail(parsed: object) -> int:
        raise InputError("the scan x is damaged") from OSError(24, "Too many open files")

    monkeypatch.setattr("plugstream.cli.lists.run", fail)
    assert main(["denoisers"]) == 2
    assert "too many files are open" in capsys.readouterr().err


def test_a_bug_is_one_line_with_a_file_that_tells_more(monkeypatch, capsys, tmp_path):
    def fail(parsed: object) -> int:
        return {}["no such key"]

    monkeypatch.setattr("plugstream.cli.lists.run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("PLUGSTREAM_DEBUG", raising=False)
    assert main(["denoisers"]) == BUG
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "this is a bug in plugstream: KeyError: 'no such key' at " in said
    (file,) = tmp_path.iterdir()
    assert str(file) in said
    assert "Traceback" in file.read_text()
    monkeypatch.setenv("PLUGSTREAM_DEBUG", "1")
    assert main(["denoisers"]) == BUG
    assert "Traceback" in capsys.readouterr().err


def test_a_signal_before_the_first_step_leaves_nothing(tmp_path):
    """While the demo simulates its scan, here without an end, there is no folder yet, and what is made is removed."""
    code = (
        "import sys, time\n"
        "import plugstream.scans.simulation\n"
        "plugstream.scans.simulation.measure = lambda *words: time.sleep(170)\n"
        "from plugstream.cli import main\n"
        "sys.exit(main())\n"
    )
    words = ["demo", *SMALL, "--batch", "4", "--out", str(tmp_path / "r")]
    process = warm.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any("simulating" in line for line in process.stderr)
        (partial,) = tmp_path.iterdir()
        assert partial.name.startswith(".r.")
        time.sleep(0.5)  # until it sleeps: what a handler raises within a destructor is lost to Python
        process.terminate()
        process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_a_library_that_does_not_return():
    code = (
        "import hashlib, plugstream.cli as cli\n"
        "cli._GRACE = 0.2\n"
        "with cli._end_by_exception(True):\n"
        "    print('begun', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
    )
    process = warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_makes_is_not(tmp_path):
    dead, alive, other = (tmp_path / f".{name}.{uuid.uuid4().hex}.partial" for name in ("r", "r", "rr"))
    for folder in (dead, alive, other):
        folder.mkdir()
        (folder / ".lock").touch()
        (folder / "half").touch()
    with lock(alive), whole_folder(tmp_path / "r") as partial:
        (partial / "whole").touch()
        assert set(tmp_path.iterdir()) == {alive, other, partial}
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, other.name, "r"}
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["whole"]
    with pytest.raises(InputError, match="exists already"), whole_folder(tmp_path / "r"):
        pass
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "x"):
        raise KeyboardInterrupt
    assert not (tmp_path / "x").exists()


def test_a_run_whose_folder_is_removed_says_so(scan, tmp_path):
    import shutil

    words = ["reconstruct", scan, "--sigma", "0.02", "--batch", "4", "--iterations", "100000000", "--checkpoint", "0.5"]
    process = warm.Popen(
        [*PLUGSTREAM, *map(str, words), "--out", str(tmp_path / "r")], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until((tmp_path / "r" / "checkpoints").exists)
        (tmp_path / "r").rename(tmp_path / "away")
        shutil.rmtree(tmp_path / "away")
        _, said = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 2
    assert "was removed or moved while the run went on" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["plain", "é漢", "tab\tline\nescape\x1b[31m", "\udcff\udcfe", "a'b\\c\x07", "\u202e"])
def test_quoted_names_are_what_a_shell_reads_and_a_terminal_does_not_obey(text):
    quoted = shell_quote(text)
    assert quoted.isprintable()
    assert printable(text).isprintable()
    echoed = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, timeout=150, check=True).stdout
    assert os.fsdecode(echoed) == text


def test_a_message_is_one_line_of_moderate_length_and_keeps_its_advice():
    line = one_line("the path " + "x" * 5000 + " is too long\n\x1b]0;title\x07; choose a shorter one")
    assert line.isprintable()
    assert len(line) < 1000
    assert line.startswith("the path xxx")
    assert line.endswith("choose a shorter one")
    assert one_line(line) == line
    assert str(InputError("a\nb")) == "a\\nb"
