"""NXtomo files and stacks of TIFF: the same projections come out of them as of a Data Exchange file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile

from plugstream.base.errors import InputError
from plugstream.instruments.ct import ct_rays
from plugstream.models.ct_beams import cone_beam
from plugstream.scans import open_scan
from plugstream.scans.importers import describe_file, import_file

VIEWS, ROWS, COLUMNS = 24, 2, 40
ANGLES = np.arange(VIEWS) * 180.0 / VIEWS


def _counts() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Line integrals, counts of a beam that weakens by a fifth, and flat fields before and after."""
    s = np.arange(COLUMNS) - 19.0
    p = 0.05 * np.sqrt(np.maximum(14.0**2 - (s - 2 * np.cos(np.deg2rad(ANGLES))[:, None]) ** 2, 0))
    p = np.repeat(p[:, None], ROWS, 1)
    beam = 20_000 + 100 * np.arange(COLUMNS) + np.zeros((ROWS, 1))
    drift = 1 - 0.2 * np.arange(VIEWS)[:, None, None] / VIEWS
    return p, 50 + beam * drift * np.exp(-p), 50 + beam, 50 + 0.8 * beam


def _nexus(path: Path, **changes: Any) -> np.ndarray:
    p, counts, before, after = _counts()
    dark = np.full((ROWS, COLUMNS), 50.0)
    frames = np.concatenate([[dark, before, before], counts[:10], [dark], counts[10:], [after], [before * 0]])
    key = np.array([2, 1, 1, *[0] * 10, 2, *[0] * 14, 1, 3])
    angles = np.concatenate([np.zeros(3), ANGLES[:10], [0], ANGLES[10:], [0, 0]])
    with h5py.File(path, "w") as file:
        file["entry/instrument/detector/data"] = np.rint(frames).astype(np.uint16)
        file["entry/instrument/detector/image_key"] = key
        file["entry/sample/rotation_angle"] = angles
        file["entry/sample/rotation_angle"].attrs["units"] = "degrees"
        for name, (value, unit) in {"x_pixel_size": (6.5, "um"), "y_pixel_size": (13.0, "um"), **changes}.items():
            file[f"entry/instrument/{'' if '/' in name else 'detector/'}{name}"] = value
            file[f"entry/instrument/{'' if '/' in name else 'detector/'}{name}"].attrs["units"] = unit
    return p


def _import(path: Path, out: Path, **options: Any) -> Any:
    import_file("ct", path, out, options)
    return open_scan(out)


def test_nexus_frames_are_told_apart_by_their_key(tmp_path: Path) -> None:
    p = _nexus(tmp_path / "a.nxs")
    scan = _import(tmp_path / "a.nxs", tmp_path / "a.zarr", air=0, center=19.0)
    # The drift between the flat fields is interpolated; counts were rounded.
    np.testing.assert_allclose(scan.read().numpy(), p, atol=2e-3)
    assert scan.instrument.voxels.spacing == pytest.approx((13e-6, 6.5e-6, 6.5e-6))
    assert scan.provenance["steps"][1] == {"step": "flat and dark fields", "groups": 2, "at": [0.0, 24.0]}
    found = scan.instrument.describe(scan.columns, VIEWS)["views"]
    assert found.startswith("24 over 172.5 degrees, parallel")
    assert "NXtomo: 24 projections of 2 x 40" in describe_file(tmp_path / "a.nxs")[1][0]
    some = _import(tmp_path / "a.nxs", tmp_path / "some.zarr", air=0, center=19.0, select="8:16:3", rows="1")
    np.testing.assert_array_equal(some.read().numpy(), scan.read().numpy()[8:16:3, 1])


def test_nexus_distances_make_a_cone(tmp_path: Path) -> None:
    more = {"distance": (300.0, "mm"), "source/distance": (-0.2, "m")}
    _nexus(tmp_path / "a.nxs", **more)
    scan = _import(tmp_path / "a.nxs", tmp_path / "a.zarr", air=0)  # half a turn does not tell a fan's axis
    want = cone_beam(np.deg2rad(ANGLES), (ROWS, COLUMNS), (13e-6, 6.5e-6), source=0.2, detector=0.3)
    np.testing.assert_allclose(ct_rays(scan).vectors, want.vectors, atol=1e-12)
    assert scan.instrument.voxels.spacing == pytest.approx((5.2e-6, 2.6e-6, 2.6e-6))


def _stack(folder: Path, *, text: str | None = None) -> np.ndarray:
    p, counts, before, after = _counts()
    for view, frame in enumerate(counts):
        tifffile.imwrite(folder / f"proj_{view + 1}.tif", np.rint(frame).astype(np.uint16))
    tifffile.imwrite(folder / "before.tif", np.stack([before, before]).astype(np.float32))
    tifffile.imwrite(folder / "after_1.tif", after.astype(np.float32))
    tifffile.imwrite(folder / "dark.tif", np.full((4, ROWS, COLUMNS), 50, np.uint16))
    (folder / "angles.txt").write_text("\n".join(map(str, ANGLES)))
    usual = (
        'projections = "proj_*.tif"\nflats = ["before.tif", "after_*.tif"]\ndarks = "dark.tif"\nangles = "angles.txt"\n'
        "pixel = 6.5e-6\ncenter = 19.0\n"
    )
    (folder / "scan.toml").write_text(usual if text is None else text)
    return p


