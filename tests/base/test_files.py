"""What is written beside its place is a new file of a name that nobody knew, and is cleared away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import warm
from plugstream.base.errors import InputError
from plugstream.base.files import lock_folder, read_small, write_whole


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".result.npy.new", ".result.npy.0123456789abcdef.new"):
        (folder / name).symlink_to(precious)
    write_whole(folder / "result.npy", [b"image"])
    assert precious.read_text() == "keep me"
    assert (folder / "result.npy").read_bytes() == b"image"
    # Even one whose name was guessed: a name that is there is never written to.
    monkeypatch.setattr("secrets.token_hex", lambda n: "0" * (2 * n))
    (folder / ".result.npy.0000000000000000.new").symlink_to(precious)
    with pytest.raises(OSError, match="exists"):
        write_whole(folder / "result.npy", [b"other"])
    assert precious.read_text() == "keep me"
    assert (folder / "result.npy").read_bytes() == b"image"


def test_no_device_or_pipe_is_replaced(tmp_path):
    """Root could: /dev/null would be a file from then on."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_text("keep me")
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    for name in ("pipe", "null", "stdout"):
        with pytest.raises(OSError, match="it is a device or pipe, not a file"):
            write_whole(tmp_path / name, [b"x"])
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before
    write_whole(tmp_path / "link", [b"x"])  # which is replaced, and what it leads to is not touched
    assert (tmp_path / "link").read_text() == "x"
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot write"):
        lock_folder(tmp_path, "the run")
    assert not (tmp_path / "elsewhere").exists()


def test_names_are_never_the_same(tmp_path, monkeypatch):
    seen = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (seen.append(self.name), replace(self, target))[1])
    for _ in range(20):
        write_whole(tmp_path / "x", [b"x"])
    assert len(set(seen)) == 20
    assert all(name.startswith(".x.") and name.endswith(".new") for name in seen)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


KILLED = """
import sys, time
from pathlib import Path
from plugstream.base.files import write_whole

def parts():
    yield b"half"
    print("begun", flush=True)
    time.sleep(170)

write_whole(Path(sys.argv[1]), parts())
"""


def begun(path: Path) -> subprocess.Popen[str]:
    process = warm.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    path = tmp_path / "commit.json"
    dead, living, other = begun(path), begun(path), begun(tmp_path / "commit.json.more")
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait(150)
        assert len(list(tmp_path.glob(".commit.json.*.new"))) == 3
        write_whole(path, [b"whole"])
        assert len(list(tmp_path.glob(".commit.json.*.new"))) == 2
        assert path.read_bytes() == b"whole"
    finally:
        for process in (living, other):
            process.kill()
            process.wait(150)
    write_whole(path, [b"again"])
    assert [path.name for path in tmp_path.glob(".*.new")] == [
        path.name for path in tmp_path.glob(".commit.json.more.*.new")
    ]


def test_many_writers_of_one_file_do_not_harm_each_other(tmp_path):
    path, failed = tmp_path / "x", []

    def write(number: int) -> None:
        try:
            for _ in range(60):
                write_whole(path, [bytes([number]) * 1000])
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert failed == []
    assert len(set(path.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127, "x"])
def test_names_as_long_as_the_file_system_takes(tmp_path, name):
    write_whole(tmp_path / name, [b"x"])
    assert os.listdir(tmp_path) == [name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_read_and_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("[compute]"))
    writer.start()
    assert read_small(tmp_path / "pipe") == "[compute]"
    writer.join()
    monkeypatch.setattr("plugstream.base.files._SILENT", 0.1)
    with pytest.raises(OSError, match="nobody wrote to it"):
        read_small(tmp_path / "pipe")
