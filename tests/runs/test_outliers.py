"""Runs leave out what cannot be right, say so, and remember it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import plugstream as ps
from ellipses import BODIES, chords, counted
from plugstream.instruments.ct import CT
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.runs.describe import describe_run
from plugstream.runs.replay import replay
from plugstream.scans import save_scan
from plugstream.scans.scan import MemoryScan
from small_run import main

COLUMNS, VIEWS = 64, 60
STEPS = ["--sigma", "1%", "--denoiser", "tv", "--iterations", "12", "--every", "6"]


def make_scan(*, faulty: bool, photons: Any = 3e4) -> MemoryScan:
    angles = np.arange(VIEWS) * np.pi / VIEWS
    exact = chords(angles, np.arange(COLUMNS) - (COLUMNS - 1) / 2, BODIES["body"])
    data = counted(exact, photons).astype(np.float32)
    if faulty:
        data[:, 25], data[:, 40] = 0.0, 9.2
        data[7, 20] = data[30, 31] = 12.0
    rays = parallel_beam(angles, COLUMNS, 1.0)
    return MemoryScan(data, CT.of(rays, Voxels((COLUMNS, COLUMNS), 1.0), unit="pixel"), columns={"rays": rays.vectors})


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    for name, faulty in (("clean", False), ("faulty", True)):
        save_scan(make_scan(faulty=faulty), tmp_path / f"{name}.zarr")
    return {name: tmp_path / f"{name}.zarr" for name in ("clean", "faulty")}


def test_what_is_found_has_no_weight_and_is_told(places: dict[str, Path], tmp_path: Path) -> None:
    images = {}
    for name, place in {"clean": "clean", "unasked": "clean", "faulty": "faulty", "taken": "faulty"}.items():
        more = ["--outliers", "none"] if name in ("unasked", "taken") else []
        assert main(["reconstruct", str(places[place]), "--out", str(tmp_path / name), *STEPS, *more]) == 0
        images[name] = np.load(tmp_path / name / "result.npy")
    np.testing.assert_array_equal(images["clean"], images["unasked"])  # to the bit
    off = {name: np.linalg.norm(images[name] - images["clean"]) for name in ("faulty", "taken")}
    assert off["faulty"] < 0.1 * off["taken"]
    notes = [note.text for note in replay(tmp_path / "faulty" / "events.jsonl").notes if "no weight" in note.text]
    assert len(notes) == 1
    assert notes[0].startswith("2 numbers and 2 columns of 60 views of 64 numbers have no weight")
    assert "--outliers none" in notes[0]
    red = (np.asarray(Image.open(tmp_path / "faulty" / "outliers.png")) == (230, 30, 30)).all(-1)
    assert red.shape == (VIEWS, COLUMNS)
    assert red[:, 25].all()
    assert int(red.sum()) == 2 * VIEWS + 2


def test_a_run_that_goes_on_remembers_them(
    places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whole", "half"):
        more = STEPS if name == "whole" else [*STEPS[:-3], "6", *STEPS[-2:]]
        assert main(["reconstruct", str(places["faulty"]), "--out", str(tmp_path / name), *more]) == 0
    assert main(["resume", str(tmp_path / "half"), "--iterations", "12"]) == 0
    whole, half = (np.load(tmp_path / name / "result.npy") for name in ("whole", "half"))
    np.testing.assert_array_equal(whole, half)
    (tmp_path / "half" / "outliers.safetensors").write_bytes(b"damaged")
    assert main(["resume", str(tmp_path / "half"), "--iterations", "14"]) == 2
    assert "cannot be used" in capsys.readouterr().err.splitlines()[-1]
    assert "--outliers" not in describe_run(tmp_path / "whole")["settings"]


def test_noisy_views_count_less_and_a_run_that_goes_on_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = make_scan(faulty=False, photons=np.where(np.arange(VIEWS) % 4, 3e4, 500.0)[:, None])
    save_scan(scan, tmp_path / "found.zarr")
    known = {**scan.columns, "weight": np.where(np.arange(VIEWS) % 4, 1, 500 / 3e4).astype(np.float32)}
    save_scan(MemoryScan(scan.data, scan.instrument, columns=known), tmp_path / "known.zarr")
    for name, more in {"found": STEPS, "half": [*STEPS[:-3], "6", *STEPS[-2:]], "known": STEPS, "none": STEPS}.items():
        more = [*more, "--outliers", "none"] if name in ("known", "none") else more
        place = tmp_path / ("known.zarr" if name == "known" else "found.zarr")
        assert main(["reconstruct", str(place), "--out", str(tmp_path / name), *more]) == 0
    assert main(["resume", str(tmp_path / "half"), "--iterations", "12"]) == 0
    images = {name: np.load(tmp_path / name / "result.npy") for name in ("found", "half", "known", "none")}
    np.testing.assert_array_equal(images["half"], images["found"])
    off = {name: np.linalg.norm(images[name] - images["known"]) for name in ("found", "none")}
    assert off["found"] < 0.3 * off["none"]
    (said,) = [note.text for note in replay(tmp_path / "found" / "events.jsonl").notes if "count less" in note.text]
    assert said.startswith("15 of 60 views count less, with ")
    with pytest.raises(ps.InputError, match="weight of a view is above 0"):
        MemoryScan(scan.data, scan.instrument, columns={**known, "weight": known["weight"] * 2})


def test_from_python() -> None:
    result = ps.reconstruct(make_scan(faulty=True), sigma=0.1, denoiser="tv", iterations=8)
    clean = ps.reconstruct(make_scan(faulty=False), sigma=0.1, denoiser="tv", iterations=8)
    assert float((result.image - clean.image).norm()) < 0.2 * float(clean.image.norm())
