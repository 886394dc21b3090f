"""Help that begins with what matters: commands by what they are for, an example each, and the flags most people need.

`plugstream COMMAND --help` shows the flags of `FIRST` and those that the words before it bring along; `--help-all`, or
`--help all`, shows every flag. A command that is not in `FIRST` has few, and `--help` shows them all.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from plugstream.base.version import __version__

GROUPS: dict[str, tuple[str, ...]] = {
    "begin": ("demo", "reconstruct", "resume", "denoise"),
    "data": ("simulate", "import", "follow", "acquire", "keys", "info", "verify"),
    "look": ("serve", "watch", "report", "movie", "publish"),
    "study": ("baseline", "residual", "tune", "train", "certify"),
    "lists": (
        *("instruments", "importers", "denoisers", "algorithms", "samplers", "momenta", "gradients", "losses"),
        *("monitors", "completion"),
    ),
}

EXAMPLES = {
    "demo": "plugstream demo",
    "reconstruct": "plugstream reconstruct scan.zarr --out run --serve",
    "resume": "plugstream resume run --iterations 500",
    "denoise": "plugstream denoise noisy.png clean.png --sigma 15/255",
    "simulate": "plugstream simulate scan.zarr --picture photo.png --input-snr 35",
    "import": "plugstream import ct tooth.h5 tooth.zarr",
    "follow": "plugstream follow ct scan.h5 --like run --serve",
    "acquire": "plugstream acquire scan.zarr --listen tcp://127.0.0.1:5577",
    "keys": "plugstream keys keys --client beamline",
    "info": "plugstream info scan.zarr",
    "verify": "plugstream verify scan.zarr",
    "serve": "plugstream serve run",
    "watch": "plugstream watch run",
    "report": "plugstream report run other-run --out comparison.html",
    "movie": "plugstream movie run --out forming.mp4",
    "publish": "plugstream publish run http://127.0.0.1:8000/api/v1/metadata/results",
    "baseline": "plugstream baseline scan.zarr first",
    "residual": "plugstream residual held-out.zarr run first.npy",
    "tune": "plugstream tune scan.zarr --denoiser bm3d",
    "train": "plugstream train unet pictures weights.safetensors",
    "certify": "plugstream certify --denoiser tv --sigma 0.15",
    "completion": "plugstream completion bash",
    **{name: f"plugstream {name} --facts" for name in GROUPS["lists"] if name != "completion"},
}

_RUN = ("sigma", "denoiser", "batch", "iterations", "time-limit", "device", "settings")
FIRST: dict[str, tuple[str, ...]] = {
    "reconstruct": ("out", *_RUN, "follow", "serve"),
    "follow": ("out", "expect", "like", *_RUN[:2], "batch", "iterations", "window", "device", "serve"),
    "demo": ("out", "picture", "instrument", "size", *_RUN[:4], "device", "serve"),
    "simulate": ("picture", "instrument", "size", "views", "receivers", "input-snr", "noise-seed", "stream", "device"),
    "train": ("form", "steps", "start", "judge", "time-limit", "seed", "device"),
    "tune": ("out", "by", "over", "evaluations", *_RUN[1:]),
    "denoise": ("sigma", "denoiser", "counts", "along", "tile", "device"),
    "certify": ("sigma", "denoiser", "images", "size", "out", "run", "steps", "device"),
    "baseline": ("method", "iterations", "device", "memory"),
    "residual": ("fit-scale", "device", "memory"),
}


class WholeWords(argparse.HelpFormatter):
    """argparse's help, with no line that ends within a name such as skimage-nlm."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class HelpAll(argparse.Action):
    """Prints the help with every flag."""

    def __call__(self, parser: Any, namespace: object, values: object, option_string: str | None = None) -> None:
        parser.first = ()
        parser.print_help()
        parser.exit()


def join_help(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--help all` as one word, which argparse can read."""
    words = list(arguments)
    for number, (word, after) in enumerate(pairwise(words)):
        if (word, after) == ("--help", "all"):
            return [*words[:number], "--help-all", *words[number + 2 :]]
    return words


def list_commands(formatter: argparse.HelpFormatter, commands: Mapping[str, str]) -> str:
    """The help of plugstream itself: every command under what it is for.

    Arguments: formatter, which has the first lines; commands with what they do.
    """
    width = max(map(len, commands))
    lines = [formatter.format_help().rstrip()]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"    {name:<{width}}  {commands[name]}" for name in names if name in commands)]
    lines += ["", "plugstream COMMAND --help      an example and the flags most people need"]
    lines += ["plugstream COMMAND --help-all  every flag"]
    return "\n".join(lines) + "\n"


def short_help(parser: argparse.ArgumentParser, name: str, first: Sequence[str], typed: Iterable[str]) -> str:
    """The help of a command with many flags.

    Arguments: first, the flags that matter, without dashes; typed, the flags that were typed or came with what was.
    """
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    flags = {flag.removeprefix("--"): action for action in shown for flag in action.option_strings}
    places = [action for action in shown if not action.option_strings]
    main = list(dict.fromkeys(flags[flag] for flag in first if flag in flags))
    brought = [action for action in dict.fromkeys(flags[flag] for flag in typed if flag in flags) if action not in main]
    formatter = parser._get_formatter()
    words = " ".join(f"[{action.dest}]" if action.nargs == "?" else action.dest for action in places)
    formatter.add_usage(f"plugstream {name} {words} [flags]".replace("  ", " "), (), ())
    formatter.add_text(parser.description)
    formatter.add_text(parser.epilog)
    for title, actions in (("arguments", places), ("most used", main), ("of what was chosen", brought)):
        if actions:
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
    more = len([action for action in shown if action.option_strings]) - len(main) - len(brought)
    formatter.add_text(f"{more} more flags: plugstream {name} --help-all")
    return formatter.format_help()


class ShowVersion(argparse.Action):
    """Print the version and end. It is put together only on request, since that may import torch."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(nargs=0, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *values: Any, **more: Any) -> None:
        print(describe_version())
        parser.exit()


def describe_version() -> str:
    """In one line: plugstream, the instruction set of its native kernels, torch, GPUs, Python and the machine."""
    import platform

    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"plugstream {__version__} ({_native()}, {_torch()}, {system})"


def _native() -> str:
    """The best instruction set of this machine that the kernels were built for."""
    from plugstream._native import load

    try:
        kernels = load()
    except ImportError as error:
        return f"native kernels broken: {str(error).splitlines()[0]}"
    return "no native kernels" if kernels is None else f"native {kernels.levels()[0]}"


def _torch() -> str:
    """torch's version, and the GPU; torch itself is imported only where it was built for one."""
    from importlib import metadata  # which --help need not wait for

    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "no torch"
    if version.endswith("+cpu"):
        return f"torch {version}, no GPU"
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch {version} broken: {str(error).splitlines()[0]}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__}, no GPU"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    counted = [name if names.count(name) == 1 else f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f"torch {torch.__version__}, {', '.join(counted)}"
