"""The errors and warnings that users see, each one line that says what is wrong and what to do.

There are three kinds: the request is wrong (`InputError`), the disk or the network failed (`StorageError`), and data is
damaged (`DamagedError`). The last two are subclasses of the first, so catching that catches every one-line error;
`is_refusal` says whether the request itself was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from plugstream.base.text import one_line


class InputError(ValueError):
    """The request is wrong, which is noticed before any work starts.

    Its message is one line whatever it quotes: control characters are escaped, and very long values are shortened.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class StorageError(InputError):
    """The disk or the network failed: the same request may succeed once that is repaired."""


class DamagedError(InputError):
    """Data is not as it was written.

    Arguments: where, the scan or array it is in; views, what is wrong with each unreadable view. If it is not a scan,
    there are no views, and the first argument is the whole message.
    """

    def __init__(self, where: str, views: Mapping[int, str] | None = None) -> None:
        if views:
            first = min(views)
            where = f"view {first} of {where} cannot be read: {views[first]}"
        super().__init__(where)
        self.views = dict(views or {})


class PlugstreamWarning(UserWarning):
    """Something that is possible but will probably not do what was meant."""


def is_refusal(error: BaseException) -> bool:
    """Whether an error means that the request is wrong, not that the disk, the memory or the data failed."""
    failures = (StorageError, DamagedError, OSError, MemoryError, RuntimeError)
    return isinstance(error, InputError) and not any(isinstance(e, failures) for e in (error, error.__cause__))
