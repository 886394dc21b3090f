"""Scans from a run of a Tiled catalogue, by its address: what a bluesky RunEngine has measured and stored.

The address is that of the run, http://HOST:8000/api/v1/metadata/RUN, or of its page in Tiled's browser. Arrays are
known by their place below it, such as /primary/det, and values of the metadata as /@start; several runs are reached by
the address of a container above them. The key of a server that asks for one is in the variable TILED_API_KEY.

Reference: https://blueskyproject.io/tiled/reference/http-api-overview.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from plugstream.base.errors import InputError, StorageError
from plugstream.base.registry import register
from plugstream.scans.importers.address import RunAddress
from plugstream.scans.importers.arrays import ARRAY_FACTS, ArrayOptions, read_opened
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.reading import write_reading
from plugstream.scans.importers.source import Source, first_line

_DEPTH, _MOST = 4, 100  # of what is listed: levels, and names
MISSING = "Tiled needs its client; install it with: pip install 'plugstream[tiled]'"


def connect(address: Path) -> Any:
    """The node of Tiled at an address, a `RunAddress`; whatever fails is one line.

    A server that does not answer is tried again for half a minute by Tiled's client (TILED_RETRY_ATTEMPTS).
    """
    if "?" in str(address):
        raise InputError("the address must not have a key or another query in it; put the key into TILED_API_KEY")
    try:
        from tiled.client import from_uri
    except ImportError:
        raise InputError(MISSING) from None
    with _guarded(f"{address}"):
        return from_uri(str(address).replace("/ui/browse/", "/api/v1/metadata/"))


@contextmanager
def _guarded(what: str) -> Iterator[None]:
    """Errors of the client as one line: what was asked for is not there, or the server cannot be reached or fails."""
    import httpx

    try:
        yield
    except InputError:
        raise
    except Exception as error:
        code = getattr(getattr(error, "response", None), "status_code", None)
        reason = {401: "the server asks for a key, in TILED_API_KEY", 404: "there is nothing there"}.get(code or 0)
        lost = isinstance(error, httpx.TransportError) or (code or 0) >= 500
        kind = StorageError if lost else InputError
        raise kind(f"cannot read {what} from Tiled: {reason or first_line(error)}") from error


@contextmanager
def open_tiled(path: Path) -> Iterator[TiledRun]:
    """The arrays of a run, or of a container of runs, at an address."""
    address = cast("RunAddress", path)
    yield TiledRun(address, connect(path))


class _Array:
    """An array on the server, read by slicing. An axis of one frame an event, behind the events, is left out."""

    def __init__(self, array: Any, name: str, address: RunAddress, units: str | None) -> None:
        self._array, self.name, self._address = array, name, address
        self._whole, self.dtype = tuple(int(n) for n in array.shape), np.dtype(array.dtype)
        self._folded = len(self._whole) == 4 and self._whole[1] == 1
        self.shape = self._whole[:1] + self._whole[2:] if self._folded else self._whole
        self.ndim, self.attrs = len(self.shape), {} if units is None else {"units": units}

    def __getitem__(self, rows: Any) -> Any:
        key = rows if isinstance(rows, tuple) else (rows,)
        where = f"{self.name} of {self._address}"
        with _guarded(where):
            values = np.asarray(self._array[(key[0], 0, *key[1:]) if self._folded and key else key])
        expected = np.broadcast_to(np.zeros(()), self.shape)[key].shape  # which takes no memory
        if values.shape != expected:
            raise InputError(f"{where} gave {values.shape} instead of {expected}")
        return values


class TiledRun(Source):
    """A run, or a container of runs. Arguments: address; node, of Tiled's client."""

    container = "Tiled"

    def __init__(self, address: RunAddress, node: Any) -> None:
        super().__init__(cast("Path", address))
        self._address, self._nodes = address, {"": node}

    def find(self, name: str) -> Any:
        place, separator, attribute = name.partition("@")
        node = self._node([part for part in place.split("/") if part])
        if separator or node is None:
            return None if node is None else dict(node.metadata).get(attribute)
        if not hasattr(node, "dtype"):
            return node
        array = _Array(node, name, self._address, self._units(place))
        self._check_complete(place, array)
        return array

    def attribute(self, name: str, array: str | None) -> Any:
        return self.find(f"{array or ''}@{name}")

    def names(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        rows = list[tuple[str, tuple[int, ...], str]]()
        self._list(self._nodes[""], "", rows)
        return iter(rows)

    def provenance(self) -> dict[str, Any]:
        """Where the run is, and what its documents say of it."""
        start, stop = (dict(self.find(f"@{name}") or {}) for name in ("start", "stop"))
        words = {name: start[name] for name in ("uid", "scan_id", "plan_name", "sample") if name in start}
        return {"address": str(self._address), "run": words | ({"exit_status": self._status(stop)} if start else {})}

    def remarks(self) -> list[str]:
        """What a person should know of a run that did not end as planned."""
        status = self.provenance()["run"].get("exit_status", "success")
        return [] if status == "success" else [f"the run is not complete ({status}); what is there was taken"]

    @staticmethod
    def _status(stop: dict[str, Any]) -> str:
        return str(stop.get("exit_status") or "no stop document")

    def _node(self, parts: list[str]) -> Any:
        """The node at a path; None where there is none."""
        place = "/".join(parts)
        if place not in self._nodes:
            above = self._node(parts[:-1])
            if above is None or not hasattr(above, "keys"):
                return None
            with _guarded(f"{place} of {self._address}"):
                try:
                    self._nodes[place] = above[parts[-1]]
                except KeyError:
                    return None
        return self._nodes[place]

    def _units(self, place: str) -> str | None:
        """The unit of a column: bluesky has it in the metadata of the stream."""
        *above, last = [part for part in place.split("/") if part]
        keys = dict(getattr(self._node(above), "metadata", {})).get("data_keys", {})
        units = dict(keys.get(last, {})).get("units")
        return str(units) if units else None

    def _check_complete(self, place: str, array: _Array) -> None:
        """Refuse an array with fewer rows than the run says it has events."""
        parts = [part for part in place.split("/") if part]
        stop = dict(self.find(f"{'/'.join(parts[:-2])}@stop") or {}) if len(parts) > 1 else {}
        events = dict(stop.get("num_events") or {}).get(parts[-2], 0) if stop else 0
        if array.ndim and array.shape[0] < events:
            raise InputError(f"{place} of {self.path} has {array.shape[0]} rows, but the run has {events} events")

    def _list(self, node: Any, place: str, rows: list[tuple[str, tuple[int, ...], str]], depth: int = 0) -> None:
        with _guarded(f"{place or '/'} of {self._address}"):
            for key in list(node)[:_MOST]:
                if len(rows) >= _MOST:
                    return
                item = node[key]
                if hasattr(item, "dtype"):
                    rows.append((f"{place}/{key}", tuple(item.shape), str(item.dtype)))
                elif hasattr(item, "keys") and depth < _DEPTH:
                    self._list(item, f"{place}/{key}", rows, depth + 1)


@register(
    "importer",
    "tiled",
    "arrays of a run of a Tiled catalogue, by its address, for any instrument",
    needs=("tiled",),
    **ARRAY_FACTS,
)
def build(options: ArrayOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan."""
    if not isinstance(file, RunAddress):
        raise InputError(f"{file} is no address of Tiled, such as http://127.0.0.1:8000/api/v1/metadata/RUN")
    source = TiledRun(file, connect(file))

    @contextmanager
    def opened() -> Iterator[Source]:
        yield source

    with read_opened(opened(), options) as reading:
        words = {**reading.provenance, **source.provenance()}
        return write_reading(replace(reading, provenance=words, remarks=[*reading.remarks, *source.remarks()]), out)
