"""A reconstruction that a bluesky RunEngine starts and feeds: `RE.subscribe(LiveRun(...))`.

A callback must be quick, and must never end a measurement. So this one only writes frames, with what belongs to them,
into an HDF5 file in SWMR mode, and `plugstream follow`, a process of its own, forms the image from it: everything is as
for any file that grows, and its scan equals that of the finished file to the bit. What fails here is said in one
line, and the RunEngine goes on.

Reference: the event model, https://blueskyproject.io/event-model/main/explanations/data-model.html
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlparse

import numpy as np

from plugstream.base.errors import InputError
from plugstream.base.text import one_line
from plugstream.scans.importers.hdf5_storage import open_shared
from plugstream.scans.streams.frames import DARK, FLAT, PROJECTION

_MOST_WAITING = 1000  # frames of which a part is still awaited
_LATE = 10.0  # seconds that frames of a file may lag behind the end of the run
_CHECK = 60.0  # seconds for the command to say that it waits

Keys = Mapping[str, str | Sequence[str]]


class LiveRun:
    """Feeds a reconstruction with every run of a RunEngine, by `RE.subscribe(LiveRun(...))`.

    Frames may be in the events, or in HDF5 files that stream_resource and stream_datum documents name, as ophyd-async's
    detectors do; for resource and datum documents, put event_model's RunRouter with a filler before it. A frame counts
    once all of its keys are there; what cannot be used (another shape, no number) is left out and said.

    Arguments:
        kind: the importer that reads the file: `ct`, or `hdf5` for any instrument.
        folder: where files, scans and runs of the reconstruction go, each named after scan_id and uid of its run.
        keys: for each name of the importer's `--map` the data key, or several of one number each (a column of
            positions): {"data": "det", "angles": "rot"}. Angles are in degrees, or in radians if their units say so.
        flags: what `plugstream follow` is given besides, such as ["--center", "511.5", "--sigma", "0.5", "--serve"];
            they are checked at once, which takes a second or two.
        stream: the event stream of the views. flats, darks: those of flat and dark fields, for `ct`; None for line
            integrals.
    Attributes: file, out: the file and the run's folder of the last run. errors: what failed, one line each. left_out:
        numbers of events that were not used.
    """

    def __init__(
        self,
        kind: str,
        folder: str | Path,
        keys: Keys,
        flags: Sequence[str] = (),
        *,
        stream: str = "primary",
        flats: str | None = "flat",
        darks: str | None = "dark",
    ) -> None:
        if "data" not in keys or not isinstance(keys["data"], str):
            raise InputError("keys must name the detector's key, such as {'data': 'det', 'angles': 'rot'}")
        self.kind, self.folder, self.flags = kind, Path(folder), [str(flag) for flag in flags]
        self.keys = {name: (key,) if isinstance(key, str) else tuple(key) for name, key in keys.items()}
        self.streams = {stream: PROJECTION}
        if kind == "ct" and flats is not None:
            self.streams |= {flats: FLAT} | ({} if darks is None else {darks: DARK})
        self.errors, self.left_out = list[str](), list[int]()
        self.file, self.out = Path(), Path()
        self._process: subprocess.Popen[str] | None = None
        self._run: _Frames | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_flags()

    def __call__(self, name: str, document: Mapping[str, Any]) -> None:
        """Take a document; nothing is raised, so that no fault of ours ends a measurement."""
        name = getattr(name, "value", name)
        try:
            if name == "start":
                self._begin(document)
            elif self._run is not None and document.get("run_start", self._run.uid) == self._run.uid:
                self._run.take(name, document)
                if name == "stop":
                    self._end()
        except Exception as error:
            self._say(
                f"{name}: {error}" if isinstance(error, InputError) else f"{name}: {type(error).__name__} {error}"
            )
            if name == "stop":
                self._end()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the last reconstruction to end, and return its exit status; its image is `out`/result.npy."""
        if self._process is None:
            raise InputError("no run has begun yet")
        status = self._process.wait(timeout)
        if status not in (0, 3):
            self._say(f"the reconstruction ended with {status}: {_last_error(self.log)}")
        return status

    @property
    def log(self) -> Path:
        """What the last reconstruction says: a line of JSON each."""
        return self.file.with_suffix(".log")

    @property
    def page(self) -> str | None:
        """The address of the last reconstruction's page, with the flag --serve and once it is there."""
        found = re.findall(r"http://\S+?token=[\w-]+", self.log.read_text()) if self.log.is_file() else []
        return found[-1] if found else None

    def _words(self, file: Path, out: Path) -> list[str]:
        names = [*self.keys, *(["image_key"] if len(self.streams) > 1 else [])]
        where = ["--map", *(f"{name}=/{name}" for name in names)]
        scan = [str(file), str(file.with_suffix(".zarr")), "--out", str(out)]
        return [
            sys.executable,
            "-m",
            "plugstream",
            "follow",
            self.kind,
            *scan,
            *self.flags,
            *where,
            "--progress",
            "json",
        ]

    def _start(self, file: Path, out: Path, log: int | IO[str]) -> subprocess.Popen[str]:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen(self._words(file, out), text=True, start_new_session=True, **streams)

    def _check_flags(self) -> None:
        """Start the command for a file that will never be there: it refuses what it is given, or waits."""
        never = self.folder / ".check.h5"
        until = time.monotonic() + _CHECK
        said = ""
        with self._start(never, never.with_suffix(".run"), subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if "waiting for views" in line or time.monotonic() > until:
                        return
                    said = _error_in(line) or said
            finally:
                process.terminate()
        raise InputError(said or "plugstream follow ended without a reason")

    def _begin(self, document: Mapping[str, Any]) -> None:
        stem = f"{document.get('scan_id', 0)}-{document['uid'][:8]}"
        self.file, self.out = self.folder / f"{stem}.h5", self.folder / f"{stem}-run"
        self._run = _Frames(document["uid"], self.file, self.keys, self.streams, self._leave_out)
        with self.log.open("w") as log:
            self._process = self._start(self.file, self.out, log)

    def _end(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run = None

    def _leave_out(self, number: int, reason: str) -> None:
        self.left_out.append(number)
        self._say(f"event {number} is left out: {reason}")

    def _say(self, text: str) -> None:
        self.errors.append(one_line(text))
        print(f"plugstream: {self.errors[-1]}", file=sys.stderr, flush=True)


def _error_in(line: str) -> str:
    """The error that a line of the command tells: of JSON, or in words where it was refused before that began."""
    try:
        return str(json.loads(line).get("error", ""))
    except ValueError:
        return line.strip().removeprefix("plugstream: ")


def _last_error(log: Path) -> str:
    errors = [error for line in log.read_text().splitlines()[-20:] if (error := _error_in(line))]
    return errors[-1] if errors else "nothing was said"


class _Frames:
    """The file of one run. Arguments: uid; path; keys; streams, each with its image_key; leave_out, for what is not."""

    def __init__(self, uid: str, path: Path, keys: Mapping[str, Sequence[str]], streams: Any, leave_out: Any) -> None:
        self.uid, self._path, self._keys, self._streams, self._leave_out = uid, path, keys, streams, leave_out
        self._stream_of: dict[str, str] = {}  # a descriptor
        self._units: dict[str, str] = {}
        self._resources: dict[str, tuple[str, _Frame]] = {}
        self._waiting: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        self._last: defaultdict[str, int] = defaultdict(int)  # event of each stream that was written or left out
        self._file: Any = None

    def take(self, name: str, document: Mapping[str, Any]) -> None:
        """Take a document of this run."""
        if name == "descriptor":
            self._stream_of[document["uid"]] = document.get("name", "primary")
            self._units |= {key: about.get("units") or "" for key, about in document["data_keys"].items()}
        elif name == "stream_resource":
            self._resources[document["uid"]] = document["data_key"], _Frame.of(document)
        elif name == "stream_datum":
            key, frame = self._resources[document["stream_resource"]]
            first, last = document["indices"]["start"], document["indices"]["stop"]
            for n in range(first, last):
                self._note(document["descriptor"], document["seq_nums"]["start"] + n - first, {key: frame.at(n)})
        elif name == "event":
            self._note(document["descriptor"], document["seq_num"], document["data"])
        elif name == "event_page":
            for n, number in enumerate(document["seq_num"]):
                self._note(document["descriptor"], number, {key: v[n] for key, v in document["data"].items()})
        self._write(final=name == "stop")

    def close(self) -> None:
        for _, frame in self._resources.values():
            frame.close()
        if self._file is not None:
            self._file.close()

    def _note(self, descriptor: str, number: int, values: Mapping[str, Any]) -> None:
        stream = self._stream_of.get(descriptor, "")
        if stream in self._streams and number > self._last[stream]:
            self._waiting[stream].setdefault(number, {}).update(values)

    def _needed(self, stream: str) -> list[str]:
        """Keys without which a frame of a stream is not complete: flat and dark fields have no angle."""
        names = self._keys if self._streams[stream] == PROJECTION else ("data",)
        return [key for name in names for key in self._keys[name]]

    def _write(self, *, final: bool) -> None:
        """Write the frames that are complete, in the order of their numbers."""
        for stream, waiting in self._waiting.items():
            needed, until = self._needed(stream), time.monotonic() + (_LATE if final else 0)
            for number in sorted(waiting):
                values = waiting[number]
                missing = [key for key in needed if key not in values]
                frame = values.get(self._keys["data"][0])
                while isinstance(frame, _Frame) and not frame.is_there() and time.monotonic() < until:
                    time.sleep(0.05)
                late = isinstance(frame, _Frame) and not frame.is_there()
                if (missing or late) and not final and len(waiting) < _MOST_WAITING:
                    break
                del waiting[number]
                self._last[stream] = number
                try:
                    if missing or late:
                        raise InputError(f"it has no {missing[0]}" if missing else "its frame is not in the file")
                    self._append(stream, values)
                except (InputError, ValueError, TypeError, KeyError) as error:
                    self._leave_out(number, str(error))

    def _append(self, stream: str, values: Mapping[str, Any]) -> None:
        kind = self._streams[stream]
        frame = values[self._keys["data"][0]]
        data = np.asarray(frame.read() if isinstance(frame, _Frame) else frame)
        data = data.reshape(data.shape[1:]) if data.ndim == 3 and data.shape[0] == 1 else np.atleast_2d(data)
        if data.dtype.kind not in "fiub" or data.ndim != 2:
            raise InputError(f"its frame is {data.dtype} of shape {data.shape}")
        rows: dict[str, Any] = {"data": data}
        for name, keys in self._keys.items():
            if name != "data":
                numbers = [0.0 if kind else self._number(name, key, values[key]) for key in keys]
                rows[name] = numbers if len(keys) > 1 else numbers[0]
        if len(self._streams) > 1:
            rows["image_key"] = kind
        if self._file is None:
            self._create(rows)
        if self._file["data"].shape[1:] != data.shape:
            raise InputError(f"its frame is {data.shape}, and the first was {self._file['data'].shape[1:]}")
        for name, row in reversed(rows.items()):  # data last: what belongs to a frame is there before it
            dataset = self._file[name]
            dataset.resize(len(dataset) + 1, axis=0)
            dataset[-1] = row
            dataset.flush()

    def _number(self, name: str, key: str, value: Any) -> float:
        number = float(np.asarray(value).reshape(()))
        if not math.isfinite(number):
            raise InputError(f"its {key} is {number}")
        radians = name == "angles" and self._units.get(key, "").lower().startswith("rad")
        return math.degrees(number) if radians else number

    def _create(self, rows: Mapping[str, Any]) -> None:
        import h5py

        self._file = h5py.File(self._path, "w-", libver="latest")
        self._file.attrs["run"] = self.uid
        for name, row in rows.items():
            one = np.asarray(row, None if name == "data" else np.int32 if name == "image_key" else np.float64)
            layout = {"chunks": (1 if name == "data" else 64, *one.shape), "maxshape": (None, *one.shape)}
            dataset = self._file.create_dataset(name, (0, *one.shape), one.dtype, **layout)
            if name == "angles":
                dataset.attrs["units"] = "degrees"
        self._file.swmr_mode = True


class _Frame:
    """A frame in an HDF5 file that is still written. Arguments: path; dataset, its name; index."""

    def __init__(self, path: Path, dataset: str, index: int = 0, opened: dict[Path, Any] | None = None) -> None:
        self._path, self._dataset, self._index = path, dataset, index
        self._opened: dict[Path, Any] = {} if opened is None else opened

    @classmethod
    def of(cls, resource: Mapping[str, Any]) -> _Frame:
        """The first frame of a stream_resource."""
        url, kind = urlparse(resource["uri"]), resource.get("mimetype")
        if kind != "application/x-hdf5" or url.scheme != "file" or "dataset" not in resource["parameters"]:
            raise InputError(f"frames of {kind} at {url.scheme}: cannot be read; HDF5 files can")
        return cls(Path(unquote(url.path)), resource["parameters"]["dataset"])

    def at(self, index: int) -> _Frame:
        return _Frame(self._path, self._dataset, index, self._opened)

    def is_there(self) -> bool:
        dataset = self._find()
        return dataset is not None and len(dataset) > self._index

    def read(self) -> Any:
        dataset = self._find()
        assert dataset is not None, "asked only if it is there"
        return dataset[self._index]

    def close(self) -> None:
        for file in self._opened.values():
            file.close()
        self._opened.clear()

    def _find(self) -> Any:
        with suppress(OSError, KeyError):  # not there yet
            if self._path not in self._opened:
                self._opened[self._path] = open_shared(self._path)
            dataset = self._opened[self._path][self._dataset]
            dataset.id.refresh()
            return dataset
        return None
