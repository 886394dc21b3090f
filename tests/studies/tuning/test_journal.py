"""A journal keeps the lines that it has, whatever happens to the next."""

import contextlib
import errno
import json
import os
import resource
import signal
import sys
import time

import pytest

import warm
from plugstream import InputError
from plugstream.studies.tuning import Journal
from waiting import wait_until

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
            wait_until(lambda n=least: path.read_bytes().count(b"\n") > n + 1)
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
