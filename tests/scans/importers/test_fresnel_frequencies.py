"""All frequencies of a Fresnel file in one scan: of files that are made here, as 2001 and 2005 had them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import hankel1

from effort import effort
from fresnel_files import IMPORTER, LIGHT, import_fresnel, write_fresnel
from plugstream import InputError, PlugstreamWarning, open_scan, ring
from plugstream.cli import main


@pytest.fixture
def image() -> np.ndarray:
    x = np.zeros((16, 16))
    x[5:9, 6:11] = 0.4
    return x


@pytest.mark.parametrize(("year", "sources"), effort([(2001, 36), (2005, 8)], [(2001, 36), (2005, 8), (2005, 18)]))
def test_every_frequency_is_the_field_that_was_scattered_times_its_gain(tmp_path, image, year, sources):
    fields = write_fresnel(tmp_path / "aTM.exp", image, year=year, sources=sources, frequencies=[2.0, 6.5])
    scan = import_fresnel(tmp_path / "aTM.exp", size=16)
    assert scan.n_views == 2 * sources
    assert scan.provenance["horns"] == [[1.0, 0.0]] * 2  # these are line sources, and need no correction
    waves, gains, mask = (scan.columns[name] for name in ("wavelengths", "gains", "mask"))
    assert np.allclose(waves, np.repeat([LIGHT / (f * 1e9) for f in fields], sources))
    want = np.concatenate(list(fields.values())) * gains[:, None]
    assert np.abs(scan.data.numpy() - np.where(mask, want, 0)).max() < 1e-5 * np.abs(want).max()
    energy = (np.abs(scan.data.numpy()) ** 2).sum(1).reshape(2, sources).mean(1)
    assert np.allclose(energy, 1, rtol=1e-5)
    model = scan.instrument.build_model(scan.columns, scan.n_views, device=torch.device("cpu"), dtype=torch.float64)
    left = model.restrict(model.forward(torch.from_numpy(image)) - scan.data)
    assert left.norm() < 1e-4 * scan.data.norm()


def test_some_frequencies_and_one(tmp_path, image, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_fresnel(tmp_path / "bTM.txt", image, year=2005, sources=8, frequencies=[2.0, 4.0, 6.0])
    assert main(["import", IMPORTER, "bTM.txt", "--frequencies", "6,4GHz", "--size", "16"]) == 0
    assert "2 frequencies, 4, 6 GHz, each brought to the same mean energy" in capsys.readouterr().err
    some, every = open_scan("bTM.zarr"), import_fresnel("bTM.txt", size=16)
    assert torch.equal(some.read(), every.data[8:])
    one = import_fresnel("bTM.txt", 4, size=16)
    assert set(one.columns) == {"transmitters", "mask"}
    gains = torch.from_numpy(every.columns["gains"][8:16])[:, None]
    torch.testing.assert_close((one.data.to(torch.complex128) * gains).to(torch.complex64), every.data[8:16])
    assert main(["info", "bTM.zarr"]) == 0
    assert "4, 6 GHz, 8 views each" in capsys.readouterr().out
    for words, message in [
        (["--frequencies", "4,5GHz"], "has no 5 GHz; it has 2, 4, 6 GHz"),
        (["--frequencies", "4GHz", "--frequency", "4"], "both given"),
        (["--instrument", "ct"], "ct has no column transmitters"),
    ]:
        assert main(["import", IMPORTER, "bTM.txt", "c.zarr", *words]) == 2
        assert message in capsys.readouterr().err


def test_views_that_a_frequency_lacks_are_left_out_there(tmp_path, image):
    write_fresnel(tmp_path / "cTM.exp", image, year=2001, sources=36, frequencies=[2.0, 4.0], lost=(3, 17))
    with pytest.warns(PlugstreamWarning, match="has 1666 of the 1764 measurements at 2 GHz"):
        scan = import_fresnel(tmp_path / "cTM.exp", size=16)
    assert scan.n_views == 34 + 36
    assert scan.columns["mask"].any(1).all()


def test_files_of_the_other_polarisation_are_refused_by_their_name(tmp_path, image):
    write_fresnel(tmp_path / "rectTE_8f.exp", image, year=2001, sources=36, frequencies=[2.0])
    with pytest.raises(InputError, match="TE polarisation by its name"):
        import_fresnel(tmp_path / "rectTE_8f.exp")


def test_remarks_and_numbers_of_other_programs_are_read(tmp_path, image):
    write_fresnel(tmp_path / "dTM.exp", image, year=2001, sources=36, frequencies=[2.0])
    text = (tmp_path / "dTM.exp").read_text()
    (tmp_path / "eTM.exp").write_text(
        "% made elsewhere\n" + text.replace(" ", ", ").replace("e-", "D-").replace("#,", "#")
    )
    assert torch.equal(import_fresnel(tmp_path / "eTM.exp").data, import_fresnel(tmp_path / "dTM.exp").data)


@pytest.mark.parametrize("instrument", effort(["scattering-2d"], ["born-2d", "scattering-2d"]))
def test_several_frequencies_of_a_file_of_arrays_are_one_scan(tmp_path, monkeypatch, capsys, instrument):
    """Each is what the import of it alone gives, times its gain: calibration, mask and conjugate included."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(6)
    receivers, places = ring(12, 0.6), ring(5, 0.7)
    waves = LIGHT / np.array([4e9, 2e9, 3e9])
    distance = np.linalg.norm(places[:, None] - receivers[None], axis=-1)
    incident = np.stack([0.25j * hankel1(0, 2 * np.pi / wave * distance) * (2 - 1j) for wave in waves])
    total = incident + 0.1 * (rng.standard_normal((3, 5, 12)) + 1j * rng.standard_normal((3, 5, 12)))
    file = {"frequency": [4e9, 2e9, 3e9], "total": total.conj(), "incident": incident.conj()}
    np.savez("f.npz", receivers=receivers, transmitters=places, mask=rng.random((5, 12)) > 0.2, **file)
    words = ["import", "npz", "f.npz", "--size", "8", "--width", "0.2", "--conjugate", "--instrument", instrument]
    assert main([*words[:3], "all.zarr", *words[3:], "--frequencies", "all"]) == 0, capsys.readouterr()
    scan = open_scan("all.zarr")
    assert scan.instrument.name == instrument
    assert np.allclose(scan.columns["wavelengths"][:], np.repeat(LIGHT / np.array([2e9, 3e9, 4e9]), 5))
    for number, frequency in enumerate(("2", "3", "4")):
        assert main([*words[:3], f"{frequency}.zarr", *words[3:], "--frequency", frequency]) == 0
        one, rows = open_scan(f"{frequency}.zarr"), slice(5 * number, 5 * number + 5)
        gain = scan.columns["gains"][rows][:, None]
        want, mask = one.read().numpy() * gain, scan.columns["mask"][rows]
        assert np.allclose(scan.read().numpy()[rows][mask], want[mask], rtol=1e-5)
        assert (np.abs(np.where(mask, want, 0)) ** 2).sum(1).mean() == pytest.approx(1, rel=1e-5)
    assert main([*words[:3], "two.zarr", *words[3:], "--frequencies", "2,4GHz"]) == 0
    assert open_scan("two.zarr").n_views == 10
    capsys.readouterr()
    assert main([*words[:3], "no.zarr", *words[3:], "--frequencies", "5GHz"]) == 2
    assert "has no 5 GHz; it has 2, 3, 4 GHz" in capsys.readouterr().err
    assert main([*words[:3], "no.zarr", *words[3:], "--frequencies", "all", "--frequency", "2"]) == 2
    assert "both given" in capsys.readouterr().err
