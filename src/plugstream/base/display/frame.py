"""The state of work at one moment, as lines that fit any width, with its speed and the time left."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plugstream.base.text import printable

_BAR, _LEAST_BAR = 40, 6
_CURVE = 16  # characters of a small curve, at most
_RECENT = 20.0  # seconds of steps that speed and time left are estimated from
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Part:
    """One thing to say: in full, shorter where space is short, with a style of rich and a small curve."""

    long: str
    short: str = ""
    style: str = ""
    curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line of a frame: its parts, the most important first, and a bar if `total` is known."""

    parts: tuple[Part, ...]
    done: int = 0
    total: int = 0


Frame = tuple[Line, ...]
Piece = tuple[str, str]
"""Text and its style; the two halves of a bar have the styles "bar" and "rest"."""


def frame_text(frame: Frame) -> str:
    """A frame as one plain line."""
    return "   ".join(printable(part.long) for line in frame for part in line.parts)


def fit(line: Line, width: int, *, blocks: bool = True, measure: Callable[[str], int] = len) -> list[Piece]:
    """A line in at most `width` columns: with long words, with short ones, or with fewer of them.

    The space that is left goes to the bar, or without one to the curves of the parts.

    Arguments: blocks, whether the terminal shows the characters of curves; measure, the columns of a text.
    """
    parts = list(line.parts)
    least = _LEAST_BAR + 2 if line.total else 0

    def length() -> int:
        return sum(map(measure, texts)) + len(gap) * (len(texts) - 1)

    texts, gap = [printable(part.long) for part in parts], "   "
    if length() + least > width:
        texts, gap = [printable(part.short or part.long) for part in parts], "  "
    # The first parts matter most, and two of them more than a bar.
    while len(parts) > 1 and length() + (least if len(parts) > 2 else 0) > width:
        parts.pop()
        texts.pop()
    room = width - length()
    pieces: list[Piece] = []
    if line.total and room >= least:
        bar = min(_BAR, room - 2)
        done = int(bar * min(1.0, line.done / line.total))
        full, empty = ("━", "━") if blocks else ("#", "-")
        pieces += [(full * done, "bar"), (empty * (bar - done), "rest"), ("  ", "")]
        room -= bar + 2
    curves = [part for part in parts if len(part.curve) > 1] if blocks else []
    # Beside a bar, numbers are enough.
    columns = 0 if line.total or not curves else min(_CURVE, room // len(curves) - 1)
    for number, (part, text) in enumerate(zip(parts, texts, strict=True)):
        while measure(text) > width:
            text = text[:-1]
        pieces += [(gap if number else "", ""), (text, part.style)]
        if columns >= 4 and len(part.curve) > 1:
            pieces.append((" " + sparkline(part.curve, columns), "curve"))
    return [piece for piece in pieces if piece[0]]


def sparkline(values: Sequence[float], length: int) -> str:
    """Numbers as a small curve of at most `length` characters; one that is not finite leaves a blank.

    If there are more numbers, the first are denser than the last, as on a logarithmic axis.
    """
    count = min(length, len(values))
    places: Sequence[int] = range(count)
    if count < len(values):
        shift = max(1.0, len(values) / 64)  # so that hardly a number is picked twice
        ratio = (len(values) - 1 + shift) / shift
        places = [round(shift * ratio ** (n / max(1, count - 1)) - shift) for n in range(count)]
    picked = [values[place] for place in places]
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return " " * count
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(
        _LEVELS[int((value - low) / span * (len(_LEVELS) - 1) + 0.5)] if math.isfinite(value) else " "
        for value in picked
    )


class Thinned:
    """The values of a series, evenly thinned to a few hundred; the last one is always there.

    Arguments: logarithmic, whether to store logarithms, for a curve over decades.
    """

    def __init__(self, logarithmic: bool = False, most: int = 256) -> None:
        self._logarithmic, self._most = logarithmic, most
        self._values: list[float] = []
        self._last: float | None = None
        self._every, self._count = 1, 0

    def add(self, value: float | None) -> None:
        value = math.nan if value is None else value
        if self._logarithmic:
            value = math.log10(value) if value > 0 else math.nan
        if self._count % self._every == 0:
            self._values.append(value)
            if len(self._values) > self._most:
                self._values, self._every = self._values[::2], 2 * self._every
        self._last, self._count = value, self._count + 1

    def values(self) -> tuple[float, ...]:
        last = () if self._last is None or (self._count - 1) % self._every == 0 else (self._last,)
        return (*self._values, *last)


class Clock:
    """The speed of work and the time left, from the steps of the last seconds.

    Arguments: limit, seconds after `begun` when it ends in any case.
    """

    def __init__(self, limit: float | None = None, begun: float = 0.0) -> None:
        self._limit, self._begun = limit, begun
        self._ticks: deque[tuple[float, int]] = deque()

    def tick(self, step: int, now: float) -> None:
        if self._ticks and step < self._ticks[-1][1]:  # back, as in a resumed run
            self._ticks.clear()
        if self._ticks and now - self._ticks[-1][0] < 0.05:
            return
        self._ticks.append((now, step))
        # Two stay, however slow the steps are.
        while len(self._ticks) > 2 and now - self._ticks[1][0] > _RECENT:
            self._ticks.popleft()

    def forget(self) -> None:
        """Start again after a pause."""
        self._ticks.clear()

    @property
    def rate(self) -> float | None:
        """Steps a second, None after too few steps."""
        return self._judge()[0]

    def left(self, step: int, total: int) -> float | None:
        """Seconds until the end, None after too few steps or without a known end."""
        rate, now = self._judge()
        if rate is None or not step < total:
            return None
        seconds = (total - step) / rate
        return seconds if self._limit is None else max(0.0, min(seconds, self._limit - (now - self._begun)))

    def _judge(self) -> tuple[float | None, float]:
        """Steps a second and the time of the last; from one copy, since another thread may tick meanwhile."""
        ticks = tuple(self._ticks)
        if len(ticks) < 2:
            return None, 0.0
        (first, before), (last, after) = ticks[0], ticks[-1]
        return (after - before) / (last - first) if after > before and last - first >= 0.5 else None, last


def left_text(seconds: float | None, at_most: bool = False) -> str:
    """The time left in words, empty where it is not known."""
    return "" if seconds is None else f"{'at most ' if at_most else ''}{duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as a person would say it."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"
