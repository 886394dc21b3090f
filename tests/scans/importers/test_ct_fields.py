"""Beams and darks that drift, monitors, flat fields that are missing: line integrals are near the true ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile

from plugstream.base.errors import InputError
from plugstream.scans import open_scan
from plugstream.scans.importers import import_file

VIEWS, COLUMNS, PHOTONS = 48, 64, 3e4
ANGLES, DRIFT = np.arange(VIEWS) * 180.0 / VIEWS, 1 - 0.1 * np.arange(VIEWS) / VIEWS
DRAW = np.random.default_rng(0)


def _integrals(radius: float = 22.0) -> np.ndarray:
    """Of an ellipse, with a disc in it."""
    turn, s = np.deg2rad(ANGLES)[:, None], np.arange(COLUMNS)[None] - 31.5
    wide = (0.9 * radius * np.cos(turn)) ** 2 + (radius * np.sin(turn)) ** 2
    body = 0.054 * radius**2 / wide * np.sqrt(np.maximum(wide - (s - np.cos(turn)) ** 2, 0))
    return body + 0.06 * np.sqrt(np.maximum(25 - (s - 8 * np.cos(turn) - 4 * np.sin(turn)) ** 2, 0))


P, LARGE = _integrals(), _integrals(50.0)  # beside which there is air, and which fills the detector


def _frames(p: Any, beam: Any = 1.0, dark: Any = 100.0) -> np.ndarray:
    """Counts of photons with such a beam, (frames, 1, columns)."""
    return DRAW.poisson(PHOTONS * np.reshape(beam, (-1, 1)) * np.exp(-p) + np.reshape(dark, (-1, 1)))[:, None]


def _flats(beam: float = 1.0, dark: float = 100.0) -> np.ndarray:
    return _frames(np.zeros((9, COLUMNS)), beam, dark)


def _darks(level: float = 100.0) -> np.ndarray:
    return DRAW.normal(level, 3, (9, 1, COLUMNS))


def _nexus(path: Path, parts: list[tuple[int, np.ndarray]], monitor: Any = None) -> Path:
    key = np.concatenate([[kind] * len(frames) for kind, frames in parts])
    with h5py.File(path, "w") as file:
        file["entry/instrument/detector/data"] = np.concatenate([frames for _, frames in parts]).astype(np.uint16)
        file["entry/instrument/detector/image_key"] = key
        file["entry/sample/rotation_angle"] = (np.cumsum(key == 0) - 1) * 180.0 / VIEWS
        file["entry/sample/rotation_angle"].attrs["units"] = "degrees"
        if monitor is not None:
            file["entry/control/data"] = np.interp(np.cumsum(key == 0) - 1, range(VIEWS), monitor, 1.0)
    return path


def _exchange(path: Path, **arrays: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in {"theta": ANGLES, **arrays}.items():
            file[f"exchange/{name}"] = values
    return path


def _import(path: Path, truth: np.ndarray = P, **options: Any) -> tuple[float, str]:
    """How far the integrals are from the true ones, rms, and what is said."""
    out = path.with_name(f"{len(list(path.parent.iterdir()))}.zarr")
    _, result = import_file("ct", path, out, {"center": 31.5, **options})
    return float(np.sqrt(np.mean((open_scan(out).read().numpy() - truth) ** 2))), "; ".join(result.remarks)


NOISE = float(np.sqrt(np.mean(np.exp(P) / PHOTONS)))


@pytest.mark.parametrize("weak", [1.0, 0.15])
def test_air_or_flat_fields_before_and_after_correct_a_beam_that_drifts(tmp_path: Path, weak: float) -> None:
    parts = [(2, _darks()), (1, _flats()), (0, _frames(weak * P, DRIFT))]
    assert _import(_nexus(tmp_path / "a.nxs", parts), weak * P)[0] < 1.3 * NOISE  # as large as the margins tell
    parts.append((1, _flats(0.9)))
    assert _import(_nexus(tmp_path / "b.nxs", parts), weak * P, air=0)[0] < 1.3 * NOISE


def test_frames_of_tomoscan_are_placed_by_their_order(tmp_path: Path) -> None:
    arrays = {"data": _frames(P, DRIFT), "data_white": np.concatenate([_flats(), _flats(0.9)]), "data_dark": _darks()}
    path = _exchange(tmp_path / "a.h5", **arrays)
    assert _import(path, air=0)[0] > 3 * NOISE
    with h5py.File(path, "r+") as file:
        places = ["_dark"] * 9 + ["_white"] * 9 + [""] * VIEWS + ["_white"] * 9
        file["defaults/HDF5FrameLocation"] = [f"/exchange/data{place}".encode() for place in places]
    assert _import(path, air=0)[0] < 1.3 * NOISE


def test_dark_fields_are_interpolated(tmp_path: Path) -> None:
    first, last = [(2, _darks()), (1, _flats())], [(1, _flats(1.0, 1100.0)), (2, _darks(1100.0))]
    seen = [(0, _frames(2 * P, 1.0, np.linspace(100, 1100, VIEWS)))]
    noise = float(np.sqrt(np.mean(np.exp(2 * P) / PHOTONS)))
    assert _import(_nexus(tmp_path / "a.nxs", first + seen + last), 2 * P)[0] < 1.3 * noise
    assert _import(tmp_path / "a.nxs", 2 * P, darks="0:9")[0] > 3 * noise


def test_a_monitor_is_divided_out_unless_flat_fields_contradict_it(tmp_path: Path) -> None:
    jitter = 1 + 0.05 * DRAW.standard_normal(VIEWS)
    parts = [(2, _darks()), (1, _flats()), (0, _frames(LARGE, jitter))]
    noise = float(np.sqrt(np.mean(np.exp(LARGE) / PHOTONS)))
    far, said = _import(_nexus(tmp_path / "a.nxs", parts, jitter), LARGE)
    assert far < 1.3 * noise
    assert "divided out" in said
    _, said = _import(_nexus(tmp_path / "b.nxs", [*parts, (1, _flats(0.8))], jitter), LARGE)
    assert "does not follow its flat fields" in said
    assert "views 0 and 47 see the same rays, and differ by 2" in said  # a drift that nothing corrects


def test_air_stands_for_flat_fields_that_are_missing(tmp_path: Path) -> None:
    counts, ramp = _frames(P, DRIFT), np.linspace(0.8, 1.2, COLUMNS)
    tifffile.imwrite(tmp_path / "p.tif", (counts * ramp).astype(np.uint16))
    (tmp_path / "s.toml").write_text('projections = "p.tif"\narc = 180\n')
    for path in (
        tmp_path / "s.toml",
        _nexus(tmp_path / "a.nxs", [(2, _darks()), (0, counts)]),
        _exchange(tmp_path / "b.h5", data=counts.astype(np.uint16), data_dark=_darks()),
        _exchange(tmp_path / "c.h5", data=(counts - 100) / PHOTONS),  # transmissions
    ):
        far, said = _import(path)
        assert far < 2.5 * NOISE
        assert "air at the edges of its projections stands for them" in said
    integrals = _exchange(tmp_path / "d.h5", data=P[:, None])
    assert _import(integrals)[0] == pytest.approx(0, abs=1e-6)
    assert _import(_exchange(tmp_path / "e.h5", data=LARGE[:, None]), LARGE)[0] == pytest.approx(0, abs=1e-6)


def test_without_air_or_flat_fields_counts_are_refused_with_what_helps(tmp_path: Path) -> None:
    path = _exchange(tmp_path / "a.h5", data=_frames(LARGE).astype(np.uint16), data_dark=_darks())
    with pytest.raises(InputError, match=r"a\.h5: it has no flat fields, and no air .* --flats FILE .* --flats none"):
        _import(path)
    other = _exchange(tmp_path / "b.h5", data=_frames(P), data_white=_flats(), data_dark=_darks())
    assert _import(path, LARGE, flats=str(other))[0] < 0.05
    assert _import(path, flats="none")[0] > 1000


def test_dark_fields_that_are_missing_or_too_bright(tmp_path: Path) -> None:
    arrays = {"data": _frames(P), "data_white": _flats()}
    far, said = _import(_exchange(tmp_path / "a.h5", **arrays))
    assert far < 1.5 * NOISE
    assert "it has no dark fields" in said
    bright = _exchange(tmp_path / "b.h5", **arrays, data_dark=_darks(2e4))
    assert _import(bright)[0] == far
    assert "brighter than its projections, and are left out; --darks 0:" in _import(bright)[1]
    assert _import(bright, darks="0:")[0] > 10 * far
