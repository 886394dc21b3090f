"""L: a step that is a number never needs it, a bound of it is cheap and right, and estimates come where asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from plugstream import (
    ADMM,
    FunctionModel,
    Identity,
    InputError,
    LeastSquares,
    MatrixModel,
    PlugstreamWarning,
    ProximalGradient,
    SoftThreshold,
    Uniform,
    solve,
)
from plugstream.base.eigenvalue_bounds import largest_eigenvalue_bounds
from plugstream.base.linalg import largest_ritz_value
from plugstream.models.base import ModelBase
from plugstream.runs.event_log import read_events
from small_run import SMALL, main

F64 = torch.float64


class CountingModel(FunctionModel):
    """A function of Fourier filters, (views, N, N), whose L_i are known, and how many views it was asked for."""

    def __init__(self, filters: Tensor) -> None:
        self.asked = 0

        def blur(image: Tensor, views: Tensor) -> Tensor:
            self.asked += len(views) * math.prod(image.shape[:-2])
            return torch.fft.ifft2(torch.fft.fft2(image)[..., None, :, :] * filters[views]).real

        n = filters.shape[-1]
        super().__init__(blur, n_views=len(filters), image_shape=(n, n), data_shape=(n, n), linear=True)


def _even(filters: Tensor) -> Tensor:
    """Of real kernels: the same at k and -k, so that the eigenvalues are the squares."""
    return (filters + filters.flip(-2, -1).roll((1, 1), (-2, -1))) / 2


def _filters(views: int, n: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    filters = 1 + torch.rand(views, n, n, generator=generator)  # a dense spectrum, the hardest: nothing stands out
    if kind == "decaying":
        k = torch.fft.fftfreq(n) * n
        filters = torch.exp(-(k[:, None] ** 2 + k**2) / 40) * (1 + torch.rand(views, 1, 1, generator=generator))
    elif kind == "one larger":
        filters[views // 2] *= 2
    elif kind == "outlier":  # one eigenvector, 10 % above the bulk of its view
        filters[3] = _even(filters[3])
        filters[3, 0, 0] = 1.1 * filters.max()
    return _even(filters)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "decaying", "one larger", "outlier"])
def test_the_bound_of_a_function_is_from_above_within_a_fifth_and_cheap(kind: str) -> None:
    filters = _filters(60, 64, kind)
    largest = float(filters.square().max())
    model = CountingModel(filters)
    fidelity = LeastSquares(model, torch.zeros(60, 64, 64))
    assert largest <= fidelity.lipschitz_max <= 1.2 * largest * (1 + 1e-4)
    bounded = model.asked
    assert bounded <= 60 * 22
    each = model.squared_norm_bounds(torch.arange(60))
    assert bool((each >= filters.square().amax((-2, -1)) * (1 - 1e-5)).all())
    if kind in ("one larger", "decaying"):
        assert bounded <= 60 * 13  # the others are left as soon as they cannot be the largest
    if kind == "dense":
        model.asked = 0
        exact = fidelity.lipschitz_views
        assert model.asked >= 2.5 * bounded
        assert torch.allclose(exact, 1.01 * filters.square().amax((-2, -1)).double(), rtol=5e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.complex64])
def test_bounds_of_small_and_degenerate_operators(size: int, dtype: torch.dtype) -> None:
    """Zero, the identity, rank one, and more products than dimensions: bounds hold and nothing is NaN."""
    generator = torch.Generator().manual_seed(size)
    root = torch.randn(6, size, size, generator=generator, dtype=dtype)
    matrices = root.mH @ root
    matrices[0] = 0
    matrices[1] = torch.eye(size)
    matrices[2] = root[2, :, :1] @ root[2, :, :1].mH * 1e-12
    matrices[3] *= 1e12 if dtype == F64 else 1e3
    eigenvalues = torch.linalg.eigvalsh(matrices.to(torch.complex128))[:, -1].clamp_min(0)

    def apply(images: Tensor, which: Tensor) -> Tensor:
        return torch.einsum("bij,bj->bi", matrices[which], images)

    bounds, largest = largest_eigenvalue_bounds(apply, torch.empty(6, size, dtype=dtype), ndim=1)
    assert bool(torch.isfinite(bounds).all())
    assert bool((bounds >= eigenvalues * (1 - 1e-5)).all())
    assert float(bounds.max()) <= 1.2 * float(eigenvalues.max()) * (1 + 1e-4)
    assert largest <= float(eigenvalues.max()) * (1 + 1e-5)
    assert largest_eigenvalue_bounds(apply, torch.empty(1, size, dtype=dtype), ndim=1)[0].tolist() == [0.0]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e15])
def test_models_in_units_far_from_one(scale: float) -> None:
    """Squares of products of 1e-24 vanish in single precision; L does not."""
    gains = 1 + torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(0))

    def scaled(image: Tensor, views: Tensor) -> Tensor:
        return scale**0.5 * image[..., None, :, :] * gains[views]

    model = FunctionModel(scaled, n_views=4, image_shape=(8, 8), data_shape=(8, 8), linear=True)
    fidelity = LeastSquares(model, torch.ones(4, 8, 8))
    largest = scale * float(gains.square().max())
    assert 1 <= fidelity.lipschitz_max / largest <= 1.2001
    assert fidelity.lipschitz_views.max() / largest == pytest.approx(1.01, rel=1e-3)
    assert 0.7 < fidelity.lipschitz_at_least(torch.tensor([0])) / scale <= float(gains[0].square().max()) * 1.0001


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_a_model_that_gives_no_numbers_is_refused_in_one_line(value: float) -> None:
    model = FunctionModel(
        lambda image, views: value * image[..., None, :, :].expand(*image.shape[:-2], len(views), 8, 8),
        n_views=4,
        image_shape=(8, 8),
        data_shape=(8, 8),
        linear=True,
    )
    fidelity = LeastSquares(model, torch.ones(4, 8, 8))
    for ask in ("lipschitz_max", "lipschitz_views", "lipschitz"):
        with pytest.raises(InputError, match="products hold NaN or infinity"):
            getattr(fidelity, ask)


def test_bounds_hold_from_many_starts() -> None:
    """Of 2,000 bounds that may fail once in a thousand runs of 200, about none does."""
    values = torch.linspace(0, 1, 200, dtype=F64) ** 2
    below = 0
    for seed in range(10):
        bounds, _ = largest_eigenvalue_bounds(
            lambda images, which: images * values, torch.empty(200, 200, dtype=F64), ndim=1, seed=seed
        )
        below += int((bounds < 1).sum())
    assert below <= 1


def test_matrices_are_estimated_as_ever() -> None:
    stack = torch.randn(5, 7, 12, generator=torch.Generator().manual_seed(0), dtype=F64)
    model = MatrixModel(list(stack), (3, 4))
    fidelity = LeastSquares(model, torch.zeros(5, 7, dtype=F64))
    assert fidelity.lipschitz_max == float(model.squared_norms(torch.arange(5), 1e-2).max())
    assert torch.equal(model.squared_norm_bounds(torch.arange(5)), model.squared_norms(torch.arange(5), 1e-2))
    exact = float(torch.linalg.matrix_norm(stack, 2).square().max())
    assert exact <= fidelity.lipschitz_max <= 1.011 * exact
    # Whoever wants estimates of a function's views, and their time, says so.
    filters = _filters(4, 16, "dense")
    asked = LeastSquares(CountingModel(filters), torch.zeros(4, 16, 16), lipschitz_most=1000)
    assert asked.lipschitz_max == pytest.approx(1.01 * float(filters.square().max()), rel=5e-3)


def _refuse(*_: object, **__: object) -> Tensor:
    raise AssertionError("L was computed")


@pytest.mark.parametrize(
    "make",
    [
        lambda f: ProximalGradient(f, SoftThreshold(), sigma=0.01, step_size=0.2, sampler=Uniform(3)),
        lambda f: ProximalGradient(f, SoftThreshold(), sigma=0.01, step_size=lambda k: 0.2 / k),
        lambda f: ProximalGradient(f, SoftThreshold(), lam=0.01, step_size=0.2),
        lambda f: ADMM(f, SoftThreshold(), sigma=0.01, step_size=0.2),
    ],
    ids=["number", "schedule", "lambda", "admm"],
)
def test_a_step_that_is_a_number_computes_no_l(
    make: Callable[[LeastSquares], ProximalGradient], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CountingModel(_filters(30, 16, "dense"))
    for name in ("squared_norms", "squared_norm_bounds"):
        monkeypatch.setattr(ModelBase, name, _refuse)
    fidelity = LeastSquares(model, torch.ones(30, 16, 16))
    algorithm = make(fidelity)
    state = algorithm.init()
    # What the warning of long steps costs is what a few steps do.
    drawn = algorithm.sampler.draw(0, torch.arange(30)).views
    assert model.asked <= 20 * (30 if drawn is None else len(drawn))
    assert solve(algorithm, state=state, iterations=3).state.k == 3
    assert "lipschitz" not in vars(fidelity)


def test_a_long_step_that_is_a_number_is_warned_of_still() -> None:
    filters = _filters(10, 16, "dense")
    fidelity = LeastSquares(CountingModel(filters), torch.ones(10, 16, 16))
    with pytest.warns(PlugstreamWarning, match=r"is at least .* / L, beyond 2 / L <= "):
        ProximalGradient(fidelity, Identity(), sigma=0, step_size=3.0, sampler=Uniform(2)).init()


def test_the_largest_ritz_value_is_from_below() -> None:
    values = torch.linspace(0, 3, 50, dtype=F64)
    found = [largest_ritz_value(lambda x: values * x, torch.empty(50, dtype=F64), k, ndim=1) for k in (1, 3, 8, 200)]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(3, rel=1e-9)
    assert found[2] > 2.4
    assert largest_ritz_value(lambda x: 0 * x, torch.empty(50, dtype=F64), 8, ndim=1) == 0


@pytest.mark.parametrize("flags", [[], ["--in-memory", "0"]], ids=["in memory", "streamed"])
def test_a_run_with_a_number_computes_no_l(
    tmp_path: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = tmp_path / "scan.zarr"
    assert main(["simulate", str(scan), *SMALL]) == 0
    words = ["reconstruct", str(scan), "--sigma", "0.02", "--threads", "1", "--iterations", "6", *flags]
    assert main([*words, "--out", str(tmp_path / "by")]) == 0
    said = capsys.readouterr().err
    assert "L = " in said
    (gamma,) = {line.split("step ")[1].split(",")[0] for line in said.splitlines() if line.startswith("L = ")}
    for name in ("squared_norms", "squared_norm_bounds"):
        monkeypatch.setattr(f"plugstream.models.born.BornModel.{name}", _refuse)
    assert main([*words, "--out", str(tmp_path / "number"), "--step", gamma, "--checkpoint", "0"]) == 0
    said = capsys.readouterr().err
    assert "L = " not in said
    assert "Lipschitz" not in said
    records = [e for e in read_events(tmp_path / "number" / "events.jsonl") if e.kind == "views"]
    assert [record.lipschitz for record in records] == [None]
    images = [np.load(tmp_path / name / "result.npy") for name in ("by", "number")]
    assert np.allclose(*images, rtol=1e-3, atol=1e-5)
    assert main(["resume", str(tmp_path / "number"), "--iterations", "8"]) == 0


def test_l_says_how_far_it_is() -> None:
    heard: list[tuple[str, int, int]] = []
    filters = _filters(20, 16, "dense")
    fidelity = LeastSquares(
        CountingModel(filters), torch.zeros(20, 16, 16), progress=lambda *words: heard.append(words)
    )
    assert fidelity.lipschitz_max > 0
    assert heard[0] == ("bounding L of every view", 0, 20)
    assert heard[-1] == ("bounding L of every view", 20, 20)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    heard.clear()
    assert len(fidelity.lipschitz_views) == 20
    assert all(words[0].startswith("estimating L of every view, product ") for words in heard)
    assert len(heard) >= 10
    heard.clear()
    assert fidelity.lipschitz > 0
    assert heard[0][0] == "estimating L, product 1"
