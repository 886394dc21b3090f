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
    """Words after `plugstream`, and where they are printed; not `whole` where they stand within a sentence."""

    place: str
    words: tuple[str, ...]
    whole: bool = True

    def __str__(self) -> str:
        return f"{self.place}: plugstream {shlex.join(self.words)}"


def _read(text: str, place: str, *, whole: bool = True) -> list[Command]:
    """The commands that a line stands for.

    Two blanks or `#` begin an explanation, `>` or `| PROGRAM OPTIONS` a use of the output; [WORDS] may be left out, of
    A | B one is typed, and `...` stands for flags of one's own.
    """
    text = re.split(r"\s{2,}|\s#\s|\s>\s|\s\| \w+ -", text.strip())[0].removesuffix(" [settings]")
    optional, text = re.findall(r" \[([^]]+)\]", text), re.sub(r" \[[^]]+\]", "", text).removesuffix("...").strip()
    first, *others = text.split(" | ")
    typed = [first, *(f"{first.rpartition(' ')[0]} {other}" for other in others)]
    typed += [f"{one} {more.removesuffix('...')}" for one in typed for more in optional]
    return [Command(place, tuple(shlex.split(one)), whole) for one in typed]


def section(page: Path, title: str) -> str:
    """The text below a heading of a page, up to the next of its rank."""
    text = page.read_text(encoding="utf-8")
    (found,) = re.finditer(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    return re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def read_blocks(text: str, name: str) -> Iterator[list[Command]]:
    """The commands of each block of code of a page, and before each those that stand in sentences."""
    block = list[Command]()
    text = re.sub(r" *\\\n +(.*)", r" \1\n", text)  # a continued line is one, and as many lines as before
    text = re.sub(r"(?<=[^`])`plugstream [^`]*`", lambda found: found[0].replace("\n", " "), text)
    for number, line in enumerate([*text.splitlines(), "."], 1):
        if found := _INDENTED.match(line):
            words = found[1] if found[1].startswith("torchrun") else found[1].removeprefix("plugstream")
            block += _read(words, f"{name}:{number}")
        elif line.strip() and not line.startswith("    ") and block:
            yield block
            block = []
        for inline in re.findall(r"`plugstream ([^`]+)`", line):
            yield _read(inline, f"{name}:{number}", whole=False)


def _is_list(block: list[Command]) -> bool:
    """Whether a block is a list of what can be typed, in which most commands make what another needs otherwise."""
    return block[0].place.startswith("command-line.md") and len({command.words[0] for command in block}) > 9


def blocks() -> list[list[Command]]:
    """Those of all pages and of the examples of --help; what stands alone and elsewhere, too, is left out."""
    seen, found = set[tuple[str, ...]](), []
    printed = [block for page in PAGES for block in read_blocks(page.read_text(encoding="utf-8"), page.name)]
    printed = [part for block in printed for part in ([[one] for one in block] if _is_list(block) else [block])]
    for name, example in EXAMPLES.items():
        printed.append(_read(example.removeprefix("plugstream"), f"plugstream {name} --help"))
    seen |= {command.words for block in printed if len(block) > 1 for command in block}
    for block in printed:
        if len(block) > 1 or block[0].words not in seen:
            found.append(block)
        seen |= {command.words for command in block}
    return found


def in_help() -> Iterator[Command]:
    """What the help of each flag names."""
    for name in COMMANDS:
        for action in command_parser(name, [name])._actions:
            yield from named(str(action.help), f"plugstream {name} --help-all")


def named(text: str, place: str) -> list[Command]:
    """The commands that a line of output or a message names."""
    found = [re.split(r"\s{2,}|, ", words)[0].rstrip(".,: ") for words in _NAMED.findall(text)]
    return [Command(place, tuple(words.split()), False) for words in found]


# The small data have few views and pixels: a number above this is this.
_MOST = {"--size": 24, "--views": 12, "--receivers": 30, "--iterations": 64, "--steps": 1, "--products": 3}
_MOST |= {"--center": 11.5, "--expect": 20, "--uncertainty": 2, "--inner-steps": 4, "--search": 60, "--hop-steps": 4}
_MOST |= {"--count": 8, "--crop": 16, "--batch": 6}
# What a command, or a simulation of an instrument, has unless it says otherwise.
_SCAN = {"--size": "24", "--views": "12"}
_USUAL = {
    "born-2d": {**_SCAN, "--receivers": "30", "--radius": "0.4", "--wavelength": "0.03"},
    "scattering-2d": {**_SCAN, "--receivers": "20"}, "fpm": {"--size": "64", "--camera": "24", "--leds": "5"},
    "ptychography": {"--frame": "16", "--across": "6"}, "mri": {"--size": "24", "--coils": "4"},
    "odt-3d": {"--size": "12", "--views": "8"}, "ct": _SCAN, "tune": {"--evaluations": "5", "--iterations": "20"},
    "certify": {"--size": "16", "--products": "3"}, "train": {"--steps": "1", "--batch": "1", "--patch": "16"},
    "acquire": {"--listen": "tcp://127.0.0.1:5577", "--timeout": "60"}, "serve": {"--port": "0"},
    "import examples/fresnel_importer.py:fresnel": {"--size": "16"},
}  # fmt: skip


def shrink(words: list[str], seconds: float = 0.3) -> list[str]:
    """The command on small data: smaller numbers, one thread, so many seconds for a search, and no page."""
    kept = [word for word in words if word != "--serve"]
    most = _MOST | ({"--iterations": 700} if words[0] == "resume" else {})  # which is more than a search may have had
    for place, (flag, value) in enumerate(pairwise(kept), 1):
        if flag in most and value[0].isdigit() and float(value) > most[flag]:
            kept[place] = str(most[flag])
    usual = {} if "--run" in words else _USUAL.get(words[0], {}) | _USUAL.get(" ".join(words[:2]), {})
    if words[0] in ("simulate", "demo") and "--help" not in words:
        usual |= _USUAL.get(dict(pairwise(words)).get("--instrument", "ct" if words[0] == "demo" else "born-2d"), {})
    if words[0] in ("reconstruct", "demo", "follow", "tune"):
        usual |= {"--threads": "1"}
    if words[0] in ("reconstruct", "demo") and "--follow" not in words:  # a search goes on for as long as it may
        usual |= {"--iterations": "60"} if "--sigma" in words else {"--time-limit": str(seconds)}
    return [*kept, *(word for pair in usual.items() if pair[0] not in kept for word in pair)]
