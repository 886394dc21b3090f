"""Sections of the settings that choose an entry of the registry: common fields and the entry's own options, flat.

    [sampler]
    name = "uniform"   # the entry
    seed = 0           # common to all samplers
    batch = 10         # an option of this one

`name` tells the sections of a kind apart, as in a discriminated union; its members are the entries of the registry,
those of other packages among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic.fields import FieldInfo

from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Options, entries, find, refuse_foreign

__all__ = [
    "Choice",
    "Selection",
    "every_field",
    "every_option",
    "fields_of",
    "is_marked",
    "label_of",
    "marked_fields",
    "pick",
    "pick_several",
    "refuse_other",
    "refuse_unselected",
    "section_class",
    "selected_fields",
    "selected_names",
    "selection_validator",
    "switch_fields",
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


class Selection(BaseModel):
    """A section that chooses entries: a subclass says of which kind, and what they have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: ClassVar[str]

    names: tuple[str, ...]

    @classmethod
    def of(cls, **values: Any) -> Self:
        """A section with these values."""
        for name in values.get("names", ()):
            find(cls.kind, name, trust=True)
        made: Self = pick_several(cls, values)
        return made

    def options_of(self, name: str) -> Options:
        """The options of an entry, which are its defaults where it is not among those that are chosen."""
        entry, label = find(self.kind, name), label_of(name)
        keys = entry.options.model_fields if name in self.names else ()
        return entry.check({key: getattr(self, f"{label}_{key}") for key in keys})

    def build(self, name: str, *parts: Any, **more: Any) -> Any:
        """What an entry builds from its options and `parts`, which depend on the kind."""
        entry = find(self.kind, name)
        entry.check_installed()
        return entry.make(name, self.options_of(name), *parts, **more)


def label_of(name: str) -> str:
    """What the options of an entry begin with: its name, of FILE.py:NAME the name in the file."""
    return name.rpartition(":")[2].replace("-", "_")


def pick_several(base: type[Selection], value: Any) -> Any:
    """The section that a table of settings describes, checked by its entries; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    names = selected_names(base, value)
    table = {key: one for key, one in value.items() if key not in switch_fields(base, names) and key != "names"}
    refuse_unselected(base, names, table)
    made = _combine_several(base, tuple((label_of(name), find(base.kind, name).options) for name in names))
    section = made.model_validate({**table, "names": names})
    for name in names:
        section.options_of(name)
    return section


def selection_validator(base: type[Selection]) -> BeforeValidator:
    """For the field of a model: tables become the section of the entries that they name."""
    return BeforeValidator(lambda value: pick_several(base, value))


def selected_names(base: type[Selection], table: Mapping[str, Any]) -> tuple[str, ...]:
    """The entries that a table chooses, ours first and in our order.

    Arguments: table, with `names`, and with names of entries that are true or false.
    """
    listed = table.get("names", base.model_fields["names"].default)
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise InputError(f"the names of {base.kind}s are a list of texts, not {listed!r}")
    names = dict.fromkeys(listed)
    known = entries(base.kind)
    for key, value in table.items():
        if key not in base.model_fields and (key in known or ":" in key):
            if not isinstance(value, bool):
                raise InputError(f"the {base.kind} {key} is measured or not, true or false, and not {value!r}")
            names = {**names, key: None} if value else {name: None for name in names if name != key}
    for name in names:
        find(base.kind, name)
    labels: dict[str, str] = {}
    for name in names:
        if labels.setdefault(label_of(name), name) != name:
            raise InputError(f"{labels[label_of(name)]} and {name} have the same name; rename one of them")
    order = list(known)
    return tuple(sorted(names, key=lambda name: order.index(name) if name in order else len(order)))


def selected_fields(base: type[Selection], names: Sequence[str]) -> dict[str, FieldInfo]:
    """The fields of a section with these entries, the common ones first."""
    options = tuple((label_of(name), find(base.kind, name).options) for name in names)
    return dict(_combine_several(base, options).model_fields)


def switch_fields(base: type[Selection], names: Sequence[str] = ()) -> dict[str, FieldInfo]:
    """For each entry, and for these besides, what turns it on and off: no field of the section, but read like one."""
    usual = base.model_fields["names"].default
    chosen = {name: find(base.kind, name) for name in names}
    known = {name: entry for name, entry in entries(base.kind).items() if not entry.is_pattern}
    return {name: _switch(entry, name in usual) for name, entry in (known | chosen).items()}


def _switch(entry: Entry, usual: bool) -> FieldInfo:
    about = f"measure {entry.help}"
    return FieldInfo(annotation=bool, default=usual, description=about, json_schema_extra={"on_off": True})


def every_option(base: type[Selection]) -> Iterator[tuple[str, FieldInfo]]:
    """The options that any entry of the kind has, with its name before them."""
    for entry in entries(base.kind).values():
        if not entry.is_pattern:
            for key, info in selected_fields(base, [entry.name]).items():
                if key not in base.model_fields:
                    yield key, info


def refuse_unselected(base: type[Selection], names: Sequence[str], table: Mapping[str, Any]) -> None:
    """Refuse an option of an entry that is not chosen."""
    mine = selected_fields(base, names)
    for key in table:
        if key in mine:
            continue
        owners = [e.name for e in entries(base.kind).values() if key.startswith(f"{label_of(e.name)}_")]
        advice = f"add --{base.kind} {owners[0]}, or leave it out" if owners else "leave it out"
        raise InputError(f"none of the {base.kind}s {', '.join(names)} has use for {key}; {advice}")


@cache
def _combine_several(base: type[Selection], options: tuple[tuple[str, type[Options]], ...]) -> type[Selection]:
    fields: dict[str, Any] = {}
    for label, model in options:
        for key, info in model.model_fields.items():
            own = copy(info)
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            own.json_schema_extra = {**extra, "flag": f"{label}-{extra.get('flag', key)}"}
            fields[f"{label}_{key}"] = (info.annotation, own)
    made: Any = create_model(base.__name__, __base__=base, __module__=base.__module__, **fields)
    return cast("type[Selection]", made)
