"""Recordings of microscopes under one LED after another become scans: files that are made here, and the blood smear."""

import numpy as np
import pytest
from scipy.io import savemat

from plugstream import InputError, open_scan
from plugstream.cli import main
from plugstream.models.fpm_geometry import light_directions, make_pupil, spiral, zernike
from plugstream.scans.importers.base import describe_file, import_file

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.uniform(0.5, 2, (9, 12, 12)).astype(np.float32)  # (views, rows, columns)


def write(path, **more):
    """As the recordings that go round are."""
    content = {
        "imlow_HDR": PICTURES.transpose(1, 2, 0),
        "wlength": 5.3e-7,
        "z": -2e-5,
        "theta": 0,
        "xint": 0,
        "yint": 0,
    }
    savemat(path, content | {"aberration": 0} | more)
    return path


def test_a_matlab_file_becomes_a_scan_and_what_it_does_not_tell_is_said(tmp_path, capsys):
    file = write(tmp_path / "smear.mat", theta=90.0, xint=1.0, yint=-0.5)
    assert main(["import", "fpm", str(file), str(tmp_path / "a.zarr")]) == 0
    said = capsys.readouterr().err
    assert "assumed, in metres: pixels 1.845e-06, aperture 0.1, pitch of the LEDs 0.004" in said
    assert "9 LEDs in a square spiral" in said
    scan = open_scan(tmp_path / "a.zarr")
    assert np.array_equal(scan.read().numpy(), PICTURES)
    device = scan.instrument
    assert (device.wavelength, device.defocus, device.distance, device.slide) == (5.3e-7, -2e-5, 0.09088, 1e-3)
    # A quarter turn from x to y, and millimetres.
    places = spiral(9) * 4e-3
    assert np.allclose(scan.columns["leds"][:], np.stack([1e-3 - places[:, 1], places[:, 0] - 5e-4], 1))
    sines = np.hypot(*light_directions(scan.columns["leds"][:], 0.09088, 1e-3, 1.52).T)
    assert device.light == pytest.approx(PICTURES[sines <= 0.05].mean())
    assert scan.provenance["y_axis"] == "down"
    outlook, lines = describe_file(file)
    assert "plugstream import fpm" in outlook
    assert "9 pictures of 12 x 12 pixels under one LED each, wavelength 5.3e-07, defocus -2e-05" in lines[0]


def test_the_field_is_wider_than_the_camera_and_light_comes_from_points_unless_said_otherwise(tmp_path):
    pictures = RANDOM.uniform(0.5, 2, (20, 24, 9)).astype(np.float32)
    file = write(tmp_path / "smear.mat", imlow_HDR=pictures)
    import_file("fpm", file, tmp_path / "a.zarr", {})
    device = open_scan(tmp_path / "a.zarr").instrument
    assert (device.guard, device.microscope.shape, device.data_shape) == (2, (24, 28), (20, 24))
    assert device.image.shape[0] % 24 == device.image.shape[1] % 28 == 0
    assert 1 / device.curvature == pytest.approx(0.09088 + 1e-3 / 1.52)
    import_file("fpm", file, tmp_path / "b.zarr", {"guard": 0, "plane_waves": True})
    device = open_scan(tmp_path / "b.zarr").instrument
    assert (device.guard, device.microscope.shape, device.curvature) == (0, (20, 24), 0.0)


@pytest.mark.parametrize(("flags", "shape"), [({}, (40, 40)), ({"guard": 0}, (32, 32)), ({"crop": 24}, (30, 30))])
def test_a_pupil_of_the_file_goes_with_any_guard_and_crop(tmp_path, flags, shape):
    """It is that of the same aberrations at the frequencies of the field, which are others than the pictures'."""
    weights = [0, 0, 0, 0.4, -0.7, 0.2, 0, 0.3]
    sine = (np.arange(32) - 16) * 5.3e-7 / (32 * 1.845e-6)
    rho, theta = np.hypot(sine[:, None], sine) / 0.1, np.arctan2(sine[:, None], sine[None])
    phase = sum(weight * zernike(j, rho, theta) for j, weight in enumerate(weights))
    pictures = RANDOM.uniform(0.5, 2, (32, 32, 9)).astype(np.float32)
    file = write(tmp_path / "pupil.mat", imlow_HDR=pictures, aberration=np.exp(1j * phase))
    import_file("fpm", file, tmp_path / "c.zarr", flags)
    device = open_scan(tmp_path / "c.zarr").instrument
    assert device.microscope.shape == shape
    expected = make_pupil(device.microscope, -2e-5, weights, soft=True)
    assert np.abs(device.pupil - expected).max() < 0.05
    assert np.array_equal(device.starting_pupil(), device.pupil)


