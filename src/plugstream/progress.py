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

__all__ = ["Listener", "listening", "report"]

Listener = Callable[[str, int, int], object]
"""Called with what is being done, how much of it is done, and how much there is; 0 and 0 where that is not known."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(what: str, done: int = 0, total: int = 0) -> None:
    """Say what is being done, such as "reading the scan", and how far it is: 12 of 60 views, say."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


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
