"""`plugstream import --follow` and `plugstream follow`, as a person at an instrument types them."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import growing_files
import warm
from plugstream.cli import main
from plugstream.scans.importers import import_file
from plugstream.scans.importers.following import Following, follow_file
from plugstream.scans.store import open_scan
from waiting import wait_until

PLUGSTREAM = [sys.executable, "-m", "plugstream"]
OPTIONS = ["--center", "11.5", "--rows", "1"]


@pytest.fixture
def tell():
    words = [sys.executable, growing_files.__file__]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:

        def send(*commands):
            for command in commands:
                process.stdin.write(f"{command}\n")
                assert process.stdout.readline()

        yield send
        process.kill()


def wait_for(scan, views, process):
    wait_until(lambda: process.poll() is not None or (scan.exists() and open_scan(scan).n_views >= views))
    assert process.poll() is None, process.communicate(timeout=5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import", "ct", sys.executable, "--expect", "3"], "--expect is for files that grow; add --follow"),
        (["import", "ct", "dectris://127.0.0.1", "--follow"], "give --center"),
        (["import", "ct", "x.h5", "--follow", "--center", "3", "--patience", "-1"], "patience must be"),
        (["import", "npz", "x.npz", "--follow"], "cannot be followed while it grows"),
        (["follow", "ct", "x.h5"], "use --like RUN"),
        (["follow", "ct", "x.h5", "--like", "x"], "x is no run to be like"),
        (["follow", "ct", "x.h5", "--center", "3", "--sigma", "1%"], "which is not known here"),
        pytest.param(
            ["follow", "ct", "x.h5", "--center", "3", "--patience", "0.2", "--sigma", "0.1"],
            "there is no file x.h5",
            marks=pytest.mark.slow,
        ),
        (["follow", "ct", ".", "--center", "3", "--sigma", "1"], "such as ./scan.toml"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capfd, words, said):
    """And leave nothing behind, no thread either, which would end this process later."""
    monkeypatch.chdir(tmp_path)
    before = set(threading.enumerate())
    assert main(words) == 2
    for thread in set(threading.enumerate()) - before:
        thread.join(3)
        assert not thread.is_alive()
    assert said in capfd.readouterr().err.splitlines()[-1].partition("plugstream: ")[2]
    assert list(tmp_path.iterdir()) == []


def test_a_finished_scan_is_refused_before_a_run_begins(tmp_path, capfd, monkeypatch):
    """The run began, and was stopped with the advice to go on with an import that is refused."""
    monkeypatch.chdir(tmp_path)
    writer = growing_files.Writer(tmp_path / "scan.h5", "nexus", shared=False)
    writer.fields("flats")
    writer.view(0)
    writer.file.close()
    options = {"center": 11.5, "rows": "1"}
    follow_file("ct", "scan.h5", "scan.zarr", options, following=Following(expect=1))
    assert main(["follow", "ct", "scan.h5", *OPTIONS, "--sigma", "0.1"]) == 2
    assert "scan.zarr is finished; choose another name" in capfd.readouterr().err
    assert not (tmp_path / "scan-run").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads which processes there are")
def test_an_import_ends_with_its_follow(tmp_path):
    """Even with one that is killed: it would take frames of a stream from the next one."""

    def lives(number):
        try:
            return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    words = [*PLUGSTREAM, "follow", "ct", str(tmp_path / "scan.h5"), *OPTIONS, "--sigma", "0.01"]
    with warm.Popen(words, stderr=subprocess.DEVNULL) as follow:
        place = Path(f"/proc/{follow.pid}/task/{follow.pid}/children")
        wait_until(lambda: place.read_text().split())
        (child,) = place.read_text().split()
        follow.kill()
    wait_until(lambda: not lives(child))


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on(tmp_path, tell):
    """SIGKILL at any time loses no committed view, and adds none twice."""
    path, out = tmp_path / "scan.h5", tmp_path / "scan.zarr"
    tell(f"open {path} nexus", "darks", "flats", "burst 0 6")
    words = [*PLUGSTREAM, "import", "ct", str(path), str(out), "--follow", *OPTIONS]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as first:
        wait_for(out, 6, first)
        first.send_signal(signal.SIGKILL)
    tell("burst 6 12")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as second:
        wait_for(out, 12, second)
        tell("burst 12 20", "close")
        said = second.communicate(timeout=60)[1]
    assert second.returncode == 0, said
    assert "going on after 6 views" in said
    scan = open_scan(out)
    import_file("ct", path, tmp_path / "again.zarr", scan.provenance["options"])
    assert scan.complete
    assert scan.read().numpy().tobytes() == open_scan(tmp_path / "again.zarr").read().numpy().tobytes()


@pytest.mark.slow
def test_one_command_forms_the_image_meanwhile(tmp_path, tell):
    """And what it did can be done again to the bit: its run resumes, and its scan is a scan like any other."""
    path, out = tmp_path / "scan.h5", tmp_path / "scan.zarr"
    settings = ["--sigma", "0.01", "--iterations", "20", "--batch", "4", "--progress", "plain"]
    words = [*PLUGSTREAM, "follow", "ct", str(path), str(out), *OPTIONS, "--out", str(tmp_path / "run"), *settings]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as run:
        tell(f"open {path} exchange", "darks", "flats")
        for n in range(20):
            tell(n)
            time.sleep(0.1)
        tell("close")
        said = run.communicate(timeout=120)[1]
    assert run.returncode in (0, 3), said
    assert "20 views, and no more to come" in said
    assert (tmp_path / "run" / "result.npy").exists() or list((tmp_path / "run").glob("*.npy"))
    assert open_scan(out).complete


@pytest.mark.slow
def test_an_import_that_fails_stops_the_run(tmp_path, tell):
    """With its reason, and how to go on."""
    path, out = tmp_path / "scan.h5", tmp_path / "scan.zarr"
    settings = ["--sigma", "0.01", "--iterations", "20", "--batch", "4", "--progress", "plain"]
    words = [*PLUGSTREAM, "follow", "ct", str(path), str(out), *OPTIONS, "--out", str(tmp_path / "run"), *settings]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as run:
        tell(f"open {path} nexus", "darks", "flats", "burst 0 6")
        wait_for(out, 6, run)
        tell("close", f"open {path} nexus", "darks", "flats", "9")
        said = run.communicate(timeout=120)[1]
    assert run.returncode == 130, said
    assert "was begun anew" in said
    assert [line for line in said.splitlines() if "plugstream " in line] == said.splitlines()[-1:]
    assert said.splitlines()[-1].startswith("next: plugstream import ct")
