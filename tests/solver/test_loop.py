"""The loop: what it measures, when it stops and why, and what it returns."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch

from plugstream import (
    ADMM,
    SNR,
    Cost,
    Distance,
    Identity,
    InputError,
    LeastSquares,
    MatrixModel,
    PlugstreamWarning,
    ProximalGradient,
    Quantity,
    SoftThreshold,
    Stop,
    Uniform,
    fixed_point_distance,
    solve,
)
from plugstream.solver import monitors

F64 = torch.float64
LOOP = inspect.unwrap(solve).__code__.co_filename


@pytest.fixture
def ista(regression):
    return ProximalGradient(regression, SoftThreshold(), lam=0.1)


def test_history_is_what_was_measured(ista, regression):
    truth = torch.randn(4, 5, dtype=F64)
    result = solve(ista, iterations=7, monitors=[Distance(), SNR(truth, every=2), Cost(every=100)], every=3)
    assert result.history["distance"].step.tolist() == [0, 3, 6, 7]
    assert result.history["snr"].step.tolist() == [0, 2, 4, 6, 7]
    assert result.history["cost"].step.tolist() == [0, 7]
    assert result.reason is Stop.ITERATIONS
    assert result.state.k == result.image_step == 7
    gamma, sigma = ista.parameters(8)
    distance = float(fixed_point_distance(result.image, regression, SoftThreshold(), gamma, sigma))
    assert result.history["distance"].value[-1] == pytest.approx(distance, rel=1e-12)
    series = result.history["distance"].value
    assert np.allclose(result.history["relative_distance"].value, series / series[0])
    cost = float(regression.value(result.image) + 0.1 * result.image.abs().sum())
    assert result.history["cost"].value[-1] == pytest.approx(cost, rel=1e-12)
    assert np.all(np.diff(result.history["snr"].time) > 0)


def test_a_batch_of_images_has_a_value_each(regression):
    algorithm = ProximalGradient(regression, SoftThreshold(), lam=0.1)
    result = solve(algorithm, torch.randn(3, 4, 5, dtype=F64), iterations=4, monitors=[Distance()], every=2)
    assert result.history["distance"].value.shape == (3, 3)


@pytest.mark.parametrize("kind", [ProximalGradient, ADMM])
def test_continuing_is_as_if_there_had_been_no_stop(regression, kind):
    algorithm = kind(regression, SoftThreshold(), sigma=0.2, sampler=Uniform(2))
    whole = solve(algorithm, iterations=9, monitors=[Distance()], every=1)
    first = solve(algorithm, iterations=4, monitors=[Distance()], every=1)
    reference = float(first.history["distance"].value[0])
    second = solve(algorithm, state=first.state, iterations=5, monitors=[Distance(reference=reference)], every=1)
    assert torch.equal(second.image, whole.image)
    joined = np.concatenate([first.history["relative_distance"].value, second.history["relative_distance"].value[1:]])
    assert np.array_equal(joined, whole.history["relative_distance"].value)
    assert second.history["distance"].step.tolist() == [4, 5, 6, 7, 8, 9]


def test_it_stops_at_a_distance(ista):
    result = solve(ista, iterations=10_000, distance_limit=1e-6, every=1)
    values = result.history["relative_distance"].value
    assert result.reason is Stop.DISTANCE
    assert values[-1] <= 1e-6 < values[-2]


def test_it_stops_at_a_time(ista, monkeypatch):
    """By a clock that goes on by a second whenever somebody looks."""
    monkeypatch.setattr("plugstream.solver.loop.perf_counter", count(time.perf_counter()).__next__)
    seen = []
    result = solve(ista, iterations=10**9, time_limit=50.0, callbacks=[lambda progress: seen.append(progress.wall)])
    assert result.reason is Stop.TIME
    assert seen[-2] < 50.0 <= result.wall
    assert len(seen) < 50


def test_the_clock_is_the_machines(ista):
    begun = time.perf_counter()
    result = solve(ista, iterations=10**9, time_limit=0.05)
    assert result.reason is Stop.TIME
    assert 0.05 <= result.wall <= time.perf_counter() - begun


def test_a_callback_sees_every_step_and_can_stop(ista):
    seen = []

    def callback(progress):
        seen.append((progress.state.k, sorted(progress.measured)))
        return progress.state.k == 3

    result = solve(ista, iterations=100, monitors=[Distance()], every=2, callbacks=[callback])
    both = ["distance", "relative_distance"]
    assert seen == [(0, both), (1, []), (2, both), (3, []), (3, both)]
    assert result.reason is Stop.CALLBACK
    assert result.state.k == 3


@dataclass(frozen=True)
class Slow:
    clock: list[float]
    measures = (Quantity("slow"),)
    every: int | None = None

    def begin(self, algorithm, state, past):
        def measure(algorithm, state):
            self.clock.append(self.clock[-1] + 1000.0)
            return {"slow": torch.tensor(0.0)}

        return measure


def test_monitor_time_is_not_algorithm_time(ista, monkeypatch):
    """By a clock that goes on by a second whenever somebody looks, and by a thousand at a measurement."""
    clock = [time.perf_counter()]

    def look():
        clock.append(clock[-1] + 1.0)
        return clock[-1]

    monkeypatch.setattr("plugstream.solver.loop.perf_counter", look)
    result = solve(ista, iterations=10, monitors=[Slow(clock)], every=1)
    assert result.wall > 10 * 1000.0
    assert result.time == pytest.approx(10)
    assert result.history["slow"].time == pytest.approx(np.arange(11))


def test_divergence_ends_the_run_with_the_best_image(regression):
    algorithm = ProximalGradient(regression, Identity(), sigma=0, step_size="40/L")
    start = torch.randn(4, 5, dtype=F64)
    with pytest.warns(PlugstreamWarning, match="beyond 2 / L"):
        result = solve(algorithm, start, iterations=10_000, monitors=[Distance()], every=1)
    assert result.reason is Stop.DIVERGED
    assert result.reason.failed
    assert torch.isfinite(result.image).all()
    assert torch.equal(result.image, start)
    assert result.image_step == 0
    assert result.state.k < 100


def test_nan_ends_the_run_with_the_last_good_state(regression):
    calls = []

    def breaks(z, sigma):
        calls.append(1)
        return z * (float("nan") if len(calls) == 5 else 1.0)

    result = solve(ProximalGradient(regression, breaks, sigma=0.0), iterations=100)
    assert result.reason is Stop.NOT_FINITE
    assert result.state.k == result.image_step == 4
    assert torch.isfinite(result.image).all()


@pytest.mark.usefixtures("own_ctrl_c")
def test_ctrl_c_returns_the_best_so_far(ista):
    """A real SIGINT, sent to this process by a thread while the loop runs."""
    begun = threading.Event()

    def interrupt():
        assert begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    def begin(progress):
        if progress.state.k == 120:
            begun.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = solve(ista, iterations=10**9, monitors=[Distance()], every=50, callbacks=[begin])
    thread.join(150)
    assert result.reason is Stop.INTERRUPTED
    assert result.state.k >= 120
    series = result.history["distance"]
    assert series.step[-1] == result.state.k
    assert result.image_step == series.step[np.argmin(series.value)]
    more = solve(ista, state=result.state, iterations=3)
    assert more.state.k == result.state.k + 3


def interrupt_measurement(left, frame, event, _):
    """Count lines of the measurement after step 8, and raise what Ctrl-C does at the one that is wanted."""
    code = frame.f_code
    if code.co_filename != LOOP or code.co_name not in ("measure", "_best_with") or frame.f_locals["self"].state.k != 8:
        return None
    if event == "line":
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
    return partial(interrupt_measurement, left)


def test_ctrl_c_in_the_middle_of_a_measurement_leaves_a_whole_history(ista):
    """At any line of it: what is told of the last step is there once, and the best image is the best of the history."""
    truth = torch.zeros(4, 5, dtype=F64)
    truth[0, 0] = 1.0
    whole = solve(ista, iterations=12, monitors=[SNR(truth), Distance()], every=4).history
    for line in count(1):
        left = [line]

        def interrupt(frame, event, argument, left=left):
            if frame.f_code.co_name in ("measure", "_best_with") and frame.f_locals["self"].state.k == 8:
                left[0] -= event == "line"
                if left[0] == 0 and event == "line":
                    left[0] = -1
                    raise KeyboardInterrupt
                return interrupt
            return None

        before = sys.gettrace()
        sys.settrace(
            lambda frame, *rest, look=interrupt: look(frame, *rest) if frame.f_code.co_filename == LOOP else None
        )
        try:
            result = solve(ista, iterations=12, monitors=[SNR(truth), Distance()], every=4)
        finally:
            sys.settrace(before)
        if left[0] > 0:
            break
        assert result.reason is Stop.INTERRUPTED
        for name, series in result.history.items():
            assert series.step.tolist() == [0, 4, 8], (line, name)
            assert np.array_equal(series.value, whole[name].value[:3])
        snrs = result.history["snr"]
        assert result.image_step == snrs.step[np.argmax(snrs.value)]
    assert line > 10


def test_the_best_is_by_snr_where_the_truth_is_known(ista):
    truth = torch.zeros(4, 5, dtype=F64)
    truth[0, 0] = 1.0

    def stop(progress):
        if progress.state.k == 6:
            raise KeyboardInterrupt
        return False

    result = solve(ista, iterations=100, monitors=[SNR(truth), Distance()], every=1, callbacks=[stop])
    snrs = result.history["snr"]
    assert result.image_step == snrs.step[np.argmax(snrs.value)]


def test_what_is_said_after_ctrl_c_is_of_the_image_that_is_returned(ista, capsys):
    truth, pending = torch.full((4, 5), -1.0, dtype=F64), [6]  # which every step leads away from

    def stop(progress):
        if progress.state.k in pending:
            pending.clear()
            raise KeyboardInterrupt

    result = solve(ista, iterations=100, monitors=[SNR(truth)], every=2, callbacks=[stop], progress=True)
    assert result.image_step != result.state.k == 6
    value = float(monitors.snr(result.image, truth))
    assert result.measured() == {"snr": pytest.approx(value)}
    said = capsys.readouterr().err
    assert f"SNR {value:.2f} dB\n" in said
    assert f"the image is that of step {result.image_step}" in said
    assert f"of step {result.image_step}," in repr(result)
    assert repr(result).endswith(f"snr {value:.4g})")
    assert f"at step {result.image_step}</th>" in result._repr_html_()


def test_bad_calls_are_refused(ista):
    with pytest.raises(InputError, match="iterations must be >= 0"):
        solve(ista, iterations=-1)
    with pytest.raises(InputError, match="not several"):
        solve(ista, torch.zeros(4, 5), state=ista.init())
    with pytest.raises(InputError, match="SNR needs them alike"):
        solve(ista, iterations=1, monitors=[SNR(torch.zeros(3, 3))])


def test_a_callback_has_the_run_go_on_with_another_algorithm():
    generator = torch.Generator().manual_seed(4)
    matrices = [torch.randn(6, 20, generator=generator, dtype=F64) for _ in range(5)]
    few, grown = MatrixModel(matrices[:3], (4, 5)), MatrixModel(matrices, (4, 5))
    source = ViewsOf(torch.randn(5, 6, generator=generator, dtype=F64))
    first = ProximalGradient(LeastSquares(few, source), SoftThreshold(), sigma=0.1, sampler=Uniform(2))
    algorithms = []

    def grow(progress):
        algorithms.append(progress.algorithm)
        return replace(first, fidelity=first.fidelity.with_views(grown)) if progress.state.k == 4 else None

    result = solve(first, iterations=10, monitors=[Distance()], every=2, callbacks=[grow, lambda progress: False])
    assert algorithms[4] is first
    assert len(first.fidelity.available) == 3
    state = solve(first, iterations=4).state
    second = algorithms[5]
    assert len(second.fidelity.available) == 5
    rest = solve(second, state=state, iterations=6)
    assert torch.equal(result.image, rest.image)
    # What is measured is the distance of the algorithm of the time, relative to where the run began.
    assert result.history["distance"].value[-1] == float(second.residual(rest.state))
    assert result.history["relative_distance"].value[0] == 1


@dataclass(frozen=True)
class Brightness:
    """A monitor of a user: the largest value of the image, which is better where it is larger."""

    measures = (Quantity("brightness", unit="V", smaller_is_better=False, stops=True),)
    every: int | None = None

    def begin(self, algorithm, state, past):
        return lambda algorithm, state: {"brightness": state.image.abs().amax((-2, -1))}


def test_a_monitor_of_ones_own_says_what_is_better_and_stops_the_run(ista):
    free = solve(ista, iterations=30, monitors=[Brightness()], every=1)
    series = free.history["brightness"]
    assert (series.quantity.label, series.quantity.text(1.5)) == ("brightness (V)", "brightness 1.5 V")
    limit = float(series.value.max()) * 0.9
    first = int(series.step[np.argmax(series.value >= limit)])
    assert 1 < first < 30
    stopped = solve(ista, iterations=30, monitors=[Brightness()], every=1, distance_limit=limit)
    assert (stopped.reason, stopped.state.k, list(stopped.history)) == (Stop.DISTANCE, first, ["brightness", "to_go"])

    def interrupt(progress):
        if progress.state.k == 20:
            raise KeyboardInterrupt

    result = solve(ista, iterations=30, monitors=[Brightness()], every=1, callbacks=[interrupt])
    assert result.image_step == int(series.step[np.argmax(series.value[:21])])


def test_the_best_image_goes_by_one_quantity(ista):
    """SNR and distance were compared with each other where they were measured at different steps."""
    truth = torch.randn(4, 5, dtype=F64)

    def interrupt(progress):
        if progress.state.k == 13 and not progress.measured:  # once: what is measured at the end comes after it
            raise KeyboardInterrupt

    monitors = [Distance(every=3), SNR(truth, every=5)]
    result = solve(ista, iterations=30, monitors=monitors, callbacks=[interrupt])
    snr = result.history["snr"]
    assert result.image_step == snr.step[np.argmax(snr.value)]


def test_a_monitor_that_declares_nothing_is_refused(ista):
    class Silent:
        every = None

        def begin(self, algorithm, state, past):
            raise AssertionError

    with pytest.raises(InputError, match="Silent does not declare what it measures"):
        solve(ista, iterations=3, monitors=[Silent()])


class ViewsOf:
    """A source that data is read from, as a scan on disk is."""

    def __init__(self, data):
        self.data, self.n_views = data, len(data)

    def read(self, views=None):
        return self.data if views is None else self.data[views]


@pytest.mark.parametrize("iterations", [sys.maxsize, 1000])
def test_a_long_run_keeps_so_many_measurements(ista, monkeypatch, iterations):
    whole = solve(ista, iterations=80, monitors=[Distance()], every=1).history["distance"]
    monkeypatch.setattr("plugstream.solver.loop._MOST_ROWS", 8)
    result = solve(ista, iterations=iterations, monitors=[Distance()], every=1, callbacks=[lambda p: p.state.k >= 80])
    steps = result.history["distance"].step
    assert (steps[0], steps[-1]) == (0, 80)
    assert len(steps) <= 9
    assert np.diff(steps).max() <= 40  # all over the run
    assert np.array_equal(result.history["distance"].value, whole.value[steps])


def test_a_measurement_keeps_its_number_alone(ista):
    """A number within a tensor keeps all of it: 16 kB a measurement, of a run of a day gigabytes."""
    seen = []
    solve(ista, iterations=20, monitors=[Distance()], every=10, callbacks=[lambda p: seen.append(p.snapshot())])
    assert all(value.base is None for rows in seen[-1].rows.values() for *_, value in rows)
