"""Triton's interpreter, for tests of the CUDA kernels without a GPU."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
import torch

import warm

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def interpret(*arguments: str) -> str:
    """What Python prints when called so, with the kernels run by the interpreter.

    In a process of its own, since the interpreter must be chosen before Triton is imported.
    """
    chosen = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    done = warm.run(command, env=os.environ | chosen, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
