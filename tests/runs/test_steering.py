"""A run that somebody steers: what is asked for counts from the next step on, is recorded, and repeats to the bit."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plugstream.base.errors import InputError
from plugstream.runs import commands
from plugstream.runs.commands import Command, parse_command, read_command, send_command
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Event, Heartbeat, Measurement, Note, Steering, Stop
from plugstream.runs.liveness import Heartbeats
from plugstream.runs.replay import replay
from plugstream.settings import parse_changes, resolve
from small_run import RUN, main, same_run
from steering_numbers import HUGE, NINES
from waiting import wait_until

STEPS = ["--iterations", "30", "--checkpoint", "1000", "--every", "5"]
SIGMA, HALF = Command("change", sigma=0.05), Command("change", step_size="0.5/L")
Pilot = Callable[[dict[int, Any]], None]


@pytest.fixture
def pilot(monkeypatch: pytest.MonkeyPatch) -> Pilot:
    """Somebody who does something when a step has been measured: gives commands, or anything else."""
    monkeypatch.setattr(commands, "_EVERY", 0.0)
    add = EventLog.add

    def steer(orders: dict[int, Any]) -> None:
        left = dict(orders)

        def note(log: EventLog, event: Event) -> None:
            add(log, event)
            if isinstance(event, Measurement) and (order := left.pop(event.step, None)) is not None:
                for one in order if isinstance(order, tuple) else (order,):
                    send_command(log.path.parent, one) if isinstance(one, Command) else one(log.path.parent)

        monkeypatch.setattr(EventLog, "add", note)

    return steer


@pytest.fixture(scope="module")
def planned(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody touched, with the changes in its settings that others are asked for."""
    folder = tmp_path_factory.mktemp("planned") / "run"
    words = [*RUN, *STEPS, "--changes", "10: sigma=0.05; 20: step=0.5/L"]
    assert main(["reconstruct", str(scan), "--out", str(folder), *words]) == 0
    return folder


def reconstruct(scan: Path, folder: Path, *more: str) -> int:
    return main(["reconstruct", str(scan), "--out", str(folder), *RUN, *STEPS, *more])


def steering(folder: Path) -> list[Steering]:
    return [event for event in read_events(folder / "events.jsonl") if isinstance(event, Steering)]


def end(folder: Path) -> Stop:
    last = replay(folder / "events.jsonl").stop
    assert last is not None
    return last


def go_on_soon(folder: Path) -> None:
    """Somebody sees that the run has paused, and has it go on."""

    def go_on() -> None:
        wait_until(lambda: replay(folder / "events.jsonl").paused)
        send_command(folder, Command("resume"))

    threading.Thread(target=go_on, daemon=True).start()


def kill(folder: Path) -> None:
    raise SystemExit(9)  # which no part of a run catches: as if the process were gone


def test_what_is_asked_for_counts_from_the_next_step_on_and_repeats(scan, planned, pilot, tmp_path):
    pilot({10: SIGMA, 20: HALF})
    assert reconstruct(scan, tmp_path / "run") == 0
    assert steering(tmp_path / "run") == [Steering(10, "change", 0.05), Steering(20, "change", None, "0.5/L")]
    same_run(tmp_path / "run", planned)
    assert resolve(tmp_path / "run" / "settings.toml").algorithm.changes == "10: sigma=0.05; 20: step=0.5/L"
    again = ["reconstruct", str(scan), "--settings", str(tmp_path / "run" / "settings.toml")]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    same_run(tmp_path / "again", planned)
    assert steering(tmp_path / "again") == steering(tmp_path / "run")
    assert not (tmp_path / "run" / "commands").exists()


def test_a_steered_run_that_was_killed_goes_on_with_the_same_changes(scan, planned, pilot, tmp_path):
    """Also with those that came after its checkpoint, here that of the pause."""
    folder = tmp_path / "run"
    pilot({5: (Command("pause"), go_on_soon), 10: SIGMA, 20: HALF, 25: kill})
    with pytest.raises(SystemExit):
        reconstruct(scan, folder)
    assert [path.stem for path in (folder / "checkpoints").iterdir()] == ["step-00000005"]
    assert main(["resume", str(folder)]) == 0
    same_run(folder, planned)
    told = replay(folder / "events.jsonl").steering
    assert [(event.step, event.action) for event in told] == [
        (5, "pause"),
        (5, "resume"),
        (10, "change"),
        (20, "change"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--set scan.in_memory=0",
        "--gradient saga",
        "--gradient svrg --restart gradient",
        "--algorithm admm --sampler all",
        "--algorithm hqs --sampler all --step 100/L --step-end 10/L --sigma 0.05 --sigma-end 0.01",
        "--lam 1e-6 --sigma none",
        "--step 900.0",
        "--loss huber",
    ],
)
def test_steering_repeats_whatever_is_iterated(scan, pilot, tmp_path, words):
    half = "450.0" if "--step 900" in words else "0.5/L"
    given = [*words.split(), "--changes", f"10: sigma=0.05; 20: step={half}"]
    kept = [word for word in RUN if "--sampler all" not in words or word not in ("--batch", "4")]
    base = ["reconstruct", str(scan), *kept, *STEPS]
    assert main([*base, *given, "--out", str(tmp_path / "planned")]) == 0
    size = float(half) if half.endswith("0") else half
    pilot({5: (Command("pause"), go_on_soon), 10: SIGMA, 20: Command("change", step_size=size), 25: kill})
    with pytest.raises(SystemExit):
        main([*base, *given[:-2], "--out", str(tmp_path / "run")])
    assert main(["resume", str(tmp_path / "run")]) == 0
    same_run(tmp_path / "run", tmp_path / "planned")


