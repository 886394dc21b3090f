"""reconstruct under a real torchrun: the image of one process, also where processes die, hang or wait for views."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warm
from plugstream.runs.commands import Command, send_command
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Resume, Views
from plugstream.runs.replay import replay
from ports import reserved_port
from small_run import main

RUN = ["--report", "none", "--sigma", "0.02", "--batch", "5", "--threads", "1", "--every", "5"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ALONE = ("--nproc-per-node", "2")
PLAYER = Path(__file__).parents[1] / "helpers" / "play_scan.py"
LIMIT = 150.0  # seconds, for anything: a tenth of it on a quiet machine


class Launch:
    """A torchrun of two ranks, its output in a file; ended with all of its processes whatever happens."""

    def __init__(
        self, log: Path, *words: str, restarts: int = 0, torchrun: tuple[str, ...] = ALONE, **environment: str
    ) -> None:
        self.log, self.begun = log, time.monotonic()
        command = [*TORCHRUN, *torchrun, "--max-restarts", str(restarts), "-m", "plugstream", *words]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, **environment}, start_new_session=True
            )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for pid in self.ranks():
                os.kill(pid, signal.SIGKILL)  # a stopped one, too
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(20)

    def ranks(self) -> list[int]:
        """The processes that torchrun started, in the order of ranks."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
                words = dict(
                    word.split("=", 1)
                    for word in (folder / "environ").read_text().split("\0")
                    if word.startswith("RANK=")
                )
            except (OSError, IndexError, ValueError):
                continue
            if parent == self.process.pid and "RANK" in words:
                found.append((int(words["RANK"]), int(folder.name)))
        return [pid for _, pid in sorted(found)]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            assert time.monotonic() - self.begun < LIMIT, f"{what} did not come\n{self.log.read_text()}"
            assert self.process.poll() is None, f"it ended before {what}\n{self.log.read_text()}"
            time.sleep(0.02)

    def end(self) -> int:
        return self.process.wait(max(1.0, LIMIT - (time.monotonic() - self.begun)))


def past_step(folder: Path, step: int) -> bool:
    """Whether a checkpoint beyond this step was written."""
    return any(int(path.stem.split("-")[1]) >= step for path in (folder / "checkpoints").glob("step-*.safetensors"))


