"""Masks and incident fields that are too large for memory: read with the data of their views, and right."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from plugstream import BornGeometry, BornModel, DamagedError, Grid, LeastSquares, MemoryScan, open_scan, ring
from plugstream.cli import main
from plugstream.instruments.born import born_geometry
from plugstream.scans import places, save_scan, store
from plugstream.scans.chunks import ChunkReader
from plugstream.scans.prefetch import Prefetcher
from plugstream.scans.store import StoredRows

VIEWS, RECEIVERS, GRID = 40, 9, Grid((12, 10), 0.01)


def make(kind: str) -> MemoryScan:
    rng = np.random.default_rng(0)
    mask = rng.random((VIEWS, RECEIVERS)) < 0.8
    mask[:, 0] = True
    fields = (rng.standard_normal((VIEWS, 12, 10, 2)) @ [1, 1j]).astype(np.complex64)
    sources = {"fields": fields} if kind == "fields" else {"transmitters": ring(VIEWS, 1.0)}
    geometry = BornGeometry(receivers=ring(RECEIVERS, 0.5), wavelength=0.05, grid=GRID, mask=mask, **sources)
    data = torch.from_numpy((rng.standard_normal((VIEWS, RECEIVERS, 2)) @ [1, 1j]).astype(np.complex64))
    return MemoryScan(torch.where(torch.from_numpy(mask), data, torch.nan), geometry)


@pytest.fixture(params=["fields", "transmitters"])
def scans(request, tmp_path, monkeypatch):
    """A scan in memory, and the same on a disk with nothing of its views kept in memory but positions."""
    whole = make(request.param)
    save_scan(whole, tmp_path / "s.zarr")
    monkeypatch.setattr(store, "_ROWS_IN_MEMORY", 0)
    return whole, tmp_path / "s.zarr"


def test_masks_and_fields_stay_on_the_disk_and_are_what_they_were(scans):
    whole, path = scans
    geometry = born_geometry(open_scan(path))
    for name in ("mask", "fields"):
        want, rows = getattr(born_geometry(whole), name), getattr(geometry, name)
        if want is None:
            assert rows is None
            continue
        assert isinstance(rows, StoredRows)
        assert rows.shape == want.shape
        some = np.array([7, 3, 3, 39])
        for index in (some, slice(5, 30, 7), slice(None), 4, np.int64(11)):
            assert np.array_equal(rows[index], want[index])
        fewer = geometry.with_views(np.arange(10, 30)).with_views(np.array([2, 0, 19]))
        assert isinstance(getattr(fewer, name), StoredRows)
        assert np.array_equal(getattr(fewer, name)[:], want[[12, 10, 29]])


def test_gradients_are_those_of_the_scan_in_memory(scans):
    whole, path = scans
    stored = open_scan(path)
    image = torch.rand(12, 10, generator=torch.Generator().manual_seed(1))
    here = LeastSquares(BornModel(born_geometry(whole), method="dense"), whole.data)
    with Prefetcher(stored) as source:
        there = LeastSquares(BornModel(born_geometry(stored), method="dense"), source)
        for views in (torch.tensor([3, 17, 3, 39]), torch.arange(VIEWS)):
            assert torch.equal(here.gradient(image, views), there.gradient(image, views))


def test_what_was_read_ahead_is_not_read_again(scans, monkeypatch):
    _, path = scans
    stored = open_scan(path)
    read = []
    monkeypatch.setattr(places.LocalFiles, "read_views", lambda *_: False)  # so that all goes through `read`
    real = ChunkReader.read

    def counted(self, views):
        read.append((self.name, threading.current_thread() is threading.main_thread()))
        return real(self, views)

    monkeypatch.setattr(ChunkReader, "read", counted)
    batches = [torch.tensor([n, 3, 20 + n]) for n in range(5)]
    with Prefetcher(stored) as source:
        source.expect(batches)
        for views in batches:
            source.read(views)
            for rows in stored._on_disk():
                rows[views.numpy()]
    assert {name for name, _ in read} >= {"data", "mask"}
    assert not any(main_thread for _, main_thread in read)
    for rows in stored._on_disk():
        rows[np.array([1, 2])]  # nobody read these ahead
    assert [main_thread for _, main_thread in read].count(True) == len(stored._on_disk())


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_damage_is_told_of_the_view_when_it_is_read_and_by_verify(scans, capsys):
    whole, path = scans
    name, file, size = (
        ("field", path / "fields/c/0/0/0", 12 * 10 * 8)
        if born_geometry(whole).fields is not None
        else ("mask", path / "mask/c/0/0", RECEIVERS)
    )
    flip(file, 6 * (20 + size + 4) + 22)
    stored = open_scan(path)
    with pytest.raises(DamagedError, match=rf"view 6 of .* its {name} is damaged: its chunk fails its checksum"):
        stored.read(torch.tensor([2, 6]))
    assert set(stored.damaged()) == {6}
    good = torch.tensor([n for n in range(VIEWS) if n != 6])
    assert torch.equal(stored.read(good).isnan(), whole.data[good].isnan())
    assert main(["verify", str(path)]) == 1
    assert capsys.readouterr().out == f"view 6: its {name} is damaged: its chunk fails its checksum\n"


def test_a_scan_with_rows_on_the_disk_can_be_copied_loaded_and_described(scans, tmp_path, capsys):
    whole, path = scans
    stored = open_scan(path)
    save_scan(stored, tmp_path / "copy.zarr")
    for again in (stored.load(), open_scan(tmp_path / "copy.zarr").load()):
        assert np.array_equal(born_geometry(again).mask, born_geometry(whole).mask)
        assert torch.equal(again.data.nan_to_num(), whole.data.nan_to_num())
    assert main(["info", str(path)]) == 0
    assert "masked by view" in capsys.readouterr().out
