"""Checkpoints: a run in the middle, on disk as one safetensors file, never half-written, the last two kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.errors import InputError
from plugstream.files import sync_folder, write_whole
from plugstream.solver import Snapshot

__all__ = ["Checkpoints", "digest"]

_FORMAT = "plugstream-checkpoint"
_VERSION = 1
_KEPT = 2


class Checkpoints:
    """The checkpoints of one run, files step-00000120.safetensors in a folder.

    A file holds the tensors of the state and of the best image, and in its header, as JSON, everything else of a
    `Snapshot`, what the run is about (`about`: hashes of the scan and the settings), and a hash of the tensors. It is
    written beside its place, flushed to the disk and renamed, and only then the third-last is removed; so whatever
    happens at whatever instant, the newest file that is there is whole.
    """

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        self.folder = folder
        self.about = dict(about)

    def save(self, snapshot: Snapshot[Any]) -> Path:
        """Write a checkpoint; where that fails nothing that was there is lost, and the one-line error says why."""
        from safetensors.torch import save

        plain, tensors = _split(snapshot.state)
        best = None
        if snapshot.best is not None:
            best = {"score": snapshot.best[0], "k": snapshot.best[1].k}
            tensors["best.image"] = snapshot.best[1].image
        content = {
            "state": plain,
            "first": snapshot.first,
            "time": snapshot.time,
            "wall": snapshot.wall,
            "limit": snapshot.limit,
            "best": best,
            "rows": {name: [(k, t, v.tolist()) for k, t, v in rows] for name, rows in snapshot.rows.items()},
            "measured_at": snapshot.measured_at,
        }
        # Copies, since safetensors takes no two names for one tensor, as the image and s are without momentum.
        tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
        header = {
            "format": _FORMAT,
            "version": str(_VERSION),
            "about": json.dumps(self.about, sort_keys=True),
            "content": json.dumps(content),
        }
        header["sha256"] = _hash(tensors, header["content"])
        path = self.folder / f"step-{snapshot.state.k:08d}.safetensors"
        try:
            self.folder.mkdir(exist_ok=True)
            write_whole(path, [save(tensors, header)])
            sync_folder(self.folder)
            for old in self.files()[_KEPT:]:
                old.unlink()
        except OSError as error:
            raise InputError(
                f"cannot write the checkpoint {path}: {error.strerror}; mend that and go on with 'plugstream resume', "
                "which starts from the last one"
            ) from error
        return path

    def files(self) -> list[Path]:
        """The checkpoints there are, newest first."""
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def load(self, like: Any) -> tuple[Snapshot[Any], list[str]]:
        """The newest checkpoint that is whole, for a state of the kind of `like`, and what is wrong with newer ones.

        One of another scan or other settings is refused, and so is a folder without any that is whole.
        """
        damaged: list[str] = []
        for path in self.files():
            try:
                return self._read(path, like), damaged
            except _DamagedError as error:
                damaged.append(str(error))
        raise InputError(
            f"{damaged[0]}, and there is no older one" if damaged else f"there is no checkpoint in {self.folder}"
        )

    def _read(self, path: Path, like: Any) -> Snapshot[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "pt") as opened:
                header = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is not a dict
        except (SafetensorError, OSError) as error:
            raise _DamagedError(f"the checkpoint {path} is damaged ({str(error).splitlines()[0]})") from error
        if header.get("format") != _FORMAT or header.get("version") != str(_VERSION):
            raise _DamagedError(f"{path} is not a checkpoint of version {_VERSION}")
        if header.get("sha256") != _hash(tensors, header["content"]):
            raise _DamagedError(f"the checkpoint {path} is damaged (its hash differs)")
        said = json.loads(header["about"])
        for what, value in self.about.items():
            if said.get(what) != value:
                raise InputError(
                    f"{path} belongs to other {what} than those of this run; "
                    f"bring back what they were, or start a new run"
                )
        content = json.loads(header["content"])
        state = _join(like, content["state"], tensors)
        best = content["best"]
        return Snapshot(
            state=state,
            first=content["first"],
            time=content["time"],
            wall=content["wall"],
            limit=content["limit"],
            best=None
            if best is None
            else (best["score"], replace(state, k=best["k"], image=tensors["best.image"].to(state.image))),
            rows={
                name: [(k, t, np.asarray(v, dtype=np.float64)) for k, t, v in rows]
                for name, rows in content["rows"].items()
            },
            measured_at=content["measured_at"],
        )


class _DamagedError(Exception):
    pass


def digest(value: Any) -> str:
    """A short hash of something that JSON can write."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _split(state: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers of a frozen state, and its tensors."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    tensors = {f"state.{name}": value for name, value in values.items() if isinstance(value, Tensor)}
    return {name: value for name, value in values.items() if not isinstance(value, Tensor)}, tensors


def _join(like: Any, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    values = dict(plain)
    for field in fields(like):
        if (value := tensors.get(f"state.{field.name}")) is not None:
            values[field.name] = value.to(like.image.device)
    return replace(like, **values)


def _hash(tensors: Mapping[str, Tensor], content: str) -> str:
    total = hashlib.sha256(content.encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
