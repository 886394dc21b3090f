"""What several commands share: settings from the arguments, a simulated scan, a reconstruction and its last lines."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from plugstream.base.capacity import MAX_READ
from plugstream.base.errors import InputError
from plugstream.base.text import printable, shell_join
from plugstream.cli.values import read_path, size

if TYPE_CHECKING:
    from plugstream.base.processes import Group
    from plugstream.instruments.base import Experiment, Instrument
    from plugstream.models.base import Model
    from plugstream.runs.plan import Plan
    from plugstream.runs.terminal import Viewers
    from plugstream.runs.volume import VolumeResult
    from plugstream.scans import Scan, StoredScan
    from plugstream.settings import Draft, Settings
    from plugstream.solver.result import Result

TRUST_HELP = "run, unpickle and fetch what the files name: only where you trust whoever wrote them"
OUTSIDE_HELP = "read what an HDF5 file names outside its folder, and any filter: only where you trust whoever wrote it"
ALGORITHM = ("algorithm", "momentum", "gradient", "sampler", "denoiser", "loss", "instrument")
RECONSTRUCTION = (*ALGORITHM, "monitor", "compute", "run")


def scan_place(text: str) -> str | Path:
    """Where a scan lies: an address such as s3://bucket/scan.zarr as it is, and else a path."""
    return text if "://" in text else read_path(text)


