"""Adapters to volumes and channels: what they compute, what they keep of averagedness, and which are chosen."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from averaged_pairs import excess, slack
from effort import effort, thorough
from plugstream import (
    BM3D,
    NLM,
    TNRD,
    TV,
    Box,
    Channels,
    Clip,
    ConvexRidge,
    Damping,
    FromFunction,
    FromModule,
    Identity,
    InputError,
    MagnitudePhase,
    RealImaginary,
    SliceMean,
    Slices,
    SoftThreshold,
    adapt,
)
from plugstream.denoisers import describe, shapes
from reproduction.paper import PerImage

F64 = torch.float64
EXACT = TV(0.8, tol=1e-5, max_iterations=100_000)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def one_by_one(denoiser, volume: Tensor, sigma: float, axis: int) -> Tensor:
    """Slices cut out with plain indices, denoised alone and put back."""
    out = torch.empty_like(volume)
    for k in range(volume.shape[axis]):
        at = (slice(None),) * axis + (k,)
        out[at] = denoiser(volume[at].clone(), sigma)
    return out


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("denoiser", [TV(), BM3D(), TNRD(), NLM(search=3), SoftThreshold(), ConvexRidge()])
def test_slices_are_denoised_alone(denoiser, axis):
    z = 0.5 + 0.1 * noise(9, 10, 11, dtype=torch.float32)
    got = Slices(denoiser, axis)(z, 0.1)
    want = one_by_one(denoiser, z, 0.1, axis)
    if isinstance(denoiser, ConvexRidge):  # whose products of matrices depend on the number of images
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    else:
        assert torch.equal(got, want)


def test_the_mean_is_that_of_three_directions():
    z = noise(8, 9, 10)
    want = sum(one_by_one(EXACT, z, 0.5, axis) for axis in (0, 1, 2)) / 3
    torch.testing.assert_close(SliceMean(EXACT)(z, 0.5), want, atol=1e-12, rtol=0)


MAPS = {
    "slices of a threshold": Slices(SoftThreshold(), 1),
    "slices of a projection after a threshold": Slices(Clip(SoftThreshold()), 2),
    "slices, damped": Damping(Slices(SoftThreshold(), 0), 0.3),
    "mean of TV": SliceMean(EXACT),
    "mean of anisotropic TV": SliceMean(TV(isotropic=False, tol=1e-5, max_iterations=100_000)),
    "mean of a guided NLM": SliceMean(NLM(noise(6, 6, 6, seed=5), search=3)),
    "mean of two thirds": SliceMean(Clip(SoftThreshold())),
    "mean of a fifth": SliceMean(Damping(Box(-0.1, 0.3), 0.4)),
    "mean of the identity": SliceMean(Identity()),
    **effort({}, {"mean of ridge": SliceMean(ConvexRidge(tol=1e-5, max_iterations=3000))}),
}


@thorough
@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=effort(3, 5))
@given(seed=st.integers(0, 500), sigma=st.floats(0.05, 1.0), near=st.booleans())
def test_averaged_as_stated(name, seed, sigma, near):
    """||Dz - Dz'||^2 <= ||z - z'||^2 - (1 - theta)/theta ||(I - D)z - (I - D)z'||^2 for random pairs, near and far."""
    denoiser = MAPS[name]
    z = noise(6, 6, 6, seed=seed)
    other = z + 0.05 * noise(6, 6, 6, seed=seed + 1) if near else noise(6, 6, 6, seed=seed + 1)
    assert denoiser.averaged is not None
    assert excess(denoiser, denoiser.averaged, z, other, sigma) <= slack(z, other)


def test_the_constant_is_not_smaller_than_it_must_be():
    # A witness: with far less than 1/2, random pairs say no.
    z, other = noise(6, 6, 6), noise(6, 6, 6, seed=1)
    assert excess(SliceMean(EXACT), 0.2, z, other, 0.7) > 1


def test_the_mean_of_a_guided_nlm_is_a_symmetric_matrix_between_0_and_1():
    # The mean of proximal operators is one, of the proximal average; here all of them are linear.
    mean = SliceMean(NLM(noise(4, 5, 6, seed=2), search=2))
    assert mean.proximal
    matrix = mean(torch.eye(120, dtype=F64).reshape(120, 4, 5, 6), 0.6).reshape(120, 120)
    torch.testing.assert_close(matrix, matrix.T, atol=1e-12, rtol=0)
    values = torch.linalg.eigvalsh(matrix)
    assert float(values.min()) > -1e-12
    assert float(values.max()) < 1 + 1e-12


