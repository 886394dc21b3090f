"""Momentum of few views a step: as quick as Nesterov's at first, and it stays."""

import numpy as np
import pytest
import torch

from plugstream import TV, Epochs, LeastSquares, ProximalGradient, TaperedMomentum
from plugstream.algorithms.pgm import MOMENTUM
from plugstream.models.ct import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.solver.monitors import snr


def sequence(momentum, steps):
    q = [1.0]
    for k in range(1, steps + 1):
        q.append(momentum(k, q[-1]))
    return q


def test_it_is_nesterovs_to_the_bit_until_its_limit_and_falls_from_there():
    tapered, nesterov = sequence(MOMENTUM["tapered"], 5000), sequence(MOMENTUM["nesterov"], 5000)
    first = next(k for k, q in enumerate(nesterov) if q > 20)
    assert first > 30
    assert tapered[:first] == nesterov[:first]
    assert max(tapered) == 20
    assert all(later <= earlier for earlier, later in zip(tapered[first:], tapered[first + 1 :], strict=False))
    assert tapered[160] == pytest.approx(20 * 0.25**0.7)
    assert tapered[-1] == 3  # where bounded momentum ends
    assert max(sequence(TaperedMomentum(2.0), 100)) == 2


def test_numbers_and_tensors_are_the_same_sequence():
    tapered = TaperedMomentum(4.0)
    q, many = 1.0, torch.ones(2, dtype=torch.float64)
    for k in range(1, 300):
        q, many = tapered(k, q), tapered(torch.full((2,), float(k), dtype=torch.float64), many)
        torch.testing.assert_close(many, torch.full((2,), q, dtype=torch.float64))


@pytest.fixture(scope="module")
def noisy():
    """A scan of 144 noisy views of an object with edges, 24 x 24 pixels."""
    y, x = np.mgrid[-11.5:12, -11.5:12]
    inside = np.hypot(x, y) < 10, np.hypot(x - 3, y + 3) < 4, np.maximum(abs(x + 3), abs(y - 3)) < 3
    truth = torch.from_numpy(sum(part.astype(np.float32) for part in inside))
    model = CTModel(parallel_beam(np.linspace(0, np.pi, 144, endpoint=False), 35, 1.0), Voxels((24, 24), 1.0))
    clean = model.forward(truth)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(3))
    return truth, LeastSquares(model, clean + 0.1 * clean.square().mean().sqrt() * noise)


def test_many_steps_of_few_views_are_no_worse_than_few_steps(noisy):
    """Four of 144 views a step: Nesterov's has its best image early and loses it, tapered momentum does not."""
    truth, fidelity = noisy
    curves = {}
    for momentum in ("nesterov", "tapered"):
        algorithm = ProximalGradient(fidelity, TV(low=0.0), sigma=0.07, sampler=Epochs(4), momentum=momentum)
        state, values = algorithm.init(), []
        for _ in range(300):
            state = algorithm.step(state)
            values.append(float(snr(state.image, truth)))
        curves[momentum] = np.array(values)
    nesterov, tapered = curves["nesterov"], curves["tapered"]
    assert nesterov[-1] < nesterov.max() - 3
    assert tapered[-1] > tapered[99] - 0.3
    assert tapered[-1] > nesterov.max() - 0.1
    assert np.argmax(tapered >= nesterov.max() - 0.1) <= 1.1 * np.argmax(nesterov >= nesterov.max() - 0.1)
