"""Numbers that their neighbours make impossible are found, and edges, peaks and noise are none of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ellipses import BODIES, chords, counted
from plugstream.models.outliers import neighbour_median, suspect_data


def views_of(name: str, views: int, photons: float, columns: int = 96) -> torch.Tensor:
    exact = chords(np.arange(views) * np.pi / views, np.arange(columns) - (columns - 1) / 2, BODIES[name])
    return torch.from_numpy(counted(exact, photons).astype(np.float32))


@pytest.mark.parametrize(("photons", "views"), [(300, 60), (3e4, 120), (1e7, 90)])
def test_a_good_scan_loses_next_to_nothing(photons: float, views: int) -> None:
    for name in BODIES:
        found = suspect_data(views_of(name, views, photons))
        assert float(found.bad.double().mean()) <= 1e-3, name
        assert not found.elements.any(), name
        assert not found.views.any(), name


def test_dead_columns_and_zingers_are_found() -> None:
    data = views_of("body", 90, 3e4)
    clean, draw = data.clone(), torch.Generator().manual_seed(1)
    dead = torch.tensor([30, 31, 45, 60])
    data[:, dead] = torch.tensor([0.0, 0.3, 9.2, 1.0])
    hit = torch.rand(data.shape, generator=draw) < 0.005
    data[hit] *= 4
    found = suspect_data(data)
    assert found.elements.nonzero().flatten().tolist() == dead.tolist()
    isolated = hit & ((data - clean).abs() > 1)
    isolated[:, dead] = False
    assert float(found.bad[isolated].double().mean()) > 0.5  # others are beside another, or a dead column


def test_pixels_rows_and_frames_of_a_camera() -> None:
    draw = torch.Generator().manual_seed(0)
    beam = 100 * torch.exp(-(torch.linspace(-2, 2, 48)[:, None] ** 2 + torch.linspace(-2, 2, 48) ** 2))
    rate = beam * (0.5 + torch.rand(40, 1, 1, generator=draw)) + 4
    counts = torch.poisson(rate, generator=draw)
    assert not suspect_data(counts.sqrt(), camera=True, least=0.5).bad.any()
    counts[:, 5, 7] = 500
    counts[:, 20:22] = 0
    counts[[3, 17]] = 0
    found = suspect_data(counts.sqrt(), camera=True, least=0.5)
    expected = torch.zeros(48, 48, dtype=torch.bool)
    expected[5, 7] = expected[20:22] = True
    assert int((found.elements != expected).sum()) <= 2
    assert found.views.nonzero().flatten().tolist() == [3, 17]
    assert "2 views of 40 views of 2,304 numbers have no weight" in found.describe("pixel")


def test_the_median_leaves_the_number_itself_out() -> None:
    data = torch.tensor([[1.0, 2.0, 3.0, 100.0, 5.0, 6.0, 7.0]])
    assert float(neighbour_median(data)[0, 3]) == 3.0  # of 1, 2, 3, 5, 6, 7 the lower of the two in the middle
    assert torch.equal(neighbour_median(1j * data), 1j * neighbour_median(data))
