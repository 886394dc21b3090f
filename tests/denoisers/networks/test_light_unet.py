"""The light U-Net: against autograd and a dense Jacobian, and what holds whatever it learned."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import plugstream as ps
from plugstream.base.errors import InputError
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.denoisers.networks.unet import UNet, save_unet


def network(form: str, channels=(3, 4, 5), blocks=(1, 2, 1)) -> LightUNet:
    """A small one with random weights, whose residual is far from 0."""
    torch.manual_seed(0)
    net = LightUNet(channels, blocks, form)
    net.tail.data *= 100
    return net.double().requires_grad_(False)


def image(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(16, 8), (9, 13)])
def test_the_gradient_is_that_of_the_potential(shape):
    net = network("safe")
    x, sigma = image(2, 1, *shape).requires_grad_(), torch.tensor([0.1, 0.02], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(net.potential(x, sigma).sum(), x)
    torch.testing.assert_close(net.gradient(x.detach(), sigma), gradient)
    torch.testing.assert_close(net(x.detach(), sigma), x.detach() - gradient)


def test_turned_weights_follow_the_weights_and_no_call_changes_its_image():
    net, x, sigma = network("safe"), image(1, 1, 16, 16), torch.tensor([0.1], dtype=torch.float64)
    first, before = net.gradient(x, sigma), x.clone()
    assert torch.equal(net.gradient(x, sigma), first)  # with the turned weights of the first call
    assert torch.equal(x, before)
    net.body[0].first.mul_(2)
    net = net.float()
    y = x.float().requires_grad_()
    (gradient,) = torch.autograd.grad(net.potential(y, sigma.float()).sum(), y)
    torch.testing.assert_close(net.gradient(x.float(), sigma.float()), gradient)
    assert not torch.allclose(gradient.double(), first, rtol=1e-3)


def test_the_safe_form_has_a_symmetric_jacobian_and_the_free_form_has_not():
    sigma, x = torch.tensor([0.1], dtype=torch.float64), image(1, 1, 9, 10)
    skew = {}
    for form in ("free", "safe"):
        net = network(form)
        jacobian = torch.autograd.functional.jacobian(lambda z, net=net: net(z, sigma), x).reshape(90, 90)
        skew[form] = float((jacobian - jacobian.T).norm() / jacobian.norm())
    assert skew["safe"] < 1e-14
    assert skew["free"] > 1e-2


def test_the_slope_is_continuous_where_the_free_form_has_kinks():
    """Halving a step around a point brings the safe form's Jacobian as near as wanted."""
    x, sigma = image(1, 1, 8, 8), torch.tensor([0.1], dtype=torch.float64)
    direction = image(1, 1, 8, 8) - 0.5
    net = network("safe")
    far, near = (
        float((net(x + h * direction, sigma) - 2 * net(x, sigma) + net(x - h * direction, sigma)).norm()) / h
        for h in (1e-2, 1e-4)
    )
    assert near < 0.05 * far


def test_the_free_form_scales_with_its_image():
    net = network("free")
    x, sigma = image(1, 1, 16, 16), torch.tensor([0.1], dtype=torch.float64)
    torch.testing.assert_close(net(7 * x, 7 * sigma), 7 * net(x, sigma))


def test_nothing_beyond_its_reach_matters():
    for form in ("free", "safe"):
        net = network(form, (2, 2), (1, 1))
        x, sigma = image(1, 1, 8, 3 * net.reach), torch.tensor([0.1], dtype=torch.float64)
        other = x.clone()
        middle = x.shape[-1] // 2
        other[..., middle] += 1
        columns = (net(x, sigma) - net(other, sigma)).abs().amax((0, 1, 2)).nonzero()[:, 0]
        assert int((columns - middle).abs().max()) <= net.reach
        assert len(columns) > net.reach / 2  # it is not much too large


def test_the_denoiser_keeps_shapes_scales_and_knows_its_potential():
    for form in ("free", "safe"):
        denoiser = UNet(network(form))
        z = image(2, 3, 17, 20)
        out = denoiser(z, 0.1)
        assert out.shape == z.shape
        torch.testing.assert_close(denoiser(z[1, 2], 0.1), out[1, 2])
        torch.testing.assert_close(UNet(network(form), white=255.0)(255 * z, 25.5), 255 * out)
        assert (denoiser.averaged, denoiser.min_size, denoiser.align) == (None, 8, 8)
    assert UNet(network("free")).potential is None
    z.requires_grad_()
    for denoiser, part in ((UNet(network("safe"), white=3.0), 1.0), (ps.Damping(UNet(network("safe")), 0.3), 0.3)):
        values = denoiser.potential(z, 0.1)
        assert values.shape == (2, 3)
        (gradient,) = torch.autograd.grad(values.sum(), z)
        torch.testing.assert_close(z - gradient, denoiser(z, 0.1))
        assert part * float(denoiser.potential(z.detach(), 0.1).min()) >= 0


