"""Bytes of a scan, past the page cache and through it, one view at a time and many at once: always the same ones."""

import os
import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import torch
import zarr
from hypothesis import HealthCheck, example, given, settings, strategies as st

from plugstream import BornGeometry, DamagedError, Grid, ScanWriter, _native, open_scan, ring
from plugstream.base.files import NOT_PLAIN
from plugstream.scans import chunks, places, store
from plugstream.scans.places import LocalFiles, Piece, crc32c

NATIVE = hasattr(_native.load(), "read_pieces")

VIEWS, RECEIVERS, SHARD = 50, 700, 16  # 5600 bytes a view: no view begins where a block of the disk does


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """A scan, and what Zarr itself reads from it."""
    path = tmp_path_factory.mktemp("scan") / "scan.zarr"
    write(path)
    return path, np.asarray(zarr.open_array(path / "data", mode="r")[...])


def write(path):
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((VIEWS, RECEIVERS, 2)) @ [1, 1j]).astype(np.complex64)
    geometry = BornGeometry(
        receivers=ring(RECEIVERS, 0.5), wavelength=0.03, grid=Grid((8, 6), 0.01), transmitters=ring(VIEWS, 1.0)
    )
    with ScanWriter(path, geometry, views_per_shard=SHARD) as writer:
        writer.append(data, geometry.transmitters)
        writer.finish()


@pytest.fixture(params=["native", "python"])
def form(request, monkeypatch):
    """Either form of reading; Python's knows no way past the cache, and takes no notice of being asked for it."""
    if request.param == "python":
        monkeypatch.setattr(places._native, "load", lambda: None)
    elif not NATIVE:
        pytest.skip("the native reader was not built, or this processor has no instruction for crc32c")
    return request.param


@pytest.mark.usefixtures("form")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(views=st.lists(st.integers(0, VIEWS - 1), min_size=1, max_size=40), direct=st.booleans())
def test_any_views_in_any_order_are_what_zarr_reads(scan, views, direct):
    path, want = scan
    got = open_scan(path, direct=direct).read(torch.tensor(views)).numpy()
    assert got.tobytes() == want[views].tobytes()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("direct", [False, True])
def test_a_shard_that_zarr_wrote_again_is_read_in_batches_too(scan, tmp_path, direct):
    """It has no marks, and its chunks are elsewhere than in the shards beside it."""
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    zarr.open_group(path, mode="r+")["data"][SHARD + 2] = 3
    want = scan[1].copy()
    want[SHARD + 2] = 3
    views = [SHARD + 2, 1, SHARD + 2, VIEWS - 1, SHARD + 3]
    assert np.array_equal(open_scan(path, direct=direct).read(torch.tensor(views)).numpy(), want[views])


@pytest.mark.usefixtures("form")
def test_a_batch_has_no_view_but_its_own(scan, tmp_path):
    """Of a chunk in the place of another the checksum is right; and no link is followed to another scan's."""
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    file, size = path / "data" / "c" / "1" / "0", 20 + 8 * RECEIVERS + 4
    content = file.read_bytes()
    file.write_bytes(content[size : 2 * size] + content[:size] + content[2 * size :])
    stored = open_scan(path)
    with pytest.raises(DamagedError, match=f"holds view {SHARD} of this scan") as caught:
        stored.read(torch.tensor([SHARD + 1, 3, SHARD + 2]))
    assert set(caught.value.views) == {SHARD + 1}
    (path / "data" / "c" / "2").rename(tmp_path / "elsewhere")
    (path / "data" / "c" / "2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="it is a link instead of a folder"):
        stored.read(torch.tensor([3, 2 * SHARD]))
    write(tmp_path / "other.zarr")
    shutil.copy(tmp_path / "other.zarr" / "data" / "c" / "0" / "0", path / "data" / "c" / "0" / "0")
    with pytest.raises(DamagedError, match="holds view 3 of another scan"):
        stored.read(torch.tensor([3]))


@pytest.mark.skipif(not NATIVE, reason="the native reader was not built")
def test_a_batch_needs_no_index_and_verify_does(scan, tmp_path):
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    file = path / "data" / "c" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)
    stored = open_scan(path)
    assert np.array_equal(stored.read(torch.tensor([2, 20, 2])).numpy(), scan[1][[2, 20, 2]])
    assert set(stored.damaged()) == set(range(SHARD))


def asked_for(path, views, direct):
    """How often the system was asked for data, and for how many bytes, as it counts itself."""
    stored = open_scan(path, direct=direct)
    stored.read(torch.tensor([0, SHARD, 2 * SHARD]))  # the shards' indices are known

    def counts():
        lines = Path("/proc/thread-self/io").read_text().splitlines()
        return np.array([int(dict(line.split(": ") for line in lines)[name]) for name in ("syscr", "rchar")])

    before = counts()
    nothing = counts() - before
    before = counts()
    stored.read(torch.tensor(views))
    return (counts() - before - nothing).tolist()


def test_neighbours_are_read_together_and_nothing_besides(scan, form):
    chunk, spare = 20 + 8 * RECEIVERS + 4, 50  # the system's own counts grow in length
    times, size = asked_for(scan[0], list(range(2 * SHARD)), False)
    assert times == 2
    blocks = 2 * 4096 if form == "native" else 0  # whole blocks are read
    assert 0 <= size + spare - 2 * SHARD * chunk <= 2 * blocks + 2 * spare
    times, size = asked_for(scan[0], [9, 3, 4, 20, 5, 3], False)
    assert times == 3
    assert 0 <= size + spare - 5 * chunk <= 3 * blocks + 2 * spare
    if form == "native":  # one run of neighbours; several are asked for at once, which the system counts elsewhere
        times, size = asked_for(scan[0], [5, 3, 4, 3], True)
        assert times == 1
        assert size <= 3 * chunk + 2 * 4096 + spare
        assert asked_for(scan[0], [9, 3, 4, 20, 5, 3], True)[0] in (0, 3)  # 3 where it does not take several


