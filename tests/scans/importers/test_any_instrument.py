"""Files of arrays as scans of an instrument that no importer knows: by its declaration, with units and any storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from plugstream import open_scan
from plugstream.base import registry
from plugstream.cli import main
from plugstream.images.grid import Grid
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Attribute, Column, Columns, Data, FixedArray, Instrument, declare
from plugstream.scans.importers import import_file, import_hdf5, import_npz

h5py = pytest.importorskip("h5py")


@dataclass(frozen=True, eq=False)
class Spokes(Instrument):
    """Samples of coils along lines."""

    coils: Any
    grid: Grid
    field: float
    system: str
    shielded: bool = False

    name: ClassVar[str] = "test-spokes"
    help: ClassVar[str] = "samples of coils along lines"
    data: ClassVar[Data] = Data(("complex64", "complex128"), ("coil", 4), "V")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("start", "float64", (2,), "m"),
        Column("angle", "float64", (), "rad", choice="direction"),
        Column("turn", "int32", (), "", choice="direction"),
        Column("good", "bool", ("coil", 4), optional=True, default=True, covers=True),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (FixedArray("coils", "float64", ("coil", 2), "m"),)
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("grid", Grid, "m"),
        Attribute("field", float, "T"),
        Attribute("system", str),
        Attribute("shielded", bool, default=False),
    )

    @property
    def image(self) -> ImageSpace:
        return ImageSpace(self.grid.shape, is_complex=True)

    def build_model(self, columns: Columns, n_views: int, options: Any = None, **_: Any) -> Any:
        raise AssertionError("a scan is written, sent and read without its model")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    registry.entries("instrument")
    declare(Spokes)
    yield
    del registry._table["instrument"]["test-spokes"]


@pytest.fixture
def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((5, 3, 4)) + 1j * rng.standard_normal((5, 3, 4))).astype(np.complex64)
    return {
        "data": data,
        "start": rng.random((5, 2)),
        "angle": rng.random(5),
        "coils": rng.random((3, 2)),
        "truth": np.full((6, 7), 1 + 2j, dtype=np.complex64),
        "grid": '{"shape": [6, 7], "pixel": 0.01, "center": [0, 0]}',
        "field": 3,
        "system": "west",
    }


def same(path: Any, arrays: dict[str, Any]) -> None:
    scan = open_scan(path)
    assert np.array_equal(scan.read().numpy(), arrays["data"])
    for name in ("start", "angle"):
        assert np.allclose(scan.columns[name][:], arrays[name], rtol=1e-15)
    assert np.allclose(scan.instrument.coils, arrays["coils"], rtol=1e-15)
    assert (scan.instrument.grid.shape, scan.instrument.field, scan.instrument.system) == ((6, 7), 3.0, "west")
    assert np.array_equal(scan.truth, arrays["truth"])


def test_units_links_and_pairs_of_an_hdf5_file(arrays, tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        pairs = file.create_dataset("raw/pairs", data=np.stack([arrays["data"].real, arrays["data"].imag], -1))
        pairs.attrs["units"] = "V"
        for name, unit, factor in (("start", "mm", 1e3), ("coils", "cm", 1e2), ("angle", "rad", 1)):
            file[f"geometry/{name}"] = factor * arrays[name]
            file[f"geometry/{name}"].attrs["units"] = unit
        file["truth"] = arrays["truth"]
        file.attrs["grid"], file.attrs["field"], pairs.attrs["system"] = arrays["grid"], arrays["field"], "west"
    mapping = {"data": "/raw/pairs", **{name: f"/geometry/{name}" for name in ("start", "coils", "angle")}}
    assert import_hdf5(tmp_path / "f.h5", tmp_path / "s.zarr", mapping, instrument="test-spokes") == 5
    same(tmp_path / "s.zarr", arrays)
    assert open_scan(tmp_path / "s.zarr").provenance["mapping"] == mapping


def test_literal_values_and_masks_of_an_npz_file(arrays, tmp_path, capsys):
    mask = np.ones((5, 3, 4), dtype=np.uint8)
    mask[2, 1] = 0
    stored = {name: arrays[name] for name in ("data", "start", "angle", "coils", "truth")} | {"good": mask}
    stored["data"] = stored["data"].copy()
    stored["data"][2, 1] = np.nan
    np.savez(tmp_path / "f.npz", **stored)
    (tmp_path / "m.toml").write_text(
        "grid = {shape = [6, 7], pixel = 0.01, center = [0, 0]}\nfield = 2\nshielded = true\n"
    )
    words = ["import", "npz", str(tmp_path / "f.npz"), str(tmp_path / "s.zarr"), "--instrument", "test-spokes"]
    assert main([*words, "--mapping", str(tmp_path / "m.toml"), "--map", "field=3", "system=west"]) == 0, (
        capsys.readouterr()
    )
    scan = open_scan(tmp_path / "s.zarr")
    assert np.array_equal(scan.columns["good"][:], mask.astype(bool))
    assert scan.instrument.shielded is True
    assert scan.instrument.system == "west"
    assert np.array_equal(scan.read().numpy()[mask == 1], stored["data"][mask == 1])
    scan.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((5, 3, 4))}, "store complex numbers"),
        ({"data": np.zeros((0, 3, 4), complex)}, "it must be (views, 3, 4)"),
        ({"data": np.full((5, 3, 4), np.inf + 0j)}, "view 0 of the scan holds NaN or infinity"),
        ({"data": np.full((5, 3, 4), b"x")}, "not numbers"),
        ({"start": np.zeros((4, 2))}, "start of"),
        ({"start": np.zeros((5, 3))}, "start has shape (5, 3), but must be (5, 2)"),
        ({"start": np.full((5, 2), np.nan)}, "start hold NaN or infinity at view 0"),
        ({"turn": np.zeros(5, int)}, "views need either angle or turn, and only one of them"),
        ({"turn": np.zeros(5), "angle": None}, "turn is float64, which cannot be stored as int32"),
        ({"angle": None}, "views need either angle or turn"),
        ({"coils": np.zeros((0, 2))}, "has no entries"),
        ({"coils": np.zeros((2, 2))}, "but test-spokes has views of 2 coils x 4"),
        ({"field": "strong"}, "field must be a number"),
        ({"field": np.zeros(3)}, "field must be a number"),
        ({"grid": "round"}, "is not JSON"),
        ({"grid": "[]"}, "grid must have shape, pixel and center"),
        ({"system": None}, "system is missing"),
        ({"truth": np.zeros((6, 6), complex)}, "the scan's true image is (6, 6), but its images are (6, 7)"),
    ],
)
def test_every_mistake_is_one_line_and_leaves_nothing(arrays, tmp_path, capsys, change, message):
    stored = {name: value for name, value in (arrays | change).items() if value is not None}
    np.savez(tmp_path / "f.npz", **stored)
    words = ["import", "npz", str(tmp_path / "f.npz"), str(tmp_path / "s.zarr"), "--instrument", "test-spokes"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["f.npz"]


def test_another_unit_is_refused_and_info_finds_the_instrument(arrays, tmp_path, capsys):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name, value in arrays.items():
            file[name] = value
        file["angle"].attrs["units"] = "rad"
    assert main(["info", str(tmp_path / "f.h5")]) == 0
    assert f"import hdf5 {tmp_path / 'f.h5'} --instrument test-spokes' makes a scan of it" in capsys.readouterr().out
    path, made = import_file("hdf5", tmp_path / "f.h5", tmp_path / "s.zarr", {"instrument": "test-spokes"})
    assert (path, made.views) == (tmp_path / "s.zarr", 5)
    same(path, arrays)
    with h5py.File(tmp_path / "f.h5", "a") as file:
        file["angle"].attrs["units"] = "degrees"
    assert (
        main(["import", "hdf5", str(tmp_path / "f.h5"), str(tmp_path / "t.zarr"), "--instrument", "test-spokes"]) == 2
    )
    assert "angle of" in (said := capsys.readouterr().err)
    assert "is in 'degrees', but must be in 'rad'; convert it first" in said


def test_a_truth_may_be_real(arrays, tmp_path):
    np.savez(tmp_path / "f.npz", **(arrays | {"truth": arrays["truth"].real}))
    import_npz(tmp_path / "f.npz", tmp_path / "s.zarr", instrument="test-spokes")
    same(tmp_path / "s.zarr", arrays | {"truth": arrays["truth"].real.astype(np.complex64)})


def test_a_file_larger_than_a_block_is_read_in_parts(arrays, tmp_path, monkeypatch):
    from plugstream.scans.importers import reading as module

    monkeypatch.setattr(module, "_BLOCK_BYTES", 2 * 16 * 12)  # two views at a time
    np.savez(tmp_path / "f.npz", **arrays)
    assert import_npz(tmp_path / "f.npz", tmp_path / "s.zarr", instrument="test-spokes") == 5
    same(tmp_path / "s.zarr", arrays)