def test_flags_say_more_and_overrule_the_file(tmp_path):
    file = write(tmp_path / "smear.mat", aberration=np.full((12, 12), np.exp(0.3j)))
    leds = RANDOM.uniform(-1e-3, 1e-3, (9, 2))
    np.savetxt(tmp_path / "leds.txt", leds)
    values = {"leds": str(tmp_path / "leds.txt"), "distance": 0.08, "slide": 0.0, "defocus": 0.0, "omit": "5::10"}
    import_file("fpm", file, tmp_path / "b.zarr", values | {"rotation": 0.0, "offset": "0,0", "size": 24})
    scan = open_scan(tmp_path / "b.zarr")
    assert np.allclose(scan.columns["leds"][:], np.delete(leds, 5, 0))
    assert (scan.instrument.distance, scan.instrument.slide, scan.instrument.image_rows) == (0.08, 0.0, 24)
    pupil = scan.instrument.pupil
    assert np.allclose(np.angle(pupil[pupil != 0]), 0.3)
    import_file("fpm", file, tmp_path / "c.zarr", {"crop": 8, "select": "5"})
    small = open_scan(tmp_path / "c.zarr")
    assert np.array_equal(small.read().numpy(), PICTURES[5:6, 2:10, 2:10])
    assert small.instrument.pupil.shape == tuple(last - first + 1 for first, last in small.instrument.microscope.box)


def test_an_npz_with_places_of_leds(tmp_path):
    leds = RANDOM.uniform(-1e-3, 1e-3, (9, 2))
    np.savez(tmp_path / "a.npz", frames=PICTURES, wavelength=6e-7, leds=leds, aperture=0.2, pixel=1e-6)
    import_file("fpm", tmp_path / "a.npz", tmp_path / "a.zarr")
    scan = open_scan(tmp_path / "a.zarr")
    assert np.array_equal(scan.read().numpy(), PICTURES)
    assert np.allclose(scan.columns["leds"][:], leds)
    assert (scan.instrument.aperture, scan.instrument.pixel) == (0.2, 1e-6)


def test_matlab_of_today_is_hdf5_and_its_axes_the_other_way_round(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "new.mat", "w", userblock_size=512) as file:
        file["imlow_HDR"] = PICTURES.transpose(0, 2, 1)
        file["wlength"], file["z"] = np.array([[5.3e-7]]), np.array([[1e-5]])
    import_file("fpm", tmp_path / "new.mat", tmp_path / "a.zarr")
    scan = open_scan(tmp_path / "a.zarr")
    assert np.array_equal(scan.read().numpy(), PICTURES)
    assert scan.instrument.defocus == 1e-5


@pytest.mark.parametrize(
    ("more", "values", "said"),
    [
        ({"imlow_HDR": -PICTURES}, {}, "negative or not finite"),
        ({"imlow_HDR": PICTURES[0]}, {}, "must be a stack of pictures"),
        ({"wlength": np.nan}, {}, "wlength of .* must be finite"),
        ({"aberration": np.ones((3, 3))}, {}, "aberration of"),
        ({}, {"crop": 99}, "--crop 99 is larger"),
        ({}, {"offset": "1"}, "cannot read the offset"),
        ({"xint": 500.0}, {}, "no LED is within the aperture"),
        ({}, {"leds": "nowhere.txt"}, "cannot read the LEDs"),
        ({}, {"size": 12, "guard": 0}, "finer detail than an image of 12"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(tmp_path, more, values, said):
    file = write(tmp_path / "smear.mat", **more)
    with pytest.raises(InputError, match=said):
        import_file("fpm", file, tmp_path / "a.zarr", values)
    assert not (tmp_path / "a.zarr").exists()


def test_files_of_other_kinds_are_left_to_others(tmp_path):
    (tmp_path / "a.txt").write_text("no")
    with pytest.raises(InputError, match="not a MATLAB or NPZ file"):
        import_file("fpm", tmp_path / "a.txt", tmp_path / "a.zarr")
    savemat(tmp_path / "b.mat", {"other": 1})
    with pytest.raises(InputError, match="has other, and no pictures"):
        import_file("fpm", tmp_path / "b.mat", tmp_path / "b.zarr")


def test_an_hdf5_file_of_something_else_is_refused_in_one_line(tmp_path, capsys):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["title"], file["exchange/theta"] = "of another instrument", np.zeros(3)
    assert main(["import", "fpm", str(tmp_path / "other.h5"), str(tmp_path / "scan.zarr")]) == 2
    assert "and no pictures: imlow_HDR" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "scan.zarr").exists()
