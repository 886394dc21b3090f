"""One's own data with a measured incident field and several frequencies, from HDF5 and NPZ."""

import h5py
import numpy as np
import pytest
from scipy.special import hankel1

from effort import cases
from fresnel_files import import_fresnel
from plugstream import InputError, PlugstreamWarning, open_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry
from plugstream.models.born_geometry import ring
from plugstream.scans.importers import import_hdf5, import_npz

LIGHT = 299_792_458.0
FREQUENCIES = np.array([2e9, 3e9, 4.5e9])
STRENGTHS = np.array([2.0 + 1.0j, -0.3 + 0.1j, 1e3j])  # of the instrument, other ones at each frequency
VIEWS, RECEIVERS = 6, 20
SOURCES, ANTENNAS = ring(VIEWS, 1.5), ring(RECEIVERS, 1.7)
OBJECT = np.array([[0.05, -0.02], [-0.07, 0.03]])
VALUES = {"size": 16, "width": 0.2}


def wave(points, others, frequency):
    return 0.25j * hankel1(0, 2 * np.pi * frequency / LIGHT * np.linalg.norm(points[:, None] - others[None], axis=-1))


def directions():
    return -SOURCES / 1.5


def incident_field(kind, frequency):
    if kind == "transmitters":
        return wave(SOURCES, ANTENNAS, frequency)
    return np.exp(2j * np.pi * frequency / LIGHT * directions() @ ANTENNAS.T)


def measured(kind="transmitters"):
    """Incident and scattered field of unit sources, (frequencies, views, receivers) each."""
    incident = np.stack([incident_field(kind, f) for f in FREQUENCIES])
    scattered = np.stack([wave(SOURCES, OBJECT, f) @ wave(OBJECT, ANTENNAS, f) for f in FREQUENCIES])
    return incident, scattered


def content(kind="transmitters"):
    """What an instrument stores: both fields in its own units."""
    incident, scattered = (STRENGTHS[:, None, None] * part for part in measured(kind))
    places = SOURCES if kind == "transmitters" else directions()
    return {"total": incident + scattered, "incident": incident, "receivers": ANTENNAS, kind: places}


def store(path, arrays, **attributes):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return import_npz
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
            if name in attributes:
                file[name].attrs["units"] = attributes[name]
    return import_hdf5


def close(got, want, within=1e-5):
    assert np.linalg.norm(got - want) <= within * np.linalg.norm(want)


@pytest.mark.parametrize(("axis", "kind", "name"), cases([0, 1, 2], ["transmitters", "plane_waves"], ["f.h5", "f.npz"]))
def test_total_and_incident_fields_at_any_of_the_frequencies(tmp_path, name, axis, kind):
    """What comes out is the scattered field of unit sources, whatever the instrument's strength and phase."""
    arrays = content(kind)
    for field in ("total", "incident"):
        arrays[field] = np.moveaxis(arrays[field], 0, axis)
    arrays["frequency"] = FREQUENCIES
    run = store(tmp_path / name, arrays)
    for number, frequency in enumerate(FREQUENCIES / 1e9):
        out = tmp_path / f"{number}.zarr"
        assert run(tmp_path / name, out, VALUES, frequency=frequency) == VIEWS
        scan = open_scan(out)
        assert born_geometry(scan).wavelength == pytest.approx(LIGHT / FREQUENCIES[number])
        close(scan.read().numpy(), measured(kind)[1][number])
        close(np.array([complex(*scan.provenance["calibration"])]), STRENGTHS[[number]])
        assert scan.provenance["incident_mismatch"]["all_angles"] < 1e-4
        assert scan.provenance["frequency_ghz"] == pytest.approx(frequency)


def test_scattered_data_conjugated_pairs_masks_and_units(tmp_path):
    """exp(+i w t), real and imaginary part in a last axis, a mask a frequency, NaN behind it, GHz and mm."""
    arrays = content()
    data = np.conj(arrays.pop("total") - arrays["incident"])
    mask = np.random.default_rng(0).random(data.shape) < 0.8
    incident = np.where(mask, np.conj(arrays["incident"]), np.nan)
    arrays |= {
        "data": np.stack([data.real, data.imag], -1),
        "incident": np.stack([incident.real, incident.imag], -1),
        "mask": mask,
        "receivers": 1e3 * ANTENNAS,
        "transmitters": 1e3 * SOURCES,
        "frequency": FREQUENCIES / 1e9,
    }
    run = store(tmp_path / "f.h5", arrays, frequency="GHz", receivers="mm", transmitters="mm")
    run(tmp_path / "f.h5", tmp_path / "s.zarr", {"size": 16, "width": 0.2}, conjugate=True, frequency=3)
    scan = open_scan(tmp_path / "s.zarr")
    assert np.array_equal(born_geometry(scan).mask, mask[1])
    close(scan.read().numpy()[mask[1]], measured()[1][1][mask[1]])