def test_a_guide_of_a_volume_turns_with_its_slices():
    guide, z = noise(6, 6, 6, seed=3), noise(6, 6, 6)
    for axis in (0, 1, 2):
        got = Slices(NLM(guide, search=2), axis)(z, 0.7)
        for k in range(6):
            alone = NLM(guide.select(axis, k), search=2)(z.select(axis, k), 0.7)
            torch.testing.assert_close(got.select(axis, k), alone, atol=1e-12, rtol=0)


def test_channels_are_denoised_alone_and_keep_their_promises():
    z, channels = noise(3, 8, 9), Channels(EXACT)
    want = torch.stack([EXACT(z[c], 0.5) for c in range(3)])
    assert torch.equal(channels(z, 0.5), want)
    assert (channels.averaged, channels.proximal, channels.axes) == (0.5, True, 3)
    assert float(channels.value(z)) == pytest.approx(sum(float(EXACT.value(z[c])) for c in range(3)))
    other = noise(3, 8, 9, seed=1)
    assert excess(channels, 0.5, z, other, 0.5) <= slack(z, other)


def test_values_are_sums_over_slices():
    z = noise(5, 6, 7)
    for axis in (0, 1, 2):
        want = sum(float(EXACT.value(z.select(axis, k))) for k in range(z.shape[axis]))
        assert float(Slices(EXACT, axis).value(z)) == pytest.approx(want)
    assert SliceMean(EXACT).value is None
    assert Slices(BM3D(), 0).value is None


def test_leading_axes_and_one_sigma_for_each_volume():
    z, sigma = noise(2, 3, 4, 5, 6), torch.linspace(0, 1, 6, dtype=F64).reshape(2, 3)
    for denoiser in (Slices(EXACT, 1), SliceMean(EXACT), Channels(Slices(SoftThreshold(), 0))):
        if denoiser.channels:
            together = denoiser(z, sigma[:, 0])
            alone = torch.stack([denoiser(z[a], sigma[a, 0]) for a in range(2)])
        else:
            together = denoiser(z, sigma)
            alone = torch.stack([torch.stack([denoiser(z[a, b], sigma[a, b]) for b in range(3)]) for a in range(2)])
        torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    with pytest.raises(InputError, match="sigma has shape"):
        SliceMean(EXACT)(z, torch.ones(3))
    assert SliceMean(EXACT)(noise(0, 4, 4, 4), 1.0).shape == (0, 4, 4, 4)
    with pytest.raises(InputError, match="none of them empty"):
        Slices(EXACT).denoise(noise(0, 4, 4), 1.0)


@pytest.mark.parametrize("inner", [TV(tol=1e-6, max_iterations=50_000), ConvexRidge(tol=1e-5)])
def test_warm_starts_are_handed_on(inner):
    # From its own answer even one iteration is enough, and so gives no warning.
    quick = (
        TV(tol=1.01e-6, max_iterations=1)
        if isinstance(inner, TV)
        else ConvexRidge(inner.ridges, tol=1.1e-5, max_iterations=1)
    )
    z = 0.5 + 0.1 * noise(2, 4, 5, 6)
    for around in (
        lambda d: Slices(d, 1),
        SliceMean,
        lambda d: Slices(Channels(d), 2),
        lambda d: Damping(Slices(d), 0.5),
    ):
        denoiser = around(inner)
        clean, warm = denoiser.denoise(z, 0.1)
        copy = warm.clone()
        assert warm.shape[0] == 2
        assert warm.shape[-3:] == z.shape[-3:]
        again, _ = around(quick).denoise(z, 0.1, warm)
        torch.testing.assert_close(again, clean, atol=1e-9, rtol=0)
        assert torch.equal(warm, copy)


def test_a_warm_start_of_another_form_is_left_out():
    class Odd(FromFunction):
        def denoise(self, image, sigma, warm=None):
            return image, torch.zeros(3)

    odd = Odd(lambda z: z)
    assert Slices(odd).denoise(noise(4, 4, 4), 1.0)[1] is None
    assert SliceMean(odd).denoise(noise(4, 4, 4), 1.0)[1] is None


