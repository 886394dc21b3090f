"""The methods that followed the paper on a GPU: the same images as on the CPU, and in single precision."""

from __future__ import annotations

import functools

import pytest
import torch

from plugstream import (
    RED,
    TV,
    BlockADMM,
    BornGeometry,
    BornModel,
    Equivariant,
    Grid,
    IncrementalADMM,
    InexactADMM,
    LeastSquares,
    Opening,
    ProximalGradient,
    Uniform,
)

METHODS = {
    "red": lambda f: RED(f, TV(), sigma=0.1, sampler=Uniform(3)),
    "snore": lambda f: RED(f, TV(), sigma=0.1, sampler=Uniform(3), noise=1.0),
    "ipa": lambda f: IncrementalADMM(f, TV(), sigma=0.1, sampler=Uniform(4), parts=2, step_size="10/L"),
    "block-admm": lambda f: BlockADMM(f, TV(), sigma=0.1, sampler=Uniform(3), step_size="10/L"),
    "inexact-admm": lambda f: InexactADMM(
        f, Opening(TV(tol=1e-4), TV(), 3, 2.0), sigma=0.1, sampler=Uniform(4), step_size="10/L"
    ),
    "turned at random": lambda f: ProximalGradient(f, Equivariant(TV(), "random"), sigma=0.1, sampler=Uniform(3)),
    "mean over turns": lambda f: ProximalGradient(f, Equivariant(TV()), sigma=0.1, sampler=Uniform(3)),
}


@functools.cache
def fidelity_of(device: str, dtype: torch.dtype) -> LeastSquares:
    geometry = BornGeometry.rings(Grid((16, 16), 0.01), 0.06, views=8, receivers=16, radius=0.4)
    truth = torch.zeros(16, 16)
    truth[4:10, 5:12] = 1
    data = BornModel(geometry, dtype=torch.float64).forward(truth.double())
    model = BornModel(geometry, device=device, dtype=dtype)
    return LeastSquares(model, data.to(model.data_dtype))


def image_of(name: str, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The image after six steps."""
    algorithm = METHODS[name](fidelity_of(device, dtype))
    state = algorithm.init()
    for _ in range(6):
        state = algorithm.step(state)
    assert bool(torch.isfinite(algorithm.residual(state)))
    image: torch.Tensor = state.image
    assert image.device.type == device
    assert image.dtype == dtype
    return image.cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_the_gpu_finds_what_the_cpu_finds(name):
    want = image_of(name, "cpu")
    torch.testing.assert_close(image_of(name, "cuda"), want, rtol=0, atol=5e-3 * float(want.abs().max()))


@pytest.mark.parametrize("name", METHODS)
def test_single_precision_finds_what_double_precision_finds(name):
    want = image_of(name, "cpu", torch.float64)
    torch.testing.assert_close(image_of(name, "cpu").double(), want, rtol=0, atol=1e-4 * float(want.abs().max()))
