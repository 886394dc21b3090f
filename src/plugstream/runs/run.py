"""A run: a new folder with settings, event log, images and report of one reconstruction."""

from __future__ import annotations

import csv
import os
import platform
import warnings
from pathlib import Path

import torch

from plugstream import __version__
from plugstream.algorithms import Algorithm, State
from plugstream.errors import InputError, PlugstreamWarning
from plugstream.fidelity import LeastSquares
from plugstream.monitors import SNR, Cost, Distance, Monitor
from plugstream.recipes import check, make_algorithm, make_model
from plugstream.runs.events import EventLog, Listener, read_events
from plugstream.runs.images import save_image
from plugstream.runs.report import draw_report
from plugstream.runs.terminal import Terminal
from plugstream.scans.scan import Scan
from plugstream.settings import Settings, to_toml
from plugstream.solver import Progress, Result, Series, solve

__all__ = ["free_folder", "make_folder", "reconstruct"]


def make_folder(path: Path) -> Path:
    """Make a new folder for a run; one that exists is refused, so that no result is overwritten."""
    try:
        path.mkdir(parents=False)
    except FileExistsError:
        raise InputError(f"the output {path} exists already; choose another with --out, or remove it") from None
    except OSError as error:
        raise InputError(f"cannot make the output folder {path}: {error.strerror}") from error
    return path


def free_folder(stem: str) -> Path:
    """The first of stem, stem-2, stem-3, ... that does not exist."""
    number = 1
    while (path := Path(stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return path


def reconstruct(
    scan: Scan, settings: Settings, folder: Path, *, command: str, terminal: Terminal | None = None
) -> Result[State]:
    """Reconstruct a scan as the settings say, into an existing empty folder.

    Leaves settings.toml (which repeats the run), events.jsonl, history.csv, result, truth and backprojection as PNG,
    TIFF and NPY, and report.png. `command` is written into the settings as the way to repeat it.
    """
    check(settings, scan.geometry)
    (folder / "settings.toml").write_text(to_toml(settings, f"plugstream {__version__}\nrepeat with: {command}"))
    listeners: tuple[Listener, ...] = () if terminal is None else (terminal,)
    log = EventLog(folder / "events.jsonl", listeners)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PlugstreamWarning)
            result, fidelity = _run(scan, settings, log, terminal, caught)
        _tell(log, caught)
        save_image(result.image, folder / "result")
        backprojection = fidelity.backprojection()
        save_image(backprojection, folder / "backprojection")
        if scan.truth is not None:
            save_image(torch.from_numpy(scan.truth), folder / "truth")
        _write_history(folder / "history.csv", result.history)
        log.add(
            "stop",
            step=result.state.k,
            image_step=result.image_step,
            time=result.time,
            wall=result.wall,
            reason=result.reason.value,
            failed=result.reason.failed,
        )
    finally:
        log.close()
    draw_report(
        folder / "report.png",
        title=_title(settings, result),
        result=result.image.cpu().float().numpy(),
        backprojection=backprojection.cpu().float().numpy(),
        truth=scan.truth,
        events=read_events(folder / "events.jsonl"),
    )
    return result


def _run(
    scan: Scan,
    settings: Settings,
    log: EventLog,
    terminal: Terminal | None,
    caught: list[warnings.WarningMessage],
) -> tuple[Result[State], LeastSquares]:
    log.add(
        "start",
        iterations=settings.algorithm.iterations,
        settings=settings.model_dump(),
        plugstream=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        pid=os.getpid(),
    )
    log.add("note", text=f"building the model of {scan.n_views} views on {settings.compute.device}")
    model = make_model(scan.geometry, settings.compute)
    fidelity = LeastSquares(model, scan.read())
    log.add("note", text="estimating the Lipschitz constant L of every view")
    algorithm: Algorithm[State] = make_algorithm(settings, fidelity)  # type: ignore[assignment]
    state = algorithm.init()
    gamma, sigma = algorithm.parameters(1)
    log.add("note", text=f"L = {fidelity.lipschitz_max:.4g}, step {gamma:.6g}, sigma {sigma:.4g}")
    _tell(log, caught)

    def follow(progress: Progress[State]) -> None:
        k = progress.state.k
        if progress.measured:
            values = {name: float(value) for name, value in progress.measured.items()}
            log.add("measured", step=k, time=round(progress.time, 4), values=values)
        if terminal is not None:
            terminal.tick(k, progress.time)

    result: Result[State] = solve(
        algorithm,
        state=state,
        iterations=settings.algorithm.iterations,
        monitors=_monitors(settings, scan),
        every=settings.monitor.every,
        time_limit=settings.algorithm.time_limit,
        distance_limit=settings.algorithm.distance_limit,
        callbacks=[follow],
    )
    return result, fidelity


def _monitors(settings: Settings, scan: Scan) -> list[Monitor]:
    monitors: list[Monitor] = []
    if settings.monitor.distance:
        monitors.append(Distance())
    if scan.truth is not None:
        monitors.append(SNR(torch.from_numpy(scan.truth)))
    if settings.monitor.cost:
        monitors.append(Cost())
    return monitors


def _tell(log: EventLog, caught: list[warnings.WarningMessage]) -> None:
    """Pass warnings on as events, once each."""
    for text in dict.fromkeys(str(w.message) for w in caught):
        log.add("note", text=f"warning: {text}")
    caught.clear()


def _write_history(path: Path, history: dict[str, Series]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["quantity", "step", "time", "value"])
        for name, series in history.items():
            for step, time, value in zip(series.step, series.time, series.value, strict=True):
                writer.writerow([name, int(step), f"{time:.6f}", repr(float(value))])


def _title(settings: Settings, result: Result[State]) -> str:
    s, a = settings.sampler, settings.algorithm
    if a.name == "admm":
        name = "PnP-ADMM"
    elif s.name in ("all", "fixed"):
        name = "PnP-ISTA" if a.momentum == "none" else "PnP-FISTA"
    else:
        name = "PnP-SGD" if a.momentum == "none" else "PnP-SGD, accelerated"
    views = "all views" if s.name == "all" else f"{s.batch} views a step ({s.name})"
    return f"{name}, {settings.denoiser.name}, {views}: {result.state.k} steps in {result.time:.1f} s"
