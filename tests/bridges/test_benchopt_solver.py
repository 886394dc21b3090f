"""The solver file for deepinv's benchmark: it chooses sigma on training pictures, and its model is taken by deepinv.

benchopt itself is not needed: of it the file uses a base class and a context alone, which stand in here.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import plugstream as ps

FILE = Path(__file__).parents[2] / "benchmarks" / "solvers" / "plugstream_pnp.py"


def test_the_solver_does_what_the_benchmark_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    dinv = pytest.importorskip("deepinv", reason="deepinv is not installed; `make test-peers` has it")
    benchopt: Any = ModuleType("benchopt")
    benchopt.BaseSolver, benchopt.safe_import_context = object, nullcontext
    monkeypatch.setitem(sys.modules, "benchopt", benchopt)
    spec = importlib.util.spec_from_file_location("plugstream_pnp", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    physics = dinv.physics.Denoising(dinv.physics.GaussianNoise(0.1))
    clean = [torch.as_tensor(ps.load_picture(name, size=32)).float()[None] for name in ("camera", "coins", "moon")]
    pairs = [(x, physics(x[None])[0]) for x in clean]
    solver = module.Solver()
    solver.denoiser, solver.iterations = "TV", 20
    solver.set_objective(pairs[:2], physics, image_size=(1, 32, 32))
    solver.run(None)
    found, (x, y) = solver.get_result(), pairs[2]
    assert set(found) == {"model", "model_name", "device"}
    assert isinstance(found["model"], dinv.models.Reconstructor)
    psnr = dinv.metric.PSNR()
    assert psnr(found["model"](y[None], physics), x[None]) > psnr(y[None], x[None]) + 3
