"""A recording that still grows: what its readers know of it from one look to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from plugstream.base.errors import InputError


class NotYetError(InputError):
    """A recording that still grows does not have this yet; look again later."""


@dataclass
class Growth:
    """How far a recording is.

    Arguments:
        expected: views that it will have, None if unknown.
        grace: seconds for which a missing or unusable view holds up those after it.
        closed: whether its writer has ended it. final: whether nothing more is awaited, for whatever reason.
        seen: views that are there, of which some may be unusable, and some more than are expected.
        settings: options that the recording itself has settled, such as which flat fields came before the views.
        memory: what readers keep between two looks, by name.
        remarks: what a person is told of the finished recording.
    """

    expected: int | None = None
    grace: float = 10.0
    closed: bool = False
    final: bool = False
    seen: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def wait(self, what: str) -> NoReturn:
        """Wait for something, unless nothing more is awaited: then it is missing."""
        raise InputError(what) if self.final else NotYetError(what)

    def uneven(self, lengths: dict[str, int]) -> list[str]:
        """What to say of a finished recording whose arrays have so many rows."""
        words = ", ".join(f"{count} rows of {name}" for name, count in lengths.items())
        uneven = self.closed and len(set(lengths.values())) > 1
        return [f"it has {words}: only the first {min(lengths.values())} are used"] if uneven else []

    def turn_to(self, views: int, what: str) -> int:
        """Note how many views there are, and wait for the first; the number of those that are expected."""
        self.seen = views
        if views == 0:
            self.wait(f"no {what} is there yet")
        return views if self.expected is None else min(views, self.expected)
