"""Checkpoints: a run in the middle, on disk as one safetensors file, never half-written, the last two kept."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms import Algorithm, ProximalGradient, State
from plugstream.base.errors import DamagedError, InputError, StorageError
from plugstream.base.files import NOT_PLAIN, sync_folder
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.runs.callbacks import Callback
from plugstream.runs.event_log import EventLog
from plugstream.runs.identity import difference, tools
from plugstream.runs.replay import History
from plugstream.solver.result import Progress, Snapshot
from plugstream.solver.verdict import Trace

_FORMAT = "plugstream-checkpoint"
_VERSION = "3"
_NUMBERS = ("first", "time", "wall", "limit", "measured_at")  # of a snapshot
_COUNT = 2  # of checkpoints that stay


@dataclass(frozen=True)
class SavedState:
    """A checkpoint of the run: its file, its step, and what it holds."""

    path: Path
    step: int
    content: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    notes: list[str]

    def snapshot(self, like: Any) -> Snapshot[Any]:
        """The run at that step, with a state of the kind of `like`, on its device."""
        state = self._state(like, self.content["state"], "state.", like.image.device)
        best = self.content["best"]
        if best is not None:
            mappings = {n: self._mapping(f"best.{n}.", like.image.device) for n in self.content["mappings"]}
            image = self._tensor("best.image").to(state.image)
            best = (best["score"], replace(state, k=best["k"], image=image, **mappings))
        rows = {name: self._rows(name) for name in self.content["rows"]}
        numbers = {name: self.content[name] for name in _NUMBERS}
        return Snapshot(state=state, best=best, rows=rows, trace=self._trace(like.image.device), **numbers)

    def _trace(self, device: torch.device) -> Trace:
        """The trace of the image, empty before its first step."""
        if "trace.sums" not in self.tensors:
            return Trace()
        sums = self._tensor("trace.sums").to(device)
        first, phase = self.content["trace"]
        return Trace(first, self.tensors["trace.steps"].tolist(), list(sums.unbind(0)), phase)

    def _state(self, like: Any, values: Mapping[str, Any], prefix: str, device: torch.device) -> Any:
        """A state of the kind of `like`: what JSON has of it, tensors, and inner states."""
        parts = dict(values)
        for field in fields(like):
            name, part = f"{prefix}{field.name}", getattr(like, field.name)
            if name in self.tensors:
                parts[field.name] = self._tensor(name).to(device)
            elif prefix == "state." and field.name in self.content["mappings"]:
                parts[field.name] = self._mapping(f"{name}.", device)
            elif is_dataclass(part):
                parts[field.name] = self._state(part, parts[field.name], f"{name}.", device)
        return replace(like, **parts)

    def _mapping(self, prefix: str, device: torch.device) -> dict[str, Tensor]:
        """Tensors by what their names have after a prefix."""
        names = [name for name in self.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensor(name).to(device) for name in sorted(names)}

    def _tensor(self, name: str) -> Tensor:
        """A tensor as it was, complex ones from the pairs of real numbers that they are stored as."""
        tensor = self.tensors[name]
        return torch.view_as_complex(tensor) if name in self.content["complex"] else tensor

    def _rows(self, name: str) -> list[Any]:
        """Steps, seconds and values of what was measured of a quantity."""
        steps, times, values = (self.tensors[f"rows.{name}.{column}"] for column in ("step", "time", "value"))
        return list(zip(steps.tolist(), times.tolist(), map(np.asarray, values.numpy()), strict=True))


class Checkpoints:
    """The checkpoints of one run, files step-00000120.safetensors in a folder.

    A file holds the tensors of the state and of the best image, and what was measured; its header has, as JSON, the
    rest of a `Snapshot`, the `identity` of the run, what it was computed with, and a hash of all this. It is written
    beside its place, flushed to the disk and renamed, and only then an older one is removed; so whatever happens, the
    newest file is whole.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about = dict(about)

    def save(self, snapshot: Snapshot[Any], log: str = "") -> Path:
        """Write a checkpoint, or raise a one-line error; `log` is the `check` of the event log that leads to it."""
        content, tensors = _split(snapshot)
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "about": json.dumps(self.about),
            "tools": json.dumps(tools()),
            "content": json.dumps({**content, "log": log}),
        }
        path = self.folder / f"step-{snapshot.state.k:08d}.safetensors"
        if self.folder.is_symlink():  # by now: what is removed there would be somebody else's
            raise StorageError(f"cannot write the checkpoint {path}: its folder is a link; put the folder back")
        try:
            if not self.folder.exists():
                self.folder.mkdir()
                sync_folder(self.folder.parent)
            save_tensors(path, tensors, header)
            sync_folder(self.folder)
            self._remove_all_but_the_last(snapshot.state.k)
        except OSError as error:
            raise StorageError(
                f"cannot write the checkpoint {path}: {error.strerror}; fix that and go on with 'plugstream resume', "
                "which starts from the last one"
            ) from error
        return path

    def files(self) -> list[Path]:
        """The checkpoints there are, newest first."""
        paths = self.folder.glob("step-*.safetensors")
        return sorted(paths, key=lambda path: (len(path.name), path.name), reverse=True)

    def load(self) -> SavedState | None:
        """The newest checkpoint that is whole, with a note on each newer one; None if there is none yet.

        One of another scan or other settings is refused, and so is a folder where none is whole.
        """
        damaged: list[str] = []
        for path in self.files():
            try:
                saved = self._read(path)
            except DamagedError as error:
                damaged.append(str(error))
            else:
                notes = [f"{text}; going on from an older one" for text in damaged]
                return replace(saved, notes=[*notes, *saved.notes])
        if damaged:
            raise DamagedError(f"{damaged[0]}, and there is no older one; start a new run")
        return None

    def _remove_all_but_the_last(self, step: int) -> None:
        """Leave two, and none beyond this step, which are damaged; remove what a killed process had begun."""
        files = self.files()
        newest = files.index(self.folder / f"step-{step:08d}.safetensors")
        for path in [*files[:newest], *files[newest + _COUNT :], *self.folder.glob(".step-*.new")]:
            path.unlink()

    def _read(self, path: Path) -> SavedState:
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise InputError(NOT_PLAIN)
            header, tensors = load_tensors(path, _FORMAT)
        except InputError as error:
            raise DamagedError(f"the checkpoint {path} is damaged: {error}") from error
        if header.get("version") != _VERSION:
            raise DamagedError(f"{path} is damaged, or not a checkpoint of version {_VERSION}")
        if wrong := difference(json.loads(header["about"]), self.about):
            raise InputError(f"{path} belongs to another run: {wrong}; restore what it was, or start a new run")
        content, before, now = json.loads(header["content"]), json.loads(header["tools"]), tools()
        changes = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
        text = f"so far it was computed with {'; '.join(changes)}; the last bits may differ for it"
        notes = [text] if changes else []
        return SavedState(path, content["state"]["k"], content, tensors, notes)


