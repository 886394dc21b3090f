"""Several wavelengths in a scan: a column, a model for each, gains that bring them to a scale, and what shows them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from plugstream import Born2D, BornModel, Grid, InputError, MemoryScan, ScanWriter, born_geometry, open_scan, ring, snr
from plugstream.instruments.spectrum import LIGHT, describe_wave, describe_waves, match_waves, parse_waves
from plugstream.instruments.wavelengths import balance_gains
from plugstream.models.grouped import GroupedModel
from plugstream.runs.replay import replay
from small_run import main

WAVES = np.array([0.04, 0.03, 0.04, 0.02, 0.03, 0.04])
CPU = {"device": torch.device("cpu"), "dtype": torch.float64}


@pytest.fixture
def instrument() -> Born2D:
    return Born2D(ring(16, 0.4), 0.02, Grid((12, 10), 0.005))


def columns(views: int = 6) -> dict[str, np.ndarray]:
    mask = np.ones((6, 16), dtype=bool)
    mask[1, 3:6] = mask[4, :2] = False
    gains = np.array([1.0, 2.0, 1.0, 3.0, 2.0, 1.0])
    rows = {"transmitters": ring(6, 0.5), "mask": mask, "wavelengths": WAVES, "gains": gains}
    return {name: values[:views] for name, values in rows.items()}


def test_each_view_is_predicted_by_the_model_of_its_wavelength(instrument):
    rows = columns()
    model = instrument.build_model(rows, 6, **CPU)
    assert isinstance(model, GroupedModel)
    assert [one.geometry.wavelength for one in model.models] == [0.04, 0.03, 0.02]
    x = torch.rand(12, 10, dtype=torch.float64)
    y = model.forward(x, [5, 3, 1, 1])
    for row, view in zip(y, [5, 3, 1, 1], strict=True):
        alone = {name: rows[name][[view]] for name in ("transmitters", "mask")}
        own = BornModel(instrument.geometry(wavelength=float(WAVES[view]), **alone), method="dense", dtype=CPU["dtype"])
        torch.testing.assert_close(row, rows["gains"][view] * own.forward(x)[0], rtol=1e-7, atol=1e-14)
    assert "40 mm" not in model.describe()
    assert "7.49481 GHz (3 views)" in model.describe()


def test_one_wavelength_is_the_model_that_it_always_was(instrument):
    rows = {"transmitters": ring(6, 0.5)}
    x = torch.rand(12, 10, dtype=torch.float64)
    plain = instrument.build_model(rows, 6, **CPU)
    assert type(plain) is BornModel
    by_column = instrument.build_model({**rows, "wavelengths": np.full(6, 0.02)}, 6, **CPU)
    assert type(by_column) is BornModel
    assert torch.equal(plain.forward(x), by_column.forward(x))
    other = instrument.build_model({**rows, "wavelengths": np.full(6, 0.04)}, 6, **CPU)
    assert other.geometry.wavelength == 0.04
    scaled = instrument.build_model({**rows, "gains": np.full(6, 2.0)}, 6, **CPU)
    assert torch.equal(scaled.forward(x), 2 * plain.forward(x))


def test_a_model_grows_with_its_views_and_with_new_wavelengths(instrument):
    whole, x = instrument.build_model(columns(), 6, **CPU), torch.rand(12, 10, dtype=torch.float64)
    model = None
    for views in (1, 2, 4, 6):
        model = instrument.build_model(columns(views), views, previous=model, **CPU)
        torch.testing.assert_close(model.forward(x), whole.forward(x)[:views], rtol=1e-9, atol=1e-15)
    assert len(model.models) == 3


def test_a_scan_keeps_the_column_and_its_fingerprint_knows_it(instrument, tmp_path, capsys):
    data = (np.random.default_rng(0).standard_normal((6, 16)) * 1.0).astype(np.complex64)
    rows = columns()
    with ScanWriter(tmp_path / "live.zarr", instrument) as writer:
        for view in range(6):  # as a measurement goes on
            writer.append(data[[view]], **{name: values[[view]] for name, values in rows.items()})
            writer.commit()
        with pytest.raises(InputError, match="wavelengths, and so it must be with all of its views"):
            writer.append(data[[0]], transmitters=rows["transmitters"][[0]])
        writer.finish()
    scan = open_scan(tmp_path / "live.zarr")
    assert (scan.columns["wavelengths"][:] == WAVES).all()
    assert (scan.columns["gains"][:] == rows["gains"]).all()
    from plugstream.scans.scan import fingerprint

    memory = MemoryScan(data, instrument, columns=rows)
    assert fingerprint(scan) == fingerprint(memory)
    others = {**rows, "wavelengths": WAVES[::-1]}
    assert fingerprint(MemoryScan(data, instrument, columns=others)) != fingerprint(memory)
    with pytest.raises(InputError, match="a geometry is of one wavelength"):
        born_geometry(scan)
    assert main(["verify", str(tmp_path / "live.zarr")]) == 0
    capsys.readouterr()
    assert main(["info", str(tmp_path / "live.zarr")]) == 0
    out = capsys.readouterr().out
    assert "7.49481, 9.99308, 14.9896 GHz, 1 to 3 views each" in out
    assert "1 to 3, factors of the data" in out
    assert "0.02 to 0.04 m in vacuum" in out


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("wavelengths", [0.04, 0.0, 0.04, 0.02, 0.03, 0.04], "wavelengths hold 0 at view 1"),
        ("wavelengths", [0.04, -1.0, 0.04, 0.02, 0.03, 0.04], "wavelengths hold -1 at view 1"),
        ("gains", [1, 1, 0, 1, 1, 1], "gains hold 0 at view 2"),
        ("gains", [1, 1, np.nan, 1, 1, 1], "gains hold NaN or infinity at view 2"),
        ("wavelengths", [0.04, 4e-6, 0.04, 0.02, 0.03, 0.04], "a pixel of 0.005 m is 1250 wavelengths"),
    ],
)
def test_wavelengths_and_gains_that_cannot_be_are_refused(instrument, tmp_path, column, values, message):
    data = np.ones((6, 16), dtype=np.complex64)
    with ScanWriter(tmp_path / "scan.zarr", instrument) as writer, pytest.raises(InputError, match=message):
        writer.append(data, **{**columns(), column: np.array(values, dtype=float)})


def test_gains_bring_the_mean_energy_of_every_wavelength_to_one():
    rng = np.random.default_rng(1)
    data = rng.standard_normal((6, 16)) + 1j * rng.standard_normal((6, 16))
    data *= (1e3 * WAVES**-3)[:, None]
    mask = rng.random((6, 16)) > 0.3
    data[~mask] = np.nan
    gains = balance_gains(np.nan_to_num(data, nan=1e9), WAVES, mask)
    for wave in np.unique(WAVES):
        assert len(np.unique(gains[wave == WAVES])) == 1
        energies = [
            np.sum(np.abs(g * y[m]) ** 2) for g, y, m, w in zip(gains, data, mask, WAVES, strict=True) if w == wave
        ]
        assert np.mean(energies) == pytest.approx(1)
    assert (balance_gains(np.zeros((2, 3)), [1.0, 2.0]) == 1).all()


def test_simulated_frequencies_are_one_scan_at_one_scale(tmp_path, capsys):
    place = tmp_path / "hop.zarr"
    small = ["--size", "16", "--views", "5", "--receivers", "12", "--radius", "0.4"]
    words = ["--instrument", "born-2d", *small, "--frequencies", "4,8GHz,30mm", "--input-snr", "60"]
    assert main(["simulate", str(place), *words]) == 0
    scan = open_scan(place)
    waves = scan.columns["wavelengths"][:]
    assert scan.n_views == 15
    assert np.allclose(waves, np.repeat([LIGHT / 4e9, LIGHT / 8e9, 0.03], 5))
    assert scan.instrument.wavelength == 0.03
    assert np.array_equal(scan.columns["transmitters"][:5], scan.columns["transmitters"][10:])
    data = scan.read().numpy()
    energy = (np.abs(data) ** 2).sum(1).reshape(3, 5).mean(1)
    assert np.allclose(energy, 1, rtol=0.01)
    # What the model predicts of the truth is what the scan holds.
    model = scan.instrument.build_model(scan.columns, 15, **CPU)
    left = model.forward(torch.from_numpy(scan.truth).double()).numpy() - data
    assert np.linalg.norm(left) < 2e-3 * np.linalg.norm(data)
    out = tmp_path / "run"
    run = ["--sigma", "0.02", "--batch", "5", "--iterations", "5", "--threads", "1"]
    assert main(["reconstruct", str(place), "--out", str(out), *run]) == 0
    assert main(["demo", "--out", str(tmp_path / "demo"), *words, *run]) == 0
    # A demo measures with one model and reconstructs with that of the scan, gains and all.
    images = [np.load(folder / "result.npy") for folder in (out, tmp_path / "demo")]
    assert all(snr(image, scan.truth) > 8 for image in images)


def test_frequencies_are_read_as_people_write_them():
    giga = LIGHT / 1e9
    assert np.allclose(parse_waves("2,4, 6 GHz"), [giga / 2, giga / 4, giga / 6])
    assert np.allclose(parse_waves("2"), [giga / 2])
    assert np.allclose(parse_waves("500mhz,1ghz"), [giga * 2, giga])
    assert np.allclose(parse_waves("632.8nm,1um"), [632.8e-9, 1e-6])
    assert describe_waves([giga / 4, giga / 2]) == "2, 4 GHz"
    assert describe_wave(632.8e-9) == "632.8 nm"
    assert match_waves(parse_waves("4,2GHz"), [giga / 2, giga / 3, giga / 4.0001], "the scan") == (2, 0)
    for wrong in ("", ",", "2,x", "0GHz", "-3GHz", "nanGHz", "4parsec", "4,4.0001GHz", "1e400GHz"):
        with pytest.raises(InputError):
            parse_waves(wrong)
    with pytest.raises(InputError, match="the scan has no 5 GHz; it has 2, 4 GHz"):
        match_waves(parse_waves("5GHz"), [giga / 2, giga / 4], "the scan")


def test_a_scan_that_is_followed_may_get_new_wavelengths(instrument, tmp_path):
    """The second wavelength comes when the run has begun; its views and gains are used from then on."""
    rows, place, out = columns(), tmp_path / "live.zarr", tmp_path / "run"
    model = instrument.build_model(rows, 6, **CPU)
    truth = torch.zeros(12, 10, dtype=torch.float64)
    truth[4:8, 3:7] = 0.1
    data = model.forward(truth).numpy().astype(np.complex64)
    order = np.argsort(-WAVES, kind="stable")  # the longest wavelength first
    writer = ScanWriter(place, instrument, views_per_shard=1)

    def add(views):
        writer.append(data[views], **{name: values[views] for name, values in rows.items()})
        writer.commit()

    add(order[:3])

    def measure():
        while not any(event.step >= 10 for event in replay(out / "events.jsonl").measured):
            time.sleep(0.02)
        add(order[3:5])
        add(order[5:])
        writer.finish()
        writer.close()

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    run = ["--sigma", "1e-4", "--batch", "3", "--iterations", "150"]
    run += ["--threads", "1", "--every", "10", "--patience", "30"]
    assert main(["reconstruct", str(place), "--follow", "--out", str(out), *run]) == 0
    thread.join(30)
    history = replay(out / "events.jsonl")
    assert (history.views[0].views, history.views[-1].views) == (3, 6)
    assert history.views[-1].lipschitz > history.views[0].lipschitz
    assert snr(np.load(out / "result.npy"), truth.float().numpy()) > 15
