"""Flags from settings: each setting of a command's sections is one, those of the chosen entries are shown.

Which entries are chosen is looked up in the arguments and in the file of settings before there is a parser, so that
`plugstream reconstruct --denoiser nlm --help` shows nlm's options and no other's. The flags of other entries are taken
too, but hidden, so that they can be refused with the entry that they belong to.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plugstream.base.errors import InputError
from plugstream.cli.common import TRUST_HELP
from plugstream.cli.values import read_path

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from plugstream.settings import SettingsFile

_ON_OFF = "true|false"
_LIKE_HELP = "reconstruct as this earlier run did, with the strength and the prior that its data chose"


def add_settings(
    parser: argparse.ArgumentParser,
    sections: Sequence[str],
    arguments: Sequence[str],
    presets: Iterable[tuple[str, str, Any]] = (),
) -> None:
    """Give a command the flags of these sections, --settings and --set, and --like where it makes the image of a scan.

    Arguments: arguments, of the command line, in which the chosen entries are looked up; presets, of the command.
    """
    if not sections:
        return
    from plugstream.settings import EarlierRun, SettingsFile, all_leaves, leaves, section_of
    from plugstream.settings.choices import Choice

    # Read once, for the names here and by the parser.
    sources: dict[str, Callable[[Path], SettingsFile]] = {"--settings": cache(SettingsFile)}
    either = parser.add_mutually_exclusive_group()
    told: dict[str, Any] = {"metavar": "FILE.toml", "help": "read settings from this file"}
    either.add_argument("--settings", type=lambda text: sources["--settings"](read_path(text)), **told)
    if "scan" in sections:
        sources["--like"] = cache(EarlierRun)
        told = {"metavar": "RUN", "dest": "settings", "help": _LIKE_HELP}
        either.add_argument("--like", type=lambda text: sources["--like"](read_path(text)), **told)
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting, by its full name"
    )
    if any(issubclass(section_of(section), Choice) for section in sections):
        parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    else:  # a file can name nothing that is run
        parser.set_defaults(trust=True)
    instrument = None if "simulate" in sections else _peek(arguments)
    typed = [source(Path(value)) for flag, source in sources.items() for value in values_of(arguments, flag)]
    names = _chosen_names(sections, arguments, typed[-1] if typed else None, presets, instrument)
    parser.set_defaults(names=names, instrument=instrument, sections=tuple(sections))
    groups = {section: parser.add_argument_group(f"[{section}]") for section in sections}
    visible, brought, preset = set(), [], {(section, key): value for section, key, value in presets}
    usual = {(section, key) for section, key, _ in leaves(sections, {})}
    for section, key, field in leaves(sections, names):
        visible.add((section, key))
        info = field.merge_field_infos(field, default=preset.get((section, key), field.default))
        flag = add_flag(parser, groups[section], section, key, info)
        brought += [flag] if flag and (section, key) not in usual else []
    parser.set_defaults(brought=brought)
    for section, key, info in all_leaves(sections):
        if (section, key) not in visible:
            add_flag(parser, groups[section], section, key, info, hidden=True)


def add_flag(
    parser: argparse.ArgumentParser, group: Any, section: str, key: str, info: FieldInfo, *, hidden: bool = False
) -> str | None:
    """Give a command the flag of one setting, unless it has it already, and return it, without dashes.

    Arguments: group to show it in; section, key and field of the setting; hidden, whether help leaves it out.
    """
    from plugstream.settings.fields import marks_of

    if ":" in key:  # of FILE.py:NAME
        return None
    extra = marks_of(info)
    flag = str(extra.get("flag", key)).replace("_", "-")
    flags = [f"--{flag}", *([f"--{extra['short']}"] if "short" in extra else [])]
    if any(one in parser._option_string_actions for one in flags):  # another section has the same
        flags = [f"--{section}-{key}".replace("_", "-")]
        if flags[0] in parser._option_string_actions:
            return None
    value: dict[str, Any] = {"action": "store_const", "const": "true"} if extra.get("switch") else {"metavar": "X"}
    if extra.get("on_off"):
        value = {"nargs": "?", "const": "true", "metavar": _ON_OFF}
    if extra.get("adds"):
        value = {"action": "append", "metavar": "NAME"}
    if "words" in extra:
        value = {"nargs": "+", "action": "extend", "metavar": extra["words"]}
    text = argparse.SUPPRESS if hidden else _help(section, key, info).replace("%", "%%")
    added = group.add_argument(*flags, dest=f"{section}.{key}", default=argparse.SUPPRESS, help=text, **value)
    added.values = _choices(section, key, info)  # not argparse's choices, which it checks itself
    return flags[0].removeprefix("--")


def _choices(section: str, key: str, info: FieldInfo) -> list[str]:
    """The names that a setting may have, where it is a choice."""
    from plugstream.base.registry import entries
    from plugstream.settings import Settings, section_of
    from plugstream.settings.choices import Choice

    kind = section_of(section) if section in Settings.model_fields and key == "name" else None
    if kind is not None and issubclass(kind, Choice):
        return list(entries(kind.kind))
    return [str(choice) for choice in get_args(info.annotation) if isinstance(choice, str)]


def _help(section: str, key: str, info: FieldInfo) -> str:
    """The description of a setting, its choices and its default."""
    choices = _choices(section, key, info)
    text = f"{info.description}: {', '.join(choices)}" if choices else f"{info.description}"
    says_so = info.default is None or isinstance(info.default, tuple) or "if not given" in text
    return text if says_so else f"{text} ({info.default})"


def _peek(arguments: Sequence[str]) -> str | None:
    """The instrument of the scan among the arguments, None where it is not there yet, or not known."""
    from plugstream.base.registry import entries
    from plugstream.scans.peek import peek_instrument

    name = next((name for word in arguments[1:] if (name := peek_instrument(word)) is not None), None)
    return name if name in entries("instrument") else None  # opening the scan explains what is wrong


def _chosen_names(
    sections: Sequence[str],
    arguments: Sequence[str],
    file: SettingsFile | None,
    presets: Iterable[tuple[str, str, Any]],
    instrument: str | None,
) -> dict[str, Any]:
    """The entries that the arguments, the file they name, the command or the scan choose, by section.

    Errors are left to the resolution of the settings, which reports them.
    """
    from plugstream.base.registry import entries, find
    from plugstream.base.trust import TRUST
    from plugstream.settings import section_of
    from plugstream.settings.choices import Choice, Selection, selected_names

    content: dict[str, dict[str, Any]] = {}
    if file is not None:
        with contextlib.suppress(InputError):
            content = file.sections()
    names: dict[str, Any] = {}
    trusted = TRUST in arguments
    for section in sections:
        kind, table, typed = section_of(section), content.get(section, {}), values_of(arguments, f"--{section}")
        with contextlib.suppress(TypeError, InputError):
            if issubclass(kind, Selection):
                typed += [name for name in entries(kind.kind) if f"--{name}" in arguments]
                listed = [*table, *table.get("names", ())] if trusted else []
                for name in [*typed, *(name for name in listed if ":" in name)]:
                    find(kind.kind, name, trust=True)
                names[section] = selected_names(kind, {**table, **dict.fromkeys(typed, True)})
            elif issubclass(kind, Choice) and not kind.follows:
                typed += _assigned_values(values_of(arguments, "--set"), f"{section}.name")
                others = [instrument] if section == "instrument" and instrument is not None else []
                others += [value for s, key, value in presets if (s, key) == (section, "name")]
                others += [table["name"]] if "name" in table else []
                if name := next(reversed([*others, *typed]), None):
                    names[section] = find(kind.kind, name, trust=bool(typed) or trusted).name
    return names


def join_values(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """The arguments with values joined to their flags, where argparse would misread them.

    It would take the scan in `plugstream reconstruct --cost scan.zarr` for the optional value of `--cost`, and a value
    with a minus sign, as of `--axes -y,x`, for a flag.
    """
    actions = parser._option_string_actions
    flags = {flag for flag, action in actions.items() if action.metavar == _ON_OFF}
    singles = {flag for flag, action in actions.items() if action.nargs is None}
    out: list[str] = []
    for word in arguments:
        negative = len(word) > 1 and word[0] == "-" and word[1] != "-" and word not in actions
        if negative and out and out[-1] in singles and "--" not in out:
            out[-1] += f"={word}"
            continue
        if out and out[-1] in flags and "--" not in out:
            is_value = word in ("true", "false")
            out[-1] += f"={word if is_value else 'true'}"
            if is_value:
                continue
        out.append(word)
    if out and out[-1] in flags:
        out[-1] += "=true"
    return out


def values_of(arguments: Sequence[str], flag: str) -> list[str]:
    """The values of a flag, each time that it is given."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return [
        after if word == flag else word.removeprefix(f"{flag}=")
        for word, after in pairs
        if word == flag or word.startswith(f"{flag}=")
    ]


def _assigned_values(assignments: Iterable[str], path: str) -> list[str]:
    pairs = (text.partition("=") for text in assignments)
    return [value.strip().strip("\"'") for name, _, value in pairs if name.strip() == path]
