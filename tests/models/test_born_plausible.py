"""A unit that was forgotten shows in lengths that no instrument has: impossible ones are refused, odd ones told."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream import BornGeometry, Grid, MemoryScan, open_scan
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.instruments.born import Born2D, born_geometry
from plugstream.models.born_geometry import ring
from plugstream.models.born_plausible import check_plausible, warn_if_implausible
from plugstream.runs.event_log import read_events
from plugstream.scans import save_scan
from plugstream.scans.importers import import_npz
from plugstream.scans.writer import ScanWriter
from small_run import SMALL, main


def said_of(setup: Born2D | BornGeometry) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlugstreamWarning)
        check_plausible(setup)
        warn_if_implausible(setup)
    return [str(warning.message) for warning in caught]


def write_npz(path: Path, *, scale: float = 1.0, **changes: float) -> Path:
    """Twelve receivers and six transmitters 0.8 m away, 3 cm waves, an image of 20 cm: all lengths times `scale`."""
    values = {"wavelength": 0.03, "width": 0.2, "radius": 0.8, **changes}
    np.savez(
        path,
        data=np.ones((6, 12), dtype=np.complex64),
        receivers=scale * ring(12, values["radius"]),
        transmitters=scale * ring(6, values["radius"], start=10.0),
        wavelength=scale * values["wavelength"],
        width=scale * values["width"],
        size=64,
    )
    return path


@pytest.mark.parametrize("pixels", [6, 12])
def test_the_papers_experiment_is_not_bothered(pixels):
    g = BornGeometry.paper()
    assert said_of(BornGeometry.rings(g.grid, pixels * g.grid.pixel, views=60, receivers=360, radius=1.6)) == []


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("frequency", [2e9, 3e9, 10e9, 18e9])
def test_the_fresnel_experiments_are_not_bothered(frequency, size):
    """Sources at 0.72 and 1.67 m, receivers at 0.76 and 1.67 m, images of 16 to 20 cm."""
    for width in (0.16, 0.2):
        for radius in (0.72, 1.67):
            grid = Grid((size, size), width / size)
            geometry = BornGeometry.rings(grid, 299_792_458 / frequency, views=8, receivers=49, radius=radius)
            assert said_of(geometry) == []


def test_a_microscope_and_the_far_field_are_not_bothered():
    grid = Grid((140, 140), 0.139e-6)
    waves = np.array([[1.0, 0.0], [0.0, 1.0]])
    setup = Born2D(waves, 647e-9, grid, background=1.335**2, far_field=True)
    assert said_of(setup) == []
    assert said_of(setup.geometry(plane_waves=waves)) == []


def test_import_refuses_a_wavelength_in_millimetres_beside_a_width_in_metres(tmp_path, capsys):
    """The audit's case: 30 mm read as 30 m, 9,600 pixels a wavelength."""
    file = write_npz(tmp_path / "d.npz", wavelength=30.0)
    assert main(["import", "npz", str(file), str(tmp_path / "s.zarr")]) == 2
    said = capsys.readouterr().err
    assert "9,600 pixels a wavelength" in said
    assert "--unit mm" in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_import_refuses_antennas_inside_the_image(tmp_path, capsys):
    file = write_npz(tmp_path / "d.npz", width=200.0, wavelength=30.0)
    assert main(["import", "npz", str(file), str(tmp_path / "s.zarr")]) == 2
    said = capsys.readouterr().err
    assert "receiver 0 at (0.8, 0) m is inside the image, which is 200 x 200 m" in said
    assert said.count("\n") == 1


def test_import_warns_of_antennas_kilometres_away(tmp_path, capsys):
    file = write_npz(tmp_path / "d.npz", radius=800.0)
    assert main(["import", "npz", str(file), str(tmp_path / "s.zarr")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" m away")[0] for line in lines[:2]] == [
        "warning: a receiver is 800",
        "warning: a transmitter is 800",
    ]
    assert lines[2].startswith("wrote ")
    assert lines[3:] == [f"next: plugstream reconstruct {tmp_path / 's.zarr'}"]


