"""What `solve` reports: the progress of a run, why it stopped, and its result, which can be written and read."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from plugstream.algorithms.base import Algorithm, State
from plugstream.base.arrays import as_tensor
from plugstream.base.borders import check_arguments
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.base.files import sync_folder, write_whole
from plugstream.base.quantities import Series, read_quantity, sort_quantities
from plugstream.images.drawing import INK, Curve, arrange_panels, draw_curves, draw_rows, encode_figure, figure_size
from plugstream.images.pictures import save_image
from plugstream.images.planes import turn_images
from plugstream.images.space import ImageSpace, read_space
from plugstream.solver.verdict import Answer, Outcome, Trace, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plugstream.scans.scan import Scan

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
    """All that `solve` needs to continue a run as if it had not stopped.

    `first` is the run's first step, `limit` the size beyond which it has diverged, `best` the score and state that an
    interrupted run returns, `rows` the measurements by name, `measured_at` the last step of each monitor, and `trace`
    the path of the image.
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
    """What a callback gets after each step: algorithm, state, seconds of algorithm and wall time, measurements.

    `snapshot()` is the run at this step, from which `solve(..., resume=...)` continues, with a copy of all that was
    measured. `leave_out(seconds)` takes time that a callback waited for a person off the run's clock. `trace` is where
    the image was, to be read alone.
    """

    algorithm: Algorithm[S]
    state: S
    time: float
    wall: float
    measured: dict[str, Tensor]
    snapshot: Callable[[], Snapshot[S]]
    leave_out: Callable[[float], None] = lambda seconds: None
    trace: Trace = field(default_factory=Trace)


@dataclass(frozen=True)
class Turn(Generic[S]):
    """What a callback returns to continue with another algorithm and another state of as many steps."""

    algorithm: Algorithm[S]
    state: S


Callback = Callable[[Progress[S]], "bool | Algorithm[S] | Turn[S] | None"]
"""What `solve` calls after each step: True ends the run, an algorithm replaces the run's, and a `Turn` both it and the
state."""


