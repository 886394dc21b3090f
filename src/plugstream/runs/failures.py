"""What ended a run, in one line with what to do."""

from __future__ import annotations

from pathlib import Path

import torch

from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.base.text import shell_quote
from plugstream.scans.store import open_scan

__all__ = ["explain_failure"]


def explain_failure(error: Exception, folder: Path, source: str | Path) -> InputError | None:
    """What ended a run, with what to do; None for what is not a person's to repair."""
    resume = f"plugstream resume {shell_quote(folder)}"
    again = f"go on with '{resume}'"
    if not (folder / "run.json").exists():
        return StorageError(
            f"the folder {folder} was removed or moved while the run went on; where it is now, 'plugstream resume' "
            "goes on from its last checkpoint, and otherwise start the run again"
        )
    if isinstance(error, DamagedError | OSError) and (gone := _why_unreadable(source)) is not None:
        moved = f"or if it was moved with '{resume} --scan PLACE'"
        return StorageError(f"the scan {source} cannot be read any more: {gone}; bring it back, and {again}, {moved}")
    if isinstance(error, DamagedError) and error.views:
        return DamagedError(f"{error}; to go on without it: {resume} --skip-damaged")
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"{error.filename or source}: {error.strerror or error}; fix that, and {again}")
    # torch raises RuntimeError for the CPU's memory, and a kind of it for a GPU's.
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return InputError(f"there is not enough memory; free some, or use a smaller batch, and {again}")
    return None


def _why_unreadable(source: str | Path) -> str | None:
    """Why a scan that was open cannot be opened any more: it was moved, its disk or network is gone; None if it can."""
    try:
        open_scan(source)
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a distant store raises
        return repr(error)
    return None
