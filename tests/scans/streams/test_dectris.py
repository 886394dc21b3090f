"""A detector of DECTRIS on this machine: what is taken live is what the importer makes of a file of the same frames."""

import contextlib
import socket
import subprocess
import sys
import time

import cbor2
import numpy as np
import pytest
import zmq

import eiger
import plugstream.instruments.ct_counts  # before anybody waits for it
import plugstream.scans.importers.ct  # noqa: F401
from eiger import Eiger, image, start, typed
from growing_files import COLUMNS, ROWS, frame
from live_import import CT, Live, assert_imported
from plugstream.base.errors import InputError
from plugstream.cli import main
from plugstream.scans.importers import import_file
from plugstream.scans.importers.following import follow_file
from plugstream.scans.store import open_scan
from plugstream.scans.streams import dectris


@pytest.fixture
def detector():
    with Eiger() as one:
        yield one


def assert_same(live, written, **more):
    """The scan equals that of the file of the same frames; arguments: more options of the importer."""
    assert_imported(live, {"pixel": 1e-4, **more}, path=written)


@pytest.mark.parametrize("algorithm", ["bslz4", pytest.param("lz4", marks=pytest.mark.slow), None])
def test_a_scan_equals_that_of_a_file(detector, written, tmp_path, algorithm):
    live = Live(detector.address, tmp_path / "live.zarr", None if algorithm else {**CT, "counts": True})
    detector.fields(algorithm=algorithm)
    detector.send(start())
    detector.views(range(20), algorithm=algorithm)
    detector.send(eiger.end())
    assert live.end().views == 20
    assert_same(live, written)


def test_lost_repeated_late_and_reordered(detector, written, tmp_path):
    """The scan has the other views, and the numbers of those that are left out are said."""
    live = Live(detector.address, tmp_path / "live.zarr", grace=0.2)
    detector.fields()
    detector.send(start())
    detector.views([0, 2, 1, 1, 3, 5, 6])
    live.wait_for(6)
    detector.views([4, 0])
    detector.send(image(7, typed(np.zeros((ROWS, COLUMNS), np.uint32))), image(8, typed(frame(8)[:, :-1].copy())))
    detector.send(image(9, {"threshold_2": typed(frame(9))}), image(2**40, typed(frame(9))))
    detector.views(range(10, 20))
    detector.send(eiger.end())
    result = live.end()
    assert result.views == 16
    assert "4 views are left out: 4,7,8,9" in result.remarks
    assert "not used of the stream: 1 impossible, 1 late, 1 lost, 2 repeated" in result.remarks
    assert_same(live, written, omit="4,7,8,9")


