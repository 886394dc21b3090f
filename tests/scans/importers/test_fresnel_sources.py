"""Institut Fresnel files with any number of sources: the geometry is read from the file."""

import functools

import numpy as np
import pytest
from scipy.special import hankel1

from fresnel_files import IMPORTER, import_fresnel
from plugstream import PlugstreamWarning, open_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry

RADIUS = 1.67
FREQUENCIES = (2.0, 3.0)
OBJECT = np.array([[0.03, -0.02], [-0.05, 0.01]])  # two small scatterers, whose Born field is a sum of two waves


def positions(angles):
    return RADIUS * np.stack([np.cos(angles), np.sin(angles)], -1)


def waves(points, others, frequency):
    k = 2 * np.pi * frequency * 1e9 / 299_792_458
    return 0.25j * hankel1(0, k * np.linalg.norm(points[:, None] - others[None], axis=-1))


def fields(sources, frequency):
    """Incident and scattered field of unit line sources at 360 receivers, exp(-i w t): (sources, 360) each."""
    receivers = positions(np.deg2rad(np.arange(360)))
    incident = waves(sources, receivers, frequency)
    scattered = 3.0 * waves(sources, OBJECT, frequency) @ waves(OBJECT, receivers, frequency)
    return incident, scattered


def write(path, count, *, views=None):
    """A file as those of 2005: view slowest, receivers by their place on the ring, frequency fastest; no header."""
    path.write_text("".join(made(count, tuple(range(count) if views is None else views))))
    return path


@functools.cache
def made(count, views):
    """Its lines, which take longer to write than to read."""
    angles = 2 * np.pi * np.arange(count) / count
    known = {f: fields(positions(angles), f) for f in FREQUENCIES}
    lines = []
    for view in views:
        start = round(np.rad2deg(angles[view])) + 60
        for receiver in sorted((start + n) % 360 for n in range(241)):
            for number, f in enumerate(FREQUENCIES):
                strength = 1.7 * np.exp(0.4j + number)  # arbitrary units, other ones at each frequency
                incident, scattered = (strength * part[view, receiver] for part in known[f])
                total = np.conj(incident + scattered)  # exp(+i w t)
                incident = np.conj(incident)
                numbers = (total.real, total.imag, incident.real, incident.imag)
                text = "".join(f"{n:17.6e}".replace("e-", "e-0").replace("e+", "e+0") for n in numbers)
                lines.append(f"{view + 1:3d}{receiver + 1:5d}{f:7.1f}{text}\n")
    return lines


@pytest.mark.parametrize("count", [8, 18, 12])
def test_the_sources_are_where_the_file_has_them(tmp_path, count):
    """The field that was written comes back, at the places that it was computed for."""
    file = write(tmp_path / "FoamTwinDielTM.txt", count)
    for f in FREQUENCIES:
        scan = import_fresnel(file, f)
        angles = 2 * np.pi * np.arange(count) / count
        np.testing.assert_allclose(born_geometry(scan).transmitters, positions(angles), atol=1e-12)
        assert born_geometry(scan).mask.sum() == 241 * count
        _, scattered = fields(positions(angles), f)
        mask = np.asarray(born_geometry(scan).mask)
        error = scan.data.numpy()[mask] - scattered[mask]
        assert np.linalg.norm(error) < 3e-4 * np.linalg.norm(scattered[mask])


def test_the_command_imports_18_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "FoamTwinDielTM.txt", 18)
    assert main(["import", IMPORTER, "FoamTwinDielTM.txt", "--frequency", "3", "--size", "32"]) == 0
    scan = open_scan(tmp_path / "FoamTwinDielTM-3GHz.zarr")
    assert scan.n_views == 18
    assert "2005" in scan.provenance["citation"]


def test_a_file_that_stops_early_keeps_the_views_it_has(tmp_path):
    """Nine of eighteen: their receivers tell that sources are 20 degrees apart, not 40."""
    file = write(tmp_path / "f.txt", 18, views=range(9))
    with pytest.warns(PlugstreamWarning, match=r"has 2169 of the 4338 measurements at 2 GHz.* cut short"):
        scan = import_fresnel(file, 2.0)
    np.testing.assert_allclose(born_geometry(scan).transmitters, positions(np.deg2rad(20.0 * np.arange(9))), atol=1e-12)
    gap = write(tmp_path / "g.txt", 18, views=[0, 1, 2, 4, 17])
    with pytest.warns(PlugstreamWarning, match="has 1205 of the 4338 measurements"):
        scan = import_fresnel(gap, 2.0)
    want = positions(np.deg2rad(20.0 * np.array([0, 1, 2, 4, 17])))
    np.testing.assert_allclose(born_geometry(scan).transmitters, want, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [(v, (r + 9) % 360 + 1) for v, r in rows], "do not stand opposite"),  # the ring turned
        (lambda rows: [(v, r) for v, r in rows if v == 1], "has 1 views"),
        (lambda rows: [(v, r + 300) for v, r in rows], "rings of 72"),
        (lambda rows: [(v, (r - 20 * (v - 1) - 1) % 360 + 1) for v, r in rows], "do not stand opposite"),  # all alike
    ],
)
def test_a_geometry_that_is_none_of_theirs_is_refused(tmp_path, capsys, change, message):
    lines = write(tmp_path / "f.txt", 18).read_text().splitlines()
    moved = change([(int(line[:3]), int(line[3:8])) for line in lines])
    text = "".join(f"{v:3d}{r:5d}{line[8:]}\n" for (v, r), line in zip(moved, lines, strict=False))
    (tmp_path / "f.txt").write_text(text)
    assert main(["import", IMPORTER, str(tmp_path / "f.txt"), str(tmp_path / "s.zarr"), "--frequency", "2"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "s.zarr").exists()
