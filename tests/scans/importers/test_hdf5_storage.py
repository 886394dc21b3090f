"""HDF5 that lies in several files: nothing outside the folder is read unasked, and nothing short becomes zeros."""

from __future__ import annotations

import os
import resource
import zlib
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

from plugstream import import_hdf5
from plugstream.base.capacity import reading_at_most
from plugstream.base.errors import InputError
from plugstream.base.trust import trusting
from plugstream.cli import main
from plugstream.scans import open_scan
from plugstream.scans.importers import describe_file, import_file
from plugstream.scans.importers.hdf5 import open_hdf5

DATA = np.arange(30, dtype=np.float32).reshape(6, 5) + 1
UNLIMITED = h5py.h5f.UNLIMITED


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def part(path: Path, data=DATA) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = data
    return path


def raw(path: Path, data=DATA) -> Path:
    path.write_bytes(data.tobytes())
    return path


def virtual(file, name: str, sources, shape=(6, 5)) -> None:
    layout = h5py.VirtualLayout(shape, "f4")
    for rows, (where, place, size) in sources:
        layout[rows] = h5py.VirtualSource(where, place, shape=size)
    file.create_virtual_dataset(name, layout, fillvalue=-1)


# How a dataset "d" of a file can lie in another file, which is at `place` and is called `name` there.


def as_external(file, name: str, place: Path, data) -> None:
    raw(place, data)
    file.create_dataset("d", (6, 5), "f4", external=[(name, 0, UNLIMITED)])


def as_link(file, name: str, place: Path, data) -> None:
    part(place, data)
    file["d"] = h5py.ExternalLink(name, "/x")


def as_soft_link(file, name: str, place: Path, data) -> None:
    part(place, data)
    file["other"] = h5py.ExternalLink(name, "/")
    file["d"] = h5py.SoftLink("other/x")


def as_virtual(file, name: str, place: Path, data) -> None:
    part(place, data)
    virtual(file, "d", [(slice(None), (name, "x", data.shape))])


def as_nested(file, name: str, place: Path, data) -> None:
    """A virtual dataset of this file, whose part is one of a file beside it, whose part is elsewhere."""
    part(place, data)
    with h5py.File(Path(file.filename).with_name("middle.h5"), "w") as middle:
        virtual(middle, "m", [(slice(None), (name, "x", data.shape))])
    virtual(file, "d", [(slice(None), ("middle.h5", "m", (6, 5)))])


def as_linked_external(file, name: str, place: Path, data) -> None:
    """A link to a file beside this one, whose raw numbers are elsewhere."""
    raw(place, data)
    with h5py.File(Path(file.filename).with_name("middle.h5"), "w") as middle:
        middle.create_dataset("m", (6, 5), "f4", external=[(name, 0, UNLIMITED)])
    file["d"] = h5py.ExternalLink("middle.h5", "/m")


WAYS = [as_external, as_link, as_soft_link, as_virtual, as_nested, as_linked_external]


