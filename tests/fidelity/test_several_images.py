"""Data of several images: every function of a fidelity agrees with a loop over them, whatever the image's own axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from effort import effort, thorough
from plugstream import (
    ADMM,
    SAGA,
    SNR,
    SVRG,
    BornGeometry,
    BornModel,
    Distance,
    FunctionModel,
    Grid,
    InputError,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    SoftThreshold,
    Uniform,
    ring,
    solve,
)
from plugstream.algorithms import Algorithm
from plugstream.algorithms.theory import gradient_variance
from plugstream.models.base import Model

F64 = torch.float64
VIEWS, SHAPE, M = 3, (4, 5), 6
FILTERS = torch.randn(VIEWS, *SHAPE, generator=torch.Generator().manual_seed(8), dtype=F64)


def _stack(complex_: bool) -> Tensor:
    dtype = torch.complex128 if complex_ else F64
    return torch.randn(VIEWS, M, 20, generator=torch.Generator().manual_seed(5), dtype=dtype)


def _convolution(image: Tensor, views: Tensor) -> Tensor:
    return torch.fft.fft2(image[..., None, :, :] * FILTERS[views])


def _sums(image: Tensor, views: Tensor) -> Tensor:
    """One number a view: data_shape is ()."""
    return (image[..., None, :, :] * FILTERS[views]).sum((-2, -1))


def _born(method: str) -> BornModel:
    mask = np.ones((VIEWS, M), dtype=bool)
    mask[1, 2] = False
    geometry = BornGeometry(
        receivers=ring(M, 0.4),
        transmitters=ring(VIEWS, 0.5, start=3),
        wavelength=0.04,
        grid=Grid(SHAPE, 0.01),
        mask=mask,
    )
    return BornModel(geometry, method=method, dtype=F64)


MODELS: dict[str, Callable[[], Model]] = {
    "matrix": lambda: MatrixModel(list(_stack(False)), SHAPE),
    "complex": lambda: MatrixModel(list(_stack(True)), SHAPE),
    "sparse": lambda: MatrixModel([a.to_sparse() for a in _stack(False)], SHAPE),
    "function": lambda: FunctionModel(
        _convolution,
        n_views=VIEWS,
        image_shape=SHAPE,
        data_shape=SHAPE,
        linear=True,
        dtype=F64,
        data_dtype=torch.complex128,
    ),
    "born": lambda: _born("dense"),
    "fast born": lambda: _born("fast"),
    "numbers": lambda: FunctionModel(_sums, n_views=VIEWS, image_shape=SHAPE, data_shape=(), linear=True, dtype=F64),
}
# Images in the data (as many as views: what was silently wrong), and the leading axes of the start image.
AXES = [((VIEWS,), ()), ((2,), ()), ((), (2,)), ((2,), (2,)), ((2,), (3, 1)), ((2, 3), (3,)), ((VIEWS,), (VIEWS,))]


def _loop(images: Tensor, data: Tensor, one: Callable[[Tensor, Tensor], Tensor], tail: int) -> Tensor:
    """What `one` gives for each image with its own data, in the broadcast leading axes."""
    lead = torch.broadcast_shapes(images.shape[:-2], data.shape[: data.ndim - tail])
    images = images.expand(*lead, *images.shape[-2:])
    data = data.expand(*lead, *data.shape[data.ndim - tail :])
    flat = [one(images[index], data[index]) for index in np.ndindex(*lead)]
    return torch.stack(flat).reshape(*lead, *flat[0].shape)


# Every model with one of the axes, and a function with what was wrong.
FEW = [(name, AXES[n]) for n, name in enumerate(MODELS)] + [("function", AXES[0])]


@thorough
@pytest.mark.parametrize(("name", "axes"), effort(FEW, [(name, axes) for name in MODELS for axes in AXES]), ids=str)
def test_every_function_agrees_with_a_loop_over_images(name: str, axes: tuple[tuple[int, ...], ...]) -> None:
    model = MODELS[name]()
    tail = 1 + len(model.data_shape)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(*axes[0], VIEWS, *model.data_shape, generator=generator, dtype=model.data_dtype)
    x = torch.randn(*axes[1], *SHAPE, generator=generator, dtype=F64)
    whole = LeastSquares(model, data, prox_tol=1e-13)

    def compare(what: Callable[[LeastSquares, Tensor], Tensor]) -> None:
        def one(image: Tensor, of: Tensor) -> Tensor:
            return what(LeastSquares(model, of, prox_tol=1e-13), image)

        wanted, result = _loop(x, data, one, tail), what(whole, x)
        assert result.shape == wanted.shape
        assert torch.allclose(result, wanted, rtol=1e-9, atol=1e-10)

    weights = torch.tensor([0.3, 2.0], dtype=F64)
    for views, w in ((None, None), (torch.tensor([2, 0]), None), (torch.tensor([2, 0]), weights)):
        compare(lambda f, image, views=views, w=w: f.value(image, views, w))
        compare(lambda f, image, views=views, w=w: f.gradient(image, views, w))
        compare(lambda f, image, views=views, w=w: f.prox(image, 0.4, views, w))
    # From the solution conjugate gradients take no iteration, which must not change the shape.
    compare(lambda f, image: f.prox(image, 0.0))
    compare(lambda f, image: gradient_variance(image, f))
    compare(lambda f, image: gradient_variance(image, f, torch.tensor([2, 1])))
    if not axes[1]:
        compare(lambda f, image: f.backprojection())
        compare(lambda f, image: f.backprojection([1, 2]))


@pytest.mark.parametrize(
    "make",
    [
        lambda f: ProximalGradient(f, SoftThreshold(), sigma=0.1, sampler=Uniform(2)),
        lambda f: ProximalGradient(f, SoftThreshold(), sigma=0.1, sampler=Uniform(2), gradient=SAGA()),
        lambda f: ProximalGradient(f, SoftThreshold(), sigma=0.1, sampler=Uniform(2), gradient=SVRG()),
        lambda f: ProximalGradient(f, SoftThreshold(), sigma=0.1, momentum="nesterov", restart="gradient"),
        lambda f: ADMM(f, SoftThreshold(), sigma=0.1),
        lambda f: ADMM(f, SoftThreshold(), sigma=0.1, dual=False),
    ],
    ids=["plain", "saga", "svrg", "restart", "admm", "hqs"],
)
@thorough
@pytest.mark.parametrize("name", effort(["function"], ["matrix", "function"]))
def test_one_start_for_the_data_of_several_images(name: str, make: Callable[[LeastSquares], Algorithm]) -> None:
    """Each image becomes what it becomes alone, and all that is measured has one value for each from the start."""
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(VIEWS, VIEWS, *model.data_shape, generator=generator, dtype=model.data_dtype)
    truth, start = torch.randn(2, *SHAPE, generator=generator, dtype=F64)
    monitors = [SNR(truth), Distance()]
    whole = solve(make(LeastSquares(model, data)), start, iterations=4, monitors=monitors, every=2)
    assert whole.image.shape == (VIEWS, *SHAPE)
    for number in range(VIEWS):
        alone = solve(make(LeastSquares(model, data[number])), start, iterations=4, monitors=monitors, every=2)
        assert torch.allclose(whole.image[number], alone.image, rtol=1e-4, atol=1e-5)
        for quantity in ("snr", "distance"):
            assert np.allclose(whole.history[quantity].value[:, number], alone.history[quantity].value, rtol=1e-3)


def test_axes_that_do_not_go_together_are_refused_in_one_line() -> None:
    fidelity = LeastSquares(MODELS["matrix"](), torch.zeros(2, VIEWS, M, dtype=F64))
    for call in (fidelity.value, fidelity.gradient, lambda x: fidelity.prox(x, 1.0)):
        with pytest.raises(InputError, match=r"data of \(2,\) images.*\(3,\)"):
            call(torch.zeros(3, *SHAPE, dtype=F64))
    with pytest.raises(InputError, match=r"the first image has leading axes \(3,\)"):
        ADMM(fidelity, SoftThreshold(), sigma=0.1).init(torch.zeros(3, *SHAPE, dtype=F64))


def test_the_variance_is_over_the_views_that_are_available() -> None:
    """Against a loop: nu^2 = 1/I sum_i ||grad d_i - grad d||^2, of those that are left."""
    generator = torch.Generator().manual_seed(4)
    stack = torch.randn(8, M, 20, generator=generator, dtype=F64)
    stack[3] *= 30  # a view that is left out, and would rule
    data = torch.randn(8, M, generator=generator, dtype=F64)
    x = torch.randn(SHAPE, generator=generator, dtype=F64)
    left = torch.tensor([0, 1, 2, 4, 6, 7])
    fidelity = LeastSquares(MatrixModel(list(stack), SHAPE), data, available=left)
    gradients = torch.stack([(a.T @ (a @ x.flatten() - y)).reshape(SHAPE) for a, y in zip(stack, data, strict=True)])
    chosen = gradients[left]
    wanted = float((chosen - chosen.mean(0)).square().sum((-2, -1)).mean())
    assert float(gradient_variance(x, fidelity)) == pytest.approx(wanted, rel=1e-12)
    # All pairs of views that can be drawn give it on average, without bias.
    pairs = torch.combinations(left)
    estimates = [float(gradient_variance(x, fidelity, pair)) for pair in pairs]
    assert float(np.mean(estimates)) == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(InputError, match="at least two"):
        gradient_variance(x, fidelity, torch.tensor([1]))
