"""Both ways with the real deepinv, which `make test-peers` has beside the environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import plugstream as ps
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.bridges.priors import read_prior
from plugstream.denoisers.adapters import as_module

dinv = pytest.importorskip("deepinv", reason="deepinv is not installed; `make test-peers` has it")
physics_of = dinv.physics
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def tomography(angles: int = 6, **options: Any) -> Any:
    return physics_of.Tomography(angles=angles, img_width=12, normalize=True, **options)


def coils() -> Any:
    maps = torch.randn(5, 12, 12, dtype=torch.complex64)
    return physics_of.MultiCoilMRI(mask=(torch.rand(12, 12) > 0.4).float(), coil_maps=maps)


def frames() -> Any:
    return physics_of.SequentialMRI(mask=(torch.rand(2, 1, 3, 12, 12) > 0.5).float().repeat(1, 2, 1, 1, 1))


def masks() -> Any:
    return physics_of.MRI(mask=(torch.rand(2, 1, 12, 12) > 0.5).float())


def film() -> Any:
    return physics_of.DynamicMRI(mask=(torch.rand(2, 2, 3, 12, 12) > 0.5).float())


def blur() -> Any:
    return physics_of.BlurFFT(img_size=(3, 12, 12), filter=torch.rand(1, 1, 5, 5))


def stack() -> Any:
    small = physics_of.Downsampling(img_size=(3, 12, 12), factor=2, filter="bicubic")
    return physics_of.StackedLinearPhysics([blur(), small])


def holes() -> Any:
    return physics_of.Inpainting(img_size=(3, 12, 12), mask=0.5)


KINDS: list[tuple[Callable[[], Any], tuple[int, ...], int]] = [
    (tomography, (1, 12, 12), 6),
    (coils, (2, 12, 12), 5),
    (frames, (2, 12, 12), 3),
    (masks, (2, 12, 12), 1),
    (film, (2, 3, 12, 12), 1),
    (blur, (3, 12, 12), 1),
    (stack, (3, 12, 12), 2),
    (holes, (3, 12, 12), 1),
]


def theirs(physics: Any, x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """deepinv's f, 1/2 the sum of squares over all data, and its gradient by autograd through A."""
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        made = physics.A(leaf)
        pairs = [(made, y)] if isinstance(made, Tensor) else zip(made, y, strict=True)
        total = sum((a - b).square().sum() / 2 for a, b in pairs)
        (gradient,) = torch.autograd.grad(total, leaf)
    return total.detach(), gradient


