"""Runs that cannot be lost: real processes killed at random instants, files cut and flipped, disks full."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from plugstream import ProximalGradient, SoftThreshold, Uniform, solve
from plugstream.cli import main
from plugstream.errors import InputError
from plugstream.monitors import Distance
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.events import EventLog, measurements, read_events

SMALL = ["--size", "24", "--views", "12", "--receivers", "30", "--radius", "0.4", "--wavelength", "0.03"]
RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "150", "--checkpoint", "0"]

# Imports everything once and forks, so that a run begins in milliseconds and can be killed at any point of it.
CRASHES = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
import plugstream.cli.resume, plugstream.cli.reconstruct, plugstream.runs.run, plugstream.scans.store, zarr
from plugstream.cli import main
from scipy.special import j0

scan, folder, kills, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
start = ["reconstruct", scan, "--out", folder, *sys.argv[5:]]
rng = random.Random(seed)
killed = 0
while True:
    begun = os.path.exists(os.path.join(folder, "run.json"))
    if not begun and os.path.exists(folder):
        import shutil
        shutil.rmtree(folder)
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")
        os._exit(main(["resume", folder] if begun else start))
    if killed < kills:
        time.sleep(rng.expovariate(1 / 0.12))
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killed += 1
    elif os.WEXITSTATUS(status) == 0:
        break
    else:
        sys.exit(f"the run ended with {os.WEXITSTATUS(status)}")
print(killed)
"""


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "small.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


@pytest.fixture(scope="module")
def whole(scan, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN]) == 0
    return folder


def crash(scan: Path, folder: Path, kills: int, seed: int) -> int:
    words = [sys.executable, "-c", CRASHES, str(scan), str(folder), str(kills), str(seed), *RUN]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def same_run(one: Path, other: Path) -> None:
    assert np.array_equal(np.load(one / "result.npy"), np.load(other / "result.npy"))
    a, b = measurements(one / "events.jsonl"), measurements(other / "events.jsonl")
    assert [(e["step"], e["values"]) for e in a] == [(e["step"], e["values"]) for e in b]


def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(scan, whole, tmp_path):
    """A new run, killed at random instants until it is done, several times over."""
    killed = 0
    for seed in range(3):
        folder = tmp_path / f"run-{seed}"
        killed += crash(scan, folder, kills=12, seed=seed)
        same_run(folder, whole)
        shutil.rmtree(folder)
    assert killed >= 15


@pytest.mark.slow
def test_two_hundred_kills(scan, whole, tmp_path):
    killed, seed = 0, 100
    while killed < 200:
        folder = tmp_path / f"run-{seed}"
        killed += crash(scan, folder, kills=20, seed=seed)
        same_run(folder, whole)
        shutil.rmtree(folder)
        seed += 1


def test_a_run_can_be_lengthened(scan, whole, tmp_path):
    folder = tmp_path / "run"
    shorter = [*RUN[:-4], "--iterations", "60", "--checkpoint", "0"]
    assert main(["reconstruct", str(scan), "--out", str(folder), *shorter]) == 0
    assert main(["resume", str(folder), "--iterations", "150"]) == 0
    assert np.array_equal(np.load(folder / "result.npy"), np.load(whole / "result.npy"))


