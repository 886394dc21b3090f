"""Text for a terminal, a log or a shell that contains foreign names, and values as people type them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

# Only the two ends of a longer word or message are shown.
_WORD, _MESSAGE = 400, 2000
_LONG = re.compile(rf"\S{{{_WORD + 1},}}")
_COMMAND = re.compile(r"(?<=: )plugstream .*|'plugstream [^']*'")


def printable(text: str) -> str:
    """The text, with everything that a terminal would obey or could not show written as an escape.

    Line ends and control characters become "\\n" and "\\x1b", and a byte of a file's name that is not UTF-8 (which
    Python keeps as a lone surrogate) becomes "\\xff". Letters of any script stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def is_unicode(text: str) -> bool:
    """Whether a text can be written and drawn: it must not contain bytes that are not UTF-8 (lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """A message as one line of moderate length: `printable`, with only the two ends of very long words."""
    line = _LONG.sub(lambda word: _ends(word[0], _WORD), printable(text))
    return line if len(line) <= _MESSAGE else _ends(line, _MESSAGE)


def wrap_words(text: str, columns: int, indent: str = "  ") -> str:
    """A line as several of at most `columns` characters, broken between words only.

    Longer words stay whole, and so does a command, which somebody may copy. Arguments: indent, of all lines but the
    first, added to its own.
    """
    if len(text) <= columns:
        return text
    import textwrap

    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
    own = text[: len(text) - len(text.lstrip())]
    lines = textwrap.wrap(
        whole, columns, subsequent_indent=own + indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def shell_quote(word: object) -> str:
    """A word as typed into a shell; control characters and bytes that are not UTF-8 become bash's $'\\x1b'.

    A path that begins with a dash would be mistaken for a flag, so it is written as ./-name.
    """
    import shlex  # with pathlib a third of what `plugstream.bm3d` waits for beside NumPy

    text = f"./{word}" if isinstance(word, os.PathLike) and str(word).startswith("-") else str(word)
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(c if c.isprintable() and c not in "\\'" else _escape(c) for c in text) + "'"


def shell_join(words: Iterable[object]) -> str:
    """A command as typed into a shell."""
    return " ".join(map(shell_quote, words))


def parse_value(text: str) -> Any:
    """A value from the command line: TOML if possible, a fraction such as 15/255, otherwise text."""
    import tomllib

    above, slash, below = text.partition("/")
    try:
        if slash:
            return float(above) / float(below)
    except (ValueError, ZeroDivisionError):
        pass  # a step such as 1/L, or nonsense that is reported where it is used
    if not text.isprintable():  # several lines of TOML, only the first of which would count
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, lists thousands deep
        return text


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character in "\\'":
        return f"\\{character}"
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    if short is not None:
        return short
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _ends(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long, and how long it is."""
    return f"{text[: most * 2 // 3]}...({len(text)} characters)...{text[len(text) - most // 4 :]}"
