"""`RotatedChannels`: channels that share what is known of the image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream.base.errors import InputError
from plugstream.denoisers.bm3d.transforms import dct


def series(count: int = 4, *, waves: bool = False) -> torch.Tensor:
    """Channels (count, 20, 22) of one picture, of falling contrast, with noise."""
    generator = torch.Generator().manual_seed(0)
    picture = (torch.add(torch.arange(20)[:, None] // 6 % 2, torch.arange(22) // 7 % 2)).double()
    factors = torch.linspace(1, 0.3, count, dtype=torch.float64)[:, None, None]
    z = factors * picture + 0.1 * torch.randn(count, 20, 22, generator=generator, dtype=torch.float64)
    return z * torch.exp(1j * torch.arange(count))[:, None, None] if waves else z


def test_opp_is_the_denoiser_on_the_dct_along_channels() -> None:
    z, turn, soft = series(), torch.from_numpy(dct(4)), ps.SoftThreshold()
    want = torch.einsum("kc,khw->chw", turn, soft(torch.einsum("kc,chw->khw", turn, z), 0.2))
    denoiser = ps.RotatedChannels(soft)
    assert torch.allclose(denoiser(z, 0.2), want, atol=1e-9)
    assert denoiser.averaged == soft.averaged == 0.5
    assert denoiser.proximal
    assert ps.RotatedChannels(soft, "principal").averaged is None
    # A batch, with a sigma for each.
    both = denoiser(torch.stack([z, z]), torch.tensor([0.2, 0.0]))
    assert torch.allclose(both[0], want, atol=1e-9)
    assert torch.allclose(both[1], z, atol=1e-9)


@pytest.mark.parametrize("waves", [False, True])
def test_principal_components_do_not_depend_on_how_channels_are_mixed(waves) -> None:
    """D(U z) = U D(z) for a unitary U: coils may be combined before or after."""
    z, rng = series(waves=waves), np.random.default_rng(1)
    mix = rng.normal(size=(4, 4)) + (1j * rng.normal(size=(4, 4)) if waves else 0)
    unitary = torch.from_numpy(np.linalg.qr(mix)[0]).to(z.dtype)
    denoiser = ps.RotatedChannels(ps.SoftThreshold(), "principal")
    mixed = torch.einsum("kc,chw->khw", unitary, z)
    want = torch.einsum("kc,chw->khw", unitary, denoiser(z, 0.2))
    assert torch.allclose(denoiser(mixed, 0.2), want, atol=1e-5)
    assert not torch.allclose(ps.RotatedChannels(ps.SoftThreshold())(mixed, 0.2), want, atol=1e-2)


def test_it_is_a_prior_of_channels_in_a_reconstruction() -> None:
    """As it is, where images have channels; groups are shared, and bounds are those of the image."""
    z = series().float()
    prior = ps.Clip(ps.RotatedChannels(ps.BM3D(), "principal"), 0.0)
    adapted = ps.adapt(prior, tuple(z.shape), channels=True)
    assert adapted is prior
    want = ps.bm3d_rgb(z.clamp_min(0).movedim(0, -1).numpy(), 0.1, colorspace="principal").clip(0)
    assert np.allclose(adapted(z, 0.1).movedim(0, -1).numpy(), want, atol=1e-5)


def test_what_it_cannot_take_is_refused() -> None:
    for make, message in (
        (lambda: ps.RotatedChannels(ps.BM4D()), "is for volumes"),
        (lambda: ps.RotatedChannels(ps.BM3D(), "blue"), "opp or principal, not 'blue'"),
        (lambda: ps.RotatedChannels(ps.BM3D())(torch.zeros(9, 9), 0.1), "needs 3 axes"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)