def test_a_file_larger_than_a_block_is_calibrated_as_a_whole(tmp_path, monkeypatch):
    from plugstream.scans.importers import reading as module

    monkeypatch.setattr(module, "_BLOCK_BYTES", 16 * RECEIVERS * 2)  # two views at a time
    fields = content() | {"wavelength": LIGHT / FREQUENCIES}
    run = store(tmp_path / "f.h5", fields)
    run(tmp_path / "f.h5", tmp_path / "s.zarr", VALUES, frequency=4.5)
    close(open_scan(tmp_path / "s.zarr").read().numpy(), measured()[1][2])
    run(tmp_path / "f.h5", tmp_path / "t.zarr", VALUES | {"wavelength": float(LIGHT / 3e9)})  # chosen by its length
    close(open_scan(tmp_path / "t.zarr").read().numpy(), measured()[1][1])


def test_one_frequency_needs_no_choice_and_no_axis(tmp_path):
    fields = {name: array[1] if array.ndim == 3 else array for name, array in content().items()}
    run = store(tmp_path / "a.npz", fields | {"frequency": np.array(3e9)})
    run(tmp_path / "a.npz", tmp_path / "a.zarr", VALUES)
    close(open_scan(tmp_path / "a.zarr").read().numpy(), measured()[1][1])
    run = store(tmp_path / "b.npz", fields)  # it does not say
    run(tmp_path / "b.npz", tmp_path / "b.zarr", VALUES, frequency=3)
    close(open_scan(tmp_path / "b.zarr").read().numpy(), measured()[1][1])
    alone = {name: array[1:2] if array.ndim == 3 else array for name, array in content().items()}
    run = store(tmp_path / "c.npz", alone | {"frequency": np.array([3e9])})
    run(tmp_path / "c.npz", tmp_path / "c.zarr", VALUES)
    close(open_scan(tmp_path / "c.zarr").read().numpy(), measured()[1][1])


def test_real_measurements_come_out_as_the_fresnel_importer_has_them(shared_data, tmp_path):
    """The same file as plain arrays: the same data, up to the one complex number by which both calibrate."""
    file = shared_data / "fresnel" / "FoamDielExtTM.txt"
    rows = np.loadtxt(file)
    frequencies = np.unique(rows[:, 2])
    at = (np.searchsorted(frequencies, rows[:, 2]), rows[:, 0].astype(int) - 1, rows[:, 1].astype(int) - 1)
    total, incident = np.zeros((2, len(frequencies), 8, 360), complex)
    mask = np.zeros(total.shape, bool)
    total[at], incident[at], mask[at] = rows[:, 3] + 1j * rows[:, 4], rows[:, 5] + 1j * rows[:, 6], True
    places = {"receivers": ring(360, 1.67), "transmitters": ring(8, 1.67), "frequency": frequencies}
    np.savez(tmp_path / "f.npz", total=total, incident=incident, mask=mask, **places)
    mapping = VALUES | {"frequency_unit": "GHz"}
    import_npz(tmp_path / "f.npz", tmp_path / "s.zarr", mapping, conjugate=True, frequency=3)
    scan, known = open_scan(tmp_path / "s.zarr"), import_fresnel(file, 3.0, horns=False)
    got, want = (s.read().numpy()[np.asarray(born_geometry(s).mask)] for s in (scan, known))
    factor = np.vdot(want, got) / np.vdot(want, want)
    close(got, factor * want)
    assert abs(factor - 1) < 1e-3
    assert scan.provenance["incident_mismatch"]["within_30_degrees"] < 0.25


def test_the_command_says_what_it_did(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "f.npz", content() | {"frequency": FREQUENCIES})
    assert main(["import", "npz", "f.npz", "--frequency", "3", "--size", "16", "--width", "0.2"]) == 0
    said = capsys.readouterr()
    assert "calibrated by the incident field: it is off by 0.00" in said.out + said.err
    close(open_scan(tmp_path / "f-3GHz.zarr").read().numpy(), measured()[1][1])


def test_an_incident_field_that_is_not_the_model_is_warned_of(tmp_path):
    run = store(tmp_path / "f.npz", content() | {"frequency": FREQUENCIES})
    with pytest.warns(PlugstreamWarning, match=r"the incident field of f.npz is off by .* --conjugate"):
        run(tmp_path / "f.npz", tmp_path / "s.zarr", VALUES, frequency=3, conjugate=True)