def read(path: Path):
    with open_hdf5(path) as source:
        return source.find("d")[:]


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("how", ["absolute", "parent", "symlink", "sibling whose name begins alike"])
def test_what_lies_outside_the_folder_is_read_only_if_asked_for(make, how, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(inside)
    place, name = tmp_path / "other.dat", "../other.dat"
    if how == "absolute":
        name = str(place)
    elif how == "symlink":
        (inside / "near.dat").symlink_to(place)
        name = "near.dat"
    elif how.startswith("sibling"):
        (tmp_path / "into").mkdir()
        place, name = tmp_path / "into" / "other.dat", "../into/other.dat"
    with h5py.File(inside / "a.h5", "w") as file:
        make(file, name, place, DATA)
    with pytest.raises(InputError, match=r"lies in .*other\.dat, outside the folder of a\.h5; .*--trust"):
        read(inside / "a.h5")
    from plugstream.base.trust import trusting

    with trusting(True):
        np.testing.assert_array_equal(read(inside / "a.h5"), DATA)
    with pytest.raises(InputError, match="outside"):
        read(inside / "a.h5")  # consent ends where it was given


@pytest.mark.parametrize("make", WAYS)
def test_what_lies_in_the_folder_or_below_is_read(make, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(inside)
    (inside / "sub").mkdir()
    with h5py.File(inside / "a.h5", "w") as file:
        make(file, "sub/other.dat", inside / "sub" / "other.dat", DATA)
    np.testing.assert_array_equal(read(inside / "a.h5"), DATA)
    np.testing.assert_array_equal(read(Path("a.h5")), DATA)
    (tmp_path / "alias.h5").symlink_to(inside / "a.h5")
    np.testing.assert_array_equal(read(tmp_path / "alias.h5"), DATA)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("make", [as_external, as_virtual, as_nested, as_linked_external])
def test_what_is_short_or_gone_is_refused_always(make, trust, inside, monkeypatch):
    monkeypatch.chdir(inside)
    from plugstream.base.trust import trusting

    other = inside / "other.dat"
    with h5py.File(inside / "a.h5", "w") as file:
        make(file, "other.dat", other, DATA)
    np.testing.assert_array_equal(read(inside / "a.h5"), DATA)
    if make in (as_virtual, as_nested):
        part(other, DATA[:4])
        message = "x of other.dat has 20 of 30 numbers"
    else:
        raw(other, DATA[:2])
        message = "other.dat has 40 bytes of 120"
    with trusting(trust), pytest.raises(InputError, match=f"never written as a whole: .*{message}"):
        read(inside / "a.h5")
    other.unlink()
    with trusting(trust), pytest.raises(InputError, match=r"there is no file other\.dat"):
        read(inside / "a.h5")


def test_a_link_that_leads_nowhere_is_refused_not_overlooked(inside):
    with h5py.File(inside / "a.h5", "w") as file:
        file["d"] = h5py.ExternalLink("gone.h5", "/x")
    with pytest.raises(InputError, match=r"it is a link to gone\.h5, and there is no such file"):
        read(inside / "a.h5")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([(slice(0, 4), ("p.h5", "x", (4, 5)))], "no part of it stands for some"),
        # As many numbers as there are places, but two parts for the same ones.
        ([(slice(0, 3), ("q.h5", "x", (3, 5))), (slice(1, 4), ("q.h5", "x", (3, 5)))], "no part of it stands for some"),
        ([(slice(0, 6), ("p.h5", "y", (6, 5)))], "there is no y of p.h5"),
        ([(slice(0, 6), ("p.h5", "part", (6, 5)))], "part of p.h5: it has 1 of 2 chunks"),
        ([(slice(0, 6), ("a.h5", "d", (6, 5)))], "it is a part of itself"),
        ([(slice(0, 6), (".", "d", (6, 5)))], "it is a part of itself"),
    ],
)
def test_a_virtual_dataset_without_all_of_its_parts(sources, message, inside):
    with h5py.File(part(inside / "p.h5", DATA[:4]), "a") as file:
        file.create_dataset("part", (6, 5), "f4", chunks=(3, 5))[:3] = 1
    part(inside / "q.h5", DATA[:3])
    with h5py.File(inside / "a.h5", "w") as file:
        virtual(file, "d", sources)
    with pytest.raises(InputError, match=message):
        read(inside / "a.h5")


def test_a_virtual_dataset_of_interleaved_parts_and_tiles(inside):
    part(inside / "even.h5", DATA[::2])
    part(inside / "odd.h5", DATA[1::2, :2])
    part(inside / "rest.h5", DATA[1::2, 2:])
    with h5py.File(inside / "a.h5", "w") as file:
        layout = h5py.VirtualLayout((6, 5), "f4")
        layout[::2] = h5py.VirtualSource("even.h5", "x", shape=(3, 5))
        layout[1::2, :2] = h5py.VirtualSource("odd.h5", "x", shape=(3, 2))
        layout[1::2, 2:] = h5py.VirtualSource("rest.h5", "x", shape=(3, 3))
        file.create_virtual_dataset("d", layout)
    np.testing.assert_array_equal(read(inside / "a.h5"), DATA)


