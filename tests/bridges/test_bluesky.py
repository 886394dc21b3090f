"""A RunEngine that feeds a reconstruction, and results in a Tiled catalogue; `make test-tiled` has both packages."""

from __future__ import annotations

import importlib.util
import json
import time

import h5py
import numpy as np
import pytest

import growing_files
from bluesky_devices import Angle, FileDetector, FrameDetector, tomography
from plugstream.base.errors import InputError
from plugstream.bridges.bluesky import LiveRun
from plugstream.cli import main
from plugstream.scans.importers import import_file
from plugstream.scans.store import open_scan

installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tiled", "bluesky")),
    reason="tiled and bluesky are not installed; make test-tiled runs this",
)
VIEWS = 12
DEGREES = [growing_files.angle(n, VIEWS) for n in range(VIEWS)]
FRAMES = {
    "dark": [growing_files.field(growing_files.DARK, n) for n in range(2)],
    "flat": [growing_files.field(growing_files.FLAT, n) for n in range(3)],
    "primary": [growing_files.frame(n) for n in range(VIEWS)],
}
SHAPE = (growing_files.ROWS, growing_files.COLUMNS)
KEYS = {"data": "det", "angles": "rot"}
FLAGS = ["--center", "11.5", "--rows", "1", "--sigma", "0.01", "--iterations", "5", "--batch", "4", "--report", "none"]


@pytest.fixture
def no_check(monkeypatch):
    """Documents by hand need no process: what is written is looked at."""
    monkeypatch.setattr(LiveRun, "_check_flags", lambda self: None)
    monkeypatch.setattr(LiveRun, "_start", lambda self, *places: None)


def documents(frames, degrees, *, units="deg", stream="primary", key="det"):
    """A run's documents with frames in its events."""
    keys = {key: {"dtype": "array", "shape": [3, 24], "source": ""}, "rot": {"dtype": "number", "units": units}}
    yield "start", {"uid": "0123456789", "scan_id": 7, "time": 0.0}
    yield "descriptor", {"uid": "d", "run_start": "0123456789", "name": stream, "data_keys": keys}
    for n, (frame, angle) in enumerate(zip(frames, degrees, strict=True), 1):
        yield "event", {"descriptor": "d", "seq_num": n, "data": {key: frame, "rot": angle}}
    yield "stop", {"uid": "s", "run_start": "0123456789", "exit_status": "success"}


def test_frames_of_events_are_written_with_their_angles_in_degrees(tmp_path, no_check) -> None:
    live = LiveRun("ct", tmp_path, KEYS, flats=None)
    for name, document in documents(FRAMES["primary"], np.deg2rad(DEGREES), units="radians"):
        live(name, document)
    with h5py.File(tmp_path / "7-01234567.h5") as file:
        assert set(file) == {"data", "angles"}
        assert np.array_equal(file["data"][:], np.stack(FRAMES["primary"]))
        assert np.allclose(file["angles"][:], DEGREES, atol=1e-9)
        assert file["data"].dtype == FRAMES["primary"][0].dtype
    assert live.errors == []


def test_what_cannot_be_used_is_left_out_and_nothing_is_raised(tmp_path, no_check, capsys) -> None:
    """Another shape, text, no number for an angle, no angle: a callback that raised would end the measurement."""
    live = LiveRun("ct", tmp_path, KEYS, flats=None)
    frames = [FRAMES["primary"][0], np.zeros((3, 25)), "text", *FRAMES["primary"][3:6]]
    for name, document in documents(frames, [0.0, 1.0, 2.0, float("nan"), "abc", 5.0]):
        live(name, document)
    live("event", {"descriptor": "d", "seq_num": 9, "data": {}})  # after the end
    live("stop", {})
    with h5py.File(live.file) as file:
        assert file["angles"][:].tolist() == [0.0, 5.0]
        assert np.array_equal(file["data"][1], FRAMES["primary"][5])
    assert live.left_out == [2, 3, 4, 5]
    assert len(capsys.readouterr().err.splitlines()) == len(live.errors) == 4


