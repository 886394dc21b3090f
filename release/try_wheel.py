"""Install the wheels as a person would, where there is no compiler and no source, and use them: `make test-wheel`.

    python3.11 release/try_wheel.py --wheels dist

Of Python 3.11, the one that constraints.txt has a torch without CUDA for, everything is installed: `plugstream
--version` must name the native kernels, the demo must reach its image, and a short suite must pass. Of others, whose
torch would be gigabytes of CUDA, the package is installed alone: --version, --help and the extension must work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from wheels import FIRST_LIMITED, ROOT, find_pythons, run

SUITE = (
    "tests/_native/test_native.py",
    "tests/algorithms/test_sampling.py",
    "tests/bridges/test_physics.py",
    "tests/denoisers/test_tv.py",
    "tests/fidelity/test_least_squares.py",
    "tests/fidelity/test_losses.py",
    "tests/solver/test_loop.py",
)
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
NATIVE = "from plugstream._native import kernels; print(kernels().__file__, kernels().built)"


def bare_environment(python: Path) -> dict[str, str]:
    """An environment whose PATH has the Python and coreutils' folder without compilers, and no source."""
    tools = python.parent.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("env", "uname", "ldconfig", "sh"):  # what Python's own modules and pip may ask for
        place = shutil.which(name)
        if place is not None and not (tools / name).exists():
            (tools / name).symlink_to(place)
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS")}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http"))}
    return {**kept, "PATH": f"{python.parent}{os.pathsep}{tools}", "CC": "/none", "CXX": "/none", "MPLBACKEND": "agg"}


def check_weights(wheel: Path) -> None:
    """Compare the trained weights that a wheel holds with those of the source."""
    source = ROOT / "src"
    wanted = {file.relative_to(source).as_posix(): file.read_bytes() for file in source.rglob("*.safetensors")}
    with zipfile.ZipFile(wheel) as packed:
        found = {name: packed.read(name) for name in packed.namelist() if name.endswith(".safetensors")}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    assert not wrong, f"{wheel.name} has other weights than the source: {', '.join(wrong)}"


def check(python: str, wheel: Path, *, whole: bool) -> None:
    """Install a wheel into a new environment and use it there, in an empty folder."""
    check_weights(wheel)
    with tempfile.TemporaryDirectory(prefix="plugstream-wheel-") as place:
        folder = Path(place)
        run(python, "-m", "venv", folder / "venv")
        inside = folder / "venv" / "bin" / "python"
        bare = bare_environment(inside)
        for compiler in ("cc", "gcc", "c++", "g++", "clang", "cmake", "ninja"):
            assert shutil.which(compiler, path=bare["PATH"]) is None, f"{compiler} is on the PATH"
        pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
        empty = folder / "empty"
        empty.mkdir()
        if whole:
            pinned = ("-c", ROOT / "constraints.txt")
            torch = next(line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch=="))
            run(*pip, *pinned, torch, env=bare, cwd=empty)
            run(*pip, *pinned, wheel, *TOOLS, env=bare, cwd=empty)
        else:
            run(*pip, "--no-deps", wheel, env=bare, cwd=empty)
        command = inside.parent / "plugstream"
        told = run(command, "--version", env=bare, cwd=empty).strip()
        print(f"  {told}", flush=True)
        assert "(native " in told, told
        assert "reconstruct" in run(command, "--help", env=bare, cwd=empty)
        where = run(inside, "-c", NATIVE, env=bare, cwd=empty)
        assert str(folder) in where, where
        assert where.split()[-1] == "all", where
        if not whole:
            return
        run(command, "demo", env=bare, cwd=empty)
        told = run(command, "info", "plugstream-demo", env=bare, cwd=empty)
        print("  the demo: " + next(line for line in told.splitlines() if "dB" in line).strip(), flush=True)
        suite = folder / "suite"
        shutil.copytree(ROOT / "tests", suite / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (suite / "pytest.ini").write_text(
            "[pytest]\npythonpath = tests/helpers\n"
            "addopts = -m 'not (slow or long or emulated or browser)' --import-mode=importlib\n"
            "markers =\n    slow: minutes\n    long: seconds\n    thorough: more\n    emulated: kernels\n"
            "    browser: pages\n    gpu: needs CUDA\n"
        )
        done = run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE, env=bare, cwd=suite)
        print("  " + done.strip().splitlines()[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="where the wheels are (dist)")
    chosen = parser.parse_args()
    tried = 0
    for version, python in sorted(find_pythons([]).items()):
        tag = (
            f"cp{FIRST_LIMITED[0]}{FIRST_LIMITED[1]}-abi3" if version >= FIRST_LIMITED else "cp{}{}-cp".format(*version)
        )
        wheels = sorted(chosen.wheels.glob(f"plugstream-*-{tag}*.whl"), key=lambda path: path.stat().st_mtime)
        if not wheels:
            print("Python {}.{}: no wheel for it in {}".format(*version, chosen.wheels))
            continue
        print("Python {}.{}: {}".format(*version, wheels[-1].name), flush=True)
        check(python, wheels[-1].resolve(), whole=version == (3, 11))
        tried += 1
    if not tried:
        sys.exit(f"there is no wheel for a Python of this machine in {chosen.wheels}; run make wheel first")


if __name__ == "__main__":
    main()