def test_a_run_that_waits_gives_signs_of_life(tmp_path, monkeypatch):
    """As one that goes on does, for whoever looks from another machine; the pause is none of its seconds."""
    now = [100.0]
    monkeypatch.setattr("plugstream.runs.liveness.time.monotonic", lambda: now[0])
    log = EventLog(tmp_path / "events.jsonl")
    beats, progress = Heartbeats(log, 100, every=5.0, begun=now[0]), SimpleNamespace(state=SimpleNamespace(k=7))
    beats.after_step(progress)
    now[0] += 1.0
    beats.before_pause(progress)
    for _ in range(3):
        now[0] += 20.0
        beats.while_paused(progress)
        beats.while_paused(progress)  # at most every few seconds
    beats.after_pause(60.0)
    now[0] += 6.0
    beats.after_step(progress)
    log.close()
    told = [event for event in read_events(log.path) if isinstance(event, Heartbeat)]
    assert [(event.step, event.seconds) for event in told] == [(7, 1.0), (7, 1.0), (7, 1.0), (7, 7.0)]
    assert told[1].rate == 0


def test_a_new_change_takes_the_place_of_those_that_were_to_come(scan, planned, pilot, tmp_path):
    folder = tmp_path / "run"
    pilot({10: (SIGMA, Command("change", sigma=0.01), SIGMA)})
    assert reconstruct(scan, folder, "--changes", "5: step=0.5/L; 25: sigma=0.9") == 0
    text = "5: step=0.5/L; 10: sigma=0.05; 10: sigma=0.01; 10: sigma=0.05"
    assert resolve(folder / "settings.toml").algorithm.changes == text
    assert "; ".join(map(str, replay(folder / "events.jsonl").changes)) == text
    assert reconstruct(scan, tmp_path / "again", "--changes", "5: step=0.5/L; 10: sigma=0.05") == 0
    same_run(tmp_path / "again", folder)


