"""Long work says how far it is; whoever wants to know listens, and nobody does by default.

    with listening(print):
        fidelity.lipschitz_max  # prints "bounding L of every view", 12, 60 and so on

What takes long calls `report`, which costs next to nothing while nobody listens. A listener belongs to the context that
it was set in (a thread, a task), so that two runs beside each other do not hear one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Listener", "Work", "enclosing_work", "listening", "report", "within"]

Listener = Callable[[str, int, int], object]
"""Called with what is being done, how much of it is done, and how much there is; 0 and 0 where that is not known."""

Work = tuple[str, int, int]
"""What a listener is called with."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_enclosing: ContextVar[tuple[Work, ...]] = ContextVar("enclosing", default=())


def report(what: str, done: int = 0, total: int = 0) -> None:
    """Say what is being done, such as "reading the scan", and how far it is: 12 of 60 views, say.

    What stands behind a comma is a detail, "training, loss 0.12": with another it is the same work still.
    """
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def within(what: str, done: int = 0, total: int = 0) -> Iterator[None]:
    """Say what all that is reported within is a part of: "evaluation", 4, 12, say, of many reconstructions."""
    token = _enclosing.set((*_enclosing.get(), (what, done, total)))
    try:
        yield
    finally:
        _enclosing.reset(token)


def enclosing_work() -> tuple[Work, ...]:
    """What the work that reports now is a part of, the whole first; for a listener to ask."""
    return _enclosing.get()


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Have `listener` called by every `report` within; None leaves it to whoever listens already."""
    if listener is None:
        yield
        return
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
