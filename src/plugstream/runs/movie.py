"""A movie of the image of a run as it forms, made from the frames that the run kept and its event log."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import hidden_place, write_whole
from plugstream.base.progress import report
from plugstream.base.quantities import Quantity, sort_quantities
from plugstream.base.text import is_unicode
from plugstream.images.drawing import BLUE, INK, Panel, Shades, draw_rows, figure_size
from plugstream.images.planes import cyclic_table, phase_label
from plugstream.images.space import ImageSpace
from plugstream.runs.folder import open_run
from plugstream.runs.frames import Moment, is_phase, read_moments
from plugstream.runs.replay import History, replay
from plugstream.runs.results import title_of_folder
from plugstream.solver.monitors import snr

_SECONDS = 6.0  # that a movie takes, as far as frames a second allow
_SLOWEST, _FASTEST = 6.0, 25.0
_HOLD = 2.0  # seconds that the last frame stays
_PATIENCE = 120.0  # seconds that ffmpeg may take to finish once it has all frames
_PALE = "#c9d3de"
_DOTS = 9.0  # an inch at least: with fewer the smallest text has not one pixel, which no font can be drawn with


@dataclass(frozen=True)
class Movie:
    """A movie: its file, how many frames it has, the steps of the first and the last, and how long it takes."""

    path: Path
    frames: int
    first: int
    last: int
    seconds: float


def make_movie(
    folder: Path, out: Path, *, fps: float | None = None, size: int = 420, title: str | None = None
) -> Movie:
    """Make a movie of a run's image as it forms, as a GIF or, where ffmpeg is installed, as MP4.

    The scale of colours is that of the last frame, which is the result where the run is over. Each frame has its step
    and what was measured by then, above the curve of what says most of the image.

    Arguments:
        folder: of a run, that may still go on. out: the file, .gif or .mp4.
        fps: frames a second; for about six seconds if not given. size: about how many pixels the image's longer side
            has, a whole multiple of its own. title: above the image; what the run does if not given.
    """
    kind = out.suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise InputError(f"cannot make a movie as {out.name}: the ending must be .gif or .mp4")
    if title is not None and not is_unicode(title):
        raise InputError(
            f"the title {title!r} holds bytes that are not UTF-8, which cannot be drawn; write it in UTF-8"
        )
    if kind == ".mp4" and shutil.which("ffmpeg") is None:
        raise InputError("an MP4 needs ffmpeg, which is not installed here; install it, or make a .gif")
    open_run(folder)
    if not out.parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist; make it first")
    history = replay(folder / "events.jsonl")
    frames, panels = read_moments(folder, history)
    rate = fps or min(_FASTEST, max(_SLOWEST, len(frames) / _SECONDS))
    points = _measured(history, folder, frames)
    tale = _Tale(points, history.quantities, history.arrivals(), frames[-1].step)
    scene = _Scene(frames, panels, tale, title or title_of_folder(folder) or folder.resolve().name, size)
    report(f"drawing {len(frames)} frames")
    pictures, hold = scene.draw(), max(1, round(_HOLD * rate))
    try:
        if kind == ".gif":
            phases = any(is_phase(panel) for row in panels for panel in row)
            write_whole(out, [_encode_gif(pictures, rate, phases=phases)])
        else:
            _encode_video(out, pictures, rate, hold)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
    return Movie(out, len(frames), frames[0].step, frames[-1].step, (len(frames) - 1) / rate + hold / rate)


class _Scene:
    """The figure of a movie: what stands still is drawn once, and images, text and curve for each frame."""

    def __init__(
        self, frames: Sequence[Moment], panels: Sequence[Sequence[dict[str, Any]]], tale: _Tale, title: str, size: int
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.frames, self.tale = frames, tale
        self.rows = _panels(frames[-1].rows, panels)
        width, height = figure_size(self.rows)
        width = max(width, 4.2)
        heights = [0.28, height, *([1.3] if tale.curve else [])]
        figure: Any = Figure(figsize=(width, sum(heights) + 0.42), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.06)
        figure.suptitle(title, fontsize=10, color=INK, x=0.02, ha="left", parse_math=False)  # a $ is a dollar
        parts: list[Any] = np.asarray(figure.subfigures(len(heights), 1, height_ratios=heights)).tolist()
        self.text = parts[0].text(0.02, 0.5, "", fontsize=10, color=BLUE, va="center", animated=True)
        axes = [panel.space for row in self.rows for panel in row]
        draw_rows(parts[1], self.rows, axes[0] if len(set(axes)) == 1 and axes[0] else ImageSpace((1, 1, 1)))
        self.artists = [one.images[0] for one in parts[1].axes if one.images]
        self.moving: list[Any] = []  # of the curve: what was measured by then, and its end
        if tale.curve is not None:
            self._draw_curve(parts[2], tale.curve)
        self.canvas: Any = FigureCanvasAgg(figure)
        for _ in range(2):  # with which the layout is settled
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
        # Each pixel of the image has as many of the movie a side, a whole number, so that all look the same.
        longest = max(max(panel.image.shape) for row in self.rows for panel in row)
        drawn, pixels = float(self.artists[0].axes.get_window_extent().width), self.rows[0][0].image.shape[1]
        multiple = max(1, round(size / longest), math.ceil(_DOTS * drawn / (figure.dpi * pixels)))
        figure.set_dpi(figure.dpi * multiple * pixels / drawn)

    def draw(self) -> Iterator[NDArray[np.uint8]]:
        """The frames as pictures (height, width, 3), with both sides even, as video wants them."""
        for artist in self.artists:
            artist.set_animated(True)
        self.canvas.draw()
        still = self.canvas.copy_from_bbox(self.canvas.figure.bbox)
        for frame in self.frames:
            self.canvas.restore_region(still)
            flat = [image for row in frame.rows for image in row]
            for artist, image in zip(self.artists, flat, strict=True):
                artist.set_data(image)
                artist.axes.draw_artist(artist)
                for spine in artist.axes.spines.values():  # which the image covers in part
                    artist.axes.draw_artist(spine)
            self._tell(frame.step)
            pixels = np.asarray(self.canvas.buffer_rgba())[..., :3]
            yield np.ascontiguousarray(pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2])

    def _tell(self, step: int) -> None:
        """Draw the step, what was measured by then, and the curve up to there."""
        self.text.set_text(self.tale.tell(step))
        self.text.draw(self.canvas.get_renderer())
        if self.tale.curve is not None:
            so_far = [point for point in self.tale.points[self.tale.curve.name] if point[0] <= step]
            for artist, points in zip(self.moving, (so_far, so_far[-1:]), strict=True):
                artist.set_data([step for step, _ in points], [value for _, value in points])
                artist.axes.draw_artist(artist)

    def _draw_curve(self, figure: Any, quantity: Quantity) -> None:
        axes = figure.subplots()
        steps, values = zip(*self.tale.points[quantity.name], strict=True)
        axes.plot(steps, values, color=_PALE, linewidth=1.2)
        self.moving += axes.plot([], [], color=BLUE, linewidth=1.6, animated=True)
        self.moving += axes.plot([], [], "o", color=BLUE, markersize=4, animated=True)
        if quantity.logarithmic and min(values) > 0:
            axes.set_yscale("log")
        axes.set_xlabel("iteration", fontsize=8)
        axes.set_title(quantity.label, fontsize=8, loc="left", color=INK)  # beside the axis a long one would not fit
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)


def _panels(
    images: Sequence[Sequence[NDArray[np.float32]]], rows: Sequence[Sequence[dict[str, Any]]]
) -> list[list[Panel]]:
    """The panels as they are drawn: values and magnitudes on one scale, which these images span."""
    first = rows[0][0]
    name = first["quantity"].removesuffix(", magnitude")
    label = f"{name} ({first['unit']})" if first["unit"] else name
    pairs = [list(zip(row, about, strict=True)) for row, about in zip(images, rows, strict=True)]
    spanned = [image.ravel() for row in pairs for image, panel in row if not is_phase(panel)]
    shades = Shades.of(np.concatenate(spanned), label if name == first["quantity"] else f"|{label}|")

    def colours(panel: dict[str, Any]) -> Shades:
        if not is_phase(panel):
            return shades
        return Shades(-math.pi, math.pi, phase_label(_space(panel)), "twilight_shifted")

    return [[Panel(panel["title"], image, colours(panel), _space(panel)) for image, panel in row] for row in pairs]


def _space(panel: dict[str, Any]) -> ImageSpace:
    """The space of a panel's two axes."""
    axes = panel["axes"]

    def each(name: str) -> tuple[float, ...] | None:
        values = tuple(axis[name] for axis in axes)
        return None if None in values else values

    names, shape = tuple(axis["name"] for axis in axes), tuple(axis["size"] for axis in axes)
    return ImageSpace(
        shape,
        axes=names,
        spacing=each("spacing"),
        origin=each("origin"),
        unit=axes[-1]["unit"] or "m",
        upwards=panel["upwards"],
        phase="free" if "turned" in panel else "measured",
    )


