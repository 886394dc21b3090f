"""Docstrings as they stand in the source, made into reStructuredText for the API's pages.

They are written to be read in an editor: paragraphs, formulas indented by themselves, code between single backticks,
and `Arguments:` with a line or more for each. None of it is markup, so that a star or a bar in a formula is just that.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["setup", "to_rest"]

_ITEM = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*): (.*)$", re.DOTALL)
_LIST = re.compile(r"^(Arguments|Returns|Class attributes|Attributes|Fields)\b.*", re.DOTALL)


def to_rest(lines: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText: formulas, code and tables literally, arguments as a list."""
    out: list[str] = []
    for block in _split(lines):
        flush = [line for line in block if not line.startswith(" ")]
        if not flush or block[0].startswith(">>> "):
            out += [*_literal(block), ""]
        elif all(line.startswith("|") for line in block):
            out += [*_literal(["    " + line for line in block]), ""]
        elif len(flush) < len(block) and _LIST.match(block[0]):
            out += [*_arguments(block), ""]
        elif len(flush) < len(block) and block[0].startswith(("- ", "* ")):
            out += [*_bullets(block), ""]
        else:
            first = next((n for n, line in enumerate(block) if line.startswith(" ")), len(block))
            out += [_inline(" ".join(block[:first])), ""]
            if first < len(block):
                out += [*_literal(block[first:]), ""]
    return out


def _split(lines: list[str]) -> list[list[str]]:
    """Blocks between empty lines; indented ones that follow each other are one."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line.rstrip())
        elif blocks[-1]:
            blocks.append([])
    joined: list[list[str]] = []
    for block in filter(None, blocks):
        indented = block[0].startswith(" ")
        if indented and joined and joined[-1][0].startswith(" "):
            joined[-1] += ["", *block]
        else:
            joined.append(block)
    return joined


def _literal(block: list[str]) -> list[str]:
    least = min(len(line) - len(line.lstrip()) for line in block if line)
    text = [line[least:] for line in block]
    if text[0].startswith(">>> "):  # which `sphinx -b doctest` runs
        return text
    return [".. code-block:: none", "", *(f"    {line}".rstrip() for line in text)]


def _arguments(block: list[str]) -> list[str]:
    """`Arguments:` and what follows: an item where a line of the smallest indentation begins with names and a colon."""
    least = min(len(line) - len(line.lstrip()) for line in block if line.startswith(" "))
    out: list[str] = []
    items: list[list[str]] = []
    for line in block:
        if not line.startswith(" "):
            out += _bullets(items)
            items = []
            out += ["", _inline(line), ""]
        elif len(line) - len(line.lstrip()) == least and (_ITEM.match(line.strip()) or not items):
            items.append([line.strip()])
        else:
            items[-1].append(line.strip())
    return [*out, *_bullets(items)]


def _bullets(items: list[Any]) -> list[str]:
    texts = [" ".join(item) if isinstance(item, list) else item for item in items]
    out = []
    for text in texts:
        named = _ITEM.match(text)
        text = f"**{_inline(named[1])}**: {_inline(named[2])}" if named else _inline(text.removeprefix("- "))
        out.append(f"- {text}")
    return out


def _inline(text: str) -> str:
    """A paragraph in which backticks are code and nothing else is markup."""
    parts = re.split(r"`([^`]+)`", text)
    for n, part in enumerate(parts):
        if n % 2:
            parts[n] = rf"\ ``{part}``\ "
        else:
            parts[n] = re.sub(r"([\\*|_`\[\]<>])", r"\\\1", part)
    return "".join(parts).strip()


def setup(app: Any) -> dict[str, bool]:
    """Put every docstring through `to_rest` before autodoc reads it."""

    def process(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
        lines[:] = to_rest(lines)

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
