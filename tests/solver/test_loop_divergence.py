"""The limit beyond which a run has diverged comes from the scale of the problem, not from a first image of zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import (
    Box,
    Distance,
    Identity,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    SoftThreshold,
    Uniform,
    solve,
)
from plugstream.base.errors import PlugstreamWarning
from plugstream.base.schedules import Geometric
from plugstream.fidelity.least_squares import data_scale
from plugstream.solver.result import Snapshot, Stop

F64 = torch.float64


def problem(truth: torch.Tensor, views: int = 5, rows: int = 12) -> LeastSquares:
    rng = np.random.default_rng(3)
    matrices = rng.standard_normal((views, rows, truth.numel()))
    data = torch.from_numpy(matrices @ truth.numpy().ravel())
    return LeastSquares(MatrixModel(list(matrices), tuple(truth.shape)), data, lipschitz_tol=1e-6)


@pytest.fixture
def truth() -> torch.Tensor:
    image = torch.zeros(4, 5, dtype=F64)
    image[1, 2], image[3, 0] = 2.0, -1.0
    return image


@pytest.fixture
def fidelity(truth) -> LeastSquares:
    return problem(truth)


def test_a_threshold_that_falls_from_above_the_data_is_no_divergence(fidelity, truth):
    """The first images are exactly zero, then next to nothing, then what the data says."""
    sigma = Geometric(10.0, 1e-3, 30)
    result = solve(ProximalGradient(fidelity, SoftThreshold(), sigma=sigma), iterations=120)
    assert result.reason is Stop.ITERATIONS
    assert torch.allclose(result.image, truth, atol=1e-3)


def test_a_box_that_holds_the_first_image_at_zero_is_no_divergence():
    """Momentum leads out of it; here a denoiser that opens its box after three steps."""
    truth = torch.full((3, 4), -1.0, dtype=F64)
    calls = []

    def opening(z, sigma):
        calls.append(1)
        return z.clamp_min(0.0) if len(calls) <= 3 else z

    result = solve(ProximalGradient(problem(truth), opening, sigma=0.0), iterations=200)
    assert result.reason is Stop.ITERATIONS
    assert torch.allclose(result.image, truth, atol=1e-4)


@pytest.mark.parametrize(("step", "iterations"), [(1e-5, 600), (1e-3, 200)])
def test_a_very_short_step_is_no_divergence(fidelity, step, iterations):
    """The image grows thousands or a million times beyond its first size, on its way to what the data says."""
    algorithm = ProximalGradient(fidelity, Identity(), sigma=0.0, step_size=f"{step}/L", momentum="nesterov")
    assert solve(algorithm, iterations=iterations).reason is Stop.ITERATIONS


@pytest.mark.parametrize("denoiser", [Identity(), SoftThreshold(), Box(low=0.0)])
@pytest.mark.parametrize("sampler", [None, Uniform(2)])
def test_divergence_is_still_found_from_zero(fidelity, denoiser, sampler):
    options = {} if sampler is None else {"sampler": sampler}
    algorithm = ProximalGradient(fidelity, denoiser, sigma=1e-3, step_size="20/L", **options)
    with pytest.warns(PlugstreamWarning, match="beyond 2 / L"):
        result = solve(algorithm, iterations=1000, monitors=[Distance()], every=1)
    assert result.reason is Stop.DIVERGED
    assert result.state.k < 60


def test_divergence_after_images_of_zero_is_found(fidelity):
    calls = []

    def late(z, sigma):
        calls.append(1)
        return 0.0 * z if len(calls) <= 5 else 3.0 * z

    result = solve(ProximalGradient(fidelity, late, sigma=0.0), iterations=1000)
    assert result.reason is Stop.DIVERGED
    assert result.state.k < 60


def test_the_scale_of_the_data_is_the_size_of_its_back_projection(fidelity):
    expected = float(torch.linalg.vector_norm(fidelity.backprojection()))
    for size in (1e-6, 1.0, 1e9):
        like = torch.full((4, 5), size, dtype=F64)
        assert data_scale(fidelity, like) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("raised", [False, True])
def test_a_run_that_goes_on_has_the_limit_it_had(fidelity, raised):
    """Whether it was stopped before the limit was set, before it was raised, or after."""
    options, steps = {"sigma": 0.0, "step_size": "1e-6/L", "momentum": "nesterov"}, 300
    if not raised:
        options, steps = {"sigma": Geometric(10.0, 1e-6, 60)}, 100
    algorithm = ProximalGradient(fidelity, SoftThreshold(), **options)
    snapshots: list[Snapshot] = []
    whole = solve(algorithm, iterations=steps, callbacks=[lambda p: snapshots.append(p.snapshot())])
    limits = [snapshot.limit for snapshot in snapshots]
    assert limits[0] is None
    assert limits[-1] is not None
    assert (len(set(limits) - {None}) > 1) == raised
    for k in (0, 1, limits.index(limits[-1]) - 1, limits.index(limits[-1]), steps - 1):
        ends: list[Snapshot] = []
        rest = solve(
            algorithm,
            resume=snapshots[k],
            iterations=steps - k,
            callbacks=[lambda p, ends=ends: ends.append(p.snapshot())],
        )
        assert torch.equal(rest.image, whole.image)
        assert ends[-1].limit == limits[-1]
        assert rest.reason is whole.reason is Stop.ITERATIONS