def test_small_steps_lower_the_potential_of_the_safe_form():
    denoiser = ps.Damping(UNet(network("safe")), 1e-3)
    z = image(1, 16, 16)
    values = []
    for _ in range(6):
        values.append(float(denoiser.potential(z, 0.1)))
        z = denoiser(z, 0.1)
    assert values == sorted(values, reverse=True)


def lifted(denoiser, part, sigma):
    """D of a real part that is moved to where its mean is three standard deviations, and back."""
    shift = 3 * part.std(correction=0) - part.mean()
    return denoiser(part + shift, sigma) - shift


def test_parts_of_complex_images_are_lifted_to_the_values_that_it_was_trained_on():
    """Whatever white is, and wherever the part's own zero is."""
    net, z = UNet(network("free"), white=2.0), torch.complex(torch.randn(16, 16), 3 + torch.randn(16, 16))
    for denoiser in (net, ps.Damping(net, 0.3)):
        clean = torch.complex(lifted(denoiser, z.real, 0.1), lifted(denoiser, z.imag, 0.1))
        torch.testing.assert_close(ps.RealImaginary(denoiser)(z, 0.1), clean)
        torch.testing.assert_close(ps.RealImaginary(denoiser)(z - 5, 0.1), clean - 5, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ps.RealImaginary(net)(z.real, 0.1), net(z.real, 0.1))
    assert bool(ps.RealImaginary(net)(torch.full_like(z, 1 + 0j), 0.1).isfinite().all())


def test_a_magnitude_is_not_lifted_as_it_has_such_values():
    net, waves = UNet(network("free"), white=2.0), torch.polar(image(9, 11), 6 * image(11, 9).T)
    clean = ps.MagnitudePhase(net)(waves, 0.1)
    torch.testing.assert_close(clean.abs(), net(waves.abs(), 0.1).clamp_min(0))


def test_volumes_channels_and_complex_images_by_adapters():
    denoiser = UNet(network("free", (2, 2), (1, 1)))
    volume = image(6, 9, 11)
    torch.testing.assert_close(ps.adapt(denoiser, volume.shape, volume=0)(volume, 0.1), denoiser(volume, 0.1))
    waves = torch.complex(image(9, 11), image(11, 9).T)
    out = ps.adapt(denoiser, (9, 11), complex=True)(waves, 0.1)
    parts = [lifted(denoiser, part, 0.1) for part in (waves.real, waves.imag)]
    torch.testing.assert_close(out, torch.complex(*parts))
    tiles = ps.Tiles(denoiser, 32)
    wide = image(24, 300)
    torch.testing.assert_close(tiles(wide, 0.1), denoiser(wide, 0.1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: UNet(folder / "nowhere.safetensors"), "no weights of unet at"),
        (lambda folder: UNet("free"), "no free weights of unet are installed"),
        (lambda folder: UNet(network("free"), white=0), "white must be a number > 0"),
        (lambda folder: UNet(network("free"))(torch.rand(4, 9), 0.1), "4 x 9, but the free U-Net needs at least 8"),
        (lambda folder: UNet(folder / "other.safetensors"), "other weights than"),
        (lambda folder: UNet(folder / "cut.safetensors"), "other weights than those of our U-Net"),
    ],
)
def test_mistakes_are_answered_in_a_line(tmp_path, monkeypatch, make, message):
    from plugstream.base.tensors import load_tensors, save_tensors
    from plugstream.denoisers.networks import unet

    monkeypatch.setattr(unet, "FOLDER", tmp_path)
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(2)}, {"format": "else"})
    save_unet(tmp_path / "w.safetensors", LightUNet((2, 2), (1, 1)), {}, 0.2)
    about, tensors = load_tensors(tmp_path / "w.safetensors")
    del tensors["tail"]
    save_tensors(tmp_path / "cut.safetensors", tensors, about)
    with pytest.raises(InputError, match=message) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)
