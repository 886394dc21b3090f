"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object]) -> None:
    """Return when this is true, which another thread or process makes so."""
    end = time.monotonic() + 150
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)
