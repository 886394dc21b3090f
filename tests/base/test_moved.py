"""Modules that the docs named before they moved are found by their old names, and are the same modules."""

from __future__ import annotations

import importlib
import sys

import pytest

import warm
from plugstream.base.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_module_itself(old: str) -> None:
    module = importlib.import_module(MOVED[old])
    assert importlib.import_module(old) is module
    assert module.__name__ == module.__spec__.name == MOVED[old]


def test_what_is_in_a_folder_is_found_too() -> None:
    old = importlib.import_module("plugstream.importers.born")
    assert old is importlib.import_module("plugstream.scans.importers.born")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("plugstream.importers.nonsense")


def test_names_are_imported_as_pages_once_said() -> None:
    code = (
        "from plugstream.registry import Field, Options, register\n"
        "from plugstream.losses import Huber\nfrom plugstream.fidelity import LeastSquares\n"
        "from plugstream.solver import solve\nfrom plugstream import registry\n"
        "import plugstream as ps\n"
        "assert (Huber, LeastSquares, solve) == (ps.Huber, ps.LeastSquares, ps.solve)\n"
        "assert registry.register is register\n"
    )
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
