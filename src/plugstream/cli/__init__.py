"""The command line: it parses, calls the library and shows progress. torch is imported only once work begins.

A command is a module of this package, imported when it is used, with

    SECTIONS: the sections of the settings that become flags, if there are any,
    PRESETS: what it changes of their defaults, if anything,
    add_arguments(parser): the arguments it has besides,
    add_options(parser, arguments): those that depend on what was typed, if there are any, and
    run(parsed) -> int: what it does, and its exit status.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from plugstream.base.capacity import reading_at_most
from plugstream.base.display.region import wrap_for
from plugstream.base.display.screen import MODES, Display
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.text import one_line
from plugstream.cli.faults import BUG, check_room_to_start, explain
from plugstream.cli.flags import add_settings, join_values
from plugstream.cli.help import EXAMPLES, FIRST, HelpAll, ShowVersion, WholeWords, join_help, list_commands, short_help
from plugstream.cli.places import check_place
from plugstream.cli.streams import give_up, open_standard_streams, steady_streams
from plugstream.cli.values import read_path

__all__ = ["COMMANDS", "command_parser", "main"]

_LISTS = {
    "denoisers": "list the denoisers, and what is known about each",
    "algorithms": "list the algorithms",
    "samplers": "list the samplers: which views a step uses",
    "momenta": "list the momenta",
    "gradients": "list the gradients: plain, or with less variance",
    "losses": "list the losses: how predictions are compared with data",
    "monitors": "list the monitors: what is measured during a run",
    "instruments": "list the instruments whose scans can be reconstructed",
    "importers": "list the importers: which files become scans",
}
COMMANDS = {
    "demo": "simulate a scan, of X-rays by default, and reconstruct it",
    "simulate": "make a scan of a picture, with noise, as a Zarr folder",
    "reconstruct": "form the image of a scan, a few views at a time",
    "resume": "continue a run that was stopped",
    "serve": "show runs in a browser, live or finished, and steer them",
    "report": "write the report of a run, or a page that compares several",
    "baseline": "form the image by a standard method, such as FBP or CG-SENSE",
    "residual": "say how well images explain a scan, such as held-out views",
    "import": "make a scan from another program's file",
    "follow": "form the image while another program writes its file",
    "acquire": "receive a scan from an instrument, view by view",
    "keys": "make keys that let one instrument send a scan, and nobody else",
    "publish": "write the result of a run into a Tiled catalogue",
    "movie": "make a GIF or MP4 of a run's image as it forms",
    "watch": "follow a run from another terminal",
    "info": "describe a scan and what a run will do, a run, or a file",
    "verify": "check every byte of a scan, and name damaged views",
    "denoise": "remove noise from a picture or a volume",
    **_LISTS,
    "train": "train a denoiser on a folder of pictures",
    "tune": "find the best sigma, step and momentum for a scan",
    "certify": "say what is proved about a denoiser, or what a run shows",
    "completion": "write shell completion for bash, zsh or fish",
}

_STARTED = time.monotonic()
_GRACE = 10.0  # seconds for a library to return, once the process is to end
# The output of these holds nothing but their results: some wait for others, and some take no time.
_OWN_OUTPUT = ("acquire", "serve", "watch", "info", "completion", *_LISTS)
_AT_ONCE = ("info", "keys", "completion", *_LISTS)
_PROGRESS = "how progress is shown: rich, plain, json (lines on standard output), none, or auto (auto)"
# The commands that several processes can share, under torchrun.
_SHARED = ("reconstruct", "resume")


def main(arguments: Sequence[str] | None = None, script: ModuleType | None = None) -> int:
    """Run a command, or a script of the checkout, and return its exit status.

    0 done, 1 diverged, 2 a mistake in the input or a machine that could not do it, 3 stuck at its start or with an
    image that explains nothing, 70 a bug of ours, 130 interrupted.
    Whatever goes wrong is one line on standard error; PLUGSTREAM_DEBUG=1 shows the traceback of a bug.

    Arguments: script, a FOLDER/run.py with `EXAMPLE`, and `add_arguments` and `run` as a command's module has them.
    """
    alone = arguments is None  # a process of its own, rather than a call
    if alone:
        open_standard_streams()
    stderr = sys.stderr
    with _end_by_exception(alone), steady_streams(), _one_voice(alone), warnings.catch_warnings():
        warnings.simplefilter("always", PlugstreamWarning)
        warnings.showwarning = _warning_printer()
        display, failure = None, {}
        words = list(sys.argv[1:] if arguments is None else arguments)
        try:
            _forget_consents()
            if alone:
                check_room_to_start()
            parsed = _parse(words) if script is None else _parse_script(script, words)
            if alone and _ranks() > 1 and parsed.command not in _SHARED:
                raise InputError(
                    f"{parsed.command} is for one process; only {' and '.join(_SHARED)} share their work among several"
                )
            plain = alone and parsed.command not in _OWN_OUTPUT  # a call may have its output read
            since = _STARTED if alone else None
            activity = f"{parsed.command}: loading the libraries"
            display = Display(getattr(parsed, "progress", "auto"), activity, beats=plain, since=since)
            with display, reading_at_most(getattr(parsed, "max_read", None)):
                status = int((script or _module(parsed.command)).run(parsed))
            sys.stdout.flush()
        except KeyboardInterrupt:
            status = 130
            print("plugstream: interrupted before there was a result", file=sys.stderr)
        except BrokenPipeError:  # the reader of our output went away, as `head` does
            give_up(sys.stdout)
            return 0
        except Exception as error:
            text, status = explain(error)
            failure = {"error": one_line(text)}
            stream = stderr if status == BUG else sys.stderr
            print(wrap_for(stream, f"plugstream: {one_line(text)}"), file=stream)
            try:
                sys.stdout.flush()
            except OSError:
                give_up(sys.stdout)
        if display is None and "--progress json" in " ".join(words).replace("=", " "):  # refused before it was read
            with Display("json") as display:
                pass
        if display is not None:  # so that readers of JSON lines see the status
            display.event({"event": "exit", "at": round(time.time(), 3), "status": status, **failure})
        sys.stderr.flush()
        return status


def _ranks() -> int:
    """How many processes torchrun started, 1 where it did not."""
    words = os.environ.get("WORLD_SIZE", "1")
    return int(words) if words.isdigit() else 1


@contextlib.contextmanager
def _one_voice(process: bool) -> Iterator[None]:
    """Of several processes, let rank 0 alone speak: all would say the same, and learn of each other's errors."""
    if not process or _ranks() == 1 or os.environ.get("RANK", "0") == "0":
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


