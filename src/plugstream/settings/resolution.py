"""Settings as a whole: the defaults, a TOML file and what was typed, checked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from plugstream.base.errors import InputError
from plugstream.base.registry import entries
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
from plugstream.settings.iteration import MomentumSettings
from plugstream.settings.sections import DenoiserSettings, Settings, section_of
from plugstream.settings.toml import SettingsFile
from plugstream.settings.values import check_name, is_own, leaves, needs_sigma, owner_of, parse_share

Assignment = tuple[str, str, Any]
Place = tuple[str, str]


@dataclass(frozen=True)
class Draft:
    """Checked settings to which more may be added where nobody gave any: advice, and the image's range.

    Attributes: file, that they come from, which says everything; trust, in that file; used, the sections from which
    something is built; typed, preset and from_file, the settings of each origin, as (section, key); tables, what is
    given of each section; shares, the text of those that are a share of the first image's range; settings, with the
    defaults, and with shares as if that range were 1.
    """

    file: SettingsFile | None
    trust: bool
    used: Collection[str]
    typed: frozenset[Place]
    preset: frozenset[Place]
    from_file: frozenset[Place]
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    shares: Mapping[Place, str] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def of(
        cls,
        file: SettingsFile | None = None,
        assignments: Iterable[Assignment] = (),
        *,
        presets: Iterable[Assignment] = (),
        instrument: str | None = None,
        trust: bool = False,
        used: Collection[str] | None = None,
    ) -> Draft:
        """Defaults, then the file, then the assignments (section, key, value); the arguments are those of `resolve`."""
        tables = {} if file is None else file.sections()
        in_file = {(section, key) for section, table in tables.items() for key in table}
        preset = [] if file is not None else list(presets)
        typed = list(assignments)
        for section, key, value in [*preset, *typed]:
            check_name(section, None if section in Settings.model_fields else key)
            tables.setdefault(section, {})[key] = value
        if instrument is not None:
            tables.setdefault("instrument", {}).setdefault("name", instrument)
        tables.setdefault("simulate", {})  # whose options are those of the instrument
        by_hand, by_command = (frozenset((s, key) for s, key, _ in origin) for origin in (typed, preset))
        origins = (by_hand, by_command - by_hand, frozenset(in_file - by_hand))
        draft = cls(file, trust, frozenset(Settings.model_fields if used is None else used), *origins)
        draft = draft._with_tables(tables)
        _refuse_momentum(draft.settings, by_hand)
        if ("sampler", "name") not in draft.preset:
            _refuse_seed(draft.settings, by_hand)
        return draft

    def add(self, presets: Iterable[Assignment]) -> Draft:
        """The draft with these settings, unless others are typed; those that the chosen entries lack are left out."""
        added = [(section, key, value) for section, key, value in presets if (section, key) not in self.typed]
        tables: dict[str, dict[str, Any]] = {}
        for section, key, value in added:
            tables.setdefault(section, dict(self.tables.get(section, {})))[key] = value
        places = {(section, key) for section, key, _ in added}
        shares = {place: text for place, text in self.shares.items() if place not in places}
        return replace(self, preset=self.preset | places, shares=shares)._with_tables(tables)

    def for_range(self, image_range: Callable[[], float] | None) -> Settings:
        """The settings, with a number for each share of the range of the first image, which is None if not known."""
        tables: dict[str, dict[str, Any]] = {}
        for (section, key), text in self.shares.items():
            number = parse_share(f"{section}.{key}", text, image_range, self.settings.denoiser.name)
            tables.setdefault(section, dict(self.tables[section]))[key] = number
        return self._with_tables(tables).settings

    def _with_tables(self, tables: dict[str, dict[str, Any]]) -> Draft:
        """The draft with these tables in place of its own; other sections are not checked again."""
        if not tables:
            return self
        path = None if self.file is None else self.file.path
        used = {section: table for section, table in tables.items() if section in self.used}
        allow_code(used, self.from_file, path, trust=self.trust)
        merged = {**self.tables, **tables}
        names = {section: table["name"] for section, table in merged.items() if "name" in table}
        shares = dict(self.shares)
        for section, table in tables.items():
            self._settle(section, table, names)
            shares |= _settle_values(section, table, names)
        values: dict[str, Any] = {**dict(self.settings), **tables}
        if "denoiser" in self.used and not tables.keys().isdisjoint(("algorithm", "denoiser")):
            values["algorithm"] = _with_sigma(merged.get("algorithm", {}), merged.get("denoiser", {}))
        settings = _validate(values)
        momentum = merged.get("momentum", {})
        if "name" not in momentum and (name := _preferred_momentum(settings)) != settings.momentum.name:
            settings = _validate({**dict(settings), "momentum": {**momentum, "name": name}})
        if "simulate" not in self.used:
            settings = settings.model_copy(update={"simulate": None})
        if "denoiser" in self.used:
            settings = apply_consent(settings, self.from_file, path, trust=self.trust)
        return replace(self, tables=merged, shares=shares, settings=settings)

    def _settle(self, section: str, table: dict[str, Any], names: dict[str, Any]) -> None:
        """Refuse keys that are no settings, and leave out options that nobody asked for, from the table itself.

        Arguments: names, of the entries that all sections choose, to which those of a selection are added.
        """
        kind = section_of(section)
        if issubclass(kind, Choice):
            self._settle_choice(section, kind, table, names)
        elif issubclass(kind, Selection):
            names[section] = table["names"] = self._settle_selection(section, kind, table)
        else:
            for key in table:
                check_name(section, key)

    def _settle_choice(
        self, section: str, choice: type[Choice], table: dict[str, Any], names: Mapping[str, Any]
    ) -> None:
        """Refuse an entry that does not exist, and options that it does not have unless they are for another entry."""
        owner, usual = owner_of(section), choice.model_fields["name"].default
        name, in_file = names.get(owner, usual), self._file_table(owner).get("name") or usual
        try:
            fields = section_class(choice, name).model_fields
        except InputError as error:
            raise InputError(f"setting {section}.name = {name!r} cannot be used: {error}") from None
        from_file = {key for s, key in self.from_file if s == section}
        overruled = (owner, "name") in self.typed and name != in_file
        if is_own(in_file) and (overruled or owner not in self.used):  # code that is not run: its options are unknown
            _drop(table, from_file - fields.keys())
        for key in table:
            check_name(section, key, name)
        preset = {key for s, key in self.preset if s == section}
        _drop(table, (preset | from_file if overruled else preset) - fields.keys())
        refuse_other(choice, name, table.keys())

    def _settle_selection(self, section: str, selection: type[Selection], table: dict[str, Any]) -> tuple[str, ...]:
        """The entries of a selection, from their list and from those that are switched on or off one by one.

        Options of an entry that the file chose and that was taken away again are left out, and so are those of code
        that is not run. Other options of entries that are not chosen are refused.
        """
        try:
            names = selected_names(selection, table)
        except InputError as error:
            raise InputError(f"setting {section}.names cannot be used: {error}") from None
        fields, switches = selected_fields(selection, names), switch_fields(selection, names)
        in_file, run = self._file_table(section), section in self.used
        listed = in_file.get("names")
        chosen = [*(listed if isinstance(listed, list) else ()), *in_file]
        gone = [name for name in chosen if isinstance(name, str) and (name not in names or (is_own(name) and not run))]
        prefixes = tuple(f"{label_of(name)}_" for name in gone)
        others = {key for s, key in self.from_file if s == section} - fields.keys() - switches.keys()
        _drop(table, [key for key in others if key.startswith(prefixes)])
        _drop(table, [key for key in table if key in switches or is_own(key)])
        for key in table:
            check_name(section, key, names)
        refuse_unselected(selection, names, table.keys())
        return names

    def _file_table(self, section: str) -> dict[str, Any]:
        return {} if self.file is None else self.file.sections().get(section, {})


def resolve(
    file: Path | SettingsFile | None = None,
    assignments: Iterable[Assignment] = (),
    *,
    presets: Iterable[Assignment] = (),
    instrument: str | None = None,
    trust: bool = False,
    used: Collection[str] | None = None,
) -> Settings:
    """Defaults, then the TOML file, then the assignments (section, key, value), checked as a whole.

    What the file asks to run or to unpickle is refused unless it is trusted (`plugstream.settings.consent`);
    assignments are what a person typed, and need no more consent.

    Code of one's own, FILE.py:NAME, is run to know its options. `used` are the sections from which something is going
    to be built, all if not given: what the others name is not run, and options that only it knows are left out. Where
    [simulate] is not among them it is checked and left out.

    `presets` are defaults of a command, for where there is no file, which says everything. Of them, and of the file
    where another entry was typed than it names, the options that the chosen entry does not have are left out; any
    other option that it does not have is refused.

    `instrument` is that of the scan, by name, and counts where nobody names another.

    A share of the range R of the first image, such as 1%, is refused here: only `Draft.for_range` knows R. The number
    does to the image what 0.01 does to one from 0 to 1: 0.01 R for denoisers whose sigma is a noise level, and
    0.01 sqrt(R) for those for which sigma^2 is a weight, such as TV, where D(c z, sqrt(c) sigma) = c D(z, sigma).

    The text "none" means nothing where a setting may be left out; TOML has no other word for it. Momentum that nobody
    names is Nesterov's where each step uses the same views; with a few views a step it is tapered, or bounded where a
    scan is followed, since Nesterov's gathers their noise more and more.
    """
    source = SettingsFile(file) if isinstance(file, Path) else file
    draft = Draft.of(source, assignments, presets=presets, instrument=instrument, trust=trust, used=used)
    return draft.for_range(None)


def _validate(values: Mapping[str, Any]) -> Settings:
    """Settings from tables, and from sections that are checked already."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        text = re.sub(r"0\.0{9,}\d+", lambda m: f"{float(m[0]):g}", first["msg"].removeprefix("Value error, "))
        reason = text[:1].lower() + text[1:]
        raise InputError(f"setting {where} = {first['input']!r} cannot be used: {reason}") from None