def test_stacks_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    p = _stack(tmp_path)
    scan = _import(tmp_path / "scan.toml", tmp_path / "a.zarr", air=0)
    np.testing.assert_allclose(scan.read().numpy(), p, atol=2e-3)
    assert scan.provenance["steps"][-1] == {"step": "rotation axis", "column": 19.0, "found": "by the file"}
    assert "TIFF stack: 24 projections" in describe_file(tmp_path / "scan.toml")[1][0]


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_pages_of_one_file_and_a_cone(tmp_path: Path, compression: str | None) -> None:
    p = _counts()[0].astype(np.float32)
    tifffile.imwrite(tmp_path / "all.tif", p, compression=compression)
    (tmp_path / "scan.toml").write_text(
        'projections = "all.tif"\narc = 360\npixel = 1e-4\nsource = 0.1\ndetector = 0.1\n'
    )
    scan = _import(tmp_path / "scan.toml", tmp_path / "a.zarr", air=0, center="middle")
    np.testing.assert_array_equal(scan.read().numpy(), p)  # without flat fields they are line integrals
    want = cone_beam(np.arange(VIEWS) * 2 * np.pi / VIEWS, (ROWS, COLUMNS), 1e-4, source=0.1, detector=0.1)
    np.testing.assert_allclose(ct_rays(scan).vectors, want.vectors, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('projections = "none_*.tif"', "no TIFF picture"),
        ('projections = "../*.tif"', "beside the file"),
        ('projections = "proj_*.tif"\npixels = 3', "means nothing here"),
        ('projections = "proj_*.tif"\ndarks = "dark.tif"\narc = 180', "no air"),
        ('projections = "proj_*.tif"\nangles = [1, 2]', "2 angles for 24"),
        ('projections = "proj_*.tif"\nangles = "none.txt"', "no list of numbers"),
        ('projections = "proj_*.tif"\nangles = [1]\narc = 3', "one is enough"),
        ('projections = "proj_*.tif"\npixel = 0', "must be a number"),
        ('projections = "proj_*.tif', "not TOML"),
        ("something = 1", "not a tomograph's file"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(tmp_path: Path, text: str, why: str) -> None:
    _stack(tmp_path, text=text)
    with pytest.raises(InputError, match=why):
        _import(tmp_path / "scan.toml", tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_damaged_pictures_and_frames_are_named(tmp_path: Path) -> None:
    _stack(tmp_path)
    (tmp_path / "proj_7.tif").write_bytes(b"II*\0nothing")
    with pytest.raises(InputError, match=r"proj_7\.tif cannot be read"):
        _import(tmp_path / "scan.toml", tmp_path / "a.zarr", air=0)
    tifffile.imwrite(tmp_path / "proj_7.tif", np.zeros((ROWS, 3), np.uint16))
    with pytest.raises(InputError, match=r"proj_7\.tif is \(2, 3\)"):
        _import(tmp_path / "scan.toml", tmp_path / "a.zarr", air=0)
    _nexus(tmp_path / "a.nxs")
    with h5py.File(tmp_path / "a.nxs", "r+") as file:
        file["entry/instrument/detector/image_key"][:3] = 3
        file["entry/instrument/detector/image_key"][28] = 3
    with pytest.raises(InputError, match="flat field"):
        _import(tmp_path / "a.nxs", tmp_path / "b.zarr")
    assert not list(tmp_path.glob("*.zarr"))


OPAQUE, RECORD = np.zeros(28, "V8"), np.zeros(28, [("r", "f4"), ("i", "f4")])


@pytest.mark.parametrize("value", [b"text", np.array([b"ab"] * 28), OPAQUE, RECORD, None], ids=range(5))
@pytest.mark.parametrize(
    "place",
    [*(f"instrument/detector/{name}" for name in ("x_pixel_size", "image_key", "data")), "sample/rotation_angle"],
)
def test_what_is_no_number_is_one_line(tmp_path: Path, place: str, value: Any) -> None:
    """Text, opaque data, records, or a group, where a number or many should be."""
    _nexus(tmp_path / "odd.nxs")
    with h5py.File(tmp_path / "odd.nxs", "r+") as file:
        del file[f"entry/{place}"]
        if value is None:
            file.create_group(f"entry/{place}")
        else:
            file[f"entry/{place}"] = value
    with suppress(InputError):  # without an image_key it is a file of arrays, which has a description
        describe_file(tmp_path / "odd.nxs")
    with pytest.raises(InputError):
        import_file("ct", tmp_path / "odd.nxs", tmp_path / "odd.zarr")
    assert not (tmp_path / "odd.zarr").exists()
