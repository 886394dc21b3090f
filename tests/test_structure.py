"""The house: nine floors of rooms; no import leads up, in any form, and no files import each other in a circle."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import plugstream

HOME = Path(plugstream.__file__).parent

# From the ground up. A file imports from its own room and from lower floors, be it at its top, within a function or for
# types alone; rooms of one floor know nothing of each other.
FLOORS: list[list[str]] = [
    ["base", "_native"],
    ["images"],
    ["models", "denoisers"],
    ["fidelity", "instruments"],
    ["algorithms", "settings", "scans"],
    ["solver"],
    ["runs", "bridges"],
    ["studies"],
    ["cli"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS, 1) for room in rooms}


@functools.cache
def _modules() -> dict[str, Path]:
    found = {}
    for path in HOME.rglob("*.py"):
        parts = path.relative_to(HOME).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _find_imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """What a file imports of ours, at any depth and for types as well; "" is the package itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            base = node.module or ""
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("plugstream.") in modules else base for name in inner]
        else:
            continue
        for name in names:
            if name == "plugstream" or name.startswith("plugstream."):
                yield name.removeprefix("plugstream").removeprefix(".")


@functools.cache
def _edges() -> dict[str, set[str]]:
    modules = _modules()
    return {
        name: {target for target in _find_imports(path, modules) if target != name} for name, path in modules.items()
    }


def _room(module: str) -> str:
    return module.partition(".")[0]


def _circles(edges: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Modules that reach each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for target in edges.get(name, ()):
            if target not in number:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], number[target])
        if low[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(tuple(sorted(group)))

    for name in edges:
        if name not in number:
            visit(name)
    return found


def test_at_the_root_are_rooms_alone() -> None:
    names = {path.name for path in HOME.iterdir() if path.name != "__pycache__"}
    assert names == set(FLOOR) | {"__init__.py", "__main__.py", "py.typed"}
    assert all((HOME / room / "__init__.py").exists() for room in FLOOR)


def test_no_import_leads_up() -> None:
    """Neither to a higher floor, nor to another room of the same one, nor to the names of the package itself."""
    wrong = []
    for name, targets in _edges().items():
        if name in ("", "__main__"):
            continue
        for target in targets:
            aside = _room(name) != _room(target)
            if target == "" or (aside and FLOOR[_room(target)] >= FLOOR[_room(name)]):
                wrong.append(f"{name} -> {target or 'plugstream'}")
    assert wrong == []


def test_no_files_import_each_other() -> None:
    assert _circles(_edges()) == []


def test_a_circle_and_an_arrow_are_seen(tmp_path: Path) -> None:
    """In every form of import, so that the tests above cannot pass by not looking."""
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b", "c")]
    (tmp_path / "file.py").write_text(
        "from typing import TYPE_CHECKING\nimport plugstream.base.errors\n"
        "if TYPE_CHECKING:\n    from plugstream.runs import plan\n"
        "def late():\n    from plugstream.cli.common import say\n    from plugstream import __version__\n"
    )
    assert set(_find_imports(tmp_path / "file.py", _modules())) == {"base.errors", "runs.plan", "cli.common", ""}


def test_no_file_is_longer_than_400_lines() -> None:
    assert [name for name, path in _modules().items() if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


# Kinds that state every ability with a default: nobody looks by name whether one is there.
DECLARED = ("model", "fidelity", "algorithm", "denoiser", "loss")


def _find_probes(path: Path) -> Iterator[str]:
    """`getattr(x, "name")` and `hasattr` of what is called by one of these kinds, such as `self.model`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
            word = ast.unparse(node.args[0]).rpartition(".")[2].rpartition("_")[2]
            if word in DECLARED:
                yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def test_abilities_are_declared_not_looked_for(tmp_path: Path) -> None:
    probes = [probe for path in _modules().values() for probe in _find_probes(path)]
    assert probes == []
    (tmp_path / "file.py").write_text("getattr(self.model, 'channels', False) or hasattr(fidelity, 'loss')\n")
    assert len(list(_find_probes(tmp_path / "file.py"))) == 2


def test_names_are_known_without_torch() -> None:
    """Of every kind but importers, so that `--help` and lists are quick."""
    code = "import sys; from plugstream.base.registry import KINDS, entries\n"
    code += "for kind in set(KINDS) - {'importer'}: assert entries(kind) and 'torch' not in sys.modules, kind\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tests_mirror_the_house() -> None:
    """A folder a room, with folders in it that the room has too; what tests share is in helpers, which is no room."""
    home = Path(__file__).parent
    folders = {path.parent.relative_to(home) for path in home.rglob("*.py")} - {Path(), Path("helpers")}
    assert [str(folder) for folder in sorted(folders) if not (HOME / folder / "__init__.py").exists()] == []
    at_the_top = {path.name for path in home.glob("*.py") if not path.name.startswith("test_")}
    assert at_the_top == {"conftest.py"}
    assert [path.name for path in home.rglob("test_*.py") if "helpers" in path.relative_to(home).parts] == []
