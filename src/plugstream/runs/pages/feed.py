"""What pages are fed with: one reader for each run, however many pages show it.

Only what is new in a run's log is read. What a page shows is made once, and the same bytes, with what changed since, go
to all pages. Nothing here writes to a run, and a run without pages is not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import threading
import time
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.quantities import HELD_OUT
from plugstream.runs.commands import FOLDER as COMMANDS
from plugstream.runs.liveness import is_running
from plugstream.runs.pages.content import read_settings, run_content, stamp_of
from plugstream.runs.pages.pictures import picture_of_preview, run_picture
from plugstream.runs.preview import read_preview
from plugstream.runs.replay import HistoryReader
from plugstream.settings import Settings

# Seconds between two looks at what pages show, between two where somebody has just asked for something, how long that
# lasts, and between two checks whether a silent run still lives.
_LOOK, _QUICK, _AFTER, _LIVES = 0.05, 0.05, 3.0, 5.0
# Looking takes at most this part of one processor, and while a scan is followed, so that pictures are waited for, this.
SHARE, _LIVE_SHARE = 0.05, 0.2
# Pixels a side of a thumbnail.
_THUMBNAIL = 192
# Messages that a slow page may be behind before it gets everything again, and seconds between two signs of life to one.
_BEHIND, _ALIVE = 8, 15.0
# Previews of a run that are kept for pages that know of them, and measurements and changes of views (`History.most`).
_PREVIEWS, _KEPT = 3, 5000


class RunFeed:
    """The run in a folder for all pages that show it; its methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = HistoryReader(folder / "events.jsonl", most=_KEPT)
        self._lock = threading.Lock()
        self._content: dict[str, Any] | None = None
        self._signs_before: Any = None
        self._looked = 0.0
        self._pictures: dict[tuple[str, str, str], bytes] = {}
        self._previews: dict[str, Any] = {}  # the last ones by their stamps: pages ask for the one they know of
        self._settings: tuple[str, Settings | None] = ("", None)  # by the stamp of their file
        self._cost = 0.0  # seconds of a processor that the last look took which found something
        self.pause = 0.0  # seconds until the next look

    def content(self) -> dict[str, Any]:
        """What a page shows of the run now; InputError where its log is damaged, or it is gone."""
        with self._lock:
            begun, used, self.pause = time.monotonic(), time.thread_time(), 0.0
            signs = self._signs()
            if self._content is None or signs != self._signs_before or begun - self._looked > _LIVES:
                stamp = self._keep_preview()  # before the log: what was measured by then is there
                moment = None if stamp is None else self._previews[stamp][0]
                self._reader.read()
                settings = self._read_settings()
                content = run_content(self.folder, self._reader.history, moment=moment, settings=settings)
                if content["state"] == "killed" and self._reader.read():  # it had just said how it ended
                    content = run_content(self.folder, self._reader.history)
                if stamp is not None and "preview" in content["stamps"]:
                    content["stamps"]["preview"] = stamp
                self._content = content if self._content != content else self._content
                self._signs_before, self._looked = signs, begun
                before, self._cost = self._cost, time.thread_time() - used
                # What a single look takes longer, such as the first, delays none.
                self.pause = min(before, self._cost) / (_LIVE_SHARE if content["views"]["total"] is None else SHARE)
            return self._content

    def summary(self) -> dict[str, Any]:
        """What a list of runs says of it."""
        content = self.content()
        names = ("state", "doing", "step", "iterations", "seconds", "speed", "left", "title", "began", "stop")
        thumbnail = next((content["stamps"][role] for role in content["roles"]), None)
        more = {"at_most": content["at_most"], "values": _last_values(content), "thumbnail": thumbnail}
        return {name: content[name] for name in names} | more

    def picture(self, role: str, stamp: str | None = None) -> bytes:
        """An image of the run as JSON; `stamp` may name one of the last previews. InputError where there is none."""
        encode = json.JSONEncoder(allow_nan=False).encode
        return self._make("picture", role, lambda stamp: encode(self._picture(role, stamp)).encode(), stamp)

    def thumbnail(self) -> bytes:
        """A small PNG of the image that the page shows first; InputError where there is none."""
        roles = self.content()["roles"]
        if not roles:
            raise InputError(f"the run {self.folder.name} has no image yet")
        return self._make("thumbnail", roles[0], lambda stamp: _thumbnail(self._picture(roles[0], stamp)))

    def _picture(self, role: str, stamp: str) -> dict[str, Any]:
        space = self._reader.history.space
        if role == "preview" and stamp in self._previews:
            return picture_of_preview(self._previews[stamp], upwards=True if space is None else space.upwards)
        return run_picture(self.folder, role, space)

    def _make(self, kind: str, role: str, make: Callable[[str], bytes], stamp: str | None = None) -> bytes:
        """What is made of an image, once for as long as it stays the same."""
        stamps = self.content()["stamps"]
        with self._lock:
            if role != "preview" or stamp not in self._previews:
                stamp = stamps.get(role, "")
            if role not in stamps and stamp not in self._previews:
                return make("")  # a page that knows of a preview may ask for it when the run has its result
            if (kind, role, stamp) not in self._pictures:
                current = {*stamps.values(), *self._previews}
                self._pictures = {key: picture for key, picture in self._pictures.items() if key[2] in current}
                self._pictures[kind, role, stamp] = make(stamp)
            return self._pictures[kind, role, stamp]

    def _keep_preview(self) -> str | None:
        """The stamp of the present preview, which is kept since the file is replaced; None where it cannot be read."""
        path = self.folder / "preview.safetensors"
        for _ in range(3):
            stamp = "" if path.is_symlink() else stamp_of(path)
            if not stamp or stamp in self._previews:
                return stamp or None
            try:
                preview = read_preview(path)
            except (InputError, LookupError, TypeError, ValueError):
                return None
            if stamp == stamp_of(path):  # else another took its place meanwhile
                self._previews = dict([*self._previews.items(), (stamp, preview)][-_PREVIEWS:])
                return stamp
        return None

    def _read_settings(self) -> Settings | None:
        """The settings of the run, read again once their file is another."""
        if (stamp := stamp_of(self.folder / "settings.toml")) != self._settings[0]:
            self._settings = stamp, read_settings(self.folder)
        return self._settings[1]

    def _signs(self) -> Any:
        """What differs once anything was written, or the process that writes is gone."""
        signs: list[Any] = [is_running(self.folder, self._reader.history)]
        for name in ("events.jsonl", "preview.safetensors", "settings.toml", "result.npy"):
            with contextlib.suppress(OSError):
                about = (self.folder / name).stat()
                signs.append((name, about.st_size, about.st_mtime_ns))
        with contextlib.suppress(OSError):
            signs.append(sorted(os.listdir(self.folder / COMMANDS)))  # what somebody asks and nobody has taken
        return signs


