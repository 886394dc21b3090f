"""No change of the event log goes unseen, neither a bit nor a line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from effort import effort, thorough
from plugstream.base.checked_jsonl import LineWriter
from plugstream.base.errors import InputError
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Note
from plugstream.runs.replay import replay
from small_run import content, main

RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "12", "--checkpoint", "0"]


@pytest.fixture(scope="module")
def run(scan, tmp_path_factory) -> Path:
    """A run that reads its scan as it goes, so that its steps depend on what the log says of views and of L."""
    folder = tmp_path_factory.mktemp("run") / "run"
    words = ["reconstruct", str(scan), "--out", str(folder), "--set", "scan.in_memory=0"]
    assert main([*words, *RUN, "--every", "3"]) == 0
    return folder


def refusal(path: Path) -> str | None:
    try:
        list(read_events(path))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
        return str(error)
    return None


@thorough
def test_no_flipped_bit_is_read_as_another_event(run, tmp_path):
    whole = (run / "events.jsonl").read_bytes()
    events = list(read_events(run / "events.jsonl"))
    path = tmp_path / "events.jsonl"
    rng = random.Random(3)
    places = [*rng.sample(range(len(whole)), effort(100, 300)), *range(len(whole) - 30, len(whole)), *range(30)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        said = refusal(path)
        line = whole[:place].count(b"\n") + 1
        assert said is not None or list(read_events(path)) == events, (place, line)
        assert said is None or f"line {line} of the event log" in said
        assert said is not None  # no byte of a line is without meaning to its checksum


def test_the_bit_that_gave_another_image_is_refused_and_nothing_is_written(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    log = folder / "events.jsonl"
    for before, after in ((b'"views": 12', b'"views": 13'), (b'"lipschitz": ', b'"lipschitz": 1')):
        text = (run / "events.jsonl").read_bytes()
        log.write_bytes(text.replace(before, after, 1))
        kept = content(folder)
        assert main(["resume", str(folder), "--iterations", "20"]) == 2
        (said,) = capsys.readouterr().err.strip().splitlines()
        assert "of the event log" in said
        assert "fails its checksum" in said
        assert "restore the file" in said
        assert content(folder) == kept


@pytest.mark.parametrize("change", ["take out", "repeat", "swap", "first out"])
def test_lines_that_are_missing_repeated_or_moved_are_refused(run, tmp_path, change):
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    for at in range(1, len(lines) - 2):
        changed = {
            "take out": [*lines[:at], *lines[at + 1 :]],
            "repeat": [*lines[:at], lines[at], *lines[at:]],
            "swap": [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
            "first out": lines[1:],
        }[change]
        (tmp_path / "events.jsonl").write_bytes(b"".join(changed))
        assert refusal(tmp_path / "events.jsonl") is not None


def test_lines_that_are_missing_at_the_end_are_known_by_the_checkpoint(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    log = folder / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if b'"event": "measured"' in line)
    log.write_bytes(b"".join(lines[:last]))  # the newest checkpoint was written after the last measurement
    assert main(["resume", str(folder), "--iterations", "20"]) == 2
    assert "lines are missing at the end" in capsys.readouterr().err


def test_a_log_without_checksums_is_refused(tmp_path):
    (tmp_path / "events.jsonl").write_text(json.dumps({"event": "start"}) + "\n")
    assert "line 1 of the event log" in str(refusal(tmp_path / "events.jsonl"))


@thorough
def test_a_line_cut_anywhere_is_dropped_and_the_run_goes_on_to_the_same_bits(run, tmp_path):
    whole = (run / "events.jsonl").read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    events = list(read_events(run / "events.jsonl"))
    path = tmp_path / "events.jsonl"
    for cut in {*range(start, len(whole), effort(9, 1)), start + 1, len(whole) - 2, len(whole) - 1}:
        path.write_bytes(whole[:cut])
        assert list(read_events(path)) == events[:-1]
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "events.jsonl").write_bytes(whole[: start + 40])
    assert main(["resume", str(folder)]) == 0
    assert np.array_equal(np.load(folder / "result.npy"), np.load(run / "result.npy"))
    assert list(read_events(folder / "events.jsonl"))[: len(events) - 1] == events[:-1]


def test_a_write_that_fails_leaves_whole_lines(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "events.jsonl")
    log.add(Note("one"))

    class Full:
        def __init__(self, file):
            self.file, self.first = file, True

        def write(self, data):
            if self.first:
                self.first = False
                return self.file.write(bytes(data[:7]))
            raise OSError(28, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    file = log._lines._file
    log._lines._file = Full(file)
    with pytest.raises(InputError, match="No space left"):
        log.add(Note("two"))
    log._lines._file = file
    log.add(Note("three"))
    log.close()
    assert [event.text for event in read_events(tmp_path / "events.jsonl")] == ["one", "three"]


def test_text_that_looks_like_the_end_of_a_line_is_text(tmp_path):
    text = 'x, "check": "0123456789abcdef"}\n{"event": "views"}\n'
    log = EventLog(tmp_path / "events.jsonl")
    log.add(Note(text))
    log.add(Note("b"))
    log.close()
    assert [event.text for event in read_events(tmp_path / "events.jsonl")] == [text, "b"]


def test_a_link_in_place_of_the_log_is_not_written_through(tmp_path):
    other = tmp_path / "precious"
    other.write_text("")
    (tmp_path / "events.jsonl").symlink_to(other)
    with pytest.raises(InputError, match="event log"):
        EventLog(tmp_path / "events.jsonl").add(Note("x"))
    assert other.read_text() == ""
    assert replay(tmp_path / "none.jsonl").last_step == -1


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "views", "step": 3, "views": [1, 2], "damaged": [], "lipschitz": None, "ended": True},
        {"kind": "views", "step": 3, "views": 12, "damaged": "x", "lipschitz": None, "ended": True},
        {"kind": "views", "step": 3, "views": 12, "damaged": [-1], "lipschitz": None, "ended": True},
        {"kind": "views", "step": 3, "views": 12, "damaged": [], "lipschitz": "large", "ended": True},
        {"kind": "views", "step": True, "views": 12, "damaged": [], "lipschitz": 1.0, "ended": 1},
        {"kind": "views", "step": 3},
        {"kind": "measured", "step": 1e300, "values": {}},
        {"kind": "measured", "step": 1, "values": {"snr": [1]}},
        {"kind": "resume", "step": None},
        {"kind": ["views"]},
    ],
)
def test_an_event_of_the_wrong_kind_is_refused_though_its_checksum_is_right(run, tmp_path, capsys, event):
    folder = shutil.copytree(run, tmp_path / "run")
    lines = LineWriter(folder / "events.jsonl", "the event log")
    lines.add({"event": event["kind"], "at": 1.0, **{name: value for name, value in event.items() if name != "kind"}})
    lines.close()
    assert main(["resume", str(folder), "--iterations", "20"]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "of the event log" in said
    assert "it is not an event" in said
