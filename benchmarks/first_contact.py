"""What the README's two commands cost from a clean clone in CPU seconds: `make demo`, the C++ build in it, `make test`.

    python benchmarks/first_contact.py [--revision HEAD] [--parts demo,test,run] [--folder FOLDER]

CPU seconds are those of all processes that a command started and waited for; the seconds of the compiler are taken by a
launcher around each of its calls, and are a part of `make demo`. A small run is timed with one thread: all of it, its
steps as its log has them, and an import of torch; the lines that it printed are compared with when it ended.
"""

from __future__ import annotations

import argparse
import os
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


def measure(command: list[str], folder: Path, **extra: str) -> tuple[float, float, str]:
    """Wall and CPU seconds of a command with all its children, and what it printed."""
    begin = time.perf_counter()
    log = folder.parent / f"{'-'.join(command)}.log"
    with log.open("w") as printed:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | extra, stdout=printed, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    text = log.read_text()
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
    print(f"make demo      {cpu:7.1f} s of CPU, {wall:6.1f} s; {text.strip().splitlines()[-1]}")
    print(f"C++ build      {sum(compiled):7.1f} s of CPU in {len(compiled)} calls of the compiler", flush=True)


def test(clone: Path) -> None:
    """`make test` after that."""
    wall, cpu, text = measure(["make", "test"], clone)
    print(f"make test      {cpu:7.1f} s of CPU, {wall:6.1f} s; {text.strip().splitlines()[-1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default="HEAD", help="the commit that is cloned (HEAD)")
    parser.add_argument("--parts", default="demo,test", help="what is measured, in this order")
    parser.add_argument("--folder", type=Path, help="where the clone goes, and stays (a temporary folder)")
    arguments = parser.parse_args()
    source = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        clone = home / "clone"
        if not clone.exists():
            subprocess.run(["git", "clone", "--quiet", str(source), str(clone)], check=True)
            subprocess.run(["git", "checkout", "--quiet", arguments.revision], cwd=clone, check=True)
        for part in arguments.parts.split(","):
            {"demo": demo, "test": test}[part](clone)


if __name__ == "__main__":
    main()
