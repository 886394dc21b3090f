"""Sections of the settings that choose an entry of the registry: common fields and the entry's own options, flat.

    [sampler]
    name = "uniform"   # the entry
    seed = 0           # common to all samplers
    batch = 10         # an option of this one

`name` tells the sections of a kind apart, as in a discriminated union; its members are the entries of the registry,
those of other packages among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic.fields import FieldInfo

from plugstream.errors import InputError
from plugstream.registry import Entry, Options, entries, find, refuse_foreign

__all__ = [
    "Choice",
    "every_field",
    "fields_of",
    "is_marked",
    "marked_fields",
    "pick",
    "refuse_other",
    "section_class",
    "validator",
]


class Choice(BaseModel):
    """A section that chooses an entry: a subclass says of which kind, and what all its entries have in common.

    follows: the section whose entry it goes by, where it has no name of its own to choose by.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: ClassVar[str]
    follows: ClassVar[str] = ""

    name: str

    @property
    def entry(self) -> Entry:
        """The entry that is chosen; a file's is that of the pattern."""
        return find(self.kind, self.name)

    @property
    def options(self) -> Options:
        """The entry's own options."""
        made = self.options_of(self.entry)
        return made(**{key: getattr(self, key) for key in made.model_fields})

    @classmethod
    def options_of(cls, entry: Entry) -> type[Options]:
        """Which options of an entry the section has."""
        return entry.options

    def build(self, *parts: Any, **more: Any) -> Any:
        """What the entry builds from its options and `parts`, which depend on the kind."""
        self.entry.check_installed()
        return self.entry.make(self.name, self.options, *parts, **more)

    @classmethod
    def of(cls, **values: Any) -> Self:
        """A section with these values, of the entry that `name` says; the default one without."""
        if "name" in values:
            find(cls.kind, values["name"], trust=True)
        made: Self = pick(cls, values)
        return made

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the options of the entry


def pick(base: type[Choice], value: Any) -> Any:
    """The section that a table of settings describes, checked by its entry; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    name = value.get("name", base.model_fields["name"].default)
    model = section_class(base, name)
    refuse_other(base, name, value)
    return model.model_validate(value)


def refuse_other(base: type[Choice], name: str, keys: Iterable[str]) -> None:
    """Refuse an option of a section that the entry of this name does not have, with those that have it."""
    refuse_foreign(base.kind, name, keys, base.model_fields, lambda entry: base.options_of(entry).model_fields)


def validator(base: type[Choice]) -> BeforeValidator:
    """For the field of a model: tables become the section of the entry that they name."""
    return BeforeValidator(lambda value: pick(base, value))


def section_class(base: type[Choice], name: Any) -> type[Choice]:
    """The model of a section with this entry: the common fields, and its options behind them."""
    if not isinstance(name, str):
        raise InputError(f"the name of a {base.kind} is text")
    return _combine(base, base.options_of(find(base.kind, name)))


@cache
def _combine(base: type[Choice], options: type[Options]) -> type[Choice]:
    bases: Any = (base, options)
    made: Any = create_model(base.__name__, __base__=bases, __module__=base.__module__)
    return cast("type[Choice]", made)


def fields_of(base: type[Choice], name: str) -> dict[str, FieldInfo]:
    """The fields of a section with this entry, the common ones first."""
    return _order_fields(base, section_class(base, name))


def _order_fields(base: type[Choice], section: type[Choice]) -> dict[str, FieldInfo]:
    fields = section.model_fields
    return {key: fields[key] for key in [*base.model_fields, *(key for key in fields if key not in base.model_fields)]}


def every_field(base: type[Choice]) -> tuple[tuple[str, FieldInfo], ...]:
    """The fields that any entry of the kind has, each name once."""
    return _join_fields(base, tuple(base.options_of(entry) for entry in entries(base.kind).values()))


@cache  # for the entries of the moment: each flag and each line of a file asks
def _join_fields(base: type[Choice], options: tuple[type[Options], ...]) -> tuple[tuple[str, FieldInfo], ...]:
    fields: dict[str, FieldInfo] = {}
    for one in options:
        for key, info in _order_fields(base, _combine(base, one)).items():
            fields.setdefault(key, info)
    return tuple(fields.items())


def is_marked(info: FieldInfo, mark: str) -> bool:
    """Whether a field is declared with json_schema_extra={mark: True}, such as "switch", "file" or "consent"."""
    return isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get(mark))


def marked_fields(section: Choice, mark: str) -> list[str]:
    """The fields of a section that are marked."""
    return [key for key, info in type(section).model_fields.items() if is_marked(info, mark)]
