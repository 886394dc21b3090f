"""Long work reports its progress to a listener; by default there is none.

    with listening(print):
        fidelity.lipschitz_max  # prints "bounding L of every view", 12, 60 and so on

Long work calls `report`, which costs next to nothing without a listener. A listener belongs to the context in which it
was set (a thread, a task), so two concurrent runs do not hear each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], object]
"""Called with the name of the work, the amount done and the total; 0 and 0 if these are unknown."""

Work = tuple[str, int, int]
"""The arguments of a listener."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_enclosing: ContextVar[tuple[Work, ...]] = ContextVar("enclosing", default=())


def report(what: str, done: int = 0, total: int = 0) -> None:
    """Report the name of the work, such as "reading the scan", and its progress, such as 12 of 60 views.

    Text after a comma is a detail, as in "training, loss 0.12"; a different detail is still the same work.
    """
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def within(what: str, done: int = 0, total: int = 0) -> Iterator[None]:
    """Name the larger work that reports inside the block belong to, such as "evaluation", 4, 12."""
    token = _enclosing.set((*_enclosing.get(), (what, done, total)))
    try:
        yield
    finally:
        _enclosing.reset(token)


def enclosing_work() -> tuple[Work, ...]:
    """The larger work that the current report belongs to, the outermost first; for listeners."""
    return _enclosing.get()


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Call `listener` for every `report` inside the block; None keeps the current listener."""
    if listener is None:
        yield
        return
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
