"""What the fields of all sections share: how one is declared, limits, and the class of a section."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

# Nothing that is measured or computed here comes near these; beyond them squares and products leave the range of double
# precision, and counters that of 64 bits.
LARGE, SMALL = 1e100, 1e-100  # of images and what they are compared with
MOST_COUNT = 10**12

Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Part = Annotated[float, Field(ge=SMALL, le=1)]
Positive = Annotated[float, Field(gt=0)]
Value = Annotated[float, Field(ge=-LARGE, le=LARGE)]


class Section(BaseModel):
    """A section of the settings: no field but its own, no infinity, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def setting(default: Any, description: str, **marks: Any) -> Any:
    """A field of a section.

    Arguments: default; description, which is its help; marks, of which there are: flag, its name on the command line
    where its own would be unclear or taken; short, a second, shorter flag; switch, for one that is off unless its flag,
    which takes no value, is there; adds, for one whose flag adds to a list; share, for one in the image's unit, which
    may be written as a share of the first image's range, such as 1%.
    """
    return Field(default, description=description, json_schema_extra=marks or None)


def marks_of(info: FieldInfo) -> dict[str, Any]:
    """The marks of a field, or of an option that was declared with `json_schema_extra`."""
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def split_words(text: str | None) -> tuple[str, ...]:
    """The words of a list with commas, in lower case and each once."""
    return tuple(dict.fromkeys(word.strip().lower() for word in (text or "").split(",") if word.strip()))