def test_import_of_millimetres_with_the_unit_is_the_scan_in_metres(tmp_path, capsys):
    metres = write_npz(tmp_path / "m.npz")
    millimetres = write_npz(tmp_path / "mm.npz", scale=1000.0)
    import_npz(metres, tmp_path / "m.zarr", {})
    import_npz(millimetres, tmp_path / "mm.zarr", {}, unit="mm")
    one, other = (born_geometry(open_scan(tmp_path / f"{name}.zarr")) for name in ("m", "mm"))
    assert one.wavelength == pytest.approx(other.wavelength, rel=1e-12)
    assert one.receivers == pytest.approx(other.receivers, rel=1e-12)
    assert one.grid.pixel == pytest.approx(other.grid.pixel, rel=1e-12)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--wavelength", "30"], "nothing in it can be told apart"),
        (["--wavelength", "1e-6"], "needs two pixels a wavelength"),
        (["--background", "1e6"], "relative permittivity"),
        (["--radius", "1e12"], "beyond what a phase can be computed for"),
        (["--radius", "0.1"], "cuts the image"),
    ],
)
def test_simulate_refuses(tmp_path, capsys, flags, reason):
    assert main(["simulate", str(tmp_path / "s.zarr"), *SMALL, *flags]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_simulate_warns_once(tmp_path, capsys):
    assert main(["simulate", str(tmp_path / "s.zarr"), *SMALL, "--wavelength", "3"]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warned) == 1
    assert "400 pixels a wavelength" in warned[0]


def test_a_writer_of_ones_own_is_refused_too(tmp_path):
    """`acquire` and every instrument write by `ScanWriter`."""
    grid = Grid((32, 32), 0.005)
    with pytest.raises(InputError, match=r"receiver 0 .* is inside the image"):
        ScanWriter(tmp_path / "a.zarr", Born2D(ring(8, 0.01), 0.03, grid))
    assert list(tmp_path.iterdir()) == []
    with ScanWriter(tmp_path / "b.zarr", Born2D(ring(8, 0.5), 0.03, grid)) as writer:
        with pytest.raises(InputError, match=r"transmitter 1 at \(0\.02, 0\) m is inside the image"):
            writer.append(np.ones((2, 8)), transmitters=np.array([[0.5, 0.0], [0.02, 0.0]]))
        assert writer.appended == 0
        writer.append(np.ones((1, 8)), transmitters=np.array([[0.5, 0.0]]))


def test_acquire_refuses_a_scan_that_cannot_be_and_goes_on_receiving(tmp_path):
    """The sender is told why at once, and the next one, with the right unit, is taken."""
    pytest.importorskip("zmq")
    from plugstream.scans.receive import Receiver
    from plugstream.scans.send import send_scan

    geometries = [
        BornGeometry.rings(Grid((16, 16), 0.01), wavelength, views=5, receivers=9, radius=0.5)
        for wavelength in (30.0, 0.03)
    ]
    wrong, right = (MemoryScan(torch.ones(5, 9, dtype=torch.complex64), geometry) for geometry in geometries)
    failures: list[BaseException] = []
    with Receiver(tmp_path / "s.zarr", "tcp://127.0.0.1:*") as receiver:

        def receive() -> None:
            try:
                receiver.run(timeout=150)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        with pytest.raises(InputError, match=r"3,000 pixels a wavelength"):
            send_scan(wrong, receiver.address, timeout=60)
        send_scan(right, receiver.address, timeout=60)
        thread.join(timeout=150)
        assert not thread.is_alive()
    assert failures == []
    assert receiver.counts["implausible"] == 1
    assert open_scan(tmp_path / "s.zarr").n_views == 5


def test_the_images_edge_is_inside_and_what_is_beside_it_is_not(tmp_path):
    """Pixel (i, j) of a 4 x 4 grid reaches from (j - 2.5) to (j - 1.5) pixels in x, so the image from -2.5 to 1.5."""
    grid = Grid((4, 4), 0.01)
    for x, inside in ((-0.0249, True), (-0.0251, False), (0.0149, True), (0.0151, False)):
        setup = Born2D(np.array([[x, 0.0]]), 0.05, grid)
        if inside:
            with pytest.raises(InputError, match="inside the image"):
                check_plausible(setup)
        else:
            check_plausible(setup)


def test_reconstruct_refuses_an_old_scan_that_makes_no_sense(tmp_path, capsys, monkeypatch):
    """As a version before this one would have written it."""
    geometry = BornGeometry.rings(Grid((16, 16), 0.01), 0.03, views=5, receivers=9, radius=0.05)
    data = np.ones((5, 9), dtype=np.complex64)
    with monkeypatch.context() as patch:
        patch.setattr(Born2D, "check_plausible", lambda *_: None)
        save_scan(MemoryScan(torch.from_numpy(data), geometry), tmp_path / "s.zarr")
    run = ["reconstruct", str(tmp_path / "s.zarr"), "--sigma", "0.02", "--batch", "2", "--out", str(tmp_path / "r")]
    assert main(run) == 2
    said = capsys.readouterr().err
    assert "is inside the image" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r").exists()
    assert main(["info", str(tmp_path / "s.zarr")]) == 0  # so that one can see what is wrong


def test_reconstruct_tells_what_is_odd_in_its_log(tmp_path, capsys):
    assert main(["simulate", str(tmp_path / "s.zarr"), *SMALL, "--wavelength", "3"]) == 0
    capsys.readouterr()
    run = ["reconstruct", str(tmp_path / "s.zarr"), "--sigma", "0.02", "--batch", "2", "--iterations", "2"]
    assert main([*run, "--out", str(tmp_path / "r")]) in (0, 1, 3)
    assert capsys.readouterr().err.count("400 pixels a wavelength") == 1
    notes = [e.text for e in read_events(tmp_path / "r" / "events.jsonl") if e.kind == "note"]
    assert any("warning" in text and "400 pixels a wavelength" in text for text in notes)
