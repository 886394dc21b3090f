"""Scripts that complete words in bash, zsh and fish, made from what is known of every command.

Not by shtab: its scripts (1.13) offer the same flags whatever was chosen before, so that `--denoiser nlm` does not
bring `--nlm-guide`, and in bash they offer nothing after `--denoiser=`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from plugstream.base.version import __version__


@dataclass(frozen=True)
class Flag:
    """A flag with all its names: what it is, the words that may stand behind it, whether a file or something else
    does."""

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


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {
    "bash": _write_bash,
    "zsh": _write_zsh,
    "fish": _write_fish,
}