class Channel:
    """Sends the changes of something that is looked at now and then to all who listen, while anybody does.

    Arguments: look, called in a thread of its own, which returns the content and the seconds until it is due again.
    """

    def __init__(self, look: Callable[[], tuple[dict[str, Any], float]]) -> None:
        self._look = look
        self._queues: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None
        self._last: dict[str, Any] | None = None
        self._whole = b""  # the message with all of it, encoded once however many pages need it
        self._hurry, self._until = asyncio.Event(), 0.0

    def hurry(self) -> None:
        """Somebody waits for what comes now: look at once, and more often for a while."""
        self._until = time.monotonic() + _AFTER
        self._hurry.set()

    @property
    def listeners(self) -> int:
        return len(self._queues)

    async def listen(self) -> AsyncIterator[bytes]:
        """Messages as server-sent events: first everything, then what changed, for as long as somebody wants them."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_BEHIND)
        if self._last is not None:
            queue.put_nowait(self._everything())
        self._queues.add(queue)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._watch())
            while True:
                try:
                    yield await asyncio.wait_for(queue.get(), _ALIVE)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._queues.discard(queue)

    async def _watch(self) -> None:
        try:
            while self._queues:
                try:
                    now, pause = await asyncio.to_thread(self._look)
                except InputError as error:
                    self._send(encode_message("fault", {"text": str(error)}))
                    await asyncio.sleep(_LIVES)
                    continue
                changes = changes_of(self._last, now)
                if changes is not None:
                    first, self._last, self._whole = self._last is None, now, b""
                    self._send(self._everything() if first else encode_message("change", changes))
                hurried = time.monotonic() < self._until
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), _QUICK if hurried else max(_LOOK, pause))
                self._hurry.clear()
        finally:
            self._last = None  # whoever comes next gets what is there then

    def _everything(self) -> bytes:
        self._whole = self._whole or encode_message("content", self._last or {})
        return self._whole

    def _send(self, message: bytes) -> None:
        for queue in self._queues:
            if not queue.full():
                queue.put_nowait(message)
                continue
            while not queue.empty():  # a page that is too slow, or asleep, gets everything again
                queue.get_nowait()
            queue.put_nowait(message if self._last is None else self._everything())


def encode_message(kind: str, content: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()


def changes_of(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any] | None:
    """What is different: `set`, members with other values, and `rows`, what is new at the end of `measured`.

    None where nothing is. Measurements are most of the content, and few of them change: `rows` has those after the
    first `keep`, which stay.
    """
    if before is None:
        return {"set": now}
    changed = {name: value for name, value in now.items() if name not in before or before[name] != value}
    changed |= {name: None for name in before if name not in now}
    if not changed:
        return None
    out: dict[str, Any] = {"set": changed}
    if "measured" in changed and "measured" in before:
        rows = _changed_rows(before["measured"], now["measured"])
        if rows is not None:
            del changed["measured"]
            out["rows"] = rows
    return out


def _changed_rows(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any] | None:
    """The rows of now after those that both have in common; None where the columns are others."""
    if set(before["values"]) != set(now["values"]):
        return None
    columns = [(before[name], now[name]) for name in ("step", "time")]
    columns += [(before["values"][name], now["values"][name]) for name in now["values"]]
    keep = min(_common_length(*pair) for pair in columns)
    values = {name: column[keep:] for name, column in now["values"].items()}
    return {"keep": keep, "step": now["step"][keep:], "time": now["time"][keep:], "values": values}


def _common_length(one: list[Any], other: list[Any]) -> int:
    """How many elements two lists have in common at their beginning."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:  # nearly always, and quick
        return shorter
    return next(n for n in range(shorter) if one[n] != other[n])


