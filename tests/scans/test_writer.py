"""Scans that are written while they are read: real processes, slow, fast and dying."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import Crc32cCodec

import warm
from effort import effort, thorough
from live_writer import RECEIVERS, position, setup, view
from plugstream import BornGeometry, InputError, MemoryScan, ScanWriter, open_scan, ring
from plugstream.instruments.born import born_geometry
from plugstream.scans import save_scan

WRITER = Path(__file__).parents[1] / "helpers" / "live_writer.py"


def start(*words: object) -> subprocess.Popen[str]:
    process = warm.Popen(
        [sys.executable, str(WRITER), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("open")
    return process


def whole(path: Path, views: int) -> None:
    scan = open_scan(path)
    assert scan.n_views == views
    if views == 0:
        return
    assert np.array_equal(scan.read().numpy(), np.concatenate([view(i) for i in range(views)]))
    assert np.allclose(born_geometry(scan).transmitters, np.concatenate([position(i) for i in range(views)]))
    scan.check()


@thorough
def test_thousands_of_reads_of_a_running_scan_are_all_right(tmp_path):
    path = tmp_path / "scan.zarr"
    writer = start(path, 100_000, 0.0, 5, 1)
    try:
        rng = random.Random(0)
        scan, reads, counts = open_scan(path), 0, set()
        expected: dict[int, np.ndarray] = {}
        while reads < effort(1_000, 10_000) or len(counts) <= 20:
            if reads % 20 == 0:
                scan = open_scan(path) if reads % 40 == 0 else scan
                scan.refresh()
                if scan.n_views == 0:
                    continue
                counts.add(scan.n_views)
                assert np.allclose(born_geometry(scan).transmitters[-1], position(scan.n_views - 1))
            # The last few views, whose shard is being written again and again, and any others.
            wanted = [scan.n_views - 1 - rng.randrange(min(6, scan.n_views)), rng.randrange(scan.n_views)]
            got = scan.read(torch.tensor(wanted)).numpy()
            for row, number in zip(got, wanted, strict=True):
                if number not in expected:
                    expected[number] = view(number)[0]
                assert np.array_equal(row, expected[number]), number
            reads += 1
        assert writer.poll() is None, "the writer was to be running all the time"
    finally:
        writer.kill()
        writer.wait()


@thorough
def test_a_writer_killed_at_any_instant_leaves_a_scan_that_goes_on(tmp_path):
    """Killed again and again in the middle of appending; each time it goes on after the last committed view."""
    path, total, rng = tmp_path / "scan.zarr", 100_000, random.Random(1)
    before = 0
    for _ in range(effort(3, 10)):
        writer = start(path, total, 0.002, 3, 2)
        while open_scan(path).n_views < before + 4:  # it has begun, however busy the machine is
            assert writer.poll() is None
            time.sleep(0.01)
        time.sleep(0.15 * rng.random())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        scan = open_scan(path)
        assert scan.n_views >= before
        assert not scan.complete
        whole(path, scan.n_views)
        before = scan.n_views
    assert before > 10
    done = warm.run([sys.executable, str(WRITER), str(path), str(before + 7), "0", "3"], check=True, timeout=60)
    assert done.returncode == 0
    whole(path, before + 7)
    assert open_scan(path).complete


def test_only_one_process_writes_a_scan(tmp_path):
    path = tmp_path / "scan.zarr"
    writer = start(path, 1000, 0.05)
    try:
        with pytest.raises(InputError, match="another process is writing to the scan"):
            ScanWriter(path)
    finally:
        writer.kill()
        writer.wait()
    with ScanWriter(path) as again:
        assert again.committed == open_scan(path).n_views


@pytest.mark.parametrize("shard", [1, 4, 100])
def test_what_is_appended_is_there_after_the_commit_and_not_before(tmp_path, shard):
    path = tmp_path / "scan.zarr"
    with ScanWriter(path, setup(), provenance={"by": "hand"}, views_per_shard=shard) as writer:
        scan = open_scan(path)
        assert (scan.n_views, scan.complete) == (0, False)
        with pytest.raises(InputError, match="no views yet"):
            _ = born_geometry(scan)
        number = 0
        for count in (1, 3, 2, 9, 1):
            rows = [view(number + i) for i in range(count)]
            places = [position(number + i) for i in range(count)]
            writer.append(np.concatenate(rows), np.concatenate(places))
            assert writer.appended == number + count
            assert writer.committed == (number if writer.appended - number < shard else writer.appended)
            assert open_scan(path).n_views == writer.committed
            writer.commit()
            number += count
            assert scan.refresh()
            assert not scan.refresh()
            whole(path, number)
            assert zarr.open_group(path, mode="r")["data"].shape == (number, RECEIVERS)
        writer.finish()
        assert scan.refresh()
        assert scan.complete
        with pytest.raises(InputError, match="is finished"):
            writer.append(view(0), position(0))
    assert np.array_equal(zarr.open_group(path, mode="r")["data"][...], scan.read().numpy())
    assert dict(open_scan(path).provenance) == {"by": "hand"}
    with pytest.raises(InputError, match="is finished; no view can be added"):
        ScanWriter(path)


def test_a_mask_may_come_later(tmp_path):
    path = tmp_path / "scan.zarr"
    mask = np.arange(RECEIVERS)[None] % 3 != 0
    data = np.where(mask, view(5), np.nan)
    with ScanWriter(path, setup(), views_per_shard=2) as writer:
        for number in range(5):
            writer.append(view(number), position(number))
        writer.commit()
        scan = open_scan(path)
        assert born_geometry(scan).mask is None
        with pytest.raises(InputError, match="view 5 of the scan holds NaN"):
            writer.append(data, position(5))
        writer.append(data, position(5), mask=mask)
        writer.append(view(6), position(6))
        writer.finish()
    scan.refresh()
    want = np.ones((7, RECEIVERS), dtype=bool)
    want[5] = mask
    assert np.array_equal(born_geometry(scan).mask, want)
    scan.check()


def test_plane_waves_and_fields_can_be_appended(tmp_path):
    with ScanWriter(tmp_path / "p.zarr", setup()) as writer:
        writer.append(view(0), plane_waves=[[0.0, 2.0]])
        with pytest.raises(InputError, match="has plane_waves, so transmitters cannot be added"):
            writer.append(view(1), position(1))
    assert np.array_equal(born_geometry(open_scan(tmp_path / "p.zarr")).plane_waves, [[0.0, 1.0]])
    fields = np.full((2, 12, 10), 1 + 2j, dtype=np.complex64)
    with ScanWriter(tmp_path / "f.zarr", setup()) as writer:
        writer.append(np.concatenate([view(0), view(1)]), fields=fields)
    assert np.array_equal(born_geometry(open_scan(tmp_path / "f.zarr")).fields, fields)


def test_what_cannot_be_appended_is_refused_with_nothing_added(tmp_path):
    path = tmp_path / "scan.zarr"
    with pytest.raises(InputError, match="to begin one give its instrument"):
        ScanWriter(path)
    for odd in (object(), float("inf")):
        with pytest.raises(InputError, match="cannot be written as JSON"):
            ScanWriter(path, setup(), provenance={"x": odd})
    assert not list(tmp_path.iterdir())
    with ScanWriter(path, setup()) as writer:
        for data, places, what in (
            (view(0)[:, 1:], position(0), "must be"),
            (view(0), position(0)[:, :1], "x and y of a line source"),
            (np.full((1, RECEIVERS), np.inf), position(0), "view 0 of the scan holds NaN or infinity"),
            (np.full((1, RECEIVERS), 1e300), position(0), "view 0 of the scan holds NaN or infinity"),
            (view(0), None, "either transmitters or plane_waves or fields"),
        ):
            with pytest.raises(InputError, match=what):
                writer.append(data, places)
        assert writer.appended == 0
        with pytest.raises(InputError, match="no views, so it cannot be finished"):
            writer.finish()
    other = setup()
    other = type(other)(receivers=ring(RECEIVERS, 0.6), wavelength=0.05, grid=other.grid)
    with pytest.raises(InputError, match="was begun with other receivers"):
        ScanWriter(path, other)
    geometry = BornGeometry(receivers=setup().receivers, wavelength=0.05, grid=setup().grid, transmitters=ring(3, 0.5))
    with ScanWriter(path, geometry) as writer:  # its views are not looked at
        writer.append(view(0), position(0))


def test_an_error_in_the_block_commits_nothing_more(tmp_path):
    def break_off() -> None:
        with ScanWriter(tmp_path / "s.zarr", setup()) as writer:
            writer.append(view(0), position(0))
            writer.commit()
            writer.append(view(1), position(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    whole(tmp_path / "s.zarr", 1)


def test_a_full_disk_is_one_line_and_the_scan_goes_on_later(tmp_path):
    """A limit on the size of files stands in for the disk."""
    code = (
        "import sys, signal, resource; sys.path.insert(0, sys.argv[2])\n"
        "from live_writer import *\n"
        "from plugstream.base.errors import InputError\n"
        "writer = ScanWriter(sys.argv[1], setup(), views_per_shard=100)\n"
        "writer.append(view(0), position(0)); writer.commit()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n"
        "    for n in range(1, 50): writer.append(view(n), position(n)); writer.commit()\n"
        "except InputError as error: print(error)\n"
        "try: writer.append(view(0), position(0))\n"
        "except InputError as error: print(error)\n"
    )
    path = tmp_path / "s.zarr"
    done = warm.run(
        [sys.executable, "-c", code, str(path), str(WRITER.parent)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said = done.stdout.strip().splitlines()
    assert len(said) == 2, done
    assert "cannot write the scan" in said[0]
    assert "open it again to go on" in said[0]
    assert "is closed" in said[1]
    count = open_scan(path).n_views
    assert 1 <= count < 50
    with ScanWriter(path) as writer:
        writer.append(view(count), position(count))
    whole(path, count + 1)


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_is_full_when_the_first_mask_comes(tmp_path, monkeypatch):
    """The masks of the views before it are written then, in whole shards."""
    mask = np.arange(RECEIVERS)[None] % 3 != 0
    writer = ScanWriter(tmp_path / "s.zarr", setup(), views_per_shard=2)
    for number in range(4):
        writer.append(view(number), position(number))
    with monkeypatch.context() as patched:
        patched.setattr("plugstream.scans.chunks.write_whole", full_disk)
        with pytest.raises(InputError, match=r"No space left on device; fix that, and open it again .* its 4 views"):
            writer.append(view(4), position(4), mask=mask)
    with pytest.raises(InputError, match="is closed"):
        writer.append(view(4), position(4), mask=mask)
    with ScanWriter(tmp_path / "s.zarr") as again:
        again.append(view(4), position(4), mask=mask)
    whole(tmp_path / "s.zarr", 5)
    assert born_geometry(open_scan(tmp_path / "s.zarr")).mask.sum() == 4 * RECEIVERS + mask.sum()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("point", ["write_whole", "sync_folder"])
def test_a_writer_that_is_interrupted_knows_what_is_on_the_disk(tmp_path, monkeypatch, point, ends):
    """Ctrl-C comes before commit.json is in its place, or after: what is told is what readers see."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    writer = ScanWriter(tmp_path / "s.zarr", setup())
    writer.append(view(0), position(0))
    writer.commit()
    writer.append(view(1), position(1))
    monkeypatch.setattr(f"plugstream.scans.writer.{point}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.finish() if ends else writer.commit()
    scan = open_scan(tmp_path / "s.zarr")
    assert writer.committed == scan.n_views == (2 if point == "sync_folder" else 1)
    assert writer.finished == scan.complete == (ends and point == "sync_folder")


def test_what_a_killed_process_left_is_not_taken_for_ours(tmp_path, monkeypatch):
    """The number of a process comes again, in a container at every start."""
    geometry = setup().geometry(transmitters=np.concatenate([position(i) for i in range(3)]))
    scan = MemoryScan(torch.from_numpy(np.concatenate([view(i) for i in range(3)])), geometry)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # it was killed, so that nothing was tidied up
        patched.setattr("plugstream.scans.writer.ScanWriter.finish", full_disk)
        with pytest.raises(InputError):
            save_scan(scan, tmp_path / "s.zarr")
    assert len(list(tmp_path.iterdir())) == 1
    save_scan(scan, tmp_path / "s.zarr")
    whole(tmp_path / "s.zarr", 3)


def test_a_scan_that_does_not_fit_is_not_left_half_written(tmp_path, monkeypatch):
    geometry = setup().geometry(transmitters=position(0))
    scan = MemoryScan(torch.from_numpy(view(0)), geometry)
    monkeypatch.setattr("plugstream.scans.chunks.ColumnWriter.flush", full_disk)
    with pytest.raises(InputError, match=r"^cannot write the scan .*/s.zarr: No space left on device$"):
        save_scan(scan, tmp_path / "s.zarr")
    assert list(tmp_path.iterdir()) == []


def test_a_scan_that_others_laid_out_is_not_added_to(tmp_path):
    path = tmp_path / "scan.zarr"
    with ScanWriter(path, setup()) as writer:
        for n in range(3):
            writer.append(view(n), position(n))
    shutil.rmtree(path / "transmitters")
    theirs = np.concatenate([position(n) for n in range(3)])
    array = zarr.create_array(
        path / "transmitters", shape=(3, 2), dtype="f8", chunks=(1, 2), shards=(8, 2), compressors=Crc32cCodec()
    )
    array[...] = theirs
    whole(path, 3)  # it can be read
    before = sorted((file, file.read_bytes()) for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    with pytest.raises(InputError, match=r"transmitters of the scan .* lies in other chunks"):
        ScanWriter(path)
    after = sorted((file, file.read_bytes()) for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    assert before == after


def test_a_truth_that_is_none_is_refused_before_anything_is_written(tmp_path):
    truth = np.full(setup().grid.shape, np.nan, dtype=np.float32)
    with pytest.raises(InputError, match="real, finite"):
        ScanWriter(tmp_path / "scan.zarr", setup(), truth=truth)
    assert list(tmp_path.iterdir()) == []
