"""Advice that helps: what is told to do is what can be done."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest

import warm
from plugstream import MemoryScan, open_scan
from plugstream.instruments.born import born_geometry
from plugstream.scans import save_scan
from small_run import SMALL, main
from waiting import wait_until

RUN = ["--report", "none", "--sigma", "0.02", "--batch", "4", "--threads", "1", "--checkpoint", "0"]


def test_a_scan_that_is_moved_while_it_is_streamed_is_told_as_moved(scan, tmp_path):
    shutil.copytree(scan, tmp_path / "here.zarr")
    run = tmp_path / "run"
    words = ["reconstruct", str(tmp_path / "here.zarr"), *RUN, "--in-memory", "0", "--iterations", "100000000"]
    words = [sys.executable, "-m", "plugstream", *words, "--out", str(run)]
    process = warm.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        wait_until((run / "checkpoints").exists)
        (tmp_path / "here.zarr").rename(tmp_path / "there.zarr")
        _, said = process.communicate(timeout=150)
    finally:
        process.kill()
    last = said.splitlines()[-1]
    assert process.returncode == 2
    assert "--skip-damaged" not in said
    assert "cannot be read any more: there is no scan at" in last
    assert f"resume {run} --scan PLACE" in last
    done = max(int(path.name[5:13]) for path in (run / "checkpoints").glob("step-*"))
    again = ["resume", str(run), "--scan", str(tmp_path / "there.zarr"), "--iterations", str(done + 3)]
    assert main(again) == 0


def test_a_damaged_view_is_still_told_with_skip_damaged(scan, tmp_path, capsys):
    shutil.copytree(scan, tmp_path / "s.zarr")
    (shard,) = (path for path in (tmp_path / "s.zarr" / "data" / "c").rglob("*") if path.is_file())
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    words = ["reconstruct", str(tmp_path / "s.zarr"), *RUN, "--in-memory", "0", "--iterations", "60"]
    assert main([*words, "--out", str(tmp_path / "r")]) == 2
    assert "--skip-damaged" in capsys.readouterr().err.splitlines()[-1]
    assert main([*words, "--skip-damaged", "--out", str(tmp_path / "q")]) == 0


@pytest.mark.parametrize(("scale", "streamed"), [(1e30, False), (1e18, False), (1e-30, False), (1e18, True)])
def test_data_beyond_the_range_of_float32_is_told_as_that(scan, tmp_path, capsys, scale, streamed):
    whole = open_scan(scan).load()
    data = whole.data * (scale / whole.data.abs().max())
    save_scan(MemoryScan(data, born_geometry(whole)), tmp_path / "s.zarr")
    words = ["reconstruct", str(tmp_path / "s.zarr"), *RUN, "--iterations", "3", "--out", str(tmp_path / "r")]
    words += ["--in-memory", "0"] * streamed
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "range of float32" in last
    assert "--dtype float64" in last
    assert "smaller step" not in last
    assert not (tmp_path / "r").exists()
    assert main([*words, "--dtype", "float64", "--sigma", str(0.02 * scale)]) == 0  # as it says


def test_values_at_masked_receivers_do_not_count(scan, tmp_path):
    whole = open_scan(scan).load()
    mask = np.ones(tuple(whole.data.shape), dtype=bool)
    mask[:, 3] = False
    for name, value in (("huge", 1e30), ("none", 0)):
        data = whole.data.clone()
        data[:, 3] = value
        save_scan(MemoryScan(data, replace(born_geometry(whole), mask=mask)), tmp_path / f"{name}.zarr")
        words = ["reconstruct", str(tmp_path / f"{name}.zarr"), *RUN, "--iterations", "3"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    huge, none = (np.load(tmp_path / name / "result.npy") for name in ("huge", "none"))
    assert np.array_equal(huge, none)


def test_everything_masked_is_told_as_that(scan, tmp_path, capsys):
    whole = open_scan(scan).load()
    mask = np.zeros(tuple(whole.data.shape), dtype=bool)
    save_scan(MemoryScan(whole.data, replace(born_geometry(whole), mask=mask)), tmp_path / "s.zarr")
    assert main(["reconstruct", str(tmp_path / "s.zarr"), *RUN, "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "every receiver of every view is masked" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("command", "limit"), [("simulate", 0), ("simulate", 300), ("simulate", 5000), ("demo", 300)])
def test_a_full_disk_is_told_of_the_scan_that_was_asked_for(tmp_path, command, limit):
    """A limit on the size of files stands for the disk: the first file, the description, the data do not fit."""
    place = tmp_path / "s.zarr"
    words = [command, *SMALL, *([] if command == "simulate" else ["--batch", "4", "--out"]), str(place)]
    words = [sys.executable, "-m", "plugstream", *words, "--receivers", "2000"]
    limits = {resource.RLIMIT_FSIZE: limit}  # Python ignores SIGXFSZ, so that writing is an error
    done = warm.run(words, capture_output=True, text=True, timeout=120, limits=limits)
    said = done.stderr
    assert done.returncode == 2, said
    last = said.splitlines()[-1]
    assert str(place) in last
    assert "File too large" in last
    assert ".partial" not in said
    assert list(tmp_path.iterdir()) == []


def test_info_promises_no_import_of_a_file_of_no_known_layout(tmp_path, capsys):
    """Nor does it speak of one instrument's data where the file's may be another's."""
    for name, data, word in (
        ("frames", np.zeros((18, 2, 64), dtype=np.float32), "if --map says where in it everything is"),
        ("list", np.zeros(18, dtype=np.float32), "cannot make a scan of it"),
    ):
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file[f"measurement/{name}"] = data
        assert main(["info", str(tmp_path / "other.h5")]) == 0
        first, *rest = capsys.readouterr().out.splitlines()
        assert word in first
        assert "born" not in first
        assert "scattered" not in first
        assert f"/measurement/{name}  {data.shape} float32" in rest


def test_info_of_the_real_tooth(shared_data, tmp_path, capsys):
    file = shared_data / "ct" / "tooth.h5"
    if not file.exists():
        pytest.skip(f"there is no {file}")
    assert main(["info", str(file)]) == 0
    assert f"'plugstream import ct {file}' makes a scan of it" in capsys.readouterr().out.splitlines()[0]
    assert main(["import", "ct", str(file), str(tmp_path / "s.zarr"), "--rows", "0"]) == 0
    assert main(["import", "hdf5", str(file), str(tmp_path / "t.zarr"), "--map", "data=/exchange/data"]) == 2
