"""Closed-form denoisers and the wrappers: what they are, what they keep, what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar
from torch import nn

from plugstream import (
    TV,
    Box,
    Clip,
    Damping,
    FromFunction,
    FromModule,
    Identity,
    InputError,
    NonNegative,
    SoftThreshold,
)
from plugstream.denoisers import as_denoiser
from plugstream.denoisers.base import compose_averaged

F64 = torch.float64
NAMED = {
    "identity": Identity(),
    "nonnegative": NonNegative(),
    "box": Box(-0.3, 0.8),
    "soft": SoftThreshold(),
    "damped": Damping(SoftThreshold(), 0.4),
    "clipped": Clip(SoftThreshold()),
}


@pytest.mark.parametrize("name", NAMED)
@given(seed=st.integers(0, 200), sigma=st.floats(0, 2), scale=st.floats(0.01, 10))
def test_averaged_as_stated(name, seed, sigma, scale):
    """Proposition 7(c): ||Dx - Dy||^2 <= ||x - y||^2 - (1 - a)/a ||(I - D)x - (I - D)y||^2."""
    denoiser = NAMED[name]
    generator = torch.Generator().manual_seed(seed)
    x, y = scale * torch.randn(2, 4, 5, dtype=F64, generator=generator)
    dx, dy = denoiser(x, sigma), denoiser(y, sigma)
    residual = (x - dx - y + dy).square().sum()
    a = denoiser.averaged
    slack = 0 if residual == 0 else (1 - a) / a * residual
    assert float((dx - dy).square().sum()) <= float((x - y).square().sum() - slack) + 1e-9 * scale**2


@pytest.mark.parametrize("name", NAMED)
def test_shape_dtype_and_purity(name):
    denoiser = NAMED[name]
    for dtype in (torch.float32, F64):
        z = torch.randn(2, 3, 6, 7, dtype=dtype)
        before = z.clone()
        out = denoiser(z, 0.3)
        assert out.shape == z.shape
        assert out.dtype == dtype
        assert torch.equal(z, before)
        assert torch.equal(denoiser(z, 0.3), out)


@pytest.mark.parametrize("name", NAMED)
def test_a_batch_is_its_images(name):
    denoiser = NAMED[name]
    z = torch.randn(3, 6, 7, dtype=F64)
    sigma = torch.tensor([0.1, 0.5, 1.0], dtype=F64)
    together = denoiser(z, sigma)
    for b in range(3):
        assert torch.allclose(together[b], denoiser(z[b], float(sigma[b])), atol=1e-7)


@given(z=st.floats(-5, 5), sigma=st.floats(0, 2), weight=st.floats(0, 3))
def test_soft_threshold_minimises(z, sigma, weight):
    got = float(SoftThreshold(weight)(torch.full((1, 1), z, dtype=F64), sigma))
    best = minimize_scalar(
        lambda x: 0.5 * (x - z) ** 2 + sigma**2 * weight * abs(x),
        bounds=(-6, 6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert got == pytest.approx(best.x, abs=1e-4)


def test_clipping_comes_before():
    seen = []
    out = Clip(lambda z: (seen.append(z.clone()), z - 1)[1], 0.0)(torch.tensor([[-2.0, 3.0]]), 1.0)
    assert seen[0].tolist() == [[0.0, 3.0]]
    assert out.tolist() == [[-1.0, 2.0]]


@given(theta=st.floats(0.01, 0.99))
def test_damped_is_the_mean_of_both_and_keeps_fixed_points(theta):
    z = torch.randn(3, 3, dtype=F64)
    damped = Damping(NonNegative(), theta)
    assert torch.allclose(damped(z, 1.0), (1 - theta) * z + theta * z.clamp_min(0))
    assert torch.allclose(damped(z.abs(), 1.0), z.abs())


def test_wrappers_hand_the_warm_start_on():
    z = torch.randn(8, 8, dtype=F64)
    tv = TV(tol=1e-6)
    _, dual = tv.denoise(z, 0.5)
    for wrapper in (Damping(tv, 0.5), Clip(tv, -10.0)):
        _, handed_on = wrapper.denoise(z, 0.5)
        assert torch.equal(handed_on, dual)


def test_averagedness_composes_as_proposition_6_says():
    assert compose_averaged(0.5, 0.5) == pytest.approx(2 / 3)
    assert compose_averaged(0.0, 0.3) == 0.3
    assert compose_averaged(None, 0.5) is None
    assert Damping(lambda z, s: z, 0.3).averaged is None
    assert Damping(lambda z, s: z, 0.3, nonexpansive=True).averaged == 0.3
    assert Damping(SoftThreshold(), 0.3).averaged == pytest.approx(0.15)
    assert Clip(SoftThreshold()).averaged == pytest.approx(2 / 3)


def test_functions_with_and_without_sigma():
    z = torch.randn(4, 4)
    assert torch.equal(FromFunction(lambda z, sigma: z * sigma)(z, 0.5), z * 0.5)
    assert torch.equal(as_denoiser(lambda z: z * 2)(z, 0.5), z * 2)
    with pytest.raises(InputError, match="must keep the shape"):
        FromFunction(lambda z, s: z[:2])(z, 0.1)
    with pytest.raises(InputError, match="not int"):
        as_denoiser(3)


class Net(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 1, 3, padding=1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, sigma=None):
        out = self.drop(self.conv(x))
        return out if sigma is None else out * sigma[:, None, None, None]


@pytest.mark.parametrize("condition", ["none", "scalar", "map"])
@pytest.mark.parametrize("residual", [False, True])
def test_networks(condition, residual):
    net = Net(2 if condition == "map" else 1)
    denoiser = FromModule(net, condition=condition, residual=residual)
    z, sigma = torch.randn(2, 3, 5, 6), torch.rand(2, 3)
    out = denoiser(z, sigma)
    assert not out.requires_grad
    assert torch.equal(out, denoiser(z, sigma))  # dropout is off
    with torch.no_grad():
        one = z[1, 2][None, None]
        level = sigma[1, 2]
        if condition == "map":
            want = net(torch.cat([one, torch.full_like(one, float(level))], 1))
        else:
            want = net(one, level[None]) if condition == "scalar" else net(one)
    want = one - want if residual else want
    assert torch.allclose(out[1, 2], want[0, 0], atol=1e-6)


def test_bad_denoiser_input_is_refused():
    z = torch.zeros(2, 4, 4)
    with pytest.raises(InputError, match="sigma must be a number >= 0, not -1"):
        SoftThreshold()(z, -1)
    with pytest.raises(InputError, match="sigma has shape"):
        SoftThreshold()(z, torch.ones(3))
    with pytest.raises(InputError, match="theta must lie between 0 and 1"):
        Damping(Identity(), 1.5)
    with pytest.raises(InputError, match="empty"):
        Clip(Identity(), 1.0, 0.0)
    with pytest.raises(InputError, match="condition must be"):
        FromModule(Net(1), condition="film")
    assert float(Box(0, 1).value(torch.full((2, 2), 2.0))) == np.inf
