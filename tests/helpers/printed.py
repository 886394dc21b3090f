"""What README, CONTRIBUTING, docs/ and --help print to be typed, collected by machine and made small."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from plugstream.cli import COMMANDS, command_parser
from plugstream.cli.help import EXAMPLES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_INDENTED = re.compile(r"^ {4,}(?:\$ )?(?:\w+=\S+ )*((?:torchrun .*-m )?plugstream( .*)?)$")
_NAMED = re.compile(rf"\bplugstream ((?:{'|'.join(COMMANDS)})\b[^`'\"();\n]*)")


@dataclass(frozen=True)
class Command:
    """Words after `plugstream`, and where they are printed; `whole` unless they stand within a sentence."""

    place: str
    words: tuple[str, ...]
    whole: bool = True

    def __str__(self) -> str:
        return f"{self.place}: plugstream {shlex.join(self.words)}"


def read_commands(text: str, place: str, *, whole: bool = True) -> list[Command]:
    """The commands that a line stands for.

    Two blanks or `#` begin an explanation, `>` or `| PROGRAM OPTIONS` a use of the output; [WORDS] may be left out, of
    A | B one is typed, and `...` stands for flags of one's own.
    """
    text = re.split(r"\s{2,}|\s#\s|\s>\s|\s\| \w+ -", text.strip())[0].removesuffix(" [settings]")
    optional = re.findall(r" \[([^]]+)\]", text)
    text = re.sub(r" \[[^]]+\]", "", text).removesuffix("...").strip()
    first, *others = text.split(" | ")
    alternatives = [first, *(f"{first.rpartition(' ')[0]} {other}" for other in others)]
    texts = [*alternatives, *(f"{one} {more.removesuffix('...')}" for one in alternatives for more in optional)]
    return [Command(place, tuple(shlex.split(one)), whole) for one in texts]


def blocks() -> list[list[Command]]:
    """The commands of each block of code, each that stands in a sentence, and those of --help; alone only once."""
    seen, found = set[tuple[str, ...]](), []
    for block in _blocks():
        if len(block) > 1 or block[0].words not in seen:
            found.append(block)
        seen |= {command.words for command in block}
    return found


def _blocks() -> Iterator[list[Command]]:
    for page in PAGES:
        name, block = page.name, list[Command]()
        # A continued line is one, and as many lines as before.
        text = re.sub(r" *\\\n +(.*)", r" \1\n", page.read_text(encoding="utf-8"))
        for number, line in enumerate([*text.splitlines(), "."], 1):
            if found := _INDENTED.match(line):
                words = found[1].partition("plugstream")[2] if "torchrun" not in found[1] else f" {found[1]}"
                block += read_commands(words, f"{name}:{number}")
            elif line.strip() and not line.startswith("    ") and block:
                yield block
                block = []
            for inline in re.findall(r"`plugstream ([^`]+)`", line):
                yield read_commands(inline, f"{name}:{number}", whole=False)
    for command, example in EXAMPLES.items():
        yield read_commands(example.removeprefix("plugstream"), f"plugstream {command} --help")


def in_help() -> Iterator[Command]:
    """What the help of each flag names."""
    for command in COMMANDS:
        for action in command_parser(command, [command])._actions:
            yield from named(str(action.help), f"plugstream {command} --help-all")


def named(text: str, place: str) -> list[Command]:
    """The commands that a line of output or a message names."""
    return [Command(place, tuple(found.partition(", ")[0].rstrip(".,:").split()), False) for found in _NAMED.findall(text)]


# The small data have few views and pixels: a number above this is this.
_MOST = {"--size": 24, "--views": 12, "--receivers": 30, "--iterations": 100, "--steps": 1, "--products": 3, "--batch": 6, "--count": 8, "--crop": 16}
_MOST |= {"--center": 11.5, "--expect": 20, "--uncertainty": 2, "--inner-steps": 4, "--search": 60, "--hop-steps": 4}
# What a command has unless it says otherwise.
_SCAN = {"--size": "24", "--views": "12"}
_SIMULATED = {
    "born-2d": {**_SCAN, "--receivers": "30", "--radius": "0.4", "--wavelength": "0.03"},
    "scattering-2d": {**_SCAN, "--receivers": "20"},
    "fpm": {"--size": "64", "--camera": "24", "--leds": "5"},
    "ptychography": {"--frame": "16", "--across": "6"},
    "mri": {"--size": "24", "--coils": "4"},
    "odt-3d": {"--size": "12", "--views": "8"},
    "ct": _SCAN,
}
_USUAL = {
    "tune": {"--evaluations": "5", "--iterations": "20"},
    "certify": {"--size": "16", "--products": "3"},
    "train": {"--steps": "1", "--batch": "1", "--patch": "16"},
    "acquire": {"--listen": "tcp://127.0.0.1:5577", "--timeout": "60"},
    "serve": {"--port": "0"},
    "import fresnel": {"--size": "16"},
}
_RUNS = ("reconstruct", "demo", "follow", "tune")


def shrink(words: list[str]) -> list[str]:
    """The command on small data: smaller numbers, one thread, and no page (one of README's has it)."""
    kept = [word for word in words if word != "--serve"]
    for place, (flag, value) in enumerate(pairwise(kept), 1):
        if flag in _MOST and value[0].isdigit() and float(value) > _MOST[flag]:
            kept[place] = str(_MOST[flag])
    flags = dict(pairwise(kept))
    usual = dict(_USUAL.get(words[0], _USUAL.get(" ".join(words[:2]), {}))) | ({"--threads": "1"} if words[0] in _RUNS else {})
    usual |= {"--time-limit": "1"} if words[0] in ("reconstruct", "demo") and "--follow" not in words else {}
    if words[0] in ("simulate", "demo") and "--help" not in flags:
        usual |= _SIMULATED.get(flags.get("--instrument", "born-2d"), {})
    return [*kept, *(word for pair in usual.items() if pair[0] not in kept for word in pair)]
