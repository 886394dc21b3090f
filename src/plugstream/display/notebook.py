"""Progress in a Jupyter notebook: one element of the cell's output, drawn again as work goes on."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from plugstream.display.frame import Frame, Line, sparkline
from plugstream.text import printable

__all__ = ["NotebookRegion", "in_notebook"]


def in_notebook() -> bool:
    """Whether the code runs in a notebook's kernel, which shows HTML."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


class NotebookRegion:
    """As `plugstream.display.region.TerminalRegion`, for a notebook; it needs nothing but IPython.

    Other output of the cell stands above or below it, so that it is never in its way; what stands there at the end
    stays.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self.is_open = False

    def draw(self, frame: Frame) -> None:
        """Show a frame in place of what stands there."""
        from IPython.display import HTML, display

        shown = HTML("".join(map(_html, frame)))
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def erase(self) -> None:
        return


def _html(line: Line) -> str:
    words = [f"<span>{escape(printable(part.long))}</span>{_curve(part.curve)}" for part in line.parts]
    if line.total:
        words.insert(0, f'<progress max="{line.total}" value="{min(line.done, line.total)}"></progress>')
    style = "display:flex;flex-wrap:wrap;gap:0 1.2em;font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{"".join(words)}</div>'


def _curve(values: tuple[float, ...]) -> str:
    return f'<span aria-hidden="true">{sparkline(values, 16)}</span>' if len(values) > 1 else ""
