"""DECTRIS stream v2: the start, image and end messages of Eiger and Pilatus, in CBOR over ZeroMQ.

The detector pushes, and each message goes to one client: another one that listens takes images away from this one,
which are then lost here. Image n of a series has place n after the frames of the series before.

Reference: https://github.com/dectris/documentation, stream_v2 and cbor/dectris-compression-tag.md
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.keys import zmq_module
from plugstream.scans.streams.address import Address
from plugstream.scans.streams.cbor import as_array, decode
from plugstream.scans.streams.frames import PROJECTION, LiveFrames

_PORT = 31001
_MOST_BYTES = 1 << 30  # of a message; an Eiger 16M has 64 MB an image, and as much for each table of a start
_MOST_SIDE = 1 << 16
_AT_ONCE = 0.2  # seconds for which messages are taken before the views are


class DectrisFeed:
    """The messages of a detector, taken into frames.

    Arguments: address; frames.
    """

    name = "DECTRIS stream"

    def __init__(self, address: Address, frames: LiveFrames) -> None:
        zmq = self._zmq = zmq_module()
        self.frames, self.ended, self.aborted, self.remarks = frames, False, False, list[str]()
        # Of the series: the start message's fields that count, and the place of its image 0.
        self._start: dict[str, Any] = frames.memory.get("start", {})
        self._mask: NDArray[np.bool_] | None = None
        host, port = address.host_and_port(_PORT)
        try:
            socket.getaddrinfo(host.strip("[]"), port)  # ZeroMQ would look for it for ever
        except OSError as error:
            raise InputError(f"cannot find {host} of {address}: {error.strerror or error}; is that its name?") from None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        options = {zmq.LINGER: 0, zmq.RCVHWM: 100, zmq.MAXMSGSIZE: _MOST_BYTES, zmq.IPV6: "[" in host}
        # TCP asks whether the detector is there: ZeroMQ's own heartbeats are unknown to older ones.
        options |= {
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: 10,
            zmq.TCP_KEEPALIVE_INTVL: 5,
            zmq.TCP_KEEPALIVE_CNT: 3,
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        try:
            self._socket.connect(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"cannot connect to {address}: {error.strerror}") from error

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def receive(self, wait: float = math.inf) -> None:
        """Take the messages that are there, as far as memory has room, until a series with projections has ended."""
        until = time.monotonic() + _AT_ONCE
        while not self.ended and not self.frames.full and time.monotonic() < until:
            try:
                parts = self._socket.recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                return
            if len(parts) == 1:
                with self.frames.guarding():
                    self._take(parts[0].buffer)
            else:
                self.frames.counts["unreadable"] += 1

    def go_on(self) -> None:
        """Take another series, since the scan is not at its end."""
        self.ended = False

    def _take(self, message: memoryview) -> None:
        counts = self.frames.counts
        try:
            content = decode(message)
        except InputError:
            counts["unreadable"] += 1
            return
        kind = content.get("type") if isinstance(content, dict) else None
        if kind == "start":
            self._begin(content)
        elif kind not in ("image", "end"):
            counts["mistyped"] += 1
        elif type(content.get("series_id")) is not int or content["series_id"] != self._start.get("series"):
            if counts["unannounced"] == 0:
                series = str(content.get("series_id"))[:20]
                self.frames.say(f"series {series} has begun before this program could listen; waiting for a start")
            counts["unannounced"] += 1
        elif kind == "image":
            self._take_image(content)
        else:
            self._end()

    def _begin(self, content: Mapping[str, Any]) -> None:
        """A series begins: what its images have in common."""
        sides = [content.get(name) for name in ("image_size_y", "image_size_x")]
        series, channels, user = (content.get(name) for name in ("series_id", "channels", "user_data"))
        sizes: list[Any] = [content.get(name) for name in ("pixel_size_y", "pixel_size_x")]
        if type(series) is not int or not all(type(n) is int and 0 < n <= _MOST_SIDE for n in sides):
            self.frames.counts["mistyped"] += 1
            return
        if self._start and self.frames.has(PROJECTION, self._start["first"]):
            self.remarks.append(f"series {self._start['series']} did not end before series {series} began")
            self.ended = True
        axes = {}
        goniometer = content.get("goniometer")
        for name, axis in (goniometer if isinstance(goniometer, dict) else {}).items():
            values: list[Any] = [axis.get(key) for key in ("start", "increment")] if isinstance(axis, dict) else []
            if all(_is_number(value) for value in values) and values:
                axes[str(name)] = [float(value) for value in values]
        self._start = {
            "series": series,
            "first": self.frames.last + 1,
            "shape": sides,
            "images": content["number_of_images"] if type(content.get("number_of_images")) is int else 0,
            "channels": [str(name) for name in channels] if isinstance(channels, list) else [],
            "axes": axes,
            "user": {str(k): v for k, v in user.items() if _is_plain(v)} if isinstance(user, dict) else {},
            "facts": _read_facts(content),
            "pixel": [float(size) for size in sizes] if all(_is_number(n) and 0 < n < 1 for n in sizes) else None,
        }
        self._mask = self._read_mask(content.get("pixel_mask"))
        kind = self._start["user"].get(self.frames.names.image_key, PROJECTION)
        self.frames.announce(self._start["first"], kind, start=self._start)

    def _read_mask(self, masks: Any) -> NDArray[np.bool_] | None:
        """Which pixels do not count, where the detector says so (header_detail all)."""
        if not isinstance(masks, dict) or self._channel not in masks:
            return None
        try:
            mask = as_array(masks[self._channel], 8 * _MOST_SIDE**2)
        except InputError:
            return None
        return mask != 0 if list(mask.shape) == self._start["shape"] else None

    @property
    def _channel(self) -> str:
        return self.frames.names.data or next(iter(self._start["channels"]), "")

    def _take_image(self, content: Mapping[str, Any]) -> None:
        image, channels, user = (content.get(name) for name in ("image_id", "data", "user_data"))
        if type(image) is not int or image < 0 or not isinstance(channels, dict):
            self.frames.counts["mistyped"] += 1
            return
        start = self._start
        if 0 < start["images"] <= image:
            self.frames.counts["impossible"] += 1
            return
        number = start["first"] + image
        attributes = {name: begin + image * step for name, (begin, step) in start["axes"].items()} | start["user"]
        attributes |= {str(k): v for k, v in user.items() if _is_plain(v)} if isinstance(user, dict) else {}
        turning = [name for name, (_, step) in start["axes"].items() if step]
        if len(turning) == 1:
            attributes["angle"] = attributes.get("angle", attributes[turning[0]])
        names = [self._channel] if self._channel else list(channels)[:1]
        try:
            if not names or names[0] not in channels:
                raise InputError(f"has no channel {', '.join(names)}; it has {', '.join(map(str, channels))[:200]}")
            frame = as_array(channels[names[0]], 8 * start["shape"][0] * start["shape"][1])
            if list(frame.shape) != start["shape"]:
                raise InputError(f"is {frame.shape}, and its series said {tuple(start['shape'])}")
        except InputError as error:
            self.frames.add_lost(number, f"cannot be used: {error}")
            return
        self.frames.pixel = self.frames.pixel or (tuple(start["pixel"]) if start["pixel"] else None)
        self.frames.facts = start["facts"]
        self.frames.add(number, self._without_gaps(frame), attributes)

    def _without_gaps(self, frame: NDArray[Any]) -> NDArray[Any]:
        """A frame in which pixels that do not count are 0, as in flat fields, by which they are known to be bad.

        Those between modules, and broken ones, have the largest number of their type.
        """
        frame = frame.astype(frame.dtype.newbyteorder("="))  # a copy
        bad = frame == np.iinfo(frame.dtype).max if frame.dtype.kind == "u" else np.zeros(frame.shape, dtype=bool)
        bad |= False if self._mask is None else self._mask
        if self.frames.bad is None:
            self.frames.keep_bad(bad)
        frame[bad] = 0
        return frame

    def _end(self) -> None:
        """A series has ended: the scan, too, if it had projections."""
        came, expected = self.frames.last + 1 - self._start["first"], self._start["images"]
        if 0 < came < expected:
            self.remarks.append(f"series {self._start['series']} ended after {came} of {expected} images")
        self.ended |= self.frames.has(PROJECTION, self._start["first"])
        self.aborted = self.ended and came < expected
        self._start = {}


def _read_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a start message says of the setup, in metres, and where the beam is, row and column."""
    facts: dict[str, Any] = {}
    center: list[Any] = [content.get(name) for name in ("beam_center_y", "beam_center_x")]
    if all(_is_number(place) and 0 < place < _MOST_SIDE for place in center):
        facts["center"] = [round(place) for place in center]
    moved, wave = content.get("detector_translation"), content.get("incident_wavelength")
    if isinstance(moved, list) and len(moved) == 3 and _is_number(moved[2]) and moved[2] > 0:
        facts["distance"] = float(moved[2])
    if _is_number(wave) and 0 < (wave or 0) < 1000:  # angstroms
        facts["wavelength"] = 1e-10 * float(wave or 0)
    return facts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or _is_number(value)
