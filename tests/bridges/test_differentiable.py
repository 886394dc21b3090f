"""Models as layers: derivatives against finite differences and dense matrices, of every kind of image and data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream import CTModel, DifferentiableModel, FunctionModel, InputError, MatrixModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels


def dense(image: torch.dtype, data: torch.dtype, rows: int = 5, shape: tuple[int, int] = (3, 4)) -> MatrixModel:
    draw = torch.Generator().manual_seed(0)
    matrices = [torch.randn(rows, shape[0] * shape[1], generator=draw, dtype=data) for _ in range(4)]
    return MatrixModel(matrices, shape, dtype=image)


@pytest.mark.parametrize(
    ("image", "data"),
    [(torch.float64, torch.float64), (torch.float64, torch.complex128), (torch.complex128, torch.complex128)],
)
def test_first_and_second_derivatives_are_those_of_differences(image: torch.dtype, data: torch.dtype) -> None:
    layer, draw = DifferentiableModel(dense(image, data, 2, (2, 3))), torch.Generator().manual_seed(1)
    x = torch.randn(2, 2, 3, generator=draw, dtype=image, requires_grad=True)
    z = torch.randn(2, 3, 2, generator=draw, dtype=data, requires_grad=True)
    views = [2, 0, 2]
    for function, values in ((layer, x), (layer.adjoint, z)):
        assert torch.autograd.gradcheck(lambda v, f=function: f(v, views), values)
        assert torch.autograd.gradgradcheck(lambda v, f=function: f(v, views), values)


@pytest.mark.parametrize("views", [None, [5, 1]])
def test_the_native_projector_has_the_derivative_of_the_short_one(views: list[int] | None) -> None:
    """C++ in single precision beside autograd through the specification in double."""
    rays = parallel_beam(np.linspace(0, np.pi, 7, endpoint=False), 30, 1.0)
    fast, slow = (CTModel(rays, Voxels((20, 20), 1.0), dtype=d) for d in (torch.float32, torch.float64))
    image = torch.rand(3, 20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = []
    for model in (fast, slow):
        x = image.to(model.dtype).requires_grad_()
        DifferentiableModel(model)(x, views).pow(3).sum().backward()
        gradients.append(x.grad.double())
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-5 * float(gradients[1].abs().max()))


def test_a_nonlinear_model_has_its_first_derivative() -> None:
    weights = torch.rand(4, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def bend(image: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.einsum("vdp,...p->...vd", weights[views], image.flatten(-2)))

    model = FunctionModel(bend, n_views=4, image_shape=(3, 4), data_shape=(5,), dtype=torch.float64)
    layer = DifferentiableModel(model)
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: layer(v, [0, 3]), x)
    with pytest.raises(InputError, match="is not linear, so it has no adjoint"):
        layer.adjoint(torch.zeros(4, 5, dtype=torch.float64))


def test_an_unrolled_network_learns_its_step() -> None:
    """Gradient descent on ||A x - y||^2 with a trained step halves the error of one that is not trained."""
    model = dense(torch.float32, torch.float32)
    layer, draw = DifferentiableModel(model), torch.Generator().manual_seed(4)
    truth = torch.randn(16, 3, 4, generator=draw)
    data = model.forward(truth)
    step, losses = torch.tensor(1e-3, requires_grad=True), []
    for _ in range(40):
        x = torch.zeros_like(truth)
        for _ in range(5):
            x = x - step * layer.adjoint(layer(x) - data)
        loss = (x - truth).square().mean()
        (slope,) = torch.autograd.grad(loss, step)
        step = (step - 3e-3 * slope.sign()).detach().requires_grad_()  # torch.optim takes a second to import
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    layer = DifferentiableModel(dense(torch.float32, torch.float32))
    for bad in (torch.zeros(4, 3), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4)):
        with pytest.raises(InputError, match="this model"):
            layer(bad)
    with pytest.raises(InputError, match="this model"):
        layer.adjoint(torch.zeros(3, 5))
    assert ps.DifferentiableModel is DifferentiableModel


def test_the_document_runs_as_it_stands() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "DifferentiableModel" in block]
    names: dict[str, torch.Tensor] = {}
    exec(compile(code, "bridges.md", "exec"), names)
    assert names["sinogram"].shape == (8, 30, 96)
    assert float(names["image"].grad.abs().max()) > 0
