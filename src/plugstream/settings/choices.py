"""Sections of the settings that choose an entry of the registry: common fields and the entry's own options, flat.

    [sampler]
    name = "uniform"   # the entry
    seed = 0           # common to all samplers
    batch = 10         # an option of this one

`name` distinguishes the sections of a kind, as in a discriminated union; its members are the entries of the registry,
those of other packages among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import create_model
from pydantic.fields import FieldInfo

from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Options, entries, find, refuse_foreign
from plugstream.settings.fields import Section, marks_of


class Choice(Section):
    """A section that chooses an entry: a subclass declares the kind, and what all its entries have in common.

    follows: the section whose entry it uses, where it has no name of its own to choose by.
    """

    kind: ClassVar[str]
    follows: ClassVar[str] = ""

    name: str

    @property
    def entry(self) -> Entry:
        """The entry that is chosen; for a file that was not run, the entry of the pattern."""
        return find(self.kind, self.name)

    @property
    def options(self) -> Options:
        """The entry's own options."""
        own = self.options_of(self.entry)
        return own(**{key: getattr(self, key) for key in own.model_fields})

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
        """A section with these values, of the entry called `name`; of the default one without."""
        if "name" in values:
            find(cls.kind, values["name"], trust=True)
        return cast(Self, _pick(cls, values))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the options of the entry


class Selection(Section):
    """A section that chooses entries: a subclass declares the kind, and what they have in common."""

    kind: ClassVar[str]

    names: tuple[str, ...]

    @classmethod
    def of(cls, **values: Any) -> Self:
        """A section with these values."""
        for name in values.get("names", ()):
            find(cls.kind, name, trust=True)
        return cast(Self, _pick_several(cls, values))

    def options_of(self, name: str) -> Options:
        """The options of an entry, which are its defaults where it is not chosen."""
        entry, label = find(self.kind, name), label_of(name)
        keys = entry.options.model_fields if name in self.names else ()
        return entry.check({key: getattr(self, f"{label}_{key}") for key in keys})

    def build(self, name: str, *parts: Any, **more: Any) -> Any:
        """What an entry builds from its options and `parts`, which depend on the kind."""
        entry = find(self.kind, name)
        entry.check_installed()
        return entry.make(name, self.options_of(name), *parts, **more)


def pick(section: type[Section], value: Any) -> Any:
    """The section that a table of settings describes, checked by its entry or entries; anything else as it is."""
    if isinstance(value, Mapping) and issubclass(section, Choice):
        return _pick(section, value)
    return _pick_several(section, value) if isinstance(value, Mapping) and issubclass(section, Selection) else value


def _pick(base: type[Choice], table: Mapping[str, Any]) -> Choice:
    """The section that a table of settings describes, checked by its entry."""
    name = table.get("name", base.model_fields["name"].default)
    model = section_class(base, name)
    refuse_other(base, name, table.keys())
    return model.model_validate(table)


def _pick_several(base: type[Selection], table: Mapping[str, Any]) -> Selection:
    """The section that a table of settings describes, checked by its entries."""
    names = selected_names(base, table)
    own = {key: one for key, one in table.items() if key not in switch_fields(base, names) and key != "names"}
    refuse_unselected(base, names, own.keys())
    section = _combine_several(base, _labelled_options(base, names)).model_validate({**own, "names": names})
    for name in names:
        section.options_of(name)
    return section


def section_class(base: type[Choice], name: Any) -> type[Choice]:
    """The class of a section with this entry: the common fields and its options."""
    if not isinstance(name, str):
        raise InputError(f"the name of a {base.kind} is text, such as FILE.py:NAME for one of your own")
    return _combine(base, base.options_of(find(base.kind, name)))


def refuse_other(base: type[Choice], name: str, keys: Iterable[str]) -> None:
    """Refuse an option of a section that the entry of this name does not have, with those that have it."""
    refuse_foreign(base.kind, name, keys, base.model_fields, lambda entry: base.options_of(entry).model_fields)


def fields_of(section: type[Section], chosen: Any = None) -> dict[str, FieldInfo]:
    """The fields of a section, the common ones first.

    Arguments: chosen, the name of its entry, or the names of several; the default ones if None.
    """
    if issubclass(section, Choice):
        name = section.model_fields["name"].default if chosen is None else chosen
        return _order_fields(section, section_class(section, name))
    if issubclass(section, Selection):
        names = section.model_fields["names"].default if chosen is None else chosen
        return {**selected_fields(section, names), **switch_fields(section, names)}
    return dict(section.model_fields)