def without(name):
    return lambda a: {k: v for k, v in a.items() if k != name}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda a: a, {}, "has 2, 3, 4.5 GHz; choose one with --frequency"),
        (lambda a: a, {"frequency": 5}, "has no 5 GHz; it has 2, 3, 4.5 GHz"),
        (lambda a: a | {"frequency": FREQUENCIES / 1e9}, {"frequency": 3}, "frequency_unit=GHz"),
        (lambda a: a, {"frequency": -1}, "the frequency must be a number > 0"),
        (
            lambda a: a,
            {"frequency": float("nan")},
            "frequency of the importer of arrays: Input should be a finite number",
        ),
        (lambda a: a | {"frequency": np.array([1e9, 0, 2e9])}, {"frequency": 1}, "are not all > 0"),
        (without("incident"), {"frequency": 3}, "no incident one to subtract"),
        (without("frequency"), {"frequency": 3}, "must be (views, receivers)"),
        (
            lambda a: a | {"incident": a["incident"][0]},
            {"frequency": 3},
            "without an axis for the file's 3 frequencies",
        ),
        (lambda a: a | {"incident": a["incident"][:, :5]}, {"frequency": 3}, "incident of"),
        (lambda a: a | {"incident": 0 * a["incident"]}, {"frequency": 3}, "nothing can be calibrated by it"),
        (lambda a: a | {"incident": np.nan * a["incident"]}, {"frequency": 3}, "view 0 holds NaN"),
        (lambda a: a | {"incident": 1e300 * a["incident"]}, {"frequency": 3}, "too large to compute with"),
        (lambda a: a | {"frequency": np.full(3, 3e9)}, {"frequency": 3}, "has 3 GHz more than once"),
        (lambda a: a | {"frequency": np.full(500, "x")}, {"frequency": 3}, "frequency must be a number"),
        (lambda a: a | {"frequency_axis": np.array(1.5)}, {"frequency": 3}, "frequency_axis must be one of"),
        (lambda a: a | {"frequency": FREQUENCIES[:2]}, {"frequency": 3}, "an axis besides for each of the file's freq"),
        (lambda a: a | {"far_field": np.array(1)}, {"frequency": 3}, "not receivers in the far field"),
        (lambda a: a | {"receivers": np.repeat(SOURCES[:1], RECEIVERS, 0)}, {"frequency": 3}, "where a source does"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, change, options, message):
    run = store(tmp_path / "f.npz", change(content() | {"frequency": FREQUENCIES}))
    with pytest.raises(InputError) as caught:
        run(tmp_path / "f.npz", tmp_path / "s.zarr", VALUES, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["f.npz"]


def test_an_axis_that_cannot_be_told_is_asked_for(tmp_path):
    """As many frequencies as views."""
    arrays = content()
    square = {name: np.repeat(arrays[name], 2, 0) for name in ("total", "incident")}
    arrays |= square | {"frequency": np.linspace(2e9, 7e9, 6)}
    run = store(tmp_path / "f.npz", arrays)
    with pytest.raises(InputError, match="give --map frequency_axis=0 or 1"):
        run(tmp_path / "f.npz", tmp_path / "s.zarr", VALUES, frequency=2)
    for name, axis in (("s.zarr", 0), ("t.zarr", -3)):
        run(tmp_path / "f.npz", tmp_path / name, VALUES | {"frequency_axis": axis}, frequency=2)
        close(open_scan(tmp_path / name).read().numpy(), measured()[1][0])


def test_fields_on_the_grid_have_an_axis_too_but_no_calibration(tmp_path):
    rng = np.random.default_rng(1)
    fields = rng.standard_normal((3, VIEWS, 16, 16)) + 1j
    data = measured()[1]
    arrays = {"data": data, "fields": fields, "receivers": ANTENNAS, "frequency": FREQUENCIES}
    run = store(tmp_path / "f.npz", arrays)
    run(tmp_path / "f.npz", tmp_path / "s.zarr", VALUES, frequency=3)
    close(np.asarray(born_geometry(open_scan(tmp_path / "s.zarr")).fields[:]), fields[1])
    run = store(tmp_path / "g.npz", arrays | {"incident": data})
    with pytest.raises(InputError, match="calibrates transmitters and plane_waves, not fields"):
        run(tmp_path / "g.npz", tmp_path / "t.zarr", VALUES, frequency=3)
