"""The errors and warnings a person can cause, each one line that says what was wrong and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from plugstream.text import one_line

__all__ = ["DamagedError", "InputError", "PlugstreamWarning"]


class InputError(ValueError):
    """Input that cannot be used, found before any work starts.

    Its message is one line whatever it quotes: control characters are escaped, and values of thousands of characters
    shortened.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class DamagedError(InputError):
    """Views of a scan that cannot be read: `views` has what is wrong with each."""

    def __init__(self, where: str, views: Mapping[int, str]) -> None:
        first = min(views)
        super().__init__(f"view {first} of {where} cannot be read: {views[first]}")
        self.views = dict(views)


class PlugstreamWarning(UserWarning):
    """Something that will probably not do what was meant, though it can be done."""
