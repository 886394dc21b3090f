"""Runs that cannot be lost: files cut, flipped, changed and moved, full disks and read-only ones, two processes."""

from __future__ import annotations

import errno
import io
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import warm
from effort import effort, thorough
from plugstream import open_scan, save_scan
from plugstream.algorithms import GradientState
from plugstream.base.display.screen import Display
from plugstream.base.errors import InputError
from plugstream.instruments.born import born_geometry
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Measurement, Note, Resume
from plugstream.runs.identity import difference, identity
from plugstream.runs.replay import replay
from plugstream.runs.terminal import Terminal
from plugstream.scans import MemoryScan
from plugstream.settings import Settings
from plugstream.solver.result import Snapshot
from small_run import RUN, SMALL, content, main, same_run


def test_two_processes_cannot_write_one_run(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    code = (
        "import sys, time; from pathlib import Path; from plugstream.runs.folder import lock\n"
        "with lock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    other = warm.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        before = content(folder)
        assert main(["resume", str(folder)]) == 2
        assert "another process is writing" in capsys.readouterr().err
        assert content(folder) == before
    finally:
        other.kill()
        other.wait()
    assert main(["resume", str(folder)]) == 0  # the lock is gone with its holder


def refused(folder: Path, capsys, *flags: str) -> str:
    """What `resume` says in one line, having changed nothing."""
    before = content(folder)
    capsys.readouterr()
    assert main(["resume", str(folder), *flags]) == 2
    assert content(folder) == before
    (said,) = capsys.readouterr().err.splitlines()
    return said


def test_other_settings_are_refused_by_name(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    text = (folder / "settings.toml").read_text()
    for name, change in {
        "algorithm.sigma was 0.02 and is 0.03": ("sigma = 0.02", "sigma = 0.03"),
        "sampler.batch was 4 and is 5": ("batch = 4", "batch = 5"),
        "monitor.cost was False and is True": ('"snr"]', '"snr", "cost"]'),
    }.items():
        (folder / "settings.toml").write_text(text.replace(*change))
        assert f"belongs to another run: the setting {name};" in refused(folder, capsys, "--iterations", "65")
    (folder / "settings.toml").write_text(text.replace("every = 10", "every = 25"))  # this may change
    assert main(["resume", str(folder), "--iterations", "65"]) == 0


def rewrite(path: Path, change: Callable[[MemoryScan], MemoryScan]) -> None:
    """Another scan in the place of this one."""
    made = change(open_scan(path).load())
    shutil.rmtree(path)
    save_scan(made, path)


@pytest.mark.parametrize("what", ["one number", "transmitters", "noise", "shorter"])
def test_other_data_is_refused(scan, tmp_path, capsys, what):
    def change(s: MemoryScan) -> MemoryScan:
        data, geometry = s.data.clone(), born_geometry(s)
        if what == "one number":
            data[7, 3] *= 1 + 1e-6
        elif what == "noise":
            data += 1e-3 * data.abs().mean()
        elif what == "transmitters":
            moved = geometry.transmitters.copy()
            moved[11] *= 1.01
            geometry = replace(geometry, transmitters=moved)
        else:
            data, geometry = data[:9], geometry.with_views(np.arange(9))
        return MemoryScan(data, geometry, s.truth, s.provenance)

    path = shutil.copytree(scan, tmp_path / "scan.zarr")
    folder = tmp_path / "run"
    assert main(["reconstruct", str(path), "--out", str(folder), *RUN[:-4], "--iterations", "5"]) == 0
    rewrite(path, change)
    said = refused(folder, capsys, "--iterations", "9")
    if what == "shorter":
        assert "the run had 12 views, but the scan" in said
    else:
        view = {"one number": 7, "transmitters": 11, "noise": 0}[what]
        assert f"belongs to another run: view {view} of the scan has changed" in said


def test_a_large_scan_is_compared_by_some_of_its_views(scan, monkeypatch):
    monkeypatch.setattr("plugstream.scans.scan._WHOLE_BYTES", 100)
    monkeypatch.setattr("plugstream.scans.scan._PARTS", 3)
    one = open_scan(scan).load()
    data = one.data.clone()
    data[4] *= 2
    other = MemoryScan(data, born_geometry(one))
    about = identity(one, Settings(), 12)
    assert [name for name in about if name.startswith("view")] == [f"view {n} of the scan" for n in (0, 4, 8)]
    assert difference(about, identity(other, Settings(), 12)) == "view 4 of the scan has changed"
    assert difference(about, identity(MemoryScan(one.data, born_geometry(one)), Settings(), 12)) is None


def test_a_file_of_the_denoiser_may_move_but_not_change(scan, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("guide.npy", np.ones((24, 24), np.float32))
    words = ["reconstruct", str(scan), "--out", "run", "--denoiser", "nlm", "--nlm-guide", "guide.npy"]
    assert main([*words, *RUN[:-4], "--iterations", "3"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = tmp_path / "run"
    assert main(["resume", str(folder), "--iterations", "4"]) == 0
    (tmp_path / "guide.npy").rename("moved.npy")
    text = (folder / "settings.toml").read_text()
    (folder / "settings.toml").write_text(text.replace(str(tmp_path / "guide.npy"), "moved.npy"))
    assert main(["resume", str(folder), "--iterations", "5"]) == 0
    np.save("moved.npy", np.zeros((24, 24), np.float32))
    assert "the setting denoiser.guide was a file with the hash" in refused(folder, capsys, "--iterations", "6")


def test_scans_and_runs_can_be_moved(scan, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(scan, "scan.zarr")
    assert main(["reconstruct", "scan.zarr", "--out", "run", *RUN[:-4], "--iterations", "3"]) == 0
    (tmp_path / "disk").mkdir()
    Path("run").rename("disk/run")
    Path("scan.zarr").rename("disk/scan.zarr")
    said = refused(Path("disk/run"), capsys)
    assert f"there is no scan at {tmp_path / 'scan.zarr'}; if it was moved, say where it is with --scan" in said
    assert main(["resume", "disk/run", "--scan", "disk/scan.zarr", "--iterations", "5"]) == 0
    monkeypatch.chdir(tmp_path.parent)
    assert main(["resume", str(tmp_path / "disk" / "run"), "--iterations", "7"]) == 0  # it knows the new place
    assert main(["demo", "--out", str(tmp_path / "demo"), *SMALL, "--iterations", "3"]) == 0
    (tmp_path / "demo").rename(tmp_path / "moved")
    assert main(["resume", str(tmp_path / "moved"), "--iterations", "5"]) == 0  # its scan moved with it


def test_what_it_was_computed_with_is_told_where_it_changed(whole, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "run")
    assert main(["resume", str(folder), "--iterations", "31"]) == 0
    assert "last bits" not in capsys.readouterr().err
    monkeypatch.setattr("plugstream.runs.identity.__version__", "99.0")
    assert main(["resume", str(folder), "--iterations", "32"]) == 0
    assert "warning: so far it was computed with plugstream" in capsys.readouterr().err


@pytest.mark.slow
@thorough
@pytest.mark.parametrize(("gradient", "view"), [("plain", 0), ("saga", 5), ("svrg", 0)])
def test_a_view_that_was_damaged_since_is_left_out_and_the_rest_is_unbiased(scan, tmp_path, capsys, gradient, view):
    """The run ends where one on all views that are left does, also where gradients of all views were remembered."""
    path = shutil.copytree(scan, tmp_path / "scan.zarr")
    folder, reference = tmp_path / "run", tmp_path / "reference"
    common = ["--sigma", "0.02", "--step", "0.3/L", "--momentum", "none", "--threads", "1"]
    common += ["--gradient", gradient, *(["--sampler", "all"] if gradient == "plain" else ["--batch", "4"])]
    assert main(["reconstruct", str(path), "--out", str(folder), *common, "--iterations", "40"]) == 0
    shard = path / "data" / "c" / "0" / "0"
    flipped = bytearray(shard.read_bytes())
    flipped[view * (20 + 30 * 8 + 4) + 30] ^= 4
    shard.write_bytes(flipped)
    assert f"view {view} of" in refused(folder, capsys, "--iterations", "41")
    assert main(["resume", str(folder), "--iterations", "900", "--skip-damaged"]) == 0
    assert f"1 damaged views are left out: {view}" in capsys.readouterr().err
    long = ["--sigma", "0.02", "--step", "0.3/L", "--threads", "1", "--sampler", "all", "--iterations", "600"]
    assert main(["reconstruct", str(path), "--out", str(reference), *long, "--skip-damaged"]) == 0
    found, wanted = (np.load(run / "result.npy") for run in (folder, reference))
    assert np.linalg.norm(found - wanted) < 2e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b'"event": "views"', b'"event": "vie\xff\xffs"'),
        lambda text: text.replace(b'"lipschitz"', b'"lapschitz"'),
        lambda text: text.replace(b"{", b"", 1),
        lambda text: text + b"\0\0\0\0\n",
        lambda text: text + b"[1]\n",
        lambda text: text[:100] + text[140:],
    ],
)
def test_an_event_log_that_cannot_be_read_is_refused_with_its_line(whole, tmp_path, capsys, damage):
    folder = shutil.copytree(whole, tmp_path / "run")
    log = folder / "events.jsonl"
    log.write_bytes(damage(log.read_bytes()))
    assert re.search(r"line \d+ of the event log .* cannot be read", refused(folder, capsys))


@pytest.mark.parametrize("text", [None, b""])
def test_a_run_without_the_log_of_its_views_is_refused(whole, tmp_path, capsys, text):
    folder = shutil.copytree(whole, tmp_path / "run")
    if text is None:
        (folder / "events.jsonl").unlink()
    else:
        (folder / "events.jsonl").write_bytes(text)
    assert "does not tell which views the run used" in refused(folder, capsys)


def test_a_truncated_checkpoint_falls_back_to_the_one_before(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "run")
    newest, older = Checkpoints(folder / "checkpoints", {}).files()
    newest.write_bytes(newest.read_bytes()[:-100])
    assert main(["resume", str(folder)]) == 0
    assert "going on from an older one" in capsys.readouterr().err
    same_run(folder, whole)
    for file in Checkpoints(folder / "checkpoints", {}).files():
        file.write_bytes(b"")
    said = refused(folder, capsys)
    assert "is damaged" in said
    assert "no older one" in said
    assert older.name < newest.name


def loaded(folder: Path, about: dict) -> Snapshot:
    saved = Checkpoints(folder, about).load()
    assert saved is not None
    return saved.snapshot(GradientState(0, torch.zeros(24, 24), torch.zeros(24, 24)))


def same_or_damaged(folder: Path, about: dict, true: Snapshot) -> None:
    """The checkpoint in this folder, cut or flipped, is read as it was written, or called damaged in one line."""
    try:
        found = loaded(folder, about)
    except InputError as error:
        assert "damaged" in str(error)  # noqa: PT017 - either is right
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert torch.equal(found.state.image, true.state.image)
        assert torch.equal(found.state.s, true.state.s)
        assert (found.state.k, found.state.q) == (true.state.k, true.state.q)
        assert found.rows == true.rows


@given(data=st.data())
def test_whatever_is_done_to_a_checkpoint_gives_the_state_or_a_clean_error(whole, tmp_path, data):
    source = Checkpoints(whole / "checkpoints", {}).files()[0]
    folder = tmp_path / "c"
    folder.mkdir(exist_ok=True)
    whole_content = bytearray(source.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "zero"]))
    at = data.draw(st.integers(0, len(whole_content) - 1))
    if kind == "flip":
        whole_content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        whole_content = whole_content[:at]
    elif kind == "grow":
        whole_content += bytes(data.draw(st.integers(1, 100)))
    else:
        whole_content[at : at + 64] = bytes(len(whole_content[at : at + 64]))
    (folder / source.name).write_bytes(whole_content)
    same_or_damaged(folder, {}, loaded(source.parent, {}))


@given(data=st.data())
@settings(max_examples=effort(8, 100))
@thorough
def test_whatever_is_done_to_the_files_of_a_run_it_goes_on_or_says_why_not_in_one_line(whole, tmp_path, capsys, data):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    names = [
        "settings.toml",
        "run.json",
        "events.jsonl",
        *(f"checkpoints/step-000000{k}.safetensors" for k in (29, 30)),
    ]
    file = folder / data.draw(st.sampled_from(names))
    damaged = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(damaged) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "lose", "zero", "swap"]))
    if kind == "flip":
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        damaged = damaged[:at]
    elif kind == "zero":
        damaged[at : at + 64] = bytes(len(damaged[at : at + 64]))
    elif kind == "swap":
        damaged = bytearray((whole / data.draw(st.sampled_from(names))).read_bytes())
    file.unlink()
    if kind != "lose":
        file.write_bytes(damaged)
    capsys.readouterr()
    status = main(["resume", str(folder)])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("plugstream:")]
    assert (status, len(said)) in ((0, 0), (2, 1))
    assert np.load(folder / "result.npy").shape == (24, 24)


