"""Show runs in a browser, while they go on and after, and in other viewers."""

from __future__ import annotations

import argparse
import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.cli.common import say
from plugstream.cli.values import whole_number

if TYPE_CHECKING:
    from plugstream.base.processes import Group
    from plugstream.runs.terminal import Viewers

_HOST, _MOST = "127.0.0.1", 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", type=Path, nargs="*", metavar="RUNS", help="folders of runs, or with runs in them; this one if none"
    )
    _add_place(parser)
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that this machine is reached by, too"
    )


def add_viewers(parser: argparse.ArgumentParser) -> None:
    """Give a command that starts a run the flags of what shows it."""
    group = parser.add_argument_group("other viewers")
    group.add_argument(
        "--live-zarr",
        type=Path,
        metavar="PLACE",
        help="keep the current image here as OME-Zarr 0.5, which napari and vizarr open and read again",
    )
    group.add_argument(
        "--tensorboard", action="store_true", help="write what TensorBoard reads, into the run's folder tensorboard"
    )
    group.add_argument(
        "--publish",
        metavar="PREFIX",
        help="serve image, step, distance and verdict as PVs of EPICS, such as recon:Image",
    )
    group.add_argument("--allow-put", action="store_true", help="let clients of --publish pause, stop and change sigma")
    parser.add_argument("--serve", action="store_true", help="show the run in a browser while it goes on, and steer it")
    _add_place(parser)


def viewers_of(parsed: argparse.Namespace) -> Viewers:
    """What was asked for; what cannot be done is refused."""
    from plugstream.runs.terminal import Viewers

    viewers = Viewers(parsed.live_zarr, parsed.tensorboard, parsed.publish, parsed.allow_put)
    viewers.check()
    return viewers


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="ADDRESS", help=f"where pages are served ({_HOST}: to this machine alone)")
    parser.add_argument("--port", type=whole_number(_MOST, 0), metavar="N", help="their port; the first free from 8765")


@dataclass(frozen=True)
class RunPage:
    """The page of a run, whose address is taken before the run begins."""

    listener: socket.socket
    token: str

    def start(self, folder: Path, *, live: bool = False) -> None:
        """Serve the run in a folder, from a process of its own, and say where; `live` where its scan is followed."""
        from plugstream.runs.pages.access import is_local
        from plugstream.runs.pages.listening import address_of, start_server

        address = address_of(self.listener, self.token)
        host, port = self.listener.getsockname()[:2]
        start_server(folder, self.listener, self.token, live=live)
        say(f"the page of this run: {address}")
        if "SSH_CONNECTION" in os.environ and is_local(host):
            say(f"from your own machine: ssh -L {port}:{_HOST}:{port} {platform.node()}, then open the same address")


def open_page(parsed: argparse.Namespace, group: Group | None = None) -> RunPage | None:
    """The page that the arguments ask for, if any; of several processes rank 0 has it."""
    if not parsed.serve:
        if parsed.host is not None or parsed.port is not None:
            raise InputError("--host and --port say where --serve serves the page; add --serve, or leave them out")
        return None
    from plugstream.base.system import renames_open

    if not renames_open():  # Windows, where no process takes over a socket
        raise InputError("--serve does not work on this system; type 'plugstream serve' in another terminal instead")
    from plugstream.runs.pages.access import new_token
    from plugstream.runs.pages.listening import open_socket

    pages: list[RunPage] = []

    def take() -> None:
        pages.append(RunPage(open_socket(parsed.host or _HOST, parsed.port), new_token()))

    take() if group is None else group.decide(take)  # an error of rank 0 is raised in all of them
    return pages[0] if pages else None


def run(parsed: argparse.Namespace) -> int:
    folders = parsed.folders or [Path()]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}; name one of a run, or one with runs in it")
    from plugstream.runs.pages.access import is_local, new_token
    from plugstream.runs.pages.listening import address_of, open_socket, serve_runs

    listener, token = open_socket(parsed.host or _HOST, parsed.port), new_token()
    print(f"serving at {address_of(listener, token)}", flush=True)
    port = listener.getsockname()[1]
    if is_local(listener.getsockname()[0]):
        say(f"from another machine: ssh -L {port}:{_HOST}:{port} THIS-MACHINE, then open the same address")
    else:
        say("whoever has this address can read and steer the runs, and nothing is encrypted; ssh -L is safer")
    report("serving, until Ctrl-C")
    try:
        serve_runs(folders, listener, token, parsed.allow_host)
    except KeyboardInterrupt:  # which is how it ends
        say("the pages are closed; runs go on")
    return 0
