"""What Windows and macOS lack is not needed to import plugstream; what cannot work without it says so in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import warm

# A process that has torch already, with everything of ours forgotten and POSIX taken away.
WITHOUT = """
import importlib, os, pkgutil, signal, sys

for name in [name for name in sys.modules if name.partition(".")[0] == "plugstream"]:
    del sys.modules[name]
blocked = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
for name in blocked:
    sys.modules[name] = None
for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "fchmod", "fork", "getuid", "geteuid", "preadv", "pwrite",
             "sched_getaffinity", "sysconf", "statvfs"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGWINCH", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT"):
    delattr(signal, name)
"""

IMPORTS = (
    WITHOUT
    + """
import plugstream
for name in plugstream.__all__:
    getattr(plugstream, name)
for module in pkgutil.walk_packages(plugstream.__path__, "plugstream."):
    if not module.name.endswith(("__main__", "_kernels")) and "triton" not in module.name:
        importlib.import_module(module.name)
from plugstream.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""
)

WORKS = (
    WITHOUT
    + """
from pathlib import Path
import torch, plugstream as ps
from plugstream.base.errors import InputError
from plugstream.base.files import lock_folder, write_whole
from plugstream.base.capacity import free_memory

model = ps.BornModel(ps.BornGeometry.rings(ps.Grid((8, 8), 0.01), 0.05, views=4, receivers=6, radius=0.3))
scan = ps.simulate(model, torch.rand(8, 8))
algorithm = ps.ProximalGradient(ps.LeastSquares(model, scan.data), ps.TV(low=0.0), sigma=0.1, sampler=2)
print(ps.solve(algorithm, iterations=3).reason.name)
for text in (b"old", b"new"):
    write_whole(Path("file"), [text])
print(Path("file").read_bytes(), sorted(path.name for path in Path().iterdir()))
assert free_memory() > 0
try:
    lock_folder(Path(), "the scan x")
except InputError as error:
    print(error)
"""
)

# Files as on Windows: locks by msvcrt, and nothing that is open, or has something open in it, is renamed or removed.
WINDOWS = (
    "import fcntl as posix, shutil\ndisk = shutil.disk_usage('.')\nshutil.disk_usage = lambda place: disk\n"
    + WITHOUT
    + """
from types import ModuleType

def locking(handle, mode, count):
    posix.flock(handle, posix.LOCK_EX | posix.LOCK_NB)

def refuse(place):
    place = os.path.abspath(place)
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    held = [os.readlink(file) for file in files if os.path.lexists(file)]
    held += [line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if line.count(" /")]
    if any(path == place or path.startswith(f"{place}/") for path in held):
        raise PermissionError(13, "it is being used by another process", place)

def guard(name):
    real = getattr(os, name)
    def guarded(*places, **more):
        for place in places:
            if not more and not isinstance(place, int):  # rmtree goes by handles, which Windows lacks
                refuse(place)
        return real(*places, **more)
    setattr(os, name, guarded)

sys.modules["msvcrt"] = msvcrt = ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.locking = 2, locking
for name in ("rename", "replace", "unlink", "remove", "rmdir"):
    guard(name)
del os.nice, os.O_ACCMODE
os.environ["PLUGSTREAM_NATIVE"] = "0"  # whose kernels are not built there
"""
)

COMMANDS = (
    WINDOWS
    + """
from plugstream.cli import main

small = ["--size", "24", "--views", "12", "--receivers", "30", "--radius", "0.4", "--wavelength", "0.03"]
run = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "8", "--checkpoint", "0"]
for words in (
    ["simulate", "scan.zarr", *small],
    ["verify", "scan.zarr"],
    ["reconstruct", "scan.zarr", "--out", "run", "--report", "none", *run],
    ["resume", "run", "--iterations", "12"],
    ["report", "run"],
    ["info", "run"],
):
    assert main([*words]) == 0, words
assert main(["reconstruct", "scan.zarr", "--out", "other", "--serve", *run]) == 2
from plugstream.base.files import lock_folder
from plugstream.base.errors import InputError
handle = lock_folder(Path := __import__("pathlib").Path("run"), "the run")
try:
    lock_folder(Path, "the run run")
except InputError as error:
    print(error)
assert not [name for name in os.listdir() if name.startswith(".")]
"""
)


def test_nothing_of_posix_is_needed_to_import() -> None:
    done = warm.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: plugstream")


def test_arrays_in_memory_work_and_folders_with_one_writer_are_refused(tmp_path: Path) -> None:
    done = warm.run([sys.executable, "-c", WORKS], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["ITERATIONS", "b'new' ['file']"], done.stderr
    assert lines[2].startswith("cannot write to the scan x: this system has no file locks (fcntl)")


def test_commands_work_where_files_behave_as_on_windows(tmp_path: Path) -> None:
    """A simulation: only the CI of release/ runs on Windows itself."""
    done = warm.run([sys.executable, "-c", COMMANDS], capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--serve does not work on this system" in done.stderr
    assert done.stdout.splitlines()[-1] == "another process is writing to the run run; wait for it, or stop it"
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
