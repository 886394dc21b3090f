"""What the fields of all sections share: how a flag is named, limits, and the class of a section."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = [
    "LARGE",
    "MOST_COUNT",
    "MOST_SEED",
    "MOST_THREADS",
    "SHARE",
    "SMALL",
    "SWITCH",
    "Section",
    "flag",
    "short_flag",
    "split_words",
]


def flag(name: str) -> dict[str, Any]:
    """The flag of a setting whose own name would be unclear or taken on the command line."""
    return {"flag": name}


def short_flag(name: str) -> dict[str, Any]:
    """A shorter flag besides the setting's own name, which is the library's."""
    return {"short": name}


SWITCH: dict[str, Any] = {"switch": True}
"""A setting that is off unless its flag is there; the flag takes no value."""

SHARE: dict[str, Any] = {"share": True}
"""A setting in the image's unit, which may be written as a share of the first image's range, such as 1%."""


# Nothing that is measured or computed here comes near these; beyond them squares and products leave the range of double
# precision, and counters that of 64 bits.
LARGE, SMALL = 1e100, 1e-100  # of images and what they are compared with
MOST_COUNT = 10**12
MOST_SEED = 2**63 - 1
MOST_THREADS = 1024


class Section(BaseModel):
    """A section of the settings: no field but its own, no infinity, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def split_words(text: str) -> tuple[str, ...]:
    """The words of a list with commas, in lower case and each once."""
    return tuple(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