@contextlib.contextmanager
def _end_by_exception(process: bool) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process as an error would, so that nothing half-made is left behind.

    Once all is done they end it at once again: an exception while the interpreter ends would look like an error. Python
    raises nothing before the function of a library returns, which may take minutes, so a thread ends the process if
    it is in one after ten seconds.
    """
    heard = threading.Event()

    def end(number: int, frame: object) -> NoReturn:
        heard.set()
        raise SystemExit(128 + number)

    def watch(source: int) -> None:
        for number in iter(lambda: int.from_bytes(os.read(source, 1)), 0):
            if number in numbers and signal.getsignal(number) is end and not heard.wait(_GRACE):
                os._exit(128 + number)

    ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [n for n in ends if process and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    watched = bool(numbers) and os.name == "posix"
    if watched:
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        threading.Thread(target=watch, args=(source,), daemon=True).start()
    try:
        yield
    finally:
        if watched:
            signal.set_wakeup_fd(-1)
            os.close(sink)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _forget_consents() -> None:
    """Take back what an earlier call in this process was allowed to run, if any was."""
    own_code = sys.modules.get("plugstream.base.user_code")
    if own_code is not None:
        own_code.forget()


def _warning_printer() -> Callable[..., None]:
    """Prints each warning once, as one line; those of other packages are for whoever works on this one."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        ours = issubclass(category, PlugstreamWarning) or os.environ.get("PLUGSTREAM_DEBUG")
        if ours and str(message) not in shown:
            shown.add(str(message))
            print(wrap_for(sys.stderr, f"warning: {one_line(str(message))}"), file=sys.stderr)

    return show


