"""A detector of EPICS: a p4p server on this machine alone, with the NTNDArray of areaDetector and other PVs."""

from __future__ import annotations

import io
import os
import time
import uuid
import zlib
from typing import Any

import numcodecs
import numpy as np
from p4p import Type, Value
from p4p.nt import NTNDArray, NTScalar
from p4p.server import Server
from p4p.server.thread import SharedPV

from eiger import compress as compress_hdf5
from growing_files import DARK, FLAT, angle, field, frame

TYPES = {"int8": 1, "int16": 2, "int32": 3, "int64": 4, "uint8": 5, "uint16": 6, "uint32": 7, "float32": 9}


def pack(array: np.ndarray[Any, Any], codec: str) -> bytes:
    """What NDPluginCodec makes of an array."""
    content = np.ascontiguousarray(array)
    if codec == "blosc":
        return bytes(numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.BITSHUFFLE).encode(content))
    if codec == "lz4":
        return bytes(numcodecs.LZ4().encode(content))[4:]  # without its own header
    if codec == "bslz4":
        return bytes(compress_hdf5(content, "bslz4").value[2])[12:]
    if codec == "zlib":
        return zlib.compress(content.tobytes())
    from PIL import Image

    picture = io.BytesIO()
    Image.fromarray(content).save(picture, "JPEG", quality=95)
    return picture.getvalue()


def ntndarray(array: Any, number: int, attributes: Any = (), codec: str = "", **changes: Any) -> Any:
    """An NTNDArray as areaDetector sends it. Arguments: changes of its fields, by name."""
    value = NTNDArray().wrap(np.ascontiguousarray(array))
    value["codec.name"] = codec
    if codec:
        content = np.frombuffer(pack(array, codec), np.uint8)
        value["value"] = ("ubyteValue", content)
        value["codec.parameters"] = TYPES[array.dtype.name]
        value["compressedSize"] = len(content)
    value["uniqueId"] = number
    value["attribute"] = [{"name": name, "value": one} for name, one in dict(attributes).items()]
    now = time.time()
    value["dataTimeStamp"] = {"secondsPastEpoch": int(now), "nanoseconds": int(now % 1 * 1e9)}
    for name, one in changes.items():
        value[name.replace("__", ".")] = one
    return value


class _Odd:
    """A structure that is of no normative type."""

    _type = Type([("x", "i")])

    def wrap(self, number: int) -> Any:
        return Value(self._type, {"x": number})

    def unwrap(self, value: Any) -> int:
        return int(value["x"])


class AreaDetector:
    """The server. Its addresses count for p4p's clients in this process, and in those it starts, while it lasts."""

    def __init__(self, prefix: str | None = None, conf: Any = None) -> None:
        self.prefix = prefix or f"test-{uuid.uuid4().hex[:8]}:"
        self.image = SharedPV(initial=ntndarray(np.zeros((2, 2), np.uint16), 0))  # what was there before
        self.motor = SharedPV(nt=NTScalar("d"), initial=0.0)
        self.odd = SharedPV(nt=_Odd(), initial=0)  # without a value
        names = {"Image": self.image, "Motor": self.motor, "Odd": self.odd}
        providers = [{f"{self.prefix}{name}": pv for name, pv in names.items()}]
        self.server = Server(providers, isolate=True) if conf is None else Server(providers, conf=conf, useenv=False)
        self.conf = self.server.conf()
        self.address, self.angle, self.odd_address = (f"pva://{self.prefix}{name}" for name in names)
        self._before = {name: os.environ.get(name) for name in self.conf}
        os.environ.update({name: value for name, value in self.conf.items() if name.startswith("EPICS_PVA_")})
        self.number = 100

    def send(self, array: Any, attributes: Any = (), number: int | None = None, **more: Any) -> None:
        self.number = self.number + 1 if number is None else number
        self.image.post(ntndarray(array, self.number, attributes, **more))

    def fields(self) -> None:
        for key, level, first in ((2, DARK, 0), (1, FLAT, 3)):
            for n in range(3):
                self.send(field(level, n + first), {"image_key": key})

    def views(self, numbers: Any, first: int = 107, codec: str = "") -> None:
        """Views, whose uniqueIds begin with `first`."""
        for n in numbers:
            self.send(frame(n), {"angle": angle(n), "ColorMode": 0}, first + n, codec=codec)

    def turn_to(self, degrees: float) -> None:
        self.motor.post(degrees, timestamp=time.time())

    def close(self) -> None:
        self.server.stop()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def __enter__(self) -> AreaDetector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