@pytest.mark.parametrize(("make", "shape", "views"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_value_and_gradient_are_deepinvs(make: Callable[[], Any], shape: tuple[int, ...], views: int) -> None:
    physics, x, z = make(), torch.rand(2, *shape), torch.rand(2, *shape)
    y = physics(x)
    fidelity = ps.from_deepinv(physics, y)
    model: Any = fidelity.model
    assert fidelity.n_views == views
    value, gradient = theirs(physics, z, y)
    ours = model.from_deepinv(z)
    torch.testing.assert_close(views * fidelity.value(ours).sum(), value)
    torch.testing.assert_close(views * model.to_deepinv(fidelity.gradient(ours)), gradient)
    assert float(fidelity.value(model.from_deepinv(x)).max()) < 1e-8  # the truth explains its data
    # A few views, in any order and again, are the sum of each alone.
    some = [views - 1, 0, views - 1]
    each = sum(fidelity.gradient(ours, [view]) for view in some) / 3
    torch.testing.assert_close(fidelity.gradient(ours, some), each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [tomography, coils, frames, blur], ids=lambda make: make.__name__)
def test_L_bounds_every_view(make: Callable[[], Any]) -> None:
    """By the largest eigenvalue of A^T A of a view, from its matrix written out."""
    physics = make()
    shape = {"tomography": (1, 12, 12), "blur": (3, 12, 12)}.get(make.__name__, (2, 12, 12))
    fidelity = ps.from_deepinv(physics, physics(torch.rand(2, *shape)))
    model: Any = fidelity.model
    eye = torch.eye(int(torch.tensor(shape).prod())).reshape(-1, 1, *shape).expand(-1, 2, *shape)
    each = [torch.stack([model.forward(model.from_deepinv(e), [v]).flatten(1) for e in eye]) for v in (0,)]
    tops = [float(torch.linalg.matrix_norm(m[:, b].T.double(), 2) ** 2) for m in each for b in range(2)]
    assert max(tops) <= float(fidelity.lipschitz_views[0]) <= 1.03 * max(tops)


def test_angles_can_be_grouped_and_kept_together() -> None:
    physics, x = tomography(6), torch.rand(1, 1, 12, 12)
    y = physics(x)
    z = torch.rand_like(x)
    _, gradient = theirs(physics, z, y)
    for views in (1, 2, 3, 6):
        fidelity = ps.from_deepinv(physics, y, views=views)
        assert fidelity.n_views == views
        torch.testing.assert_close(views * fidelity.gradient(z), gradient)
        one_by_one = fidelity.gradient(z, list(reversed(range(views))))
        torch.testing.assert_close(views * one_by_one, gradient)
    with pytest.raises(InputError, match="cannot be split into 4"):
        ps.from_deepinv(physics, y, views=4)


def test_an_adjoint_that_is_none_is_warned_of() -> None:
    physics = tomography(6, adjoint_via_backprop=False)
    with pytest.warns(PlugstreamWarning, match="adjoint"):
        ps.from_deepinv(physics, physics(torch.rand(1, 1, 12, 12)))


def test_phase_retrieval_goes_through_its_vjp() -> None:
    physics = physics_of.RandomPhaseRetrieval(m=300, img_size=(1, 6, 6))
    x = torch.polar(torch.ones(1, 1, 6, 6), torch.rand(1, 1, 6, 6))
    y = physics(x)
    fidelity = ps.from_deepinv(physics, y, dtype=torch.complex64)
    z = torch.randn(1, 1, 6, 6, dtype=torch.complex64)
    torch.testing.assert_close(fidelity.gradient(z), theirs(physics, z, y)[1])
    algorithm = ps.ProximalGradient(fidelity, ps.Identity(), sigma=0.0, momentum="nesterov", restart="gradient")
    result = ps.solve(algorithm, x + 0.3 * z, iterations=200)  # the step is found, no L being known
    assert float(fidelity.value(result.image)) < 1e-3 * float(fidelity.value(x + 0.3 * z))


def test_the_noise_model_chooses_the_loss() -> None:
    x, noise = torch.rand(1, 1, 12, 12) + 0.5, physics_of
    for model, kind in [
        (noise.GaussianNoise(0.1), ps.LeastSquares),
        (noise.ZeroNoise(), ps.LeastSquares),
        (noise.PoissonNoise(gain=0.1), ps.Poisson),
        (noise.PoissonNoise(gain=0.1, normalize=False), ps.Poisson),
        (noise.LogPoissonNoise(N0=1000.0, mu=0.5), ps.Transmission),
        (noise.PoissonGaussianNoise(gain=0.1, sigma=0.1), ps.Gaussian),
    ]:
        physics = noise.Denoising(noise_model=model)
        fidelity = ps.from_deepinv(physics, physics(x))
        assert isinstance(fidelity if kind is ps.LeastSquares else fidelity.loss, kind)
    # The likelihood of counts is deepinv's own.
    physics = physics_of.Denoising(noise_model=noise.PoissonNoise(gain=0.1))
    y = physics(x)
    own = dinv.optim.data_fidelity.PoissonLikelihood(gain=0.1)
    ours = ps.from_deepinv(physics, y, loss=None)
    z = torch.rand_like(x) + 0.5
    difference = own(z, y, physics) - own(x, y, physics)
    torch.testing.assert_close((ours.value(z) - ours.value(x)).reshape(1), difference, rtol=1e-3, atol=1e-3)
    # A floor of one's own is of the same counts.
    lower = ps.from_deepinv(physics, y, loss=ps.Poisson(floor=0.5))
    torch.testing.assert_close(lower.value(z), ours.value(z))
    with pytest.raises(InputError, match="no loss is known for SaltPepperNoise"):
        ps.from_deepinv(physics_of.Denoising(noise_model=noise.SaltPepperNoise()), y)
    with pytest.raises(InputError, match="different kinds"):
        ps.from_deepinv([physics, physics_of.Denoising()], [y, y])


@pytest.mark.parametrize(("make", "shape", "views"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_one_step_takes_the_place_of_pgds(make: Callable[[], Any], shape: tuple[int, ...], views: int) -> None:
    """The same image as deepinv's PGD after three steps, from the same line but for the name."""
    if make in (film, frames):  # of which deepinv's median takes the one, and its PGD the other, neither at all
        return
    physics, x = make(), torch.rand(2, *shape)
    y = physics(x)
    line = {
        "prior": dinv.optim.prior.PnP(denoiser=dinv.models.MedianFilter(kernel_size=3)),
        "data_fidelity": dinv.optim.data_fidelity.L2(sigma=0.7),
        "stepsize": 0.02 if make is stack or make is blur else 0.3,
        "sigma_denoiser": 0.1,
        "max_iter": 3,
        "custom_init": lambda y, physics: physics.A_adjoint(y),
    }
    wanted = dinv.optim.PGD(**line)(y, physics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlugstreamWarning)  # of steps that are long
        model = ps.PnPSGD(**line, momentum="none")
        assert isinstance(model, dinv.models.Reconstructor)
        found = model(y, physics)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_it_gets_below_pgd_with_deepinvs_priors() -> None:
    physics = tomography(12, noise_model=physics_of.GaussianNoise(0.02))
    x = torch.zeros(1, 1, 12, 12)
    x[..., 3:9, 4:8] = 1
    y = physics(x)
    for prior in (dinv.optim.prior.TVPrior(n_it_max=30), dinv.optim.prior.Tikhonov(), dinv.optim.prior.L1Prior()):
        line = {"prior": prior, "data_fidelity": dinv.optim.data_fidelity.L2(), "lambda_reg": 0.02}
        wanted = dinv.optim.PGD(**line, stepsize=1.0, max_iter=60)(y, physics)
        found = ps.PnPSGD(**line, sampler=ps.All(), momentum="nesterov", restart="gradient", max_iter=60)(y, physics)

        def cost(image: Tensor, prior: Any = prior) -> float:
            return float((physics.A(image) - y).square().sum() / 2 + 0.02 * prior.fn(image))

        assert cost(found) <= cost(wanted) + 1e-4 * abs(cost(wanted))


@pytest.mark.parametrize("make", [tomography, blur, masks], ids=lambda make: make.__name__)
def test_tv_is_deepinvs_tv(make: Callable[[], Any]) -> None:
    """Of grey, colour and complex images: the prox of the sum over channels, which deepinv reaches with many steps."""
    shape = {tomography: (1, 12, 12), blur: (3, 12, 12), masks: (2, 12, 12)}[make]
    physics, z = make(), torch.rand(2, *shape)
    model: Any = ps.from_deepinv(physics, physics(z)).model
    denoiser, is_prox = read_prior(dinv.optim.prior.TVPrior(), model)
    wanted = dinv.optim.prior.TVPrior(n_it_max=3000).prox(z, gamma=0.05)
    found = model.to_deepinv(denoiser(model.from_deepinv(z), 0.05**0.5))
    assert is_prox
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-3)


def test_deepinv_evaluates_it_as_its_own(tmp_path: Any) -> None:
    """`deepinv.test` on a loader: the model is a Reconstructor like others."""
    physics = tomography(8, noise_model=physics_of.GaussianNoise(0.01))
    truths = torch.rand(2, 1, 12, 12)
    loader = torch.utils.data.DataLoader([(x, physics(x[None])[0]) for x in truths], batch_size=2)
    model = ps.PnPSGD(ps.TV(), 0.02, batch=2, iterations=20)
    found = dinv.test(model, loader, physics, metrics=dinv.metric.PSNR(), device="cpu", verbose=False)
    assert max(value for value in found.values()) > 10


def test_denoisers_go_both_ways() -> None:
    z = torch.rand(2, 12, 12)
    theirs = dinv.models.MedianFilter(kernel_size=3)
    torch.testing.assert_close(ps.from_deepinv(theirs)(z, 0.1), theirs(z[:, None], 0.1)[:, 0])
    physics = tomography(8)
    y = physics(torch.rand(1, 1, 12, 12))
    prior = dinv.optim.prior.PnP(denoiser=as_module(ps.TV()))
    ours = ps.PnPSGD(prior=prior, sigma_denoiser=0.05, max_iter=5)(y, physics)
    torch.testing.assert_close(ours, ps.PnPSGD(ps.TV(), 0.05, iterations=5)(y, physics))


@pytest.mark.parametrize(
    ("architecture", "channels", "make"),
    [
        ("drunet", 1, lambda: dinv.models.DRUNet(1, 1, nc=(4, 6, 8, 8), nb=2, pretrained=None)),
        ("drunet", 3, lambda: dinv.models.DRUNet(3, 3, nc=(4, 6, 8, 8), nb=3, pretrained=None)),
        ("gs-drunet", 1, lambda: dinv.models.GSDRUNet(in_channels=1, out_channels=1, nc=(4, 6, 8, 8), pretrained=None)),
        ("dncnn", 1, lambda: dinv.models.DnCNN(1, 1, depth=5, nf=8, pretrained=None)),
    ],
)
def test_the_weights_of_its_networks_load_by_their_names(
    architecture: str, channels: int, make: Callable[[], Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    theirs = make().eval()
    torch.save(theirs.state_dict(), tmp_path / "weights.pt")
    z = torch.rand(2, 32, 40)
    wanted = theirs(z[:, None].repeat(1, channels, 1, 1), 0.1).detach().mean(1)
    ours = ps.from_weights(tmp_path / "weights.pt", architecture)
    torch.testing.assert_close(ours(z, 0.1), wanted, atol=1e-5, rtol=1e-5)
