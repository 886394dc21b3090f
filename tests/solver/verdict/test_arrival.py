"""How far an image still has to go: the sums that keep distances, and what ten times as many steps really change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from effort import effort, thorough
from plugstream import TV, Epochs, LeastSquares, MatrixModel, ProximalGradient, solve
from plugstream.solver.result import Stop
from plugstream.solver.verdict import Outcome, Trace, compare_arrival, estimate_arrival, forecast_end, judge
from plugstream.solver.verdict.trace import random_sums


@pytest.mark.parametrize("shape", [(37, 41), (11, 12, 13), (3, 30, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_random_sums_keep_lengths_and_are_linear(shape, dtype):
    torch.manual_seed(0)
    images = torch.randn(20, *shape, dtype=dtype)
    images[10:] = images[10:].cumsum(-1).cumsum(-2)  # smooth ones, whose pixels are alike
    sums = random_sums(images, len(shape))
    lengths, found = images.flatten(1).norm(dim=1), sums.norm(dim=1)
    assert float(((found / lengths) ** 2).mean()) == pytest.approx(1, abs=0.1)
    assert float((found / lengths - 1).abs().max()) < 0.3
    torch.testing.assert_close(random_sums(images.mean(0), len(shape)), sums.mean(0), rtol=1e-4, atol=1e-3)


def test_parts_of_a_large_image_are_summed_as_one(monkeypatch):
    image = torch.randn(3, 50, 77, dtype=torch.float64)
    whole = random_sums(image, 2)
    monkeypatch.setattr("plugstream.solver.verdict.trace._CHUNK", 256)
    torch.testing.assert_close(random_sums(image, 2), whole)


def test_a_trace_keeps_every_step_at_first_and_64_of_each_doubling_then():
    trace = Trace()
    for k in range(3000):
        trace.add(k, torch.zeros(4, 4), 2)
    assert trace.steps[:65] == list(range(65))
    for begin in (128, 256, 512, 1024):
        assert sum(begin <= step < 2 * begin for step in trace.steps) == 64


def test_no_block_of_memory_grows_with_the_steps(monkeypatch):
    """Blocks that do leave holes in malloc's heap: a run's memory grew by 0.4 MB with each measurement."""
    sizes, values = [], Trace.values
    monkeypatch.setattr(
        Trace, "values", lambda self, chosen: sizes.append(values(self, chosen).nbytes) or values(self, chosen)
    )
    for count in (100, 5000):
        assert estimate_arrival(trace_of(torch.randn(count, 4, 4)))
    assert max(sizes) < 128 << 10  # from which on malloc takes and returns whole pages at first


def trace_of(images) -> Trace:
    trace = Trace()
    for k, image in enumerate(images):
        trace.add(k, torch.as_tensor(image), 2)
    return trace


def test_what_comes_to_have_farther_to_go_is_told_from_what_comes_nearer():
    """The advice of the first is not to take more steps."""
    rng = np.random.default_rng(3)
    x, e, f = rng.standard_normal((3, 20, 20))
    away = compare_arrival(trace_of([x + e / max(k, 1) + 0.3 * f * np.exp((k - 700) / 100) for k in range(701)]))
    verdict = judge([], [], [], arrivals=away)
    assert away[0].rises
    assert verdict.outcome is Outcome.RISING
    assert "more steps lead away" in verdict.text
    assert "more iterations" not in verdict.text
    for power in (0.3, 0.5, 1.0, 2.0):
        for noise in (0, 0.02):
            way = [x + e / max(k, 1) ** power + noise * rng.standard_normal((20, 20)) for k in range(701)]
            assert not compare_arrival(trace_of(way))[0].rises


@pytest.mark.parametrize(("power", "most"), [(0.5, 2.0), (1.0, 2.0), (2.0, 3.5)])
def test_an_image_that_comes_nearer_as_a_power_of_the_steps(power, most):
    """x_k = x + e / k^p changes by ||e|| (1 - 10^-p) / K^p from K to 10 K; fast ways may be taken for slower ones."""
    rng = np.random.default_rng(1)
    x, e = rng.standard_normal((2, 20, 20))
    for last in (30, 100, 700):
        found = estimate_arrival(trace_of([x + e / max(k, 1) ** power for k in range(last + 1)]))[0]
        end, tenfold = (x + e / k**power for k in (last, 10 * last))
        real = np.linalg.norm(tenfold - end) / np.linalg.norm(end)
        assert real / 2 < found.to_go < most * real
        assert not found.hovers


@pytest.mark.parametrize(
    ("way", "share"), [("power 1", 0.9), ("power 1.5", 0.9), ("exponential", 0.9), ("slow", 0.9), ("hovers", 0.75)]
)
@pytest.mark.parametrize("first", [0, 120])
def test_where_a_run_ends_is_known_to_a_factor_of_two_from_a_third_of_it_on(way, share, first):
    """The steps ahead, at every tenth step, of an image whose run ends when it has arrived, or when its steps do."""
    rng = np.random.default_rng(1)
    x, e = rng.standard_normal((2, 20, 20))
    ways = {
        "power 1": lambda k: x + e / (k + 1),
        "power 1.5": lambda k: x + e / (k + 1) ** 1.5,
        "exponential": lambda k: x + e * np.exp(-k / 25),
        "slow": lambda k: x + e / (k + 1) ** 0.3,  # so that all steps are taken
        "hovers": lambda k: x + 2 * e / (k + 1) + 0.01 * rng.standard_normal(x.shape),
    }
    limit, most, every, trace, said, end = 0.01, first + 600, 10, Trace(first), {}, None
    for k in range(most - first + 1):
        trace.add(first + k, torch.as_tensor(ways[way](k)), 2)
        step = first + k
        if step % every == 0:
            arrivals = estimate_arrival(trace)
            if arrivals and (arrivals[0].within(limit) or (arrivals[0].hovers and arrivals[0].drift <= limit)):
                end = step
                break
            said[step] = forecast_end(trace, most, limit, every)
    end = most if end is None else end
    late = {step: said[step] for step in said if step >= max(first + 40, first + (end - first) / 3) and step < end}
    right = [(end - k) / 2 <= found - k <= 2 * (end - k) for k, found in late.items() if found is not None]
    assert len(right) >= 0.9 * len(late) > 0
    assert sum(right) >= share * len(right)


def test_where_a_run_ends_is_not_said_too_early():
    rng = np.random.default_rng(2)
    x, e = rng.standard_normal((2, 12, 12))
    trace = trace_of([x + e / (k + 1) for k in range(101)])
    assert (
        forecast_end(Trace(0, trace.steps[:21], trace.sums[:21]), 500, 0.01, 10) is None
    )  # what was at half of the steps is not known
    away = trace_of([1e6 * x + e * k**2 for k in range(101)])
    assert forecast_end(away, 500, 1e-4, 10) is None  # it does not come nearer
    begun = Trace(400, trace.steps[:30], trace.sums[:30])
    assert forecast_end(begun, 900, 0.01, 10) is None
    assert forecast_end(begun, 900, 0.01, 10, near=True) == 500  # the first look after a search of 400 steps


def test_slow_moves_that_do_not_shrink_are_no_arrival():
    """x_k = x + e exp(-k / 200) / 10 goes on at one speed for a while, and each step of it is short."""
    rng = np.random.default_rng(3)
    x, e = rng.standard_normal((2, 20, 20))
    trace = trace_of([x + 0.1 * e * np.exp(-k / 200) for k in range(2000)])
    for last in (16, 24, 40, 64):
        early = Trace(0, trace.steps[: last + 1], trace.sums[: last + 1])
        assert not estimate_arrival(early)[0].arrived
        after_a_search = Trace(4 * last + 1, early.steps, early.sums)
        assert not estimate_arrival(after_a_search)  # a quarter of the search's steps is needed
    assert estimate_arrival(trace)[0].arrived


def test_a_lull_is_no_arrival():
    """An image that went fast and suddenly stands still goes on, where momentum has begun anew."""
    rng = np.random.default_rng(4)
    x, e = rng.standard_normal((2, 20, 20))
    way = np.concatenate([np.linspace(1, 0.2, 150), np.linspace(0.2, 0.19, 60)])
    found = estimate_arrival(trace_of([x + e * part for part in way]))[0]
    assert found.to_go > 0.02


def test_noise_about_a_mean_is_hovering():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((20, 20))
    images = [x + 0.03 * rng.standard_normal((20, 20)) for _ in range(200)]
    found = estimate_arrival(trace_of(images))[0]
    assert found.hovers
    assert found.hover == pytest.approx(0.03, rel=0.3)
    assert found.to_go == pytest.approx(0.03 * np.sqrt(2), rel=0.3)


def test_a_global_phase_is_no_way_to_go():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 20)) + 1j * rng.standard_normal((20, 20))
    found = estimate_arrival(trace_of([x * np.exp(0.1j * k) for k in range(100)]))[0]
    assert found.to_go < 1e-3


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    """Thirty views of a blocky image, whose slow directions have a hundredth of the curvature of the quick ones."""
    rng = np.random.default_rng(5)
    truth = np.zeros((12, 12))
    truth[2:6, 3:9], truth[7:10, 5:7] = 1.0, 0.5
    scale = np.geomspace(1, 0.1, 144)
    matrices = rng.standard_normal((30, 10, 144)) * scale[rng.permutation(144)]
    data = matrices @ truth.ravel() + 0.05 * rng.standard_normal((30, 10))
    return LeastSquares(MatrixModel(list(matrices), (12, 12)), torch.from_numpy(data))


@thorough
@pytest.mark.parametrize(
    ("momentum", "sampler"),
    effort([("none", None), ("bounded", 6)], [("none", None), ("none", 6), ("bounded", None), ("bounded", 6)]),
)
def test_what_ten_times_as_many_steps_really_change(problem, sampler, momentum):
    options = {} if sampler is None else {"sampler": Epochs(sampler)}
    algorithm = ProximalGradient(problem, TV(), lam=0.02, momentum=momentum, **options)
    images = {}
    solve(algorithm, iterations=400, callbacks=[lambda p: images.update({p.state.k: p.state.image})])
    trace = Trace()
    for k in range(41):
        trace.add(k, images[k], 2)
        if k >= 16 and k % 8 == 0:
            real = float((images[10 * k] - images[k]).norm() / images[k].norm())
            found = estimate_arrival(trace)[0].to_go
            assert real / 3 < found < 3 * real
            assert found > 0.01 or real < 0.02


def test_a_run_ends_when_its_image_has_arrived_and_so_does_one_that_goes_on(problem):
    algorithm = ProximalGradient(problem, TV(), lam=0.02, momentum="nesterov")
    whole = solve(algorithm, iterations=2000, arrive=0.01)
    assert whole.reason is Stop.ARRIVED
    assert whole.verdict.to_go <= 0.01
    snapshots = []
    solve(algorithm, iterations=25, callbacks=[lambda p: snapshots.append(p.snapshot())])
    rest = solve(algorithm, resume=snapshots[-1], iterations=2000, arrive=0.01)
    assert rest.state.k == whole.state.k
    assert torch.equal(rest.image, whole.image)
    assert rest.verdict == whole.verdict


def test_ctrl_c_leaves_no_step_without_its_sums(monkeypatch):
    trace = Trace()
    trace.add(0, torch.ones(4, 4), 2)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("plugstream.solver.verdict.trace.random_sums", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trace.add(1, torch.ones(4, 4), 2)
    trace.add(2, torch.ones(4, 4), 2)
    assert trace.steps == [0, 2]
    assert trace.values([0, 1]).shape == (1, 2, 256)
