"""What an image that is fitted to the rest says of numbers in doubt, by models of several kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ellipses import BODIES, chords, counted
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import centered_voxels
from plugstream.models.mri import MRIModel
from plugstream.solver.outliers import find_outliers

COLUMNS, VIEWS = 80, 90


def build_ct(bad: torch.Tensor | None) -> CTModel:
    rays = parallel_beam(np.arange(VIEWS) * np.pi / VIEWS, COLUMNS, 1.0)
    return CTModel(rays, Voxels((COLUMNS, COLUMNS), 1.0), mask=None if bad is None else (~bad).numpy())


def ct_data() -> torch.Tensor:
    exact = chords(np.arange(VIEWS) * np.pi / VIEWS, np.arange(COLUMNS) - (COLUMNS - 1) / 2, BODIES["body"])
    return torch.from_numpy(counted(exact).astype(np.float32))


def test_all_that_is_wrong_is_found_and_nothing_else() -> None:
    assert find_outliers(build_ct, ct_data()) is None
    data, clean = ct_data(), ct_data()
    draw = torch.Generator().manual_seed(1)
    hit = torch.rand(data.shape, generator=draw) < 0.013
    data[hit] *= 4
    dead = torch.tensor([20, 33, 34, 50, 61])
    data[:, dead] = torch.tensor([0.0, 0.3, 9.2, 1.0, 0.0])
    found = find_outliers(build_ct, data)
    assert found is not None
    wrong = (data - clean).abs() > 0.1
    assert float(found.bad[wrong].double().mean()) > 0.98
    assert found.elements.nonzero().flatten().tolist() == dead.tolist()
    hit[:, dead] = True
    assert not (found.bad & ~hit).any()


@pytest.mark.parametrize("center", [39.5, 36.2, 12.3])
def test_walls_of_tubes_about_the_axis_are_no_faults(center: float) -> None:
    """They are seen by the same columns in all views, on both sides; a hot column is on one."""
    angles = np.arange(VIEWS) * 2 * np.pi / VIEWS
    tube = ((0, 0, 32, 32, 0, 0.08), (0, 0, 30, 30, 0, -0.08), (0, 0, 20, 20, 0, 0.08), (0, 0, 18.5, 18.5, 0, -0.08))
    rays = parallel_beam(angles, COLUMNS, 1.0, center=center)

    def build(bad: torch.Tensor | None) -> CTModel:
        return CTModel(rays, Voxels((2 * COLUMNS, 2 * COLUMNS), 1.0), mask=None if bad is None else (~bad).numpy())

    data = torch.from_numpy(
        counted(chords(angles, np.arange(COLUMNS) - center, (*tube, (3, 2, 6, 5, 0, 0.05))))
    ).float()
    assert find_outliers(build, data) is None
    data[:, 27] += 0.8
    found = find_outliers(build, data)
    assert (found is None) == (center < 20)  # whose other side is not seen
    assert found is None or found.elements.nonzero().flatten().tolist() == [27]


def test_views_with_less_dose_count_less() -> None:
    """By the inverse of their variance; bodies that look different from each side are no noise."""
    angles, places = np.arange(VIEWS) * np.pi / VIEWS, np.arange(COLUMNS) - (COLUMNS - 1) / 2
    for body in BODIES.values():
        for photons in (3e3, 1e6):
            found = find_outliers(build_ct, torch.from_numpy(counted(chords(angles, places, body), photons)).float())
            assert found is None or found.weights is None
    weak = np.random.default_rng(0).random(VIEWS) < 0.3
    data = counted(chords(angles, places), np.where(weak, 2e3, 5e4)[:, None])
    data[4, 30] = 12.0
    found = find_outliers(build_ct, torch.from_numpy(data).float())
    assert found is not None
    assert found.weights is not None
    assert ((found.weights < 1).numpy() == weak).all()
    assert 0.5 < float(found.weights[torch.from_numpy(weak)].median()) / (2e3 / 5e4) < 2
    assert found.bad.nonzero().tolist() == [[4, 30]]
    assert f"{weak.sum()} of 90 views count less" in found.describe("column")


def test_where_the_model_does_not_fit_nothing_is_left_out() -> None:
    """The views of another turn, or of every other body: no fault of the detector."""
    data = ct_data()
    data[0, 5] = 5.0  # in doubt, so that an image is fitted
    for wrong in (data.flip(0), data[torch.randperm(VIEWS, generator=torch.Generator().manual_seed(0))]):
        found = find_outliers(build_ct, wrong)
        assert found is None or int(found.bad.sum()) <= 1


def test_spikes_of_spokes() -> None:
    size, spokes = 32, 40
    turn = torch.arange(spokes) * torch.pi / spokes
    radius = (torch.arange(2 * size) - size) / (2 * size)
    path = torch.stack([turn.sin()[:, None] * radius, turn.cos()[:, None] * radius], -1).double().numpy()
    y, x = torch.meshgrid(*(torch.linspace(-1, 1, size),) * 2, indexing="ij")
    maps = torch.stack([torch.exp(-((x - a) ** 2 + (y - b) ** 2) / 2) for a, b in ((0, 1), (1, 0), (-1, -1))])

    def build(bad: torch.Tensor | None) -> MRIModel:
        mask = None if bad is None else (~bad).numpy()
        return MRIModel(path, centered_voxels((size, size), 1.0), maps.to(torch.complex64).numpy(), mask=mask)

    data = build(None).forward((x**2 + y**2 < 0.5).to(torch.complex64))
    noise = torch.randn(data.shape, dtype=data.dtype, generator=torch.Generator().manual_seed(0))
    data += 0.02 * data.abs().square().mean().sqrt() * noise
    assert find_outliers(build, data) is None
    places = [(3, 0, 5), (17, 1, 40), (31, 2, 60)]
    for place in places:
        data[place] += 20 * data.abs().mean()
    found = find_outliers(build, data)
    assert found is not None
    assert {tuple(place) for place in found.bad.nonzero().tolist()} == set(places)
