"""Importers of HDF5 and NPZ: files of others to the bit, or refused in one line."""

from __future__ import annotations

import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest
import torch

from plugstream import InputError, ScanWriter, open_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry
from plugstream.models.born_geometry import ring
from plugstream.scans.importers import import_hdf5, import_npz


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(3)
    data = (rng.standard_normal((6, 5)) + 1j * rng.standard_normal((6, 5))).astype(np.complex64)
    mask = rng.random((6, 5)) < 0.7
    mask[2, 3] = False
    data[2, 3] = np.nan
    return {
        "data": data,
        "receivers": rng.standard_normal((5, 2)) + 3,
        "transmitters": rng.standard_normal((6, 2)) - 3,
        "mask": mask,
        "truth": rng.random((8, 8)).astype(np.float32),
    }


VALUES = {"wavelength": 0.5, "size": 8, "pixel": 0.1}


def write(path, arrays, attributes=None):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file.attrs.update(attributes or {})
    return path


def same(path, arrays):
    scan = open_scan(path)
    mask = arrays["mask"]
    assert np.array_equal(scan.read().numpy()[mask], arrays["data"][mask])
    assert np.array_equal(born_geometry(scan).mask, mask)
    assert np.array_equal(born_geometry(scan).receivers, arrays["receivers"])
    assert np.array_equal(born_geometry(scan).transmitters, arrays["transmitters"])
    assert np.array_equal(scan.truth, arrays["truth"])
    assert born_geometry(scan).wavelength == 0.5
    assert born_geometry(scan).grid.shape == (8, 8)
    assert scan.complete
    return scan


def records(data, real, imag, dtype="<f4"):
    out = np.empty(data.shape, dtype=[(imag, dtype), (real, dtype)])  # in this order, since names are to tell
    out[real], out[imag] = data.real, data.imag
    return out


@pytest.mark.parametrize(
    "form", ["complex", "last axis", "two arrays", "double", "big endian", "records", "MATLAB", "packed", "linked"]
)
def test_hdf5_gives_the_same_scan_however_its_field_is_stored(arrays, tmp_path, form):
    stored = {f"geometry/{name}": array for name, array in arrays.items() if name != "data"}
    mapping = {name: f"/geometry/{name}" for name in arrays if name != "data"}
    data = arrays["data"]
    if form == "two arrays":
        stored |= {"re": data.real, "im": data.imag}
        mapping |= {"data_real": "re", "data_imag": "im"}
    elif form not in ("packed", "linked"):
        stored["entry/field"] = {
            "complex": data,
            "double": data.astype(np.complex128),
            "big endian": data.astype(">c8"),
            "last axis": np.stack([data.real, data.imag], -1),
            "records": records(data, "re", "im", ">f8"),
            "MATLAB": records(data, "real", "imag"),
        }[form]
    file = write(tmp_path / "f.h5", stored)
    mapping |= {} if form == "two arrays" else {"data": "/entry/field"}
    with h5py.File(file, "a") as opened:
        if form == "packed":
            opened.create_dataset("entry/field", data=data, chunks=(4, 2), compression="gzip", shuffle=True)
        elif form == "linked":
            write(tmp_path / "other.h5", {"field": data})
            opened["entry/field"] = h5py.ExternalLink("other.h5", "/field")
    assert import_hdf5(file, tmp_path / "s.zarr", mapping | VALUES) == 6
    same(tmp_path / "s.zarr", arrays)


def test_the_command_reads_mappings_attributes_and_units(arrays, tmp_path, capsys):
    stored = {f"a/{name}": array for name, array in arrays.items()}
    for name in ("receivers", "transmitters"):
        stored[f"a/{name}"] = 1000 * arrays[name]
    stored["a/data"] = arrays["data"].conj()
    file = write(tmp_path / "f.h5", stored, {"wavelength": 500.0, "background": 1.5})
    with h5py.File(file, "a") as opened:
        opened["a/data"].attrs["size"] = [8, 8]
        opened["a"].attrs["step"] = 100.0
    toml = tmp_path / "map.toml"
    toml.write_text('data = "/nowhere"\ntransmitters = "/a/transmitters"\nmask = "/a/mask"\ntruth = "/a/truth"\n')
    words = [
        "import",
        "hdf5",
        str(file),
        str(tmp_path / "s.zarr"),
        "--mapping",
        str(toml),
        "--unit",
        "mm",
        "--conjugate",
    ]
    assert main([*words, "--map", "data=/a/data", "receivers=/a/receivers", "pixel=/a@step"]) == 0, capsys.readouterr()
    scan = open_scan(tmp_path / "s.zarr")
    assert np.array_equal(scan.read().numpy()[arrays["mask"]], arrays["data"][arrays["mask"]])
    assert np.allclose(born_geometry(scan).receivers, arrays["receivers"], rtol=1e-14)
    assert (born_geometry(scan).wavelength, born_geometry(scan).background) == (0.5, 1.5)
    assert born_geometry(scan).grid.pixel == pytest.approx(0.1)
    capsys.readouterr()
    assert main(["info", str(file)]) == 0
    assert "/a/data  (6, 5) complex64" in capsys.readouterr().out


