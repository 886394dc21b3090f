"""Diffraction patterns of a stream: the scan is what the importer makes of a CXI file of the same frames."""

import contextlib

import h5py
import numpy as np
import pytest

import eiger
import plugstream.scans.importers.ptychography  # noqa: F401 - before anybody waits for it
from eiger import Eiger, image, start, typed
from live_import import LIMIT, Live
from plugstream.cli import main
from plugstream.scans.importers import import_file
from plugstream.scans.store import open_scan
from waiting import wait_until

N, WAVE, DISTANCE, DETECTOR, VIEWS = 8, 1e-10, 2.0, 1e-4, 12
PIXEL = WAVE * DISTANCE / (N * DETECTOR)
CENTER = (7, 10)


@pytest.fixture
def setup(tmp_path):
    """Frames of 14 x 18 with a bad pixel and a beam that is not in their middle, positions and a probe."""
    draw = np.random.default_rng(0)
    counts = draw.poisson(40, (VIEWS, 14, 18)).astype(np.uint16)
    counts[:, 6, 9] = 65535
    places = draw.uniform(-6 * PIXEL, 6 * PIXEL, (VIEWS, 2))
    probe = draw.standard_normal((N, N)) + 1j * draw.standard_normal((N, N))
    np.savetxt(tmp_path / "positions.txt", places)
    np.save(tmp_path / "probe.npy", probe)
    with h5py.File(tmp_path / "scan.cxi", "w") as file:
        file["entry_1/data_1/data"] = np.where(counts == 65535, 0, counts)
        file["entry_1/data_1/translation"] = np.stack([places[:, 1], places[:, 0], 0 * places[:, 0]], 1)
        file["entry_1/instrument_1/source_1/energy"] = 1.98644586e-25 / WAVE
        file["entry_1/instrument_1/detector_1/distance"] = DISTANCE
        file["entry_1/instrument_1/detector_1/x_pixel_size"] = DETECTOR
        file["entry_1/instrument_1/detector_1/mask"] = (counts[0] == 65535).astype(np.uint32)
    return counts, {"positions": str(tmp_path / "positions.txt"), "probe": str(tmp_path / "probe.npy"), "crop": N}


def begin(**more):
    about = {"image_size_x": 18, "image_size_y": 14, "beam_center_x": 10.2, "beam_center_y": 7.0, "goniometer": {}}
    about |= {
        "incident_wavelength": 1e10 * WAVE,
        "detector_translation": [0.0, 0.0, DISTANCE],
        "pixel_size_x": DETECTOR,
    }
    return start(images=VIEWS, **about, **more)


def assert_same(live, tmp_path, **more):
    scan = open_scan(live.out)
    import_file("ptychography", tmp_path / "scan.cxi", tmp_path / "again.zarr", {**scan.provenance["options"], **more})
    again = open_scan(tmp_path / "again.zarr")
    assert scan.complete
    assert scan.dtype == again.dtype
    assert scan.read().numpy().tobytes() == again.read().numpy().tobytes()
    assert np.allclose(scan.columns["positions"][:], again.columns["positions"][:])
    assert not scan.instrument.difference(again.instrument) or np.allclose(
        scan.instrument.probe, again.instrument.probe
    )
    assert (scan.instrument.good == again.instrument.good).all()


def test_an_eiger(setup, tmp_path):
    """It says where the beam is, how far away and of which wavelength; positions come from a table."""
    counts, options = setup
    with Eiger() as detector:
        live = Live(detector.address, tmp_path / "live.zarr", options, kind="ptychography", grace=0.2)
        detector.send(begin())
        detector.send(*(image(n, typed(counts[n], "bslz4")) for n in range(VIEWS) if n != 4), eiger.end())
        result = live.end()
    assert "1 views are left out: 4" in result.remarks
    scan = open_scan(live.out)
    assert scan.provenance["options"]["center"] == "7,10"
    assert scan.provenance["options"]["power"] == float(np.where(counts[0] == 65535, 0, counts[0])[3:11, 6:14].sum())
    assert scan.instrument.probe.shape[-2:] == (N, N)
    assert not scan.instrument.good.all()
    assert_same(live, tmp_path, omit="4")


def test_an_import_goes_on_with_the_same_probe(setup, tmp_path):
    """Whose power is that of the first frame, which the second process does not see."""
    counts, options = setup

    class Stopped(Live):
        def note(self, views):
            super().note(views)
            if views >= 5:
                raise KeyboardInterrupt

    with Eiger() as detector:
        first = Stopped(detector.address, tmp_path / "live.zarr", options, kind="ptychography")
        detector.send(begin(), *(image(n, typed(counts[n])) for n in range(5)))
        first.thread.join(LIMIT)
        live = Live(detector.address, tmp_path / "live.zarr", options, kind="ptychography")
        detector.send(*(image(n, typed(counts[n])) for n in range(5, VIEWS)), eiger.end())
        live.end()
    assert_same(live, tmp_path)


def test_an_area_detector(setup, tmp_path):
    pytest.importorskip("p4p", reason="p4p is not installed; it compiles for half an hour where PyPI has no wheel")
    from area_detector import AreaDetector

    counts, options = setup
    counts = np.where(counts == 65535, 0, counts)
    options |= {"center": "7,10", "wavelength": WAVE, "distance": DISTANCE, "detector_pixel": DETECTOR}
    with AreaDetector() as detector:
        live = Live(detector.address, tmp_path / "live.zarr", options, kind="ptychography")
        wait_until(lambda: live.said)
        for frame in counts:
            detector.send(frame)
        assert live.end().views == VIEWS
    scan = open_scan(live.out)
    cropped = np.fft.ifftshift(counts[:, 3:11, 6:14], axes=(1, 2))
    assert (scan.read().numpy() == cropped).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["follow", "ptychography", "scan.cxi"], "cannot be followed while it grows"),
        (["follow", "ptychography", "dectris://eiger"], "a stream needs --positions FILE"),
        (["follow", "ptychography", "dectris://eiger", "--positions", "p.txt"], "a stream needs --probe FILE"),
        (["import", "ptychography", "scan.cxi", "--channel", "a"], "--channel is for streams"),
        (["import", "ptychography", "scan.cxi", "--positions", "none.txt"], "cannot read the positions none.txt"),
        (["import", "ptychography", "scan.cxi", "--positions", "probe.npy"], "must be rows of two numbers"),
    ],
)
def test_mistakes_are_one_line(setup, tmp_path, monkeypatch, capfd, words, said):
    with contextlib.chdir(tmp_path):
        assert main([*words, "--sigma", "1"] if words[0] == "follow" else words) == 2
    assert said in capfd.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("*.zarr"))
