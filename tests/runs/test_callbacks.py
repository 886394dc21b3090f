"""What acts while a run iterates acts in one order, saves before checkpoints, and is restored from the log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plugstream import TV, FunctionModel, LeastSquares, ProximalGradient, solve
from plugstream.runs.callbacks import Callback, MeasurementLog, Watcher
from plugstream.runs.checkpoints import Checkpoints, CheckpointWriter
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Measurement, Note
from plugstream.runs.folder import open_run
from plugstream.runs.parts import describe_step, prepare
from plugstream.runs.plan import plan
from plugstream.runs.replay import History, replay
from plugstream.runs.run import reconstruct
from plugstream.scans.store import open_scan
from plugstream.settings import resolve
from small_run import RUN, main


class Counter(Callback):
    """Notes in the log how often it acted, which is what it remembers."""

    def __init__(self, name: str, log: EventLog, calls: list[str]) -> None:
        self.name, self.log, self.calls, self.count = name, log, calls, 0

    def after_step(self, progress: Any) -> None:
        self.count += 1
        self.calls.append(f"{self.name} {progress.state.k}")

    def save(self, step: int) -> None:
        self.calls.append(f"{self.name} saves {step}")
        self.log.add(Note(f"{self.name} {self.count}"))


def test_they_act_in_order_and_save_before_the_checkpoint(regression: Any, tmp_path: Path) -> None:
    calls: list[str] = []
    log = EventLog(tmp_path / "events.jsonl")
    writer = CheckpointWriter(log, Checkpoints(tmp_path / "checkpoints", {}), every=0.0)
    measurements = MeasurementLog(log)
    writer.callbacks = (measurements, Counter("a", log, calls), writer, Counter("b", log, calls))
    functions: list[Any] = [callback.after_step for callback in writer.callbacks]
    result = solve(ProximalGradient(regression, TV(), sigma=0.01), iterations=2, callbacks=functions)
    log.close()
    first, second, third = ["a 0", "b 0"], ["a 1", "a saves 1", "b saves 1", "b 1"], ["a 2", "a saves 2", "b saves 2"]
    assert calls == [*first, *second, *third, "b 2"]
    assert writer.step == result.state.k == 2
    assert measurements.last is not None
    assert measurements.last.state.k == 2
    saved = Checkpoints(tmp_path / "checkpoints", {}).load()
    assert saved is not None
    assert saved.step == 2
    assert replay(tmp_path / "events.jsonl").knows(saved.content["log"])  # what they saved is in the log by then
    notes = [event.text for event in read_events(tmp_path / "events.jsonl") if isinstance(event, Note)]
    assert notes == ["a 2", "b 1", "a 3", "b 2"]


def test_measurements_are_logged_before_their_progress_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    measurements = MeasurementLog(log)
    fine = SimpleNamespace(state=SimpleNamespace(k=1), time=0.5, measured={"snr": torch.tensor(3.0)})
    measurements.after_step(fine)  # type: ignore[arg-type]
    broken = SimpleNamespace(state=SimpleNamespace(k=2), time=0.5, measured={"snr": "no number"})
    with pytest.raises(ValueError, match="could not convert"):
        measurements.after_step(broken)  # type: ignore[arg-type]
    log.close()
    assert measurements.last is fine
    assert [e.values for e in read_events(log.path) if isinstance(e, Measurement)] == [{"snr": 3.0}]


class Observer(Watcher):
    """Takes part in a run as its terminal does, and fails after a step if it is asked to."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.fails_after = fails_after
        self.histories: list[History] = []
        self.heard: list[Any] = []

    def after_step(self, progress: Any) -> None:
        self.heard.append(progress)
        if progress.state.k == self.fails_after:
            raise ArithmeticError("out of paper")

    def restore(self, history: History) -> None:
        assert not self.heard, "restored before its first step"
        self.histories.append(history)


def run_with(observer: Observer, scan: Path, folder: Path, steps: int, *, go_on: bool = False) -> Any:
    """A run that writes checkpoints only at its end."""
    chosen = {"algorithm": {"sigma": 0.02, "iterations": steps}, "monitor": {"every": 2}, "run": {"checkpoint": 1e6}}
    flags = [(section, name, value) for section, values in chosen.items() for name, value in values.items()]
    settings = resolve(folder / "settings.toml" if go_on else None, [*flags, ("run", "report", "none")])
    opened = open_scan(scan)
    planned = plan(prepare(settings), opened)
    return reconstruct(opened, planned, folder, command="", source=scan, go_on=go_on, terminal=observer)


