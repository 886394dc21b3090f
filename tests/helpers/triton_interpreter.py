"""Triton's interpreter, for tests of the CUDA kernels without a GPU."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

import warm

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def emulated(test: Any) -> Any:
    """Marks a test whose kernels the interpreter runs."""
    return pytest.mark.emulated(needs_triton(test))


def interpret(*arguments: str) -> str:
    """What Python prints when called so, with the kernels run by the interpreter.

    In a process of its own, since the interpreter must be chosen before Triton is imported.
    """
    chosen = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, *arguments]
    done = warm.run(command, env=os.environ | chosen, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def patch_once() -> None:
    """Half of the interpreter's time is its replacing of Triton's functions at every call of a device function.

    Within a kernel that is of use once for each module of Triton's that a function sees.
    """
    from triton import language
    from triton.runtime import interpreter

    patch, scope_class = interpreter._patch_lang, interpreter._LangPatchScope
    patched: set[int] = set()
    modules = {id(module) for module in (language, language.core)}

    class KernelScope(scope_class):  # type: ignore[misc, valid-type]
        def restore(self) -> None:
            super().restore()
            patched.clear()

    def patch_lang(function: FunctionType) -> Any:
        seen = {id(value) for value in function.__globals__.values()} & modules
        if seen <= patched:
            return scope_class()
        scope = scope_class() if patched else KernelScope()
        scope._changes = patch(function)._changes
        patched.update(seen)
        return scope

    interpreter._patch_lang = patch_lang


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # for training.X
    patch_once()
    sys.argv.pop(0)
    if sys.argv[0] == "-c":
        exec(compile(sys.argv[1], "<interpreted>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
