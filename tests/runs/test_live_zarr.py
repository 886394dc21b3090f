"""The current image as OME-Zarr: what the specification asks for, read by zarr itself, and never half of an image."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import zarr

from plugstream.images.space import ImageSpace
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Note
from plugstream.runs.live_zarr import LiveZarr, check_place
from small_run import RUN, main

PLANE = ImageSpace((300, 200), spacing=(1e-6, 2e-6), origin=(-1e-4, 0.0), quantity="index", upwards=True)
SPACES = {
    "plane": PLANE,
    "photograph": ImageSpace((131, 257), upwards=False),
    "volume": ImageSpace((12, 150, 140), spacing=(2e-3, 1e-3, 1e-3), origin=(0.0, 1.0, 2.0), upwards=False),
    "complex": ImageSpace((20, 30), is_complex=True, spacing=(1.0, 1.0), origin=(0.0, 0.0), unit="mm"),
    "measured": ImageSpace((20, 30), is_complex=True, phase="measured"),
    "channels": ImageSpace((3, 20, 30), channels=True, spacing=(1.0, 1.0), unit="fathom"),
    "everything": ImageSpace((2, 6, 20, 30), channels=True, is_complex=True),
}


def image_of(space: ImageSpace) -> torch.Tensor:
    return torch.rand(space.shape, dtype=torch.complex64 if space.is_complex else torch.float32)


def live(place: Path, space: ImageSpace) -> LiveZarr:
    return LiveZarr(place, space, EventLog(place.with_name("events.jsonl")))


def check_metadata(place: Path) -> dict:
    """What version 0.5 of the specification says that an image must have; returns what it tells."""
    group = zarr.open_group(place, mode="r")
    assert json.loads((place / "zarr.json").read_text())["zarr_format"] == 3
    ome = group.attrs["ome"]
    assert ome["version"] == "0.5"
    (multiscale,) = ome["multiscales"]
    axes = multiscale["axes"]
    names, kinds = [axis["name"] for axis in axes], [axis["type"] for axis in axes]
    assert 2 <= len(axes) <= 5
    assert len(set(names)) == len(names)
    assert kinds == sorted(kinds, key=["time", "channel", "space"].index)
    assert kinds.count("space") in (2, 3)
    assert kinds.count("channel") <= 1
    assert {axis["unit"] for axis in axes if "unit" in axis} <= {"meter", "millimeter", "micrometer", "nanometer"}
    before = None
    for dataset in multiscale["datasets"]:
        level = group[dataset["path"]]
        assert isinstance(level, zarr.Array)
        assert level.metadata.dimension_names == tuple(names)
        assert level.ndim == len(axes)
        assert before is None or all(a <= b for a, b in zip(level.shape, before, strict=True))
        before = level.shape
        scale, *rest = dataset["coordinateTransformations"]
        assert scale["type"] == "scale"
        assert len(scale["scale"]) == len(axes)
        assert all(value > 0 for value in scale["scale"])
        assert [(one["type"], len(one["translation"])) for one in rest] == [("translation", len(axes))]
    channels = ome["omero"]["channels"]
    assert len(channels) == (group["0"].shape[0] if kinds[0] == "channel" else 1)
    for channel in channels:
        assert len(channel["color"]) == 6
        assert set(channel["window"]) == {"min", "max", "start", "end"}
        assert channel["window"]["start"] < channel["window"]["end"]
        assert set(channel) == {"label", "active", "color", "family", "window"}
    assert {"metadata", "type", "name"} <= set(multiscale)  # which it should have
    return multiscale


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_kind_of_image_is_ome_zarr(tmp_path, space):
    image = image_of(space)
    live(tmp_path / "live.zarr", space).write(7, image)
    multiscale = check_metadata(tmp_path / "live.zarr")
    values = image.numpy()
    mark = zarr.open_group(tmp_path / "live.zarr", mode="r").attrs["plugstream-live"]
    assert ("turned" in mark) == space.free_phase
    if space.free_phase:
        assert mark["turned"] == pytest.approx(-np.angle(values.sum()), abs=1e-6)
        values = values * np.exp(1j * mark["turned"])
    if space.is_complex:
        values = np.stack([np.abs(values), np.angle(values)], axis=int(space.channels)).reshape(-1, *space.spatial)
    if space.upwards:
        values = values[..., ::-1, :]
    group = zarr.open_group(tmp_path / "live.zarr", mode="r")
    assert np.allclose(group["0"][...], values, atol=1e-6)
    assert group.attrs["plugstream-live"]["step"] == 7
    smallest = group[multiscale["datasets"][-1]["path"]]
    assert max(smallest.shape[-len(space.spatial) :]) <= 128
    if space is SPACES["volume"]:
        assert smallest.shape == (12, 75, 70)  # slices stay


@pytest.mark.parametrize("space", [SPACES["plane"], SPACES["photograph"], SPACES["volume"]])
def test_pixels_lie_where_scale_and_translation_say(tmp_path, space):
    """The image is the position itself along x, and then along y, at every level."""
    for axis in (-1, -2):
        step = 1.0 if space.spacing is None else space.spacing[axis]
        origin = 0.0 if space.origin is None else space.origin[axis]
        where = origin + step * torch.arange(space.shape[axis], dtype=torch.float64)
        where = where if axis == -1 else where[:, None]
        place = tmp_path / f"live{axis}.zarr"
        live(place, space).write(0, where.expand(space.shape))
        sign = -1 if axis == -2 and space.upwards else 1  # rows count downwards
        size = space.scale()[1]
        multiscale = check_metadata(place)
        assert multiscale["datasets"]
        for dataset in multiscale["datasets"]:
            values = zarr.open_array(place / dataset["path"], mode="r")[...]
            scale, translation = (list(one.values())[1][axis] for one in dataset["coordinateTransformations"])
            count = values.shape[axis] - 1  # the last block may be smaller
            expected = sign * (translation + scale * np.arange(count)) * size
            line = values.reshape(-1, *values.shape[-2:])[0]
            line = line[0, :count] if axis == -1 else line[:count, 0]
            assert np.allclose(line, expected, rtol=1e-5, atol=1e-6 * abs(expected).max())


@pytest.mark.parametrize("value", [-2.0, 0.0, float("nan")])
def test_a_flat_image_has_a_window_too(tmp_path, value):
    live(tmp_path / "live.zarr", ImageSpace((4, 4))).write(0, torch.full((4, 4), value))
    check_metadata(tmp_path / "live.zarr")


def test_units_are_those_of_the_space(tmp_path):
    for name, unit in (("plane", "micrometer"), ("volume", "meter"), ("complex", "millimeter"), ("channels", None)):
        live(tmp_path / f"{name}.zarr", SPACES[name]).write(0, image_of(SPACES[name]))
        multiscale = check_metadata(tmp_path / f"{name}.zarr")
        assert multiscale["axes"][-1].get("unit") == unit, name


def test_a_reader_never_sees_half_of_an_image(tmp_path):
    """One reads as fast as it can while images of one value each are written: all that is read has one value."""
    space, place = ImageSpace((400, 400)), tmp_path / "live.zarr"
    writer = live(place, space)
    writer.write(0, torch.zeros(space.shape))
    seen: list[set[float]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            group = zarr.open_group(place, mode="r")
            seen.extend({float(v) for v in np.unique(group[path][...])} for path in ("0", "1", "2"))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            step = 0
            while step < 60 or len(seen) <= 10:  # however seldom it comes to read
                step += 1
                writer.write(step, torch.full(space.shape, float(step)))
                assert not reader.done(), reader.result()
        finally:
            done.set()
    reader.result()
    assert len(seen) > 10
    assert all(len(values) == 1 for values in seen)
    shapes = {zarr.open_array(place / "0", mode="r").shape}
    assert shapes == {(400, 400)}


def test_a_run_keeps_its_image_there_and_the_next_one_replaces_it(scan, whole, tmp_path):
    place = tmp_path / "live.zarr"
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "a"), *RUN[:-2], "--live-zarr", str(place)]) == 0
    check_metadata(place)
    result = np.load(tmp_path / "a" / "result.npy")
    assert np.array_equal(result, np.load(whole / "result.npy"))  # of a run without it
    shown = zarr.open_array(place / "0", mode="r")[...]
    assert np.array_equal(shown, result) or np.array_equal(shown, result[::-1])
    check_place(place)
    live(place, PLANE).write(3, image_of(PLANE))
    assert zarr.open_array(place / "0", mode="r").shape == PLANE.shape
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "events.jsonl", "live.zarr"]


def test_a_place_that_is_somebody_elses_is_refused_before_anything_is_written(scan, tmp_path, capsys):
    for name, make in {
        "file": lambda path: path.write_text("mine"),
        "folder": lambda path: path.mkdir(),
        "group": lambda path: zarr.create_group(path),
        "link": lambda path: path.symlink_to(tmp_path / "folder"),
    }.items():
        make(tmp_path / name)
        words = [
            "reconstruct",
            str(scan),
            "--out",
            str(tmp_path / "run"),
            *RUN[:-2],
            "--live-zarr",
            str(tmp_path / name),
        ]
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "exists already, and is not a live image of a run" in line
    assert main(["reconstruct", str(scan), *RUN[:-2], "--live-zarr", str(tmp_path / "gone" / "live.zarr")]) == 2
    assert "does not exist; make it first" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_disk_that_does_not_take_it_does_not_end_the_run(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    viewer = LiveZarr(tmp_path / "gone" / "live.zarr", ImageSpace((4, 4)), log)
    for step in range(3):
        viewer.after_step(SimpleNamespace(state=SimpleNamespace(k=step, image=torch.zeros(4, 4))))
    log.close()
    (note,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(note, Note)
    assert "cannot write" in note.text