def test_where_a_run_goes_on_they_are_restored_once_from_all_that_counts(scan: Path, tmp_path: Path) -> None:
    first, second = Observer(), Observer()
    run_with(first, scan, tmp_path / "run", 4)
    assert first.histories == []  # at the start there is nothing to restore
    run_with(second, scan, tmp_path / "run", 6, go_on=True)
    (history,) = second.histories
    assert history.step == 4
    assert [event.step for event in history.measured] == [0, 2, 4]
    assert [progress.state.k for progress in second.heard if progress.state.k > 4] == [5, 6]


def test_the_last_progress_is_the_one_that_they_heard_last(scan: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Whichever of them fails, the end of the run tells its step; a checkpoint has it once its measurements are logged.

    The observer acts after the measurements were logged. Where logging them fails, nobody hears of the step, and no
    checkpoint tells of it: a run that goes on from there would not measure it again."""
    observer = Observer(fails_after=4)
    with pytest.raises(ArithmeticError, match="out of paper"):
        run_with(observer, scan, tmp_path / "a", 6)
    end = replay(tmp_path / "a" / "events.jsonl").stop
    assert end is not None
    assert (end.step, end.failed) == (observer.heard[-1].state.k, True) == (4, True)
    assert [path.name for path in (tmp_path / "a" / "checkpoints").iterdir()] == ["step-00000004.safetensors"]

    log_measurements = MeasurementLog.after_step

    def fail_at_four(measurements: MeasurementLog, progress: Any) -> None:
        if progress.state.k == 4:
            raise ArithmeticError("no room in the log")
        log_measurements(measurements, progress)

    monkeypatch.setattr(MeasurementLog, "after_step", fail_at_four)
    observer = Observer()
    with pytest.raises(ArithmeticError, match="no room in the log"):
        run_with(observer, scan, tmp_path / "b", 6)
    end = replay(tmp_path / "b" / "events.jsonl").stop
    assert end is not None
    assert (end.step, observer.heard[-1].state.k) == (4, 3)
    assert not (tmp_path / "b" / "checkpoints").exists()


def test_the_run_says_which_step_was_chosen_and_why(scan: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["reconstruct", str(scan), *RUN, "--iterations", "2"]
    for name, step, origin in (("a", "0.5/L", "where L bounds every view"), ("b", "1000", "as the settings say")):
        assert main([*words, "--step", step, "--out", str(tmp_path / name)]) == 0
        assert f"the step is {step}" in capsys.readouterr().err
        chosen = open_run(tmp_path / name).step
        assert chosen is not None
        assert chosen["origin"] == origin
        assert (chosen["lipschitz"] is None) == (name == "b")
        if name == "a":
            assert chosen["size"] == pytest.approx(0.5 / chosen["lipschitz"])
        said = [e.text for e in read_events(tmp_path / name / "events.jsonl") if isinstance(e, Note)]
        assert any(origin in text for text in said)
    assert main(["resume", str(tmp_path / "a"), "--iterations", "3"]) == 0
    assert open_run(tmp_path / "a").step == json.loads((tmp_path / "a" / "run.json").read_text())["step"]
    capsys.readouterr()
    assert main(["info", str(tmp_path / "a")]) == 0
    assert "where L bounds every view" in capsys.readouterr().out


def test_without_an_l_the_step_comes_from_the_jacobian() -> None:
    model = FunctionModel(
        lambda x, views: x[None] ** 3 + views[:, None, None], n_views=3, image_shape=(4, 5), data_shape=(4, 5)
    )
    fidelity = LeastSquares(model, torch.ones(3, 4, 5))
    algorithm = ProximalGradient(fidelity, TV(), sigma=0.01)
    settings = resolve(None, [("algorithm", "sigma", 0.01)])
    state = algorithm.init(torch.ones(4, 5))
    choice = describe_step(settings, algorithm, state)
    assert "Jacobian at the first image" in str(choice)
    assert choice.lipschitz == state.lipschitz
    assert choice.size == pytest.approx(1 / state.lipschitz)
