"""A cone beam from the detector's counts to the volume, by commands: NXtomo by its definition, and a TIFF stack."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from plugstream.scans import open_scan
from small_run import main, main as run

VIEWS, ROWS, COLUMNS, PIXEL, SOURCE, DETECTOR = 36, 21, 31, 2e-3, 0.2, 0.2
# Balls: z, y, x and radius in metres, and attenuation in 1/m; one is off the axis, above the middle and to one side.
BALLS = [(0.0, 0.0, 0.0, 9e-3, 40.0), (4e-3, 3e-3, -4e-3, 3e-3, 40.0)]


def counts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a detector counts, uint16, whose source turns counterclockwise; its flat and dark fields.

    Written down anew: chords of balls by the distance of a line from their middle, for source and pixels as in
    docs/tomography.md.
    """
    angles = 2 * np.pi * np.arange(VIEWS) / VIEWS
    ahead = np.stack([-np.sin(angles), np.cos(angles), 0 * angles], -1)[:, None, None]
    across = np.stack([np.cos(angles), np.sin(angles), 0 * angles], -1)[:, None, None]
    column = (np.arange(COLUMNS) - (COLUMNS - 1) / 2)[None, None, :, None]
    row = (np.arange(ROWS) - (ROWS - 1) / 2)[None, :, None, None]
    pixel = DETECTOR * ahead + PIXEL * (column * across + row * np.array([0.0, 0.0, 1.0]))
    source = -SOURCE * ahead
    way = (pixel - source) / np.linalg.norm(pixel - source, axis=-1, keepdims=True)
    integral = np.zeros((VIEWS, ROWS, COLUMNS))
    for z, y, x, radius, value in BALLS:
        to = np.array([x, y, z]) - source
        away = (to**2).sum(-1) - (to * way).sum(-1) ** 2
        integral += value * 2 * np.sqrt(np.maximum(radius**2 - away, 0))
    beam = 30_000 + 200 * np.arange(COLUMNS) - 50 * np.arange(ROWS)[:, None]
    dark = np.full((ROWS, COLUMNS), 100.0)
    made = (dark + beam * np.exp(-integral), dark + beam, dark)
    whole = [np.rint(one).astype(np.uint16) for one in made]
    return whole[0], whole[1], whole[2]


def write_nexus(path: Path) -> Path:
    """As the NXtomo definition has it: groups with their classes, dark and flat fields among the frames."""
    frames, flat, dark = counts()
    with h5py.File(path, "w") as file:

        def group(name: str, kind: str) -> h5py.Group:
            made = file.create_group(name)
            made.attrs["NX_class"] = kind
            return made

        group("entry", "NXentry")["definition"] = "NXtomo"
        group("entry/instrument", "NXinstrument")
        group("entry/instrument/source", "NXsource")["distance"] = -SOURCE * 1e3
        file["entry/instrument/source/distance"].attrs["units"] = "mm"
        detector = group("entry/instrument/detector", "NXdetector")
        detector["data"] = np.concatenate([[dark, flat, flat], frames, [flat]])
        detector["image_key"] = np.array([2, 1, 1, *[0] * VIEWS, 1])
        for name, value in (("x_pixel_size", PIXEL), ("y_pixel_size", PIXEL), ("distance", DETECTOR)):
            detector[name] = value * 1e3
            detector[name].attrs["units"] = "mm"
        sample = group("entry/sample", "NXsample")
        sample["name"] = "balls"
        sample["rotation_angle"] = np.concatenate([[0, 0, 0], 360 * np.arange(VIEWS) / VIEWS, [360]])
        sample["rotation_angle"].attrs["units"] = "degree"
        data = group("entry/data", "NXdata")
        data["data"] = h5py.SoftLink("/entry/instrument/detector/data")
        data["image_key"] = h5py.SoftLink("/entry/instrument/detector/image_key")
        data["rotation_angle"] = h5py.SoftLink("/entry/sample/rotation_angle")
    return path


def write_stack(folder: Path) -> Path:
    frames, flat, dark = counts()
    folder.mkdir()
    for view, frame in enumerate(frames):
        tifffile.imwrite(folder / f"proj_{view}.tif", frame)
    tifffile.imwrite(folder / "flat_0.tif", flat)
    tifffile.imwrite(folder / "dark_0.tif", dark)
    words = [
        'projections = "proj_*.tif"',
        'flats = "flat_*.tif"',
        'darks = "dark_*.tif"',
        "arc = 360",
        f"pixel = {PIXEL}",
        f"source = {SOURCE}",
        f"detector = {DETECTOR}",
    ]
    (folder / "scan.toml").write_text("\n".join(words), encoding="utf-8")
    return folder / "scan.toml"


def truth(scan: Path) -> np.ndarray:
    """The balls in the voxels of a scan, from the mean of 27 points in each."""
    voxels = open_scan(scan).instrument.voxels
    parts = (np.arange(3) - 1) / 3
    axes = [
        (start + step * (np.arange(size)[:, None] + parts)).ravel()
        for start, step, size in zip(voxels.origin, voxels.spacing, voxels.shape, strict=True)
    ]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    fine = sum(value * (((points - (z, y, x)) ** 2).sum(-1) < r**2) for z, y, x, r, value in BALLS)
    depth, height, width = voxels.shape
    return fine.reshape(depth, 3, height, 3, width, 3).mean((1, 3, 5))


def test_both_files_make_the_volume_of_the_balls(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    files = {"nexus": write_nexus(tmp_path / "balls.nxs"), "stack": write_stack(tmp_path / "stack")}
    for name, file in files.items():
        scan = tmp_path / f"{name}.zarr"
        assert main(["import", "ct", str(file), str(scan)]) == 0
        told = capsys.readouterr().err
        assert "column 15.0" in told, told  # the axis is found, to a tenth
    nexus, stack = (open_scan(tmp_path / f"{name}.zarr") for name in files)
    np.testing.assert_allclose(nexus.read(), stack.read(), atol=1e-6)
    np.testing.assert_allclose(nexus.columns["rays"][:], stack.columns["rays"][:], atol=1e-9)
    scan, want = tmp_path / "nexus.zarr", truth(tmp_path / "nexus.zarr")
    assert main(["baseline", str(scan), str(tmp_path / "fdk")]) == 0
    middle = slice(5, 16)  # of a cone FDK is right near the middle plane
    found = np.load(tmp_path / "fdk.npy")
    assert np.linalg.norm((found - want)[middle]) < 0.3 * np.linalg.norm(want[middle])
    assert run(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--iterations", "30"]) == 0
    found = np.load(tmp_path / "run" / "result.npy")
    assert np.linalg.norm(found - want) < 0.25 * np.linalg.norm(want)
    inside = want[9:12, 14:17, 14:17]
    assert np.abs(found[9:12, 14:17, 14:17] - inside).max() < 0.15 * inside.max()


def test_the_other_sense_of_rotation_is_another_volume(tmp_path: Path) -> None:
    """What turns clockwise is imported with --clockwise; left out, the ball off the axis does not come out."""
    file, errors = write_nexus(tmp_path / "balls.nxs"), []
    for words in ([], ["--clockwise"]):
        scan, out = tmp_path / f"{len(words)}.zarr", tmp_path / f"fdk{len(words)}"
        assert main(["import", "ct", str(file), str(scan), "--center", "15", *words]) == 0
        assert main(["baseline", str(scan), str(out)]) == 0
        want = truth(scan)
        errors.append(np.linalg.norm((np.load(out.with_suffix(".npy")) - want)[5:16]) / np.linalg.norm(want[5:16]))
    assert errors[0] < 0.8 * errors[1]
