"""Sections of the settings that choose several entries of the registry: their names, and the options of each.

    [monitor]
    names = ["distance", "snr", "psnr"]   # the entries
    every = 10                            # common to all
    psnr_peak = 255.0                     # the option peak of psnr
    ssim = true                           # instead of a word in names, when it is read: add this one, or with false
                                          # leave it out

On the command line `--monitor NAME` adds one, and so does `--NAME` for those that are installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any, ClassVar, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic.fields import FieldInfo

from plugstream.errors import InputError
from plugstream.registry import Entry, Options, entries, find

__all__ = [
    "Selection",
    "every_option",
    "label_of",
    "pick_several",
    "refuse_unselected",
    "selected_fields",
    "selected_names",
    "selection_validator",
    "switch_fields",
]


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
    made = _combine(base, tuple((label_of(name), find(base.kind, name).options) for name in names))
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
    return dict(_combine(base, options).model_fields)


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
def _combine(base: type[Selection], options: tuple[tuple[str, type[Options]], ...]) -> type[Selection]:
    fields: dict[str, Any] = {}
    for label, model in options:
        for key, info in model.model_fields.items():
            own = copy(info)
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            own.json_schema_extra = {**extra, "flag": f"{label}-{extra.get('flag', key)}"}
            fields[f"{label}_{key}"] = (info.annotation, own)
    made: Any = create_model(base.__name__, __base__=base, __module__=base.__module__, **fields)
    return cast("type[Selection]", made)
