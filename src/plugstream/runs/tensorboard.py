"""The events of a run as TensorBoard reads them: scalars, pictures and the settings, while the run goes on.

A file of TensorBoard is a sequence of records, each an `Event` as Protocol Buffers write it, with masked CRC-32C of its
length and its content. Both are a few lines here, so no package is needed to write them. torch's SummaryWriter needs
TensorBoard itself and tensorboardX needs protobuf, and both write in a thread of their own, where the run does not
notice a full disk. `pip install tensorboard` is for whoever looks at the files:

    tensorboard --logdir RUN

Reference: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and framework/summary.proto.
"""

from __future__ import annotations

import io
import json
import os
import platform
import struct
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.images.planes import color_phase
from plugstream.runs.callbacks import Pace
from plugstream.runs.events import Event, Heartbeat, Measurement, Preview, Resume, Start, Stop, Views
from plugstream.runs.frames import is_phase
from plugstream.runs.preview import read_preview, show_panel

# Seconds between two pictures, which take a hundredth of the run's time at most, and what the first may take.
_EVERY = 5.0
_FIRST = 0.01
_CHANNELS = 4
_MOST_TEXT = 1 << 20


class Tensorboard:
    """Listens to the event log of the run in a folder, and writes tensorboard/events.out.tfevents.*, a file a process.

    Scalars are what the monitors measure, by name, steps a second and the views that have come; pictures are the
    previews; the settings are a text. Where a run is resumed TensorBoard forgets the steps that are repeated.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pace = Pace(_EVERY, _FIRST)
        self._file: BinaryIO | None = None
        self._views: int | None = None
        self._shown: int | None = None
        self._broken = False

    def __call__(self, event: Event) -> None:
        """Take the next event of the log."""
        if self._broken:
            return
        try:
            self._take(event)
        except OSError as error:  # for which the run must not end
            self._broken = True
            place = self.folder / "tensorboard"
            warnings.warn(f"cannot write {place}: {error.strerror or error}", PlugstreamWarning, stacklevel=2)

    def _take(self, event: Event) -> None:
        match event:
            case Start():
                text = json.dumps(event.settings, indent=1)[:_MOST_TEXT]
                self._add(event.at, 0, [_text("settings", f"```\n{text}\n```")])
            case Resume():
                self._write(_double(1, event.at) + _integer(2, event.step + 1) + _bytes(7, _integer(1, 1)))
            case Measurement():
                values = [_scalar(name, value) for name, value in event.values.items() if value is not None]
                self._add(event.at, event.step, values)
            case Heartbeat() if event.rate is not None:
                self._add(event.at, event.step, [_scalar("steps a second", event.rate)])
            case Views() if event.views != self._views:
                self._views = event.views
                self._add(event.at, event.step, [_scalar("views", event.views)])
            case Preview() if self.pace.due():
                with self.pace.turn():
                    self._show(event.at)
            case Stop():
                self._show(event.at)
                if self._file is not None:
                    self._file.close()
                    self._file = None

    def _show(self, at: float) -> None:
        """Write the last preview, unless it was written already."""
        try:
            step, tensors, panels = read_preview(self.folder / "preview.safetensors")
        except InputError:  # none was made
            return
        if step == self._shown:
            return
        self._shown = step
        values = []
        for panel in panels:
            image = show_panel(panel, tensors)
            low, high = panel["range"] or (0.0, 1.0)
            span = None if is_phase(panel) else (min(0.0, low), high)
            for number, plane in enumerate(image[:_CHANNELS] if image.ndim == 3 else image[None]):
                channel = f"/channel {number}" if image.ndim == 3 else ""
                values.append(_picture(f"image/{panel['name']}{channel}", plane, span, upwards=panel["upwards"]))
        self._add(at, step, values)

    def _add(self, at: float, step: int, values: Iterable[bytes]) -> None:
        """Write an event with a summary of these values."""
        self._write(_double(1, at) + _integer(2, step) + _bytes(5, b"".join(_bytes(1, value) for value in values)))

    def _write(self, event: bytes) -> None:
        if self._file is None:
            place = self.folder / "tensorboard"
            place.mkdir(exist_ok=True)
            now = time.time()
            name = f"events.out.tfevents.{now:017.6f}.{platform.node()}.{os.getpid()}"
            self._file = (place / name).open("xb", buffering=0)
            self._file.write(_record(_double(1, now) + _bytes(3, b"brain.Event:2")))
        self._file.write(_record(event))


def _picture(tag: str, plane: NDArray[np.float32], span: tuple[float, float] | None, *, upwards: bool) -> bytes:
    """A value of a summary that is a picture: grey, and a phase (without a `span`) in colours."""
    from PIL import Image

    if span is None:
        numbers, colours = color_phase(plane)
        pixels = colours[numbers]
    else:
        low, high = span
        shares = np.clip((plane - low) / max(high - low, 1e-30), 0, 1)
        pixels = np.rint(255 * np.nan_to_num(shares)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[:: -1 if upwards else 1])).save(file, "PNG", compress_level=1)
    height, width = plane.shape
    image = _integer(1, height) + _integer(2, width) + _integer(3, 1 if span else 3) + _bytes(4, file.getvalue())
    return _bytes(1, tag.encode()) + _bytes(4, image)


def _scalar(tag: str, value: float) -> bytes:
    with np.errstate(over="ignore"):
        return _bytes(1, tag.encode()) + _key(2, 5) + struct.pack("<f", np.float32(value))


def _text(tag: str, text: str) -> bytes:
    """A value of a summary that is Markdown: a tensor of one string, for TensorBoard's plugin `text`."""
    metadata = _bytes(1, _bytes(1, b"text"))
    shape = _bytes(2, _integer(1, 1))
    tensor = _integer(1, 7) + _bytes(2, shape) + _bytes(8, text.encode())
    return _bytes(1, tag.encode()) + _bytes(8, tensor) + _bytes(9, metadata)


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _masked_crc(length) + content + _masked_crc(content)


def _masked_crc(content: bytes) -> bytes:
    import google_crc32c

    crc = int(google_crc32c.value(content))
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _integer(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _key(number, 1) + struct.pack("<d", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