def test_large_volumes_go_through_in_portions_with_the_same_bits(monkeypatch):
    seen = []

    def counted(z, sigma):
        seen.append(z.shape)
        return BM3D()(z, sigma)

    z, warm_z = noise(20, 16, 16, dtype=torch.float32), noise(2, 7, 8, 9)
    whole, (clean, warm) = Slices(BM3D(), 0)(z, 0.1), SliceMean(EXACT).denoise(warm_z, 0.5)
    monkeypatch.setattr(shapes, "_PIXELS", 6 * 256)
    assert torch.equal(Slices(counted, 0)(z, 0.1), whole)
    assert seen == [(6, 16, 16)] * 3 + [(2, 16, 16)]
    monkeypatch.setattr(shapes, "_PIXELS", 1)
    again, warm_again = SliceMean(EXACT).denoise(warm_z, 0.5)
    assert torch.equal(again, clean)
    assert torch.equal(warm_again, warm)
    guided = SliceMean(NLM(noise(6, 7, 8, dtype=torch.float32), search=2))
    assert guided(z[:6, :7, :8], 0.3).shape == (6, 7, 8)  # its guides come together with their slices


def test_the_least_size_is_that_of_the_slices():
    assert Slices(BM3D(), 1).min_shape == (8, 1, 8)
    assert SliceMean(BM3D()).min_shape == (8, 8, 8)
    assert Channels(Slices(BM3D(), 0)).min_shape == (1, 8, 8)
    assert Clip(Slices(BM3D(), 0)).min_shape == (1, 8, 8)


