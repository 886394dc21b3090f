"""What a person asks of a run while it goes on: by a signal, or by a small file in the folder `commands` of the run.

    {"action": "change", "sigma": 0.05, "step_size": null}

Whoever may write to the folder of a run may ask: the page, or a script. A file appears whole, and its name begins with
the time, so commands are taken in the order in which they were given. The run looks for them after a step, at most
every 0.2 s, and removes one when it is in the log. A process that goes on with a run first removes those that are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import load_json, open_plain, write_whole
from plugstream.settings.changes import check_sigma, check_step

FOLDER = "commands"
ACTIONS = ("change", "pause", "resume", "stop")
# Seconds between two looks at the folder, at least.
_EVERY = 0.2
# Bytes of a command, and how many are taken at a time: nobody types more.
_MOST_BYTES, _MOST = 4096, 64


@dataclass(frozen=True)
class Command:
    """What to do after the present step: "pause", "resume", "stop", or "change" of sigma, step_size or both."""

    action: str
    sigma: float | None = None
    step_size: float | str | None = None


def read_command(content: Any) -> Command:
    """The command in parsed JSON; anything else is refused with what is wrong."""
    if not isinstance(content, Mapping) or content.get("action") not in ACTIONS:
        raise InputError(f"a command is an object with an action, one of {', '.join(ACTIONS)}")
    if unknown := set(content) - {"action", "sigma", "step_size"}:
        raise InputError(f"a command has no {sorted(map(str, unknown))[0]!r}")
    sigma, size = content.get("sigma"), content.get("step_size")
    if content["action"] != "change":
        if sigma is not None or size is not None:
            raise InputError(f"{content['action']!r} takes neither sigma nor a step")
        return Command(content["action"])
    if sigma is None and size is None:
        raise InputError("a change needs a sigma, a step, or both")
    if sigma is not None and type(sigma) not in (int, float):
        raise InputError("sigma must be a number")
    if size is not None and (type(size) not in (int, float, str) or (isinstance(size, str) and len(size) > 64)):
        raise InputError("the step must be a number, or a multiple of 1/L such as 0.5/L")
    return Command("change", None if sigma is None else check_sigma(sigma), None if size is None else check_step(size))


def parse_command(text: bytes) -> Command:
    """The command of a text, whoever wrote it; bytes, depth and digits are limited."""
    try:
        content = load_json(text, most_bytes=_MOST_BYTES)
    except ValueError as error:
        raise InputError(f"it cannot be read: {error}") from error
    return read_command(content)


def send_command(folder: Path, command: Command) -> None:
    """Ask a run for something; it is done after the step that is being taken."""
    place = folder / FOLDER
    try:
        with contextlib.suppress(FileExistsError):
            place.mkdir()
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise InputError(f"{place} is not a folder; remove it")
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        write_whole(place / name, [json.dumps(asdict(command)).encode()])
    except OSError as error:
        raise StorageError(f"cannot write to {place}: {error.strerror or error}") from error


class Inbox:
    """The commands given to the run in a folder, which is looked at every few seconds."""

    def __init__(self, folder: Path, every: float | None = None) -> None:
        self.place = folder / FOLDER
        self.every = _EVERY if every is None else every
        self._looked = -float("inf")
        self._taken: set[Path] = set()

    def pending(self) -> str | None:
        """The last of pause, resume and stop that waits for the run, and stays there."""
        commands = [_read_file(path) for path in self._files()[-_MOST:]]
        actions = [command.action for command in commands if isinstance(command, Command)]
        return next((action for action in reversed(actions) if action != "change"), None)

    def take(self) -> list[tuple[Path, Command | InputError]]:
        """What came since, each with its file, to be removed when it is in the log; what is no command with why."""
        now = time.monotonic()
        if now - self._looked < self.every:
            return []
        self._looked = now
        new = [path for path in self._files() if path not in self._taken][:_MOST]
        self._taken.update(new)  # one that cannot be removed is not taken twice
        return [(path, _read_file(path)) for path in new]

    def remove(self, paths: Iterable[Path]) -> None:
        """Take commands away that are in the log."""
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink()

    def clear(self) -> None:
        """Remove what is left, and the folder."""
        self.remove(self._files())
        with contextlib.suppress(OSError):
            self.place.rmdir()

    def _files(self) -> list[Path]:
        try:
            if not stat.S_ISDIR(os.lstat(self.place).st_mode):  # a link could lead anywhere
                return []
            return sorted(self.place / name for name in os.listdir(self.place) if name.endswith(".json"))
        except OSError:  # which is there only once somebody asked for something
            return []


def _read_file(path: Path) -> Command | InputError:
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return parse_command(file.read(_MOST_BYTES + 1))
    except InputError as error:
        return error
    except (OSError, ValueError) as error:
        return InputError(f"it cannot be read: {error}")


class Requests:
    """Notes the first signal to stop; the second does what it would have done without this.

    An interrupt within a step could leave anything half done, so the run asks between steps whether there was one. It
    does so in the main thread only, to which signals come, and for signals that are not ignored, as SIGINT is by what a
    shell put into the background.

    Arguments: several, whether torchrun started this among other processes. After a Ctrl-C, which all of them get, it
    sends them a SIGTERM, and ends them after half a minute; so every signal is only noted.
    """

    def __init__(self, *, several: bool = False) -> None:
        self.came, self.several = False, several
        self._step = -1
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def due(self, step: int) -> bool:
        """Whether the run is to end after this step; once only where the last step is measured again."""
        stepped, self._step = self._step < step, step
        return self.came and stepped

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if not self.several:
            self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
