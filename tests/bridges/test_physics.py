"""deepinv's Physics as models, with classes that have its calls; with the real ones in test_deepinv.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import plugstream as ps
from plugstream.base.errors import InputError


class Mixing:
    """A linear Physics of one's own: (N, C, H, W) to (N, m) by a matrix on all of an image."""

    def __init__(self, m: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> None:
        self.shape, self.matrix = shape, torch.randn(m, int(torch.tensor(shape).prod()), dtype=dtype)

    def A(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.matrix.T

    def A_adjoint(self, y: Tensor) -> Tensor:
        return (y @ self.matrix.conj()).reshape(-1, *self.shape)


class Squares(Mixing):
    """One that is not linear: the squares of the same, known by its A_vjp."""

    A_adjoint = None  # type: ignore[assignment]

    def __init__(self, m: int, shape: tuple[int, ...]) -> None:
        super().__init__(m, shape)
        self.img_size = shape

    def A(self, x: Tensor) -> Tensor:
        return super().A(x).abs().square()

    def A_vjp(self, x: Tensor, v: Tensor) -> Tensor:
        z = super().A(x)
        return ((2 * v * z) @ self.matrix).reshape(-1, *self.shape)


def autograd_gradient(every: list[Mixing], x: Tensor, data: list[Tensor]) -> Tensor:
    """Of sum_i 1/2 ||A_i(x) - y_i||^2, which is deepinv's."""
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        total = sum((one.A(leaf) - z).abs().square().sum() / 2 for one, z in zip(every, data, strict=True))
        (gradient,) = torch.autograd.grad(total, leaf)
    return gradient


@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 4, 5), (1, 3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("kind", ["linear", "not linear", "complex"])
def test_the_gradient_is_that_of_autograd(shape: tuple[int, ...], kind: str) -> None:
    dtype = torch.complex128 if kind == "complex" else torch.float64
    one = Squares(7, shape) if kind == "not linear" else Mixing(7, shape, dtype)
    x, y = torch.randn(2, *shape, dtype=dtype), torch.randn(2, 7, dtype=dtype)
    fidelity = ps.from_deepinv(one, y)
    assert (fidelity.linear, fidelity.n_views, fidelity.dtype) == (kind != "not linear", 1, dtype)
    assert fidelity.channels == (shape[0] > 1)
    torch.testing.assert_close(fidelity.gradient(x), autograd_gradient([one], x, [y]))
    if kind == "not linear":
        direction = torch.randn_like(x)
        wanted = torch.func.jvp(one.A, (x,), (direction,))[1]
        torch.testing.assert_close(fidelity.model.derivative(x, direction).reshape(wanted.shape), wanted)


def test_two_channels_can_be_a_complex_image() -> None:
    one = Mixing(7, (2, 4, 5))
    x, y = torch.randn(3, 2, 4, 5, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    fidelity = ps.from_deepinv(one, y, complex_images=True)
    ours = fidelity.model.from_deepinv(x)
    assert fidelity.image_shape == (4, 5)
    assert ours.dtype == torch.complex128
    assert torch.equal(fidelity.model.to_deepinv(ours), x)
    theirs = fidelity.model.to_deepinv(fidelity.gradient(ours))
    torch.testing.assert_close(theirs, autograd_gradient([one], x, [y]))


def test_a_list_is_a_view_each_whatever_their_sizes() -> None:
    every = [Mixing(m, (1, 4, 5)) for m in (7, 3, 7)]
    x, y = torch.randn(2, 1, 4, 5, dtype=torch.float64), [torch.randn(2, m, dtype=torch.float64) for m in (7, 3, 7)]
    fidelity = ps.from_deepinv(every, y)
    assert fidelity.n_views == 3
    some = autograd_gradient([every[2], every[1]], x, [y[2], y[1]])
    torch.testing.assert_close(2 * fidelity.gradient(x, [2, 1]), some)
    tops = torch.stack([torch.linalg.matrix_norm(one.matrix, 2) ** 2 for one in every])
    torch.testing.assert_close(fidelity.lipschitz_views, tops, rtol=0.02, atol=0)


def test_a_reconstructor_minimises_deepinvs_function() -> None:
    """f + lambda ||x||_1 with f the sum over all data: its optimality conditions hold, whatever the views."""
    every = [Mixing(18, (1, 4, 5)) for _ in range(3)]
    y = [torch.randn(2, 18, dtype=torch.float64) for _ in every]
    model = ps.PnPSGD(ps.SoftThreshold(), lambda_reg=2.0, momentum="nesterov", restart="gradient", iterations=260)
    x = model(y, every)
    assert x.shape == (2, 1, 4, 5)
    slope, active = autograd_gradient(every, x, y), x != 0
    torch.testing.assert_close(slope[active], -2.0 * x[active].sign(), atol=1e-4, rtol=0)
    assert float(slope.abs().max()) <= 2 + 1e-4
    assert model.result is not None
    assert model.result.verdict.to_go < 1e-6  # which takes no measuring
    assert not model.result.verdict.trusted
    assert not model.result.history


def test_a_reconstructor_measures_what_it_is_asked_to() -> None:
    every = [Mixing(9, (1, 4, 5)) for _ in range(3)]
    y = [torch.randn(2, 9, dtype=torch.float64) for _ in every]
    model = ps.PnPSGD(ps.SoftThreshold(), lambda_reg=2.0, iterations=120, monitors=[ps.Distance()])
    plain = ps.PnPSGD(ps.SoftThreshold(), lambda_reg=2.0, iterations=120)
    assert torch.equal(model(y, every), plain(y, every))
    assert model.result is not None
    assert model.result.history["relative_distance"].step.tolist() == list(range(0, 121, 10))
    assert model.result.verdict.outcome is ps.Outcome.ARRIVED


def test_one_step_is_deepinvs_step() -> None:
    """x = D(x0 - gamma A^T (A x0 - y), sigma), with deepinv's gamma, and a network that takes deepinv's images."""

    class Shrink(nn.Module):
        def forward(self, x: Tensor, sigma: float) -> Tensor:
            assert x.shape[1:] == (3, 4, 5)
            return x / (1 + sigma)

    every = [Mixing(9, (3, 4, 5)) for _ in range(2)]
    y = [torch.randn(2, 9, dtype=torch.float64) for _ in every]
    start = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    model = ps.PnPSGD(Shrink(), sigma_denoiser=[0.5], stepsize=0.001, max_iter=1, early_stop=True)
    x, metrics = model(y, every, init=start, x_gt=start, compute_metrics=True)
    wanted = (start - 0.001 * autograd_gradient(every, start, y)) / 1.5
    torch.testing.assert_close(x, wanted)
    error = (x - start).square().flatten(1).mean(1)
    assert [row[1] for row in metrics["psnr"]] == pytest.approx((-10 * error.log10()).tolist())
    assert [len(row) for row in metrics["residual"]] == [1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unfold": True}, "PnPSGD has no unfold"),
        ({"prior": ps.Identity()}, "denoiser or a prior"),
        ({"batch": 2, "sampler": ps.All()}, "batch or a sampler"),
    ],
)
def test_what_a_reconstructor_cannot_do_is_said(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.PnPSGD(ps.TV(), 0.1, **given)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused() -> None:
    one = Mixing(7, (1, 4, 5))
    y = torch.randn(1, 7, dtype=torch.float64)
    for physics, data, message in [
        (one, None, "give the data too"),
        ([one, one], y, "a list of 2 Physics"),
        (object(), y, "not a Physics"),
        (one, torch.ones(7), "first axis is of images"),
        (one, torch.ones(1, 6, dtype=torch.float64), r"Mixing cannot take data of \(1, 6\)"),
    ]:
        with pytest.raises(InputError, match=message):
            ps.from_deepinv(physics, data)
    with pytest.raises(InputError, match="cannot be split"):
        ps.from_deepinv(one, y, views=2)
    with pytest.raises(InputError, match="two real channels"):
        ps.from_deepinv(one, y, complex_images=True)
    with pytest.raises(InputError, match="give sigma"):
        ps.PnPSGD(ps.TV())(y, one)


@pytest.mark.gpu
def test_data_on_a_gpu_is_reconstructed_there() -> None:
    one = Mixing(30, (1, 6, 6), torch.float32)
    y = one.A(torch.rand(2, 1, 6, 6))
    here = ps.PnPSGD(ps.TV(), 0.01, iterations=20)(y, one)
    operators = ps.from_operators([one.matrix.numpy()], y[:1].numpy(), image_shape=(6, 6), device="cuda")
    there = ps.from_operators([one.matrix.numpy()], y[:1].numpy(), image_shape=(6, 6))
    x = torch.rand(6, 6)
    torch.testing.assert_close(operators.gradient(x.cuda()).cpu(), there.gradient(x), rtol=1e-3, atol=1e-3)
    one.matrix = one.matrix.cuda()
    found = ps.PnPSGD(ps.TV(), 0.01, iterations=20)(y.cuda(), one)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), here, rtol=1e-3, atol=1e-3)
