"""Old names of modules from before they moved into rooms: those that users import still work.

`import plugstream.registry` gives the module `plugstream.base.registry` itself; the same holds for modules in a folder.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED = {
    f"plugstream.{old}": f"plugstream.{new}"
    for old, new in {
        "baselines": "scans.baselines",
        "certificates": "studies.certificates",
        "eigenvalue_bounds": "base.eigenvalue_bounds",
        "errors": "base.errors",
        "first_image": "scans.baselines.first_image",
        "image_space": "images.space",
        "importers": "scans.importers",
        "line_integrals": "models.ct_line_integrals",
        "lines": "base.checked_jsonl",
        "losses": "fidelity.losses",
        "monitors": "solver.monitors",
        "phantom": "images.simulated",
        "progress": "base.progress",
        "registry": "base.registry",
        "rotation_axis": "scans.importers.ct_rotation_axis",
        "sampling": "algorithms.sampling",
        "theory": "algorithms.theory",
        "tuning": "studies.tuning",
        "verdict": "solver.verdict",
    }.items()
}


class _Alias:
    """Loads the module under its new name, which then has both names."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self.real.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.real  # which Python has set to that of the old name


class _Finder:
    """Finds only old names."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        old = ".".join(name.split(".", 2)[:2])
        if old not in MOVED:
            return None
        from importlib.machinery import ModuleSpec  # seldom needed, and every start would wait for it
        from importlib.util import find_spec

        real = find_spec(MOVED[old] + name.removeprefix(old))
        if real is None:
            return None
        loader: Any = _Alias(real)
        spec = ModuleSpec(name, loader, origin=real.origin, is_package=real.submodule_search_locations is not None)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec


def install() -> None:
    """Install the finder, once per process, before others, which may still find folders that were left empty."""
    finders: list[Any] = sys.meta_path
    if _Finder not in finders:
        finders.insert(0, _Finder)