def test_plane_waves_far_fields_and_given_fields(arrays, tmp_path):
    fields = np.ones((6, 8, 8), dtype=np.complex64) * np.arange(6)[:, None, None]
    base = {"data": np.ones((6, 5), np.complex64), "receivers": arrays["receivers"]}
    write(tmp_path / "p.h5", {**base, "plane_waves": arrays["transmitters"]})
    import_hdf5(tmp_path / "p.h5", tmp_path / "p.zarr", VALUES | {"far_field": True}, unit="mm")
    scan = open_scan(tmp_path / "p.zarr")
    assert born_geometry(scan).far_field
    assert np.allclose(np.hypot(*born_geometry(scan).plane_waves.T), 1)  # directions have no unit
    assert born_geometry(scan).wavelength == 0.5e-3
    fields = (fields * np.exp(0.5j)).astype(np.complex64)
    for number, form in enumerate((fields, records(fields, "r", "i"), np.stack([fields.real, fields.imag], -1))):
        write(tmp_path / "f.h5", {**base, "fields": form})
        import_hdf5(tmp_path / "f.h5", tmp_path / f"f{number}.zarr", VALUES)
        assert np.array_equal(born_geometry(open_scan(tmp_path / f"f{number}.zarr")).fields, fields)
    import_hdf5(tmp_path / "f.h5", tmp_path / "c.zarr", VALUES, conjugate=True)  # time turned round in all of the file
    assert np.array_equal(born_geometry(open_scan(tmp_path / "c.zarr")).fields, fields.conj())


@pytest.mark.parametrize("far", [True, False])
def test_far_field_is_what_the_file_says(arrays, tmp_path, far):
    kept = {name: arrays[name] for name in ("receivers", "transmitters")} | {"data": np.ones((6, 5), np.complex64)}
    write(tmp_path / "f.h5", kept, {"far_field": far})
    import_hdf5(tmp_path / "f.h5", tmp_path / "f.zarr", VALUES)
    np.savez(tmp_path / "f.npz", **kept, **VALUES)
    words = [str(tmp_path / "f.npz"), str(tmp_path / "g.zarr"), "--map", f"far_field={str(far).lower()}"]
    assert main(["import", "npz", *words]) == 0
    for name in ("f", "g"):
        assert born_geometry(open_scan(tmp_path / f"{name}.zarr")).far_field is far


def test_lengths_may_have_units_of_their_own(tmp_path):
    """As in NeXus; a unit that is given is meant for all of them."""
    kept = {"receivers": ring(5, 200.0), "transmitters": ring(6, 250.0), "data": np.ones((6, 5), np.complex64)}
    write(tmp_path / "f.h5", {**kept, "wavelength": 500.0})
    with h5py.File(tmp_path / "f.h5", "a") as file:
        file["receivers"].attrs["units"] = "cm"
        file["wavelength"].attrs["units"] = np.bytes_("mm")
    values = {"size": 8, "pixel": 0.1}
    import_hdf5(tmp_path / "f.h5", tmp_path / "a.zarr", values)
    geometry = born_geometry(open_scan(tmp_path / "a.zarr"))
    assert (geometry.wavelength, geometry.grid.pixel) == (0.5, 0.1)
    assert np.array_equal(geometry.receivers, 0.01 * kept["receivers"])
    assert np.array_equal(geometry.transmitters, kept["transmitters"])
    import_hdf5(tmp_path / "f.h5", tmp_path / "b.zarr", {"size": 8, "pixel": 20.0}, unit="um")
    assert born_geometry(open_scan(tmp_path / "b.zarr")).wavelength == pytest.approx(5e-4)
    with h5py.File(tmp_path / "f.h5", "a") as file:
        file["receivers"].attrs["units"] = "furlong"
    with pytest.raises(InputError, match=r"receivers of .* is in 'furlong', which is not one of m, .*; give --unit"):
        import_hdf5(tmp_path / "f.h5", tmp_path / "c.zarr", values)


