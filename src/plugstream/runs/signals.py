"""Ctrl-C and SIGTERM while a run iterates: they wait for the end of a step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Requests"]


class Requests:
    """Notes the first request to stop, and leaves the second one to do what it would have done without this.

    An interrupt in the middle of a step could leave anything half done, an import or a measurement; so the run asks
    between steps whether there was one. It does so for the main thread only, to which signals come, and for signals
    that are not ignored, as SIGINT is by what a shell put into the background.

    Arguments: several, whether torchrun started this among other processes. It sends them a SIGTERM after a Ctrl-C that
    they have heard by themselves, and ends them after half a minute; so no signal is left to do what it would.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def due(self, step: int) -> bool:
        """Whether the run is to end after this step; not twice at one, as where the last is measured again."""
        stepped, self._step = self._step < step, step
        return self.came and stepped

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if not self.several:
            self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
