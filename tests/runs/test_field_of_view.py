"""A run on a scan whose detector saw part of the sample: what it says, and what it marks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from plugstream.cli import main
from plugstream.images.pictures import save_image
from plugstream.images.planes import dim_unseen
from plugstream.images.space import ImageSpace
from plugstream.instruments.ct import CT
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.runs.pages.pictures import make_picture
from plugstream.runs.preview import make_panels
from plugstream.scans import MemoryScan, save_scan

SPACE = ImageSpace((20, 20), spacing=(1.0, 1.0), origin=(-9.5, -9.5), unit="pixel", seen=6.0)
SEEN = np.asarray(SPACE.field_of_view())


def test_the_verdict_says_so_and_the_image_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rays, voxels = parallel_beam(np.arange(20) * np.pi / 20, 12, 1.0), Voxels((20, 20), 1.0)
    image = torch.zeros(20, 20)
    image[2:18, 3:16] = 0.05
    data = CTModel(rays, voxels).forward(image)
    instrument = CT.of(rays, voxels, unit="pixel", seen=6.0)
    save_scan(MemoryScan(data, instrument, columns={"rays": rays.vectors}), tmp_path / "a.zarr")
    out = tmp_path / "run"
    words = ["--iterations", "30", "--sigma", "0.01", "--report", "none", "--threads", "1"]
    assert main(["reconstruct", str(tmp_path / "a.zarr"), "--out", str(out), *words]) == 0
    verdict = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("verdict"))
    assert "; the detector saw part of it" in verdict
    assert np.load(out / "result.npy").shape == (20, 20)
    assert np.array_equal(np.load(out / "field.npy"), SEEN)


def test_pictures_mark_what_was_not_seen(tmp_path: Path) -> None:
    assert SEEN.sum() == 112
    values = torch.full((20, 20), 5.0)
    values[torch.from_numpy(SEEN)] = 1.0
    save_image(values, tmp_path / "a", SPACE)
    shown = np.asarray(Image.open(tmp_path / "a.png"))[::-1]
    assert (shown[SEEN] == 255).all(), "the range is that of the field of view"
    assert shown[0, 0] == round(0.35 * 255)
    assert np.array_equal(np.load(tmp_path / "a.npy"), values.numpy())
    assert dim_unseen(values.numpy(), (0.0, 1.0), ImageSpace((20, 20))) is not None
    tensors, _ = make_panels(values, SPACE)
    assert np.array_equal(np.isfinite(tensors["image"].numpy()), SEEN)
    small, _ = make_panels(values, SPACE, 10)
    assert np.isfinite(small["image"].numpy()).sum() == 32
    assert make_picture(values.numpy(), SPACE, "result")["panels"][0]["range"] == [1.0, 1.0]
    volume = ImageSpace((4, 20, 20), spacing=(1.0,) * 3, origin=(0.0, -9.5, -9.5), unit="pixel", seen=6.0)
    slices, _ = make_panels(values.expand(4, 20, 20), volume)
    assert [bool(torch.isfinite(one).all()) for one in slices.values()] == [False, True, True]
