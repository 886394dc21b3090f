"""Files of settings, in TOML: how they are read, before they are checked, and written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.base.text import shell_quote
from plugstream.settings.choices import is_marked
from plugstream.settings.fields import marks_of
from plugstream.settings.sections import Settings, used_sections
from plugstream.settings.values import check_name, leaves

# The sections of a run that say what its image is; the others are about one scan, and what is measured and kept.
_OF_THE_IMAGE = ("instrument", "algorithm", "momentum", "gradient", "sampler", "denoiser", "loss")

# Settings of how long a run goes on, and of a search that is over when its settings are found.
_LENGTHS = ("iterations", "arrive", "time_limit", "distance_limit", "settled", "search", "fall", "rivals")


class SettingsFile:
    """A file of settings that is read when it is first needed, and only once: a pipe gives its content only once.

    Arguments: path of the file, or of a pipe, such as the /dev/fd/63 of `--settings <(...)`.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def sections(self) -> dict[str, dict[str, Any]]:
        """Its sections and their keys, as the file has them; `InputError` where it cannot be read, each time."""
        if isinstance(self._outcome, InputError):
            raise self._outcome
        try:
            return deepcopy(self._outcome)
        except RecursionError:
            raise InputError(f"{self.path} has tables in tables; settings are [section] and their keys") from None

    @cached_property
    def _outcome(self) -> dict[str, dict[str, Any]] | InputError:
        try:
            return _read(self.path)
        except InputError as error:  # what is left of a pipe that has too much may look like settings
            return error


class EarlierRun(SettingsFile):
    """What makes the image in the settings of an earlier run, such as the strength that its data chose, for like scans.

    Arguments: path of the run's folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.folder = Path(path)
        super().__init__(self.folder / "settings.toml")

    @cached_property
    def _outcome(self) -> dict[str, dict[str, Any]] | InputError:
        if not self.path.exists():
            return InputError(f"{self.folder} is no run to be like: there is no {self.path}; name the folder of one")
        try:
            content = _read(self.path)
        except InputError as error:
            return error
        if content.get("algorithm", {}).get("search", "none") != "none":
            again = f"plugstream resume {shell_quote(self.folder)}"
            return InputError(f"{self.folder} has not found its strength yet; let it end with: {again}")
        return {section: table for section, table in content.items() if section in _OF_THE_IMAGE}


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """The sections of a file of settings, not checked yet but for their names."""
    try:
        text = read_small(file)
    except OSError as error:
        raise InputError(f"cannot read the settings {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#") and line.partition("=")[0].count(".") > 50:  # which takes long to parse
            raise InputError(f"line {number} of {file} has tables in tables; settings are [section] and their keys")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, lists thousands deep
        raise InputError(f"{file} is not TOML: {error}") from error
    for section, table in content.items():
        check_name(section)
        if not isinstance(table, Mapping):
            raise InputError(f"{section!r} in {file} must be a section: write [{section}] and its keys below")
    values = {section: dict(table) for section, table in content.items()}
    for key in ("method", "eps"):  # of the Born model, which [compute] had before there were instruments
        if key in (compute := values.get("compute", {})):
            values.setdefault("instrument", {}).setdefault(key, compute.pop(key))
    return values


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


def to_flags(settings: Settings) -> str:
    """What makes the image, as flags of `plugstream reconstruct` with which any scan gets the same, however long.

    Entries, and no damping, are named although they are the defaults, since a scan's instrument may advise others.
    """
    content, words, taken = used_sections(settings), list[str](), set[str]()
    names = {section: table[key] for section, table in content.items() for key in ("name", "names") if key in table}
    said = ("name", "damping") if "damping" in settings.denoiser.entry.facts else ("name",)
    for section, key, info in leaves(_OF_THE_IMAGE, names):
        flag = str(marks_of(info).get("flag", key))
        flag = f"{section}-{key}" if flag in taken else flag
        taken.add(flag)
        value = content.get(section, {}).get(key)
        by_scan = section == "instrument" or key in _LENGTHS or is_marked(info, "consent") or section not in content
        if by_scan or (value == info.default and key not in said):
            continue
        text = "none" if value is None else f"{value:.8g}" if isinstance(value, float) else str(value)
        switched = value is True and marks_of(info).get("switch")
        words.append(f"--{flag.replace('_', '-')}" + ("" if switched else f" {shell_quote(text)}"))
    return " ".join(words)


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for one character that JSON leaves as it is and TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
