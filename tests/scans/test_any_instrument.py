"""Scans of an instrument that plugstream knows nothing of: stored, followed, checked and sent by its declaration."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import zarr
from numpy.typing import NDArray

from plugstream import DamagedError, InputError, MemoryScan, ScanSender, ScanWriter, open_scan, save_scan
from plugstream.base import registry
from plugstream.cli import main
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Attribute, Column, Columns, Data, FixedArray, Instrument, declare
from plugstream.instruments.born import born_geometry
from plugstream.scans.scan import fingerprint, hashes
from plugstream.scans.send import send_scan
from streaming import Client, receiving


@dataclass(frozen=True, eq=False)
class ToyCounts(Instrument):
    """Counts of a detector, |probe * image|^2 summed in some way; its model is none of these tests' business."""

    probe: NDArray[np.complex64]
    exposure: float
    frames: int = 1

    name: ClassVar[str] = "toy-counts"
    help: ClassVar[str] = "counts of a toy detector"
    data: ClassVar[Data] = Data(("uint16", "float32"), ("row", "column"), "counts", "photons of each pixel")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("angle", "float64", (), "rad", "of the stage"),
        Column("dose", "float32", ("row", "column"), "1", "relative exposure", optional=True, default=1.0),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (FixedArray("probe", "complex64", ("row", "column"), "", "the beam"),)
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("exposure", float, "s", "of a frame"),
        Attribute("frames", int, "", "that were added up", default=1),
    )
    conventions: ClassVar[dict[str, str]] = {"angle": "counterclockwise"}

    @property
    def image(self) -> ImageSpace:
        return ImageSpace((2, 4, 6), is_complex=True, quantity="refractive index")

    def build_model(self, columns: Columns, n_views: int, options: Any = None, **_: Any) -> Any:
        raise InputError("a scan is written, sent and read without its model")

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        return {"turn": f"{columns['angle'][n_views - 1]:.3f} rad at the end"}


def toy(seed: int = 0) -> ToyCounts:
    rng = np.random.default_rng(seed)
    probe = (rng.standard_normal((3, 5)) + 1j * rng.standard_normal((3, 5))).astype(np.complex64)
    return ToyCounts(probe, 0.25, 3)


