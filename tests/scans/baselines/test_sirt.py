"""SIRT is the iteration that its formula says, converges without a step size, and leaves alone what is not measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.base.errors import InputError
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.models.matrix import MatrixModel
from plugstream.scans.baselines.sirt import sirt

RAYS, VOXELS = parallel_beam(np.arange(12) * np.pi / 12, 17, 1e-3), Voxels((10, 11), 1e-3)


def _dense(model: CTModel) -> torch.Tensor:
    count = int(np.prod(model.image_shape))
    units = torch.eye(count, dtype=torch.float64).reshape(count, *model.image_shape)
    return model.forward(units).reshape(count, -1).T


def test_it_is_the_iteration_of_its_formula() -> None:
    model = CTModel(RAYS, VOXELS, dtype=torch.float64)
    matrix = _dense(model)
    data = matrix @ torch.rand(110, dtype=torch.float64)
    rows, columns = matrix.sum(1), matrix.sum(0)
    want = torch.zeros(110, dtype=torch.float64)
    r = torch.where(rows > 0, 1 / rows, 0)
    for _ in range(7):
        want = want + (matrix.T @ (r * (data - matrix @ want))) / columns
    found = sirt(model, data.reshape(12, 17), 7)
    torch.testing.assert_close(found.flatten(), want)


def test_it_converges_and_its_residual_falls() -> None:
    model = CTModel(RAYS, VOXELS)
    truth = torch.zeros(10, 11)
    truth[3:7, 4:8] = 50.0
    data = model.forward(truth)
    residuals: list[float] = []
    found = sirt(model, lambda views: data[views], 60, low=0.0, look=lambda k, x, r: residuals.append(r))
    assert len(residuals) == 60
    assert residuals == sorted(residuals, reverse=True)
    assert residuals[0] == pytest.approx(1.0)
    assert float((found - truth).norm() / truth.norm()) < 0.25
    assert float(found.min()) >= 0
    further = sirt(model, data, 1, start=found)
    assert float((further - found).abs().max()) < 2.0


def test_what_no_ray_meets_stays_as_it_was() -> None:
    """A detector too small for the image, and masked pixels that hold NaN."""
    mask = np.ones((12, 17), bool)
    mask[3] = False
    model = CTModel(RAYS, VOXELS, mask=mask)
    whole = CTModel(RAYS, VOXELS)
    data = whole.forward(torch.rand(10, 11))
    rest = [view for view in range(12) if view != 3]
    alone = sirt(CTModel(RAYS.select(rest), VOXELS), data[rest], 20)
    data[3] = torch.nan
    torch.testing.assert_close(sirt(model, data, 20), alone)
    narrow = CTModel(parallel_beam([0.0], 3, 1e-3), VOXELS)
    image = sirt(narrow, torch.ones(1, 3), 5, start=torch.full((10, 11), 2.0))
    assert bool((image[:, 0] == 2).all())
    assert bool((image[:, 5] != 2).all())


def test_other_models_are_refused() -> None:
    model = MatrixModel(torch.randn(2, 3, 16), (4, 4))
    with pytest.raises(InputError, match="negative entries"):
        sirt(model, torch.zeros(2, 3))
    with pytest.raises(InputError, match="at least one"):
        sirt(CTModel(RAYS, VOXELS), torch.zeros(12, 17), 0)
