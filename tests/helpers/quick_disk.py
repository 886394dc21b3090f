"""Files that are not waited for until they are on the disk, which takes milliseconds each: a third of a small run.

Tests kill processes and never the machine: what a killed process has written is there for the next one in any case.
Under `make test-slow` everything is waited for.
"""

from __future__ import annotations

import os
from typing import Any


def _check(file: Any) -> None:
    """Refuse what `os.fsync` refuses, and wait for nothing."""
    os.fstat(file if isinstance(file, int) else file.fileno())


def wait_for_no_disk() -> None:
    """From now on nothing in this process, nor in its forks, waits for the disk."""
    if os.environ.get("PLUGSTREAM_THOROUGH") != "1":
        os.fsync = _check
