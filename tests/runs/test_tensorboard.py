"""What TensorBoard reads of a run, read here by the formats of its records and messages alone."""

from __future__ import annotations

import io
import shutil
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from PIL import Image

from plugstream.base.errors import PlugstreamWarning
from plugstream.runs.events import Measurement
from plugstream.runs.replay import replay
from plugstream.runs.tensorboard import Tensorboard
from small_run import RUN, main


def records(path: Path) -> list[bytes]:
    """The records of a file, each with a length and a content whose checksums are right."""
    content, out = path.read_bytes(), []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        body = content[12 : 12 + size]
        for part, place in ((content[:8], 8), (body, 12 + size)):
            crc = google_crc32c.value(part)
            masked = ((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8 & 0xFFFFFFFF
            assert struct.unpack("<I", content[place : place + 4]) == (masked,)
        assert len(body) == size
        out.append(body)
        content = content[16 + size :]
    return out


def message(content: bytes) -> dict[int, list[Any]]:
    """The fields of a Protocol Buffers message by number: whole numbers, fixed ones as floats, and bytes."""

    def varint() -> int:
        nonlocal content
        value = shift = 0
        while True:
            byte, content = content[0], content[1:]
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    fields: dict[int, list[Any]] = {}
    while content:
        key = varint()
        match key & 7:
            case 0:
                value: Any = varint()
            case 1:
                value, content = struct.unpack("<d", content[:8])[0], content[8:]
            case 5:
                value, content = struct.unpack("<f", content[:4])[0], content[4:]
            case 2:
                size = varint()
                value, content = content[:size], content[size:]
            case other:
                raise AssertionError(other)
        fields.setdefault(key >> 3, []).append(value)
    return fields


def summaries(path: Path) -> list[tuple[int, str, dict[int, list[Any]]]]:
    """Step, tag and content of every value that the events of a file have."""
    first, *rest = [message(record) for record in records(path)]
    assert first[3] == [b"brain.Event:2"]
    out = []
    for event in rest:
        for summary in event.get(5, []):
            for value in message(summary).get(1, []):
                fields = message(value)
                out.append((event[2][0], fields[1][0].decode(), fields))
    return out


@pytest.fixture(scope="module")
def run(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board") / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN[:-2], "--tensorboard"]) == 0
    return folder


def board(run: Path) -> list[Path]:
    return sorted((run / "tensorboard").iterdir())


def test_scalars_are_what_was_measured(run, whole):
    (path,) = board(run)
    assert ".tfevents." in path.name
    values = summaries(path)
    measured = replay(run / "events.jsonl").measured
    for name in ("snr", "distance"):
        wanted = [(event.step, pytest.approx(event.values[name], rel=1e-6)) for event in measured]
        assert [(step, fields[2][0]) for step, tag, fields in values if tag == name] == wanted
    assert [(step, fields[2][0]) for step, tag, fields in values if tag == "views"] == [(0, 12.0)]
    assert np.array_equal(np.load(run / "result.npy"), np.load(whole / "result.npy"))  # of a run without it


def test_the_last_picture_is_the_result(run):
    pictures = [(step, fields) for step, tag, fields in summaries(board(run)[0]) if tag == "image/image"]
    step, fields = pictures[-1]
    assert step == 30
    image = message(fields[4][0])
    assert (image[1], image[2], image[3]) == ([24], [24], [1])
    with Image.open(io.BytesIO(image[4][0])) as picture:
        grey = np.asarray(picture).astype(float)
    result = np.load(run / "result.npy")
    shares = 255 * (result - min(0, result.min())) / (result.max() - min(0, result.min()))
    assert min(np.abs(grey - shares).max(), np.abs(grey - shares[::-1]).max()) <= 0.51
    with Image.open(run / "result.png") as saved:
        assert np.abs(grey - np.asarray(saved).astype(float)).max() <= 1  # the same way up


def test_the_settings_are_a_text(run):
    step, tag, fields = summaries(board(run)[0])[0]
    assert (step, tag) == (0, "settings")
    assert message(message(fields[9][0])[1][0])[1] == [b"text"]
    tensor = message(fields[8][0])
    assert tensor[1] == [7]  # a string
    assert b'"iterations": 30' in tensor[8][0]


def test_a_run_that_goes_on_has_a_file_more_which_takes_back_what_is_repeated(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run")  # the others look at it as it is
    assert main(["resume", str(run), "--iterations", "40", "--tensorboard"]) == 0
    first, second = board(run)
    assert max(step for step, *_ in summaries(first)) == 30
    events = [message(record) for record in records(second)]
    assert [(event[2], message(event[7][0])) for event in events if 7 in event] == [([31], {1: [1]})]
    steps = [step for step, tag, _ in summaries(second) if tag == "snr"]
    assert (steps[0] > 30, steps[-1]) == (True, 40)


def test_a_disk_that_does_not_take_it_is_told_once(tmp_path):
    listen = Tensorboard(tmp_path / "gone")
    with pytest.warns(PlugstreamWarning, match="cannot write"):
        listen(Measurement(1, 0.1, {"snr": 2.0}))
    listen(Measurement(2, 0.2, {"snr": 3.0}))  # a warning would be an error
