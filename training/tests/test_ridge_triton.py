"""The Triton form of the ridge prior, for training: its kernels in the interpreter."""

from __future__ import annotations

from effort import effort, thorough
from triton_interpreter import emulated, interpret

INTERPRETED = """
import torch
from plugstream.denoisers.ridge_prior import Ridges, prox
from training import ridge_triton

rng = torch.Generator().manual_seed(0)
for size, shape in CASES:
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

    near(ridge_triton.hessian(potential, z, v), potential.hessian(potential.curvature(z), v), "hessian")
    near(ridge_triton.prox(potential, z, 2), prox(potential, z, 0.0, 2, patience=2)[0], "iterations")
print("agree")
"""


CASES = effort("((3, (2, 3)),)", "((9, (9, 13)), (9, (8, 20)), (7, (9, 6)), (5, (9, 4)), (3, (2, 2)))")


@thorough
@emulated
def test_the_kernels_are_the_torch_form_in_the_interpreter():
    assert interpret("-c", INTERPRETED.replace("CASES", CASES)) == "agree\n"
