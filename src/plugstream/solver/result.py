"""What `solve` tells of a run: its progress while it goes on, why it stopped, and its result."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from plugstream.algorithms.base import Algorithm, State
from plugstream.base.arrays import as_tensor
from plugstream.base.quantities import Quantity
from plugstream.images.drawing import encode_figure
from plugstream.solver.series import Series
from plugstream.solver.verdict import Trace, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plugstream.images.space import ImageSpace
    from plugstream.scans.scan import Scan

__all__ = ["Callback", "Progress", "Result", "Row", "Snapshot", "Stop", "Turn"]

S = TypeVar("S", bound=State)


class Stop(Enum):
    """Why a run ended."""

    ITERATIONS = "all iterations were done"
    TIME = "the time limit was reached"
    ARRIVED = "the image has arrived"
    HOVERS = "the image hovers, and more steps would not bring it nearer"
    DISTANCE = "the distance to a fixed point fell below its limit"
    SETTLED = "the misfit on views that are held out falls no more"
    DIVERGED = "the image grew without bound; use a smaller step (at most 1/L) or a milder denoiser"
    NOT_FINITE = (
        "the image became NaN or infinite; use a smaller step (at most 1/L), check the denoiser, or use float64"
    )
    INTERRUPTED = "it was interrupted"
    CALLBACK = "a callback asked for it"
    ASKED = "somebody asked it to stop"

    @property
    def failed(self) -> bool:
        return self in (Stop.DIVERGED, Stop.NOT_FINITE)


Row = tuple[int, float, NDArray[np.float64]]
"""One measurement: the step, the algorithm's time, and a value for each image."""


@dataclass(frozen=True)
class Snapshot(Generic[S]):
    """A run in the middle: all that `solve` needs to go on as if there had been no stop.

    `first` is the step that the run began with, `limit` the size beyond which it has diverged, `best` the score and
    state that an interrupted run returns, `rows` what was measured, by name, `measured_at` the last step at which each
    monitor did, and `trace` the way of the image.
    """

    state: S
    first: int
    time: float
    wall: float
    limit: float | None
    best: tuple[float, S] | None
    rows: dict[str, list[Row]]
    measured_at: list[int]
    trace: Trace = field(default_factory=Trace)


@dataclass(frozen=True)
class Progress(Generic[S]):
    """What a callback gets after each step: algorithm, state, seconds of algorithm and wall time, what was measured.

    `snapshot()` is the run at this step, from which `solve(..., resume=...)` goes on. `leave_out(seconds)` takes time
    that a callback has waited for a person off the run's clock.
    """

    algorithm: Algorithm[S]
    state: S
    time: float
    wall: float
    measured: dict[str, Tensor]
    snapshot: Callable[[], Snapshot[S]]
    leave_out: Callable[[float], None] = lambda seconds: None


@dataclass(frozen=True)
class Turn(Generic[S]):
    """What a callback answers that has the run go on with another algorithm and another state of as many steps."""

    algorithm: Algorithm[S]
    state: S


Callback = Callable[[Progress[S]], "bool | Algorithm[S] | Turn[S] | None"]
"""What `solve` calls after each step: True ends the run, and an algorithm takes the place of the run's, with a `Turn`
its state besides."""


