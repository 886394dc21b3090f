"""Settings one by one: which there are, and how one is read from the command line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from plugstream.base.errors import InputError
from plugstream.base.registry import find
from plugstream.base.text import parse_value
from plugstream.settings.choices import (
    Choice,
    Selection,
    every_field,
    every_option,
    fields_of,
    selected_fields,
    switch_fields,
)
from plugstream.settings.fields import LARGE, SMALL
from plugstream.settings.sections import Settings

__all__ = [
    "all_leaves",
    "choice_of",
    "is_weight",
    "leaves",
    "needs_sigma",
    "parse_assignment",
    "parse_setting",
    "parse_share",
    "parse_sigma",
    "parse_typed",
    "section_of",
    "selection_of",
    "share_of_range",
]


@cache  # asked for each setting several times
def section_of(section: str) -> type[BaseModel]:
    """The model of a section, of a choice what all its entries have in common."""
    made: Any = Settings.model_fields[section].annotation
    if get_origin(made) in (Union, UnionType):  # a section that may be left out
        made = next(one for one in get_args(made) if one is not type(None))
    if get_origin(made) is Annotated:
        made = get_args(made)[0]
    assert isinstance(made, type)
    assert issubclass(made, BaseModel)
    return made


def choice_of(section: str) -> type[Choice] | None:
    """The model of a section that chooses an entry, None for others."""
    made = section_of(section)
    return made if issubclass(made, Choice) else None


def selection_of(section: str) -> type[Selection] | None:
    """The model of a section that chooses several entries, None for others."""
    made = section_of(section)
    return made if issubclass(made, Selection) else None


def leaves(sections: Iterable[str], names: Mapping[str, Any] | None = None) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of every setting in these sections.

    Arguments: names, of the entries that choice sections have, several where they choose several; the default ones
    where they are not said.
    """
    for section in sections:
        kind, choice, selection = section_of(section), choice_of(section), selection_of(section)
        fields: Mapping[str, FieldInfo] = kind.model_fields
        if choice is not None:
            name = (names or {}).get(choice.follows or section, kind.model_fields["name"].default)
            fields = fields_of(choice, name)
        if selection is not None:
            chosen = (names or {}).get(section, kind.model_fields["names"].default)
            fields = {**selected_fields(selection, chosen), **switch_fields(selection, chosen)}
        for key, info in fields.items():
            if not info.exclude:
                yield section, key, info


def all_leaves(sections: Iterable[str]) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of every setting that any entry has in these sections."""
    for section in sections:
        choice, selection = choice_of(section), selection_of(section)
        fields: Iterable[tuple[str, FieldInfo]] = section_of(section).model_fields.items()
        if choice is not None:
            fields = every_field(choice)
        if selection is not None:
            fields = [*fields, *switch_fields(selection).items(), *every_option(selection)]
        for key, info in fields:
            if not info.exclude:
                yield section, key, info


def parse_assignment(text: str, names: Mapping[str, Any] | None = None) -> tuple[str, str, Any]:
    """Read `section.key=value`; the value is TOML where it can be, and else it is text."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot:
        raise InputError(f"cannot read the setting {text!r}; write section.key=value, such as sampler.batch=10")
    read = parse_value(value.strip())  # with quotes, as TOML has text, or without
    if not isinstance(read, str) and section in Settings.model_fields:
        read = parse_setting(section, key, value.strip(), names)
    return section, key, read


def parse_setting(section: str, key: str, text: str, names: Mapping[str, Any] | None = None) -> Any:
    """A setting from the command line; one that is a text, such as a file's name, stays as it was typed."""
    return parse_typed(_annotation(section, key, names), text)


def parse_typed(kind: Any, text: str) -> Any:
    """A value of this type from the command line; one that is a text stays as it was typed."""
    return text if _is_text(kind) else parse_value(text)


def _is_text(kind: Any) -> bool:
    """Whether values of a type are written as text: a path, a word of an enumeration, or nothing besides."""
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return all(_is_text(one) for one in get_args(kind) if one is not type(None))
    return isinstance(kind, type) and issubclass(kind, str | PurePath | Enum)


def _annotation(section: str, key: str, names: Mapping[str, Any] | None) -> Any:
    """The type of a setting: of the entry that is chosen, and else of the first that has it."""
    fields = itertools.chain(leaves([section], names), all_leaves([section]))
    return next((info.annotation for _, k, info in fields if k == key), None)


def parse_sigma(text: str, *, zero: bool) -> float:
    """A noise level that is no setting, such as 15/255; `zero` says whether it may be 0."""
    value = parse_value(text)
    if type(value) not in (int, float) or not (SMALL <= value <= LARGE or (zero and value == 0)):
        raise InputError(f"sigma must be a number {'>= 0' if zero else '> 0'} such as 15/255, not {text}")
    return float(value)


def parse_share(name: str, text: str, image_range: Callable[[], float] | None, denoiser: str) -> float:
    """The number that a share of the first image's range is."""
    try:
        part = float(text.rstrip().removesuffix("%"))
    except ValueError:
        raise InputError(f"setting {name} = {text!r} is no share of the image's range; write 1%, say") from None
    if not 0 <= part <= 100:
        raise InputError(f"setting {name} = {text!r} must be from 0% to 100% of the image's range")
    if image_range is None:
        raise InputError(
            f"setting {name} = {text!r} is a share of the first image's range, which is not known here; write a number"
        )
    return share_of_range(part / 100, image_range(), denoiser)


def share_of_range(share: float, image_range: float, denoiser: str) -> float:
    """The sigma that does to an image of this range what `share` does to one from 0 to 1."""
    return share * (math.sqrt(image_range) if is_weight(denoiser) else image_range)


def is_weight(denoiser: str) -> bool:
    """Whether sigma^2 is the weight of a prior for this denoiser, D = prox_{sigma^2 r}, rather than sigma a noise."""
    return find("denoiser", denoiser).facts.get("sigma") == "weight"


def needs_sigma(denoiser: str) -> bool:
    """Whether a denoiser goes by its sigma at all; bounds, say, do not."""
    return find("denoiser", denoiser).facts.get("sigma") != "unused"
