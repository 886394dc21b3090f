"""See how a run is getting on, from another terminal: what its own terminal shows, made from its event log."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.errors import InputError
from plugstream.cli.common import say

if TYPE_CHECKING:
    from plugstream.runs.events import Event, Stop
    from plugstream.runs.replay import History
    from plugstream.runs.terminal import Terminal

# Seconds between two looks at the log, and at the run's process.
_EVERY, _ALIVE = 0.2, 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of a run, which may go on, have ended or been killed")


def run(parsed: argparse.Namespace) -> int:
    """Watch until the run ends, or tell how it ended; Ctrl-C ends the watching, never the run.

    The status is 0 where the run ended well or is left alone, 1 where it failed or was killed, and 3 where it stayed at
    its start.
    """
    from plugstream.base.display.screen import active_display
    from plugstream.runs.event_log import EventTail
    from plugstream.runs.liveness import is_running
    from plugstream.runs.replay import History
    from plugstream.runs.terminal import Terminal

    folder: Path = parsed.folder
    if not any((folder / name).is_file() for name in ("run.json", "events.jsonl")):
        raise InputError(f"{folder} is not the folder of a run: it has neither run.json nor events.jsonl")
    display = active_display()
    assert display is not None
    tail, history, terminal = EventTail(folder / "events.jsonl"), History(), Terminal(display)
    running: bool | None = None
    try:
        _catch_up(tail.read(), history, terminal)
        running, checked = is_running(folder, history), time.monotonic()
        _tell_state(folder, history, running)
        while history.stop is None or running:
            # Read after checking that the run goes on, so that its last events are not missed.
            for event in tail.read():
                history.add(event)
                terminal(event)
                if event is history.stop:
                    return _status(history.stop)
            if running is False:
                _tell_death(folder, history)
                return 1
            time.sleep(_EVERY)
            if time.monotonic() - checked > _ALIVE:
                running, checked = is_running(folder, history), time.monotonic()
    except KeyboardInterrupt:
        display.show(None)
        say(f"stopped watching {folder}" + ("; the run goes on" if running and history.stop is None else ""))
        return 0
    return _status(history.stop)


def _catch_up(events: list[Event], history: History, terminal: Terminal) -> None:
    """Read what happened before; show the notes of the run's last process, and where it is now."""
    from plugstream.runs.events import Start

    for event in events:
        history.add(event)
    last = max((n for n, event in enumerate(events) if isinstance(event, Start)), default=0)
    terminal.past = True
    for event in events if terminal.display.mode == "json" else events[last:]:
        terminal(event)
    terminal.past = False


def _tell_state(folder: Path, history: History, running: bool | None) -> None:
    """Say what there is to watch, unless the run has ended."""
    if running:
        say(f"watching {folder} at step {history.step}; Ctrl-C stops watching, not the run")
    elif running is None and history.stop is None:
        from plugstream.runs.describe import describe_state

        say(f"watching {folder}: {describe_state(running, history, history.step)}")


def _tell_death(folder: Path, history: History) -> None:
    from plugstream.base.display.screen import active_display
    from plugstream.runs.describe import describe_run, describe_state

    display = active_display()
    if display is not None:
        display.show(None)
    say(f"{folder}: {describe_state(False, history, history.step)}")
    say(f"go on with: {describe_run(folder)['go on with']}")


def _status(stop: Stop | None) -> int:
    if stop is None or stop.failed:
        return 1
    # As of `plugstream.solver.verdict.Outcome`, which imports torch.
    return 3 if stop.verdict in ("stuck at its start", "explains nothing") else 0
