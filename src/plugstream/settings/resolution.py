"""Settings as a whole: the defaults, a TOML file and what was typed, checked; and settings as TOML again."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.base.registry import OWN, entries, pattern_of
from plugstream.base.text import is_unicode
from plugstream.settings.choices import (
    Choice,
    Selection,
    is_marked,
    label_of,
    refuse_other,
    refuse_unselected,
    section_class,
    selected_fields,
    selected_names,
    switch_fields,
)
from plugstream.settings.consent import allow_code, apply_consent
from plugstream.settings.sections import DenoiserSettings, Settings, used_sections
from plugstream.settings.values import (
    all_leaves,
    choice_of,
    leaves,
    needs_sigma,
    parse_share,
    section_of,
    selection_of,
)
from plugstream.settings.without_effect import refuse_momentum, refuse_seed

__all__ = ["Draft", "SettingsFile", "resolve", "to_toml"]


class SettingsFile:
    """A file of settings that is read when it is first asked for, and never again: a pipe says what it has only once.

    Arguments: path of the file, or of a pipe, such as the /dev/fd/63 of `--settings <(...)`.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def sections(self) -> dict[str, dict[str, Any]]:
        """Its sections and their keys, as the file has them; `InputError` where it cannot be read, each time."""
        if isinstance(self._outcome, InputError):
            raise self._outcome
        return deepcopy(self._outcome)

    @cached_property
    def _outcome(self) -> dict[str, dict[str, Any]] | InputError:
        try:
            return _read(self.path)
        except InputError as error:  # what is left of a pipe that has too much may look like settings
            return error


@dataclass(frozen=True)
class Draft:
    """What somebody says of the settings, read once: `resolve` makes settings of it, with what a command adds.

    Attributes: as the arguments of `resolve` below.
    """

    file: SettingsFile | None = None
    assignments: tuple[tuple[str, str, Any], ...] = ()
    instrument: str | None = None
    trust: bool = False
    used: Collection[str] | None = None

    @cached_property
    def unadvised(self) -> Settings:
        """The settings without anything added, as if the image had values from 0 to 1."""
        return self.resolve(image_range=lambda: 1.0)

    def for_instrument(self, name: str) -> Draft:
        """The draft for scans of an instrument."""
        return self if self.instrument == name else replace(self, instrument=name)

    def resolve(
        self, presets: Iterable[tuple[str, str, Any]] = (), image_range: Callable[[], float] | None = None
    ) -> Settings:
        """The settings with these defaults where nobody says otherwise."""
        known: Any = {"presets": presets, "instrument": self.instrument, "image_range": image_range}
        return resolve(self.file, self.assignments, trust=self.trust, used=self.used, **known)


