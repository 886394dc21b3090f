"""Scans in memory and on disk: exact noise, the layout of the store, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, strategies as st

from effort import effort, thorough
from plugstream import (
    Born2D,
    BornGeometry,
    BornModel,
    DamagedError,
    Grid,
    InputError,
    LeastSquares,
    MemoryScan,
    add_noise,
    open_scan,
    ring,
    save_scan,
    simulate,
)
from plugstream.instruments.born import born_geometry
from plugstream.scans.chunks import write_array
from plugstream.scans.layout import Commit, checksum, describe, find_instrument
from small_run import main


@pytest.fixture
def scan(small_geometry):
    image = torch.rand(12, 10, generator=torch.Generator().manual_seed(0))
    return simulate(BornModel(small_geometry), image, snr=30, seed=4)


@given(snr=st.floats(-20, 120), seed=st.integers(0, 2**40), complex_=st.booleans(), masked=st.booleans())
def test_noise_is_at_exactly_the_snr(snr, seed, complex_, masked):
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(6, 5, dtype=torch.complex128 if complex_ else torch.float64, generator=generator)
    mask = torch.rand(6, 5, generator=generator) < 0.6 if masked else None
    data = torch.where(mask, data, 0) if mask is not None else data
    noise = add_noise(data, snr, seed=seed, mask=mask) - data
    got = 20 * math.log10(float(data.norm() / noise.norm()))
    assert got == pytest.approx(snr, abs=1e-6)
    if mask is not None:
        assert not noise[~mask].any()


def test_noise_is_white_and_differs_by_seed():
    data = torch.ones(200, 100, dtype=torch.complex128)
    first, second = (add_noise(data, 0.0, seed=s) - data for s in (0, 1))
    power = float(first.abs().square().mean())
    assert abs(complex((first * second.conj()).mean())) < 0.03 * power
    assert float((first**2).mean().abs()) < 0.03 * power  # circular: real and imaginary part alike and independent
    assert torch.equal(add_noise(data, 0.0, seed=1) - data, second)


def test_simulate_measures_the_model(small_geometry):
    model = BornModel(small_geometry)
    image = torch.rand(12, 10)
    assert torch.equal(simulate(model, image, snr=math.inf).data, model.forward(image))
    with pytest.raises(InputError, match="image has shape"):
        simulate(model, torch.zeros(3, 3))
    with pytest.raises(InputError, match="NaN or infinity"):
        simulate(model, torch.full((12, 10), math.nan))
    with pytest.raises(InputError, match="one image"):
        simulate(model, torch.zeros(2, 12, 10))


def test_what_is_saved_is_what_is_opened(scan, tmp_path):
    path = tmp_path / "scan.zarr"
    save_scan(scan, path)
    stored = open_scan(path)
    assert stored.complete
    assert stored.n_views == 7
    assert torch.equal(stored.read(), scan.data)
    views = torch.tensor([5, 0, 5, 2])
    assert torch.equal(stored.read(views), scan.data[views])
    assert np.array_equal(stored.truth, scan.truth)
    assert stored.provenance["snr_db"] == 30
    for name in ("receivers", "transmitters"):
        assert np.array_equal(getattr(born_geometry(stored), name), getattr(born_geometry(scan), name))
    assert born_geometry(stored).grid == born_geometry(scan).grid
    assert born_geometry(stored).wavelength == born_geometry(scan).wavelength
    stored.check()
    assert torch.equal(stored.load().data, scan.data)
    assert [p.name for p in tmp_path.iterdir()] == ["scan.zarr"]


def test_masks_and_fields_are_saved(small_geometry, tmp_path):
    rng = np.random.default_rng(0)
    fields = (rng.standard_normal((7, 12, 10)) + 1j * rng.standard_normal((7, 12, 10))).astype(np.complex64)
    mask = rng.random((7, 9)) < 0.5
    mask[3, 3] = False
    geometry = BornGeometry(
        receivers=small_geometry.receivers, wavelength=0.05, grid=small_geometry.grid, mask=mask, fields=fields
    )
    data = torch.randn(7, 9, dtype=torch.complex64)
    data[3, 3] = complex("nan")
    save_scan(MemoryScan(data, geometry), tmp_path / "s.zarr")
    stored = open_scan(tmp_path / "s.zarr")
    stored.check()
    assert np.array_equal(born_geometry(stored).mask, mask)
    assert np.array_equal(born_geometry(stored).fields, fields)
    assert born_geometry(stored).transmitters is None
    assert stored.truth is None
    fidelity = LeastSquares(BornModel(born_geometry(stored)), stored)  # straight from disk, batch by batch
    in_memory = LeastSquares(BornModel(born_geometry(stored)), data)
    x = torch.rand(12, 10)
    assert torch.equal(fidelity.gradient(x, [3, 1]), in_memory.gradient(x, [3, 1]))
    assert torch.isfinite(fidelity.gradient(x)).all()


def test_plane_waves_and_far_fields_are_saved(small_geometry, tmp_path):
    directions = ring(5, 1.0, start=20)
    for name, plane, far in (("a", True, True), ("b", True, False), ("c", False, True)):
        geometry = BornGeometry(
            plane_waves=3 * directions if plane else None,  # any length will do
            transmitters=None if plane else ring(5, 0.4),
            receivers=ring(9, 0.5, start=3),
            far_field=far,
            wavelength=0.05,
            grid=small_geometry.grid,
        )
        data = torch.randn(5, 9, dtype=torch.complex64)
        save_scan(MemoryScan(data, geometry), tmp_path / f"{name}.zarr")
        stored = open_scan(tmp_path / f"{name}.zarr")
        assert born_geometry(stored).far_field is far
        assert np.array_equal(born_geometry(stored).receivers, geometry.receivers)
        if plane:
            assert np.allclose(born_geometry(stored).plane_waves, directions, rtol=1e-15)
            assert np.array_equal(born_geometry(stored).plane_waves, geometry.plane_waves)
        some = born_geometry(stored).with_views([3, 1])
        assert (some.n_views, some.far_field) == (2, far)
        x = torch.rand(12, 10)
        got = BornModel(some, method="dense").forward(x)
        assert torch.equal(got, BornModel(geometry, method="dense").forward(x, [3, 1]))


def test_the_layout_is_the_documented_one(scan, tmp_path):
    path = tmp_path / "scan.zarr"
    save_scan(scan, path)
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 3
    data = group["data"]
    assert (data.dtype, data.shape, data.chunks, data.shards) == (np.complex64, (7, 9), (1, 9), (7, 9))
    assert np.array_equal(data[...], scan.data.numpy())  # Zarr reads what we wrote, and finds the checksums right
    for name in ("data", "receivers", "transmitters", "truth"):
        (sharding,) = group[name].metadata.codecs
        assert [type(c).__name__ for c in sharding.codecs] == ["BytesCodec", "Crc32cCodec"], name
    assert np.array_equal(group["transmitters"][...], born_geometry(scan).transmitters)
    assert np.array_equal(group["truth"][...], scan.truth)
    commit = json.loads((path / "commit.json").read_text())
    assert (commit["views"], commit["complete"]) == (7, True)
    assert group.attrs["format"] == "plugstream-scan"
    assert (group.attrs["version"], group.attrs["instrument"], group.attrs["marks"]) == (4, "born-2d", True)
    assert len(group.attrs["id"]) == 32
    assert group.attrs["attributes"]["wavelength"] == 0.05
    assert group.attrs["declarations"]["attributes"]["wavelength"]["unit"] == "m"
    assert group["data"].attrs["axes"] == ["view", "receiver"]


def test_what_zarr_writes_is_read(scan, tmp_path):
    """Another program may fill the arrays through Zarr."""
    path = tmp_path / "scan.zarr"
    save_scan(scan, path)
    array = zarr.open_group(path, mode="r+")["data"]
    array[2:5] = 3 * array[2:5]
    assert torch.equal(open_scan(path).read()[2:5], 3 * scan.data[2:5])


@pytest.mark.parametrize(("version", "hint"), [(1, "import it again"), (3, "import it again"), (9, "use a newer")])
def test_other_versions_are_refused_in_one_line(tmp_path, version, hint, capsys):
    zarr.create_group(tmp_path / "old.zarr", attributes={"format": "plugstream-scan", "version": version})
    assert main(["verify", str(tmp_path / "old.zarr")]) == 2
    said = capsys.readouterr().err
    assert f"version {version}, and this plugstream reads version 4; {hint}" in said
    assert said.count("\n") == 1


def test_readers_never_look_past_the_commit(scan, tmp_path):
    path = tmp_path / "scan.zarr"
    save_scan(scan, path)
    (path / "commit.json").write_bytes(Commit(4, False, ("data", "receivers", "transmitters", "truth")).encode())
    stored = open_scan(path)
    assert (stored.n_views, born_geometry(stored).n_views, stored.complete) == (4, 4, False)
    assert torch.equal(stored.read(), scan.data[:4])
    with pytest.raises(InputError, match="views 0 to 3"):
        stored.read(torch.tensor([5]))


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_damaged_chunk_is_found_and_named(scan, tmp_path):
    save_scan(scan, tmp_path / "s.zarr")
    flip(tmp_path / "s.zarr" / "data" / "c" / "0" / "0", 5 * (20 + 9 * 8 + 4) + 20 + 3)
    stored = open_scan(tmp_path / "s.zarr")
    assert torch.equal(stored.read(torch.tensor([4, 6])), scan.data[[4, 6]])
    assert list(stored.damaged()) == [5]
    for read in (stored.read, stored.check, stored.load, lambda: stored.read(torch.tensor([1, 5]))):
        with pytest.raises(DamagedError, match=r"view 5 of .* cannot be read: .*checksum") as caught:
            read()
        assert list(caught.value.views) == [5]


def test_nan_is_named_by_view(scan, tmp_path):
    data = scan.data.clone()
    data[4, 2] = complex("nan")
    with pytest.raises(InputError, match="view 4 of the scan holds NaN"):
        MemoryScan(data, born_geometry(scan))
    save_scan(scan, tmp_path / "s.zarr")
    array = zarr.open_group(tmp_path / "s.zarr", mode="r+")["data"]
    row = array[2]
    row[0] = np.inf
    array[2] = row
    with pytest.raises(InputError, match=r"view 2 of .* holds NaN or infinity"):
        open_scan(tmp_path / "s.zarr").check()


def test_disagreement_between_geometry_and_data_is_refused(scan, tmp_path):
    with pytest.raises(InputError, match="7 views of 9 receivers"):
        MemoryScan(scan.data[:, :8], born_geometry(scan))
    save_scan(scan, tmp_path / "s.zarr")
    shutil.rmtree(tmp_path / "s.zarr" / "receivers")
    write_array(tmp_path / "s.zarr" / "receivers", np.ones((8, 2)), None, {})
    with pytest.raises(InputError, match=r"contradicts itself: .* \(7, 9\), but its geometry has 7 views of 8"):
        open_scan(tmp_path / "s.zarr")


def test_attributes_that_were_changed_are_found(scan, tmp_path):
    save_scan(scan, tmp_path / "s.zarr")
    path = tmp_path / "s.zarr" / "zarr.json"
    path.write_text(path.read_text().replace('"wavelength": 0.05', '"wavelength": 0.06'))
    with pytest.raises(
        InputError, match=r"zarr.json fails its checksum; if you changed it yourself, remove its crc32c"
    ):
        open_scan(tmp_path / "s.zarr")
    content = json.loads(path.read_text())
    del content["attributes"]["crc32c"]
    path.write_text(json.dumps(content))
    assert born_geometry(open_scan(tmp_path / "s.zarr")).wavelength == 0.06


def test_info_tells_provenance_without_harm_to_the_terminal(scan, tmp_path, capsys):
    provenance = {"note": "a\x1b[31mred\nline", "long": 10_000 * "x", "who": "Åse"}
    save_scan(MemoryScan(scan.data, born_geometry(scan), None, provenance), tmp_path / "s.zarr")
    assert main(["info", str(tmp_path / "s.zarr")]) == 0
    out = capsys.readouterr().out
    assert r"note a\x1b[31mred\nline, long xxx" in out
    assert "..., who Åse" in out
    assert len(out) < 2000
    assert open_scan(tmp_path / "s.zarr").provenance == provenance


def test_numbers_of_any_precision_are_saved(small_geometry, tmp_path):
    grid = Grid((np.int64(12), np.int32(10)), np.float32(0.01), (np.float32(0), 1))
    geometry = BornGeometry(
        receivers=small_geometry.receivers.astype(np.float32),
        transmitters=small_geometry.transmitters,
        wavelength=np.float32(0.05),
        background=2,
        grid=grid,
    )
    save_scan(MemoryScan(torch.ones(7, 9, dtype=torch.complex64), geometry), tmp_path / "s.zarr")
    stored = born_geometry(open_scan(tmp_path / "s.zarr"))
    assert (stored.grid, stored.wavelength, stored.background) == (grid, np.float32(0.05), 2)
    assert [type(n) for n in (*stored.grid.shape, stored.grid.pixel, stored.wavelength)] == [int, int, float, float]


def test_provenance_may_be_anything_that_json_can_write(scan, tmp_path):
    provenance = {"gains": {2: 0.5, 10: (1, 2.0)}, "who": "Åse", "ok": None, "größe": 1e-300}
    save_scan(MemoryScan(scan.data, born_geometry(scan), None, provenance), tmp_path / "s.zarr")
    assert open_scan(tmp_path / "s.zarr").provenance == {**provenance, "gains": {"2": 0.5, "10": [1, 2.0]}}
    for bad in ({"x": math.nan}, {"x": object()}):
        with pytest.raises(InputError, match="the provenance cannot be written as JSON"):
            save_scan(MemoryScan(scan.data, born_geometry(scan), None, bad), tmp_path / "t.zarr")


def test_existing_and_missing_places(scan, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="exists already"):
        save_scan(scan, tmp_path / "there")
    with pytest.raises(InputError, match="does not exist"):
        save_scan(scan, tmp_path / "no" / "where.zarr")
    with pytest.raises(InputError, match="there is no scan at"):
        open_scan(tmp_path / "nothing.zarr")
    with pytest.raises(InputError, match="is not a scan"):
        open_scan(tmp_path / "there")
    zarr.create_group(tmp_path / "other.zarr")
    with pytest.raises(InputError, match="not a plugstream-scan"):
        open_scan(tmp_path / "other.zarr")


@pytest.mark.parametrize("lost", ["commit.json", "data", "receivers", "transmitters"])
def test_a_scan_with_a_part_missing_is_refused_in_one_line(scan, tmp_path, lost):
    save_scan(scan, tmp_path / "s.zarr")
    part = tmp_path / "s.zarr" / lost
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    with pytest.raises(InputError) as caught:
        open_scan(tmp_path / "s.zarr")
    assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_nothing(scan, tmp_path, monkeypatch):
    def fail(views=None):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MemoryScan, "read", lambda self, views=None: fail())
    with pytest.raises(InputError, match=r"cannot write the scan .*: No space left on device"):
        save_scan(scan, tmp_path / "s.zarr")
    assert list(tmp_path.iterdir()) == []


def test_a_grid_must_make_sense():
    with pytest.raises(InputError, match="two whole sizes"):
        Grid((0, 3), 0.1)
    with pytest.raises(InputError, match="two whole sizes"):
        Grid((3, 3.5), 0.1)
    with pytest.raises(InputError, match="pixel width > 0"):
        Grid((3, 3), -1)
    with pytest.raises(InputError, match="center of finite x and y"):
        Grid((3, 3), 0.1, (math.nan, 0))


def test_incident_fields_and_true_images_are_finite(small_geometry):
    fields = np.ones((7, 12, 10), dtype=np.complex64)
    fields[4, 2, 3] = np.nan
    with pytest.raises(InputError, match="fields hold NaN or infinity at view 4"):
        BornGeometry(receivers=small_geometry.receivers, wavelength=0.05, grid=small_geometry.grid, fields=fields)
    data = torch.zeros(7, 9, dtype=torch.complex64)
    for truth in (np.full((12, 10), np.nan), np.ones((12, 10), dtype=complex)):
        with pytest.raises(InputError, match="of real, finite numbers"):
            MemoryScan(data, small_geometry, truth)


def written_as_documented(path, arrays, wavelength, grid):
    """By the code of docs/scan-format.md, which knows nothing of plugstream."""
    text = (Path(__file__).parents[2] / "docs" / "scan-format.md").read_text()
    code = re.search(r"(?<=This writes a finished scan;)[^:]*:\n\n((?:    .*\n|\n)+)", text)[1]
    names: dict = {}
    exec(textwrap.dedent(code), names)
    told = {"wavelength": wavelength, "grid": grid.to_json()}
    columns = set(arrays) - {"data", "receivers", "truth"}
    names["write_scan"](str(path), "born-2d", told, arrays, columns, {"instrument": "ours"})


@pytest.mark.parametrize("source", ["transmitters", "plane_waves", "fields"])
def test_a_scan_that_is_written_by_the_documentation_alone_is_verified_and_reconstructed(
    small_geometry, tmp_path, source, capsys
):
    fields = np.random.default_rng(0).standard_normal((7, 12, 10)).astype(np.complex64)
    sources = {"transmitters": small_geometry.transmitters, "plane_waves": ring(7, 1.0), "fields": fields}
    mask = np.ones((7, 9), dtype=bool)
    mask[3] = False  # nothing but False and, in the data, nothing but zeros: what Zarr would leave out
    geometry = BornGeometry(
        receivers=small_geometry.receivers,
        wavelength=0.05,
        grid=small_geometry.grid,
        mask=mask,
        **{source: sources[source]},
    )
    made = simulate(BornModel(geometry), torch.rand(12, 10), snr=30)
    arrays = {"data": made.data.numpy(), "receivers": geometry.receivers, "mask": mask, "truth": made.truth}
    written_as_documented(tmp_path / "s.zarr", {**arrays, source: sources[source]}, 0.05, geometry.grid)
    assert main(["verify", str(tmp_path / "s.zarr")]) == 0, capsys.readouterr()
    stored = open_scan(tmp_path / "s.zarr")
    assert torch.equal(stored.read(), made.data)
    assert np.array_equal(born_geometry(stored).mask, mask)
    assert np.array_equal(getattr(born_geometry(stored), source), sources[source])
    assert np.array_equal(stored.truth, made.truth)
    assert stored.provenance == {"instrument": "ours"}
    words = ["--sigma", "0.02", "--batch", "3", "--iterations", "4", "--out"]
    save_scan(made, tmp_path / "ours.zarr")
    for name in ("s", "ours"):
        assert main(["reconstruct", str(tmp_path / f"{name}.zarr"), *words, str(tmp_path / name)]) == 0
    results = [np.load(tmp_path / name / "result.npy") for name in ("s", "ours")]
    assert np.array_equal(*results)


def test_the_commit_record_is_what_its_documentation_says(scan, tmp_path):
    save_scan(scan, tmp_path / "s.zarr")
    path = tmp_path / "s.zarr" / "commit.json"
    whole = json.loads(path.read_text())
    del whole["crc32c"]

    def opened(content):
        path.write_text(json.dumps({**content, "crc32c": checksum(content)}))
        return open_scan(tmp_path / "s.zarr")

    assert opened({**whole, "note": "of a later plugstream"}).n_views == 7
    for change in ({"views": 7.0}, {"views": -1}, {"complete": 1}, {"arrays": "data receivers"}, {"arrays": [1]}):
        with pytest.raises(InputError, match="must tell views, complete and arrays"):
            opened({**whole, **change})
    path.write_text(json.dumps({**whole, "crc32c": checksum({**whole, "views": 6})}))
    with pytest.raises(InputError, match="checksum"):
        open_scan(tmp_path / "s.zarr")
    with pytest.raises(InputError, match="must tell views, complete and arrays"):
        opened({name: whole[name] for name in ("views", "complete")})
    path.write_text("[7]")
    with pytest.raises(InputError, match=r"commit\.json is not a JSON object"):
        open_scan(tmp_path / "s.zarr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instrument": "xyz"}, "there is no instrument 'xyz'; there are born-2d"),
        ({"instrument": 3}, "instrument must be a name"),
        ({"instrument": "evil.py:Thing"}, "instrument"),
        (
            {"declarations": {"attributes": {"wavelength": {"unit": "mm"}}}},
            "the unit of wavelength is 'mm', and only 'm'",
        ),
        ({"declarations": {"arrays": {"receivers": {"unit": "mm"}}}}, "the unit of receivers is 'mm', and only 'm'"),
        (
            {"conventions": {"time": "exp(+i w t)"}},
            "only 'exp\\(-i w t\\), outgoing waves are H0\\^\\(1\\)' is understood",
        ),
        ({"far_field": "false"}, "far_field must be true or false, not 'false'"),
        ({"wavelength": "0.05"}, "wavelength must be a number, not '0.05'"),
        ({"wavelength": None}, "wavelength must be a number, not None"),
        ({"background": True}, "background must be a number, not True"),
        ({"grid": None}, "grid must have shape, pixel and center"),
        ({"grid": {"shape": [12, 10], "pixel": 0.01}}, "center must be 2 numbers, not None"),
        ({"grid": {"shape": [12.5, 10], "pixel": 0.01, "center": [0, 0]}}, "shape must be whole numbers"),
        ({"grid": {"shape": [12, 10], "pixel": 0.01, "center": [0, math.nan]}}, "center of finite x and y"),
        ({"marks": "yes"}, "marks must be true or false"),
        ({"id": "short"}, "id must be 32 hexadecimal digits"),
    ],
)
def test_a_scan_that_means_something_else_is_refused(scan, small_geometry, tmp_path, change, message):
    save_scan(scan, tmp_path / "s.zarr")
    path = tmp_path / "s.zarr" / "zarr.json"
    whole = json.loads(path.read_text())
    attributes = whole["attributes"]
    del attributes["crc32c"]
    nested = change.keys() & attributes["attributes"].keys()
    attributes = {**attributes, "attributes": {**attributes["attributes"], **change}} if nested else attributes | change
    path.write_text(json.dumps({**whole, "attributes": attributes}))
    with pytest.raises(InputError, match=message):
        open_scan(tmp_path / "s.zarr")


def test_descriptions_are_of_the_declarations(small_geometry):
    told = describe(Born2D.of(small_geometry), {"who": "us"}, "0" * 32, "complex64")
    instrument = find_instrument(told).from_parts({"receivers": small_geometry.receivers}, told["attributes"])
    assert instrument.difference(Born2D.of(small_geometry)) == ""
    needed = {"instrument": "born-2d"}  # the rest may be left out
    assert find_instrument(needed) is Born2D


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damage_in_a_zip_costs_the_views_that_are_damaged(scan, tmp_path, packing, capsys):
    """Though the zip has a checksum of its own over the whole shard."""
    save_scan(scan, tmp_path / "s.zarr")
    path, shard = tmp_path / "s.zip", "dossier é/data/c/0/0"
    with zipfile.ZipFile(path, "w", packing, compresslevel=0) as made:
        for file in sorted(p for p in (tmp_path / "s.zarr").rglob("*") if p.is_file()):
            made.write(file, f"dossier é/{file.relative_to(tmp_path / 's.zarr')}")
        member = made.getinfo(shard)
    assert torch.equal(open_scan(path).read(), scan.data)
    assert main(["verify", str(path)]) == 0
    whole = path.read_bytes()
    start = member.header_offset + 30 + len(shard.encode())
    for view in (2, 5):  # as noise, which does not deflate: stored within the deflated stream, 5 bytes later
        content = bytearray(whole)
        content[start + view * (20 + 9 * 8 + 4) + 50] ^= 1
        path.write_bytes(content)
        capsys.readouterr()
        assert main(["verify", str(path)]) == 1
        assert capsys.readouterr().out == f"view {view}: its chunk fails its checksum\n"
    # A name that became another's in the directory of the zip does not pass one file for the other.
    place = whole.rindex(b"transmitters/c/0/0")
    path.write_bytes(whole[:place] + b"transmitters/c/1/0" + whole[place + 18 :])
    with pytest.raises(InputError, match="is damaged"):
        open_scan(path)


def test_a_damaged_illumination_costs_its_views(small_geometry, tmp_path):
    fields = np.random.default_rng(0).standard_normal((7, 12, 10)).astype(np.complex64)
    geometry = BornGeometry(
        receivers=small_geometry.receivers, wavelength=0.05, grid=small_geometry.grid, fields=fields
    )
    data = torch.randn(7, 9, dtype=torch.complex64)
    save_scan(MemoryScan(data, geometry), tmp_path / "s.zarr")
    flip(tmp_path / "s.zarr" / "fields" / "c" / "0" / "0" / "0", 5 * (20 + 120 * 8 + 4) + 27)
    stored = open_scan(tmp_path / "s.zarr")
    assert stored.damaged() == {5: "its field is damaged: its chunk fails its checksum"}
    good = torch.tensor([0, 1, 2, 3, 4, 6])
    assert torch.equal(stored.read(good), data[good])
    assert np.array_equal(born_geometry(stored).fields[good], fields[good])
    with pytest.raises(DamagedError, match=r"view 5 of .* its field is damaged"):
        stored.read()


def test_masks_that_are_all_damaged_spoil_all_views(small_geometry, tmp_path, capsys):
    geometry = replace(small_geometry, mask=np.ones((7, 9), dtype=bool))
    save_scan(MemoryScan(torch.ones(7, 9, dtype=torch.complex64), geometry), tmp_path / "s.zarr")
    flip(tmp_path / "s.zarr" / "mask" / "c" / "0" / "0", -1)  # the index of the shard
    assert main(["verify", str(tmp_path / "s.zarr")]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [f"view {n}" for n in range(7)]


@thorough
@pytest.mark.parametrize("member", ["data", "mask", "receivers"])
def test_a_damaged_description_of_an_array_is_noticed(small_geometry, tmp_path, member):
    """In every byte that means anything, also those that only other readers need."""
    geometry = replace(small_geometry, mask=np.ones((7, 9), dtype=bool))
    save_scan(MemoryScan(torch.ones(7, 9, dtype=torch.complex64), geometry), tmp_path / "s.zarr")
    path = tmp_path / "s.zarr" / member / "zarr.json"
    whole = path.read_bytes()
    ignored = [re.search(rb'"fill_value": [^"]*("NaN"[^"]*)*', whole).span()]
    ignored.append(re.search(rb'"attributes": {[^}]*', whole).span())  # for people
    places = [k for k in range(0, len(whole), effort(8, 2)) if not any(first <= k < end for first, end in ignored)]
    assert len(places) > effort(50, 200)
    for place in places:
        flip(path, place)
        with pytest.raises(InputError):
            open_scan(tmp_path / "s.zarr").check()
        path.write_bytes(whole)


def test_a_scan_of_another_kind_or_in_other_units_is_not_opened(scan, tmp_path, capsys):
    save_scan(scan, tmp_path / "s.zarr")
    path = tmp_path / "s.zarr" / "zarr.json"
    whole = json.loads(path.read_text())
    del whole["attributes"]["crc32c"]
    for change, message in (
        ({"instrument": "xyz"}, "there is no instrument 'xyz'; there are born-2d"),
        ({"declarations": {"data": {"unit": "mm"}}}, "the unit of data is 'mm', and only '' is understood"),
        ({"version": 5}, "version 5, and this plugstream reads version 4; use a newer plugstream"),
        ({"version": "4"}, "version '4', and this plugstream reads version 4"),
    ):
        path.write_text(json.dumps({**whole, "attributes": {**whole["attributes"], **change}}))
        assert main(["verify", str(tmp_path / "s.zarr")]) == 2
        assert message in capsys.readouterr().err
