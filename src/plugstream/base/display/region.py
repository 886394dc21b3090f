"""The last lines of a terminal, redrawn as work goes on: at any width, with or without colours.

rich does the colours, the widths of characters and NO_COLOR. Its `Live` and `Progress` are not used: they hide the
cursor, which stays hidden if the process is killed, and leave old lines behind when the terminal becomes narrower.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plugstream.base.display.frame import Frame, Piece, fit
from plugstream.base.text import wrap_words

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"bar": "green", "rest": "bright_black", "curve": "blue", "warning": "bold yellow"}


class TerminalRegion:
    """A few lines at the end of a terminal, redrawn in place.

    They fit the present width. A terminal that became narrower has wrapped the earlier lines, and all their rows are
    erased. A killed process leaves nothing behind: the cursor stays visible, and no mode is set.

    Arguments: stream, of the terminal.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.blocks = takes_blocks(stream)
        self._lengths: list[int] = []  # of the lines on the screen

    @cached_property
    def console(self) -> Console:
        """Knows the terminal's colours; importing it takes as long as many frames."""
        from rich.console import Console

        return Console(file=io.StringIO(), force_terminal=True, force_jupyter=False, legacy_windows=False)

    @property
    def is_open(self) -> bool:
        """Whether our lines are on the screen."""
        return bool(self._lengths)

    def draw(self, frame: Frame) -> None:
        """Show a frame in place of the last one."""
        from rich.cells import cell_len

        columns, rows = self.size()
        lines = [fit(line, columns - 1, blocks=self.blocks, measure=cell_len) for line in frame[: max(1, rows - 1)]]
        back = self._back(columns)  # the last column stays free, since some terminals scroll there
        self._lengths = [sum(cell_len(text) for text, _ in line) for line in lines]
        # The cursor waits in the first column: the ^C of somebody who stops it must not begin a new row.
        self._write(back + "\x1b[K\n".join(map(self._render, lines)) + "\x1b[J\r")

    def erase(self) -> None:
        """Remove the lines, so that others can be written."""
        if self._lengths:
            self._write(self._back(self.size()[0]) + "\x1b[J")
            self._lengths = []

    def close(self) -> None:
        """Remove the lines for good."""
        self.erase()

    def styled(self, text: str, style: str) -> str:
        """A text with the codes of a style, if the terminal has colours."""
        return self._render([(text, style)])

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal now; a person may resize it during a run."""
        return terminal_size(self.stream) or (80, 24)

    def _back(self, columns: int) -> str:
        """The codes that move from the last line to the first column of the first row."""
        rows = sum(max(1, math.ceil(length / columns)) for length in self._lengths[:-1])
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _render(self, pieces: list[Piece]) -> str:
        from rich.text import Text

        console = self.console
        if console.no_color and self.blocks:  # the rest of a bar would look the same as the bar
            pieces = [(" " * len(text) if style == "rest" else text, style) for text, style in pieces]
        with console.capture() as written:
            text = Text.assemble(*((text, _STYLES.get(style, style)) for text, style in pieces))
            console.print(text, end="", soft_wrap=True)
        return written.get()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader went away; work continues
            self.stream.write(text)
            self.stream.flush()


def terminal_size(stream: Any) -> tuple[int, int] | None:
    """Columns and rows of the terminal that a stream is, None where it is a file or a pipe."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if stream.isatty():
            size = os.get_terminal_size(stream.fileno())
            return size.columns or 80, size.lines or 24
    return None


def wrap_for(stream: Any, text: str, indent: str = "  ") -> str:
    """A line, broken between words where the stream is a terminal too narrow for it."""
    size = terminal_size(stream)
    return text if size is None else wrap_words(text, size[0], indent)


def takes_blocks(stream: Any) -> bool:
    """Whether a terminal can show the characters of bars and curves.

    In the locale C Python writes UTF-8 all the same (PEP 538 and 540), so the locale that a person chose decides.
    """
    chosen = [os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next((name for name in chosen if name and name != "C.UTF-8"), "")
    try:
        if locale in ("C", "POSIX"):
            return False
        "━▁█".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
