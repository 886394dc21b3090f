"""Files and folders that grow: what is taken live is what the importer makes of the finished file, to the bit."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import chain, repeat
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

import growing_files
import plugstream.instruments.ct_counts  # before anybody waits for it
import plugstream.scans.importers.ct  # noqa: F401
import warm
from growing_files import COLUMNS, angle, clear_flags
from live_import import CT, LIMIT, Live, assert_imported
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.instruments.ct import CT as CTInstrument
from plugstream.models.ct_geometry import Voxels
from plugstream.scans.importers import following, import_file, picture_stack, reading
from plugstream.scans.importers.following import Following, follow_file
from plugstream.scans.importers.hdf5_storage import open_shared
from plugstream.scans.journal import Quota
from plugstream.scans.store import open_scan
from plugstream.scans.stream import RefusedError
from waiting import wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "_LOOK", 0.05)
    monkeypatch.setattr(following, "_LONGEST_LOOK", 0.05)
    monkeypatch.setattr(following, "_DONE", 0.2)
    monkeypatch.setattr(picture_stack, "_SETTLED", 0.1)


class Detector:
    """The writer in its own process."""

    def __init__(self):
        words = [sys.executable, growing_files.__file__]
        self.process = warm.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *commands):
        for command in commands:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline(), f"the writer failed at {command}"

    def until(self, live, views, first=0):
        """Write frames until so many views were taken; the number of the next one."""
        n = first
        while live.views < views and n < 18:
            self(n)
            n += 1
            live.thread.join(0.05)
        live.wait_for(views)
        return n

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def detector():
    one = Detector()
    try:
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="module")
def write():
    """A writer that several tests share, one file after another."""
    with detector() as one:
        yield one


LAYOUTS = ["exchange", "exchange-planned", "exchange-chunks", "nexus", "nexus-planned"]


@pytest.mark.parametrize(
    "layout", ["nexus-chunks", *(pytest.param(layout, marks=pytest.mark.slow) for layout in LAYOUTS)]
)
def test_views_are_taken_as_they_appear(write, tmp_path, layout):
    """Whether shapes grow with their frames or are planned, and chunks have one frame or four."""
    write(f"open {tmp_path / 'scan.h5'} {layout}", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    n = write.until(live, 4)
    assert not open_scan(live.out).complete
    write(f"burst {n} 20", "flats", "close")
    live.end()
    assert open_scan(live.out).n_views == 20
    if layout != "exchange-planned":  # for 24 frames, which the importer wants all of
        assert_imported(live)


def test_a_writer_that_is_killed_and_comes_back(tmp_path):
    """Its views stay, and those that come later are added."""
    path = tmp_path / "scan.h5"
    with detector() as write:
        write(f"open {path} exchange", "darks", "flats")
        live = Live(path, tmp_path / "live.zarr", expect=20)
        n = write.until(live, 4)
        live.wait_for(n)
        write.kill()
    size = path.stat().st_size
    time.sleep(0.3)
    assert live.thread.is_alive()
    clear_flags(path)
    with detector() as write:
        write(f"open {path} exchange again", f"burst {n} 20", "close")
    live.end()
    assert path.stat().st_size > size
    assert open_scan(live.out).n_views == 20
    assert_imported(live)


@pytest.mark.slow
def test_a_writer_that_never_comes_back(write, tmp_path):
    """The scan ends after the patience with what there is, and says so."""
    write(f"open {tmp_path / 'scan.h5'} nexus", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", patience=1.0)
    n = write.until(live, 4)
    result = live.end()
    assert any("did not close" in remark for remark in result.remarks)
    assert open_scan(live.out).n_views == n
    write("close")


def test_a_file_that_is_cut_while_it_is_read_is_an_error_within_seconds(tmp_path):
    """HDF5 left alone sleeps for minutes there, and no limit of time stops it."""
    with h5py.File(tmp_path / "scan.h5", "w", libver="latest") as file:
        views = file.create_dataset("views", data=np.ones((2000, 8)), chunks=(1, 8), maxshape=(None, 8))
        file.swmr_mode = True
    with open_shared(tmp_path / "scan.h5") as file:
        views = file["views"]
        os.truncate(tmp_path / "scan.h5", 4096)
        begun = time.monotonic()
        with pytest.raises(OSError, match="read attempts"):
            views[1500]
        assert time.monotonic() - begun < 10


def test_the_rotation_axis_is_found_in_the_first_half_turn_and_again_at_the_end(write, tmp_path):
    write(f"open {tmp_path / 'scan.h5'} exchange", "darks", "flats", "burst 0 18")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", {"rows": "1"})
    live.look()
    assert not live.out.exists()
    write("burst 18 22")
    live.wait_for(22)
    center = open_scan(live.out).provenance["options"]["center"]
    assert abs(center - (COLUMNS - 1) / 2) < 0.1
    write("burst 22 40", "close")
    remarks = live.end().remarks
    assert_imported(live)
    last = float(next(remark for remark in remarks if "the last half turn" in remark).split()[-1])
    assert abs(last - center - 0.5) < 0.1


def test_a_file_that_is_begun_anew_is_refused(write, tmp_path):
    """What was taken stays, and nothing of another scan is added to it."""
    write(f"open {tmp_path / 'scan.h5'} nexus", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    n = write.until(live, 4)
    live.wait_for(n)
    write("close", f"open {tmp_path / 'scan.h5'} nexus", "darks", "flats", "7", "8")
    with pytest.raises(InputError, match="begun anew"):
        live.end()
    write("close")
    assert open_scan(live.out).n_views == n


@pytest.mark.slow
def test_a_file_in_place_of_another_must_hold_the_same(write, tmp_path):
    write(f"open {tmp_path / 'scan.h5'} nexus", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    n = write.until(live, 4)
    live.wait_for(n)
    write("close", f"open {tmp_path / 'other.h5'} nexus", "darks", "flats", "burst 3 20", "close")
    (tmp_path / "other.h5").replace(tmp_path / "scan.h5")
    with pytest.raises(DamagedError, match=r"view 0 of .* import it anew"):
        live.end()


def test_following_goes_on_where_it_was_stopped(write, tmp_path, monkeypatch):
    """Views that are there are compared, not taken again."""
    write(f"open {tmp_path / 'scan.h5'} exchange", "darks", "flats")
    with monkeypatch.context() as patch:
        live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
        n = write.until(live, 4)
        patch.setattr(following._Follower, "_take", None)  # it dies here
        live.thread.join(LIMIT)
    assert isinstance(live.error, TypeError)
    before = open_scan(live.out).n_views
    assert 4 <= before < 20
    write("flats", f"burst {n} 20", "close")  # flats that did not count before do not now
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    live.end()
    assert live.said[0] == f"going on after {before} views"
    assert_imported(live)
    with pytest.raises(InputError, match="finished"):
        Live(tmp_path / "scan.h5", tmp_path / "live.zarr").end()


def test_a_scan_of_another_file_is_not_continued(write, tmp_path):
    write(f"open {tmp_path / 'scan.h5'} exchange", "darks", "flats", "burst 0 20", "close")
    import_file("ct", tmp_path / "scan.h5", tmp_path / "live.zarr", CT)
    with pytest.raises(InputError, match="was not made by following"):
        Live(tmp_path / "scan.h5", tmp_path / "live.zarr").end()


@pytest.mark.parametrize("layout", ["exchange-planned", pytest.param("exchange-early", marks=pytest.mark.slow)])
def test_frames_out_of_order_are_taken_in_order(write, tmp_path, layout):
    """A late frame holds up those after it; one that never comes is left out. Zeros are never taken for a frame."""
    write(f"open {tmp_path / 'scan.h5'} {layout}", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", grace=0.6)
    n = write.until(live, 3)
    live.wait_for(n)
    write(n + 2, n + 1)
    time.sleep(0.1)
    assert open_scan(live.out).n_views == n
    write(n)
    live.wait_for(n + 3)
    write(f"burst {n + 4} 20")
    live.wait_for(19)
    write("close")
    result = live.end()
    scan = open_scan(live.out)
    left_out = [n + 3, *(range(20, 24) if layout == "exchange-early" else ())]  # of 24 that were allocated
    assert f"{len(left_out)} views are left out: {','.join(map(str, left_out))}" in result.remarks
    turned = np.rad2deg(np.arctan2(*scan.columns["rays"][:, 2, 1::-1].T)) % 180
    assert np.allclose(turned, np.delete([angle(k) for k in range(20)], n + 3))
    assert float(scan.read().max()) < 5  # a frame of zeros would show 9.2 everywhere


def test_angles_out_of_order_are_waited_for(write, tmp_path):
    """An angle of 0 between others may be one that was not written yet."""
    write(f"open {tmp_path / 'scan.h5'} exchange", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", grace=LIMIT)
    n = write.until(live, 3)
    live.wait_for(n)
    write(f"frame {n}", f"frame {n + 1}", f"angle {n + 1}")
    live.look(2)
    assert open_scan(live.out).n_views == n
    write(f"angle {n}", f"burst {n + 2} 20", "close")
    live.end()
    assert_imported(live)


def test_nan_is_left_out_and_a_shape_is_not_believed(write, tmp_path):
    write(f"open {tmp_path / 'scan.h5'} exchange-float", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    n = write.until(live, 3)
    write(f"nan {n}", f"burst {n + 1} 19", "plan 30")
    live.wait_for(18)
    time.sleep(0.1)
    assert open_scan(live.out).n_views == 18
    write("19", "plan 20", "close")
    result = live.end()
    assert any("NaN" in line for line in live.said)
    assert f"1 views are left out: {n}" in result.remarks
    assert_imported(live, {"omit": str(n)})


def test_a_full_disk_does_not_end_the_scan(tmp_path, monkeypatch):
    """Not even where all views are there: the same command goes on with those that had no room."""
    writer = growing_files.Writer(tmp_path / "scan.h5", "nexus", shared=False)
    writer.fields("darks")
    writer.fields("flats")
    for n in range(20):
        writer.view(n)
    writer.file.close()
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 4 * 16 * COLUMNS)
    with monkeypatch.context() as full:
        room = chain([None], repeat(RefusedError("waiting", "")))
        full.setattr(Quota, "check_disk", Mock(side_effect=room))
        with pytest.raises(StorageError, match=r"live.zarr has no room for more views; the same command goes on"):
            Live(tmp_path / "scan.h5", tmp_path / "live.zarr").end()
    assert open_scan(tmp_path / "live.zarr").n_views == 4
    assert not open_scan(tmp_path / "live.zarr").complete
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    live.end()
    assert open_scan(live.out).n_views == 20
    assert_imported(live)


@pytest.mark.parametrize(
    ("change", "said", "views", "omit"),
    [
        ("nan", "1 views are left out: 7", 19, {"omit": "7"}),
        ("short", "27 rows of data, 26 rows of image_key, 26 rows of angles: only the first 26 are used", 20, None),
        ("radians", "they were taken for degrees, but look like radians; import it anew", 20, None),
    ],
)
def test_doubts_about_angles_are_told(tmp_path, change, said, views, omit):
    """A motor that was away, a frame whose angle never came, and angles without a unit, which only the end can tell."""
    writer = growing_files.Writer(tmp_path / "scan.h5", "nexus", shared=False)
    writer.fields("darks")
    writer.fields("flats")
    for n in range(20):
        writer.view(n)
    if change == "nan":
        writer.angles[6 + 7] = np.nan
    elif change == "short":
        writer.put(writer.data, 26, growing_files.frame(0))
    else:
        writer.angles[:] = np.deg2rad(writer.angles[:])
        del writer.angles.attrs["units"]
    writer.file.close()
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    assert any(said in remark for remark in live.end().remarks)
    assert open_scan(live.out).n_views == views
    if omit is not None:
        assert_imported(live, omit)


@pytest.mark.slow
def test_a_frame_that_is_written_again_is_noticed(write, tmp_path):
    """At the end, since the scan must be what the file holds."""
    write(f"open {tmp_path / 'scan.h5'} nexus", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    n = write.until(live, 3)
    live.wait_for(n)
    write("again 1", "close")
    with pytest.raises(DamagedError, match=r"view 1 of .* written again"):
        live.end()


@pytest.mark.slow
def test_flat_fields_at_the_end_are_waited_for(write, tmp_path):
    """Or taken from another file, which needs no waiting."""
    write(f"open {tmp_path / 'scan.h5'} nexus", "burst 0 4")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    wait_until(lambda: live.said)
    assert "it has no flat fields" in live.said[0]
    assert live.views == 0
    write("burst 4 20", "flats", "darks", "close")
    live.end()
    assert_imported(live)
    values = {**CT, "flats": str(tmp_path / "scan.h5")}
    write(f"open {tmp_path / 'next.h5'} exchange", "burst 0 3")
    live = Live(tmp_path / "next.h5", tmp_path / "next.zarr", values)
    live.wait_for(3)
    write("burst 3 20", "flats", "close")
    live.end()
    other = tmp_path / "other"
    other.mkdir()
    import_file("ct", tmp_path / "next.h5", other / "next.zarr", {**values, "air": 0, "hardening": "none"})
    assert open_scan(live.out).read().numpy().tobytes() == open_scan(other / "next.zarr").read().numpy().tobytes()


@pytest.mark.slow
def test_a_writer_that_does_not_share_its_file(tmp_path):
    """Is waited for: HDF5 lets nobody read it. Then everything is imported at once."""
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[2]); import growing_files\n"
        "w = growing_files.Writer(pathlib.Path(sys.argv[1]), 'exchange', shared=False); print(1, flush=True)\n"
        "w.fields('darks'); w.fields('flats'); [w.view(n) for n in range(20)]; sys.stdin.readline(); w.file.close()"
    )
    folder = growing_files.__file__.rpartition("/")[0]
    words = [sys.executable, "-c", code, str(tmp_path / "scan.h5"), folder]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline()
        live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
        wait_until(lambda: live.said)
        assert "does not share it (SWMR mode)" in live.said[0]
        writer.communicate("\n")
    live.end()
    assert_imported(live)


@pytest.mark.slow
def test_a_file_that_is_cut_off(write, tmp_path):
    """As by a full disk: nothing half-read is taken, and what was taken stays."""
    path = tmp_path / "scan.h5"
    write(f"open {path} exchange", "darks", "flats")
    live = Live(path, tmp_path / "live.zarr", patience=1.5)
    n = write.until(live, 4)
    live.wait_for(n)
    with path.open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(InputError, match="is cut off"):
        live.end()
    scan = open_scan(live.out)
    assert scan.n_views == n
    scan.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bitshuffle", "zstd"])
def test_filters_of_hdf5plugin(write, tmp_path, monkeypatch, name):
    """Are used where they are installed, and named in one line where not."""
    pytest.importorskip("hdf5plugin")
    write(f"open {tmp_path / 'scan.h5'} exchange-{name}", "darks", "flats")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr")
    n = write.until(live, 3)
    write(f"burst {n} 20", "close")
    live.end()
    assert_imported(live)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with pytest.raises(
        InputError, match=rf"compressed by {name}; install it with: pip install 'plugstream\[filters\]'"
    ):
        import_file("ct", tmp_path / "scan.h5", tmp_path / "third.zarr", CT)


@pytest.mark.slow
def test_any_layout_by_a_mapping(tmp_path, write):
    """Of counts with fields elsewhere, for ct; of arrays with a column a view, for any instrument."""
    write(f"open {tmp_path / 'scan.h5'} exchange", "darks", "flats")
    places = {"data": "data", "flats": "data_white", "darks": "data_dark", "angles": "theta"}
    mapping = [f"{name}=/exchange/{place}" for name, place in places.items()]
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", {**CT, "map": mapping})
    n = write.until(live, 3)
    write(f"burst {n} 20", "close")
    live.end()
    assert_imported(live)
    assert_imported(Renamed(live), {"map": ()})


class Renamed:
    def __init__(self, live):
        self.path, self.out = live.path, live.out
        (live.out.parent / "again.zarr").rename(live.out.parent / "before.zarr")


def test_arrays_of_any_instrument(write, tmp_path):
    """By its declaration; a column that lags behind the data holds it up."""
    instrument = CTInstrument(Voxels((COLUMNS, COLUMNS), 0.001), COLUMNS)
    (tmp_path / "scan.json").write_text(json.dumps(instrument.values()))
    write(f"open {tmp_path / 'scan.h5'} arrays", "data 0", "data 1", "rays 0")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", {"instrument": "ct"}, kind="hdf5")
    live.wait_for(1)
    write("data 2", "rays 1")
    live.wait_for(2)
    assert open_scan(live.out).n_views == 2
    write("rays 2", "close")
    live.end()
    assert_imported(live, {"instrument": "ct"}, "hdf5")


def test_a_column_that_stays_too_short_is_told(write, tmp_path):
    instrument = CTInstrument(Voxels((COLUMNS, COLUMNS), 0.001), COLUMNS)
    (tmp_path / "scan.json").write_text(json.dumps(instrument.values()))
    write(f"open {tmp_path / 'scan.h5'} arrays", "data 0", "data 1", "data 2", "rays 0", "rays 1", "close")
    live = Live(tmp_path / "scan.h5", tmp_path / "live.zarr", {"instrument": "ct"}, kind="hdf5")
    assert "it has 3 rows of data, 2 rows of rays: only the first 2 are used" in live.end().remarks


def test_what_needs_all_projections_is_refused_at_once(tmp_path):
    """Before the file exists."""
    for values, words in (
        ({**CT, "stripes": 9}, "--stripes needs all"),
        ({**CT, "count": 9}, "--count"),
        ({**CT, "omit": "-1"}, "from the end"),
        ({**CT, "arc": 180.0}, "--expect"),
    ):
        with pytest.raises(InputError, match=words):
            follow_file("ct", tmp_path / "none.h5", tmp_path / "live.zarr", values)
    with pytest.raises(InputError, match="give --center"):
        follow_file("ct", "dectris://127.0.0.1", tmp_path / "live.zarr", {"rows": "1"})
    with pytest.raises(InputError, match="cannot be followed"):
        follow_file("npz", tmp_path / "none.npz", tmp_path / "live.zarr")
    with pytest.raises(InputError, match="patience"):
        Following(patience=0)
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(InputError, match="instead of a plain file"):
        follow_file("ct", tmp_path / "pipe.h5", tmp_path / "live.zarr", CT, following=Following(patience=0.1))
    (tmp_path / "pipe.h5").unlink()
    with pytest.raises(InputError, match="there is no file"):
        follow_file("ct", tmp_path / "none.h5", tmp_path / "live.zarr", CT, following=Following(patience=0.1))
    assert list(tmp_path.iterdir()) == []
