"""The rooms of the house: a lower one never imports a higher one, and no two files import each other."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import plugstream

HOME = Path(plugstream.__file__).parent

# From low to high; rooms of one row know nothing of each other. A file is in the room whose name it begins with, the
# longest one.
ROOMS: list[list[str]] = [
    ["text", "progress"],
    ["errors"],
    ["bounded_json", "rows", "arrays", "files", "figure_files", "own_code", "_native", "_graphs", "krylov", "ranks"],
    [
        "capacity",
        "refinement",
        "lines",
        "tensors",
        "volume_file",
        "linalg",
        "image_space",
        "grid",
        "registry",
        "schedules",
        "noise",
        "draws",
        "shares",
        "spectrum",
    ],
    ["line_integrals", "rotation_axis", "phantom", "global_phase", "circulant"],
    ["quantities", "planes", "colours"],
    ["eigenvalue_bounds", "drawing", "display", "quality", "runs.images", "runs.tags"],
    ["models", "denoisers", "sampling", "losses"],
    ["model_fidelity", "split_model", "baselines"],
    ["fidelity"],
    ["loss_fidelity", "smooth_fidelity", "theory", "bounds"],
    ["sharded"],
    ["algorithms"],
    ["verdict"],
    ["monitors"],
    ["misfit"],
    ["result"],
    ["solver"],
    ["bridges", "uncertainty"],
    ["instruments"],
    ["scans"],
    ["simulation", "denoising", "first_image"],
    ["certificates"],
    ["entries"],
    ["choices", "selections"],
    ["consent"],
    ["settings"],
    ["importers"],
    ["runs"],
    ["tuning", "training"],
    ["experiments"],
    ["cli"],
]


@functools.cache
def _modules() -> dict[str, Path]:
    found = {}
    for path in HOME.rglob("*.py"):
        parts = path.relative_to(HOME).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def _imports(path: Path) -> list[tuple[str, bool]]:
    """What a file imports of ours, and whether at its top, where a cycle would break it."""
    return list(_find_imports(path, _modules()))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements within a node, at any depth, but for those that only type checkers see."""
    parts = [part for name in ("body", "handlers", "orelse", "finalbody", "cases") for part in getattr(node, name, ())]
    for part in parts:
        if isinstance(part, ast.If) and isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING":
            continue
        yield part
        yield from _statements(part)


def _find_imports(path: Path, modules: dict[str, Path]) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(statement) for statement in tree.body}
    for node in _statements(tree):
        if not isinstance(node, ast.ImportFrom | ast.Import):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in names:
            if name != "plugstream" and not name.startswith("plugstream."):
                continue
            base = name.removeprefix("plugstream").removeprefix(".")
            inner = [] if isinstance(node, ast.Import) else [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
            for target in [one for one in inner if one in modules] or [base]:
                yield target, id(node) in top


@functools.cache
def _room(module: str) -> int | None:
    place = [
        (len(name), row)
        for row, names in enumerate(ROOMS)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    return max(place)[1] if place else None


def test_every_file_has_a_room() -> None:
    assert [name for name in _modules() if name not in ("", "__main__") and _room(name) is None] == []


def test_no_room_imports_a_higher_one() -> None:
    modules = _modules()
    wrong = []
    for name, path in modules.items():
        for target, _ in _imports(path):
            here, there = _room(name), _room(target)
            if name in ("", "__main__") or target == "" or here is None or there is None:
                continue
            if there > here or (there == here and name.split(".")[0] != target.split(".")[0]):
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_no_two_files_import_each_other() -> None:
    """Over imports at the top of files, which is where a cycle breaks."""
    modules = _modules()
    edges = {name: {t for t, top in _imports(path) if top and t != name} for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(edges.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(modules):
        visit(name, ())
