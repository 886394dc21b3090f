"""The house: nine floors of rooms; no import leads up, in any form, and no files import each other in a circle.

`python tests/test_structure.py` prints what is counted here.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import plugstream

HOME = Path(plugstream.__file__).parent

# From the ground up. A file imports from its own room and from lower floors, be it at its top, within a function or for
# types alone; rooms of one floor know nothing of each other.
FLOORS: list[list[str]] = [
    ["base"],
    ["images", "_native"],
    ["models", "denoisers"],
    ["fidelity", "instruments"],
    ["algorithms", "settings", "scans"],
    ["solver"],
    ["runs", "bridges"],
    ["studies"],
    ["cli"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS, 1) for room in rooms}

# At most this many lines of Python in the package and in its tests, and words in docs/, README, CONTRIBUTING and
# CHANGELOG. They go down, and up only by what an issue grants. And the lines of the longest file.
CEILING = {"src": 78_590, "tests": 60_800, "words": 122_924}
LONGEST = 700
TEXTS = ("README", "CONTRIBUTING", "CHANGELOG")

# This many lines of code in a row stand in one place only.
REPEATED = 10


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    """The nodes of a file that the tests here look at."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Expr)
    return [node for node in ast.walk(ast.parse(_text(path))) if isinstance(node, kinds)]


@functools.cache
def _modules() -> dict[str, Path]:
    found = {}
    for path in HOME.rglob("*.py"):
        parts = path.relative_to(HOME).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _find_imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """What a file imports of ours, at any depth and for types as well; "" is the package itself."""
    for node in _nodes(path):
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


def _count_lines() -> dict[str, int]:
    return {name: len(_text(path).splitlines()) for name, path in _modules().items()}


def weigh() -> dict[str, int]:
    """Lines of the package and of its tests, and words of the documentation."""
    home = Path(__file__).parent
    pages = [*(home.parent / "docs").rglob("*.md"), *(home.parent / f"{name}.md" for name in TEXTS)]
    # Generated by `make docs`, as `.gitignore` says.
    pages = [page for page in pages if not {"_api", "_gallery"} & set(page.parts)]
    return {
        "src": sum(_count_lines().values()),
        "tests": sum(len(_text(path).splitlines()) for path in home.rglob("*.py")),
        "words": sum(len(_text(page).split()) for page in pages),
    }


def test_no_file_is_too_long_and_all_of_them_are_within_the_ceiling() -> None:
    assert {name: count for name, count in _count_lines().items() if count > LONGEST} == {}
    weights = weigh()
    assert all(10_000 < weights[name] <= most for name, most in CEILING.items()), weights


def _code_lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers and without their indent; no blank ones, imports, comments and docstrings."""
    skipped: set[int] = set()
    for node in _nodes(path):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [(number, line.strip()) for number, line in enumerate(_text(path).splitlines(), 1)]
    return [(number, line) for number, line in lines if number not in skipped and line and not line.startswith("#")]


def _find_repeats(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where the same REPEATED lines of code begin, by the first of them; of a longer run only its beginning."""
    places: defaultdict[tuple[str, ...], list[tuple[Path, int, int]]] = defaultdict(list)
    for path in paths:
        lines = _code_lines(path)
        for index in range(len(lines) - REPEATED + 1):
            window = tuple(line for _, line in lines[index : index + REPEATED])
            places[window].append((path, index, lines[index][0]))
    repeats: dict[str, list[str]] = {}
    within: set[tuple[Path, int]] = set()
    for window, starts in places.items():
        if len(starts) > 1:
            if not all((path, index - 1) in within for path, index, _ in starts):
                repeats[window[0]] = [f"{path.name}:{line}" for path, _, line in starts]
            within.update((path, index) for path, index, _ in starts)
    return repeats


def test_no_ten_lines_stand_twice(tmp_path: Path) -> None:
    repeats = _find_repeats(_modules().values())
    assert repeats == {}
    body = "".join(f"    value = step(value, {number})\n" for number in range(REPEATED))
    (tmp_path / "a.py").write_text(f"import math\ndef a(value):\n{body}")
    (tmp_path / "b.py").write_text("def b(value):\n    'Other words.'\n" + body.replace("\n", "\n\n    # why\n"))
    (tmp_path / "c.py").write_text(f"def c(value):\n{body}".replace("step(value, 5)", "jump(value)"))
    paths = [tmp_path / name for name in ("a.py", "b.py", "c.py")]
    assert _find_repeats(paths) == {"value = step(value, 0)": ["a.py:3", "b.py:3"]}
    assert _find_repeats([paths[0], paths[2]]) == {}


# Kinds that state every ability with a default: nobody looks by name whether one is there.
DECLARED = ("model", "fidelity", "algorithm", "denoiser", "loss")


def _find_probes(path: Path) -> Iterator[str]:
    """`getattr(x, "name")` and `hasattr` of what is called by one of these kinds, such as `self.model`."""
    for node in _nodes(path):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
            word = ast.unparse(node.args[0]).rpartition(".")[2].rpartition("_")[2]
            if word in DECLARED:
                yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def _probes() -> list[str]:
    return [probe for path in _modules().values() for probe in _find_probes(path)]


def test_abilities_are_declared_not_looked_for(tmp_path: Path) -> None:
    assert _probes() == []
    (tmp_path / "file.py").write_text("getattr(self.model, 'channels', False) or hasattr(fidelity, 'loss')\n")
    assert len(list(_find_probes(tmp_path / "file.py"))) == 2


def test_long_tests_are_tests() -> None:
    top = Path(__file__).parents[1]
    for line in (top / "tests" / "long.txt").read_text().split():
        path, _, name = line.partition("::")
        assert f"def {name.rpartition('::')[2]}(" in _text(top / path), line


def measure() -> dict[str, int]:
    """What the house is counted by."""
    modules, lines = _modules(), _count_lines()
    return {
        "rooms": len(FLOOR),
        "floors": len(FLOORS),
        "modules at the root": len([name for name in modules if name and "." not in name and name not in FLOOR]),
        "circles of imports, lazy ones and types included": len(_circles(_edges())),
        "probes of models, fidelities, algorithms, denoisers and losses": len(_probes()),
        "repeats of ten lines": len(_find_repeats(modules.values())),
        "files": len(modules),
        "files of at most 60 lines": len([name for name, count in lines.items() if count <= 60]),
        "lines in the longest file": max(lines.values()),
        **{f"weight: {name}": weight for name, weight in weigh().items()},
    }


def test_the_counts_of_the_house() -> None:
    """As the script prints them, and of the whole house."""
    counts = measure()
    assert counts["floors"] == max(FLOOR.values()) == 9
    assert counts["modules at the root"] == 1, "only __main__"
    assert counts["repeats of ten lines"] == 0
    assert counts["files"] > 200
    assert set(FLOOR) == {_room(name) for name in _modules()} - {"", "__main__"}


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
    assert {folder.parts[0] for folder in folders} == set(FLOOR)
    assert [str(folder) for folder in sorted(folders) if not (HOME / folder / "__init__.py").exists()] == []
    at_the_top = {path.name for path in home.glob("*.py") if not path.name.startswith("test_")}
    assert at_the_top == {"conftest.py"}
    assert [path.name for path in home.rglob("test_*.py") if "helpers" in path.relative_to(home).parts] == []


if __name__ == "__main__":
    for label, count in measure().items():
        print(f"{count:7,d}  {label}")