def add_max_read(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that reads files of other programs; `main` obeys it."""
    parser.add_argument(
        MAX_READ, type=size, metavar="SIZE", help="bytes that a few of a file or message may unpack to (256MB)"
    )


def add_instrument(parser: argparse.ArgumentParser) -> None:
    """Give a command that reads a scan, and has no settings, the flag for an instrument of one's own."""
    parser.add_argument(
        "--instrument", metavar="FILE.py:NAME", help="the class of the scan's instrument, if it is in a file of yours"
    )


def load_instrument(parsed: argparse.Namespace) -> type[Instrument] | None:
    """The instrument that was typed, if one was; scans of it can be opened from now on."""
    if parsed.instrument is None:
        return None
    from plugstream.instruments.base import find_instrument

    return find_instrument(parsed.instrument, trust=True)


def open_argument(parsed: argparse.Namespace) -> StoredScan:
    """The scan of the arguments; an instrument that was typed must be the scan's."""
    from plugstream.scans.store import open_scan

    typed = load_instrument(parsed)
    scan = open_scan(parsed.scan)
    if typed is not None and typed.name != scan.instrument.name:
        raise InputError(f"the scan is of {scan.instrument.name}, but {typed.name} was asked for; leave it out")
    return scan


def check_new(path: Path) -> None:
    """Refuse to write what exists already, or into a folder that does not."""
    if path.exists():
        raise InputError(f"{path} exists already; remove it or choose another name")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")


def settings_of(parsed: argparse.Namespace, presets: Sequence[tuple[str, str, Any]] = ()) -> Settings:
    """The settings that the arguments ask for; presets are what the command changes of the defaults."""
    return draft_of(parsed, presets).for_range(None)


def draft_of(parsed: argparse.Namespace, presets: Sequence[tuple[str, str, Any]] = ()) -> Draft:
    """The settings that the arguments ask for, to which a scan may add some."""
    from plugstream.base.registry import find
    from plugstream.settings import Draft, parse_assignment, parse_setting

    typed: list[tuple[str, str, Any]] = []
    for place, value in vars(parsed).items():
        section, dot, key = place.partition(".")
        if key == "names":  # of monitors, each added to those that are usual
            for name in value:
                find(section, name, trust=True)
                typed.append((section, name, True))
        elif dot:
            typed.append((section, key, parse_setting(section, key, value, parsed.names)))
    typed += [parse_assignment(text, parsed.names) for text in parsed.set]
    origin: dict[str, Any] = {"instrument": parsed.instrument, "trust": parsed.trust, "used": parsed.sections}
    return Draft.of(parsed.settings, typed, presets=presets, **origin)


def trust_flag(settings: Settings, source: str | Path | None = None) -> str:
    """The --trust that a command needs to read these settings, and the place of its scan, from a file; else nothing."""
    from plugstream.base.trust import TRUST
    from plugstream.settings.consent import needs_trust

    return f" {TRUST}" if needs_trust(settings) or isinstance(source, str) else ""


def make_experiment(settings: Settings) -> Experiment:
    """The experiment to simulate; an impossible one is refused."""
    from plugstream.instruments.base import Experiment, find_instrument
    from plugstream.scans.checks import check_columns

    kind = find_instrument(settings.instrument.name)
    assert settings.simulate is not None, "a command that simulates has the section"
    experiment = kind.simulate_views(settings.simulate.options)
    if not isinstance(experiment, Experiment):
        raise InputError(f"simulate_views of {kind.name} must return an Experiment, not {type(experiment).__name__}")
    columns = check_columns(experiment.instrument, experiment.columns, experiment.n_views)
    experiment.instrument.check_plausible()
    experiment.instrument.check_plausible(columns)
    return replace(experiment, columns=columns)


def simulate_scan(
    settings: Settings, path: Path | None, *, name: Path | None = None, experiment: Experiment | None = None
) -> tuple[Scan, Model]:
    """Simulate a scan, write it if there is a path, and return it with the model that measured it.

    Arguments: name, what the path is called in messages; experiment, that of `make_experiment` if it was made already.
    """
    import math

    import numpy as np

    from plugstream.base.capacity import check_disk
    from plugstream.models.base import as_model
    from plugstream.runs.checks import prepare_device
    from plugstream.scans import save_scan
    from plugstream.scans.simulation import measure

    assert settings.simulate is not None, "a command that simulates has the section"
    if path is not None:
        check_new(path)
    experiment = experiment or make_experiment(settings)
    instrument, views = experiment.instrument, experiment.n_views
    contents = f"{views} views of {instrument.view_text}"
    if path is not None:
        size = np.dtype(instrument.data.dtypes[0]).itemsize
        check_disk(path, size * views * math.prod(instrument.data_shape), f"a scan of {contents}")
    instrument.warn_if_implausible()
    instrument.warn_if_implausible(experiment.columns)
    device, dtype = prepare_device(settings.compute)
    options = settings.instrument.options
    instrument.check_model(experiment.columns, views, options, device=device, dtype=dtype)
    model = as_model(instrument.build_model(experiment.columns, views, options, device=device, dtype=dtype))
    say(f"simulating {contents}" + (f" of {experiment.summary}" if experiment.summary else ""))
    scan = measure(experiment, model, settings.simulate.options)
    if path is not None:
        save_scan(scan, path)
        say(f"wrote {name or path}")
    return scan, model


def reconstruct_scan(
    scan: Scan,
    planned: Plan,
    folder: Path,
    command: str,
    source: str | Path,
    *,
    go_on: bool = False,
    viewers: Viewers | None = None,
    before: Callable[[], Sequence[object]] = list,
) -> int:
    """Reconstruct into the folder, say what came out and the next command, and return the exit status.

    Arguments: before, gives the words of a command that is needed before the run can go on, if any.
    """
    from plugstream.base.display.screen import active_display
    from plugstream.runs.describe import resume_words
    from plugstream.runs.run import reconstruct
    from plugstream.runs.terminal import Terminal
    from plugstream.solver.result import Stop
    from plugstream.solver.verdict import Outcome

    display = active_display()
    terminal = None if display is None else Terminal(display)
    origin: dict[str, Any] = {"command": command, "source": source, "go_on": go_on, "viewers": viewers}
    try:
        result: Result[Any] | VolumeResult
        if planned.partition is None:
            result = reconstruct(scan, planned, folder, terminal=terminal, **origin)
        else:
            from plugstream.runs.volume import reconstruct_volume

            result = reconstruct_volume(cast("StoredScan", scan), planned, folder, terminal=terminal, **origin)
        _describe_result(result, folder, planned.settings.run.report_formats)
    except KeyboardInterrupt:  # before its first step or after its last: between steps the run only notes it
        if not (folder / "run.json").exists():  # nothing to go on with
            raise
        say("interrupted")
        say_next(*(before() or resume_words(folder, planned.settings, more=False)))
        return 130
    status = {Outcome.DIVERGED: 1, Outcome.STUCK: 3, Outcome.UNEXPLAINED: 3}.get(result.verdict.outcome, 0)
    stopped = result.reason is Stop.INTERRUPTED
    if planned.parts.group.leads:  # the others may read before it writes
        cut = result.reason is Stop.TIME and result.verdict.outcome is not Outcome.ARRIVED and not status
        further = stopped or cut or result.verdict.outcome is Outcome.MOVING
        resume = resume_words(folder, planned.settings) if further else []
        say_next(*(before() or resume or ["info" if status else "serve", folder]))
    return 130 if stopped else status


def _describe_result(result: Result[Any] | VolumeResult, folder: Path, formats: tuple[str, ...]) -> None:
    for series in result.history.values():
        if series.quantity.needs_truth and (series.step == result.image_step).any():
            value = float(series.value[series.step == result.image_step][-1])
            say(f"{series.quantity.text(value)} at step {result.image_step}")
    shown = f"report.{'html' if 'html' in formats else formats[0]} shows them, " if formats else ""
    say(f"results are in {folder}: {shown}settings.toml repeats the run")


@contextlib.contextmanager
def join_processes() -> Iterator[Group | None]:
    """The processes that torchrun started along with this one; None where it did not."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield None
        return
    from plugstream.base.processes import process_group

    with process_group() as group:
        yield group


def say_next(*words: object) -> None:
    """End a command that has written something: the next sensible command, in one line, unless a program reads it."""
    from plugstream.base.display.screen import active_display

    display = active_display()
    if display is None or display.mode != "json":
        say(f"next: {shell_join(['plugstream', *words])}")


def say_reconstruct(scan: str | Path, instrument: str) -> None:
    """The next command after one that has written a scan; an instrument of one's own is named in it."""
    say_next("reconstruct", scan, *(["--instrument", instrument] if ":" in instrument else []))


def say(text: str) -> None:
    """Print a line for the person at the terminal, whatever characters its names hold."""
    from plugstream.base.display.screen import active_display

    display = active_display()
    if display is None:
        print(printable(text), file=sys.stderr, flush=True)
    else:
        display.line(text)