def series(path: Path, pattern: str) -> None:
    """A virtual dataset of two rows from each of the files that a pattern stands for, as many as there are."""
    with h5py.File(path, "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        space = h5py.h5s.create_simple((2, 5), (h5py.h5s.UNLIMITED, 5))
        space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (2, 1), (2, 5))
        made.set_virtual(space, pattern.encode(), b"x", h5py.h5s.create_simple((2, 5)))
        h5py.h5d.create(file.id, b"d", h5py.h5t.IEEE_F32LE, space, made)


def test_a_series_of_files_is_read_as_far_as_it_goes(inside, tmp_path):
    series(inside / "a.h5", "p%b.h5")
    for n in range(3):
        part(inside / f"p{n}.h5", DATA[2 * n : 2 * n + 2])
    np.testing.assert_array_equal(read(inside / "a.h5"), DATA)
    part(inside / "p1.h5", DATA[:1])
    with pytest.raises(InputError, match=r"x of p1\.h5 has 5 of 10 numbers"):
        read(inside / "a.h5")
    for n in range(3):
        part(tmp_path / f"p{n}.h5", DATA[2 * n : 2 * n + 2])
    series(inside / "b.h5", str(tmp_path / "p%b.h5"))
    with pytest.raises(InputError, match="outside the folder"):
        read(inside / "b.h5")


def test_a_device_or_pipe_is_never_opened(inside):
    os.mkfifo(inside / "pipe")
    for make in (as_external, as_link, as_virtual):
        with h5py.File(inside / "a.h5", "w") as file:
            make(file, "pipe", inside / "aside.dat", DATA)
        with pytest.raises(InputError, match=r"there is no file pipe|is not a file"):
            read(inside / "a.h5")


def exchange(path: Path, make_data) -> Path:
    with h5py.File(path, "w") as file:
        make_data(file)
        file["exchange/data_white"] = np.full((2, 4, 16), 1000.0, "f4")
        file["exchange/data_dark"] = np.zeros((2, 4, 16), "f4")
        file["exchange/theta"] = np.linspace(0, 174, 30)
    return path