def test_documents_that_make_no_sense_are_one_line_each(tmp_path, no_check, capsys) -> None:
    live = LiveRun("ct", tmp_path, KEYS)
    live("event", {})
    live("start", {"uid": "0123456789"})
    live("descriptor", {"uid": "d"})
    live("stream_datum", {"stream_resource": "x"})
    where = {"uid": "r", "data_key": "det", "parameters": {}, "uri": "s3://bucket/a", "mimetype": "image/tiff"}
    live("stream_resource", where)
    live("event", {"descriptor": "unknown", "seq_num": 1, "data": {"det": 1}})
    live("stop", {"run_start": "0123456789"})
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert "HDF5 files can" in said[2]


def test_frames_of_a_detectors_file_may_come_later_than_their_documents(tmp_path, no_check) -> None:
    detector = FileDetector("det", tmp_path / "det.h5", SHAPE, late=True)
    live = LiveRun("ct", tmp_path, KEYS, flats=None)
    asked = list(documents(FRAMES["primary"][:3], DEGREES[:3]))
    for name, document in asked[:-1]:
        if name == "event":
            detector.expose(document["data"].pop("det"))
            for kind, asset in detector.collect_asset_docs():
                number = document["seq_num"]
                asset |= {"descriptor": "d", "seq_nums": {"start": number, "stop": number + 1}}
                live(kind, asset)
        live(name, document)
    assert not live.file.exists()
    detector.flush()
    live(*asked[-1])
    with h5py.File(live.file) as file:
        assert np.array_equal(file["data"][:], np.stack(FRAMES["primary"][:3]))
        assert file["angles"][:].tolist() == DEGREES[:3]
    detector.close()


@pytest.mark.parametrize("keys", [{}, {"angles": "rot"}, {"data": ("a", "b")}])
def test_keys_must_name_the_detector(tmp_path, keys) -> None:
    with pytest.raises(InputError, match="must name the detector's key"):
        LiveRun("ct", tmp_path, keys)


@pytest.mark.slow
def test_wrong_flags_are_refused_before_anything_is_measured(tmp_path) -> None:
    with pytest.raises(InputError, match="give --center"):
        LiveRun("ct", tmp_path, KEYS, ["--sigma", "0.01"])


@installed
@pytest.mark.parametrize("kind", ["events", "files"])
def test_a_run_engine_feeds_a_reconstruction(tmp_path, kind) -> None:
    """Its scan and its image equal, to the bit, those of the same frames in the finished file."""
    from bluesky import RunEngine

    live = LiveRun("ct", tmp_path, KEYS, FLAGS)
    engine = RunEngine({})
    engine.subscribe(live)
    if kind == "files":
        detectors = {stream: FileDetector("det", tmp_path / f"{stream}.h5", SHAPE) for stream in FRAMES}
    else:
        detectors = dict.fromkeys(FRAMES, FrameDetector("det"))
    engine(tomography(detectors, Angle("rot"), FRAMES, DEGREES))
    for detector in detectors.values() if kind == "files" else ():
        detector.close()
    assert live.wait(timeout=120) in (0, 3), live.log.read_text()
    assert live.errors == []
    followed = open_scan(live.file.with_suffix(".zarr"))
    settled = followed.provenance["options"]
    again, _ = import_file("ct", live.file, tmp_path / "again.zarr", settled)
    assert followed.n_views == VIEWS
    assert followed.read().numpy().tobytes() == open_scan(again).read().numpy().tobytes()
    image = np.load(live.out / "result.npy")
    assert np.isfinite(image).all()
    assert image.std() > 0
    with h5py.File(live.file) as file:
        assert np.array_equal(file["data"][:], np.stack(FRAMES["dark"] + FRAMES["flat"] + FRAMES["primary"]))
        assert file["image_key"][:].tolist() == [2] * 2 + [1] * 3 + [0] * VIEWS


