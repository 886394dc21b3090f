"""Blocks of slices as scans: the rows that see them, checked by sums of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from effort import cases
from plugstream.base.errors import DamagedError
from plugstream.instruments.base import Block
from plugstream.instruments.ct import CT
from plugstream.models.ct_beams import cone_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans import open_scan, save_scan
from plugstream.scans.blocks import read_block, sum_rows
from plugstream.scans.scan import MemoryScan
from plugstream.scans.store import StoredScan

ANGLES = np.linspace(0, np.pi, 7, endpoint=False)
DEPTH = 6


def flipped(rays: Rays) -> Rays:
    """The same detector upside down."""
    vectors = rays.vectors.copy()
    vectors[:, 3] *= -1
    return Rays(vectors, rays.detector, parallel=True)


RAYS = {
    "a row each": parallel_beam(ANGLES, (DEPTH, 13), 1.0, center=6.3),
    "upside down": flipped(parallel_beam(ANGLES, (DEPTH, 13), 1.0)),
    "rows beyond": parallel_beam(ANGLES, (DEPTH + 4, 13), 1.0),
}
NONE = {
    "between slices": parallel_beam(ANGLES, (DEPTH + 1, 13), 1.0),
    "finer rows": parallel_beam(ANGLES, (2 * DEPTH, 13), 0.5),
    "unseen slices": parallel_beam(ANGLES, (DEPTH - 2, 13), 1.0),
    "others a view": parallel_beam(ANGLES, (DEPTH, 13), 1.0).shift_detector(rows=np.arange(7)),
    "cone": cone_beam(ANGLES, (DEPTH, 13), 1.0, source=50.0, detector=10.0),
}


def stored(place: Path, rays: Rays, *, masked: bool = False, views: int = 7) -> StoredScan:
    rng = np.random.default_rng(1)
    instrument = CT.of(rays, Voxels((DEPTH, 9, 9), 1.0))
    data = rng.standard_normal((views, *rays.detector)).astype(np.float32)
    columns = {"rays": rays.vectors[:views]}
    if masked:
        columns["mask"] = rng.random(data.shape) > 0.2
    save_scan(MemoryScan(data, instrument, columns=columns), place)
    return open_scan(place)


def block_of(scan: StoredScan, first: int, last: int) -> Block:
    block = scan.instrument.block(scan.columns, first, last)
    assert block is not None
    return block


@pytest.mark.parametrize(("beam", "masked"), cases(list(RAYS), [False, True]))
def test_a_block_is_the_model_and_the_data_of_its_slices(beam: str, masked: bool, tmp_path: Path) -> None:
    scan = stored(tmp_path / "scan.zarr", RAYS[beam], masked=masked)
    kind = {"device": torch.device("cpu"), "dtype": torch.float64}
    whole = scan.instrument.build_model(scan.columns, 7, **kind)
    image = torch.randn(DEPTH, 9, 9, dtype=torch.float64)
    for first, last in ((0, 2), (2, 5), (5, 6)):
        block = block_of(scan, first, last)
        sums, bad = sum_rows(scan, [block.rows], torch.arange(7))
        part = read_block(scan, block, sums[:, 0], torch.arange(7))
        assert not bad
        np.testing.assert_array_equal(part.data, scan.read()[:, block.rows])
        model = part.instrument.build_model(part.columns, 7, **kind)
        np.testing.assert_allclose(
            model.forward(image[first:last]), whole.forward(image)[:, block.rows], rtol=1e-12, atol=1e-12
        )
        assert part.instrument.image.position(0, 0) == scan.instrument.image.position(0, first)
        assert part.instrument.image.shape == (last - first, 9, 9)


@pytest.mark.parametrize("beam", list(NONE))
def test_what_does_not_fall_apart_has_no_blocks(beam: str) -> None:
    rays = NONE[beam]
    assert CT.of(rays, Voxels((DEPTH, 9, 9), 1.0)).block({"rays": rays.vectors}, 0, 2) is None


def test_slices_are_alike_where_nothing_is_masked(tmp_path: Path) -> None:
    scan = stored(tmp_path / "a.zarr", RAYS["a row each"])
    assert block_of(scan, 0, 2).alike
    assert not block_of(stored(tmp_path / "b.zarr", RAYS["a row each"], masked=True), 0, 2).alike


def test_rows_that_changed_after_their_sums_were_taken_are_found(tmp_path: Path) -> None:
    scan = stored(tmp_path / "scan.zarr", RAYS["a row each"])
    blocks = [block_of(scan, 0, 3), block_of(scan, 3, 6)]
    sums, _ = sum_rows(scan, [block.rows for block in blocks], torch.arange(7))
    file = next(
        path for path in (tmp_path / "scan.zarr" / "data").rglob("*") if path.is_file() and "." not in path.name
    )
    content = bytearray(file.read_bytes())
    place = content.find(scan.read(torch.tensor([4])).numpy().tobytes())
    content[place + 5] ^= 1  # in the first rows of view 4
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="view 4") as error:
        read_block(scan, blocks[0], sums[:, 0], torch.arange(7))
    assert list(error.value.views) == [4]
    read_block(scan, blocks[1], sums[:, 1], torch.arange(7))
    read_block(scan, blocks[0], sums[[0, 1, 2], 0], torch.arange(3))
    _, bad = sum_rows(scan, [blocks[0].rows], torch.arange(7))
    assert list(bad) == [4]


def test_views_in_other_files_and_zips_are_read_too(tmp_path: Path) -> None:
    import shutil

    scan = stored(tmp_path / "scan.zarr", RAYS["a row each"])
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "scan.zarr")  # deflated
    for other in (scan, open_scan(tmp_path / "packed.zip")):
        block = block_of(other, 1, 4)
        sums, _ = sum_rows(other, [block.rows], torch.arange(7))
        np.testing.assert_array_equal(
            read_block(other, block, sums[[6, 2], 0], torch.tensor([6, 2])).data, scan.read()[[6, 2], 1:4]
        )