def test_a_width_that_is_asked_for_wins_over_the_files_pixel(arrays, tmp_path, capsys):
    np.savez(tmp_path / "f.npz", **arrays, **VALUES)
    words = ["import", "npz", str(tmp_path / "f.npz"), str(tmp_path / "s.zarr")]
    assert main([*words, "--width", "1.6"]) == 0, capsys.readouterr()
    assert born_geometry(open_scan(tmp_path / "s.zarr")).grid.pixel == 0.2
    assert open_scan(tmp_path / "s.zarr").provenance["mapping"] == {"width": 1.6}


def test_what_was_never_written_is_no_data(arrays, tmp_path):
    """HDF5 reads zeros there, and says nothing."""
    base = {name: arrays[name] for name in ("receivers", "transmitters")}
    data = np.ones((6, 5), np.complex64)

    def some_chunks(file):
        file.create_dataset("data", (6, 5), "c8", chunks=(2, 5))[:4] = data[:4]

    def nothing(file):
        file.create_dataset("data", (6, 5), "c8")

    def virtual(file):
        layout = h5py.VirtualLayout((6, 5), "c8")
        layout[:] = h5py.VirtualSource("other.h5", "field", shape=(6, 5))
        file.create_virtual_dataset("data", layout)

    for make, message in (
        (some_chunks, "it has 2 of 3 chunks"),
        (nothing, "it is empty"),
        (virtual, "there is no file other.h5"),
    ):
        file = write(tmp_path / "f.h5", base)
        with h5py.File(file, "a") as opened:
            make(opened)
        with pytest.raises(InputError, match=rf"data of .* was never written as a whole: {message}"):
            import_hdf5(file, tmp_path / "s.zarr", VALUES)
        assert not (tmp_path / "s.zarr").exists()
    write(tmp_path / "other.h5", {"field": data})
    assert import_hdf5(file, tmp_path / "s.zarr", VALUES) == 6
    assert torch.equal(open_scan(tmp_path / "s.zarr").read(), torch.from_numpy(data))


def test_info_describes_whatever_can_be_imported(arrays, tmp_path, capsys):
    file = write(tmp_path / "raw.dat", {"a/data": arrays["data"]}, {"title": "a\x1b[31m\nscan"})
    with h5py.File(file, "a") as opened:
        opened["soft"], opened["gone"] = h5py.SoftLink("/a/data"), h5py.ExternalLink("no.h5", "/x")
        opened["round"] = h5py.SoftLink("/round")
        opened["none"] = h5py.Empty("f4")
    assert main(["info", str(file)]) == 0  # by what is in it, whatever its name
    said = capsys.readouterr().out.splitlines()
    assert {
        "/a/data  (6, 5) complex64",
        "/soft  (6, 5) complex64, a link to /a/data",
        "/gone  () nothing, a link to no.h5/x",
        "/round  () nothing, a link to /round",
        "/none  () float32",
    } <= set(said)
    np.savez(tmp_path / "f.NPZ", numbers=arrays["data"], objects=np.array([print], dtype=object))
    (tmp_path / "f.NPZ.npz").rename(tmp_path / "f.NPZ")
    with zipfile.ZipFile(tmp_path / "f.NPZ", "a") as opened:
        opened.writestr("broken.npy", "no array")
        opened.writestr("readme.txt", "no array either")
    assert main(["info", str(tmp_path / "f.NPZ")]) == 0
    said = capsys.readouterr().out.splitlines()[1:]
    assert said[:2] == ["numbers  (6, 5) complex64", "objects  (1,) object"]
    assert said[2].startswith("broken  () cannot be read")
    assert len(said) == 3


def test_hdf5_is_streamed(tmp_path):
    receivers = 4000
    for name, views in ("small", 2), ("big", 1500):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            data = file.create_dataset("data", (views, receivers), dtype="c8")
            for start in range(0, views, 500):
                numbers = np.arange(start, min(start + 500, views))
                data[start : start + 500] = numbers[:, None] * np.ones(receivers, np.complex64)
            file["receivers"] = ring(receivers, 2.0)
            file["transmitters"] = ring(views, 2.0)
    import_hdf5(tmp_path / "small.h5", tmp_path / "small.zarr", VALUES)  # loads modules, whose memory does not count
    tracemalloc.start()
    try:
        import_hdf5(tmp_path / "big.h5", tmp_path / "big.zarr", VALUES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "big.h5").stat().st_size > 45e6
    assert peak < 25e6
    assert torch.equal(open_scan(tmp_path / "big.zarr").read(torch.tensor([1234]))[0].real, torch.full((4000,), 1234.0))


