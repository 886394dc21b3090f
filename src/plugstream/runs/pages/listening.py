"""Where the pages of runs are served: a socket, the address that a person opens, and a process for it.

`plugstream serve` serves in its own process. `reconstruct --serve` starts another, of low priority and in a session of
its own, which knows only the folder of the run: whatever happens to it does not touch the run, and Ctrl-C is the run's.
It ends by itself once the run is over and nobody has its page open.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.system import lower_priority

HOST = "127.0.0.1"
_PORT, _TRIED = 8765, 20
# Of the process that `--serve` starts: its priority, and seconds that it waits for somebody once the run is over.
# While a run wants all cores this priority leaves it 96 % of the one that the server shares with it.
_NICE, _LINGER = 15, 30.0
# While a scan is measured somebody waits for its pictures: this leaves the server a quarter of that core.
_NICE_LIVE = 5
# Seconds in which a connection must have asked for something, and in which it must take what it was sent.
_LONGEST_HEAD, _LONGEST_UNTAKEN = 10.0, 60.0
_TOKEN = "PLUGSTREAM_TOKEN"  # in the environment, which other users cannot read, as they can the arguments


def open_socket(host: str = HOST, port: int | None = None) -> socket.socket:
    """A socket that listens; an address that is not this machine's, or a port that is taken, is refused in one line.

    Arguments: host, a name or address; port, 0 for any that is free, and if not given the first that is from 8765 on.
    """
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f"pages need the package {name}; install it with: pip install {name}")
    ports = [port] if port is not None else [*range(_PORT, _PORT + _TRIED), 0]
    for number in ports:
        try:
            kind, _, _, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(kind, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise InputError(f"there is no address {host!r} to listen at: {error}") from error
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if number == ports[-1]:
                where = f"{host}:{number}"
                raise InputError(f"cannot listen at {where}: {error.strerror}; choose another with --port") from error
    raise AssertionError("there is always a last port")


def address_of(listener: socket.socket, token: str) -> str:
    """The address that a person opens, with the token in it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # every address of this machine
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"


def serve_runs(
    folders: Sequence[Path],
    listener: socket.socket,
    token: str,
    names: Sequence[str] = (),
    over: Callable[[int], bool] | None = None,
) -> None:
    """Serve runs, or folders of them, until `over`, asked with the number of open pages, or somebody ends it."""
    import uvicorn

    from plugstream.runs.pages.access import Access
    from plugstream.runs.pages.server import Shelf, make_application

    if hasattr(socket, "TCP_USER_TIMEOUT"):  # which its connections inherit: a machine that is gone says nothing
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _LONGEST_UNTAKEN))
    shelf = Shelf(folders)
    access = Access.at(listener.getsockname()[0], token, names)
    config = uvicorn.Config(
        make_application(shelf, access),
        log_level="critical",
        access_log=False,
        server_header=False,
        http=_protocol(),
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=1000,
    )
    server = uvicorn.Server(config)
    if over is not None:
        threading.Thread(target=_watch, args=(server, shelf, over), daemon=True).start()
    server.run(sockets=[listener])


def _protocol() -> Any:
    """uvicorn's HTTP, which closes a connection that asks for nothing.

    uvicorn's own limit counts from an answer to the first byte that follows. Whoever says nothing, or begins a request
    and goes no further, would stay for ever, and a thousand of them keep everybody out.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        _timer: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and not self.cycle.response_complete:  # it has asked, and is being answered
                self._timer.cancel()

        def on_response_complete(self) -> None:
            self._wait()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(_LONGEST_HEAD, self.transport.abort)

    return Protocol


def _watch(server: Any, shelf: Any, over: Callable[[int], bool]) -> None:
    while not over(shelf.listeners):
        time.sleep(0.5)
    server.should_exit = True


def start_server(folder: Path, listener: socket.socket, token: str, *, live: bool = False) -> None:
    """Serve one run, which may not have begun yet, from a process of its own, which takes the socket over.

    Arguments: live, whether its scan is being measured, so that its pictures are waited for.
    """
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in ranks}
    environment |= {_TOKEN: token, "OMP_NUM_THREADS": "1"}
    numbers = (listener.fileno(), os.getpid(), _NICE_LIVE if live else _NICE)
    words = [sys.executable, "-P", "-m", __name__, str(folder.resolve()), *map(str, numbers)]
    silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    fds = (listener.fileno(),)
    try:
        process = subprocess.Popen(words, pass_fds=fds, env=environment, start_new_session=True, **silent)
    except OSError as error:
        raise InputError(f"cannot start the server of the page: {error.strerror or error}") from error
    threading.Thread(target=process.wait, daemon=True).start()  # so that it leaves no zombie
    listener.close()


class _Until:
    """Whether the process that `start_server` made is needed: not once the run is over and its page closed for long."""

    def __init__(self, folder: Path, parent: int) -> None:
        from plugstream.runs.replay import HistoryReader

        self.folder, self.parent = folder, parent
        self.reader = HistoryReader(folder / "events.jsonl", most=2)
        self.has_run = False
        self.needed = time.monotonic()

    def __call__(self, pages: int) -> bool:
        from plugstream.runs.liveness import is_running

        now = time.monotonic()
        with contextlib.suppress(InputError):  # a log that is damaged tells of no run that goes on
            self.reader.read()
        running = bool(is_running(self.folder, self.reader.history))
        self.has_run = self.has_run or running
        begins = not self.has_run and os.getppid() == self.parent
        if pages or running or begins:
            self.needed = now
        gone = not self.has_run and not self.folder.exists() and not begins  # refused before its first step
        return gone or now - self.needed > _LINGER


def _main() -> None:
    folder, (handle, parent, priority) = Path(sys.argv[1]), map(int, sys.argv[2:])
    token, until = os.environ.pop(_TOKEN), _Until(folder, parent)
    import plugstream.runs.pages.server  # noqa: F401  before the priority is lowered: somebody waits for the page

    lower_priority(priority)
    serve_runs([folder], socket.socket(fileno=handle), token, over=until)


if __name__ == "__main__":
    _main()