@dataclass(frozen=True, repr=False)
class Result(Generic[S]):
    """The result of a run: the image, how it came about, and a state to continue from.

    `image` is the last iterate or, if the run was interrupted or diverged, the best one measured: by the first quantity
    that compares with the truth, otherwise by the first that says what is better, such as the distance to a fixed
    point; `image_step` is its step. `solve(algorithm, state=result.state, ...)` continues from `state`, the last good
    one. `verdict` is what the run says about itself, `parameters` are those of the model that were refined with the
    image, by name, and `uncertainty` is the error to expect at each pixel, if it was asked for
    (`plugstream.error_map`). `space` says where the pixels lie, None if nobody said. The last `image_axes` axes are one
    image, the first of them its channels if it has `channels`.
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
    space: ImageSpace | None = None

    @property
    def plain_space(self) -> ImageSpace:
        """The space of the image; if nobody said which, one that counts pixels, with the first row on top."""
        shape = tuple(self.image.shape[-max(2, self.image_axes) :])
        return self.space or ImageSpace(shape, self.image.is_complex(), self.channels, upwards=False)

    @check_arguments
    def save(self, folder: Path | str) -> None:
        """Write the image, with pictures of it, and what the run says of it into a folder, for `load_result`."""
        save_result(self, folder)

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
        """The measurements of `image` by name, for several images their mean; nothing of other steps."""
        values = {name: series.value[series.step == self.image_step] for name, series in self.history.items()}
        return {name: float(np.mean(rows[-1])) for name, rows in values.items() if len(rows)}

    def plot(
        self, scan: Scan | None = None, *, space: ImageSpace | None = None, truth: ArrayLike | Tensor | None = None
    ) -> Figure:
        """Draw the image with its axes and colour bar, beside the truth and above the measurements.

        Returns a matplotlib figure: `result.plot(scan).savefig("result.pdf")`; any format of matplotlib will do.

        Arguments: scan, which knows where the pixels lie, which way y points and, if it was simulated, the truth; or
        space, and truth, of the image's shape. Without either the axes count pixels, with the first row on top. Volumes
        are drawn as three slices, complex images as magnitude and phase, whose mean is removed or aligned with the
        truth's unless the space says that it is measured.
        """
        if scan is not None:
            space = ImageSpace.of(scan) if space is None else space
            truth = scan.truth if truth is None else truth
        true_image = None if truth is None else as_tensor("the truth", truth).detach().cpu().numpy()
        return self._plot(self.plain_space if space is None else space, true_image)

    def _plot(self, space: ImageSpace, truth: NDArray[Any] | None) -> Figure:
        """Of several images the first six; of the quantities measured twice or more, the two most important."""
        from matplotlib.figure import Figure

        image = self.image.detach().cpu().resolve_conj().numpy()
        space.check_shape(image.shape)
        if truth is not None:
            space.check_shape(truth.shape)
        several = image.reshape(-1, *space.shape)[:6]
        names = ["result"] if len(several) == 1 else [f"image {number}" for number in range(len(several))]
        images = list(zip(names, several, strict=True))
        if truth is not None and truth.ndim == space.ndim:
            images.insert(0, ("truth", truth))
        rows = arrange_panels(turn_images(images, space, truth), space, truth)
        history = {name: series for name, series in self.history.items() if len(series.step) > 1}
        quantities = sort_quantities((series.quantity for series in history.values()), history, stop_first=True)[:2]
        curves = [Curve(q, history[q.name].step.tolist(), history[q.name].value) for q in quantities]
        width, height = figure_size(rows)
        size = max(width, 3.2 * len(curves), 4.4), height + 0.4 + 2.4 * bool(curves)
        figure = Figure(figsize=size, layout="constrained")
        title = f"{self.state.k} steps in {self.time:.1f} s: {self.reason.value}"
        figure.suptitle(title, fontsize=10, color=INK)
        if not curves:
            draw_rows(figure, rows, space)
            return figure
        above, below = np.asarray(figure.subfigures(2, 1, height_ratios=[height, 2.4])).tolist()
        draw_rows(above, rows, space)
        draw_curves(below, curves)
        return figure

    def _repr_png_(self) -> bytes:
        """For a notebook that shows no HTML."""
        return self._draw()[0]

    def _repr_html_(self) -> str:
        """For a notebook: whether to trust it, the image with the curves below, and the measurements."""
        return self._page(*self._draw())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """Both of them, drawn once."""
        png, width = self._draw()
        return {"text/plain": repr(self), "text/html": self._page(png, width), "image/png": png}

    def _draw(self) -> tuple[bytes, int]:
        """The plot as PNG, and the width to show it at: half its own, so that it is sharp where pixels are small."""
        figure = self.plot()
        return encode_figure(figure, dpi=150), round(75 * figure.get_figwidth())

    def _page(self, png: bytes, width: int) -> str:
        picture = base64.b64encode(png).decode()
        answers = "".join(
            f"<p>{escape(question)} <b>{escape(answer.word)}</b>: {escape(answer.text)}</p>"
            for question, answer in self.verdict.answers.items()
        )
        values = [(self.history[name].quantity, value) for name, value in self.measured().items()]
        rows = ""
        for quantity, value in [pair for pair in values if not pair[0].detail] or values:
            text = f"{value:{quantity.form}} {quantity.unit}".rstrip()
            rows += f"<tr><td>{escape(quantity.title or quantity.name)}</td><td>{escape(text)}</td></tr>"
        head = f"<tr><th>measured</th><th>at step {self.image_step}</th></tr>"
        return (
            f"<div>{answers}"
            f'<img width="{width}" style="max-width:100%;height:auto" alt="{escape(repr(self))}" '
            f'src="data:image/png;base64,{picture}">'
            f"{f'<table>{head}{rows}</table>' if rows else ''}</div>"
        )


@dataclass(frozen=True)
class FinalState:
    """The state of a result that was read from disk: its image and its step, from which `solve` can start anew."""

    k: int
    image: Tensor


def save_result(result: Result[Any], folder: Path | str) -> None:
    """Write a result into a folder, which is made if it is not there: result.npy, .tif and .png, and result.json.

    `load_result` reads it, as it reads the folder of a run. Refined parameters and the error map are not among it.
    """
    folder = Path(folder)
    if not folder.parent.is_dir():
        raise InputError(f"the folder {folder.parent} does not exist; make it first")
    if (folder / "result.json").exists():
        raise InputError(f"{folder} has a result already; choose another folder, or remove it")
    if (folder.exists() and not folder.is_dir()) or (folder / "zarr.json").exists():
        raise InputError(f"{folder} is {'a scan' if folder.is_dir() else 'a file'}; choose a folder for the result")
    folder.mkdir(exist_ok=True)
    try:
        if result.image.ndim == len(result.plain_space.shape):
            save_image(result.image, folder / "result", result.plain_space)
        else:  # several images, which have no one picture
            np.save(folder / "result.npy", result.image.detach().cpu().resolve_conj().numpy())
        write_record(result, folder)
        sync_folder(folder)
    except OSError as error:
        raise StorageError(f"cannot write the result to {folder}: {error.strerror or error}") from error


def write_record(result: Result[Any], folder: Path) -> None:
    """Write result.json: what a run says of its image, and what it measured."""
    verdict = result.verdict
    record = {
        "steps": result.state.k,
        "image_step": result.image_step,
        "reason": result.reason.name,
        "time": result.time,
        "wall": result.wall,
        "outcome": verdict.outcome.name,
        "text": verdict.text,
        "to_go": _plain(verdict.to_go),
        "explanation": verdict.explanation.content(),
        "strength": verdict.strength.content(),
        "space": None if result.space is None else result.space.content(),
        "image_axes": result.image_axes,
        "channels": result.channels,
        "history": {
            name: {
                "quantity": series.quantity.content(),
                "step": series.step.tolist(),
                "time": series.time.tolist(),
                "value": _plain(series.value.tolist()),
            }
            for name, series in result.history.items()
        },
    }
    write_whole(folder / "result.json", [json.dumps(record, allow_nan=False).encode()])


def load_result(folder: Path | str) -> Result[State]:
    """The result in the folder of a run, or where `Result.save` wrote one.

    Its image, verdict and measurements are those that were written; to go on with a run use `plugstream resume`.

    Arguments: folder, such as that of `plugstream reconstruct --out`.
    """
    folder = Path(folder)
    if not (folder / "result.json").is_file():
        raise InputError(f"{folder} has no result.json: it is no folder of a run that has ended with a result")
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        image = torch.from_numpy(np.load(folder / "result.npy", allow_pickle=False))
        answers = [Answer(**record[name]) for name in ("explanation", "strength")]
        verdict = Verdict(Outcome[record["outcome"]], record["text"], record["to_go"], *answers)
        history = {name: _read_series(rows) for name, rows in record["history"].items()}
        about: dict[str, Any] = {name: record[name] for name in ("image_axes", "channels")}
        space = None if record["space"] is None else read_space(record["space"])
        ends = (Stop[record["reason"]], history, float(record["time"]), float(record["wall"]), verdict)
        state = FinalState(int(record["steps"]), image)
        return Result(image, int(record["image_step"]), state, *ends, **about, space=space)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"the result in {folder} cannot be read: {error!r}; is it whole?") from error


def _read_series(rows: dict[str, Any]) -> Series:
    value = np.array(rows["value"], dtype=np.float64)
    step, time = np.array(rows["step"], np.int64), np.array(rows["time"], np.float64)
    return Series(step, time, value, read_quantity(rows["quantity"]))


def _plain(value: Any) -> Any:
    """Numbers as JSON has them: what is not finite becomes null, and is read as NaN."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or math.isfinite(value) else None
