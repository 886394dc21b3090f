"""A journal keeps the lines that it has, whatever happens to the next; and what MemoryScan and BM3D promise."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import resource
import signal
import sys
import time

import numpy as np
import pytest
import torch

import warm
from plugstream import BM3D, InputError, LeastSquares, MemoryScan, open_scan, save_scan
from plugstream.models import BornModel
from plugstream.studies.tuning import Journal

ABOUT = {"scan": "a"}


def filled(path, count=3):
    journal = Journal(path, ABOUT)
    for k in range(count):
        journal.ask({"sigma": 0.1 * k}, lambda k=k: float(k))
    return path.read_bytes()


def known(path):
    journal = Journal(path, ABOUT)
    return [journal.ask({"sigma": 0.1 * k}, lambda: float("nan")) for k in range(3)]


def test_opening_a_journal_writes_nothing(tmp_path):
    """It was written anew each time, so that a disk that was full then held nothing of it."""
    path = tmp_path / "j.jsonl"
    before = filled(path)
    inode, changed = path.stat().st_ino, path.stat().st_mtime_ns
    path.chmod(0o444)
    assert known(path) == [0.0, 1.0, 2.0]
    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) == (inode, changed, before)


@contextlib.contextmanager
def limited(size):
    """No file grows beyond this, as on a full disk: the kernel cuts the write that would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("room", [0, 1, 20])
@pytest.mark.parametrize("tail", [b"", b'{"try": {"sigma": 0.3}, "sco', b'{"try": "\xc3'])
def test_a_full_disk_leaves_the_lines_that_were_there(tmp_path, room, tail):
    path = tmp_path / "j.jsonl"
    before = filled(path)
    with path.open("ab") as file:
        file.write(tail)
    with limited(len(before) + room), pytest.raises(InputError, match="cannot write the journal") as caught:
        Journal(path, ABOUT).ask({"sigma": 7.0}, lambda: 7.0)
    assert "it keeps its 3 evaluations" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert known(path) == [0.0, 1.0, 2.0]


KILLED = """
import itertools, sys
from pathlib import Path
from plugstream.studies.tuning import Journal
journal = Journal(Path(sys.argv[1]), {"scan": "a"})
for k in itertools.count(len(journal)):
    journal.ask({"sigma": 0.1 * k}, lambda: float(k))
"""


def test_kills_at_any_time_leave_a_journal_that_goes_on(tmp_path):
    path = tmp_path / "j.jsonl"
    filled(path)
    least = 3
    for wait in (0.0, 0.031):
        process = warm.Popen([sys.executable, "-c", KILLED, str(path)])
        try:
            end = time.monotonic() + 150
            while path.read_bytes().count(b"\n") <= least + 1 and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(wait)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(150)
        assert known(path) == [0.0, 1.0, 2.0]
        found = len(Journal(path, ABOUT))
        assert found > least
        least = found
    scores = [json.loads(line).get("score") for line in path.read_text().splitlines()]
    assert scores[1:] == [float(k) for k in range(least)]


def test_a_failed_write_is_one_line_and_not_counted(tmp_path, monkeypatch):
    path = tmp_path / "j.jsonl"
    before = filled(path)
    journal = Journal(path, ABOUT)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left on device; it keeps its 3 evaluations"):
            journal.ask({"sigma": 9.0}, lambda: 9.0)
    assert path.read_bytes() == before
    assert len(journal) == 3
    assert journal.ask({"sigma": 9.0}, lambda: 9.5) == 9.5
    assert len(Journal(path, ABOUT)) == 4


@pytest.mark.parametrize("what", ["folder", "pipe", "link"])
def test_what_is_no_file_is_refused_at_once(tmp_path, what):
    path = tmp_path / "j.jsonl"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not a plain file"):
        Journal(path, ABOUT)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", ["[]\n", "7\n", '{"about": {"scan": "a"}}\n[1]\n', "[" * 5000 + "\n", "\x00\n"])
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="journal"):
        Journal(path, ABOUT)
    assert path.read_text() == text


KINDS = [np.float32, np.float64, np.complex64, np.complex128, np.int16, np.uint8, ">f4"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_in_memory_takes_real_and_numpy_data(small_geometry, tmp_path, kind):
    rng = np.random.default_rng(0)
    numbers = (40 * rng.random((7, 9))).astype(kind)
    want = torch.from_numpy(numbers.astype(np.complex64))
    scan = MemoryScan(numbers, small_geometry, rng.random((12, 10)), {"from": "here"})
    assert scan.data.dtype == torch.complex64
    assert torch.equal(scan.data, want)
    assert scan.truth.dtype == np.float32
    save_scan(scan, tmp_path / "s.zarr")
    assert torch.equal(open_scan(tmp_path / "s.zarr").read(), want)
    value = LeastSquares(BornModel(small_geometry), scan).value(torch.zeros(12, 10))
    assert float(value) == pytest.approx(float((want.abs() ** 2).sum()) / 14, rel=1e-5)
    assert dataclasses.replace(scan, truth=None).truth is None


def test_a_scan_in_memory_takes_tensors_as_before(small_geometry):
    data = torch.randn(7, 9, dtype=torch.complex128)
    assert torch.equal(MemoryScan(data, small_geometry).data, data)
    real = torch.randn(7, 9)
    scan = MemoryScan(real, small_geometry, torch.rand(12, 10))
    assert torch.equal(scan.data, real.to(torch.complex64))
    assert isinstance(scan.truth, np.ndarray)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.full((7, 9), "x"), "array of numbers"),
        (np.full((7, 9), None), "array of numbers"),
        (np.zeros((9, 7)), "7 views of 9 receivers"),
        (np.full((7, 9), np.nan), "view 0 of the scan holds NaN"),
        (np.full((7, 9), 1e300), "view 0 of the scan holds NaN or infinity"),
        ("hello", "array of numbers"),
    ],
)
def test_what_cannot_be_data_is_one_line(small_geometry, data, message):
    with pytest.raises(InputError, match=message) as caught:
        MemoryScan(data, small_geometry)
    assert "\n" not in str(caught.value)


def test_a_true_image_that_is_none_is_one_line(small_geometry):
    for truth, message in (("x", "array of numbers"), (np.zeros((3, 3)), "its images are"), ([[1], []], "be read as")):
        with pytest.raises(InputError, match=message):
            MemoryScan(np.zeros((7, 9)), small_geometry, truth)


def test_scaling_bm3d_is_exact_for_powers_of_two_only():
    """What its docstring says: to the bit for powers of two, and about a hundredth of the noise for others."""
    rows = torch.linspace(0, 1, 48)
    z = (rows[:, None] * 3 % 1).round() * rows + 0.1 * torch.randn(48, 48, generator=torch.Generator().manual_seed(3))
    out = BM3D()(z, 0.125)
    for factor in (2.0**-20, 0.25, 2.0, 2.0**30):
        assert torch.equal(BM3D()(z * factor, 0.125 * factor) / factor, out)
    for factor in (0.1, 3.0, 255.0):
        other = BM3D()(z * factor, 0.125 * factor) / factor
        assert float((other - out).norm() / out.norm()) < 5e-3
    assert "power of two" in " ".join((BM3D.__doc__ or "").split())
