"""The importer of the Institut Fresnel: real measurements against an exact solution, and what is made of them."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.ndimage import label
from scipy.special import hankel1

from cylinders import exact_field
from effort import effort, thorough
from fresnel_files import IMPORTER, import_fresnel, importer
from plugstream import PlugstreamWarning, open_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry

ROOT = Path(__file__).parents[3]
# Centre and radius in mm, permittivity: where an exact solution fits best for 2001, as published for 2005.
CYLINDERS = {
    "dielTM_dec8f.exp": [(1.3, 26.2, 15.0, 3.0)],
    "twodielTM_8f.exp": [(-2.5, 46.3, 15.0, 3.0), (-12.3, -43.6, 15.0, 3.0)],
    "FoamDielExtTM.txt": [(0.0, 0.0, 40.0, 1.45), (-55.5, 0.0, 15.5, 3.0)],
}


horn_factor, read_fresnel = importer.horn_factor, importer.read_fresnel
read_once = functools.cache(read_fresnel)


@pytest.fixture
def fresnel(shared_data, monkeypatch) -> Path:
    """The folder of the real files, of which each is read once for all tests."""
    folder = shared_data / "fresnel"
    monkeypatch.setattr(importer, "read_fresnel", lambda p: (read_once if p.parent == folder else read_fresnel)(p))
    return folder


def agreement(scan, field):
    """Correlation of the scan with a field where it was recorded, and the factor that takes the field to the scan."""
    y, z = scan.data.numpy()[born_geometry(scan).mask], field[born_geometry(scan).mask]
    return abs(np.vdot(z, y)) / np.linalg.norm(y) / np.linalg.norm(z), np.vdot(z, y) / np.vdot(z, z)


@pytest.mark.parametrize("frequency", [2.0, 3.0])
@pytest.mark.parametrize("name", CYLINDERS)
def test_the_imported_field_is_that_of_the_cylinders_solved_exactly(fresnel, name, frequency):
    scan = import_fresnel(fresnel / name, frequency)
    alike, factor = agreement(scan, exact_field(born_geometry(scan), CYLINDERS[name]))
    assert alike > 0.98
    assert abs(factor - 1) < 0.2  # calibration: neither strength nor phase is left over
    # Conjugated wrongly, or the axes mirrored, it would not be.
    wrong = [(-x, -y, r, e) for x, y, r, e in CYLINDERS[name]]
    assert agreement(scan, exact_field(born_geometry(scan), CYLINDERS[name]).conj())[0] < 0.9
    if name != "twodielTM_8f.exp":
        assert agreement(scan, exact_field(born_geometry(scan), wrong))[0] < 0.8


# With a free factor for each frequency the exact solution fits best with these.
FITTED = {
    "dielTM_dec8f.exp": [(1.3, 26.1, 15.8, 3.04)],
    "twodielTM_8f.exp": [(-2.6, 45.5, 15.9, 3.02), (-12.2, -43.0, 16.2, 3.05)],
    "FoamDielExtTM.txt": [(2.2, 1.6, 40.4, 1.436), (-53.7, 1.3, 15.7, 3.12)],
}


@pytest.mark.filterwarnings("ignore::plugstream.PlugstreamWarning")
@pytest.mark.parametrize("frequency", effort([4.0], [2.0, 4.0, 6.0]))
@pytest.mark.parametrize("name", FITTED)
def test_the_factor_of_the_horns_is_what_known_cylinders_measure(fresnel, name, frequency):
    """Within 0.05 of the mean of the targets of its series; with it, a good part of what was left is explained."""
    plain = import_fresnel(fresnel / name, frequency, size=8, horns=False)
    field = exact_field(born_geometry(plain), FITTED[name], orders=18 if name.startswith("Foam") else 10)
    assert plain.provenance["horns"] == [1.0, 0.0]
    measured = agreement(plain, field)[1]
    scan = import_fresnel(fresnel / name, frequency, size=8)
    assert abs(complex(*scan.provenance["horns"]) - measured) < 0.05
    assert abs(agreement(scan, field)[1] - 1) < 0.05
    mask = born_geometry(scan).mask
    left = [np.linalg.norm((one.data.numpy() - field)[mask]) ** 2 for one in (scan, plain)]
    assert left[0] < 0.7 * left[1]


def test_horns_are_known_between_the_frequencies_that_they_were_measured_at():
    assert horn_factor(2001, 2.5) == pytest.approx((horn_factor(2001, 2) + horn_factor(2001, 3)) / 2)
    assert horn_factor(2001, 16) == horn_factor(2005, 1) == 1


def test_the_two_cylinders_of_2001_are_not_quite_where_they_were_meant_to_be(fresnel):
    """The exact solution fits best where CYLINDERS says: 3 mm away from there in any direction it fits less well."""
    scans = [import_fresnel(fresnel / "twodielTM_8f.exp", frequency) for frequency in (2.0, 3.0)]

    def fit(cylinders):
        return np.mean([agreement(scan, exact_field(born_geometry(scan), cylinders, orders=6))[0] for scan in scans])

    best = CYLINDERS["twodielTM_8f.exp"]
    assert fit(best) > 0.985
    assert fit([(0, 45, 15, 3), (0, -45, 15, 3)]) < 0.95
    for moved in (0, 1):
        for dx, dy in ((3, 0), (-3, 0), (0, 3), (0, -3)):
            others = [(x + dx * (n == moved), y + dy * (n == moved), r, e) for n, (x, y, r, e) in enumerate(best)]
            assert fit(others) < fit(best)
    # A whole pair of the right width, off the axis of the turntable: turning it about the axis does not explain it.
    (x1, y1, *_), (x2, y2, *_) = best
    assert abs(np.hypot(x1 - x2, y1 - y2) - 90) < 1
    for turn in np.deg2rad([-6, 0, 3, 6, 9]):
        x, y = 45 * np.sin(turn), 45 * np.cos(turn)
        assert fit([(x, y, 15, 3), (-x, -y, 15, 3)]) < fit(best) - 0.025


@pytest.mark.parametrize(
    ("name", "views", "recorded", "radii"),
    [
        ("dielTM_dec8f.exp", 36, 49, (0.72, 0.76)),
        ("twodielTM_8f.exp", 36, 49, (0.72, 0.76)),
        ("FoamDielExtTM.txt", 8, 241, (1.67, 1.67)),
        ("FoamDielIntTM.txt", 8, 241, (1.67, 1.67)),
    ],
)
def test_positions_and_calibration_of_all_files(fresnel, name, views, recorded, radii):
    scan = import_fresnel(fresnel / name, 3.0)
    g = born_geometry(scan)
    assert g.n_views == views
    assert (g.mask.sum(1) == recorded).all()
    assert np.allclose(np.hypot(*g.transmitters.T), radii[0])
    assert np.allclose(np.hypot(*g.receivers.T), radii[1])
    angle = np.rad2deg(np.arctan2(g.receivers[:, 1], g.receivers[:, 0]))
    source = np.rad2deg(np.arctan2(g.transmitters[:, 1], g.transmitters[:, 0]))
    assert np.allclose(source % 360, 360 * np.arange(views) / views)
    from_source = np.round((angle[None] - source[:, None]) % 360, 6)
    assert (g.mask == ((from_source >= 60) & (from_source <= 300))).all()
    # The file's own numbers, read in another way: at 180 degrees the calibrated incident field is i/4 H0.
    table = np.loadtxt(fresnel / name)
    table = table[np.isclose(table[:, 2], 3.0)]
    step = 360 // g.n_receivers
    opposite = table[(table[:, 1] - 1) * step % 360 == ((table[:, 0] - 1) * (360 // views) + 180) % 360]
    assert len(opposite) == views
    factor = complex(*scan.provenance["calibration"])
    incident = (opposite[:, 5] - 1j * opposite[:, 6]) / factor
    assert np.allclose(incident, 0.25j * hankel1(0, g.wavenumber * sum(radii)), rtol=5e-3)
    view, receiver = int(opposite[0, 0]) - 1, int(opposite[0, 1]) - 1
    factor *= complex(*scan.provenance["horns"])
    scattered = np.conj(complex(*opposite[0, 3:5]) - complex(*opposite[0, 5:7])) / factor
    assert complex(scan.data[view, receiver]) == pytest.approx(scattered, rel=1e-6)
    assert scan.provenance["incident_mismatch"]["within_30_degrees"] < 0.4
    assert "doi" in scan.provenance["citation"]


def test_horns_that_are_no_line_sources_are_warned_of(fresnel, tmp_path, capsys):
    with pytest.warns(PlugstreamWarning, match="near the middle, which the beam lights evenly; born-2d does better"):
        import_fresnel(fresnel / "dielTM_dec8f.exp", 6)
    with pytest.warns(PlugstreamWarning, match="which the beam lights evenly$"):  # and no advice on another instrument
        import_fresnel(fresnel / "dielTM_dec8f.exp", 6, instrument="scattering-2d")
    out = tmp_path / "s.zarr"
    assert main(["import", IMPORTER, str(fresnel / "dielTM_dec8f.exp"), str(out), "--frequency", "6"]) == 0
    assert "warning: the incident field" in capsys.readouterr().err
    assert open_scan(out).provenance["incident_mismatch"]["within_30_degrees"] > 0.4


def test_the_command_names_the_scan_itself(fresnel, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["import", IMPORTER, str(fresnel / "FoamDielExtTM.txt"), "--frequency", "3"]
    assert main([*words, "--size", "32", "--width", "0.16"]) == 0
    said = capsys.readouterr().err
    assert "is off by 0.20 of a line source's within 30 degrees" in said
    assert "Geffrin" in said
    scan = open_scan("FoamDielExtTM-3GHz.zarr")
    assert torch.equal(scan.read(), import_fresnel(fresnel / "FoamDielExtTM.txt", 3).data)
    assert born_geometry(scan).grid.shape == (32, 32)
    assert born_geometry(scan).grid.pixel == 0.005
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["none", "\r\n", "\r", "\ufeff"])
def test_line_ends_and_marks_of_other_systems_do_not_matter(fresnel, tmp_path, change):
    lines = (fresnel / "dielTM_dec8f.exp").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if line.startswith("#") or line.split()[2] == "3")
    text = change + text if change == "\ufeff" else text if change == "none" else text.replace("\n", change)
    (tmp_path / "f.exp").write_bytes(text.encode())
    assert torch.equal(import_fresnel(tmp_path / "f.exp", 3).data, import_fresnel(fresnel / "dielTM_dec8f.exp", 3).data)


def test_a_file_that_was_cut_short_is_noticed(fresnel, tmp_path, capsys):
    text = (fresnel / "dielTM_dec8f.exp").read_text()
    file = tmp_path / "f.exp"
    words = ["import", IMPORTER, str(file), str(tmp_path / "s.zarr"), "--frequency", "8"]
    for lost in (3, 20):  # within an exponent, where what is left is a number, and within the line
        file.write_text(text[:-lost])
        assert main(words) == 2
        assert "is cut short in its last line" in capsys.readouterr().err
    file.write_text(text.rstrip("\n"))  # only the end of the last line is missing
    assert torch.equal(import_fresnel(file, 3).data, import_fresnel(fresnel / "dielTM_dec8f.exp", 3).data)
    file.write_text("\n".join(text.splitlines()[:-10]) + "\n")
    with pytest.warns(PlugstreamWarning, match=r"has 1763 of the 1764 measurements at 3 GHz.* cut short"):
        scan = import_fresnel(file, 3)
    assert born_geometry(scan).mask.sum() == 1763


def blobs(image, grid):
    """The centroids, in mm, of the parts of the image above half its maximum, the greatest first."""
    points = 1e3 * grid.points().reshape(*image.shape, 2)
    parts, count = label(image > image.max() / 2)
    weights = [np.where(parts == n, image, 0) for n in range(1, count + 1)]
    weights.sort(key=lambda w: -w.sum())
    return [(w[..., None] * points).sum((0, 1)) / w.sum() for w in weights]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("fresnel_example", ROOT / "examples" / "fresnel.py")
    module = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, fresnel_importer=importer):
        spec.loader.exec_module(module)
    return module


def thin(file, out, step):
    """Every so many views of a file, whose sources are then farther apart."""
    rows = [line.split() for line in file.read_text().splitlines() if line.startswith(" ")]
    rows = [[str((int(view) - 1) // step + 1), *rest] for view, *rest in rows if int(view) % step == 1 % step]
    out.write_text("".join(" ".join(row) + "\n" for row in rows))
    return out


@thorough
@pytest.mark.usefixtures("one_thread")
def test_one_cylinder_is_found(fresnel, tmp_path, example):
    step, frequencies, iterations = effort((6, (1.0, 3.0), 12), (1, (1.0, 2.0, 3.0), 100))
    file = thin(fresnel / "dielTM_dec8f.exp", tmp_path / "dielTM.exp", step)
    image, grid, _ = example.reconstruct(file, frequencies, iterations=iterations)
    (found,) = blobs(image.numpy(), grid)
    assert np.hypot(*(found - (0, 29))) < 3


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_two_cylinders_are_found_apart(fresnel, example):
    """Within 5 mm of where the exact solution puts them.

    The upper one is also within 5 mm of its nominal place (0, 45). The lower one is not where it was meant to be: the
    exact solution, too, finds it 12 mm beside (0, -45).
    """
    image, grid, _ = example.reconstruct(fresnel / "twodielTM_8f.exp", (1.0, 2.0, 3.0))
    found = sorted(blobs(image.numpy(), grid), key=lambda p: -p[1])
    assert len(found) == 2
    for place, (x, y, _, _) in zip(found, CYLINDERS["twodielTM_8f.exp"], strict=True):
        assert np.hypot(*(place - (x, y))) < 5
    assert np.hypot(*(found[0] - (0, 45))) < 5
    assert abs(found[1][1] + 45) < 5


@pytest.mark.usefixtures("one_thread")
def test_the_joint_model_of_the_example_is_linear_with_its_adjoint(fresnel, example):
    scans = [import_fresnel(fresnel / "dielTM_dec8f.exp", f, size=16) for f in (1, 2)]
    joint = example.Joint([example.ps.BornModel(born_geometry(s)) for s in scans], [2.0, 0.5])
    generator = torch.Generator().manual_seed(0)
    for views in (None, torch.tensor([40, 3, 71, 3, 36])):
        x = torch.randn(16, 16, generator=generator)
        y = joint.forward(x, views)
        z = torch.randn(y.shape, dtype=y.dtype, generator=generator)
        left, right = float((y * z.conj()).real.sum()), float((x * joint.adjoint(z, views)).sum())
        assert left == pytest.approx(right, rel=1e-3, abs=1e-5 * float(y.norm() * z.norm()))
    assert torch.equal(joint.forward(x)[36:], 0.5 * joint.parts[1][0].forward(x))


ROW = "  1   13    1     2.5100E-001     2.0420E-001     3.0315E-001     1.9505E-001\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no measurements"),
        (ROW + "1 2 3\n", "line 2 of"),
        (ROW.replace("2.5100E-001", "nan"), "is not the seven numbers"),
        (ROW.replace("2.5100E-001", "lots"), "is not the seven numbers"),
        (ROW.replace("  1   13", "  0   13"), "is not the seven numbers"),
        (ROW, "has 1 views and receivers up to 13"),
        ("# Polarization : TE (E ortho)\n" + ROW, "is not of TM polarisation"),
        (
            "".join(ROW.replace("  1   13", f"{v} {r}") for v in range(1, 37) for r in (7, 7)),
            "receiver of a view twice",
        ),
        ("".join(ROW.replace("  1   13", f"{v} 13") for v in range(1, 37)), "lacks the receiver opposite"),
    ],
)
def test_fresnel_files_that_are_none(tmp_path, capsys, content, message):
    file = tmp_path / "f.exp"
    file.write_text(content)
    assert main(["import", IMPORTER, str(file), str(tmp_path / "s.zarr"), "--frequency", "1"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]