def _split(snapshot: Snapshot[Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What JSON writes of a snapshot, and its tensors, on the CPU; complex ones as pairs of real numbers.

    Measurements are tensors too, since a header may have 100 MB, which a long run would fill.
    """
    state, tensors = _split_state(snapshot.state, "state.")
    mappings = [f.name for f in fields(snapshot.state) if isinstance(getattr(snapshot.state, f.name), Mapping)]
    for name in mappings:  # of tensors by name
        tensors |= {f"state.{name}.{key}": value for key, value in getattr(snapshot.state, name).items()}
    best = None
    if snapshot.best is not None:
        best = {"score": snapshot.best[0], "k": snapshot.best[1].k}
        tensors["best.image"] = snapshot.best[1].image
        for name in mappings:
            tensors |= {f"best.{name}.{key}": value for key, value in getattr(snapshot.best[1], name).items()}
    for name, rows in snapshot.rows.items():
        steps, times, values = zip(*rows, strict=True)
        tensors[f"rows.{name}.step"] = torch.tensor(steps)
        tensors[f"rows.{name}.time"] = torch.tensor(times, dtype=torch.float64)
        tensors[f"rows.{name}.value"] = torch.from_numpy(np.stack(values))
    if snapshot.trace.steps:
        tensors["trace.steps"] = torch.tensor(snapshot.trace.steps)
        tensors["trace.sums"] = torch.stack(snapshot.trace.sums)
    pairs = [name for name, value in tensors.items() if value.is_complex()]
    tensors = {k: torch.view_as_real(v.resolve_conj()) if k in pairs else v.resolve_neg() for k, v in tensors.items()}
    content = {
        "state": {name: value for name, value in state.items() if name not in mappings},
        "mappings": mappings,
        "complex": pairs,
        "best": best,
        "rows": list(snapshot.rows),
        "trace": [snapshot.trace.first, snapshot.trace.phase],
        **{name: getattr(snapshot, name) for name in _NUMBERS},
    }
    return content, tensors


def _split_state(state: Any, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What JSON writes of a state, and its tensors by name, with those of inner states."""
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            tensors[f"{prefix}{field.name}"] = value
        elif is_dataclass(value):
            plain[field.name], inner = _split_state(value, f"{prefix}{field.name}.")
            tensors |= inner
        else:
            plain[field.name] = value
    return plain, tensors


class CheckpointWriter(Callback):
    """Writes a checkpoint every few seconds, 0 for every step, and before it the log; `step` is that of the last."""

    def __init__(self, log: EventLog, checkpoints: Checkpoints, every: float) -> None:
        self.log, self.checkpoints, self.every = log, checkpoints, every
        self.callbacks: tuple[Callback, ...] = ()  # which have something to save; set once all of them are there
        self.step = 0
        self._written = time.monotonic()

    def after_step(self, progress: Progress[State]) -> None:
        if progress.state.k > 0 and time.monotonic() - self._written >= self.every:
            self.write(progress)
            self._written = time.monotonic()

    def before_pause(self, progress: Progress[State]) -> None:
        """Write a checkpoint, so that nothing is lost whatever happens during the pause."""
        if progress.state.k > self.step:
            self.write(progress)

    def write(self, progress: Progress[State]) -> None:
        """Write a checkpoint of this progress now."""
        for callback in self.callbacks:
            callback.save(progress.state.k)
        self.log.sync()
        self.checkpoints.save(progress.snapshot(), self.log.check)
        self.step = progress.state.k


def check_history(saved: SavedState, past: History, log: str) -> None:
    """Refuse to go on from a checkpoint whose log is not as it was when the checkpoint was written."""
    if not past.views:
        raise InputError(
            f"{log} does not tell which views the run used, so it cannot continue from {saved.path}; restore "
            "that file, or start a new run"
        )
    if not past.knows(saved.content["log"]):
        raise InputError(
            f"lines are missing at the end of {log}, which {saved.path} was written after; restore that file "
            "from a copy, or start a new run"
        )


def restore_snapshot(saved: SavedState, algorithm: Algorithm[Any], like: State, *, changed: bool) -> Snapshot[State]:
    """Where to go on from.

    Arguments: like, a state of the algorithm; changed, whether views are left out from here on: then what SAGA and SVRG
    remember, a mean over all views, is formed again.
    """
    snapshot: Snapshot[Any] = saved.snapshot(like)
    if changed and isinstance(algorithm, ProximalGradient) and not isinstance(algorithm.gradient, str):
        memory = algorithm.gradient.begin(algorithm.fidelity, snapshot.state.s)
        snapshot = replace(snapshot, state=replace(snapshot.state, **memory._asdict()))
    return snapshot