def _last_values(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The last value of each quantity, the most important first."""
    out = []
    for quantity in content["quantities"][:2]:
        values = content["measured"]["values"].get(quantity["name"], [])
        # After a search no view is held out, and the last misfit was of another image.
        values = [v for v in (values[-1:] if quantity["name"] == HELD_OUT else values) if v is not None]
        if values:
            out.append({"title": quantity["title"] or quantity["name"], "unit": quantity["unit"], "value": values[-1]})
    return out


def _thumbnail(picture: dict[str, Any]) -> bytes:
    """A PNG of the first panel of a picture in grey, of a volume its middle slice, of channels the first."""
    from PIL import Image

    panel = picture["panels"][0]
    values = decode_values(panel)
    while values.ndim > 2:
        values = values[values.shape[0] // 2 if panel["axes"][0]["name"] != "channel" else 0]
        panel = {**panel, "axes": panel["axes"][1:]}
    low, high = panel["range"] or (0.0, 0.0)
    shades = np.nan_to_num((values - low) / (high - low) if high > low else np.zeros_like(values), nan=0.0)
    grey = (255 * shades.clip(0, 1)).round().astype(np.uint8)
    image = Image.fromarray(grey[::-1] if picture["upwards"] else grey)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def decode_values(panel: dict[str, Any]) -> NDArray[np.float32]:
    """The values of a panel of a picture, as `plugstream.runs.pages.pictures` describes them."""
    planes = np.frombuffer(zlib.decompress(b64decode(panel["data"])), np.uint8).reshape(2, -1)
    differences = (planes[0].astype(np.uint16) << 8) | planes[1]
    numbers = np.cumsum(differences, dtype=np.uint16)
    values = np.where(numbers == 65535, np.nan, panel["low"] + panel["scale"] * numbers).astype(np.float32)
    return values.reshape(panel["shape"])
