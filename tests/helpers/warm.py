"""Processes that need not import torch first: the tests start a hundred commands, of which that was most of the time.

`warm.Popen` and `warm.run` are those of subprocess, for `python -m plugstream ...`, `python -c CODE ...` and `python
FILE ...`. One process imports once what commands need, and each command is a fork of it: a process of its own, with
its own files, environment, limits and signals, killed and waited for as any other. What a test finds out about
imports or the first line of a command needs a fresh interpreter, and subprocess.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quick_disk import wait_for_no_disk

MODULES = (
    "torch",
    "torch.distributed",
    "torch.fx.experimental.symbolic_shapes",  # which derivatives of models that are not linear want, and sympy with it
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "scipy.special",
    "zarr",
    "zmq",
    "plugstream.runs.run",
    "plugstream.instruments.born",
    "plugstream.cli.reconstruct",
    "plugstream.cli.resume",
    "plugstream.cli.simulate",
    "plugstream.cli.acquire",
    "plugstream.scans.store",
    "plugstream.scans.receive",
    "plugstream.scans.send",
    "plugstream.denoisers",
    "plugstream.denoisers.forms",
    "plugstream.denoisers.equivariant",
    "plugstream.denoisers.tv_native",
    "plugstream.denoisers.tv_triton",
    "plugstream.scans.baselines",
    "plugstream.scans.baselines.first_image",
    "plugstream.models.born_fast",
    "plugstream.runs.terminal",
    "plugstream.scans.peek",
    "plugstream.scans.blocks",
    "plugstream.scans.simulation",
    "plugstream.base.volume_file",
    "PIL.PngImagePlugin",
    "safetensors.torch",
    "skimage.data._fetchers",
    "skimage.io",
    "skimage.transform._warps",
    "tifffile",
)
# All of these are imported to know their entries; which those are is found out by each command, in its environment.
ROOMS = ("denoisers", "algorithms", "fidelity", "solver")
PACKAGES = (*(f"plugstream.{room}.entries" for room in ROOMS), "plugstream.instruments")


_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A command as a fork of a process that has imported torch; `limits` are of resources, by their numbers."""

    def __init__(self, words: list[str], *, limits: Mapping[int, int] | None = None, **given: Any) -> None:
        assert words[0] == sys.executable
        assert not set(given) - {"stdin", "stdout", "stderr", "text", "env", "cwd", "start_new_session", "encoding"}
        self._limits = {str(kind): most for kind, most in (limits or {}).items()}
        self._status = -1
        self._looking = threading.Lock()
        super().__init__(words, **given)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        # As in subprocess: ..., cwd, env, startupinfo, creationflags, shell, then a pair of ends for each stream.
        cwd, env, ends = rest[4], rest[5], rest[9:15]
        request = {
            "words": [os.fspath(word) for word in args][1:],
            "cwd": os.fspath(cwd) if cwd else os.getcwd(),
            "env": dict(os.environ if env is None else env),
            "limits": self._limits,
            "session": bool(rest[20]),
        }
        self._status, theirs = os.pipe()
        streams = [own if end == -1 else end for own, end in enumerate((ends[0], ends[3], ends[5]))]
        try:
            self.pid = _server().start(request, [*streams, theirs])
        finally:
            os.close(theirs)
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        self._child_created = True

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:
        return self._look(0.0)

    def _wait(self, timeout: float | None) -> int:
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            with self._looking:
                if self.returncode is None:
                    said = os.read(self._status, 16)
                    self.returncode = int(said) if said else -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        super().__del__()  # type: ignore[misc]
        if self._status >= 0:  # not before: to a second thread that waits it could be another file by then
            os.close(self._status)


def run(
    words: list[str], *, capture_output: bool = False, timeout: float, check: bool = False, **given: Any
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`."""
    if capture_output:
        given |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **given) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class _Server:
    """The process that has imported everything, and forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self._socket.close)

    def start(self, request: dict[str, Any], files: list[int]) -> int:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            self._socket.settimeout(170)
            return int(self._socket.recv(16))
        except BaseException:
            _server.cache_clear()  # its next answer would be taken for one to the next request
            self._socket.close()
            raise


@functools.cache
def _server() -> _Server:
    return _Server()


def _within(packages: Sequence[str]) -> Iterator[str]:
    for package in packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            yield f"{package}.{module.name}"


def _serve(connection: socket.socket) -> None:
    """Fork for each request, and say how each child ended, until the tests are over."""
    for name in (*MODULES, *_within(PACKAGES)):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    wait_for_no_disk()
    gc.freeze()
    children: dict[int, tuple[int, int]] = {}  # by what tells that it ended: its number, and where to say so
    while True:
        for ready in select.select([connection, *children], [], [])[0]:
            if ready is not connection:
                pid, status = children.pop(ready)
                _, how = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):
                    os.write(status, str(os.waitstatus_to_exitcode(how)).encode())
                os.close(status)
                os.close(ready)
                continue
            message, files, _, _ = socket.recv_fds(connection, 1 << 20, 4)
            if not message:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                return
            pid = os.fork()
            if pid == 0:
                for number in (connection.fileno(), files[3], *children, *(status for _, status in children.values())):
                    os.close(number)
                _become(json.loads(message), files[:3])
            children[os.pidfd_open(pid)] = (pid, files[3])
            for number in files[:3]:
                os.close(number)
            with contextlib.suppress(OSError):  # nobody waits for it any more, which is seen at once
                connection.send(str(pid).encode())


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Be the command that was asked for, and end as its interpreter would."""
    code: Any = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no command outlives the tests, however they end
        if request["session"]:
            os.setsid()
        for own, number in enumerate(files):
            os.dup2(number, own)
        for number in files:
            if number > 2:
                os.close(number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="backslashreplace")  # noqa: SIM115
        sys.stderr.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
        if (cli := sys.modules.get("plugstream.cli")) is not None:
            cli._STARTED = time.monotonic()  # type: ignore[attr-defined]  # since when a command has been silent
        sys.dont_write_bytecode = bool(request["limits"])  # half a module, written within a limit, fails in later tests
        for kind, most in request["limits"].items():
            resource.setrlimit(int(kind), (most, most))
        code = _perform(request["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _perform(words: list[str]) -> int:
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(words[0]))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