def _measured(history: History, folder: Path, frames: Sequence[Moment]) -> dict[str, list[tuple[int, float]]]:
    """What was measured up to the last frame, and the SNR of each frame, where it and the truth are whole images."""
    last, points = frames[-1], {}
    for name, pairs in history.points().items():
        if pairs[0][0] <= last.step:
            points[name] = {step: value for step, value in pairs if step <= last.step}
    truth = _load_truth(folder, last.image) if "snr" in points else None
    if truth is not None:
        phase = "measured" if history.space is None else history.space.phase
        scores = {
            frame.step: float(snr(frame.image, truth, phase=phase)) for frame in frames if frame.image is not None
        }
        points["snr"] = {step: value for step, value in scores.items() if math.isfinite(value)} | points["snr"]
    return {name: sorted(values.items()) for name, values in points.items()}


def _load_truth(folder: Path, image: NDArray[Any] | None) -> NDArray[Any] | None:
    """The true image, where it has the pixels of a frame, and is complex where that is."""
    if image is None:
        return None
    try:
        truth: NDArray[Any] = np.load(folder / "truth.npy", allow_pickle=False)
    except (OSError, ValueError):
        return None
    kind = np.complex64 if np.iscomplexobj(image) else np.float32
    return truth if truth.shape == image.shape and truth.dtype == kind else None


