"""Write the completion of words for bash, zsh or fish, from the parser that reads the command line.

Not by shtab: its scripts (1.13) offer the same flags whatever was chosen before, so that `--denoiser nlm` does not
bring `--nlm-guide`, and in bash they offer nothing after `--denoiser=`.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plugstream.base.version import __version__

_HELP = 72  # characters of help beside a word


@dataclass(frozen=True)
class Flag:
    """A flag with all its names: its help, the words that may follow it, whether a file or something else does."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    file: bool = False
    takes: bool = True


@dataclass
class Command:
    """A command: its flags, the words that may come first, whether files come, and flags that a word brings along."""

    name: str
    help: str
    flags: list[Flag]
    values: tuple[str, ...] = ()
    files: bool = False
    chosen: dict[str, list[Flag]] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="whose completion to write to standard output")


def run(parsed: argparse.Namespace) -> int:
    print(SCRIPTS[parsed.shell](read_commands()), end="")
    return 0


def read_commands() -> list[Command]:
    """Every command with its flags, and with those of the entries that can be chosen by name."""
    from plugstream.cli import COMMANDS

    return [_read_command(name, text) for name, text in COMMANDS.items()]


def _read_command(name: str, text: str) -> Command:
    actions = _actions(name)
    flags, places = [a for a in actions if a.option_strings], [a for a in actions if not a.option_strings]
    values = _values(name, places[0]) if places else ()
    command = Command(name, _short(text), list(map(_flag, flags)), values, any(map(_is_place, places)))
    choices = [(action.option_strings[:1], _values(name, action)) for action in flags if action.dest.endswith(".name")]
    if values and not places[0].choices:
        choices.append(([], values))
    usual = {flag.names for flag in command.flags}
    for words, names in choices:
        for value in names:
            own = [_flag(action) for action in _actions(name, *words, value) if action.option_strings]
            if more := [flag for flag in own if flag.names not in usual]:
                command.chosen[value] = more
    return command


def _actions(name: str, *words: str) -> list[argparse.Action]:
    """The arguments that the help of a command shows after these words."""
    from plugstream.cli import command_parser

    parser = command_parser(name, [name, *words])
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
    """The words that an argument may be, without patterns such as FILE.py:NAME."""
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
    """The first words of a help text."""
    plain = re.sub(r"\s+", " ", text.replace("%%", "%")).strip()
    if len(plain) <= _HELP:
        return plain
    return plain[:_HELP].rsplit(" ", 1)[0].rstrip(",;:.") + " .."


_BASH = r"""# bash completion of plugstream {version}, made by 'plugstream completion bash'.
# Put it into ~/.local/share/bash-completion/completions/plugstream, or source it.
_plugstream_files() {{
    local IFS=$'\n'
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen -f -- "$1"))
}}

_plugstream() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= word= words=
    COMPREPLY=()
    # bash takes --flag=value for three words.
    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in -*|=) ;; *) command=$word; break ;; esac
    done
    if [[ -z $command ]]; then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$cur"))
        return
    fi
    case "$command $prev" in
{values}
    esac
    if [[ $cur != -* ]]; then
        case "$command $((COMP_CWORD))" in
{first}
        esac
        case $command in {files}) _plugstream_files "$cur" ;; esac
        return
    fi
    case $command in
{flags}
    esac
    for word in "${{COMP_WORDS[@]:1}}"; do
        case "$command $word" in
{chosen}
        esac
    done
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -F _plugstream plugstream
"""

_ZSH = r"""#compdef plugstream
# zsh completion of plugstream {version}, made by 'plugstream completion zsh'.
# Put it as _plugstream into a folder of $fpath, or source it after compinit.
_plugstream() {{
    local curcontext=$curcontext state line
    typeset -A opt_args
    local -a commands flags
    _arguments -C '(- *)'{{-h,--help}}'[show what there is]' '(- *)--version[show what is installed here]' \
        '1:command:->command' '*::argument:->argument'
    case $state in
        command)
            commands=(
{commands}
            )
            _describe command commands ;;
        argument)
            case $words[1] in
{each}
            esac ;;
    esac
}}
if [[ $funcstack[1] == _plugstream ]]; then _plugstream "$@"; else compdef _plugstream plugstream; fi
"""