def resolve(
    file: Path | SettingsFile | None = None,
    assignments: Iterable[tuple[str, str, Any]] = (),
    *,
    presets: Iterable[tuple[str, str, Any]] = (),
    instrument: str | None = None,
    trust: bool = False,
    used: Collection[str] | None = None,
    image_range: Callable[[], float] | None = None,
) -> Settings:
    """Defaults, then the TOML file, then the assignments (section, key, value), checked as a whole.

    What the file asks to run or to unpickle is refused unless it is trusted (`plugstream.settings.consent`);
    assignments are what a person typed, and need no more consent.

    Code of one's own, FILE.py:NAME, is run to know its options. `used` are the sections from which something is going
    to be built, all if not given: what the others name is not run, and options that only it knows are left out. Where
    [simulate] is not among them it is checked, since files of before have it, and left out.

    `presets` are defaults of a command, for where there is no file, which says everything. Of them, and of the file
    where another entry was typed than it names, the options that the chosen entry does not have are left out; any
    other option that it does not have is refused.

    `instrument` is that of the scan, by name, and counts where nobody says another.

    `image_range` gives the range R of the first image, and is asked where a setting is a share of it, such as 1%; the
    settings then have the number that does to the image what 0.01 does to one from 0 to 1: 0.01 R of denoisers whose
    sigma is a noise level, and 0.01 sqrt(R) of those for which sigma^2 is a weight, such as TV, since
    D(c z, sqrt(c) sigma) = c D(z, sigma) there.

    The text "none" means nothing where a setting may be left out; TOML has no other word for it. Momentum that nobody
    names is Nesterov's where each step uses the same views, all of them say; of a few views it is tapered, or bounded
    where a scan is followed, since Nesterov's gathers their noise the longer the more.
    """
    read = SettingsFile(file) if isinstance(file, Path) else file
    path = None if read is None else read.path
    values = {} if read is None else read.sections()
    ours = set(Settings.model_fields) if used is None else set(used)
    from_file = {(section, key) for section, table in values.items() for key in table}
    before = {section: table.get("name") for section, table in values.items()}
    listed = {section: [*_texts(table.get("names")), *table] for section, table in values.items()}
    preset, typed = set(), set()
    for section, key, value in presets if file is None else ():
        values.setdefault(section, {})[key] = value
        preset.add((section, key))
    for section, key, value in assignments:
        _check_name(section, None if section in Settings.model_fields else key)
        values.setdefault(section, {})[key] = value
        from_file.discard((section, key))
        preset.discard((section, key))
        typed.add((section, key))
    if instrument is not None:
        values.setdefault("instrument", {}).setdefault("name", instrument)
    names: dict[str, Any] = {section: table["name"] for section, table in values.items() if "name" in table}
    allow_code({section: table for section, table in values.items() if section in ours}, from_file, path, trust=trust)
    for section, table in values.items():
        if (choice := choice_of(section)) is not None:
            owner, default = choice.follows or section, choice.model_fields["name"].default
            earlier = before.get(owner) or default
            overruled = (owner, "name") in typed and names[owner] != earlier
            free = {key for s, key in (preset | from_file if overruled else preset) if s == section}
            # Where the file names code that is not run, nobody knows what options that has.
            unread = _is_own(earlier) and (overruled or owner not in ours)
            name = names.get(owner, default)
            _settle_choice(section, choice, name, table, free, {k for s, k in from_file if s == section and unread})
        elif (selection := selection_of(section)) is not None:
            theirs = {key for s, key in from_file if s == section}
            earlier = listed.get(section, ())
            names[section] = _settle_selection(section, selection, table, theirs, earlier, run=section in ours)
        else:
            for key in table:
                _check_name(section, key)
        _settle_values(section, table, names, image_range)
    if "denoiser" in ours:
        _settle_sigma(values)
    try:
        settings = Settings.model_validate(values)
        preferred = _preferred_momentum(settings)
        if preferred is not None and "name" not in values.get("momentum", {}):
            values.setdefault("momentum", {})["name"] = preferred
            settings = Settings.model_validate(values)
        refuse_momentum(settings, typed)
        if ("sampler", "name") not in preset:
            refuse_seed(settings, typed)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        text = first["msg"].removeprefix("Value error, ")
        reason = text[:1].lower() + text[1:]
        raise InputError(f"setting {where} = {first['input']!r} cannot be used: {reason}") from None
    if "simulate" not in ours:
        settings = settings.model_copy(update={"simulate": None})
    return apply_consent(settings, from_file, path, trust=trust) if "denoiser" in ours else settings


def _settle_sigma(values: dict[str, dict[str, Any]]) -> None:
    """Where nobody says how strongly to denoise, sigma is 0 for a denoiser that does not use it."""
    denoiser, algorithm = values.get("denoiser", {}), values.setdefault("algorithm", {})
    others = denoiser.get("opening") is not None or denoiser.get("rivals") is not None
    if others or algorithm.get("sigma") is not None or algorithm.get("lam") is not None:
        return
    if not needs_sigma(denoiser.get("name", DenoiserSettings.model_fields["name"].default)):
        algorithm["sigma"] = 0.0


