"""The steps of a reconstruction as a frame: how far, how fast, the time left, and the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from plugstream.base.display.frame import Clock, Frame, Line, Part, Thinned, left_text
from plugstream.base.quantities import Quantity, sort_quantities


class Steps:
    """The steps of a run.

    Attributes: total, the most steps, 0 if unknown; end, at which step the work is expected to be over, None for after
    the most, and at_most, whether that may be long before; views that have arrived, 0 if all were there; paused; step
    and seconds of the last `tick`; picture, a function that draws the image so far as PNG, for a notebook.
    """

    def __init__(self, total: int = 0, clock: Clock | None = None) -> None:
        self.total, self.views, self.paused = total, 0, False
        self.end: int | None = None
        self.at_most = False
        self.step, self.seconds = 0, 0.0
        self.picture: Callable[[], bytes] | None = None
        self.clock = clock or Clock()
        self.values: Mapping[str, float | None] = {}
        self._quantities: list[Quantity] = []
        self._curves: dict[str, Thinned] = {}

    def declare(self, quantities: Iterable[Quantity]) -> None:
        """Declare the quantities that will be measured."""
        self._quantities = list(quantities)
        self._curves = {quantity.name: Thinned(quantity.logarithmic) for quantity in self._quantities}

    def tick(self, step: int, seconds: float, now: float) -> None:
        """Note a step, after this many seconds of steps; `now` is the clock's."""
        self.step, self.seconds = step, seconds
        self.clock.tick(step, now)

    def measure(self, values: Mapping[str, float | None]) -> None:
        """Note measured values."""
        self.values = {**self.values, **values}
        for name, value in values.items():
            if name in self._curves:
                self._curves[name].add(value)

    def forget(self, name: str) -> None:
        """Show no value of a quantity that is not measured any more: its last is of an image of long ago."""
        self.values = {other: value for other, value in self.values.items() if other != name}

    def left(self) -> tuple[float | None, bool]:
        """Seconds until the end, None where that is not known, and whether at most."""
        return self.clock.left(self.step, self.total if self.end is None else self.end), self.at_most

    def frame(self) -> Frame:
        """Progress, and below it the measurements."""
        measured = self._measured()
        return (Line(self._progress(), self.step, self.total), *([Line(measured)] if measured else []))

    def text(self, *, ended: bool = False) -> str:
        """All of it as one line, with the time left unless it has `ended`."""
        total = f"/{self.total}" if self.total else ""
        views = [f"{self.views} views"] if self.views and not self.total else []
        left = "" if ended else left_text(*self.left())
        spent = f"{self.seconds:6.1f} s" + (f", {left}" if left else "")
        words = [f"step {self.step:>{len(str(self.total))}}{total}", *views, spent]
        return "   ".join([*words, *(part.long for part in self._measured())])

    def _progress(self) -> tuple[Part, ...]:
        total = f"/{self.total}" if self.total else ""
        count = f"{self.step:>{len(str(self.total))}}{total}"
        parts = [Part(f"step {count}", count if self.total else f"step {count}", "bold")]
        if self.views and not self.total:
            parts.append(Part(f"{self.views} views"))
        if self.paused:
            parts.append(Part("paused", style="warning"))
        elif left := left_text(*self.left()):
            parts.append(Part(left, style="cyan"))
        if not self.paused and (rate := self.clock.rate) is not None:
            digits = f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"
            parts.append(Part(f"{digits} steps/s", f"{digits}/s"))
        parts.append(Part(f"{self.seconds:.1f} s", style="dim"))
        return tuple(parts)

    def _measured(self) -> tuple[Part, ...]:
        return tuple(
            Part(quantity.text(value), quantity.text(value, short=True), "", self._curves[quantity.name].values())
            for quantity in sort_quantities(self._quantities, self.values)
            if (value := self.values[quantity.name]) is not None
        )
