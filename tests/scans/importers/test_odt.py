"""Recordings of fields become scans: qpimage series and NPZ files that are made here, and the HL60 cell where it is."""

import numpy as np
import pytest
import torch

from plugstream import InputError, open_scan
from plugstream.cli import main
from plugstream.instruments.odt import ODT3D, ball_cell
from plugstream.models.ct_geometry import Voxels
from plugstream.models.odt_geometry import poses_of_light, poses_of_rotation
from plugstream.scans.importers.base import describe_file, import_file
from plugstream.scans.importers.odt import read_angles

PIXEL, WAVE, MEDIUM = 1.6e-7, 6.47e-7, 1.335
LENGTHS = {"wavelength": WAVE, "pixel": PIXEL, "medium": MEDIUM}


def rytov(angles, size=24, index=1.37):
    """The Rytov phase of a cell, by the model."""
    made = ODT3D(Voxels((size,) * 3, PIXEL), size, size, PIXEL, WAVE, MEDIUM, 0.85 * MEDIUM)
    poses = poses_of_rotation(angles)
    model = made.build_model({"poses": poses}, len(poses), device=torch.device("cpu"), dtype=torch.float64)
    data = model.forward(torch.from_numpy(ball_cell(size, index, MEDIUM)).double()).numpy()
    # As seen beside light that is the same at the border in every view.
    return data - np.median(data[:, :1, :], axis=(1, 2))[:, None, None].imag * 1j


def write_series(folder, data, angles=None, backgrounds=True, **attributes):
    h5py = pytest.importorskip("h5py")
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "series.h5", "w") as file:
        for n, view in enumerate(data):
            group = file.create_group(f"qpi_{n}")
            group.attrs.update({"wavelength": WAVE, "pixel size": PIXEL, "medium index": MEDIUM} | attributes)
            light = np.full(view.shape, 0.5) if backgrounds else np.zeros(view.shape)
            group["phase/raw"] = view.imag + light
            group["amplitude/raw"] = np.exp(view.real) * (2.0 if backgrounds else 1.0)
            for part in ("phase", "amplitude"):
                group.create_group(f"{part}/bg_data")
            if backgrounds:
                group["phase/bg_data/data"], group["amplitude/bg_data/data"] = light, np.full(view.shape, 2.0)
    if angles is not None:
        np.savetxt(folder / "angles.txt", angles, header="rotational positions [rad]")
    return folder


@pytest.mark.parametrize("backgrounds", [False, True])
def test_a_series_and_its_folder_become_the_scan_that_was_recorded(tmp_path, capsys, backgrounds):
    angles = np.linspace(0.2, 5.0, 6)
    data = rytov(angles, size=24)
    folder = write_series(tmp_path / "cell", data, angles, backgrounds)
    assert main(["import", "odt", str(folder), str(tmp_path / "a.zarr"), "--background", "none"]) == 0
    assert "the aperture is not known: waves up to 1.13 are used" in capsys.readouterr().err
    scan = open_scan(tmp_path / "a.zarr")
    assert np.abs(scan.read().numpy() - data).max() <= 1e-5
    assert np.allclose(scan.columns["poses"][:], poses_of_rotation(angles))
    instrument = scan.instrument
    assert (instrument.pixel, instrument.wavelength, instrument.medium) == (PIXEL, WAVE, MEDIUM)
    assert instrument.voxels.shape == (24, 24, 24)
    assert [step["step"] for step in scan.provenance["steps"]] == ["unwrap", "rytov"]
    options = {
        "select": "::2",
        "crop": 20,
        "voxel": 2 * PIXEL,
        "aperture": 0.9,
        "clockwise": True,
        "background": "none",
    }
    import_file("odt", folder / "series.h5", tmp_path / "b.zarr", options)
    other = open_scan(tmp_path / "b.zarr")
    assert np.abs(other.read().numpy() - data[::2, 2:22, 2:22]).max() <= 1e-5
    assert np.allclose(other.columns["poses"][:], poses_of_rotation(-angles[::2]))
    assert other.instrument.voxels.shape == (10, 10, 10)
    assert other.instrument.aperture == 0.9
    said, lines = describe_file(folder / "series.h5")
    assert "plugstream import odt" in said
    assert "qpimage series of 6 views, 24 x 24 pixels, angles" in lines[0]