class _Tale:
    """What a movie says beside the image: the step, the views that had come, and what was measured by then.

    `curve` is the quantity that says most of the image, None where none was measured twice.

    Arguments: points, steps and values of each quantity by name; quantities; arrivals, from which steps on there were
    how many views, left out where all were there from the start; last, the step of the last frame.
    """

    def __init__(
        self,
        points: dict[str, list[tuple[int, float]]],
        quantities: Sequence[Quantity],
        arrivals: Sequence[tuple[int, int]],
        last: int,
    ) -> None:
        self.points, self.last = points, last
        self.arrivals = list(arrivals) if len(arrivals) > 1 else []
        self.quantities = sort_quantities(quantities, points)
        self.curve = next((one for one in self.quantities if len(points[one.name]) > 1), None)

    def tell(self, step: int) -> str:
        """A line for a frame, in which numbers keep their places from frame to frame."""
        words = [_aligned("step {}", step, self.last)]
        if self.arrivals:
            count = bisect_right(self.arrivals, (step, math.inf))
            words.append(_aligned("{} views", self.arrivals[max(0, count - 1)][1], self.arrivals[-1][1]))
        for quantity in self.quantities[:2]:
            count = bisect_right(self.points[quantity.name], (step, math.inf))
            if count:
                words.append(quantity.text(self.points[quantity.name][count - 1][1], short=True))
        return "    ".join(words)


def _aligned(text: str, number: int, most: int) -> str:
    """A number in a text, with the room that the largest one needs."""
    return text.format(str(number).rjust(len(str(most)), "\u2007"))  # a blank as wide as a digit


def _encode_gif(pictures: Iterator[NDArray[np.uint8]], rate: float, *, phases: bool) -> bytes:
    """A GIF that repeats for ever, whose frames share the colours of the last one, or those that a phase needs."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    palette = images[-1].quantize(256, method=Image.Quantize.MEDIANCUT)
    colours = np.asarray(palette.getpalette()).reshape(-1, 3)
    if phases:  # by their number in a frame, the colours of a phase would leave magnitudes a dozen shades of grey
        ink = np.linspace((255, 255, 255), [int(BLUE[n : n + 2], 16) for n in (1, 3, 5)], 24)
        greys = np.linspace((0, 0, 0), (255, 255, 255), 64)  # Pillow tells no more apart
        colours = np.rint(np.concatenate([greys, cyclic_table(168), ink])).astype(np.uint8)
    colours[colours.min(axis=1) >= 248] = 255  # paper stays white
    palette.putpalette(colours.ravel().tolist())
    coded = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    times = [round(1000 / rate)] * (len(coded) - 1) + [round(1000 * _HOLD)]
    file = io.BytesIO()
    coded[0].save(file, "GIF", save_all=True, append_images=coded[1:], duration=times, loop=0, optimize=False)
    return file.getvalue()


def _encode_video(out: Path, pictures: Iterator[NDArray[np.uint8]], rate: float, hold: int) -> None:
    """Write pictures as a video that every player and browser shows, whole or not at all.

    ffmpeg is run here and not by a library: imageio's plugin brings a binary of its own, and Matplotlib's writer draws
    the whole figure for every frame, where `_Scene` draws only what moves.

    Arguments: pictures, (height, width, 3) in RGB with even sides; rate, pictures a second; hold, how often the last is
    repeated.
    """
    partial = hidden_place(out)
    first = next(pictures)
    height, width = first.shape[:2]
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{rate:g}", "-i", "-"]
    # 4:2:0 and the index in front are what browsers need; ffmpeg takes H.264 for MP4 where it has that.
    coded = ["-an", "-pix_fmt", "yuv420p", "-crf", "18", "-movflags", "+faststart", "-f", "mp4", str(partial)]
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y", *raw, *coded]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it says itself why it ended
                last = first
                process.stdin.write(first.data)
                for last in pictures:
                    process.stdin.write(last.data)
                for _ in range(hold - 1):
                    process.stdin.write(last.data)
            if process.wait(_PATIENCE) != 0:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines() or ["it does not say why"]
                raise StorageError(f"ffmpeg could not write {out}: {lines[-1]}")
            partial.replace(out)
        except subprocess.TimeoutExpired:
            raise StorageError(f"ffmpeg did not finish {out} within {_PATIENCE:.0f} s") from None
        finally:
            process.kill()  # which does nothing where it has ended
            process.wait()
            partial.unlink(missing_ok=True)
