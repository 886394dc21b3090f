"""The adapters of docs/bridges.md for others' algorithms, as they stand there: with the real library where it is
installed (`make test-peers`: deepinv, pyproximal, SCICO), and with the conventions of CIL and SCICO everywhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import plugstream as ps

DOCS = Path(__file__).parents[2] / "docs" / "bridges.md"
SIGMA = 0.1


def adapter(word: str) -> dict[str, Any]:
    """The names of the block of Python that has this word."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if word in block)
    names: dict[str, Any] = {}
    exec(compile(code, f"{DOCS.name}: {word}", "exec"), names)
    return names


@pytest.fixture
def noisy() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.add.outer(np.arange(20) // 7 % 2, np.arange(24) // 6 % 2) / 2 + SIGMA * rng.standard_normal((20, 24))


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """A module of this name, with its parents."""
    for end in range(1, name.count(".") + 2):
        parent = ".".join(name.split(".")[:end])
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    vars(sys.modules[name]).update(content)


def test_deepinv(noisy):
    dinv = pytest.importorskip("deepinv")
    prior = adapter("as_module(ps.BM3D())")["prior"]
    z = torch.from_numpy(noisy).float()[None, None]
    want = torch.from_numpy(ps.bm3d(noisy.astype(np.float32), SIGMA))
    assert torch.equal(prior.prox(z, SIGMA)[0, 0], want)
    physics = dinv.physics.Denoising(dinv.physics.GaussianNoise(SIGMA))
    pgd = dinv.optim.PGD(
        prior=prior, data_fidelity=dinv.optim.data_fidelity.L2(), stepsize=1.0, sigma_denoiser=SIGMA, max_iter=1
    )
    assert torch.allclose(pgd(z, physics)[0, 0], want, atol=1e-5)


def test_pyproximal(noisy, monkeypatch):
    pytest.importorskip("pyproximal")
    from pylops import Identity
    from pyproximal import L2
    from pyproximal.optimization.primal import ProximalGradient

    prox = adapter("class BM3DProx")["BM3DProx"](noisy.shape, SIGMA)
    assert np.array_equal(prox.prox(noisy.ravel(), 1.0).reshape(noisy.shape), ps.bm3d(noisy, SIGMA))
    least_squares = L2(Op=Identity(noisy.size), b=noisy.ravel())
    got = ProximalGradient(least_squares, prox, x0=noisy.ravel(), tau=1.0, niter=1, acceleration=None)
    assert np.allclose(np.asarray(got).reshape(noisy.shape), ps.bm3d(noisy, SIGMA), atol=1e-6)


def test_cil(noisy, monkeypatch):
    class Container:
        def __init__(self, values):
            self.values = values

        def as_array(self):
            return self.values

        def copy(self):
            return Container(self.values.copy())

        def fill(self, values):
            self.values[:] = values

    if "cil" not in sys.modules:
        stand_in(monkeypatch, "cil.optimisation.functions", Function=type("Function", (), {}))
    function = adapter("class BM3DFunction(Function)")["BM3DFunction"](2 * SIGMA)
    x, out = Container(noisy), Container(np.zeros_like(noisy))
    assert np.array_equal(function.proximal(x, 0.25).values, ps.bm3d(noisy, SIGMA))
    assert function.proximal(x, 0.25, out=out) is out
    assert np.array_equal(out.values, ps.bm3d(noisy, SIGMA))
    assert np.array_equal(x.values, noisy)


def test_scico_convention(noisy, monkeypatch):
    called = {"pure_callback": lambda f, kind, *values: f(*values), "ShapeDtypeStruct": lambda *kind: kind, "numpy": np}
    stand_in(monkeypatch, "jax", **called)
    stand_in(monkeypatch, "scico.functional", Functional=type("Functional", (), {}))
    functional = adapter("class BM3DFunctional")["BM3DFunctional"]()
    assert np.array_equal(functional.prox(noisy, SIGMA**2), ps.bm3d(noisy, SIGMA))


def test_scico(noisy):
    jax = pytest.importorskip("jax", reason="JAX and SCICO are not installed")
    loss = pytest.importorskip("scico.loss", reason="SCICO is not installed")
    optimize = pytest.importorskip("scico.optimize", reason="SCICO is not installed")
    functional = adapter("class BM3DFunctional")["BM3DFunctional"](2 * SIGMA)
    single = noisy.astype(np.float32)
    want = ps.bm3d(single, SIGMA)
    for prox in (functional.prox, jax.jit(functional.prox)):
        for image in (noisy, jax.numpy.asarray(single)):
            assert np.allclose(prox(image, 0.25), want, atol=1e-6)
    # One step of x - (x - y) / L, L = 4, from y, and then the prox of 1/4.
    data = jax.numpy.asarray(single)
    pgm = optimize.PGM(f=loss.SquaredL2Loss(y=data), g=functional, L0=4.0, x0=data, maxiter=1)
    assert np.allclose(pgm.solve(), want, atol=1e-6)