def test_wrapped_phases_are_made_continuous(tmp_path):
    """A thick cell turns the phase by more than pi, which complex fields do not show."""
    angles = np.linspace(0, 5, 3)
    data = 4 * rytov(angles, size=32)
    assert data.imag.max() > 4
    np.savez(tmp_path / "cell.npz", fields=np.exp(data), angles=angles, **LENGTHS)
    _, made = import_file("odt", tmp_path / "cell.npz", tmp_path / "a.zarr", {"background": "none"})
    assert any("phases of 3 views were made continuous" in remark for remark in made.remarks)
    assert np.abs(open_scan(tmp_path / "a.zarr").read().numpy() - data).max() <= 1e-4
    import_file("odt", tmp_path / "cell.npz", tmp_path / "b.zarr", {"background": "none", "approximation": "born"})
    born = open_scan(tmp_path / "b.zarr")
    assert born.instrument.approximation == "born"
    assert np.abs(born.read().numpy() - (np.exp(data) - 1)).max() <= 1e-4


def test_light_of_the_border_is_divided_out(tmp_path):
    rng = np.random.default_rng(0)
    rows, columns = np.indices((30, 30))
    phase = np.exp(-((rows - 15) ** 2 + (columns - 14) ** 2) / 20)[None] + np.zeros((2, 1, 1))
    tilted = phase + 0.3 + 0.01 * rows - 0.02 * columns
    light = 1.5 * np.exp(0.2j * rng.standard_normal((30, 30)))
    np.savez(tmp_path / "tilt.npz", phase=tilted, amplitude=np.full((2, 30, 30), 3.0), angles=[0.0, 1.0], **LENGTHS)
    fields = light * np.exp(1j * phase)
    np.savez(tmp_path / "field.npz", fields=fields, background=light, angles=[0.0, 1.0], **LENGTHS)
    for name, options in (("tilt", {"background": "tilt"}), ("field", {"background": "border"})):
        import_file("odt", tmp_path / f"{name}.npz", tmp_path / f"{name}.zarr", options)
        data = open_scan(tmp_path / f"{name}.zarr").read().numpy()
        assert np.abs(data - 1j * phase).max() <= 1e-3, name
    turned = {"conjugate": True, "background": "none"}
    np.savez(tmp_path / "plus.npz", fields=np.exp(-1j * phase), angles=[0.0, 1.0], **LENGTHS)
    import_file("odt", tmp_path / "plus.npz", tmp_path / "plus.zarr", turned)
    assert np.abs(open_scan(tmp_path / "plus.zarr").read().numpy() - 1j * phase).max() <= 1e-5
    import_file("odt", tmp_path / "plus.npz", tmp_path / "moved.zarr", {**turned, "shift": (2.0, -3.0)})
    moved = open_scan(tmp_path / "moved.zarr").read().numpy()
    assert np.abs(moved - np.roll(1j * phase, (-2, 3), (1, 2))).max() <= 1e-4


def test_light_from_many_sides_and_any_poses(tmp_path):
    phase = np.zeros((2, 12, 12))
    light = np.array([[0.1, 0.2, 0.9], [-0.3, 0.0, 1.0]])
    for name, geometry, want in (
        ("directions", light, poses_of_light(light)),
        ("poses", poses_of_rotation([0.3, 1.2], axis="x"), poses_of_rotation([0.3, 1.2], axis="x")),
    ):
        np.savez(tmp_path / f"{name}.npz", phase=phase, **{name: geometry}, **LENGTHS)
        import_file("odt", tmp_path / f"{name}.npz", tmp_path / f"{name}.zarr")
        assert np.allclose(open_scan(tmp_path / f"{name}.zarr").columns["poses"][:], want)