def _parse(arguments: list[str]) -> argparse.Namespace:
    if arguments in ([], ["--help", "all"]):
        arguments = ["--help"]
    _check_words(arguments)
    typed = next((word for word in arguments if not word.startswith("-")), None)
    if typed is not None and typed not in COMMANDS:
        near = difflib.get_close_matches(typed.lower(), COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {typed!r}; {hint}")
    check_place(arguments)
    arguments = join_help(arguments)
    parser = _Parser(
        prog="plugstream",
        description="Reconstruct an image while its scan is still running, with any denoiser as the prior.",
    )
    parser.add_argument("--version", action=ShowVersion, help="show what is installed here and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    # After a command the others are not needed, and thirty parsers take longer to build than most mistakes to find.
    for name in [typed] if typed is not None and arguments[0] == typed else COMMANDS:
        text = COMMANDS[name]
        about, example = text[0].upper() + text[1:] + ".", f"Example: {EXAMPLES[name]}"
        command = commands.add_parser(name, help=text, description=about, epilog=example)
        if name == typed:  # describing settings needs pydantic, so only for the command that is used
            _describe(command, name, arguments)
            arguments = join_values(command, arguments)
    parsed: argparse.Namespace = parser.parse_args(arguments)
    return parsed


def _parse_script(script: ModuleType, words: list[str]) -> argparse.Namespace:
    """As `_parse`, for a script; its folder is the name of the command."""
    _check_words(words)
    name, about = Path(str(script.__file__)).resolve().parent.name, str(script.__doc__).partition("\n")[0]
    parser = _Parser(prog=f"python {name}/run.py", description=about, epilog=f"Example: {script.EXAMPLE}")
    script.add_arguments(parser)
    _add_progress(parser)
    parser.set_defaults(command=name)
    parsed: argparse.Namespace = parser.parse_args(words)
    return parsed


def command_parser(name: str, arguments: list[str]) -> argparse.ArgumentParser:
    """The parser of one command.

    Arguments: name of the command; arguments, all that was typed, in which choices are looked up.
    """
    parser = _Parser(prog=f"plugstream {name}")
    _describe(parser, name, arguments)
    return parser


def _describe(command: argparse.ArgumentParser, name: str, arguments: list[str]) -> None:
    """Give a command its arguments and the flags of its settings."""
    module = _module(name)
    if isinstance(command, _Parser):
        command.name, command.first = name, FIRST.get(name, ())
    about = "show every flag and exit" if name in FIRST else argparse.SUPPRESS  # --help shows them, too
    command.add_argument("--help-all", action=HelpAll, nargs=0, help=about)
    module.add_arguments(command)
    if hasattr(module, "add_options"):
        module.add_options(command, arguments)
    if name not in _AT_ONCE:
        _add_progress(command)
    add_settings(command, getattr(module, "SECTIONS", ()), arguments, getattr(module, "PRESETS", ()))
    for flag, told in getattr(module, "TOLD", {}).items():  # help that is another than that of other commands
        command._option_string_actions[flag].help = told


def _add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--progress", choices=MODES, default="auto", metavar="HOW", help=_PROGRESS)


def _check_words(arguments: list[str]) -> None:
    """Refuse words that argparse would misread, and those that no file can be called."""
    for word in arguments:
        if word == "--":
            return
        if word.startswith("--") and word.endswith("=--"):  # which argparse would read as no value at all
            raise InputError(f"argument {word.removesuffix('=--')}: '--' is not a value")
        if "\0" in word:
            raise InputError(f"the argument {word!r} holds a null character, which no name can contain")


def _module(command: str) -> Any:
    if command in _LISTS:
        command = "lists"
    return import_module(f"plugstream.cli.{command}" + "_" * iskeyword(command))  # `import` is no name for a module


class _Parser(argparse.ArgumentParser):
    """argparse that answers a mistake in one line, with the nearest right flag or command.

    Attributes: name of a command with many flags, and the `first` of them that its help shows; empty of others.
    """

    name: str
    first: Sequence[str]

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=WholeWords, **keywords)
        self.name, self.first = "", ()
        self.register("type", Path, read_path)  # every path of every command

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command: argparse.ArgumentParser = self
            for action in self._actions:
                if isinstance(action, argparse._SubParsersAction):
                    command = action.choices[parsed.command]
            flags = [flag for flag in command._option_string_actions if flag.startswith("--")]
            near = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; see '{command.prog} --help'"
            raise InputError(f"there is no argument {unknown[0]}{hint}")
        return parsed

    def format_help(self) -> str:
        if self.first:
            return short_help(self, self.name, self.first, self.get_default("brought") or ())
        if not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage("plugstream COMMAND ...\n       plugstream --version", (), ())
        formatter.add_text(self.description)
        return list_commands(formatter, COMMANDS)

    def error(self, message: str) -> NoReturn:
        shown = self.epilog if self.epilog and "are required" in message else ""
        raise InputError(message + shown.replace("Example:", "; for example:"))
