"""The last lines of a terminal, redrawn as work goes on: by rich, at any width, with or without colours.

Colours, widths of characters and NO_COLOR are rich's. Its `Live` is not used: it hides the cursor, which stays hidden
where a process is killed, and leaves old lines behind in a terminal that was made narrower.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plugstream.base.display.frame import Frame, Piece, fit

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["TerminalRegion", "takes_blocks"]

_STYLES = {"bar": "green", "rest": "bright_black", "curve": "blue", "warning": "bold yellow"}


class TerminalRegion:
    """A few lines at the end of what a terminal shows, drawn again in the place where they were.

    They fit the terminal as it is at that moment. One that was made narrower has broken the lines of before into
    several, as nearly all do, and they are taken back with them. Nothing is left on where a process is killed: the
    cursor stays visible, and no mode is set.

    Arguments: stream, of the terminal.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.blocks = takes_blocks(stream)
        self._lengths: list[int] = []  # of the lines that stand there

    @cached_property
    def console(self) -> Console:
        """What knows the terminal's colours; importing it takes as long as many frames."""
        from rich.console import Console

        return Console(file=io.StringIO(), force_terminal=True, force_jupyter=False, legacy_windows=False)

    @property
    def is_open(self) -> bool:
        """Whether lines of ours stand at the end."""
        return bool(self._lengths)

    def draw(self, frame: Frame) -> None:
        """Show a frame in place of what stands there."""
        from rich.cells import cell_len

        columns, rows = self.size()
        lines = [fit(line, columns - 1, blocks=self.blocks, measure=cell_len) for line in frame[: max(1, rows - 1)]]
        back = self._back(columns)  # the last column stays free, since some terminals scroll there
        self._lengths = [sum(cell_len(text) for text, _ in line) for line in lines]
        # The cursor waits in the first column: the ^C of somebody who stops it must not begin a new row.
        self._write(back + "\x1b[K\n".join(map(self._render, lines)) + "\x1b[J\r")

    def erase(self) -> None:
        """Take it away, so that other lines can be written."""
        if self._lengths:
            self._write(self._back(self.size()[0]) + "\x1b[J")
            self._lengths = []

    def close(self) -> None:
        """Take it away for good."""
        self.erase()

    def styled(self, text: str, style: str) -> str:
        """A text with the codes that give it a style, where the terminal has colours."""
        return self._render([(text, style)])

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal as it is now; a person may change it while a run goes on."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found = os.get_terminal_size(self.stream.fileno())
            return found.columns or 80, found.lines or 24
        return 80, 24

    def _back(self, columns: int) -> str:
        """To the first column of the first row, from that of the last line."""
        rows = sum(max(1, math.ceil(length / columns)) for length in self._lengths[:-1])
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _render(self, pieces: list[Piece]) -> str:
        from rich.text import Text

        console = self.console
        if console.no_color and self.blocks:  # what is still to do would look as if it were done
            pieces = [(" " * len(text) if style == "rest" else text, style) for text, style in pieces]
        with console.capture() as written:
            text = Text.assemble(*((text, _STYLES.get(style, style)) for text, style in pieces))
            console.print(text, end="", soft_wrap=True)
        return written.get()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever read it went away; that is no reason to end
            self.stream.write(text)
            self.stream.flush()


def takes_blocks(stream: Any) -> bool:
    """Whether a terminal can show the characters of bars and curves.

    In the locale C Python writes UTF-8 all the same (PEP 538 and 540), setting LC_CTYPE to C.UTF-8 if need be, so what
    the terminal takes is known from the locale that a person chose.
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