@pytest.mark.skipif(not NATIVE, reason="the native reader was not built")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.one_of(st.integers(0, 100), st.integers(0, 70_000)), count=st.integers(1, 5), direct=st.booleans())
@example(size=2 << 20, count=2, direct=True)
def test_the_native_checksum_is_that_of_another_library(tmp_path, size, count, direct):
    rng = np.random.default_rng(size)
    content = rng.integers(0, 256, (count, size), dtype=np.uint8)
    file = tmp_path / "chunks"
    sums = [int(google_crc32c.value(row.tobytes())).to_bytes(4, "little") for row in content]
    whole = bytearray(b"".join(row.tobytes() + end for row, end in zip(content, sums, strict=True)))
    file.write_bytes(whole)
    pieces = [Piece("chunks", n * (size + 4), n) for n in range(count)]
    files = LocalFiles(tmp_path, direct=direct)
    out = np.zeros_like(content)
    assert files.read(pieces, out) == [""] * count
    assert np.array_equal(out, content)
    at = int(rng.integers(len(whole)))
    whole[at] ^= 1 << int(rng.integers(8))
    file.write_bytes(whole)
    said = files.read(pieces, out)
    assert [n for n, what in enumerate(said) if what] == [at // (size + 4)]
    assert said[at // (size + 4)] == "its chunk fails its checksum"


def test_what_is_read_in_parts_is_the_same(scan, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "_AT_ONCE", 7)
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    assert np.array_equal(open_scan(path).read().numpy(), scan[1])
    for shard in ("0", "2"):
        (path / "data" / "c" / shard / "0").unlink()
    with pytest.raises(DamagedError) as caught:
        open_scan(path).read()
    assert set(caught.value.views) == {*range(16), *range(32, 48)}


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("direct", [False, True])
def test_damage_among_neighbours_is_named_alone(scan, tmp_path, direct):
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    file = path / "data" / "c" / "1" / "0"  # views 16 to 31
    whole = bytearray(file.read_bytes())
    for view in (18, 25):
        whole[(view - SHARD) * (20 + 8 * RECEIVERS + 4) + 77] ^= 16
    file.write_bytes(whole)
    stored = open_scan(path, direct=direct)
    with pytest.raises(DamagedError) as caught:
        stored.read()
    assert set(caught.value.views) == {18, 25}
    good = np.setdiff1d(np.arange(VIEWS), [18, 25])
    assert np.array_equal(stored.read(torch.from_numpy(good)).numpy(), scan[1][good])
    # Its index is known by now, and the file becomes shorter, in the middle of view 20.
    file.write_bytes(whole[: 4 * (20 + 8 * RECEIVERS + 4) + 100])
    with pytest.raises(DamagedError) as caught:
        stored.read(torch.arange(16, 24))
    assert set(caught.value.views) == {18, 20, 21, 22, 23}
    assert "cut short" in caught.value.views[20]
    file.unlink()
    with pytest.raises(DamagedError, match="is missing"):
        stored.read(torch.tensor([16]))


@pytest.mark.usefixtures("form")
def test_where_the_cache_cannot_be_passed_it_is_used():
    """The files of /proc cannot be read directly; and what they hold has no checksum behind it."""
    with pytest.raises(OSError, match="Invalid argument"):
        os.open("/proc/version", os.O_RDONLY | os.O_DIRECT)
    want = Path("/proc/version").read_bytes()
    out = np.zeros((1, len(want) - 4), dtype=np.uint8)
    files = LocalFiles(Path("/proc"), direct=True)
    assert files.read([Piece("version", 0, 0)], out) == ["its chunk fails its checksum"]
    assert files.read([Piece("version", 1, 0)], out) == ["its chunk is cut short"]
    assert files.read([Piece("nothing", 0, 0)], out) == ["the file nothing is missing"]
    for name in ("self", "sys"):  # a link and a folder
        assert files.read([Piece(name, 0, 0)], out) == [NOT_PLAIN]


@pytest.mark.usefixtures("form")
def test_an_index_that_points_beyond_every_file(scan, tmp_path):
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    file = path / "data" / "c" / "0" / "0"
    content = file.read_bytes()
    index = np.frombuffer(content[-16 * SHARD - 4 : -4], dtype="<u8").reshape(SHARD, 2).copy()
    index[:3, 0] = [2**63 + 5, 2**62, 2**62 - 1]
    file.write_bytes(content[: -16 * SHARD - 4] + index.tobytes() + crc32c(index.tobytes()))
    with pytest.raises(DamagedError) as caught:
        open_scan(path).read()
    assert set(caught.value.views) == {0, 1, 2}
    assert "cut short" in caught.value.views[0]


def test_only_what_does_not_fit_the_memory_passes_the_cache(scan, monkeypatch):
    path, _ = scan
    size = 8 * VIEWS * RECEIVERS
    for memory, direct in ((2 * size - 2, True), (2 * size, False)):
        monkeypatch.setattr(store, "_memory", lambda memory=memory: memory)
        opened = open_scan(path)
        assert isinstance(opened._files, LocalFiles)
        assert opened._files.direct is direct
    monkeypatch.undo()
    assert store._memory() > 1e8
    assert open_scan(path, direct=True)._files.direct
