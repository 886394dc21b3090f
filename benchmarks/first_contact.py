"""What a first contact costs in CPU seconds, from a clean clone: `make demo`, its C++ build, `make test`, a small run.

    python benchmarks/first_contact.py [--revision HEAD] [--parts demo,test,run] [--folder FOLDER]

CPU seconds are those of all processes that a command started and waited for; a launcher around the compiler takes its
part. The runs are of a CT scan of 128 x 128, in one thread: what one with a typed sigma takes beside its steps and the
import of torch (the median of five), and how many lines of one with nothing set were right about the time left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Around each call of the compiler: its user and system seconds as a line of a file.
_LAUNCHER = """#!/bin/bash
TIMEFORMAT='%U %S'
exec 3>&2
{ time "$@" 2>&3; } 2>>"$FIRST_CONTACT_LOG"
"""
# A run whose clock counts the CPU's seconds instead of the wall's, so that a busy machine does not change its steps.
_COUNTED = """
import sys, time
import plugstream.solver.loop as loop
loop.perf_counter = time.process_time
from plugstream.cli import main
sys.exit(main(sys.argv[1:]))
"""
_LEFT = re.compile(r"(at most )?([\d.]+) (s|min|h) left")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
# Bytecode is written as it usually is, whatever the shell says.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(command: list[str], folder: Path, **extra: str) -> tuple[float, float, str]:
    """Wall and CPU seconds of a command with all its children, and what it printed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        streams = {"stdout": printed, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=folder, env=_ENVIRONMENT | extra, **streams)  # type: ignore[call-overload]
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        printed.seek(0)
        text = printed.read()
    (folder.parent / "last.log").write_text(text)
    if status != 0:
        sys.exit(f"{' '.join(command)} failed:\n{text[-3000:]}")
    return wall, usage.ru_utime + usage.ru_stime, text


def demo(clone: Path) -> None:
    """`make demo` from nothing, and what of it the compiler took."""
    launcher, log = clone.parent / "launcher", clone.parent / "compiler.log"
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    extra = {"CMAKE_CXX_COMPILER_LAUNCHER": str(launcher), "FIRST_CONTACT_LOG": str(log)}
    wall, cpu, text = measure(["make", "demo"], clone, **extra)
    compiled = [sum(map(float, line.split())) for line in log.read_text().splitlines()]
    reached = [line for line in text.splitlines() if line.startswith("SNR ")]
    print(f"make demo      {cpu:7.1f} s of CPU, {wall:6.1f} s; {reached[-1]}")
    print(f"C++ build      {sum(compiled):7.1f} s of CPU in {len(compiled)} calls of the compiler", flush=True)


def test(clone: Path) -> None:
    """`make test` after that."""
    wall, cpu, text = measure(["make", "test"], clone)
    print(f"make test      {cpu:7.1f} s of CPU, {wall:6.1f} s; {text.strip().splitlines()[-1]}", flush=True)


def run(clone: Path) -> None:
    """A scan of 128 x 128 by ct with nothing set, in one thread."""
    python, folder, one = str(clone / ".venv/bin/python"), clone.parent, {"OMP_NUM_THREADS": "1"}
    command = [python, "-m", "plugstream"]
    words = ["reconstruct", "first-contact.zarr", "--out"]
    counts = []
    scan = ["simulate", "first-contact.zarr", "--instrument", "ct", "--size", "128", "--views", "60"]
    measure([*command, *scan], folder)
    lines, whole = told([*command, *words, "first-contact-1", "--progress", "plain"], folder, **one)
    for number in range(5):
        out = folder / f"first-contact-few-{number}"
        total = measure([python, "-c", _COUNTED, *words, str(out), "--sigma", "1%"], folder, **one)[1]
        torch = measure([python, "-c", "import torch"], folder, **one)[1]
        stop = json.loads((out / "events.jsonl").read_text().splitlines()[-1])
        counts.append((total - stop["time"] - torch, stop["time"], torch))
    beside, steps, torch = (statistics.median(values) for values in zip(*counts, strict=True))
    print(f"a small run    {beside:7.1f} s of CPU beside {steps:.1f} s of steps and {torch:.1f} s of importing torch")
    right, estimates, true, limits = score(lines, whole)
    print(
        f"time left      {right} of {estimates} lines within a factor of 2 from a third of {whole:.0f} s on, "
        f"{true} of {limits} right that say at most",
        flush=True,
    )


def told(words: list[str], folder: Path, **extra: str) -> tuple[list[tuple[float, float, bool]], float]:
    """When a run told of the time left, what, and whether at most; and how long its steps took, all in seconds."""
    process = subprocess.Popen(words, cwd=folder, env=_ENVIRONMENT | extra, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines, first, last = list[tuple[float, float, bool]](), None, 0.0
    for line in process.stderr:
        now = time.perf_counter()
        first = now if first is None and line.startswith("step ") else first
        if (found := _LEFT.search(line)) is not None and first is not None:
            lines.append((now - first, float(found[2]) * _SECONDS[found[3]], bool(found[1])))
        if line.startswith("stopped after ") and first is not None:
            last = now - first
    if process.wait() != 0 or not lines:
        sys.exit(f"{' '.join(words)} failed, or told nothing")
    return lines, last


def score(lines: list[tuple[float, float, bool]], whole: float) -> tuple[int, int, int, int]:
    """Of the lines after a third: estimates within a factor of 2, estimates, true limits, limits.

    A line is rounded to a second, and so is not judged to less than that.
    """
    late = [(seconds, whole - at, limit) for at, seconds, limit in lines if at >= whole / 3]
    right = [max(seconds / 2 - 0.5, 0) <= truth <= 2 * seconds + 1 for seconds, truth, limit in late if not limit]
    limits = [truth <= seconds + 1 for seconds, truth, limit in late if limit]
    return sum(right), len(right), sum(limits), len(limits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default="HEAD", help="the commit that is cloned (HEAD)")
    parser.add_argument("--parts", default="demo,test,run", help="what is measured, in this order")
    parser.add_argument("--folder", type=Path, help="where the clone goes, and stays (a temporary folder)")
    arguments = parser.parse_args()
    source = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as temporary:
        home = (arguments.folder or Path(temporary)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        clone, shared = home / "clone", source.parent / "shared"
        if shared.exists() and not (home / "shared").exists():  # the data that some tests read
            (home / "shared").symlink_to(shared)
        if not clone.exists():
            subprocess.run(["git", "clone", "--quiet", str(source), str(clone)], check=True)
            subprocess.run(["git", "checkout", "--quiet", arguments.revision], cwd=clone, check=True)
        for part in arguments.parts.split(","):
            {"demo": demo, "test": test, "run": run}[part](clone)


if __name__ == "__main__":
    main()
