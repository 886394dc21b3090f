"""Ports of this machine for processes that must agree on one before the first of them listens, or listen twice."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that the system gives to nobody else for as long as the block lasts.

    A port that is only looked up is free until somebody takes it, and the other tests take many. This one stays bound,
    without listening, by a socket that lets others bind the same port by name, as ZeroMQ and torch do.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