def test_angles_are_read_in_either_unit(tmp_path):
    file = tmp_path / "angles.txt"
    for text, want in (
        ("# turns [deg]\n0\n1\n", [0, np.pi / 180]),
        ("0, 90\n180 270\n", np.array([0, 0.5, 1, 1.5]) * np.pi),
        ("# [rad]\n0\n100\n", [0, 100]),
        ("0.1\n6.2  # the last one\n", [0.1, 6.2]),
    ):
        file.write_text(text)
        assert np.allclose(read_angles(file), want)
    for text, said in (("x\n", "not a list of angles"), ("# none\n", "holds no angles"), ("nan\n", "not finite")):
        file.write_text(text)
        with pytest.raises(InputError, match=said):
            read_angles(file)


PHASE = np.zeros((2, 12, 12))


@pytest.mark.parametrize(
    ("arrays", "options", "said"),
    [
        ({"phase": PHASE, **LENGTHS}, {}, "does not have an angle for each view"),
        ({"phase": PHASE, "angles": [0.0], **LENGTHS}, {}, "1 rows, but there are 2 views"),
        ({"phase": PHASE, "angles": [0, 1.0]}, {}, "it has no wavelength; give --wavelength, in metres"),
        ({"phase": PHASE, "angles": [0, 1.0], **LENGTHS}, {"omit": ":"}, "no projection is left"),
        ({"phase": PHASE[0], "angles": [0, 1.0], **LENGTHS}, {}, "which cannot be phase"),
        ({"phase": PHASE * np.nan, "angles": [0, 1.0], **LENGTHS}, {}, "NaN or infinity"),
        ({"angles": [0, 1.0], **LENGTHS}, {}, "must have fields, or phase and amplitude"),
        ({"phase": PHASE, "amplitude": PHASE, "angles": [0, 1.0], **LENGTHS}, {}, "the amplitude at the border is 0"),
        ({"phase": PHASE, "angles": [0, 1.0], **LENGTHS, "pixel": 0.16}, {}, "are both in metres"),
        ({"phase": PHASE, "background": np.zeros((12, 12)), "angles": [0, 1.0], **LENGTHS}, {}, "is zero somewhere"),
        ({"phase": PHASE, "angles": [0, 1.0], **LENGTHS, "medium": [1.0, 2.0]}, {}, "must be one number"),
    ],
)
def test_what_cannot_be_imported_is_refused_and_nothing_is_written(tmp_path, arrays, options, said):
    np.savez(tmp_path / "cell.npz", **arrays)
    with pytest.raises(InputError, match=said):
        import_file("odt", tmp_path / "cell.npz", tmp_path / "a.zarr", options)
    assert not (tmp_path / "a.zarr").exists()


def test_files_of_other_kinds_are_told_apart(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"there is no .*series.h5"):
        import_file("odt", tmp_path / "empty", tmp_path / "a.zarr")
    (tmp_path / "note.txt").write_text("no")
    with pytest.raises(InputError, match="not a recording of fields that we know"):
        import_file("odt", tmp_path / "note.txt", tmp_path / "a.zarr")
    with pytest.raises(InputError, match="not a file, but a folder"):
        import_file("npz", tmp_path / "empty", tmp_path / "a.zarr")
    np.savez(tmp_path / "other.npz", data=np.zeros(3))
    assert "import odt" not in str(describe_file(tmp_path / "other.npz"))


def test_the_cell_of_the_shared_data(shared_data, tmp_path):
    if not (shared_data / "odt" / "series.h5").exists():
        pytest.skip(f"there is no {shared_data / 'odt'}")
    _, made = import_file("odt", shared_data / "odt", tmp_path / "cell.zarr", {"count": 4})
    scan = open_scan(tmp_path / "cell.zarr")
    assert made.views == scan.n_views == 4
    assert 2.5 < float(scan.read().imag.max()) < 4
    assert scan.instrument.wavelength == pytest.approx(647e-9)