@pytest.mark.parametrize("search", [[], ["--search", "20"]], ids=["plain", "search"])
def test_two_ranks_make_the_image_of_one_process(scan: Path, tmp_path: Path, search: list[str]) -> None:
    """To the bit, without torchrun, which only sets the environment; rank 0 alone writes and speaks."""
    words = ["reconstruct", str(scan), *RUN, "--iterations", "24" if search else "20", "--deterministic", *search]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    assert bool(replay(tmp_path / "one" / "events.jsonl").trials) == bool(search)
    command = [sys.executable, "-m", "plugstream", *words, "--out", str(tmp_path / "two")]
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = []
        for rank in range(2):
            mine = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(warm.Popen(command, env=mine, stderr=subprocess.PIPE, text=True))
            stack.callback(ranks[-1].kill)
        said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [text.count("results are in") for text in said] == [1, 0]
    assert (tmp_path / "two" / "result.npy").read_bytes() == (tmp_path / "one" / "result.npy").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_restarted_and_the_result_is_the_same(scan: Path, tmp_path: Path, victim: int) -> None:
    """To the bit that of one process, which never died."""
    words = ["reconstruct", str(scan), *RUN, "--iterations", "200", "--checkpoint", "0", "--deterministic"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    folder = tmp_path / "two"
    with Launch(tmp_path / "log", *words, "--out", str(folder), restarts=1) as launch:
        launch.wait_until(lambda: past_step(folder, 20), "a checkpoint")
        os.kill(launch.ranks()[victim], signal.SIGKILL)
        assert launch.end() == 0, launch.log.read_text()
    resumed = [event.step for event in read_events(folder / "events.jsonl") if isinstance(event, Resume)]
    assert len(resumed) == 1
    assert 20 <= resumed[0] < 200
    for name in ("result.npy", "backprojection.npy"):
        assert (folder / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    one = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in folder.iterdir()} - {"preview.safetensors"} == one - {"preview.safetensors"}
    said = launch.log.read_text()
    assert said.count("results are in") == 1  # rank 0 alone speaks
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_rank_of_another_machine_is_restarted_too(scan: Path, tmp_path: Path) -> None:
    """Two torchruns, as on two machines, of which only one counts a restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    machine = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", place)
    words = ["reconstruct", str(scan), *RUN, "--iterations", "200", "--checkpoint", "0", "--deterministic"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    words += ["--out", str(tmp_path / "two")]
    with (
        Launch(tmp_path / "log0", *words, restarts=2, torchrun=machine) as first,
        Launch(tmp_path / "log1", *words, restarts=2, torchrun=machine) as second,
    ):
        first.wait_until(lambda: past_step(tmp_path / "two", 20), "a checkpoint")
        os.kill(second.ranks()[0], signal.SIGKILL)
        assert (first.end(), second.end()) == (0, 0), first.log.read_text() + second.log.read_text()
    assert (tmp_path / "two" / "result.npy").read_bytes() == (tmp_path / "one" / "result.npy").read_bytes()


@pytest.mark.slow
def test_a_rank_that_hangs_is_noticed(scan: Path, tmp_path: Path) -> None:
    words = ["reconstruct", str(scan), *RUN, "--iterations", "100000", "--checkpoint", "0"]
    folder = tmp_path / "run"
    with Launch(tmp_path / "log", *words, "--out", str(folder), PLUGSTREAM_RANK_TIMEOUT="4") as launch:
        launch.wait_until(lambda: past_step(folder, 5), "a checkpoint")
        os.kill(launch.ranks()[1], signal.SIGSTOP)
        stopped = time.monotonic()
        launch.wait_until(lambda: "did not answer for 4 s" in launch.log.read_text(), "a word")
        assert time.monotonic() - stopped < 30
    stop = replay(folder / "events.jsonl").stop
    assert stop is not None
    assert stop.failed
    assert main(["resume", str(folder), "--iterations", str(stop.step + 5)]) in (0, 3)


@pytest.mark.slow
def test_ranks_follow_a_live_scan_and_hear_a_signal(scan: Path, tmp_path: Path) -> None:
    """All use the views that rank 0 sees, and end after the same step; one process goes on from there."""
    live, folder = tmp_path / "live.zarr", tmp_path / "run"
    words = ["reconstruct", str(live), *RUN, "--batch", "3", "--follow", "--iterations", "100000", "--checkpoint", "0"]
    with Launch(tmp_path / "log", *words, "--out", str(folder)) as launch:
        launch.wait_until(lambda: len(launch.ranks()) == 2, "ranks")
        player = subprocess.Popen([sys.executable, str(PLAYER), str(scan), str(live), "1.0"], stdout=subprocess.DEVNULL)
        launch.wait_until(lambda: "no more to come" in launch.log.read_text(), "the end of the scan")
        assert player.wait(20) == 0
        launch.process.send_signal(signal.SIGINT)
        launch.process.wait(60)
    said = launch.log.read_text()
    assert "it was interrupted" in said
    assert "next: plugstream resume" in said
    records = [event for event in read_events(folder / "events.jsonl") if isinstance(event, Views)]
    assert records[-1].views == 12
    assert len(records) > 1
    taken = replay(folder / "events.jsonl").step
    assert main(["resume", str(folder), "--iterations", str(max(1, taken - records[-1].step) + 3)]) in (0, 3)


def test_commands_for_one_process_say_so(tmp_path: Path) -> None:
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
    words = [sys.executable, "-m", "plugstream", "demo", "--out", str(tmp_path / "demo")]
    done = warm.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (
        done.stderr
        == "plugstream: demo is for one process; only reconstruct and resume share their work among several\n"
    )
    silent = warm.run(words, env={**environment, "RANK": "1"}, capture_output=True, text=True, timeout=60)
    assert (silent.returncode, silent.stdout, silent.stderr) == (2, "", "")


def test_tiles_are_settings(scan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exact for a denoiser of finite reach; a halo without tiles is refused."""
    words = ["reconstruct", str(scan), *RUN, "--iterations", "5", "--denoiser", "tnrd"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    assert main([*words, "--out", str(tmp_path / "tiles"), "--tile", "9"]) == 0
    assert "on tiles of 9 with a halo of 30" in capfd.readouterr().err
    images = [np.load(tmp_path / name / "result.npy") for name in ("whole", "tiles")]
    assert np.allclose(*images, atol=1e-6)
    assert main([*words, "--out", str(tmp_path / "wrong"), "--halo", "3"]) == 2
    assert "add --tile" in capfd.readouterr().err


@pytest.mark.slow
def test_ranks_give_the_bits_of_one_process_for_any_instrument(tmp_path: Path) -> None:
    """One that is not linear, whose image is a complex volume, denoised on slabs that the ranks share."""
    toy = f"{Path(__file__).parents[1] / 'helpers' / 'toy_holograph.py'}:ToyHolograph"
    scan = tmp_path / "toy.zarr"
    assert main(["simulate", str(scan), "--instrument", toy]) == 0
    words = ["reconstruct", str(scan), "--instrument", toy, *RUN, "--iterations", "8", "--denoiser", "tv"]
    words += ["--tile", "2", "--deterministic", "--gradient", "svrg"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    with Launch(tmp_path / "log", *words, "--out", str(tmp_path / "two")) as launch:
        assert launch.end() == 0, launch.log.read_text()
    assert np.load(tmp_path / "two" / "result.npy").ndim == 3
    assert (tmp_path / "two" / "result.npy").read_bytes() == (tmp_path / "one" / "result.npy").read_bytes()


@pytest.mark.slow
def test_ranks_are_steered_together(scan: Path, tmp_path: Path) -> None:
    """Rank 0 takes the commands; a pause may last longer than a rank may be silent; the bits are one process's."""
    words = ["reconstruct", str(scan), *RUN, "--iterations", "3000", "--checkpoint", "1000", "--deterministic"]
    folder = tmp_path / "two"
    with Launch(tmp_path / "log", *words, "--out", str(folder), PLUGSTREAM_RANK_TIMEOUT="4") as launch:
        history = replay(folder / "events.jsonl")
        for command in (Command("change", sigma=0.03), Command("pause"), Command("resume"), Command("stop")):
            step, told = history.step + 40, len(history.steering)
            launch.wait_until(lambda k=step: replay(folder / "events.jsonl").step >= k, "steps")
            send_command(folder, command)
            launch.wait_until(lambda n=told: len(replay(folder / "events.jsonl").steering) > n, command.action)
            history = replay(folder / "events.jsonl")
            if history.paused:
                time.sleep(6.0)
                history.step = 0  # it takes no steps meanwhile
        assert launch.end() == 0, launch.log.read_text()
    again = ["reconstruct", str(scan), "--settings", str(folder / "settings.toml"), "--out", str(tmp_path / "one")]
    assert main(again) == 0
    assert (folder / "result.npy").read_bytes() == (tmp_path / "one" / "result.npy").read_bytes()
    assert [e.action for e in replay(folder / "events.jsonl").steering] == ["change", "pause", "resume", "stop"]