def _refuse_momentum(settings: Settings, typed: Collection[Place]) -> None:
    """Refuse a momentum that somebody typed and that the algorithm does not use.

    One of a file is accepted, as are other settings of a file that nothing is built from.
    """
    a, momentum = settings.algorithm, settings.momentum
    if ":" in a.name or "momentum" in a.entry.facts.get("uses", ()) or momentum.entry.facts.get("plain", False):
        return
    keys = [key for section, key in typed if section == "momentum" and key != "restart"]  # which has words of its own
    if keys:
        flag = "momentum" if "name" in keys else keys[0].replace("_", "-")
        able = [e.name for e in entries("algorithm").values() if "momentum" in e.facts.get("uses", ())]
        raise InputError(
            f"{a.name} has no momentum, so --{flag} would do nothing; leave it out, or use --algorithm "
            f"{', '.join(able[:-1])} or {able[-1]}"
        )


def _refuse_seed(settings: Settings, typed: Collection[Place]) -> None:
    """Refuse a seed that somebody typed where neither the sampler nor anything else that makes the image draws."""
    sampler, used = settings.sampler.entry, settings.algorithm.entry.facts.get("uses", ())
    gradient = settings.gradient.entry if "gradient" in used else None
    drawing = (
        sampler.facts.get("seeded", False) or "seed" in sampler.option_names,
        settings.algorithm.entry.facts.get("seeded", False) or ":" in settings.algorithm.name,
        gradient is not None and (gradient.facts.get("seeded", False) or ":" in gradient.name),
        settings.denoiser.equivariant == "random",
        settings.algorithm.search is not None,
        settings.run.uncertainty is not None,
    )
    if ("sampler", "seed") in typed and not any(drawing):
        able = [entry.name for entry in entries("sampler").values() if entry.facts.get("seeded", False)]
        raise InputError(
            f"--sampler {settings.sampler.name} draws nothing, so --seed would do nothing; leave it out, or use "
            f"--sampler {', '.join(able[:-1])} or {able[-1]}"
        )


