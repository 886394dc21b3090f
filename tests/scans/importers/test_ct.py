"""Tomographs' files: what is put into their counts comes out as line integrals, with the geometry that they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from plugstream.base.errors import InputError
from plugstream.instruments.ct import ct_rays
from plugstream.models.ct_beams import fan_beam, parallel_beam
from plugstream.scans import open_scan
from plugstream.scans.importers import describe_file, import_file

VIEWS, ROWS, COLUMNS, CENTER = 60, 3, 80, 37.4
ANGLES = np.arange(VIEWS) * 180.0 / VIEWS


def _integrals() -> np.ndarray:
    """Chords of three discs, which each row sees a little more of: (views, rows, columns)."""
    turn, s = np.deg2rad(ANGLES)[:, None], np.arange(COLUMNS)[None] - CENTER
    total = np.zeros((VIEWS, COLUMNS))
    for x, y, radius, value in ((2.0, -1.0, 22.0, 0.03), (9.0, 3.0, 5.0, 0.05), (-8.0, 6.0, 3.0, -0.02)):
        off = s - (x * np.cos(turn) + y * np.sin(turn))
        total += 2 * value * np.sqrt(np.maximum(radius**2 - off**2, 0))
    return total[:, None] * np.array([1.0, 1.1, 1.2])[None, :, None]


def _write(path: Path, *, bad: bool = False, **more: Any) -> np.ndarray:
    """A Data Exchange file with dark current, an uneven beam, an exposure that drifts, and perhaps a dead pixel."""
    p = _integrals()
    beam = 5000 + 800 * np.cos(np.arange(COLUMNS) / 20) + np.zeros((ROWS, 1))
    if bad:
        beam[1, 30] = 0
    drift = 1 + 0.05 * np.sin(np.arange(VIEWS))[:, None, None]
    with h5py.File(path, "w") as file:
        file["exchange/data"] = (100 + beam * drift * np.exp(-p)).astype(np.float32)
        file["exchange/data_white"] = np.stack([100 + beam, 100 + beam]).astype(np.float32)
        file["exchange/data_dark"] = np.full((4, ROWS, COLUMNS), 100, np.float32)
        file["exchange/theta"] = ANGLES
        file["exchange/theta"].attrs["units"] = "degrees"
        for name, value in more.items():
            file[name.replace("__", "/")] = value
    return p


def _import(path: Path, out: Path, **options: Any) -> Any:
    import_file("ct", path, out, options)
    return open_scan(out)


def test_data_exchange_needs_nothing_else(tmp_path: Path) -> None:
    p = _write(tmp_path / "a.h5")
    scan = _import(tmp_path / "a.h5", tmp_path / "a.zarr")
    assert scan.instrument.image.shape == (ROWS, COLUMNS, COLUMNS)
    np.testing.assert_allclose(scan.read().numpy(), p, atol=2e-3)  # the drift is gone with the air
    rays = ct_rays(scan)
    want = parallel_beam(np.deg2rad(ANGLES), (ROWS, COLUMNS), 1.0, center=CENTER)
    np.testing.assert_allclose(rays.vectors, want.vectors, atol=0.1)
    assert (scan.instrument.unit, scan.instrument.image.value_unit) == ("pixel", "1/pixel")
    steps = [step["step"] for step in scan.provenance["steps"]]
    assert steps == ["projections", "flat and dark fields", "logarithm", "air", "rotation axis"]
    json.dumps(scan.provenance)


def test_rows_views_and_sizes_are_chosen(tmp_path: Path) -> None:
    p = _write(tmp_path / "a.h5")
    one = _import(tmp_path / "a.h5", tmp_path / "one.zarr", rows="1", omit="5::10", count=20, size=64, pixel=2e-6)
    left = np.delete(np.arange(VIEWS), np.arange(5, VIEWS, 10))
    chosen = left[np.arange(20) * len(left) // 20]
    np.testing.assert_allclose(one.read().numpy(), p[chosen, 1], atol=2e-3)
    assert one.instrument.image.shape == (64, 64)
    assert one.instrument.image.spacing == (2e-6, 2e-6)
    held = _import(tmp_path / "a.h5", tmp_path / "held.zarr", rows="1", select="5::10", size=64, pixel=2e-6)
    assert held.n_views == 6
    # Whichever views are taken, the axis is that of the whole file.
    assert held.provenance["steps"][-1] == one.provenance["steps"][-1]
    some = _import(tmp_path / "a.h5", tmp_path / "some.zarr", rows="0:3:2", center=37.0, air=0)
    assert some.read().shape == (VIEWS, 2, COLUMNS)
    assert some.instrument.voxels.spacing == (2.0, 1.0, 1.0)
    assert "air" not in [step["step"] for step in some.provenance["steps"]]


def test_bad_pixels_are_filled_and_do_not_count(tmp_path: Path) -> None:
    p = _write(tmp_path / "a.h5", bad=True)
    scan = _import(tmp_path / "a.h5", tmp_path / "a.zarr")
    assert np.argwhere(~scan.instrument.good).tolist() == [[1, 30]]
    np.testing.assert_allclose(scan.read().numpy()[:, 1, 30], p[:, 1, 29:32:2].mean(1), atol=0.01)
    flat = _import(tmp_path / "a.h5", tmp_path / "flat.zarr", rows="1")
    assert flat.instrument.good.shape == (1, COLUMNS)


def test_projections_without_beam_or_with_nan_are_told_and_can_be_left_out(tmp_path: Path) -> None:
    p = _write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["exchange/data"][7] = 100.0  # the shutter was closed
        file["exchange/data"][9] = np.nan
    with pytest.raises(InputError, match=r"projection 9 holds NaN .* --omit"):
        _import(tmp_path / "a.h5", tmp_path / "a.zarr")
    with pytest.raises(InputError, match=r"projection 7 shows no beam at all; leave it out with --omit"):
        _import(tmp_path / "a.h5", tmp_path / "a.zarr", omit="9")
    for stripes, off in ((0, 2e-3), (9, 0.1)):
        scan = _import(tmp_path / "a.h5", tmp_path / f"{stripes}.zarr", omit="7:10:2", stripes=stripes)
        assert abs(scan.provenance["steps"][-1]["column"] - CENTER) < 0.15
        np.testing.assert_allclose(scan.read().numpy(), np.delete(p, [7, 9], 0), atol=off)


def test_angles_without_a_unit_that_are_radians(tmp_path: Path) -> None:
    _write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["exchange/theta"]
        file["exchange/theta"] = np.deg2rad(ANGLES)
    scan = _import(tmp_path / "a.h5", tmp_path / "a.zarr", center=CENTER)
    want = parallel_beam(np.deg2rad(ANGLES), (ROWS, COLUMNS), 1.0, center=CENTER)
    np.testing.assert_allclose(ct_rays(scan).vectors, want.vectors, atol=1e-9)


def test_stripes_are_removed(tmp_path: Path) -> None:
    p = _write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["exchange/data_white"][:, :, 50] *= 1.05  # a gain that was another while the scan went on
    plain = _import(tmp_path / "a.h5", tmp_path / "plain.zarr").read().numpy()
    clean = _import(tmp_path / "a.h5", tmp_path / "clean.zarr", stripes=9).read().numpy()
    assert np.abs(plain - p)[..., 50].mean() > 0.04
    assert np.abs(clean - p)[..., 50].mean() < 0.012


def test_pixel_sizes_of_a_file_are_in_its_units(tmp_path: Path) -> None:
    _write(tmp_path / "a.h5", measurement__instrument__detector__pixel_size_x=1.5)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["measurement/instrument/detector/pixel_size_x"].attrs["units"] = "microns"
    scan = _import(tmp_path / "a.h5", tmp_path / "a.zarr")
    assert scan.instrument.voxels.spacing == pytest.approx((1.5e-6,) * 3)
    assert scan.instrument.unit == "m"


def _helsinki(path: Path, **changes: Any) -> np.ndarray:
    rows = np.zeros((31, 40))
    rows[:, 10:30] = 1 + np.arange(31)[:, None] / 31
    about: dict[str, Any] = {
        "distanceSourceOrigin": 400.0,
        "distanceSourceDetector": 600.0,
        "distanceUnit": "mm",
        "pixelSizePost": 0.3,
        "angles": np.arange(31) * 3.0,
        "scanner": "a scanner",
    } | changes
    data = {"type": "2d", "sinogram": rows + 0.015, "parameters": {k: v for k, v in about.items() if v is not None}}
    savemat(path, {"CtDataLimited": data})
    return rows


def test_helsinki_files_are_fans_without_their_air(tmp_path: Path) -> None:
    rows = _helsinki(tmp_path / "h.mat")
    scan = _import(tmp_path / "h.mat", tmp_path / "h.zarr", size=32)
    np.testing.assert_allclose(scan.read().numpy(), rows, atol=1e-5)
    want = fan_beam(np.deg2rad(np.arange(31) * 3.0), 40, 3e-4, source=0.4, detector=0.2)
    np.testing.assert_allclose(ct_rays(scan).vectors, want.vectors, atol=1e-12)
    assert scan.instrument.voxels.spacing == pytest.approx((2e-4, 2e-4))
    turned = _import(tmp_path / "h.mat", tmp_path / "turned.zarr", clockwise=True, center=20.0, air=0)
    want = fan_beam(-np.deg2rad(np.arange(31) * 3.0), 40, 3e-4, source=0.4, detector=0.2, center=20.0)
    np.testing.assert_allclose(ct_rays(turned).vectors, want.vectors, atol=1e-12)
    np.testing.assert_allclose(turned.read().numpy(), rows + 0.015, atol=1e-5)


def test_info_tells_what_a_file_is(tmp_path: Path) -> None:
    _write(tmp_path / "a.h5")
    _helsinki(tmp_path / "h.mat")
    outlook, lines = describe_file(tmp_path / "a.h5")
    assert "import ct" in outlook
    assert "60 projections of 3 x 80" in lines[0]
    assert "fan beam" in describe_file(tmp_path / "h.mat")[1][0]
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.zeros(3)
    assert "import ct" not in describe_file(tmp_path / "other.h5")[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rows": "7"}, "there is no 7 among detector rows"),
        ({"rows": "a:b"}, "cannot read 'a:b'"),
        ({"select": "70:"}, "chooses none"),
        ({"select": "::-1"}, "at least 1"),
        ({"count": 61}, "60 are left"),
        ({"omit": ":"}, "no projection is left"),
        ({"center": 200.0}, "there are 0 to 79"),
        ({"stripes": 8}, "odd"),
        ({"air": 50}, "does not fit"),
        ({"source": 0.1}, "needs the distance"),
        ({"source": 0.1, "detector": 0.1}, "--pixel"),
    ],
)
def test_options_that_cannot_be_are_refused_with_nothing_written(
    options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    _write(tmp_path / "a.h5")
    with pytest.raises(InputError, match=why):
        _import(tmp_path / "a.h5", tmp_path / "a.zarr", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_files_that_cannot_be_are_refused_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"

    def refuse(path: Path, why: str, **options: Any) -> None:
        with pytest.raises(InputError, match=why) as caught:
            _import(path, out, **options)
        assert str(path) in str(caught.value)
        assert not out.exists()

    path = tmp_path / "a.h5"
    refuse(path, "there is no file")
    _write(path)
    with h5py.File(path, "r+") as file:
        del file["exchange/theta"]
    refuse(path, "--arc")
    with h5py.File(path, "r+") as file:
        file["exchange/theta"] = ANGLES[:7]
    refuse(path, "an angle for each projection")
    assert _import(path, tmp_path / "arc.zarr", arc=180.0).n_views == VIEWS
    _write(path)
    with h5py.File(path, "r+") as file:
        file["exchange/theta"][3] = np.nan
    refuse(path, "NaN")
    _write(path)
    with h5py.File(path, "r+") as file:
        file["exchange/data"][7, 1, 5] = np.nan
    refuse(path, "projection 7 holds NaN")
    path.write_bytes(b"something else")
    refuse(path, "not a tomograph's file")
    other = tmp_path / "h.mat"
    _helsinki(other, distanceSourceOrigin=None)
    refuse(other, "no distanceSourceOrigin")
    _helsinki(other, angles=np.arange(5.0))
    refuse(other, "5 angles for 31 projections")
    savemat(other, {"x": np.zeros(3)})
    refuse(other, "no struct")
    other.write_bytes(other.read_bytes()[:200])
    refuse(other, "MATLAB|no struct")