def test_stop_and_keep_repeats_and_goes_on(scan, planned, pilot, tmp_path):
    folder = tmp_path / "run"
    pilot({10: SIGMA, 20: HALF, 25: Command("stop")})
    assert reconstruct(scan, folder) == 0
    assert (end(folder).step, end(folder).failed) == (25, False)
    assert "asked it to stop" in end(folder).reason
    kept = np.load(folder / "result.npy")
    again = ["reconstruct", str(scan), "--settings", str(folder / "settings.toml"), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    same_run(tmp_path / "again", folder)
    assert end(tmp_path / "again").step == 25
    assert main(["resume", str(folder)]) == 0
    same_run(folder, planned)
    assert not np.array_equal(np.load(folder / "result.npy"), kept)
    assert "stop" not in resolve(folder / "settings.toml").algorithm.changes


def test_a_pause_is_no_time_of_the_run(scan, planned, pilot, tmp_path):
    folder = tmp_path / "run"

    def wait(folder: Path) -> None:
        assert not replay(folder / "events.jsonl").paused
        send_command(folder, Command("pause"))
        threading.Thread(target=change_and_go_on, args=[folder], daemon=True).start()

    def change_and_go_on(folder: Path) -> None:
        wait_until((folder / "checkpoints" / "step-00000010.safetensors").exists)  # of the pause, which has begun
        send_command(folder, SIGMA)
        wait_until(lambda: replay(folder / "events.jsonl").changes)
        time.sleep(0.6)
        send_command(folder, Command("resume"))

    pilot({10: wait, 20: HALF})
    assert reconstruct(scan, folder) == 0
    same_run(folder, planned)  # the change that was asked for while it waited counts, too
    pause, resumed = (next(e for e in steering(folder) if e.action == action) for action in ("pause", "resume"))
    history = replay(folder / "events.jsonl")
    assert resumed.at - pause.at > 0.5
    assert end(folder).wall < end(folder).at - history.start.at - 0.5
    assert not history.paused


def test_a_command_that_cannot_be_done_is_told_and_changes_nothing(scan, pilot, tmp_path):
    def litter(folder: Path) -> None:
        for number, text in enumerate(["{", "[" * 5000, '{"action": "dance"}', '{"action": "change", "sigma": true}']):
            (folder / "commands" / f"{number}.json").write_text(text)
        (folder / "commands" / "5.json").symlink_to("/etc/passwd")
        (folder / "commands" / "note.txt").write_text("no command")

        for number, text in enumerate(HUGE):
            (folder / "commands" / f"huge-{number:03}.json").write_text(text)

    words = ["--step", "1000.0"]
    assert reconstruct(scan, tmp_path / "one", *words) == 0
    pilot({10: (HALF, litter)})
    assert reconstruct(scan, tmp_path / "run", *words) == 0
    same_run(tmp_path / "one", tmp_path / "run")
    notes = [e.text for e in read_events(tmp_path / "run" / "events.jsonl") if isinstance(e, Note)]
    refused = [text for text in notes if "cannot be done" in text]
    assert len(refused) == 6 + len(HUGE)
    assert all(NINES not in text and "\n" not in text for text in refused)
    assert any("its L is unknown" in text for text in notes)
    assert Path("/etc/passwd").exists()


def test_a_step_that_is_a_slip_of_the_hand_is_refused_and_one_that_diverges_leaves_the_last_good_image(
    scan, planned, pilot, tmp_path
):
    pilot({10: (SIGMA, Command("change", step_size=f"{'9' * 60}/L")), 20: HALF})
    assert reconstruct(scan, tmp_path / "run") == 0
    same_run(tmp_path / "run", planned)
    notes = [e.text for e in read_events(tmp_path / "run" / "events.jsonl") if isinstance(e, Note)]
    assert any("times the present one" in text for text in notes)
    pilot({10: Command("change", step_size="9000/L")})
    assert reconstruct(scan, tmp_path / "away") == 1
    stop, image = end(tmp_path / "away"), np.load(tmp_path / "away" / "result.npy")
    assert stop.failed
    assert np.isfinite(image).all()
    assert np.linalg.norm(image) < 100 * np.linalg.norm(np.load(planned / "result.npy"))


@pytest.mark.parametrize(
    "text",
    [
        "40", "x: stop", "-1: stop", "0: stop", "4: sigma", "4: sigma=-1", "4: sigma=nan", "4: step=0", "4: step=2/M",
        "4: sigma=1, sigma=2", "4: gamma=1", "4:", "99999999999999: stop", "4: step=inf", "٤: stop",
    ],
)  # fmt: skip
def test_a_change_that_is_none_is_refused(text):
    with pytest.raises(InputError):
        parse_changes(text)


def test_changes_are_read_as_they_are_written():
    text = "3: sigma=0.30000000000000004; 3: stop; 7: sigma=1e-05, step=0.5/L; 9: step=12.5, stop"
    assert "; ".join(map(str, parse_changes(text))) == text
    assert parse_changes("5: step=1/(4L) ; 2: sigma=15/255") == parse_changes(
        "2: sigma=0.058823529411764705;5:step=1/(4L)"
    )


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {"action": "pause", "sigma": 1},
        {"action": "change"},
        {"action": "change", "sigma": "1"},
        {"action": "change", "step_size": "1/L" + " " * 99},
        {"action": ["stop"]},
        {"action": "stop", "who": "me"},
        json.loads('{"action": "change", "sigma": NaN}'),
        json.loads('{"action": "change", "step_size": Infinity}'),
    ],
)
def test_json_that_is_no_command_is_refused(content):
    with pytest.raises(InputError):
        read_command(content)


@pytest.mark.parametrize("text", HUGE)
def test_a_number_that_no_run_can_take_is_refused(text):
    with pytest.raises(InputError):
        parse_command(text.encode())
    with suppress(ValueError):  # which Python's own parser may not read either
        content = json.loads(text)
        with pytest.raises(InputError):
            read_command(content)


def remove_log(folder: Path) -> None:
    (folder / "events.jsonl").unlink()


def replace_log(folder: Path) -> None:
    text = (folder / "events.jsonl").read_bytes()
    remove_log(folder)
    (folder / "events.jsonl").write_bytes(text)


def move_folder(folder: Path) -> None:
    folder.rename(folder.parent / "moved")


@pytest.mark.parametrize(
    ("what", "checkpoint"),
    [(remove_log, "0"), (remove_log, "1000"), (replace_log, "1000"), (shutil.rmtree, "0"), (move_folder, "1000")],
)
def test_a_run_whose_record_is_taken_away_ends_and_says_so(scan, pilot, tmp_path, capsys, what, checkpoint):
    """Whether or not there is a checkpoint that notices: nothing is made anew where the folder was."""
    pilot({20: what})
    folder = tmp_path / "run"
    assert reconstruct(scan, folder, "--checkpoint", checkpoint) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("plugstream: the ")
    assert "while the run went on" in said
    assert "resume" in said
    assert folder.exists() == (what in (remove_log, replace_log))
    assert not (folder / "result.npy").exists()
    if what is remove_log:
        assert not (folder / "events.jsonl").exists()
