"""Samplers: pure in (seed, step, available views), and right on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from effort import effort, thorough
from plugstream import All, Epochs, FixedViews, Importance, InputError, ShiftedViews, Uniform
from plugstream.models.views import evenly_spaced


def samplers(batch: int, n: int, seed: int = 0):
    weights = np.random.default_rng(5).uniform(0.2, 3, n)
    return [All(), Uniform(batch, seed), Epochs(batch, seed), ShiftedViews(batch), Importance(batch, weights, seed)]


def mean_gradient(sampler, gradients: torch.Tensor, steps: int) -> torch.Tensor:
    total = torch.zeros(gradients.shape[1], dtype=torch.float64)
    for step in range(steps):
        views, weights = sampler.draw(step, torch.arange(len(gradients)))
        chosen = gradients if views is None else gradients[views]
        total += chosen.mean(0) if weights is None else (weights[:, None] * chosen).sum(0)
    return total / steps


@given(n=st.integers(1, 40), batch=st.integers(1, 50), seed=st.integers(0, 2**63), step=st.integers(0, 10**9))
def test_draws_are_pure_and_in_range(n, batch, seed, step):
    for sampler in samplers(batch, n, seed):
        first = sampler.draw(step, torch.arange(n))
        sampler.draw(step + 1, torch.arange(n))
        again = sampler.draw(step, torch.arange(n))
        if first.views is None:
            continue
        assert torch.equal(first.views, again.views)
        assert first.views.shape == (batch,)
        assert 0 <= int(first.views.min()) <= int(first.views.max()) < n


@given(batch=st.integers(1, 8), seed=st.integers(0, 100))
def test_only_available_views_are_drawn(batch, seed):
    available = torch.tensor([2, 3, 5, 11, 12])
    for sampler in samplers(batch, 13, seed):
        for step in range(5):
            views = sampler.draw(step, available).views
            assert views is None or bool(torch.isin(views, available).all())


@thorough
@pytest.mark.parametrize(
    ("kind", "n", "batch"),
    effort(
        [(0, 5, 7), (1, 10, 3), (2, 10, 3), (2, 5, 7), (3, 10, 3), (3, 5, 7), (4, 5, 7)],
        [(kind, *size) for kind in range(5) for size in ((12, 4), (10, 3), (5, 7))],
    ),
)
def test_the_mean_gradient_is_the_full_one(kind, n, batch):
    gradients = torch.from_numpy(np.random.default_rng(0).standard_normal((n, 6)))
    sampler = samplers(batch, n, seed=3)[kind]
    exact = isinstance(sampler, All | ShiftedViews | Epochs)
    # ShiftedViews and Epochs are exact after whole rounds; the random ones within five standard errors.
    steps = n * effort(20, 60) if exact else effort(1500, 4000)
    error = (mean_gradient(sampler, gradients, steps) - gradients.mean(0)).abs().max()
    assert float(error) < (1e-12 if exact else 5 * 4 / np.sqrt(steps * batch))


def test_importance_is_unbiased_exactly():
    # The expectation, summed over views instead of sampled: sum_i p_i * B * w_i * g_i = mean of g.
    p = torch.tensor([0.1, 2.0, 0.7, 0.3], dtype=torch.float64)
    sampler = Importance(3, p)
    weight = {}
    for step in range(200):
        views, weights = sampler.draw(step, torch.arange(4))
        weight.update(zip(views.tolist(), weights.tolist(), strict=True))
    probability = p / p.sum()
    for view in range(4):
        assert float(probability[view]) * 3 * weight[view] == pytest.approx(1 / 4, rel=1e-12)


def test_importance_draws_with_its_probabilities():
    p = np.array([1.0, 2.0, 5.0])
    counts = np.bincount(
        torch.cat([Importance(50, p).draw(k, torch.arange(3)).views for k in range(400)]).numpy(), minlength=3
    )
    assert np.allclose(counts / counts.sum(), p / p.sum(), atol=0.02)


@given(n=st.integers(1, 30), batch=st.integers(1, 30), seed=st.integers(0, 50))
def test_an_epoch_has_every_view_once(n, batch, seed):
    row = torch.cat([Epochs(batch, seed).draw(k, torch.arange(n)).views for k in range(3 * n)])
    for epoch in range(3):
        assert sorted(row[epoch * n : (epoch + 1) * n].tolist()) == list(range(n))


def test_epochs_are_shuffled_anew():
    first, second = (Epochs(20, seed=1).draw(k, torch.arange(20)).views.tolist() for k in (0, 1))
    assert first != second


def test_shifted_is_the_authors_order():
    assert ShiftedViews(3).draw(0, torch.arange(60)).views.tolist() == [0, 20, 40]
    assert ShiftedViews(3).draw(1, torch.arange(60)).views.tolist() == [1, 21, 41]
    assert ShiftedViews(3).draw(59, torch.arange(60)).views.tolist() == [59, 19, 39]


def test_uniform_draws_differ_with_seed_and_step():
    draws = {
        tuple(Uniform(8, seed).draw(step, torch.arange(1000)).views.tolist()) for seed in range(5) for step in range(5)
    }
    assert len(draws) == 25


def test_the_stream_is_fixed_for_ever():
    """Philox with key 7 and counter (0, 0, 0, 3): these words are part of the format, as resumed runs rely on them."""
    words = np.random.Philox(key=7, counter=[0, 0, 0, 3]).random_raw(4)
    want = [int(int(word) * 1000 >> 64) for word in words]
    assert Uniform(4, seed=7).draw(3, torch.arange(1000)).views.tolist() == want


def test_fixed_and_bad_input():
    assert FixedViews([3, 1]).draw(9, torch.arange(5)).views.tolist() == [3, 1]
    assert evenly_spaced(4, 10).tolist() == [0, 2, 5, 7]
    with pytest.raises(InputError, match="view 7 was asked for, but is not among the 5 views"):
        FixedViews([1, 7]).draw(0, torch.arange(5))
    with pytest.raises(InputError, match="at least one view"):
        Uniform(0)
    with pytest.raises(InputError, match="no views to draw from"):
        Uniform(2).draw(0, torch.arange(0))
    with pytest.raises(InputError, match="numbers > 0"):
        Importance(2, [0.0, 1.0])
    with pytest.raises(InputError, match="there are 3 views, but importance probabilities for 2"):
        Importance(2, [1.0, 1.0]).draw(0, torch.arange(3))