def every_field(section: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """The fields that a section has with any entry of its kind."""
    if issubclass(section, Choice):
        yield from _join_fields(section, tuple(map(section.options_of, entries(section.kind).values())))
        return
    yield from section.model_fields.items()
    if issubclass(section, Selection):
        yield from switch_fields(section).items()
        for entry in entries(section.kind).values():
            if not entry.is_pattern:
                fields = selected_fields(section, [entry.name])
                yield from ((key, info) for key, info in fields.items() if key not in section.model_fields)


def is_marked(info: FieldInfo, mark: str) -> bool:
    """Whether a field has a mark, such as "switch", "file" or "consent"."""
    return bool(marks_of(info).get(mark))


def marked_fields(section: Choice, mark: str) -> list[str]:
    """The fields of a section that are marked."""
    return [key for key, info in type(section).model_fields.items() if is_marked(info, mark)]


def label_of(name: str) -> str:
    """The prefix of the options of an entry: its name, or NAME of FILE.py:NAME."""
    return name.rpartition(":")[2].replace("-", "_")


def selected_names(base: type[Selection], table: Mapping[str, Any]) -> tuple[str, ...]:
    """The entries that a table chooses, ours first and in our order.

    Arguments: table, with `names`, and with names of entries that are true or false.
    """
    listed = table.get("names", base.model_fields["names"].default)
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise InputError(f"the names of {base.kind}s are a list of texts, not {listed!r}")
    names, ours = dict.fromkeys(listed), entries(base.kind)
    for key, value in table.items():
        if key not in base.model_fields and (key in ours or ":" in key):
            if not isinstance(value, bool):
                raise InputError(f"the {base.kind} {key} is measured or not, true or false, and not {value!r}")
            names = {**names, key: None} if value else {name: None for name in names if name != key}
    labels: dict[str, str] = {}
    for name in names:
        find(base.kind, name)
    for name in names:
        if labels.setdefault(label_of(name), name) != name:
            raise InputError(f"{labels[label_of(name)]} and {name} have the same name; rename one of them")
    order = list(ours)
    return tuple(sorted(names, key=lambda name: order.index(name) if name in order else len(order)))


def selected_fields(base: type[Selection], names: Sequence[str]) -> dict[str, FieldInfo]:
    """The fields of a section with these entries, the common ones first."""
    return dict(_combine_several(base, _labelled_options(base, names)).model_fields)


def switch_fields(base: type[Selection], names: Sequence[str] = ()) -> dict[str, FieldInfo]:
    """What turns each entry on and off, and these besides: not fields of the section, but read like them."""
    usual = base.model_fields["names"].default
    chosen = {name: find(base.kind, name) for name in names}
    ours = {name: entry for name, entry in entries(base.kind).items() if not entry.is_pattern}
    extra: Any = {"on_off": True}
    return {
        name: FieldInfo(
            annotation=bool, default=name in usual, description=f"measure {entry.help}", json_schema_extra=extra
        )
        for name, entry in (ours | chosen).items()
    }


def refuse_unselected(base: type[Selection], names: Sequence[str], keys: Iterable[str]) -> None:
    """Refuse an option of an entry that is not chosen."""
    mine = selected_fields(base, names)
    for key in keys:
        if key in mine:
            continue
        owners = [e.name for e in entries(base.kind).values() if key.startswith(f"{label_of(e.name)}_")]
        advice = f"add --{base.kind} {owners[0]}, or leave it out" if owners else "leave it out"
        raise InputError(f"none of the {base.kind}s {', '.join(names)} has use for {key}; {advice}")


@cache
def _combine(base: type[Choice], options: type[Options]) -> type[Choice]:
    bases: Any = (base, options)
    return cast("type[Choice]", create_model(base.__name__, __base__=bases, __module__=base.__module__))


def _order_fields(base: type[Choice], section: type[Choice]) -> dict[str, FieldInfo]:
    fields = section.model_fields
    return {key: fields[key] for key in [*base.model_fields, *(key for key in fields if key not in base.model_fields)]}


@cache  # for the entries of the moment: each flag and each line of a file asks
def _join_fields(base: type[Choice], options: tuple[type[Options], ...]) -> tuple[tuple[str, FieldInfo], ...]:
    fields: dict[str, FieldInfo] = {}
    for one in options:
        for key, info in _order_fields(base, _combine(base, one)).items():
            fields.setdefault(key, info)
    return tuple(fields.items())


def _labelled_options(base: type[Selection], names: Sequence[str]) -> tuple[tuple[str, type[Options]], ...]:
    return tuple((label_of(name), find(base.kind, name).options) for name in names)


@cache
def _combine_several(base: type[Selection], options: tuple[tuple[str, type[Options]], ...]) -> type[Selection]:
    fields: dict[str, Any] = {}
    for label, model in options:
        for key, info in model.model_fields.items():
            own, marks = copy(info), marks_of(info)
            own.json_schema_extra = {**marks, "flag": f"{label}-{marks.get('flag', key)}"}
            fields[f"{label}_{key}"] = (info.annotation, own)
    combined = create_model(base.__name__, __base__=base, __module__=base.__module__, **fields)
    return cast("type[Selection]", combined)
