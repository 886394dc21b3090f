"""The command line: it parses, calls the library and shows progress. torch is imported only once work begins.

A command is a module of this package, imported when it is used, with

    SECTIONS: the sections of the settings that become flags,
    add_arguments(parser): the arguments it has besides, and
    run(parsed) -> int: what it does, and its exit status.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from plugstream import __version__
from plugstream.cli.common import TRUST_HELP
from plugstream.cli.heartbeat import keep_informed
from plugstream.errors import InputError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["main"]

_COMMANDS = {
    "demo": "simulate a scan of a picture and reconstruct it online",
    "simulate": "make a scan of a picture, with noise, as a Zarr folder",
    "reconstruct": "form the image of a scan, a few views at a time",
    "resume": "go on with a run that was stopped",
    "import": "make a scan from an Institut Fresnel, HDF5 or NPZ file",
    "acquire": "receive a scan from an instrument, view by view",
    "keys": "make keys, so that acquire lets in a known instrument and nobody else",
    "info": "describe a scan, or the folder of a run",
    "verify": "read every byte of a scan, and name the views that are damaged",
    "denoise": "remove noise from a picture: PNG, TIFF or NPY, grey or colour",
    "denoisers": "list the denoisers, with what is known of each",
    "train": "train a denoiser on a folder of pictures",
    "tune": "find the best sigma, step and momentum for a scan",
    "reproduce": "compute the paper's tables and figures anew, beside the printed values",
    "certify": "say what is proved of a denoiser, and measure the rest",
}

# What these write in a file or pipe is theirs alone: one does little, the other waits for an instrument.
_OWN_OUTPUT = ("acquire", "denoisers", "info")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0 done, 1 diverged, 2 a mistake in the input, 3 stuck at its start, 130 interrupted.
    """
    try:
        parsed = _parse(list(sys.argv[1:] if arguments is None else arguments))
        plain = arguments is None and parsed.command not in _OWN_OUTPUT  # a call may have its output read by a program
        with keep_informed(f"{parsed.command}: loading the libraries", plain=plain):
            return int(_module(parsed.command).run(parsed))
    except InputError as error:
        print(f"plugstream: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("plugstream: interrupted before there was a result", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="plugstream",
        description="Online plug-and-play image reconstruction: a few views per iteration, any denoiser as the prior.",
        epilog="'plugstream COMMAND --help' lists a command's settings.",
    )
    parser.add_argument("--version", action="version", version=f"plugstream {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    if wanted is not None and wanted not in _COMMANDS:
        near = difflib.get_close_matches(wanted, _COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_COMMANDS)}"
        raise InputError(f"there is no command {wanted!r}; {hint}")
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == wanted:  # describing settings needs pydantic, so only for the command that is used
            module = _module(name)
            module.add_arguments(command)
            _add_settings(command, module.SECTIONS)
    parsed: argparse.Namespace = parser.parse_args(arguments)
    return parsed


def _module(command: str) -> Any:
    return import_module(f"plugstream.cli.{command}" + "_" * iskeyword(command))  # `import` is no name for a module


def _add_settings(parser: argparse.ArgumentParser, sections: Sequence[str]) -> None:
    if not sections:
        return
    from plugstream.settings import leaves

    parser.add_argument("--settings", type=Path, metavar="FILE.toml", help="read settings from this file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting, by its full name"
    )
    if "denoiser" in sections:
        parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    else:  # nothing that a file could name is run
        parser.set_defaults(trust=True)
    groups = {section: parser.add_argument_group(f"[{section}]") for section in sections}
    for section, key, info in leaves(sections):
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        flag = str(extra.get("flag", key)).replace("_", "-")
        short = [f"--{extra['short']}"] if "short" in extra else []
        value: dict[str, Any] = {"action": "store_const", "const": "true"} if extra.get("switch") else {"metavar": "X"}
        groups[section].add_argument(
            f"--{flag}",
            *short,
            dest=f"{section}.{key}",
            default=argparse.SUPPRESS,
            help=_help(info).replace("%", "%%"),
            **value,
        )


def _help(info: FieldInfo) -> str:
    """What a setting is, what it may be where that is a choice, and its default."""
    choices = [str(choice) for choice in get_args(info.annotation) if isinstance(choice, str)]
    text = f"{info.description}: {', '.join(choices)}" if choices else f"{info.description}"
    return text if info.default is None else f"{text} ({info.default})"


class _Parser(argparse.ArgumentParser):
    """argparse that answers a mistake in one line, with the nearest right flag or command."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [flag for flag in self._known_flags(parsed.command) if flag.startswith("--")]
            near = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; see 'plugstream {parsed.command} --help'"
            raise InputError(f"there is no argument {unknown[0]}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise InputError(message)

    def _known_flags(self, command: str) -> list[str]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return list(action.choices[command]._option_string_actions)
        return []
