"""A small terminal for tests: what a person would see of what was written, at any width, also one that changes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable

import warm

_CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")
# A line, or a frame, whose own lines end otherwise (`plugstream.base.display.region`).
_PIECE = re.compile(r"(?s).*?(?:(?<!\x1b\[K\r)\n|\x1b\[J\r)")


class Screen:
    """A stream that is a terminal of so many columns, and shows what nearly all of them would.

    Long lines are broken, and broken anew where the terminal is made narrower or wider. Rows are never scrolled away.
    """

    encoding = "utf-8"

    def __init__(self, columns: int = 80) -> None:
        self._ends = pty.openpty()  # whoever asks for the width asks the system
        self._lock = threading.RLock()  # it is drawn to by a thread, and never seen half-drawn
        self.resize(columns)
        self.written = ""
        self.lines: list[str] = [""]  # as written; each stands on as many rows as it needs
        self.row, self.column = 0, 0  # the line that the cursor is in, and the character

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        return

    def fileno(self) -> int:
        return self._ends[1]

    def resize(self, columns: int) -> None:
        """As a person does who drags the window's edge."""
        self.columns = columns
        fcntl.ioctl(self._ends[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def __del__(self) -> None:
        for end in self._ends:
            os.close(end)

    def write(self, text: str) -> int:
        with self._lock:
            self._show(text)
            self.written += text
        return len(text)

    def _show(self, text: str) -> None:
        for numbers, letter, end, character in _CODE.findall(text):
            if letter:
                self._obey(numbers, letter)
            elif end == "\r":
                self.column -= self.column % self.columns
            elif end == "\n":
                self.row, self.column = self.row + 1, 0
                if self.row == len(self.lines):
                    self.lines.append("")
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
                self.column += 1

    def _obey(self, numbers: str, letter: str) -> None:
        if letter == "A":
            for _ in range(int(numbers or 1)):
                if self.column >= self.columns:
                    self.column -= self.columns
                else:
                    self.row -= 1
                    assert self.row >= 0, "above the first line"
                    last = max(0, len(self.lines[self.row]) - 1) // self.columns
                    self.column = last * self.columns + self.column % self.columns
        elif letter == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif letter == "J":
            self.lines = [*self.lines[: self.row], self.lines[self.row][: self.column]]
        else:
            assert letter == "m", f"an unknown code {numbers}{letter}"

    @property
    def shown(self) -> list[str]:
        """The rows that a person sees, without those at the end that are empty."""
        with self._lock:
            rows = [
                line[start : start + self.columns]
                for line in self.lines
                for start in range(0, max(1, len(line)), self.columns)
            ]
        return "\n".join(rows).rstrip("\n").split("\n")


def run_in_terminal(
    columns: int, words: list[str], look: Callable[[Screen], object] | None = None, before: str = "", **environment: str
) -> tuple[int, Screen]:
    """Run the command in a pseudo-terminal of this width: its exit status, and what it wrote there.

    Arguments: look, called with the screen after each line and each frame, however many of them are read at once;
    before, code that the process runs first.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LC_") and k not in ("LANG", "COLUMNS")}
    process = warm.Popen(
        [sys.executable, "-c", f"{before}\nimport sys\nfrom plugstream.cli import main\nsys.exit(main())", *words],
        stdout=theirs, stderr=theirs, stdin=theirs, env={**kept, "LANG": "C.UTF-8", "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(theirs)
    screen, written, end = Screen(columns), b"", time.monotonic() + 150
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    some = os.read(ours, 65536)
                except OSError:  # how Linux says that nobody writes any more
                    break
                if not some:
                    break
                written += some
                text = written.decode(errors="ignore")
                for piece in _PIECE.findall(text, len(screen.written)):
                    screen.write(piece)
                    if look is not None:
                        look(screen)
        screen.write(written.decode(errors="ignore")[len(screen.written) :])
        return process.wait(timeout=150), screen
    finally:
        process.kill()
        process.wait(timeout=150)
        os.close(ours)