def toy_views(views: int, seed: int = 0) -> tuple[NDArray[np.uint16], NDArray[np.float64], NDArray[np.float32]]:
    """Data, angles and doses."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 1 << 16, (views, 3, 5)).astype(np.uint16)
    return data, rng.random(views), rng.random((views, 3, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def _registered():
    registry.entries("instrument")
    declare(ToyCounts)
    yield
    del registry._table["instrument"]["toy-counts"]


@pytest.fixture
def scan():
    data, angle, dose = toy_views(9)
    truth = np.full((2, 4, 6), 1 + 2j, dtype=np.complex64)
    return MemoryScan(data, toy(), truth, {"who": "us"}, {"angle": angle, "dose": dose})


def write(path, views=9, *, seed=0, shard=3, dose=True):
    data, angle, doses = toy_views(views, seed)
    with ScanWriter(path, toy(), views_per_shard=shard) as writer:
        writer.append(data, angle=angle, **({"dose": doses} if dose else {}))
        writer.finish()
    return data, angle, doses


def test_it_is_saved_and_opened_as_it_was(scan, tmp_path):
    save_scan(scan, tmp_path / "s.zarr")
    stored = open_scan(tmp_path / "s.zarr")
    assert (stored.version, stored.complete, stored.n_views, stored.dtype) == (4, True, 9, np.uint16)
    assert stored.instrument.difference(scan.instrument) == ""
    assert type(stored.instrument) is ToyCounts
    assert stored.read().dtype == torch.uint16
    assert np.array_equal(stored.read().numpy(), scan.data.numpy())
    assert np.array_equal(stored.read(torch.tensor([7, 2, 7])).numpy(), scan.data.numpy()[[7, 2, 7]])
    for name in ("angle", "dose"):
        assert np.array_equal(stored.columns[name], scan.columns[name])
        assert stored.columns[name].dtype == scan.columns[name].dtype
    assert np.array_equal(stored.truth, scan.truth)
    assert stored.truth.dtype == np.complex64
    assert stored.provenance == {"who": "us"}
    assert hashes(stored, 9) == hashes(scan, 9)
    assert fingerprint(stored) == fingerprint(scan) == fingerprint(stored.load())
    other = MemoryScan(scan.data, toy(1), None, None, scan.columns)
    assert hashes(other, 9)["the geometry of the scan"] != hashes(scan, 9)["the geometry of the scan"]
    with pytest.raises(InputError, match="a scan of toy-counts has no geometry"):
        _ = born_geometry(stored)


def test_zarr_reads_it_and_it_tells_what_it_holds(scan, tmp_path):
    save_scan(scan, tmp_path / "s.zarr")
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    assert np.array_equal(group["data"][...], scan.data.numpy())
    assert np.array_equal(group["angle"][...], scan.columns["angle"])
    assert np.array_equal(group["probe"][...], scan.instrument.probe)
    assert np.array_equal(group["truth"][...], scan.truth)
    assert (group.attrs["instrument"], group.attrs["marks"]) == ("toy-counts", True)
    assert group.attrs["attributes"] == {"exposure": 0.25, "frames": 3}
    assert group.attrs["declarations"]["columns"]["angle"]["unit"] == "rad"
    assert dict(group["data"].attrs) == {
        "axes": ["view", "row", "column"],
        "unit": "counts",
        "meaning": "photons of each pixel",
    }


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", "complex128"])
def test_data_of_any_type_comes_back_to_the_bit(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(ToyCounts, "data", Data((dtype,), ("row", "column")))
    data = np.random.default_rng(0).integers(0, 2, (5, 3, 5)).astype(dtype)
    save_scan(MemoryScan(data, toy(), columns={"angle": np.arange(5.0)}), tmp_path / "s.zarr")
    assert open_scan(tmp_path / "s.zarr").read().numpy().tobytes() == data.tobytes()
    assert zarr.open_group(tmp_path / "s.zarr", mode="r")["data"].dtype == dtype


def test_it_is_followed_while_it_is_written(tmp_path):
    data, angle, dose = toy_views(8)
    with ScanWriter(tmp_path / "s.zarr", toy(), views_per_shard=3) as writer:
        stored = open_scan(tmp_path / "s.zarr")
        assert stored.n_views == 0
        writer.append(data[:2], angle[:2])
        assert not stored.refresh()
        writer.commit()
        assert stored.refresh()
        assert list(stored.columns) == ["angle"]
        writer.append(data[2:5], angle=angle[2:5], dose=dose[2:5])  # the optional column comes late
        assert stored.refresh()
        assert np.array_equal(stored.columns["dose"][:2], np.ones((2, 3, 5)))
        writer.append(data[5:6], angle=angle[5:6])  # and is left out again
    with ScanWriter(tmp_path / "s.zarr") as writer:
        writer.append(data[6:], angle[6:], dose[6:])
        writer.finish()
    assert stored.refresh()
    stored.check()
    want = dose.copy()
    want[[0, 1, 5]] = 1
    assert stored.complete
    assert np.array_equal(stored.read().numpy(), data)
    assert np.array_equal(stored.columns["angle"], angle)
    assert np.array_equal(stored.columns["dose"], want)


def test_what_the_declaration_does_not_allow_is_refused_with_nothing_added(tmp_path):
    data, angle, dose = toy_views(2)
    with ScanWriter(tmp_path / "s.zarr", toy()) as writer:
        for values, columns, message in (
            (data, {}, "angle is missing: of the stage"),
            (data, {"angle": angle, "speed": angle}, "toy-counts has no column 'speed'; it has angle, dose"),
            (data, {"angle": angle[:1]}, "views of 3 rows x 5 columns"),
            (data, {"angle": angle[:, None]}, r"angle has shape \(2, 1\), but must be"),
            (data, {"angle": [0.0, np.nan]}, "angle hold NaN or infinity at view 1"),
            (data, {"angle": angle, "dose": dose[:, :2]}, "dose has shape"),
            (data[:, :2], {"angle": angle}, r"data has shape \(2, 2, 5\)"),
            (data.astype(float), {"angle": angle}, "data is float64, which cannot be stored as uint16"),
            (data.astype(int) - 70000, {"angle": angle}, "which uint16 cannot hold"),
            (data + 1j, {"angle": angle}, "cannot be stored as uint16"),
        ):
            with pytest.raises(InputError, match=message):
                writer.append(values, **columns)
        assert writer.appended == 0
        writer.append(data.tolist(), angle.tolist())
    with pytest.raises(InputError, match="was begun with other probe"):
        ScanWriter(tmp_path / "s.zarr", toy(1))
    with pytest.raises(InputError, match="is stored as uint16 or float32, not complex64"):
        ScanWriter(tmp_path / "t.zarr", toy(), dtype="complex64")
    for truth in (np.zeros((4, 6)), np.full((2, 4, 6), np.nan)):
        with pytest.raises(InputError, match="true image"):
            MemoryScan(data, toy(), truth, columns={"angle": angle})


def test_an_instrument_that_is_not_known_here_is_refused_by_name(scan, tmp_path, capsys):
    save_scan(scan, tmp_path / "s.zarr")
    path = tmp_path / "s.zarr" / "zarr.json"
    content = json.loads(path.read_text())
    content["attributes"]["instrument"] = "toy-count"
    del content["attributes"]["crc32c"]
    path.write_text(json.dumps(content))
    assert main(["verify", str(tmp_path / "s.zarr")]) == 2
    said = capsys.readouterr().err
    assert "there is no instrument 'toy-count'; did you mean 'toy-counts'?" in said
    assert said.count("\n") == 1


def test_damage_is_named_by_view(tmp_path, capsys):
    write(tmp_path / "s.zarr")
    assert main(["verify", str(tmp_path / "s.zarr")]) == 0
    file = tmp_path / "s.zarr" / "data" / "c" / "1" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[(20 + 30 + 4) + 20 + 7] ^= 1  # of the second view of the second shard
    content[2 * (20 + 30 + 4) + 3] ^= 1  # in the mark of the third
    file.write_bytes(content)
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "s.zarr")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "view 4: its chunk fails its checksum"
    assert lines[1].startswith("view 5: its mark fails its checksum")
    assert len(lines) == 2


def zipped(path):
    out = path.with_suffix(".zip")
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            archive.write(file, str(file.relative_to(path)))
    return out


@pytest.mark.parametrize("place", ["folder", "python", "zip", "fsspec"])
@pytest.mark.parametrize("name", ["data", "dose"])
def test_two_files_that_were_swapped_are_noticed_and_named(tmp_path, monkeypatch, place, name):
    if place == "python":
        monkeypatch.setattr("plugstream.scans.places._native.load", lambda: None)
    path = tmp_path / "s.zarr"
    write(path)
    one, two = (path / name / "c" / str(shard) / "0" / "0" for shard in (0, 2))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    scan = open_scan({"zip": zipped(path), "fsspec": f"file://{path}"}.get(place, path))
    bad = scan.damaged()
    assert sorted(bad) == [0, 1, 2, 6, 7, 8]
    assert "it holds view 7 of this scan" in bad[1]
    assert "it holds view 0 of this scan" in bad[6]
    assert scan.read(torch.tensor([4])).shape == (1, 3, 5)
    with pytest.raises(DamagedError) as caught:
        scan.read(torch.tensor([8, 3]))
    assert list(caught.value.views) == [8]


def test_a_file_of_another_scan_or_array_is_noticed(tmp_path):
    paths = [tmp_path / name for name in ("a.zarr", "b.zarr")]
    for seed, path in enumerate(paths):
        write(path, seed=seed)
    shutil.copy(paths[1] / "data/c/1/0/0", paths[0] / "data/c/1/0/0")
    scan = open_scan(paths[0])
    bad = scan.damaged()
    assert sorted(bad) == [3, 4, 5]
    assert f"it holds view 4 of another scan, {open_scan(paths[1]).id[:16]}" in bad[4]
    shutil.copy(paths[1] / "angle/c/0", paths[0] / "angle/c/0")
    with pytest.raises(InputError, match="it holds view 0 of another scan"):
        open_scan(paths[0])
    shutil.copy(paths[0] / "probe/c/0/0", paths[1] / "probe/c/0/0")
    with pytest.raises(InputError, match="probe cannot be read: it holds view 0 of another scan"):
        open_scan(paths[1])


def test_an_array_that_became_another_one_is_noticed(tmp_path, monkeypatch):
    """With the same type and shape, so that nothing but the mark tells them apart."""
    monkeypatch.setattr(ToyCounts, "data", Data(("float32",), ("row", "column")))
    data, angle, dose = toy_views(4)
    with ScanWriter(tmp_path / "s.zarr", toy()) as writer:
        writer.append(data, angle, dose)
        writer.finish()
    shutil.copy(tmp_path / "s.zarr/dose/c/0/0/0", tmp_path / "s.zarr/data/c/0/0/0")
    bad = open_scan(tmp_path / "s.zarr").damaged()
    assert sorted(bad) == [0, 1, 2, 3]
    assert "of another array" in bad[0]


def test_a_shard_that_zarr_wrote_again_has_no_marks_and_is_read(tmp_path, capsys):
    data, *_ = write(tmp_path / "s.zarr")
    array = zarr.open_group(tmp_path / "s.zarr", mode="r+")["data"]
    array[4] = 3
    scan = open_scan(tmp_path / "s.zarr")
    data[4] = 3
    assert np.array_equal(scan.read().numpy(), data)
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "s.zarr")]) == 0
    assert "3 of them without marks" in capsys.readouterr().out


def test_info_and_verify_go_by_the_declarations(scan, tmp_path, capsys):
    save_scan(scan, tmp_path / "s.zarr")
    assert main(["info", str(tmp_path / "s.zarr")]) == 0
    said = capsys.readouterr().out
    for text in ("toy-counts", "uint16", "3 x 5", "exposure", "0.25 s", "angle", "dose", "at the end", "who us"):
        assert text in said, text
    assert main(["verify", str(tmp_path / "s.zarr")]) == 0


def test_it_is_sent_over_loopback(scan, tmp_path):
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address)
    got = open_scan(tmp_path / "s.zarr")
    got.check()
    assert got.complete
    assert got.dtype == np.uint16
    assert hashes(got, 9) == hashes(scan, 9)
    assert got.provenance["instrument"] == {"who": "us"}


def test_a_sender_and_a_writer_take_the_same_views(tmp_path):
    data, angle, dose = toy_views(6)
    with receiving(tmp_path / "s.zarr") as receiver, ScanSender(receiver.address, toy(), dtype="float32") as sender:
        with pytest.raises(InputError, match="angle is missing"):
            sender.append(data)
        sender.append(data[:2], angle[:2])
        sender.append(data[2:], angle=angle[2:], dose=dose[2:])
        sender.finish()
    got = open_scan(tmp_path / "s.zarr")
    assert got.dtype == np.float32
    assert np.array_equal(got.read().numpy(), data.astype(np.float32))
    assert np.array_equal(got.columns["dose"], np.concatenate([np.ones((2, 3, 5)), dose[2:]]))


def test_a_begin_of_an_instrument_that_is_not_known_is_refused(tmp_path):
    from streaming import begin, bye, changed, end, view

    data, angle, _ = toy_views(1)
    good = begin("scan", toy(), {}, source="angle")
    with receiving(tmp_path / "s.zarr") as receiver, Client(receiver.address) as client:
        for changes in (
            {"instrument": "toy-count"},
            {"instrument": "evil.py:Thing"},
            {"instrument": "born-2d"},
            {"instrument": None},
            {"arrays": {}},
            {"arrays": {"probe": [3, 5], "other": [3]}},
            {"arrays": {"probe": [3, 10**9]}},
            {"arrays": {"probe": [3, 5.0]}},
            {"arrays": {"probe": [15]}},
            {"arrays": {"probe": [5, 4]}},
            {"arrays": [["probe", 3, 5]]},
        ):
            assert client.ask(changed(good, **changes)) == ("nak", 0), changes
        assert list(tmp_path.iterdir()) == []
        assert client.ask(good) == ("ack", 0)
        one = view("scan", 0, data[0], angle[0], kind="angle")
        for changes in ({"columns": []}, {"columns": ["dose"]}, {"columns": ["angle", "angle"]}, {"dtype": "int16"}):
            assert client.ask(changed(one, **changes)) == ("nak", 1), changes
        assert client.ask(one) == ("ack", 1)
        assert client.ask(end("scan", 1)) == ("ack", 2)
        client.say(bye("scan", 1))
    assert np.array_equal(open_scan(tmp_path / "s.zarr").read().numpy(), data)
