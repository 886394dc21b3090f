"""Write the completion of words for a shell, from the parser that reads the command line."""

from __future__ import annotations

import argparse
import re
from typing import Any

from plugstream.cli.shells import Command, Flag

SHELLS = ("bash", "zsh", "fish")
_HELP = 72  # characters of help beside a word


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="whose completion to write to standard output")


def run(parsed: argparse.Namespace) -> int:
    from plugstream.cli.shells import SCRIPTS

    print(SCRIPTS[parsed.shell](read_commands()), end="")
    return 0


def read_commands() -> list[Command]:
    """Every command with its flags, and with those that the entries bring which can be chosen by name."""
    from plugstream.cli import COMMANDS, command_parser

    commands = []
    for name, text in COMMANDS.items():
        own = _actions(command_parser(name, [name]))
        first = next((action for action in own if not action.option_strings), None)
        values = () if first is None else _values(name, first)
        command = Command(name, _short(text), [_flag(action) for action in own if action.option_strings], values)
        command.files = any(_is_place(action) for action in own if not action.option_strings)
        known = {flag.names for flag in command.flags}
        choices = [
            (action.option_strings[:1], _values(name, action)) for action in own if action.dest.endswith(".name")
        ]
        if values and not first.choices:  # type: ignore[union-attr]
            choices.append(([], values))
        for words, names in choices:
            for value in names:
                others = _actions(command_parser(name, [name, *words, value]))
                flags = [_flag(action) for action in others if action.option_strings]
                more = [flag for flag in flags if flag.names not in known]
                if more:
                    command.chosen[value] = more
        commands.append(command)
    return commands


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments that help shows."""
    return [action for action in parser._actions if action.help is not argparse.SUPPRESS]


def _flag(action: argparse.Action) -> Flag:
    return Flag(
        tuple(action.option_strings),
        _short(str(action.help or "")),
        _values("", action),
        file=_is_place(action),
        takes=action.nargs != 0,
    )


def _values(command: str, action: argparse.Action) -> tuple[str, ...]:
    """The words that an argument may be; those with a colon, FILE.py:NAME, stand for others and are left out."""
    words: Any = action.choices or getattr(action, "values", ())
    if command == "import" and action.dest == "kind":
        from plugstream.base.registry import entries

        words = entries("importer")
    return tuple(str(word) for word in words if ":" not in str(word))


def _is_place(action: argparse.Action) -> bool:
    """Whether an argument names a file or a folder."""
    kind = getattr(action.type, "__name__", "")
    return kind in ("Path", "scan_place") or "FILE" in str(action.metavar or "")


def _short(text: str) -> str:
    """The first words of a help."""
    plain = re.sub(r"\s+", " ", text.replace("%%", "%")).strip()
    if len(plain) <= _HELP:
        return plain
    return plain[:_HELP].rsplit(" ", 1)[0].rstrip(",;:.") + " .."