@thorough
def test_any_bit_of_a_header_may_flip(whole, tmp_path):
    """There stand what the checkpoint belongs to and how its tensors are to be read."""
    source = Checkpoints(whole / "checkpoints", {}).files()[0]
    (tmp_path / source.name).write_bytes(content := source.read_bytes())
    length = 8 + int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8:length])["__metadata__"]["about"])
    true = loaded(tmp_path, about)
    for at in range(0, length, effort(15, 1)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        (tmp_path / source.name).write_bytes(flipped)
        same_or_damaged(tmp_path, about, true)


def snapshot_at(k: int, rows: int = 1) -> Snapshot:
    image = torch.full((3, 3), float(k))
    state = GradientState(k, image, image)
    measured = [(n, 0.5 * n, np.asarray(np.sqrt(n))) for n in range(rows)]
    return Snapshot(state, 0, 1.0, 2.0, None, (0.5, state), {"snr": measured}, [k])


def test_a_run_that_goes_on_from_an_older_checkpoint_keeps_two_that_are_whole(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", {})
    for k in (10, 20, 100_000_000):
        checkpoints.save(snapshot_at(k))
    assert [path.name for path in checkpoints.files()] == ["step-100000000.safetensors", "step-00000020.safetensors"]
    checkpoints.files()[0].write_bytes(b"")
    (tmp_path / "c" / ".step-00000021.safetensors.new").write_bytes(b"half")
    saved = checkpoints.load()
    assert saved.step == 20
    assert "going on from an older one" in saved.notes[0]
    checkpoints.save(snapshot_at(30))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "step-00000020.safetensors",
        "step-00000030.safetensors",
    ]


def test_a_checkpoint_of_a_long_run_has_a_short_header(tmp_path):
    """Headers may have 100 MB, and a run may be measured a million times."""
    sizes = []
    for rows in (1, 20_000):
        path = Checkpoints(tmp_path, {}).save(snapshot_at(rows, rows))
        sizes.append(int.from_bytes(path.read_bytes()[:8], "little"))
    assert sizes[1] - sizes[0] < 100
    like = GradientState(0, torch.zeros(3, 3), torch.zeros(3, 3))
    back = Checkpoints(tmp_path, {}).load().snapshot(like)
    assert back.rows == snapshot_at(20_000, 20_000).rows
    assert back.best[0] == 0.5
    assert (back.first, back.time, back.wall, back.limit, back.measured_at) == (0, 1.0, 2.0, None, [20_000])


@pytest.fixture(scope="module")
def unseen(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without previews, whose files have a size that does not depend on the time it took."""
    folder = tmp_path_factory.mktemp("unseen") / "run"
    long = [*RUN, "--iterations", "150", "--preview", "0"]
    assert main(["reconstruct", str(scan), "--out", str(folder), *long, "--report", "none"]) == 0
    return folder


@thorough
@pytest.mark.parametrize(
    ("limit", "what"), effort([(16_300, "the checkpoint")], [(6000, "the event log"), (16_300, "the checkpoint")])
)
def test_a_full_disk_is_one_line_and_loses_nothing(unseen, tmp_path, limit, what):
    """A limit on the size of files stands in for the disk: writes beyond it fail as on a full one."""
    folder = shutil.copytree(unseen, tmp_path / "run")
    before = content(folder)

    done = warm.run(
        [sys.executable, "-m", "plugstream", "resume", str(folder), "--iterations", "170"],
        limits={resource.RLIMIT_FSIZE: limit}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"plugstream: cannot write {what}")
    assert "plugstream resume" in last
    after = content(folder)
    assert not [name for name in after if name.endswith(".new")]
    kept = [name for name in before if name.startswith(("checkpoints", "result", "history"))]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert main(["resume", str(folder), "--iterations", "170"]) == 0


def test_results_that_cannot_be_written_are_written_by_resume(unseen, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(unseen, tmp_path / "run")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("plugstream.runs.results.save_image", full)
        assert main(["resume", str(folder), "--iterations", "170"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("plugstream: cannot write the results")
    assert "plugstream resume" in last
    assert (folder / "result.npy").read_bytes() == (unseen / "result.npy").read_bytes()
    assert main(["resume", str(folder)]) == 0
    assert (folder / "result.npy").read_bytes() != (unseen / "result.npy").read_bytes()


@thorough
@pytest.mark.parametrize("limit", effort([1000], [10, 1000]))  # bytes, fewer than settings.toml has
def test_a_run_that_cannot_begin_leaves_no_folder(scan, tmp_path, limit):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--sigma", "0.02"]
    done = warm.run(
        [sys.executable, "-m", "plugstream", *words],
        limits={resource.RLIMIT_FSIZE: limit}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cannot write" in done.stderr.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 77
"$2" -m plugstream resume "$1" --iterations 65
"""


@pytest.mark.slow
def test_a_read_only_folder_is_one_line(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    before = content(folder)
    words = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(folder), sys.executable]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode in (1, 77) and "plugstream" not in done.stderr:
        pytest.skip("no file system can be mounted read-only here")
    # On a slow machine there are lines before it that say what is being loaded and read.
    errors = [line for line in done.stderr.splitlines() if not line.endswith(" s")]
    assert (done.returncode, errors) == (2, [f"plugstream: cannot write to the run {folder}: Read-only file system"])
    assert content(folder) == before


def test_folders_that_are_no_runs_are_refused(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 2
    assert "no run.json" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{")
    assert main(["resume", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_an_event_log_goes_on_after_a_cut_line(tmp_path):
    path = tmp_path / "e.jsonl"
    log = EventLog(path)
    log.add(Measurement(1, 0.0, {}))
    log.add(Measurement(2, 0.0, {}))
    log.close()
    path.write_bytes(path.read_bytes()[:-5])
    log = EventLog(path)
    log.add(Resume(0))
    log.add(Measurement(1, 0.0, {}))
    log.close()
    assert [e.kind for e in read_events(path)] == ["measured", "resume", "measured"]
    assert [e.step for e in replay(path).measured] == [1]


class Gone(io.StringIO):
    tried = 0

    def write(self, text: str) -> int:
        self.tried += 1
        raise BrokenPipeError(errno.EPIPE, "gone")


@pytest.mark.parametrize("mode", ["rich", "plain", "json"])
def test_a_terminal_that_goes_away_does_not_end_the_run(monkeypatch, mode):
    streams = Gone(), Gone()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    with Display(mode) as display:
        terminal = Terminal(display)
        terminal(Note("hello"))
        assert streams[mode != "json"].tried == 1
        display.show(terminal.steps)
        getattr(display, f"_show_{mode}")(time.monotonic())
    assert (sys.stdout, sys.stderr) == streams
    assert streams[mode != "json"].tried > 1