@dataclass(frozen=True, repr=False)
class Result(Generic[S]):
    """What a run gave: the image, how it came about, and a state to go on from.

    `image` is the last iterate. Where a run was interrupted or diverged it is the best one measured: by the first
    quantity that compares with the truth, otherwise by the first of which a monitor says what is better, such as the
    distance to a fixed point; `image_step` tells which. `state` is the last good state, and
    `solve(algorithm, state=result.state, ...)` goes on from it as if there had been no stop. `verdict` has what the run
    says of itself, and `plot()` draws it. `parameters` are what was found of the model along with that image, by name;
    `uncertainty` is the error to expect at each pixel, where that was asked for (`plugstream.error_map`). The last
    `image_axes` axes are one image, the first of them that of its channels if it has `channels`.
    """

    image: Tensor
    image_step: int
    state: S
    reason: Stop
    history: dict[str, Series]
    time: float
    wall: float
    verdict: Verdict
    image_axes: int = 2
    channels: bool = False
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    uncertainty: Tensor | None = None

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.image.shape))
        parts = [
            f"image {shape} {str(self.image.dtype).removeprefix('torch.')}",
            f"{self.state.k} steps in {self.time:.3g} s",
            f"stopped since {self.reason.value}",
            self.verdict.name,
            *(f"{name} {value:.4g}" for name, value in self.measured().items()),
        ]
        if self.image_step != self.state.k:
            parts[0] += f" of step {self.image_step}"
        return f"Result({', '.join(parts)})"

    def measured(self) -> dict[str, float]:
        """What was measured of `image`, by name, of several images their mean; nothing of other steps."""
        found = {name: series.value[series.step == self.image_step] for name, series in self.history.items()}
        return {name: float(np.mean(values[-1])) for name, values in found.items() if len(values)}

    def plot(
        self, scan: Scan | None = None, *, space: ImageSpace | None = None, truth: ArrayLike | Tensor | None = None
    ) -> Figure:
        """Draw the image with its axes and colour bar, beside the truth and above what was measured.

        Returns a matplotlib figure: `result.plot(scan).savefig("result.pdf")`; any format of matplotlib will do.

        Arguments: scan, which says where the pixels lie, which way y points and, if it was simulated, the truth;
        instead of it space, and truth, of the image's shape. Without either the axes count pixels, with the first row
        on top. Volumes are drawn as three slices, complex images as magnitude and phase, whose mean is taken out, or
        that is turned to the truth's, unless the space says that it is measured.
        """
        from plugstream.images.space import ImageSpace as Space
        from plugstream.solver.plot import plot_result

        if scan is not None:
            space = Space.of(scan) if space is None else space
            truth = scan.truth if truth is None else truth
        known = None if truth is None else as_tensor("the truth", truth).detach().cpu().numpy()
        if space is None:
            shape = tuple(self.image.shape[-max(2, self.image_axes) :])
            space = Space(shape, self.image.is_complex(), self.channels, upwards=False)
        title = f"{self.state.k} steps in {self.time:.1f} s: {self.reason.value}"
        return plot_result(self.image, self.history, title, space, known)

    def _repr_png_(self) -> bytes:
        """What a notebook shows that takes no HTML."""
        return self._draw()[0]

    def _repr_html_(self) -> str:
        """What a notebook shows: whether to trust it, the image with the curves below, and what was measured of it."""
        return self._page(*self._draw())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """Both of them, drawn once."""
        png, width = self._draw()
        return {"text/plain": repr(self), "text/html": self._page(png, width), "image/png": png}

    def _draw(self) -> tuple[bytes, int]:
        """The plot as PNG, and the width to show it at: half its own, so that it is sharp where pixels are small."""
        figure = self.plot()
        return encode_figure(figure, dpi=150), round(75 * figure.get_figwidth())

    def _answers(self) -> str:
        """The three answers as paragraphs."""
        return "".join(
            f"<p>{escape(question)} <b>{escape(answer.word)}</b>: {escape(answer.text)}</p>"
            for question, answer in self.verdict.answers.items()
        )

    def _page(self, png: bytes, width: int) -> str:
        picture = base64.b64encode(png).decode()
        known = [(self.history[name].quantity, value) for name, value in self.measured().items()]
        shown = [one for one in known if not one[0].detail] or known
        rows = "".join(
            f"<tr><td>{escape(quantity.title or quantity.name)}</td><td>{escape(_value(quantity, value))}</td></tr>"
            for quantity, value in shown
        )
        head = f"<tr><th>measured</th><th>at step {self.image_step}</th></tr>"
        return (
            f"<div>{self._answers()}"
            f'<img width="{width}" style="max-width:100%;height:auto" alt="{escape(repr(self))}" '
            f'src="data:image/png;base64,{picture}">'
            f"{f'<table>{head}{rows}</table>' if rows else ''}</div>"
        )


def _value(quantity: Quantity, value: float) -> str:
    """A value with its unit."""
    return f"{value:{quantity.form}} {quantity.unit}".rstrip()