def test_nothing_that_is_sent_ends_it(detector, written, tmp_path):
    """Neither rubbish nor a flood of it, and what is good counts."""
    live = Live(detector.address, tmp_path / "live.zarr", grace=0.2)
    good = cbor2.dumps(image(0, typed(frame(0), "bslz4"), 1))
    detector.views([3], series=9)  # before its start
    detector.fields()
    detector.send(b"", b"\xff" * 100, b"\x9b" + b"\xff" * 8, good[:-7], good[: len(good) // 2], cbor2.dumps([1]))
    detector.send(cbor2.dumps({"type": "start"}), cbor2.dumps(start(image_size_x=2**40)), cbor2.dumps({"type": 3}))
    detector.send(start(user_data={"a": [1, 2], "b": None}, channels=3, pixel_mask={"threshold_1": 3}))
    lies = cbor2.CBORTag(56500, ["bslz4", 2, (2**60).to_bytes(8, "big") + bytes(40)])
    detector.send(image(0, cbor2.CBORTag(40, [[ROWS, COLUMNS], cbor2.CBORTag(69, lies)])))
    detector.send(image(0, cbor2.CBORTag(40, [[1] * 60000 + [47], cbor2.CBORTag(69, bytes(94))])))
    detector.send(b"\x7f" * 1_000_000, b"\x5f" * 200_000 + b"\xff" * 200_000, image(5000, typed(frame(0))))
    detector.send(image("0", typed(frame(0))), image(1.5, typed(frame(0))), image(-3, typed(frame(0))))
    detector._socket.send_multipart([good, good])
    detector.send(*[b"\xa1\x00" * 10] * 3000)
    detector.send(*[start(9, user_data={"image_key": n % 3}) for n in range(20)], start())  # and nothing after them
    detector.views(range(1, 5))
    detector.send(image(5, 3))
    detector.views(range(6, 20))
    detector.send(eiger.end())
    result = live.end()
    assert result.views == 18
    assert "series 9 has begun before this program could listen; waiting for a start" in live.said
    (line,) = [text for text in result.remarks if text.startswith("not used")]
    assert "3008 unreadable" in line
    assert "1 impossible" in line  # of a series of 20
    assert_same(live, written, omit="0,5")


def test_what_no_reader_foresaw_is_counted(detector, written, tmp_path, monkeypatch):
    """A bug in reading a message costs this message alone, and is told once."""
    read = dectris.as_array

    def fail(item, most):
        array = read(item, most)
        if (array == frame(7)).all():
            raise RecursionError("deep")
        return array

    monkeypatch.setattr(dectris, "as_array", fail)
    live = Live(detector.address, tmp_path / "live.zarr", grace=0.2)
    detector.fields()
    detector.send(start())
    detector.views(range(20))
    detector.send(eiger.end())
    assert live.end().views == 19
    assert "a message cannot be read, and is left out: RecursionError: deep" in live.said
    assert_same(live, written, omit="7")


def test_gaps_between_modules_do_not_count(detector, tmp_path):
    """Pixels with the largest number of their type, or in the mask, are bad ones."""
    live = Live(detector.address, tmp_path / "live.zarr", {"center": 11.5, "counts": True})
    mask = np.zeros((ROWS, COLUMNS), np.uint32)
    mask[0, 3] = 1

    def with_gap(n):
        one = frame(n)
        one[:, 7] = 65535
        return typed(one)

    for key in (1, 0):
        detector.send(start(key, user_data={"image_key": key}, pixel_mask={"threshold_1": typed(mask)}))
        detector.send(*(image(n, with_gap(n), key) for n in range(3)), eiger.end(key))
    live.end()
    good = open_scan(live.out).instrument.good
    assert not good[:, 7].any()
    assert not good[0, 3]
    assert good.sum() == ROWS * COLUMNS - ROWS - 1


def test_a_threshold_and_an_axis_by_name(detector, written, tmp_path):
    values = {**CT, "map": ("data=threshold_2", "angles=phi")}
    live = Live(detector.address, tmp_path / "live.zarr", values)
    for key, numbers in ((2, range(3)), (1, range(3, 6))):
        detector.send(start(key, user_data={"image_key": key}))
        level = eiger.DARK if key == 2 else eiger.FLAT
        detector.send(*(image(n % 3, {"threshold_2": typed(eiger.field(level, n))}, key) for n in numbers))
        detector.send(eiger.end(key))
    axes = {"omega": {"start": 0.0, "increment": 1.0}, "phi": {"start": 0.0, "increment": 9.0}}
    detector.send(start(goniometer=axes, channels=["threshold_1", "threshold_2"]))
    for n in range(20):
        detector.send(image(n, {"threshold_1": typed(frame(n) + 1), "threshold_2": typed(frame(n))}))
    detector.send(eiger.end())
    live.end()
    assert_same(live, written, map=())


def test_a_series_for_each_view(detector, written, tmp_path):
    """As of a stage that stops at each angle: as many as are expected, whatever ends in between."""
    live = Live(detector.address, tmp_path / "live.zarr", expect=20)
    detector.fields()
    for n in range(20):
        detector.send(start(n + 10, 1, user_data={"angle": eiger.angle(n)}, goniometer={}))
        detector.send(image(0, typed(frame(n)), n + 10), eiger.end(n + 10))
    live.end()
    assert_same(live, written)


def test_a_series_that_is_ended_early(detector, written, tmp_path):
    """The scan is what is there, whatever a table expects."""
    table = tmp_path / "angles.txt"
    np.savetxt(table, [eiger.angle(n) for n in range(20)])
    live = Live(detector.address, tmp_path / "live.zarr", {**CT, "angles": str(table)})
    detector.fields()
    detector.send(start(goniometer={}))
    detector.views(range(12))
    detector.send(eiger.end())
    result = live.end()
    assert result.views == 12
    assert "series 1 ended after 12 of 20 images" in result.remarks
    assert_same(live, written, angles=None, select="0:12")


class Stopped(Live):
    """An import that ends after so many views, as if it were killed."""

    def __init__(self, most, *words, **more):
        self.most = most
        super().__init__(*words, **more)

    def note(self, views):
        super().note(views)
        if views >= self.most:
            raise KeyboardInterrupt


def test_an_import_goes_on_after_it_was_ended(detector, written, tmp_path):
    """With the fields and the series of the process before, and without a view that comes again."""
    first = Stopped(8, detector.address, tmp_path / "live.zarr")
    detector.fields()
    detector.send(start())
    detector.views(range(8))
    first.thread.join(15)
    assert isinstance(first.error, KeyboardInterrupt)
    live = Live(detector.address, tmp_path / "live.zarr")
    detector.views(range(7, 20))
    detector.send(eiger.end())
    live.end()
    assert live.said == ["going on after 8 views"]
    assert_same(live, written)


def test_a_detector_that_begins_another_series(detector, tmp_path):
    """Without an end of the one before: that one is the scan."""
    live = Live(detector.address, tmp_path / "live.zarr")
    detector.fields()
    detector.send(start(images=100))
    detector.views(range(5))
    detector.send(start(2))
    result = live.end()
    assert result.views == 5
    assert "series 1 did not end before series 2 began" in result.remarks


def test_a_detector_that_dies_and_comes_back(written, tmp_path):
    with Eiger() as first:
        live = Live(first.address, tmp_path / "live.zarr", grace=0.2)
        first.fields()
        first.send(start())
        first.views(range(8))
        live.wait_for(8)
    with Eiger(first.port) as second:
        second.views(range(10, 20))
        second.send(eiger.end())
        assert live.end().views == 18
    assert_same(live, written, omit="8,9")


def test_memory_is_limited_while_flat_fields_are_missing(detector, tmp_path, monkeypatch):
    monkeypatch.setattr("plugstream.scans.streams.frames._MOST_BYTES", 1000)
    live = Live(detector.address, tmp_path / "live.zarr")
    detector.send(start())
    detector._socket.setsockopt(zmq.SNDTIMEO, 300)
    with contextlib.suppress(zmq.Again):  # nobody listens any more
        detector.views(range(20))
    with pytest.raises(InputError, match="of frames wait in memory, as many as it holds; they wait for flat fields"):
        live.end()
    assert not live.out.exists()


def test_the_fields_of_another_file(detector, written, tmp_path):
    live = Live(detector.address, tmp_path / "live.zarr", {**CT, "flats": str(written)})
    detector.send(start())
    detector.views(range(20))
    detector.send(eiger.end())
    live.end()
    assert_same(live, written)


def test_backpressure_loses_no_view(detector, written, tmp_path, monkeypatch):
    """With room for two frames, the detector waits."""
    monkeypatch.setattr("plugstream.scans.streams.frames._MOST_BYTES", 2 * 2 * ROWS * COLUMNS)
    monkeypatch.setattr(dectris, "_AT_ONCE", 0.001)
    live = Live(detector.address, tmp_path / "live.zarr", {**CT, "flats": str(written)})
    detector.send(start())
    detector.views(range(20))
    detector.send(eiger.end())
    assert live.end().views == 20
    assert_same(live, written)


def test_an_angle_that_is_nowhere(detector, tmp_path):
    live = Live(detector.address, tmp_path / "live.zarr")
    detector.send(start(goniometer={"chi": {"start": 1.0, "increment": 0.0}}), image(0, typed(frame(0))))
    with pytest.raises(InputError, match="its first frame has no angle to take the angle from; it has chi"):
        live.end()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import", "ct", "dectris://eiger", "--center", "3"], "is a stream, which has no end yet"),
        (["follow", "ct", "dectris://eiger:31001"], "give --center"),
        (["follow", "ct", "dectris://eiger:99999", "--center", "3"], "cannot read the address"),
        (["follow", "ct", "dectris://a b", "--center", "3"], "cannot read the address"),
        (["follow", "ct", "zmq://eiger", "--center", "3"], "there is no stream zmq://; streams are dectris://HOST"),
        (["follow", "hdf5", "dectris://eiger"], "cannot be made from a stream"),
        (["follow", "ct", "dectris://eiger", "--center", "3", "--map", "angel=x"], "did you mean angles?"),
        (["follow", "ct", "dectris://eiger", "--center", "3", "--map", "angles=x", "--angles", "x"], "one is enough"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path, monkeypatch, capfd, words, said):
    """And leave nothing behind."""
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--sigma", "1"] if words[0] == "follow" else words) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("plugstream: ")
    assert said in error
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_is_nowhere(tmp_path, monkeypatch):
    """ZeroMQ would wait for it without a word."""

    def fail(*words):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(InputError, match="cannot find eigre of dectris://eigre: Name or service not known; is that"):
        follow_file("ct", "dectris://eigre", tmp_path / "scan.zarr", CT)


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(InputError, match=r"streaming needs pyzmq; install it with: pip install 'plugstream\[live\]'"):
        follow_file("ct", "dectris://127.0.0.1", tmp_path / "scan.zarr", CT)


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on(detector, written, tmp_path):
    """SIGKILL at any time loses no committed view, and adds none twice."""
    words = [sys.executable, "-m", "plugstream", "import", "ct", detector.address, str(tmp_path / "live.zarr")]
    words += ["--follow", "--center", "11.5", "--rows", "1"]
    detector._socket.setsockopt(zmq.SNDTIMEO, 60_000)
    for numbers, last in ((range(7), False), (range(7, 13), False), (range(13, 20), True)):
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            if numbers.start == 0:
                detector.fields()
                detector.send(start())
            detector.views(numbers)
            if last:
                detector.send(eiger.end())
                said = process.communicate(timeout=60)[1]
                assert process.returncode == 0, said
                assert "going on after 13 views" in said
                continue
            until = time.monotonic() + 60
            while time.monotonic() < until and process.poll() is None:
                if (tmp_path / "live.zarr").exists() and open_scan(tmp_path / "live.zarr").n_views >= numbers.stop:
                    break
                time.sleep(0.02)
            process.kill()
            process.communicate()
    assert open_scan(tmp_path / "live.zarr").n_views == 20
    import_file("ct", written, tmp_path / "again.zarr", {**CT, "air": 0, "hardening": "none", "pixel": 1e-4})
    same = [open_scan(tmp_path / name).read().numpy().tobytes() for name in ("live.zarr", "again.zarr")]
    assert same[0] == same[1]


@pytest.mark.slow
def test_one_command_forms_the_image_meanwhile(detector, written, tmp_path):
    """And a reconstruction from its scan is, to the bit, that of the same frames in a file."""
    out, run = tmp_path / "scan.zarr", tmp_path / "run"
    words = [sys.executable, "-m", "plugstream", "follow", "ct", detector.address, str(out), "--center", "11.5"]
    words += ["--rows", "1", "--out", str(run), "--sigma", "0.01", "--iterations", "20", "--batch", "4"]
    with subprocess.Popen([*words, "--progress", "plain"], stderr=subprocess.PIPE, text=True) as process:
        detector._socket.setsockopt(zmq.SNDTIMEO, 60_000)  # until it listens
        detector.fields()
        detector.send(start())
        detector.views(range(20), pause=0.1)
        detector.send(eiger.end())
        said = process.communicate(timeout=120)[1]
    assert process.returncode in (0, 3), said
    assert "20 views, and no more to come" in said
    results = []
    import_file("ct", written, tmp_path / "again.zarr", {**open_scan(out).provenance["options"], "pixel": 1e-4})
    for scan in (out, tmp_path / "again.zarr"):
        place = tmp_path / f"{scan.stem}-run"
        assert main(["reconstruct", str(scan), "--out", str(place), "--sigma", "0.01", "--iterations", "20"]) in (0, 3)
        results.append((place / "result.npy").read_bytes())
    assert results[0] == results[1]
