"""A run as PVs of EPICS, while it goes on: the forming image, step, distance and verdict, for Phoebus and any display.

    PREFIX Image      NTNDArray, as of areaDetector: float32, uniqueId is the step
    PREFIX Step, Views, Distance, ToGo      numbers; Distance to a fixed point is relative to its start, ToGo in percent
    PREFIX State, Verdict                   words
    PREFIX Command, Sigma                   only if putting is allowed: pause, resume or stop, and a number

What is put goes the way of the live page's buttons (`plugstream.runs.commands`): it is checked, logged and repeatable.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.quantities import TO_GO
from plugstream.images.space import ImageSpace
from plugstream.runs.callbacks import Pace, PacedWriter
from plugstream.runs.commands import read_command, send_command
from plugstream.runs.events import Event, Heartbeat, Measurement, Resume, Start, Steering, Stop, Views
from plugstream.scans.streams.pva import p4p_module

# Seconds between two images, and pixels that are sent in a second, at least.
_EVERY = 1.0
_SPEED = 2e7
_LAST_WORDS = 0.3  # seconds for the last values to reach those who look
_PREFIX = re.compile(r"[\w:.\-{}<>\[\]]{1,60}")
_NUMBERS, _WORDS = ("Distance", "ToGo"), ("State", "Verdict")


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that no PV can have, and a machine without p4p."""
    if not _PREFIX.fullmatch(prefix):
        raise InputError(
            f"cannot publish PVs as {prefix[:80]!r}; a prefix has letters, digits and :.-_, such as recon:"
        )
    _p4p()


def _p4p() -> Any:
    p4p_module()  # or one line that says how to get it
    from p4p import nt, server
    from p4p.server import thread

    return nt, server, thread


class Publisher(PacedWriter):
    """Serves the PVs of a run, whose events it hears and whose image it sends at most once a second.

    Arguments: prefix, which `check_prefix` accepts; folder of the run; allow_put, whether clients may steer it.
    """

    def __init__(self, prefix: str, folder: Path, *, allow_put: bool = False) -> None:
        self.folder = folder
        self.pace = Pace(_EVERY)
        self._space: ImageSpace | None = None
        self._nt, server, thread = _p4p()
        scalar, self._image = self._nt.NTScalar, thread.SharedPV()
        self._pvs = {name: thread.SharedPV(nt=scalar("l"), initial=0) for name in ("Step", "Views")}
        self._pvs |= {name: thread.SharedPV(nt=scalar("d"), initial=math.nan) for name in _NUMBERS}
        self._pvs |= {name: thread.SharedPV(nt=scalar("s"), initial="") for name in _WORDS}
        if allow_put:
            self._pvs["Command"] = thread.SharedPV(nt=scalar("s"), initial="", handler=_Put(self._command))
            self._pvs["Sigma"] = thread.SharedPV(nt=scalar("d"), initial=math.nan, handler=_Put(self._change))
        names = {f"{prefix}{name}": pv for name, pv in (self._pvs | {"Image": self._image}).items()}
        try:
            self._server = server.Server(providers=[names])
        except RuntimeError as error:
            raise InputError(f"cannot publish {prefix}Image: {error}") from None

    def close(self) -> None:
        """Take the PVs away, after the last values have gone out."""
        time.sleep(_LAST_WORDS)
        self._server.stop()

    def of(self, space: ImageSpace) -> Publisher:
        """The same, for images of this space."""
        self._space = space
        self.pace = Pace(_EVERY, math.prod(space.shape) / _SPEED)
        return self

    def __call__(self, event: Event) -> None:
        """Take the next event of the log."""
        match event:
            case Start() | Resume():
                self._post("State", "running")
            case Views():
                self._post("Views", event.views)
            case Heartbeat():
                self._post("Step", event.step)
            case Measurement():
                self._post("Step", event.step)
                for name, key in zip(_NUMBERS, ("relative_distance", TO_GO.name), strict=True):
                    if event.values.get(key) is not None:
                        self._post(name, event.values[key])
            case Steering() if event.action in ("pause", "resume"):
                self._post("State", "paused" if event.action == "pause" else "running")
            case Stop():
                trust = "trusted" if event.trusted else "not to be trusted yet"
                self._post("Step", event.step)
                self._post("Verdict", event.reason if event.failed else f"{trust}: {event.explanation or ''}")
                self._post("State", "failed" if event.failed else "ended")

    def write(self, step: int, image: Tensor) -> None:
        """Send this image."""
        assert self._space is not None
        value = self._nt.NTNDArray().wrap(make_plane(image, self._space))
        now = time.time()
        stamp = {"secondsPastEpoch": int(now), "nanoseconds": int(now % 1 * 1e9)}
        value["uniqueId"], value["timeStamp"], value["dataTimeStamp"] = step, stamp, stamp
        value["attribute"] = [{"name": "step", "value": step}, {"name": "ColorMode", "value": 0}]
        if self._image.isOpen():
            self._image.post(value)
        else:
            self._image.open(value)

    def _post(self, name: str, value: Any) -> None:
        self._pvs[name].post(value, timestamp=time.time())

    def _command(self, value: Any) -> None:
        send_command(self.folder, read_command({"action": str(value)}))

    def _change(self, value: Any) -> None:
        send_command(self.folder, read_command({"action": "change", "sigma": float(value)}))


class _Put:
    """What a client's put does. Arguments: act, with the value; what it refuses the client hears."""

    def __init__(self, act: Callable[[Any], None]) -> None:
        self._act = act

    def put(self, pv: Any, operation: Any) -> None:
        value = operation.value()
        try:
            self._act(value.raw["value"])  # of a string with its time, the string
        except (InputError, TypeError, ValueError) as error:
            operation.done(error=str(error))
            return
        pv.post(value)
        operation.done()


@torch.no_grad()
def make_plane(image: Tensor, space: ImageSpace) -> NDArray[np.float32]:
    """The image, or of a volume its middle slice, of several channels the first, of complex numbers their magnitude.

    Rows are those of a picture. Arguments: image (..., *space.shape). Returns (rows, columns).
    """
    values = image.detach().reshape(-1, *image.shape[image.ndim - space.ndim :])[0]
    while values.ndim > 2:
        values = values[0] if space.channels and values.ndim == space.ndim else values[values.shape[0] // 2]
    values = values.abs() if values.is_complex() else values
    return np.ascontiguousarray((values.flip(0) if space.upwards else values).to("cpu", torch.float32).numpy())
