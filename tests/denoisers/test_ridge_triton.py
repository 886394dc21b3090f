"""The Triton form of the ridge prior: its kernels in the interpreter, and on a GPU the whole denoiser."""

from __future__ import annotations

import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from effort import effort, thorough
from plugstream.denoisers import ridge_triton
from plugstream.denoisers.ridge import PROFILES, ConvexRidge
from triton_interpreter import interpret, needs_triton

INTERPRETED = """
import torch
from plugstream.denoisers import ridge_triton
from plugstream.denoisers.ridge_prior import Ridges, prox

rng = torch.Generator().manual_seed(0)
for size, shape, whole in CASES:
    ridges = Ridges(
        torch.randn(6, size, size, generator=rng),
        torch.randn(2, 6, 2, generator=rng) - 1,
        torch.randn(2, 6, generator=rng) - 1,
        torch.tensor([0.02, 0.2]),
        torch.tensor([1.0, 4.0]),
        torch.tensor(2.0),
    ).requires_grad_(False)
    z, v = (torch.rand(2, 1, *shape, generator=rng) for _ in range(2))
    potential = ridges.at(torch.tensor([0.03, 0.4]))

    def near(a, b, name, least=1e-5):
        error = float((a - b).norm() / b.norm())
        assert a.shape == b.shape and error < least, (size, shape, name, error)

    if not whole:
        near(ridge_triton.hessian(potential, z, v), potential.hessian(potential.curvature(z), v), "hessian")
        near(ridge_triton.prox(potential, z, 2), prox(potential, z, 0.0, 2, patience=2)[0], "iterations")
        continue
    levels = torch.tensor([0.0, 0.4])
    solver = ridge_triton.Solver(ridges, 3e-2, 20)
    solver.together = 2
    for start in (None, v)[:STARTS]:
        found, done = solver(z, levels, start)
        assert done is None
        assert torch.equal(found[0], z[0])
        exact, _ = prox(ridges.at(levels[1:]), z[1:], 1e-5, 500, patience=200)
        away = float((found[1] - exact[0]).norm() / (z[1] - z[1].mean()).norm())
        assert away < 3.1e-2, (size, shape, away)
        usual, ridge_triton._MOST_SHARES = ridge_triton._MOST_SHARES, 1  # an image at a time
        alone, rests = solver(z, levels, start)
        ridge_triton._MOST_SHARES = usual
        near(alone, found, "an image at a time")  # to rounding: the bound of the Hessian is a product of matrices
        assert rests.tolist() == [True, True]

from plugstream.denoisers.ridge_triton_kernels import judge

# What rests, rests for good; what does not, rests once its squares are no more than its goal.
resting = torch.tensor([1, 0, 0, 0], dtype=torch.int32)
squares = torch.tensor([[9.0, 9.0], [1.0, 2.0], [1.0, 0.5], [float("nan"), 0.0]])
judge[(4,)](squares, torch.full((4,), 2.0), resting, 2, BLOCK=2)
assert resting.tolist() == [1, 0, 1, 1]
print("agree")
"""


CASES = effort(
    "((3, (2, 3), False),)",
    "((9, (9, 13), False), (9, (8, 20), False), (7, (9, 6), False), (5, (9, 4), True), (3, (2, 2), True))",
)


@thorough
@needs_triton
def test_the_kernels_are_the_torch_form_in_the_interpreter():
    assert interpret("-c", INTERPRETED.replace("CASES", CASES).replace("STARTS", str(effort(1, 2)))) == "agree\n"


class Capturable(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: numbers copied to the device, or read back from it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # whose import takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = name.startswith("index") and any(
            t.dtype == torch.bool for t in args[1] or () if isinstance(args[1], (list, tuple)) and t is not None
        )
        if name in {"lift_fresh", "_local_scalar_dense", "nonzero", "masked_select"} or masks:
            raise AssertionError(f"{name} cannot be in a CUDA graph")
        return func(*args, **(kwargs or {}))


def test_what_goes_into_a_cuda_graph_copies_no_number_to_the_device_or_back(monkeypatch):
    def ran(*_: Any, **__: Any) -> None:
        launched.append(1)

    launched: list[int] = []
    kernels = ("begin", "finish", "frame", "judge", "settle", "spread")
    stub = SimpleNamespace(**{name: defaultdict(lambda: ran) for name in kernels})
    monkeypatch.setitem(sys.modules, "plugstream.denoisers.ridge_triton_kernels", stub)
    monkeypatch.setattr("plugstream.denoisers.ridge_triton_kernels", stub, raising=False)  # if imported before
    solver = ridge_triton.Solver(ConvexRidge().ridges, 1e-4, 30)
    assert solver.together == 20
    z, level = torch.rand(2, 1, 12, 9), torch.tensor([0.0, 0.1])
    with torch.no_grad(), Capturable():
        rows = solver._level_rows(level)
        state = solver._first(z, rows, None)
        solver._first(z, rows, z)
        solver._more(z, rows, state)
        ridge_triton.Tables.of(solver.ridges.at(level + 0.1))
    assert len(launched) == 3 * (20 + 20 + 10 + 1) + 2 * 2
    with pytest.raises(AssertionError, match="graph"), Capturable():
        z[0] = 0.5


def test_tables_of_a_known_level_are_kept_and_are_those_of_the_level(monkeypatch):
    solver, cpu = ridge_triton.Solver(ConvexRidge().ridges, 1e-4, 30), torch.device("cpu")
    kept = solver._rows_of(0.1, 2, cpu)
    assert solver._rows_of(0.1, 2, cpu) is kept
    assert torch.equal(kept, solver._level_rows(torch.tensor([0.1, 0.1])))
    assert not torch.equal(solver._rows_of(0.2, 2, cpu), kept)
    monkeypatch.setattr(ridge_triton, "stream_handle", lambda device: 7)
    assert solver._rows_of(0.1, 2, cpu) is not kept  # another stream, where they may not be computed yet
    for k in range(40):
        solver._rows_of(0.01 * (k + 1), 1, cpu)
    assert len(solver._last_rows) == 16


@pytest.mark.gpu
@pytest.mark.parametrize("profile", PROFILES)
def test_on_a_gpu_it_is_as_near_as_promised_alone_and_with_others(profile):
    rng = torch.Generator().manual_seed(0)
    z = torch.rand(3, 70, 91, generator=rng).cumsum(-1) / 20
    sigma = torch.tensor([5 / 255, 25 / 255, 0.0])
    exact = ConvexRidge(profile, tol=1e-8, max_iterations=5000)(z.double(), sigma.double())
    denoiser = ConvexRidge(profile)
    found = denoiser(z.cuda(), sigma.cuda())
    spread = (z - z.mean((-2, -1), keepdim=True)).flatten(1).norm(dim=1)
    assert bool(((found.cpu() - exact).flatten(1).norm(dim=1) <= 1.1e-4 * spread).all())
    assert torch.equal(found[2].cpu(), z[2])
    for k in (0, 1):
        alone = [denoiser(z[k].cuda(), float(sigma[k])) for _ in range(4)]  # the third and later come from a graph
        assert all(torch.equal(other, alone[0]) for other in alone[1:])
        # To rounding: the bound of the Hessian is a product of matrices, whose order is another with other images.
        assert float((alone[0] - found[k]).norm()) <= 1e-5 * float(spread[k])
    warm, _ = denoiser.denoise(z.cuda(), sigma.cuda(), found)
    assert bool(((warm.cpu() - exact).flatten(1).norm(dim=1) <= 1.1e-4 * spread).all())