def test_ctrl_c_leaves_a_run_that_goes_on(scan, whole, tmp_path):
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(folder), *RUN]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not list((folder / "checkpoints").glob("step-*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    if process.returncode == 130:  # else it was quicker than the signal
        assert f"plugstream resume {folder}" in said
        assert main(["resume", str(folder)]) == 0
    # It was measured once more where it stopped, so only the result is the same.
    assert np.array_equal(np.load(folder / "result.npy"), np.load(whole / "result.npy"))


def test_two_processes_cannot_write_one_run(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    code = (
        "import sys, time; from pathlib import Path; from plugstream.runs.folder import lock\n"
        "with lock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        before = _content(folder)
        assert main(["resume", str(folder)]) == 2
        assert "another process is writing" in capsys.readouterr().err
        assert _content(folder) == before
    finally:
        other.kill()
        other.wait()
    assert main(["resume", str(folder)]) == 0  # the lock is gone with its holder


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_other_settings_and_other_data_are_refused(scan, whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    text = (folder / "settings.toml").read_text()
    (folder / "settings.toml").write_text(text.replace("sigma = 0.02", "sigma = 0.03"))
    assert main(["resume", str(folder), "--iterations", "160"]) == 2
    assert "belongs to other settings" in capsys.readouterr().err
    other = tmp_path / "other.zarr"
    assert main(["simulate", str(other), *SMALL, "--set", "simulate.seed=5"]) == 0
    (folder / "settings.toml").write_text(text)
    (folder / "run.json").write_text(json.dumps({"scan": str(other), "command": "x"}))
    assert main(["resume", str(folder)]) == 2
    assert "belongs to other scan" in capsys.readouterr().err
    assert np.array_equal(np.load(folder / "result.npy"), np.load(whole / "result.npy"))


def test_a_truncated_checkpoint_falls_back_to_the_one_before(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    newest, older = Checkpoints(folder / "checkpoints", {}).files()
    newest.write_bytes(newest.read_bytes()[:-100])
    assert main(["resume", str(folder)]) == 0
    assert "going on from an older one" in capsys.readouterr().err
    same_run(folder, whole)
    for file in Checkpoints(folder / "checkpoints", {}).files():
        file.write_bytes(b"")
    assert main(["resume", str(folder)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "is damaged" in said
    assert "no older one" in said
    assert older.name < newest.name


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_is_done_to_a_checkpoint_gives_the_state_or_a_clean_error(whole, tmp_path, data):
    source = Checkpoints(whole / "checkpoints", {}).files()[0]
    folder = tmp_path / "c"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    content = bytearray(source.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "zero"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        content = content[:at]
    elif kind == "grow":
        content += bytes(data.draw(st.integers(1, 100)))
    else:
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    (folder / source.name).write_bytes(content)
    from plugstream.algorithms.pgm import GradientState

    like = GradientState(0, torch.zeros(24, 24), torch.zeros(24, 24))
    true, _ = Checkpoints(whole / "checkpoints", {}).load(like)
    try:
        found, _ = Checkpoints(folder, {}).load(like)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
    else:
        assert torch.equal(found.state.image, true.state.image)
        assert torch.equal(found.state.s, true.state.s)
        assert found.rows.keys() == true.rows.keys()


def test_a_full_disk_is_one_line_and_loses_nothing(whole, tmp_path):
    """A limit on the size of files stands in for the disk: writes beyond it fail as on a full one."""
    folder = shutil.copytree(whole, tmp_path / "run")
    before = _content(folder / "checkpoints")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    done = subprocess.run(
        [sys.executable, "-m", "plugstream", "resume", str(folder), "--iterations", "170"],
        preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("plugstream: cannot write")
    after = _content(folder / "checkpoints")
    assert {name: after[name] for name in before} == before
    assert main(["resume", str(folder), "--iterations", "170"]) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder_is_one_line(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    folder.chmod(0o500)
    try:
        assert main(["resume", str(folder)]) == 2
        assert "cannot write to the run" in capsys.readouterr().err
    finally:
        folder.chmod(0o700)


def test_folders_that_are_no_runs_are_refused(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 2
    assert "no run.json" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{")
    assert main(["resume", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_is_resumed_in_memory_to_the_bit(regression):
    algorithm = ProximalGradient(regression, SoftThreshold(), lam=0.1, sampler=Uniform(2))
    kept = []

    def keep(progress):
        if progress.state.k == 7:
            kept.append(progress.snapshot())

    whole = solve(algorithm, iterations=20, monitors=[Distance()], every=3, callbacks=[keep])
    reference = torch.as_tensor(kept[0].rows["distance"][0][2])
    again = solve(algorithm, resume=kept[0], iterations=13, monitors=[Distance(reference=reference)], every=3)
    assert torch.equal(whole.image, again.image)
    for name, series in whole.history.items():
        assert np.array_equal(series.step, again.history[name].step)
        assert np.array_equal(series.value, again.history[name].value)
    with pytest.raises(InputError, match="by 1 monitors"):
        solve(algorithm, resume=kept[0], iterations=1)


def test_an_event_log_goes_on_after_a_cut_line(tmp_path):
    path = tmp_path / "e.jsonl"
    log = EventLog(path)
    log.add("measured", step=1, values={})
    log.add("measured", step=2, values={})
    log.close()
    path.write_bytes(path.read_bytes()[:-5])
    log = EventLog(path)
    log.add("resume", step=0)
    log.add("measured", step=1, values={})
    log.close()
    assert [e["event"] for e in read_events(path)] == ["measured", "resume", "measured"]
    assert [e["step"] for e in measurements(path)] == [1]
