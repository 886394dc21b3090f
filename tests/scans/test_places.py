"""Bytes of a scan, past the page cache and through it, one view at a time and many at once: always the same ones."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, strategies as st

from plugstream import BornGeometry, DamagedError, Grid, ScanWriter, open_scan, ring
from plugstream.scans import store
from plugstream.scans.places import LocalFiles

VIEWS, RECEIVERS, SHARD = 50, 700, 16  # 5600 bytes a view: no view begins where a block of the disk does


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """A scan, and what Zarr itself reads from it."""
    path = tmp_path_factory.mktemp("scan") / "scan.zarr"
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((VIEWS, RECEIVERS, 2)) @ [1, 1j]).astype(np.complex64)
    geometry = BornGeometry(
        receivers=ring(RECEIVERS, 0.5), wavelength=0.03, grid=Grid((8, 6), 0.01), transmitters=ring(VIEWS, 1.0)
    )
    with ScanWriter(path, geometry, views_per_shard=SHARD) as writer:
        writer.append(data, geometry.transmitters)
        writer.finish()
    return path, np.asarray(zarr.open_array(path / "data", mode="r")[...])


@given(views=st.lists(st.integers(0, VIEWS - 1), min_size=1, max_size=40), direct=st.booleans())
def test_any_views_in_any_order_are_what_zarr_reads(scan, views, direct):
    path, want = scan
    got = open_scan(path, direct=direct).read(torch.tensor(views)).numpy()
    assert got.tobytes() == want[views].tobytes()


def reads_of(monkeypatch, path, views, direct):
    """How many bytes each read of the data asked for."""
    stored = open_scan(path, direct=direct)
    stored.read(torch.tensor([0, SHARD, 2 * SHARD]))  # the shards' indices are known
    counted = []
    real = os.preadv

    def preadv(handle, parts, offset):
        counted.append(sum(memoryview(part).nbytes for part in parts))
        return real(handle, parts, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    stored.read(torch.tensor(views))
    monkeypatch.undo()
    return counted


def test_neighbours_are_read_together_and_nothing_besides(scan, monkeypatch):
    chunk = 8 * RECEIVERS + 4
    assert reads_of(monkeypatch, scan[0], list(range(2 * SHARD)), False) == [SHARD * chunk] * 2
    assert reads_of(monkeypatch, scan[0], [9, 3, 4, 20, 5, 3], False) == [3 * chunk, chunk, chunk]
    for asked in reads_of(monkeypatch, scan[0], [9, 3, 4, 20, 5, 3], True):
        assert asked % 4096 == 0
        assert asked <= 3 * chunk + 2 * 4096


@pytest.mark.parametrize("direct", [False, True])
def test_damage_among_neighbours_is_named_alone(scan, tmp_path, direct):
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    file = path / "data" / "c" / "1" / "0"  # views 16 to 31
    whole = bytearray(file.read_bytes())
    for view in (18, 25):
        whole[(view - SHARD) * (8 * RECEIVERS + 4) + 77] ^= 16
    file.write_bytes(whole)
    stored = open_scan(path, direct=direct)
    with pytest.raises(DamagedError) as caught:
        stored.read()
    assert set(caught.value.views) == {18, 25}
    good = np.setdiff1d(np.arange(VIEWS), [18, 25])
    assert np.array_equal(stored.read(torch.from_numpy(good)).numpy(), scan[1][good])
    # Its index is known by now, and the file becomes shorter, in the middle of view 20.
    file.write_bytes(whole[: 4 * (8 * RECEIVERS + 4) + 100])
    with pytest.raises(DamagedError) as caught:
        stored.read(torch.arange(16, 24))
    assert set(caught.value.views) == {18, 20, 21, 22, 23}
    assert "cut short" in caught.value.views[20]
    file.unlink()
    with pytest.raises(DamagedError, match="is missing"):
        stored.read(torch.tensor([16]))


def test_where_the_cache_cannot_be_passed_it_is_used(scan, monkeypatch):
    path, want = scan
    real_open, real_read = os.open, os.preadv
    refused = []

    def no_direct_open(name, flags, *more, **options):
        if flags & os.O_DIRECT:
            refused.append(name)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(name, flags, *more, **options)

    def no_direct_read(handle, parts, offset):
        import fcntl

        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(handle)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_read(handle, parts, offset)

    for name, replacement in (("open", no_direct_open), ("preadv", no_direct_read)):
        refused.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, replacement)
            assert np.array_equal(open_scan(path, direct=True).read().numpy(), want)
        assert refused, name


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
