"""The result of a run into a Tiled catalogue, where whoever measured it looks for it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from plugstream.base.errors import InputError, StorageError
from plugstream.base.version import __version__
from plugstream.runs.describe import describe_run
from plugstream.runs.folder import open_run
from plugstream.scans.importers.address import run_address
from plugstream.scans.importers.source import first_line
from plugstream.scans.importers.tiled import connect
from plugstream.scans.store import open_scan

_HERE = ("run", "report", "images", "preview", "go on with")  # what says something of this machine only


def publish_run(folder: str | Path, address: str, key: str | None = None) -> str:
    """Write the image of a run into a container of Tiled, and return its address there.

    The container `key` gets the array `image`, in the blocks that Tiled's client makes of it, and as its metadata what
    `plugstream info` says of the run, its settings, and the provenance of its scan: the address and the uid of the run
    that was measured, if it was one. One that exists is refused, unless it says `"complete": false`: what an earlier
    attempt left whose server died is removed, and written again.

    Arguments: folder of a run that has a result; address of a container that may be written to; key, by default the
    name of the folder. The server's key is in TILED_API_KEY.
    """
    path, place = Path(folder), run_address(address)
    if place is None:
        raise InputError(f"{address} is no address of Tiled, such as http://127.0.0.1:8000/api/v1/metadata/results")
    if not (path / "result.npy").is_file():
        raise InputError(f"{path} has no result.npy yet; a run writes it at its end")
    image = np.load(path / "result.npy", mmap_mode="r", allow_pickle=False)
    rows = describe_run(path)
    about = {"plugstream": __version__, "run": {name: text for name, text in rows.items() if name not in _HERE}}
    about["settings"] = (path / "settings.toml").read_text(encoding="utf-8")
    source = open_run(path).source
    if isinstance(source, str) or source.exists():
        about["scan"] = dict(open_scan(source).provenance)
    node = connect(place)
    name = path.resolve().name if key is None else key
    try:
        if name in node:
            if node[name].metadata.get("complete") is not False:
                raise InputError(f"{place} has a {name} already; choose another with --key")
            _remove(node, name)
        made = node.create_container(name, metadata={**about, "complete": False})
        try:
            made.write_array(image, key="image")
            made.update_metadata({"complete": True})
        except BaseException:
            with contextlib.suppress(Exception):  # a server that is gone: the next attempt removes it
                _remove(node, name)
            raise
    except InputError:
        raise
    except Exception as error:  # of the network, or of a server that refuses
        raise StorageError(f"cannot write {name} to {place}: {first_line(error)}") from error
    return str(made.uri).replace("metadata//", "metadata/")  # of a container at the root


def _remove(node: Any, name: str) -> None:
    """Remove a container, and the array in it if there is one."""
    node.delete_contents(name, recursive=True, external_only=False)
