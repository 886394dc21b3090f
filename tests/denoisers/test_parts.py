"""Adapters to complex images: parts on their own, what is kept of averagedness, and wrapped phases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from averaged_pairs import excess, slack
from plugstream import BM3D, NLM, TV, Channels, ConvexRidge, InputError, MagnitudePhase, RealImaginary, Slices, snr
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.denoisers.networks.unet import UNet
from plugstream.denoisers.simple import SoftThreshold

C128 = torch.complex128
EXACT = TV(0.8, tol=1e-5, max_iterations=100_000)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = C128) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("inner", [TV(tol=1e-4), BM3D(), ConvexRidge(), NLM(search=3)])
def test_parts_are_denoised_alone(inner):
    z = noise(2, 9, 10, dtype=torch.complex64)
    got = RealImaginary(inner)(z, torch.tensor([0.1, 0.4]))
    for n, sigma in ((0, 0.1), (1, 0.4)):
        want = torch.complex(inner(z[n].real.contiguous(), sigma), inner(z[n].imag.contiguous(), sigma))
        torch.testing.assert_close(got[n], want, atol=1e-5, rtol=0)


MAPS = {
    "of TV": RealImaginary(EXACT),
    "of a threshold": RealImaginary(SoftThreshold()),
    "of slices": RealImaginary(Slices(EXACT, 1)),
    "of channels": RealImaginary(Channels(EXACT)),
}


@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=5)
@given(seed=st.integers(0, 500), sigma=st.floats(0.05, 1.0))
def test_averaged_as_stated(name, seed, sigma):
    denoiser = MAPS[name]
    shape = (3, 5, 6)[-denoiser.axes :]
    z, other = noise(*shape, seed=seed), noise(*shape, seed=seed + 1)
    assert denoiser.averaged == 0.5
    assert denoiser.proximal
    assert excess(denoiser, 0.5, z, other, sigma) <= slack(z, other)


def test_the_mean_phase_is_taken_out_and_put_back():
    z = torch.polar(1 + 0.1 * noise(12, 13).real, 0.2 * noise(12, 13, seed=1).real)
    turn = torch.exp(torch.tensor(2.1j, dtype=C128))
    mean = RealImaginary(EXACT, phase="mean")
    torch.testing.assert_close(mean(z * turn, 0.3), turn * mean(z, 0.3), atol=1e-6, rtol=0)
    angle = torch.exp(-1j * z.sum().angle())
    torch.testing.assert_close(mean(z, 0.3), RealImaginary(EXACT)(z * angle, 0.3) / angle, atol=1e-6, rtol=0)
    # That cannot be said of the parts as they are, since they depend on the phase.
    keep = RealImaginary(EXACT)
    assert float((keep(z * turn, 0.3) - turn * keep(z, 0.3)).norm()) > 1e-3 * float(z.norm())
    assert torch.equal(mean(torch.zeros(4, 4, dtype=C128), 0.3), torch.zeros(4, 4, dtype=C128))


def test_what_a_global_phase_does_to_the_parts():
    """A disc with a strip in its magnitude and a bar in its phase, turned by up to a right angle; docs/denoisers.md."""
    row, column = (torch.arange(128) / 128 - 0.5)[:, None], torch.arange(128) / 128 - 0.5
    disc, strip = row.square() + column.square() < 0.16, column.abs() < 0.08
    bar = ((row - 0.1).abs() < 0.15) & (column.abs() < 0.3)
    clean = torch.polar(torch.where(disc, 0.6, 1.0) * torch.where(strip, 0.6, 1.0), 0.6 * bar.float())
    noisy = clean + 0.1 * math.sqrt(2) * noise(128, 128, dtype=torch.complex64)
    score = {"keep": [], "mean": []}
    for angle in (0, math.pi / 4, math.pi / 2):
        turned = noisy * complex(math.cos(angle), math.sin(angle))
        for phase, values in score.items():
            values.append(float(snr(RealImaginary(BM3D(), phase=phase)(turned, 0.1), clean)))
    keep, mean = score["keep"], score["mean"]
    assert max(mean) - min(mean) < 0.01
    assert keep[0] - keep[1] > 1  # the parts as they are have every edge in both of them half way
    assert keep[0] - 0.5 < mean[0]
    assert mean[0] > keep[1] + 0.8


def test_with_the_mean_phase_even_a_prox_is_not_averaged():
    # Two images near to each other whose means are tiny and differ in phase: what is done to them differs by far more.
    mean, bump = RealImaginary(SoftThreshold(), phase="mean"), 1e-6
    z = torch.tensor([[1.0, -1.0, 0.3j, -0.3j]], dtype=C128) * torch.exp(torch.tensor(0.6j))
    a, b = z.clone(), z.clone()
    a[0, 0] += bump
    b[0, 0] += (1 + 1j) * bump
    assert float((mean(a, 0.5) - mean(b, 0.5)).norm()) > 1e3 * float((a - b).norm())
    assert mean.averaged is None
    assert not mean.proximal
    assert mean.value is None


@pytest.mark.parametrize("phase", ["phasor", "angle"])
def test_magnitude_and_phase(phase):
    flat = torch.polar(torch.full((16, 16), 0.7, dtype=torch.float64), torch.full((16, 16), 2.9, dtype=torch.float64))
    denoiser = MagnitudePhase(TV(tol=1e-6, max_iterations=20_000), phase=phase)
    torch.testing.assert_close(denoiser(flat, 0.5), flat, atol=1e-9, rtol=0)
    noisy = flat + 0.05 * noise(16, 16)
    clean = denoiser(noisy, 0.3)
    assert float((clean - flat).norm()) < 0.3 * float((noisy - flat).norm())
    turn = torch.exp(torch.tensor(1.3j, dtype=C128))
    torch.testing.assert_close(denoiser(noisy * turn, 0.3), turn * clean, atol=1e-5, rtol=0)  # blind to a global phase
    torch.testing.assert_close(denoiser(3 * noisy, 0.3 * math.sqrt(3)), 3 * clean, atol=1e-5, rtol=0)  # and to scale
    assert (denoiser.averaged, denoiser.proximal) == (None, False)
    assert torch.equal(denoiser(torch.zeros(8, 8, dtype=C128), 0.3), torch.zeros(8, 8, dtype=C128))
    assert torch.equal(denoiser(noisy, 0.0).abs() > 0, noisy.abs() > 0)


def test_a_wrapped_phase_breaks_the_angle_and_not_the_phasor():
    # A phase that runs through three turns, with a little noise.
    ramp = torch.linspace(0, 6 * math.pi, 48, dtype=torch.float64).expand(48, 48)
    z = torch.polar(torch.ones(48, 48, dtype=torch.float64), ramp.clone())
    noisy = z + 0.1 * noise(48, 48)
    tv = TV(max_iterations=20_000)

    def error(denoiser) -> float:
        return float((denoiser(noisy, 0.4) - z).norm() / (noisy - z).norm())

    assert error(MagnitudePhase(tv)) < 0.8
    assert error(MagnitudePhase(tv, phase="angle")) > 1


@pytest.mark.parametrize("around", [RealImaginary, MagnitudePhase, lambda d: RealImaginary(Slices(Channels(d), 1))])
def test_warm_starts_are_handed_on(around):
    denoiser, quick = around(TV(tol=1e-6, max_iterations=50_000)), around(TV(tol=1.01e-6, max_iterations=1))
    z = noise(2, 3, 4, 5, 6)
    clean, warm = denoiser.denoise(z, 0.4)
    again, _ = quick.denoise(z, 0.4, warm)  # one iteration from the answer gives no warning
    torch.testing.assert_close(again, clean, atol=1e-6, rtol=0)


def test_real_images_are_denoised_as_they_are():
    z = noise(9, 9).real.contiguous()
    for denoiser in (RealImaginary(EXACT), MagnitudePhase(EXACT)):
        assert torch.equal(denoiser(z, 0.3), EXACT(z, 0.3))
    assert float(RealImaginary(EXACT).value(z)) == float(EXACT.value(z))
    both = torch.complex(z, 2 * z)
    assert float(RealImaginary(EXACT).value(both)) == pytest.approx(3 * float(EXACT.value(z)))


def test_mistakes_are_said_in_one_line():
    for wrong in (RealImaginary, MagnitudePhase):
        with pytest.raises(InputError, match="phase must be"):
            wrong(EXACT, phase="other")


@pytest.mark.parametrize("phase", ["keep", "mean"])
def test_a_gradient_step_stays_one_of_complex_images(phase):
    """Against autograd; with the phase of the mean it does not turn the image, <i z, z - D(z)> = 0."""
    torch.manual_seed(0)
    network = LightUNet((4, 6), (1, 1), "safe").double().requires_grad_(False)
    network.tail *= 300  # which begins near zero
    denoiser = RealImaginary(UNet(network), phase=phase)
    z = (1 + 0.5 * noise(2, 12, 13)) * torch.exp(torch.tensor(0.7j, dtype=C128))
    z.requires_grad_()
    sigma = torch.tensor([0.1, 0.2], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(denoiser.potential(z, sigma).sum(), z)
    removed = (z - denoiser(z, sigma)).detach()
    torch.testing.assert_close(removed, gradient, atol=1e-9, rtol=1e-9)
    turning = float((z.detach().conj() * removed).imag.sum().abs())
    assert (turning < 1e-9) == (phase == "mean")
    faint = noise(12, 13) * 1e-3
    faint[0, 0] -= faint.sum()  # whose phase says nothing
    assert bool(denoiser(faint, 0.1).isfinite().all())
