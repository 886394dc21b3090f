"""Reading ahead for a GPU: batches in pinned memory, copied while the GPU works, and never overwritten too soon."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import TV, BornGeometry, BornModel, Grid, LeastSquares, ProximalGradient, Uniform, simulate
from plugstream.algorithms.sampling import Announcer
from plugstream.instruments.born import born_geometry
from plugstream.scans.prefetch import Prefetcher
from plugstream.scans.store import StoredScan, open_scan
from plugstream.scans.writer import save_scan

pytest.importorskip("google_crc32c")  # all that a scan in a folder needs

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> StoredScan:
    """A scan on disk of 500 views of 2,000 receivers, read past the page cache as large ones are."""
    few = BornGeometry.rings(Grid((32, 32), 0.002), 0.012, views=20, receivers=2000, radius=0.3)
    image = torch.rand(32, 32, generator=torch.Generator().manual_seed(0))
    made = simulate(BornModel(few), image, snr=30)
    geometry = BornGeometry(
        receivers=few.receivers,
        wavelength=few.wavelength,
        grid=few.grid,
        transmitters=np.tile(few.transmitters, (25, 1)),
    )
    data = made.data.repeat(25, 1) * torch.arange(1, 501)[:, None] / 250  # no two views alike
    path = tmp_path_factory.mktemp("scan") / "scan.zarr"
    save_scan(type(made)(data, geometry), path)
    return open_scan(path, direct=True)


def test_batches_are_pinned_and_right(stored):
    whole = stored.read()
    with Prefetcher(stored, threads=2, pin=True) as ahead:
        for step in range(20):
            views = [Uniform(10).draw(step + later, torch.arange(500)).views for later in range(3)]
            ahead.expect(views)
            got = ahead.read(views[0])
            assert got.is_pinned()
            assert torch.equal(got, whole[views[0]])
        assert ahead.read(torch.tensor([3])).is_pinned()  # one that was not expected
    with Prefetcher(stored) as ahead:
        assert not ahead.read(torch.tensor([3])).is_pinned()


def test_a_copy_that_waits_is_not_overwritten(stored):
    """The GPU is busy, so that copies are made long after they were asked for and their batches were let go."""
    whole = stored.read()
    got, want = [], []
    with Prefetcher(stored, threads=2, pin=True) as ahead:
        for step in range(60):
            torch.cuda._sleep(20_000_000)  # clock cycles, about ten milliseconds
            views = [Uniform(10, seed=1).draw(step + later, torch.arange(500)).views for later in range(3)]
            ahead.expect(views)
            got.append(ahead.read(views[0]).to("cuda", non_blocking=True))
            want.append(whole[views[0]])
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("method", ["dense", "fast"])
def test_a_run_from_the_disk_is_that_from_memory(stored, method):
    model = BornModel(born_geometry(stored), method=method, device="cuda")
    images = []
    with Prefetcher(stored, threads=2, pin=True) as ahead:
        for data, sampler in ((stored.read(), Uniform(10)), (ahead, Announcer(Uniform(10), ahead.expect, 2))):
            fidelity = LeastSquares(model, data)
            algorithm = ProximalGradient(fidelity, TV(low=0.0), sigma=0.01, sampler=sampler)
            state = algorithm.init()
            for _ in range(30):
                state = algorithm.step(state)
            images.append(state.image)
    assert images[0].is_cuda
    assert float(images[0].abs().max()) > 0.01
    assert torch.equal(*images)