def _preferred_momentum(settings: Settings) -> str | None:
    """The momentum where nobody says which: of a scan that is followed, the algorithm's own, that of few views a step.

    None for the usual one, where each step uses the same views.
    """

    def meant(fact: str) -> str:
        return next(entry.name for entry in entries("momentum").values() if entry.facts.get(fact, False))

    if settings.scan.follow:
        return meant("follows")
    facts = settings.algorithm.entry.facts
    own: str | None = facts.get("prefers")
    if own is not None or "momentum" not in facts.get("uses", ()):
        return own
    return None if settings.sampler.entry.facts.get("draws") in ("all", "same") else meant("online")


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """The sections of a file of settings, not checked yet but for their names."""
    try:
        content = tomllib.loads(read_small(file))
    except OSError as error:
        raise InputError(f"cannot read the settings {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, lists thousands deep
        raise InputError(f"{file} is not TOML: {error}") from error
    for section, table in content.items():
        _check_name(section)
        if not isinstance(table, Mapping):
            raise InputError(f"{section!r} in {file} must be a section: write [{section}] and its keys below")
    values = {section: dict(table) for section, table in content.items()}
    for key in ("method", "eps"):  # of the Born model, which [compute] had before there were instruments
        if key in (compute := values.get("compute", {})):
            values.setdefault("instrument", {}).setdefault(key, compute.pop(key))
    return values


def _settle_values(
    section: str, table: dict[str, Any], names: Mapping[str, Any], image_range: Callable[[], float] | None
) -> None:
    """Put nothing where a text says so, and numbers for shares, and refuse text that cannot be written down."""
    usual = DenoiserSettings.model_fields["name"].default
    for key, value in table.items():
        if isinstance(value, str) and value.rstrip().endswith("%") and _may_be_share(section, key, names):
            table[key] = parse_share(f"{section}.{key}", value, image_range, names.get("denoiser", usual))
        if value == "none" and _may_be_none(section, key, names):
            table[key] = None
        if isinstance(value, str) and not is_unicode(value):
            raise InputError(
                f"setting {section}.{key} = {value!r} holds bytes that are not UTF-8, which cannot be written "
                "down; rename the file"
            )


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _is_own(name: Any) -> bool:
    return isinstance(name, str) and pattern_of(name) == OWN


def _settle_choice(
    section: str, choice: type[Choice], name: Any, table: dict[str, Any], free: set[str], unread: Collection[str] = ()
) -> None:
    """Refuse an entry that is not there and options that it does not have, but leave out those that nobody asked for.

    Arguments: name of the entry; table, of the section, changed in place; free, its keys that are defaults or meant for
    another entry; unread, its keys that are options of code which is not run, unless they belong to the entry too.
    """
    try:
        mine = section_class(choice, name).model_fields
    except InputError as error:
        raise InputError(f"setting {section}.name = {name!r} cannot be used: {error}") from None
    for key in set(unread) - set(mine):
        table.pop(key)
    for key in table:
        _check_name(section, key, name)
    for key in free - set(mine):
        table.pop(key, None)
    refuse_other(choice, name, table)


def _settle_selection(
    section: str,
    selection: type[Selection],
    table: dict[str, Any],
    theirs: Collection[str],
    earlier: Collection[str],
    *,
    run: bool,
) -> tuple[str, ...]:
    """The names of entries put together, from their list and from those that are switched on or off one by one.

    Options of an entry that the file chose and that was taken away again are left out, and so are those of code that is
    not run. Other options of entries that are not chosen are refused.

    Arguments: table, of the section, changed in place; theirs, its keys that are the file's; earlier, what the file
    chose, whatever else may be among that; run, whether code of one's own is run.
    """
    try:
        names = selected_names(selection, table)
    except InputError as error:
        raise InputError(f"setting {section}.names cannot be used: {error}") from None
    mine, switches = selected_fields(selection, names), switch_fields(selection, names)
    away = [f"{label_of(name)}_" for name in earlier if name not in names or (_is_own(name) and not run)]
    for key in set(theirs) - set(mine) - set(switches):
        if key.startswith(tuple(away)):
            table.pop(key, None)
    for key in [key for key in table if key in switches or _is_own(key)]:
        table.pop(key)
    for key in table:
        _check_name(section, key, names)
    refuse_unselected(selection, names, table)
    table["names"] = names
    return names


def _may_be_share(section: str, key: str, names: Mapping[str, Any]) -> bool:
    return any(is_marked(info, "share") for _, k, info in leaves([section], names) if k == key)


def _may_be_none(section: str, key: str, names: Mapping[str, Any]) -> bool:
    return any(type(None) in get_args(info.annotation) for _, k, info in leaves([section], names) if k == key)


def to_toml(settings: Settings, header: str = "") -> str:
    """The settings that are used, as TOML that `resolve` reads back to the same; nothing is written as "none".

    Consent to unpickle is a person's, and not written.
    """
    lines = [f"# {line}" for line in header.splitlines()]
    content = used_sections(settings)
    names = {section: table[key] for section, table in content.items() for key in ("name", "names") if key in table}
    for section, table in content.items():
        lines += ["", f"[{section}]"]
        fields = [(key, info) for _, key, info in leaves([section], names) if key in table]
        lines += [f"{key} = {_toml_value(table[key])}" for key, info in fields if not is_marked(info, "consent")]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for one character that JSON leaves as it is and TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _check_name(section: str, key: str | None = None, name: Any = None) -> None:
    """Refuse a name that is not a setting, with the nearest one that is.

    Arguments: section; key, None to check the section alone; name, of the entry or entries chosen in it, if any.
    """
    if section in Settings.model_fields:
        common = section_of(section).model_fields
        if key is None or (key in common and not common[key].exclude):
            return
        if any(k == key for _, k, _ in all_leaves([section])):
            return
    known = {f"{s}.{k}" for s, k, _ in all_leaves(Settings.model_fields)}
    if _is_own(name) or (isinstance(name, tuple) and any(map(_is_own, name))):
        choice = choice_of(section)
        owner = section if choice is None else choice.follows or section
        known |= {f"{s}.{k}" for s, k, _ in leaves([section], {owner: name})}
    given = section if key is None else f"{section}.{key}"
    if given in known:
        return
    choices = [*known, *Settings.model_fields] if key is None else [*known]
    elsewhere = [one for one in choices if one.partition(".")[2] == key]  # the key may be right and the section wrong
    offered = sorted(elsewhere or choices)
    near = [name for name in offered if name.startswith(given)]  # of which more was meant
    near += difflib.get_close_matches(given, offered, n=1, cutoff=0.1 if elsewhere else 0.5)
    near = [f"{key}.name"] if f"{key}.name" in known else near
    hint = f"; did you mean {near[0]!r}?" if near else f"; sections are {', '.join(Settings.model_fields)}"
    raise InputError(f"there is no setting {given!r}{hint}")