class Volumes(nn.Module):
    def __init__(self, channels: int, ndim: int) -> None:
        super().__init__()
        self.conv = (nn.Conv3d if ndim == 3 else nn.Conv2d)(channels + 1, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize(("channels", "ndim"), [(1, 3), (3, 2), (2, 3)])
def test_networks_of_volumes_and_of_channels(channels, ndim):
    net = Volumes(channels, ndim)
    denoiser = FromModule(net, condition="map", ndim=ndim, channels=channels > 1)
    shape = ((channels,) if channels > 1 else ()) + (4, 5, 6)[-ndim:]
    z, sigma = torch.randn(2, 3, *shape), torch.rand(2, 3)
    out = denoiser(z, sigma)
    with torch.no_grad():
        one = z[1, 2].reshape(1, channels, *shape[-ndim:])
        want = net(torch.cat([one, torch.full_like(one[:, :1], float(sigma[1, 2]))], 1))
    torch.testing.assert_close(out[1, 2], want.reshape(shape))
    assert adapt(denoiser, shape, channels=channels > 1) is denoiser


def kinds(denoiser) -> list[str]:
    inner = getattr(denoiser, "denoiser", None)
    return [type(denoiser).__name__, *(kinds(inner) if inner is not None else [])]


IMAGE, VOLUME = (16, 17), (16, 17, 18)
CHOSEN = [
    (BM3D(), IMAGE, {}, ["BM3D"]),
    (BM3D(), VOLUME, {}, ["SliceMean", "BM3D"]),
    (BM3D(), (5, 16, 16), {}, ["Slices", "BM3D"]),
    (BM3D(), VOLUME, {"volume": 1}, ["Slices", "BM3D"]),
    (BM3D(), (3, *IMAGE), {"channels": True}, ["Channels", "BM3D"]),
    (BM3D(), IMAGE, {"complex": True}, ["RealImaginary", "BM3D"]),
    (BM3D(), IMAGE, {"complex": True, "parts": "magnitude-phase"}, ["MagnitudePhase", "BM3D"]),
    (BM3D(), (2, *VOLUME), {"complex": True, "channels": True}, ["RealImaginary", "Channels", "SliceMean", "BM3D"]),
    (Slices(BM3D(), 2), VOLUME, {"complex": True}, ["RealImaginary", "Slices", "BM3D"]),
    (Slices(BM3D(), 2), VOLUME, {"volume": "mean"}, ["Slices", "BM3D"]),
    (RealImaginary(BM3D()), VOLUME, {"complex": True}, ["SliceMean", "RealImaginary", "BM3D"]),
    (MagnitudePhase(BM3D()), IMAGE, {"complex": True, "parts": "real-imaginary"}, ["MagnitudePhase", "BM3D"]),
    (Clip(BM3D()), VOLUME, {}, ["Clip", "SliceMean", "BM3D"]),
    (Damping(BM3D(), 0.5), IMAGE, {"complex": True}, ["Damping", "RealImaginary", "BM3D"]),
    (Clip(BM3D()), IMAGE, {"complex": True, "parts": "real-imaginary"}, ["RealImaginary", "Clip", "BM3D"]),
    (PerImage(BM3D(), torch.ones(2)), VOLUME, {}, ["PerImage", "SliceMean", "BM3D"]),
    (SoftThreshold(), (3, *VOLUME), {"channels": True, "complex": True}, ["SoftThreshold"]),
    (Identity(), VOLUME, {"complex": True}, ["Identity"]),
    (Box(0.0), VOLUME, {}, ["Box"]),
    (Box(0.0), IMAGE, {"complex": True, "parts": "real-imaginary"}, ["RealImaginary", "Box"]),
    (SoftThreshold(), VOLUME, {"volume": 0}, ["Slices", "SoftThreshold"]),
    (FromFunction(lambda z: z, ndim=3), (2, *VOLUME), {"channels": True}, ["Channels", "FromFunction"]),
    (lambda z: z, VOLUME, {}, ["SliceMean", "FromFunction"]),
]


@pytest.mark.parametrize("number", range(len(CHOSEN)))
def test_adapters_are_chosen_by_themselves_or_as_asked_for(number):
    denoiser, shape, asked, want = CHOSEN[number]
    made = adapt(denoiser, shape, **asked)
    assert kinds(made) == want
    assert made.axes == len(shape)
    assert "averaged" in describe(made)
    z = noise(2, *shape, dtype=torch.complex64 if asked.get("complex") else torch.float32)
    out, _ = made.denoise(z, torch.tensor([0.1, 0.3]))
    assert out.shape == z.shape
    assert out.dtype == z.dtype
    alone = made.rewrap(made.denoiser) if isinstance(made, Clip) else made
    if not isinstance(made, PerImage):
        torch.testing.assert_close(alone(z[1], 0.3), out[1], atol=1e-4, rtol=0)
    assert adapt(made, shape, **asked) is made or isinstance(denoiser, PerImage)


def test_what_was_chosen_is_said_in_words():
    assert describe(adapt(BM3D(), VOLUME)) == (
        "the mean of BM3D on the slices along the three axes; not known to be averaged"
    )
    assert describe(Clip(Slices(SoftThreshold(), 1))) == (
        "SoftThreshold on the slices along axis 1 after clipping to [0, inf]; 0.667-averaged"
    )
    assert describe(adapt(ConvexRidge(), (3, *IMAGE), channels=True, complex=True)) == (
        "ConvexRidge, channel by channel, on real and imaginary part; 1/2-averaged"
    )
    assert describe(Identity()) == "Identity; 0-averaged"


def test_mistakes_are_said_in_one_line():
    cases = [
        (lambda: adapt(BM3D(), (16,)), "two or three axes"),
        (lambda: adapt(BM3D(), (3, 16), channels=True), "two or three axes"),
        (lambda: adapt(BM3D(), (16, 0)), "two or three axes"),
        (lambda: adapt(BM3D(), (7, 16)), "needs at least 8 x 8"),
        (lambda: adapt(BM3D(), (7, 7, 16)), "needs at least 8 x 8 x 8"),
        (lambda: adapt(BM3D(), (7, 16, 16), volume="mean"), "needs at least 8 x 8 x 8"),
        (lambda: adapt(BM3D(), (7, 16, 16), volume=1), "needs at least 8 x 1 x 8"),
        (lambda: adapt(BM3D(), VOLUME, volume=3), "volume must be"),
        (lambda: adapt(BM3D(), IMAGE, parts="halves"), "parts must be"),
        (lambda: adapt(BM3D(), IMAGE, phase="no"), "phase must be"),
        (lambda: adapt(FromFunction(lambda z: z, ndim=3), IMAGE), "no adapter"),
        (lambda: adapt(FromFunction(lambda z: z, channels=True), IMAGE), "no adapter"),
        (lambda: adapt(Clip(BM3D()), IMAGE, complex=True), r"cannot be kept in \[0, inf\]"),
        (lambda: adapt(Box(0.0), IMAGE, complex=True), r"cannot be kept in \[0, inf\]"),
        (lambda: Slices(BM3D(), 3), "axis 0, 1 or 2"),
        (lambda: Slices(Slices(BM3D(), 0), 0), "is for volumes"),
        (lambda: SliceMean(Slices(BM3D(), 0)), "is for volumes"),
        (lambda: Channels(Channels(BM3D())), "takes channels already"),
        (lambda: Slices(BM3D())(noise(8, 8), 0.1), "needs 3 axes, D x H x W, none of them empty"),
        (lambda: SliceMean(BM3D())(noise(8, 8), 0.1), "needs 3 axes"),
        (lambda: Channels(BM3D())(noise(8, 8), 0.1), "needs 3 axes, channels x H x W"),
        (lambda: RealImaginary(BM3D())(noise(8, dtype=torch.complex64), 0.1), "needs 2 axes, H x W"),
        (lambda: Slices(TV()).denoise(noise(8, 8, 8), 0.1, noise(5)), "the warm start has shape"),
        (lambda: SliceMean(TV()).denoise(noise(8, 8, 8), 0.1, noise(2, 8, 8, 8)), "the warm start has shape"),
        (lambda: adapt(BM3D(), VOLUME, volume=True), "volume must be"),
        (lambda: SoftThreshold(ndim=4), "2 or 3 spatial axes"),
        (lambda: BM3D()(noise(8, 8, dtype=torch.complex64), 0.1), "takes real images"),
        (lambda: TNRD()(noise(8, 8, dtype=torch.complex64), 0.1), "takes real images"),
        (lambda: NLM()(noise(8, 8, dtype=torch.complex64), 0.1), "takes real images"),
        (lambda: ConvexRidge()(noise(8, 8, dtype=torch.complex64), 0.1), "takes real images"),
        (lambda: Box(0.0)(noise(8, 8, dtype=torch.complex64), 0.1), "cannot be kept"),
        (lambda: Clip(Identity())(noise(8, 8, dtype=torch.complex64), 0.1), "takes real images"),
        (lambda: Clip(Identity()).denoise(noise(8, 8, dtype=torch.complex64), 0.1), "cannot be kept"),
    ]
    for call, words in cases:
        with pytest.raises(InputError, match=words) as told:
            call()
        assert "\n" not in str(told.value)


def test_closed_forms_take_any_shape_and_complex_values():
    z = noise(2, 4, 5, 6, dtype=torch.complex128)
    soft, sigma = SoftThreshold(0.5, ndim=3), torch.tensor([0.3, 1.0], dtype=F64)
    got = soft(z, sigma)
    for n in range(2):
        size, t = z[n].abs(), 0.5 * float(sigma[n]) ** 2
        torch.testing.assert_close(got[n], z[n] / size * (size - t).clamp_min(0), atol=1e-12, rtol=0)
    assert soft.value(z).shape == (2,)
    assert float(soft.value(z)[1]) == pytest.approx(0.5 * float(z[1].abs().sum()))
    assert Box(0.0, ndim=3).value(z.real).tolist() == [math.inf, math.inf]
    assert Box(0.0, ndim=3, channels=True).value(z.real.abs()).shape == ()
    assert Identity(ndim=3).value(z).tolist() == [0, 0]
    assert torch.equal(Identity(ndim=3)(z, 0.1), z)
    assert excess(soft, 0.5, z[0], z[1], 0.8) <= 1e-9


def test_the_complex_threshold_minimises():
    # ||x - z||^2 / 2 + t |x| is not lowered by any small move.
    z, t = torch.tensor([[0.3 - 0.8j, 0.1 + 0.05j]], dtype=torch.complex128), 0.25
    x = SoftThreshold(t)(z, 1.0)

    def cost(v: Tensor) -> Tensor:
        return (v - z).abs().square() / 2 + t * v.abs()

    for turn in range(12):
        step = 1e-4 * torch.exp(torch.tensor(1j * turn * math.pi / 6))
        assert bool((cost(x + step) >= cost(x) - 1e-12).all())
