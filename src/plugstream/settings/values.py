"""Single settings: which there are, and how one is read from the command line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from pathlib import PurePath
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from plugstream.base.errors import InputError
from plugstream.base.registry import OWN, find, pattern_of
from plugstream.base.text import parse_value
from plugstream.settings.choices import every_field, fields_of
from plugstream.settings.fields import LARGE, SMALL
from plugstream.settings.sections import Settings, section_of


def owner_of(section: str) -> str:
    """The section that names the entry of this one: itself, unless it follows another."""
    return getattr(section_of(section), "follows", "") or section


def leaves(sections: Iterable[str], names: Mapping[str, Any] | None = None) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of every setting in these sections.

    Arguments: names, of the entries that sections choose, several where they choose several; else the default ones.
    """
    for section in sections:
        fields = fields_of(section_of(section), (names or {}).get(owner_of(section)))
        yield from ((section, key, info) for key, info in fields.items() if not info.exclude)


def all_leaves(sections: Iterable[str]) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of every setting that any entry has in these sections."""
    for section in sections:
        yield from ((section, key, info) for key, info in every_field(section_of(section)) if not info.exclude)


def check_name(section: str, key: str | None = None, name: Any = None) -> None:
    """Refuse a name that is not a setting, with the nearest one that is.

    Arguments: section; key, None to check the section alone; name, of the entry or entries chosen in it, if any.
    """
    if section in Settings.model_fields:
        common = section_of(section).model_fields
        if key is None or (key in common and not common[key].exclude):
            return
        if any(k == key for _, k, _ in all_leaves([section])):
            return
    names = {f"{s}.{k}" for s, k, _ in all_leaves(Settings.model_fields)}
    if is_own(name) or (isinstance(name, tuple) and any(map(is_own, name))):
        names |= {f"{s}.{k}" for s, k, _ in leaves([section], {owner_of(section): name})}
    asked = section if key is None else f"{section}.{key}"
    if asked in names:
        return
    choices = [*names, *Settings.model_fields] if key is None else [*names]
    elsewhere = [one for one in choices if one.partition(".")[2] == key]  # the key may be right and the section wrong
    offered = sorted(elsewhere or choices)
    near = [name for name in offered if name.startswith(asked)]  # which is only its beginning
    near += difflib.get_close_matches(asked, offered, n=1, cutoff=0.1 if elsewhere else 0.5)
    near = [f"{key}.name"] if f"{key}.name" in names else near
    hint = f"; did you mean {near[0]!r}?" if near else f"; sections are {', '.join(Settings.model_fields)}"
    raise InputError(f"there is no setting {asked!r}{hint}")


def is_own(name: Any) -> bool:
    """Whether a name is that of code of one's own, FILE.py:NAME."""
    return isinstance(name, str) and pattern_of(name) == OWN


def parse_assignment(text: str, names: Mapping[str, Any] | None = None) -> tuple[str, str, Any]:
    """Read `section.key=value`; the value is TOML where it can be, and else it is text."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot:
        raise InputError(f"cannot read the setting {text!r}; write section.key=value, such as sampler.batch=10")
    parsed = parse_value(value.strip())  # with quotes, as TOML has text, or without
    if not isinstance(parsed, str) and section in Settings.model_fields:
        parsed = parse_setting(section, key, value.strip(), names)
    return section, key, parsed


def parse_setting(section: str, key: str, text: str, names: Mapping[str, Any] | None = None) -> Any:
    """A setting from the command line; one that is a text, such as a file's name, stays as it was typed.

    Its type is that of the entry that is chosen, and else of the first that has it.
    """
    fields = chain(leaves([section], names), all_leaves([section]))
    return parse_typed(next((info.annotation for _, k, info in fields if k == key), None), text)


def parse_typed(kind: Any, text: str) -> Any:
    """A value of this type from the command line; one that is a text stays as it was typed."""
    return text if _is_text(kind) else parse_value(text)


def _is_text(kind: Any) -> bool:
    """Whether all values of a type are text: paths, words of an enumeration."""
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return all(_is_text(one) for one in get_args(kind) if one is not type(None))
    return isinstance(kind, type) and issubclass(kind, str | PurePath | Enum)


def parse_sigma(text: str, *, zero: bool) -> float:
    """A noise level that is no setting, such as 15/255; `zero` says whether it may be 0."""
    value = parse_value(text)
    if type(value) not in (int, float) or not (SMALL <= value <= LARGE or (zero and value == 0)):
        raise InputError(f"sigma must be a number {'>= 0' if zero else '> 0'} such as 15/255, not {text}")
    return float(value)


def parse_share(name: str, text: str, image_range: Callable[[], float] | None, denoiser: str) -> float:
    """The number for a share of the first image's range."""
    try:
        part = float(text.rstrip().removesuffix("%"))
    except ValueError:
        raise InputError(f"setting {name} = {text!r} is not a share of the image's range; write 1%, say") from None
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
    """Whether a denoiser uses its sigma at all; bounds, say, do not."""
    return find("denoiser", denoiser).facts.get("sigma") != "unused"
