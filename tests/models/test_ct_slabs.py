"""A volume in slabs on another device against the whole of it at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import cone_beam, parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.models.ct_slabs import SlabbedCT, find_rows, slices_at_once

ANGLES = np.linspace(0, 2 * np.pi, 7, endpoint=False)
VOXELS = Voxels((9, 8, 10), 1.0)
CONE = cone_beam(ANGLES, (14, 18), 1.6, source=50, detector=40)
BEAMS = {
    "cone": CONE,
    "rolled": CONE.roll_detector(0.05),
    "helix": CONE.translate(np.stack([0 * ANGLES, 0 * ANGLES, np.linspace(-4, 4, 7)], 1)),
    "parallel": parallel_beam(ANGLES, (11, 15), 0.9),
    "curved": replace(CONE, curvature=90.0),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def slabbed(model: CTModel, slices: int, device: str = "cpu") -> SlabbedCT:
    memory = slices * 5 * model.dtype.itemsize * 8 * 10 / 0.75 * 1.01
    assert slices_at_once(VOXELS.shape, model.dtype.itemsize, memory) == slices
    return SlabbedCT(model, torch.device(device), memory)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BEAMS)
def test_products_are_those_of_the_whole_volume(name, device):
    model = CTModel(BEAMS[name], VOXELS)
    image = torch.rand(VOXELS.shape, generator=torch.Generator().manual_seed(0))
    for slices in (1, 4) if name == "cone" else (4,):
        by_slabs = slabbed(model, slices, device)
        for views in (None, torch.tensor([5, 0, 3])):
            data = model.forward(image, views)
            torch.testing.assert_close(by_slabs.forward(image, views), data, rtol=1e-4, atol=1e-5 * float(data.max()))
            back = model.adjoint(data, views)
            torch.testing.assert_close(by_slabs.adjoint(data, views), back, rtol=1e-4, atol=1e-5 * float(back.max()))
    several = torch.stack([image, 2 * image])
    assert by_slabs.forward(several).shape == (2, 7, *model.data_shape)
    torch.testing.assert_close(
        by_slabs.adjoint(by_slabs.forward(several))[1], 2 * by_slabs.adjoint(by_slabs.forward(image))
    )


def test_bounds_of_l_are_those_of_the_whole_volume_with_masked_pixels_too():
    mask = torch.rand(7, 14, 18, generator=torch.Generator().manual_seed(1)).numpy() > 0.3
    model = CTModel(CONE, VOXELS, mask=mask, dtype=torch.float64)
    views = torch.arange(7)
    got = slabbed(model, 5).squared_norm_bounds(views)
    torch.testing.assert_close(got, model.squared_norm_bounds(views), rtol=1e-9, atol=0)


def test_a_slab_meets_few_rows_and_all_that_see_it():
    rays = cone_beam(ANGLES, (200, 30), 0.4, source=50, detector=40)
    model = CTModel(rays, VOXELS)
    low, count = find_rows(rays, VOXELS.slices(6, 8))
    assert count < 60
    image = torch.zeros(VOXELS.shape)
    image[6:8] = 1
    seen = model.forward(image).amax(2) > 0
    for view, first in zip(seen, low, strict=True):
        assert not view[:first].any()
        assert not view[first + count :].any()
        assert view.sum() > count - 8
