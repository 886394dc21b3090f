"""The errors and warnings a person can cause, each one line that says what was wrong and what to do."""

from __future__ import annotations

__all__ = ["InputError", "PlugstreamWarning"]


class InputError(ValueError):
    """Input that cannot be used, found before any work starts; its message is one line."""


class PlugstreamWarning(UserWarning):
    """Something that will probably not do what was meant, though it can be done."""
