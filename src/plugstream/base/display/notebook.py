"""Progress in a Jupyter notebook: one element of the cell's output, redrawn as work goes on."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Sequence
from html import escape
from typing import Any

from plugstream.base.display.frame import Frame, Line
from plugstream.base.text import printable

_WIDE, _HIGH = 80, 14  # pixels of a small curve


def in_notebook() -> bool:
    """Whether the code runs in a notebook's kernel, which shows HTML."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


class NotebookRegion:
    """As `plugstream.base.display.region.TerminalRegion`, for a notebook; it needs only IPython.

    Other output of the cell is above or below it. At the end it is removed, unless it is `final`.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self.is_open = self.final = False

    def draw(self, frame: Frame, picture: bytes = b"") -> None:
        """Show a frame in place of the last one, and below it a PNG, if there is one."""
        if self.final:
            return
        from IPython.display import HTML, display

        content = HTML("".join(map(_html, frame)) + _image(picture))
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)

    def erase(self) -> None:
        return

    def close(self) -> None:
        """Remove it for good."""
        if self._handle is not None:
            self.draw(())


def _html(line: Line) -> str:
    words = [
        f'<span style="white-space:nowrap">{escape(printable(p.long))}{_curve(p.curve)}</span>' for p in line.parts
    ]
    if line.total:
        words.insert(0, f'<progress max="{line.total}" value="{min(line.done, line.total)}"></progress>')
    style = "display:flex;flex-wrap:wrap;align-items:center;gap:0 1.4em;font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{"".join(words)}</div>'


def _image(png: bytes) -> str:
    if not png:
        return ""
    return f'<img alt="the image so far" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _curve(values: Sequence[float]) -> str:
    """A small curve of the finite values."""
    points = [(place, value) for place, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    across, up = _WIDE / (len(values) - 1), _HIGH / ((high - low) or 1.0)
    path = " ".join(f"{1 + place * across:.1f},{1 + (high - value) * up:.1f}" for place, value in points)
    return (
        f'<svg width="{_WIDE + 2}" height="{_HIGH + 2}" style="margin-left:.5em;vertical-align:middle" '
        f'aria-hidden="true"><polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
