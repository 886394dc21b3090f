"""The directive `command-help`: a section for every command, with the arguments that its own parser has."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive

from plugstream.cli import COMMANDS, command_parser
from plugstream.cli.help import EXAMPLES, GROUPS

__all__ = ["setup"]


class CommandHelp(Directive):
    """Every command of `plugstream`, from the parser: what is said here is what `--help-all` says."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        document = self.state.document
        return [_section(document, name, COMMANDS[name]) for names in GROUPS.values() for name in names]


def _section(document: nodes.document, name: str, text: str) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(f"plugstream {name}")], names=[f"plugstream {name}"])
    document.note_explicit_target(section)
    section += nodes.title("", f"plugstream {name}")
    section += nodes.paragraph("", text[0].upper() + text[1:] + ".")
    parser = command_parser(name, [name])
    positional = " ".join(_metavar(action) for action in parser._actions if not action.option_strings)
    usage = f"plugstream {name} {positional} [settings]".replace("  ", " ")
    usage = f"{usage}\n\n# for example\n{EXAMPLES[name]}"
    section += nodes.literal_block(usage, usage, language="none")
    for group in parser._action_groups:
        actions = [
            a for a in group._group_actions if a.help != argparse.SUPPRESS and a.dest not in ("help", "help_all")
        ]
        if actions:
            section += nodes.paragraph("", "", nodes.strong("", (group.title or "settings").capitalize()))
            if group.description:
                section += nodes.paragraph("", group.description)
            section += _definitions(parser, actions)
    return section


def _definitions(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> nodes.definition_list:
    found = nodes.definition_list(classes=["flags"])
    for action in actions:
        words = ", ".join(action.option_strings) or _metavar(action)
        takes_value = action.option_strings and action.nargs != 0
        term = nodes.term("", "", nodes.literal("", f"{words} {_metavar(action)}" if takes_value else words))
        text = parser._get_formatter()._expand_help(action) if action.help else ""
        found += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", text)))
    return found


def _metavar(action: argparse.Action) -> str:
    word: Any = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    return word if isinstance(word, str) else " ".join(word)


def setup(app: Any) -> dict[str, bool]:
    """Make the directive known."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