@installed
def test_a_plan_that_fails_still_gives_an_image_of_what_was_measured(tmp_path) -> None:
    from bluesky import RunEngine

    live = LiveRun("ct", tmp_path, KEYS, FLAGS)
    engine = RunEngine({})
    engine.subscribe(live)
    with pytest.raises(RuntimeError):
        engine(tomography(dict.fromkeys(FRAMES, FrameDetector("det")), Angle("rot"), FRAMES, DEGREES, fail_at=9))
    assert live.wait(timeout=120) in (0, 3)
    assert open_scan(live.file.with_suffix(".zarr")).n_views == 9


@installed
def test_a_reconstruction_that_is_killed_does_not_disturb_the_measurement(tmp_path) -> None:
    from bluesky import RunEngine

    live = LiveRun("ct", tmp_path, KEYS, FLAGS)
    engine = RunEngine({})
    engine.subscribe(live)
    engine.subscribe(lambda name, document: live._process.kill() if document.get("seq_num") == 4 else None)
    engine(tomography(dict.fromkeys(FRAMES, FrameDetector("det")), Angle("rot"), FRAMES, DEGREES))
    assert live.wait(timeout=60) == -9
    assert "the reconstruction ended with -9" in live.errors[0]
    time.sleep(0.5)
    with h5py.File(live.file) as file:
        assert (file["image_key"][:] == 0).sum() == VIEWS


@installed
def test_a_result_is_written_back_with_what_it_was_made_from(tmp_path, capsys) -> None:
    from tiled.client import from_uri
    from tiled.server import SimpleTiledServer

    assert main(["simulate", str(tmp_path / "a.zarr"), "--size", "16", "--views", "9"]) == 0
    words = ["--sigma", "0.01", "--iterations", "4", "--batch", "3", "--report", "none"]
    assert main(["reconstruct", str(tmp_path / "a.zarr"), "--out", str(tmp_path / "run"), *words]) in (0, 3)
    server = SimpleTiledServer()
    try:
        address = f"http://127.0.0.1:{server.port}/api/v1"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILED_API_KEY", server.api_key)
            assert main(["publish", str(tmp_path / "run"), address]) == 0, capsys.readouterr().err
            assert "/metadata/run" in capsys.readouterr().err
            node = from_uri(server.uri)["run"]
            assert np.array_equal(node["image"].read(), np.load(tmp_path / "run" / "result.npy"))
            about = json.loads(json.dumps(dict(node.metadata)))
            assert about["scan"] == open_scan(tmp_path / "a.zarr").provenance
            assert "4 of 4" in about["run"]["steps"]
            assert main(["publish", str(tmp_path / "run"), address]) == 2
            assert "has a run already" in capsys.readouterr().err
            # A server that fails, or dies, between the container and its array: nothing stays, or the next removes it.
            patch.setattr("tiled.client.container.Container.write_array", lambda *_, **__: 1 / 0)
            words = ["publish", str(tmp_path / "run"), address, "--key", "half"]
            assert main(words) == 2
            assert "cannot write half" in capsys.readouterr().err
            assert "half" not in from_uri(server.uri)
            patch.setattr("plugstream.runs.tiled._remove", lambda *_: 1 / 0)
            assert main(words) == 2
            assert from_uri(server.uri)["half"].metadata["complete"] is False
            patch.undo()
            patch.setenv("TILED_API_KEY", server.api_key)
            assert main(words) == 0, capsys.readouterr().err
            half = from_uri(server.uri)["half"]
            assert half.metadata["complete"] is True
            assert np.array_equal(half["image"].read(), np.load(tmp_path / "run" / "result.npy"))
            capsys.readouterr()
            assert main(["publish", str(tmp_path / "run"), f"{address}/metadata/nowhere"]) == 2
            assert "there is nothing there" in capsys.readouterr().err
            patch.setenv("TILED_API_KEY", "wrong")
            assert main(["publish", str(tmp_path / "run"), address, "--key", "b"]) == 2
            assert len(capsys.readouterr().err.splitlines()) == 1
    finally:
        server.close()
    assert main(["publish", str(tmp_path), "http://127.0.0.1:1/a"]) == 2
    assert "has no result.npy" in capsys.readouterr().err