def _write_bash(commands: Sequence[Command]) -> str:
    by_values: dict[str, list[str]] = defaultdict(list)
    for command in commands:
        for flag in [*command.flags, *(flag for more in command.chosen.values() for flag in more)]:
            if flag.takes:
                what = _bash_reply(flag.values) if flag.values else '_plugstream_files "$cur"; return' * flag.file
                by_values[what or "return"].extend(f'"{command.name} {name}"' for name in flag.names)
    values = "\n".join(f"        {'|'.join(dict.fromkeys(places))}) {what} ;;" for what, places in by_values.items())
    first = [f'            "{c.name} 2") {_bash_reply(c.values)} ;;' for c in commands if c.values]
    flags = [f"        {c.name}) words='{_names(c.flags)}' ;;" for c in commands]
    by_flags: dict[str, list[str]] = defaultdict(list)
    for command in commands:
        for word, more in command.chosen.items():
            by_flags[_names(more)].append(f'"{command.name} {word}"')
    chosen = [f"            {'|'.join(places)}) words+=' {names}' ;;" for names, places in by_flags.items()]
    return _BASH.format(
        version=__version__,
        commands=" ".join(command.name for command in commands),
        values=values,
        first="\n".join(first),
        files="|".join(command.name for command in commands if command.files),
        flags="\n".join(flags),
        chosen="\n".join(chosen),
    )


def _bash_reply(values: Iterable[str]) -> str:
    return f"COMPREPLY=($(compgen -W '{' '.join(values)}' -- \"$cur\")); return"


def _names(flags: Iterable[Flag]) -> str:
    return " ".join(name for flag in flags for name in flag.names)


def _write_zsh(commands: Sequence[Command]) -> str:
    each = []
    for command in commands:
        lines = [f"                {command.name}) flags=("]
        lines += [f"                    {spec}" for flag in command.flags for spec in _zsh_specs(flag)]
        lines.append("                )")
        for word, more in command.chosen.items():
            specs = " ".join(spec for flag in more for spec in _zsh_specs(flag))
            lines.append(f"                (( ${{words[(Ie){word}]}} )) && flags+=({specs})")
        if command.values:
            spec = _quote(f"1:word:({' '.join(command.values)})")
            lines.append(f"                flags+=({spec})")
        if command.files:
            lines.append("                flags+=('*:file:_files')")
        lines.append("                _arguments -S : $flags ;;")
        each.append("\n".join(lines))
    described = "\n".join(f"                {_quote(f'{c.name}:{c.help}')}" for c in commands)
    return _ZSH.format(version=__version__, commands=described, each="\n".join(each))


def _zsh_specs(flag: Flag) -> list[str]:
    """What `_arguments` takes for each of a flag's names: '--name=[help]:value:(words)'."""
    help = flag.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    after = ""
    if flag.takes:
        after = f":value:({' '.join(flag.values)})" if flag.values else f":value:{'_files' if flag.file else ' '}"
    specs = []
    for name in flag.names:
        joined = f"{name}=" if flag.takes and name.startswith("--") else name
        specs.append(_quote(f"*{joined}[{help}]{after}"))
    return specs


def _write_fish(commands: Sequence[Command]) -> str:
    lines = [
        f"# fish completion of plugstream {__version__}, made by 'plugstream completion fish'.",
        "# Put it into ~/.config/fish/completions/plugstream.fish, or source it.",
        "complete -c plugstream -f",
        "complete -c plugstream -n __fish_use_subcommand -s h -l help -d 'show what there is'",
        "complete -c plugstream -n __fish_use_subcommand -l version -d 'show what is installed here'",
    ]
    for command in commands:
        described = _quote(command.help)
        lines.append(f"complete -c plugstream -n __fish_use_subcommand -a {command.name} -d {described}")
    for command in commands:
        condition = f"__fish_seen_subcommand_from {command.name}"
        if command.values:
            lines.append(f"complete -c plugstream -n {_quote(condition)} -a {_quote(' '.join(command.values))}")
        if command.files:
            lines.append(f"complete -c plugstream -n {_quote(condition)} -F")
        lines += [_fish_flag(flag, condition) for flag in command.flags]
        for word, more in command.chosen.items():
            lines += [_fish_flag(flag, f"{condition}; and contains -- {word} (commandline -opc)") for flag in more]
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag, where: str) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    after = ""
    if flag.takes:
        after = f" -x -a {_quote(' '.join(flag.values))}" if flag.values else (" -r -F" if flag.file else " -x")
    return f"complete -c plugstream -n {_quote(where)} {names} -d {_quote(flag.help)}{after}"


def _quote(text: str) -> str:
    """In single quotes, as sh, zsh and fish take it."""
    inside = text.replace("'", "'\\''")
    return f"'{inside}'"


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}
SHELLS = tuple(SCRIPTS)
