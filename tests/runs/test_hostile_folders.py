"""The folder of a run may come from anybody too; links and pipes in it are neither followed nor waited for."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import warm
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.images.pictures import load_picture
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.folder import open_run
from plugstream.runs.run import explain_failure
from small_run import main

RUN = ["--report", "none", "--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "3"]


@pytest.fixture(scope="module")
def run(scan, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN]) == 0
    return folder


@pytest.mark.parametrize("name", ["run.json", "settings.toml", "events.jsonl"])
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_what_is_no_plain_file_is_refused_at_once(run, tmp_path, name, kind):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).rename(folder / "elsewhere")
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero" if kind == "device" else folder / "elsewhere")
    with pytest.raises(InputError, match="instead of a plain file"):
        open_run(folder)


def test_a_pipe_is_not_waited_for_by_the_commands(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "settings.toml").unlink()
    os.mkfifo(folder / "settings.toml")
    for command in ("resume", "info"):
        words = [sys.executable, "-m", "plugstream", command, str(folder)]
        done = warm.run(words, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 2, done.stderr
        assert "instead of a plain file" in done.stderr


def test_checkpoints_elsewhere_are_not_touched(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "checkpoints").rename(tmp_path / "theirs")
    (folder / "checkpoints").symlink_to(tmp_path / "theirs")
    (tmp_path / "theirs" / "step-00000001.safetensors").write_bytes(b"precious")
    assert main(["resume", str(folder), "--iterations", "9"]) == 2
    assert "a link instead of a folder" in capsys.readouterr().err
    assert (tmp_path / "theirs" / "step-00000001.safetensors").read_bytes() == b"precious"


def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    os.mkfifo(folder / "checkpoints" / "step-00009999.safetensors")
    saved = Checkpoints(folder / "checkpoints", {}).files()
    assert saved[0].name == "step-00009999.safetensors"
    with pytest.raises(DamagedError, match="instead of a plain file"):
        Checkpoints(folder / "checkpoints", {})._read(saved[0])


def test_a_checkpoint_folder_that_becomes_a_link_is_not_written_to(run, tmp_path, monkeypatch):
    """During a run: what somebody keeps elsewhere would be removed as an old checkpoint."""
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "checkpoints").rename(tmp_path / "theirs")
    (folder / "checkpoints").symlink_to(tmp_path / "theirs")
    before = sorted((tmp_path / "theirs").iterdir())
    snapshot = SimpleNamespace(state=SimpleNamespace(k=7))
    monkeypatch.setattr("plugstream.runs.checkpoints._split", lambda _: ({}, {"x": torch.ones(2)}))
    with pytest.raises(StorageError, match="its folder is a link"):
        Checkpoints(folder / "checkpoints", {}).save(snapshot)
    assert sorted((tmp_path / "theirs").iterdir()) == before


def test_a_full_disk_is_named_and_not_the_scan(run):
    """A write to an open file does not say to which."""
    found = explain_failure(OSError(errno.ENOSPC, "No space left on device"), run, open_run(run).source)
    assert str(found).startswith(f"the disk of {run}: No space left on device")


def test_settings_of_a_terabyte_are_refused(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    with (folder / "settings.toml").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="MB"):
        open_run(folder)


def test_a_picture_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "guide.npy")
    with pytest.raises(InputError, match="a pipe"):
        load_picture(tmp_path / "guide.npy")