def test_npz_needs_no_mapping(arrays, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", **arrays, **VALUES)
    np.savez_compressed(tmp_path / "b.npz", other=arrays["data"], **{k: v for k, v in arrays.items() if k != "data"})
    assert import_npz(tmp_path / "a.npz", tmp_path / "a.zarr") == 6
    same(tmp_path / "a.zarr", arrays)
    words = ["import", "npz", str(tmp_path / "b.npz"), str(tmp_path / "b.zarr"), "--map", "data=other", "pixel=1/10"]
    assert main([*words, "--wavelength", "0.5", "--size", "8"]) == 0
    same(tmp_path / "b.zarr", arrays)
    capsys.readouterr()
    assert main(["info", str(tmp_path / "b.npz")]) == 0
    assert "other  (6, 5) complex64" in capsys.readouterr().out


ALL = "data receivers transmitters mask truth"


@pytest.mark.parametrize("kind", ["hdf5", "npz"])
@pytest.mark.parametrize(
    ("keep", "change", "words", "message"),
    [
        ("receivers transmitters", {}, [], "must give data, or data_real and data_imag, but gives none"),
        ("data transmitters", {}, [], "has no receivers; map them with --map receivers=PATH"),
        ("data receivers", {}, [], "must give one of transmitters, plane_waves, fields, but gives none"),
        (ALL, {"plane_waves": np.ones((6, 2))}, [], "but gives transmitters and plane_waves"),
        (ALL, {"receivers": np.ones((4, 2))}, [], "receivers of {file} has shape (4, 2), but must be (5, 2)"),
        (ALL, {"transmitters": np.ones((2, 6))}, [], "has shape (2, 6), but must be (6, 2)"),
        (ALL, {"transmitters": np.full((6, 2), np.nan)}, [], "transmitters hold NaN or infinity"),
        (ALL, {"mask": np.ones((5, 6), bool)}, [], "mask of {file} has shape (5, 6)"),
        (ALL, {"mask": np.ones((6, 5))}, [], "mask of {file} holds float64 of shape (6, 5), which cannot be mask"),
        (ALL, {"truth": np.ones((3, 3))}, [], "truth of {file} has shape (3, 3)"),
        (ALL, {"data": np.ones((6, 5))}, [], "the field is complex; store complex numbers"),
        (ALL, {"data": np.ones((6, 5, 1), complex)}, [], "has shape (6, 5, 1), but must be (views, receivers)"),
        (ALL, {"data": np.full((6, 5), b"x")}, [], "not numbers"),
        (ALL, {"data": np.full((6, 5), 1e300 + 0j)}, [], "view 0 of the scan holds NaN or infinity"),
        ("data receivers transmitters", {}, [], "view 2 of the scan holds NaN or infinity"),
        (ALL, {}, ["--map", "data=dat"], "has no dat, which data is mapped to; did you mean"),
        (ALL, {}, ["--map", "dta=data"], "there is no 'dta' to map; did you mean data?"),
        (ALL, {}, ["--map", "data"], "write NAME=PATH"),
        (ALL, {}, ["--map", "wavelength=long"], "has no long, which wavelength is mapped to"),
        (ALL, {}, ["--map", "pixel=-1"], "a grid needs a pixel width > 0"),
        (ALL, {}, ["--map", "size=1.5"], "one or two whole numbers of pixels"),
        (ALL, {}, ["--width", "1"], "the image's grid is given twice, by pixel and by width"),
        (ALL, {}, ["--map", "far_field=2"], "far_field must be true or false"),
        (ALL, {"truth": np.full((8, 8), np.nan)}, [], "the scan's true image must be of real, finite numbers"),
        (
            "data receivers mask",
            {"fields": np.full((6, 8, 8), np.nan + 0j)},
            [],
            "fields hold NaN or infinity at view 0",
        ),
        ("data receivers mask", {"fields": np.ones((6, 8, 8))}, [], "and the field is complex; store complex numbers"),
        (ALL, {}, ["--unit", "ft"], "there is no unit 'ft'; choose one of m"),
        (ALL, {}, ["--mapping", "none.toml"], "cannot read the mapping none.toml"),
        (ALL, {}, ["--frequency", "3"], "the wavelength and the frequency are both given; give one of them"),
    ],
)
def test_every_mistake_is_one_line(arrays, tmp_path, capsys, kind, keep, change, words, message):
    stored = {name: arrays[name] for name in keep.split()} | change
    if kind == "hdf5":
        file = write(tmp_path / "f.h5", stored)
    else:
        file = tmp_path / "f.npz"
        np.savez(file, **stored)
    given = ["--map", "wavelength=0.5", "pixel=0.1", "size=8"]
    assert main(["import", kind, str(file), str(tmp_path / "s.zarr"), *given, *words]) == 2
    said = capsys.readouterr().err
    assert message.format(file=file) in said
    assert said.startswith("plugstream: ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


def test_files_that_are_not_what_they_say(arrays, tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"no such format")
    for function, name in ((import_hdf5, "HDF5"), (import_npz, "NPZ")):
        with pytest.raises(InputError, match=f"cannot be read as {name}"):
            function(bad, tmp_path / "s.zarr", {})
        with pytest.raises(InputError, match="there is no file"):
            function(tmp_path / "none", tmp_path / "s.zarr", {})
    np.savez(tmp_path / "evil.npz", **{**arrays, "data": np.array([print, len], dtype=object)}, **VALUES)
    with pytest.raises(InputError, match="Python objects, which are never unpickled"):
        import_npz(tmp_path / "evil.npz", tmp_path / "s.zarr")
    np.save(tmp_path / "one.npy", arrays["data"])
    with pytest.raises(InputError, match="a single array, not an NPZ"):
        import_npz(tmp_path / "one.npy", tmp_path / "s.zarr")
    with h5py.File(tmp_path / "sums.h5", "w") as file:  # a chunk that fails its own checksum
        file.create_dataset("data", data=np.ones((6, 5), np.complex64), chunks=(2, 5), fletcher32=True)
        file["receivers"], file["transmitters"] = arrays["receivers"], arrays["transmitters"]
        offset = file["data"].id.get_chunk_info(1).byte_offset
    content = bytearray((tmp_path / "sums.h5").read_bytes())
    content[offset] ^= 1
    (tmp_path / "sums.h5").write_bytes(content)
    with pytest.raises(InputError, match=r"data of .* cannot be read from row 0"):
        import_hdf5(tmp_path / "sums.h5", tmp_path / "s.zarr", VALUES)
    assert not (tmp_path / "s.zarr").exists()
    assert not list(tmp_path.glob(".*"))


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_a_killed_import_left_is_not_taken_for_ours(arrays, tmp_path, monkeypatch):
    """The number of a process comes again, in a container at every start; and a full disk names the target."""
    file = write(tmp_path / "f.h5", arrays, VALUES)

    def commit_and_fail(writer: ScanWriter) -> None:
        writer.commit()
        full_disk()

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # it was killed, so that nothing was tidied up
        patched.setattr("plugstream.scans.writer.ScanWriter.finish", commit_and_fail)
        with pytest.raises(InputError, match=r"cannot write the scan \S*/s\.zarr: No space left on device$"):
            import_hdf5(file, tmp_path / "s.zarr", {})
    assert len(list(tmp_path.iterdir())) == 2
    import_hdf5(file, tmp_path / "s.zarr", {})
    same(tmp_path / "s.zarr", arrays)


def test_a_disk_that_fills_during_an_import_is_told_of_the_target(arrays, tmp_path, monkeypatch):
    file = write(tmp_path / "f.h5", arrays, VALUES)

    monkeypatch.setattr("plugstream.scans.chunks.ColumnWriter._write", full_disk)
    with pytest.raises(InputError, match=r"cannot write the scan \S*/s\.zarr: No space left on device$"):
        import_hdf5(file, tmp_path / "s.zarr", {})
    assert list(tmp_path.iterdir()) == [file]


def test_one_flag_raises_the_limit_of_what_a_few_bytes_unpack_to(tmp_path, capfd):
    """Of `info` and `import` alike; what a file really holds needs none."""
    for name, save in (("packed", np.savez_compressed), ("plain", np.savez)):
        kspace = np.zeros((2, 256, 256), np.complex64)
        kspace[:, 96:160, 96:160] = np.random.default_rng(0).standard_normal((64, 64))
        save(tmp_path / f"{name}.npz", kspace=kspace)
    words = ["import", "mri", str(tmp_path / "packed.npz"), str(tmp_path / "packed.zarr")]
    assert main([*words, "--max-read", "10kB"]) == 2
    assert "kspace of" in (said := capfd.readouterr().err)
    assert "it claims 1.05 MB" in said
    assert "raise the limit of 10 kB with --max-read" in said
    assert not (tmp_path / "packed.zarr").exists()
    assert main([*words, "--max-read=2MB"]) == 0
    plain = ["import", "mri", str(tmp_path / "plain.npz"), str(tmp_path / "plain.zarr"), "--max-read", "10kB"]
    assert main(plain) == 0
    assert main(["info", str(tmp_path / "packed.npz"), "--max-read", "10kB"]) == 2