def test_the_command_refuses_a_short_raw_file_and_one_anywhere(inside, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(inside)
    frames = np.full((30, 4, 16), 500, "u2")
    raw(inside / "short.bin", frames[:10])

    def external(name):
        return lambda file: file.create_dataset("exchange/data", (30, 4, 16), "u2", external=[(name, 0, UNLIMITED)])

    def said(*words):
        code = main([*map(str, words)])
        out = capsys.readouterr()
        return code, out.out + out.err

    exchange(inside / "a.h5", external("short.bin"))
    for more in ([], ["--trust"]):
        code, text = said("import", "ct", "a.h5", "s.zarr", *more)
        assert code != 0
        assert "short.bin has 1280 bytes of 3840" in text
        assert not Path("s.zarr").exists()
    raw(tmp_path / "any.bin", frames)
    exchange(inside / "a.h5", external(str(tmp_path / "any.bin")))
    for words in (["import", "ct", "a.h5", "s.zarr", "--center", "7.5"], ["info", "a.h5"]):
        code, text = said(*words)
        assert code != 0
        assert "any.bin, outside the folder of a.h5" in text
        assert "--trust" in text
        code, text = said(*words, "--trust")
        assert code == 0, text
    scan = open_scan(inside / "s.zarr")
    assert scan.n_views == 30
    assert "trust" not in str(scan.provenance)


def test_info_does_not_open_what_lies_outside(inside, tmp_path, capsys):
    part(tmp_path / "p0.h5", DATA[:2])
    part(tmp_path / "p.h5")
    series(inside / "a.h5", "../p%b.h5")
    with h5py.File(inside / "a.h5", "a") as file:
        file["link"] = h5py.ExternalLink("../p.h5", "/x")
        for name, place in (("away", tmp_path / "away.bin"), ("short", inside / "short.bin")):
            raw(place, DATA[:2])
            file.create_dataset(name, (6, 5), "f4", external=[(str(place), 0, UNLIMITED)])
    assert main(["info", str(inside / "a.h5")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "/away  (6, 5) float32, outside the folder" in said
    assert f"/short  (6, 5) float32, {inside / 'short.bin'} has 40 bytes of 120" in said
    assert {"/d  () float32", "/link  () not read, a link to ../p.h5/x"} <= set(said)
    assert main(["info", str(inside / "a.h5"), "--trust"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert {"/d  (2, 5) float32", "/link  (6, 5) float32, a link to ../p.h5/x"} <= set(said)


PLACES = {
    "ct": ["/exchange/data"],
    "ptychography": ["/entry_1/data_1/data"],
    "mri": ["/dataset/data", "/dataset/xml"],
    "odt": ["/qpi_0/phase/raw"],
    "hdf5": ["/data"],
    "fpm": ["/imlow_HDR"],
}


@pytest.mark.parametrize("kind", PLACES)
def test_no_importer_reads_outside_the_folder(kind, inside, tmp_path):
    """Each opens HDF5 in the same place; a file in which all it needs is a link to elsewhere is refused by all."""
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["secret"] = np.ones((6, 8, 8), "f4")
    name, before = ("a.mat", 512) if kind == "fpm" else ("a.h5", 0)  # as MATLAB 7.3 begins its files
    with h5py.File(inside / name, "w", userblock_size=before) as file:
        for place in PLACES[kind]:
            file[place] = h5py.ExternalLink("../p.h5", "/secret")
    with pytest.raises(InputError):
        import_file(kind, inside / name, tmp_path / "s.zarr")
    with open_hdf5(inside / name) as source, pytest.raises(InputError, match="outside the folder"):
        source.find(PLACES[kind][0])


def test_a_function_takes_the_consent_as_an_argument(inside, tmp_path):
    angle = 2 * np.pi * np.arange(5) / 5
    ring = np.stack([np.cos(angle), np.sin(angle)], 1)
    part(tmp_path / "p.h5", DATA.astype(np.complex64))
    with h5py.File(inside / "a.h5", "w") as file:
        file["receivers"], file["transmitters"] = ring, ring[[0, 1, 2, 3, 4, 0]]
        file["data"] = h5py.ExternalLink("../p.h5", "/x")
    values = {"wavelength": 0.5, "pixel": 0.1, "size": 8}
    with pytest.raises(InputError, match="outside"):
        import_hdf5(inside / "a.h5", tmp_path / "s.zarr", values)
    assert import_hdf5(inside / "a.h5", tmp_path / "s.zarr", values, trust=True) == 6
    assert describe_file(inside / "a.h5") is not None


def test_raw_storage_is_where_hdf5_looks_for_it(inside, tmp_path, monkeypatch):
    """HDF5 takes relative names from the current folder: one that has no such file, or another, is not the file's."""
    with h5py.File(inside / "a.h5", "w") as file:
        as_external(file, "other.dat", inside / "other.dat", DATA)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no file other\.dat: HDF5 looks in the current folder, so run .*in"):
        read(inside / "a.h5")
    raw(tmp_path / "other.dat", DATA + 1)
    with pytest.raises(InputError, match="outside the folder"):
        read(inside / "a.h5")
    monkeypatch.chdir(inside)
    np.testing.assert_array_equal(read(inside / "a.h5"), DATA)


def test_a_virtual_dataset_of_hundreds_of_millions_of_rows_is_refused_at_once(tmp_path: Path) -> None:
    """In a file of a few kilobytes; `info` refuses it, too, and takes no memory for it."""
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file["exchange/part"] = np.ones((1, 1, 47), np.uint16)
        layout = h5py.VirtualLayout((400_000_000, 1, 47), np.uint16)
        layout[:1] = h5py.VirtualSource(".", "exchange/part", shape=(1, 1, 47))
        file["exchange"].create_virtual_dataset("data", layout)
    before = memory_peak()
    with pytest.raises(InputError, match="of its 400000000 rows claims"):
        describe_file(tmp_path / "wide.h5")
    assert memory_peak() - before < 500 << 20


def memory_peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def write_chunk(path: Path, content: bytes, shape: tuple[int, ...] = (6, 1, 47), **how) -> Path:
    """A dataset whose first chunk is these bytes."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("d", data=np.ones(shape, np.uint16), chunks=(1, *shape[1:]), **how)
        data.id.write_direct_chunk((0,) * len(shape), content)
    return path


def test_a_chunk_unpacks_to_no_more_than_its_numbers(tmp_path: Path) -> None:
    """HDF5 would unpack all of it first: 500 MB for 94 bytes of numbers."""
    pack = zlib.compressobj(9)
    bomb = b"".join(pack.compress(bytes(1 << 20)) for _ in range(8)) + pack.flush()
    small = write_chunk(tmp_path / "small.h5", bomb, compression="gzip")
    large = write_chunk(tmp_path / "large.h5", bomb, (2, 10, 1000), compression="gzip")
    with open_hdf5(small) as source, pytest.raises(InputError, match=r"has .* bytes for 94 of numbers"):
        source.find("d")[0]
    with reading_at_most(1 << 20), open_hdf5(large) as source:
        with pytest.raises(InputError, match="its compressed bytes unpack to more than 20000"):
            source.find("d")[0]
        assert (source.find("d")[1] == 1).all()


@pytest.mark.parametrize("name", ["blosc", "lz4", "bitshuffle", "zstd"])
def test_a_chunk_that_lies_reaches_no_filter(tmp_path: Path, name: str) -> None:
    """Some of them read as far as it says, which ended the process."""
    hdf5plugin = pytest.importorskip("hdf5plugin")
    how = {"blosc": "Blosc", "lz4": "LZ4", "bitshuffle": "Bitshuffle", "zstd": "Zstd"}[name]
    how, values = getattr(hdf5plugin, how)(), np.random.default_rng(0).poisson(9, (2, 64, 64)).astype(np.uint16)
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        content = file.create_dataset("d", data=values, chunks=(1, 64, 64), **how).id.read_direct_chunk((0, 0, 0))[1]
    with open_hdf5(tmp_path / "whole.h5") as source:
        assert (source.find("d")[:] == values).all()
    place = {"blosc": 12, "zstd": 5}.get(name, 12)
    lies = [content[:place] + word + content[place + 4 :] for word in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")]
    for lie in [*lies, content[: len(content) // 2]] if name != "zstd" else lies:
        path = write_chunk(tmp_path / "lie.h5", lie, (2, 64, 64), **how)
        with open_hdf5(path) as source, pytest.raises(InputError, match=r"d of .* cannot be read"):
            source.find("d")[0]


def test_a_filter_that_crashes_needs_trust(tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "sz.h5", "w") as file:
        file.create_dataset("d", data=np.ones((2, 8, 8), np.float32), chunks=(1, 8, 8), **hdf5plugin.SZ(absolute=0.1))
    with open_hdf5(tmp_path / "sz.h5") as source:
        with pytest.raises(InputError, match=r"compressed by sz, which crashes on damaged bytes; .* add --trust"):
            source.find("d")
        with trusting(True):
            assert np.allclose(source.find("d")[:], 1, atol=0.1)


def test_any_damage_of_a_head_is_one_line(tmp_path: Path) -> None:
    """h5py has several kinds of errors for it."""
    content = bytearray(part(tmp_path / "whole.h5").read_bytes())
    for place in range(8, 96, 4):
        (tmp_path / "bad.h5").write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        with suppress(InputError):
            describe_file(tmp_path / "bad.h5")
