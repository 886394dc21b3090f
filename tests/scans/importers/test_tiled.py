"""Runs of a Tiled catalogue as scans: a real server and a RunEngine; `make test-tiled` has both."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import growing_files
from plugstream.base.errors import InputError, StorageError
from plugstream.cli import main
from plugstream.scans.importers import import_file
from plugstream.scans.importers.address import RunAddress, run_address
from plugstream.scans.store import open_scan

installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tiled", "bluesky")),
    reason="tiled and bluesky are not installed; make test-tiled runs this",
)
VIEWS = 8
DEGREES = [growing_files.angle(n, VIEWS) for n in range(VIEWS)]
FRAMES = {
    "dark": [growing_files.field(growing_files.DARK, n) for n in range(2)],
    "flat": [growing_files.field(growing_files.FLAT, n) for n in range(3)],
    "primary": [growing_files.frame(n) for n in range(VIEWS)],
}
MAP = ("data=/primary/det", "angles=/primary/rot", "flats=/flat/det", "darks=/dark/det")
FEW = {"center": 11.5, "rows": "1"}


def test_an_address_takes_the_place_of_a_path() -> None:
    place = run_address(Path("http://127.0.0.1:8000/api/v1/metadata/run"))  # of which a path keeps one slash
    assert isinstance(place, RunAddress)
    assert str(place) == "http://127.0.0.1:8000/api/v1/metadata/run"
    assert (place.name, place.exists()) == ("run", False)
    assert run_address(place) == place
    assert run_address("http/scan.h5") is None


def test_without_the_client_or_for_a_run_that_grows_there_is_one_line(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tiled.client", None)
    address = "http://127.0.0.1:9/api/v1/metadata/run"
    assert main(["import", "ct", address, "--map", *MAP]) == 2
    assert "pip install 'plugstream[tiled]'" in capsys.readouterr().err
    assert main(["follow", "ct", address, "--center", "3", "--sigma", "1"]) == 2
    assert "plugstream.bridges.bluesky" in capsys.readouterr().err
    assert main(["import", "ct", f"{address}?api_key=secret", "--map", *MAP]) == 2
    said = capsys.readouterr().err
    assert "TILED_API_KEY" in said
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tiled.server import SimpleTiledServer

    folder = tmp_path_factory.mktemp("tiled")
    with pytest.MonkeyPatch.context() as patch:
        one = SimpleTiledServer(readable_storage=[str(folder)])
        patch.setenv("TILED_API_KEY", one.api_key)
        yield one, folder
        one.close()


def measure(server, name, **options):
    """A run of the RunEngine in the catalogue, and its address."""
    from bluesky import RunEngine
    from bluesky.callbacks.tiled_writer import TiledWriter
    from tiled.client import from_uri

    from bluesky_devices import Angle, FileDetector, tomography

    one, folder = server
    shape = (growing_files.ROWS, growing_files.COLUMNS)
    detectors = {stream: FileDetector("det", folder / f"{name}-{stream}.h5", shape) for stream in FRAMES}
    engine, client, uids = RunEngine({}), from_uri(one.uri), []
    engine.subscribe(TiledWriter(client))
    engine.subscribe(lambda kind, document: uids.append(document["uid"]) if kind == "start" else None)
    try:
        engine(tomography(detectors, Angle("rot"), FRAMES, DEGREES, **options))
    except RuntimeError:
        assert options
    for detector in detectors.values():
        detector.close()
    return f"http://127.0.0.1:{one.port}/api/v1/metadata/{uids[0]}"


@pytest.fixture(scope="module")
def address(server):
    return measure(server, "whole")


def write_file(path, views=VIEWS):
    """The same frames in a file."""
    with h5py.File(path, "w") as file:
        for name, frames in (("data", FRAMES["primary"][:views]), ("flats", FRAMES["flat"]), ("darks", FRAMES["dark"])):
            file[name] = np.stack(frames)
        file["angles"] = DEGREES[:views]
        file["angles"].attrs["units"] = "deg"
    return path


@installed
def test_a_run_is_the_scan_of_the_same_frames_in_a_file(tmp_path, address) -> None:
    """To the bit, and so is every reconstruction; where it came from is in its provenance."""
    place, done = import_file("ct", address, tmp_path / "run.zarr", {"map": MAP, **FEW})
    own = tuple(f"{name}=/{name}" for name in ("data", "angles", "flats", "darks"))
    file, _ = import_file("ct", write_file(tmp_path / "a.h5"), tmp_path / "a.zarr", {"map": own, **FEW})
    ours, theirs = open_scan(place), open_scan(file)
    assert (ours.n_views, done.views) == (VIEWS, VIEWS)
    assert ours.read().numpy().tobytes() == theirs.read().numpy().tobytes()
    assert np.array_equal(ours.columns["rays"][:], theirs.columns["rays"][:])
    assert ours.provenance["address"] == address
    assert ours.provenance["run"]["exit_status"] == "success"
    assert ours.provenance["run"]["sample"] == "balls"
    assert done.remarks == import_file("ct", tmp_path / "a.h5", tmp_path / "b.zarr", {"map": own, **FEW})[1].remarks


@installed
def test_the_browsers_address_and_the_catalogue_lead_to_the_run(tmp_path, address) -> None:
    head, run = address.replace("/api/v1/metadata/", " ").split(" ")
    values = {"map": MAP, **FEW}
    first, _ = import_file("ct", f"{head}/ui/browse/{run}", tmp_path / "a.zarr", values)
    above = {"map": tuple(word.replace("=/", f"=/{run}/") for word in MAP), **FEW}
    second, _ = import_file("ct", f"{head}/api/v1", tmp_path / "b.zarr", above)
    assert open_scan(first).read().equal(open_scan(second).read())


@installed
@pytest.mark.parametrize(
    ("path", "mapping", "said"),
    [
        ("", (), "it has /dark/det (2, 3, 24), /flat/det (3, 3, 24), /primary/rot (8,)"),
        ("", ("data=/primary/dat", *MAP[1:]), "did you mean /primary/det?"),
        ("", ("data=/primary/det/x", *MAP[1:]), "has no /primary/det/x"),
        ("", ("data=/primary/rot", *MAP[1:]), "projections (views, rows, columns)"),
        ("", ("data=/primary/det", *MAP[2:]), "does not have an angle for each projection"),
        ("", ("data=/primary/det", "angles=/flat/seq_num", *MAP[2:]), "does not have an angle for each projection"),
        ("", MAP[:2], "it has no flat fields"),
        ("", (*MAP[:2], "flats=/primary/rot"), "must be (frames, rows, columns)"),
        ("x", MAP, "there is nothing there"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path, address, path, mapping, said) -> None:
    with pytest.raises(InputError) as error:
        import_file("ct", address + path, tmp_path / "a.zarr", {"map": mapping, **FEW})
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@installed
def test_of_a_run_that_failed_what_is_there_is_taken_and_said(tmp_path, server) -> None:
    broken = measure(server, "broken", fail_at=5)
    place, done = import_file("ct", broken, tmp_path / "a.zarr", {"map": MAP, **FEW})
    assert open_scan(place).n_views == done.views == 5
    assert any("the run is not complete (fail)" in remark for remark in done.remarks)


@installed
def test_a_file_that_lost_frames_behind_the_servers_back_is_refused(tmp_path, server) -> None:
    cut = measure(server, "cut")
    with h5py.File(server[1] / "cut-primary.h5", "r+") as file:
        file["entry/data/data"].resize(3, axis=0)
    with pytest.raises(InputError) as error:
        import_file("ct", cut, tmp_path / "a.zarr", {"map": MAP, **FEW})
    assert "/primary/det" in str(error.value)
    assert list(tmp_path.iterdir()) == []


@installed
def test_other_instruments_are_read_by_their_own_names(tmp_path, server) -> None:
    """By the importer `tiled`: data, columns and fixed arrays anywhere in the catalogue."""
    from tiled.client import from_uri

    assert main(["simulate", str(tmp_path / "a.zarr"), "--size", "16", "--views", "5"]) == 0
    scan = open_scan(tmp_path / "a.zarr")
    node = from_uri(server[0].uri).create_container("born")
    node.write_array(scan.read().numpy(), key="data")
    node.write_array(np.asarray(scan.columns["transmitters"][:]), key="transmitters")
    node.write_array(np.asarray(scan.instrument.receivers), key="receivers")
    words = ["--map", "data=/data", f"wavelength={scan.instrument.wavelength}", "size=16"]
    words += [f"pixel={scan.instrument.grid.pixel}"]
    address = f"http://127.0.0.1:{server[0].port}/api/v1/metadata/born"
    assert main(["import", "tiled", address, str(tmp_path / "b.zarr"), *words]) == 0
    assert open_scan(tmp_path / "b.zarr").read().equal(scan.read())


@installed
def test_a_server_that_dies_while_it_is_read_leaves_nothing_behind(tmp_path, server) -> None:
    """In a process of its own, killed when the first frames were taken."""
    from plugstream.scans.importers.tiled import TiledRun, connect

    folder = tmp_path / "served"
    folder.mkdir()
    words = [sys.executable, str(Path(__file__).parents[2] / "helpers" / "tiled_server.py"), str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process, pytest.MonkeyPatch.context() as patch:
        assert process.stdout is not None
        port, key = process.stdout.readline().split()
        patch.setenv("TILED_API_KEY", key)
        address = f"http://127.0.0.1:{port}/api/v1/metadata/a"
        array = TiledRun(RunAddress(address), connect(RunAddress(address))).find("/data")
        assert array[0:1].shape == (1, 3, 24)
        process.kill()
        process.wait()
        with pytest.raises(StorageError) as error:
            array[1:2]
        assert "cannot read /data of" in str(error.value)
        with pytest.raises(StorageError):
            import_file("ct", address, tmp_path / "a.zarr", {"map": ("data=/data", "angles=/angles"), **FEW})
    assert [path.name for path in tmp_path.iterdir()] == ["served"]