def _with_sigma(algorithm: Mapping[str, Any], denoiser: Mapping[str, Any]) -> dict[str, Any]:
    """The table of the algorithm, with a sigma of 0 where nobody gives one and the denoiser does not use it."""
    others = denoiser.get("opening") is not None or denoiser.get("rivals") is not None
    if others or algorithm.get("sigma") is not None or algorithm.get("lam") is not None:
        return dict(algorithm)
    unused = not needs_sigma(denoiser.get("name", DenoiserSettings.model_fields["name"].default))
    return {**algorithm, "sigma": 0.0} if unused else dict(algorithm)


def _preferred_momentum(settings: Settings) -> str:
    """The momentum where nobody names one: for a scan that is followed, the algorithm's own, for few views a step."""

    def first_with(fact: str) -> str:
        return next(entry.name for entry in entries("momentum").values() if entry.facts.get(fact, False))

    if settings.scan.follow:
        return first_with("follows")
    facts, usual = settings.algorithm.entry.facts, str(MomentumSettings.model_fields["name"].default)
    if "prefers" in facts or "momentum" not in facts.get("uses", ()):
        return facts.get("prefers") or usual
    same_views = settings.sampler.entry.facts.get("draws") in ("all", "same")
    return usual if same_views else first_with("online")


def _settle_values(section: str, table: dict[str, Any], names: Mapping[str, Any]) -> dict[Place, str]:
    """Put None where a text says so, and numbers for shares, and refuse text that cannot be written down.

    Returns the texts of the shares.
    """
    denoiser = names.get("denoiser", DenoiserSettings.model_fields["name"].default)
    fields = {key: info for _, key, info in leaves([section], names)}
    shares = {}
    for key, value in table.items():
        if isinstance(value, bool) and key in fields and not re.search("bool|Any", str(fields[key].annotation)):
            raise InputError(f"setting {section}.{key} = {value} cannot be used: it is neither true nor false")
        if not isinstance(value, str):
            continue
        if value.rstrip().endswith("%") and key in fields and is_marked(fields[key], "share"):
            shares[section, key] = value
            table[key] = parse_share(f"{section}.{key}", value, lambda: 1.0, denoiser)
        if value == "none" and key in fields and type(None) in get_args(fields[key].annotation):
            table[key] = None
        if not is_unicode(value):
            raise InputError(
                f"setting {section}.{key} = {value!r} holds bytes that are not UTF-8, which cannot be written "
                "down; rename the file"
            )
    return shares


def _drop(table: dict[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        table.pop(key, None)
