"""A denoiser on tiles is the denoiser: exactly where it sees only so far, and nearly where it sees everything."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plugstream import (
    BM3D,
    NLM,
    TNRD,
    TV,
    BM3DProfile,
    Clip,
    Damping,
    Denoiser,
    FromFunction,
    FromModule,
    InputError,
    PlugstreamWarning,
    ProximalGradient,
    RealImaginary,
    SliceMean,
    Slices,
    SoftThreshold,
    Tiles,
    adapt,
)


def picture(*shape: int) -> Tensor:
    """Something with edges and noise."""
    axes = torch.meshgrid(*(torch.linspace(0, 3, length) for length in shape), indexing="ij")
    smooth = sum(torch.sin((k + 2) * axis) for k, axis in enumerate(axes))
    return (smooth > 0.4).float() + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(0))


def network(depth: int) -> FromModule:
    torch.manual_seed(3)
    ends = [1] + [3] * (depth - 1) + [1]
    layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(ends)]
    return FromModule(nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1]))


@pytest.mark.parametrize("shape", [(61, 47), (2, 40, 50), (2, 2, 33, 21)])
@pytest.mark.parametrize("tile", [16, 23, 100])
def test_a_network_is_exact_with_a_halo_of_its_receptive_field(shape: tuple[int, ...], tile: int) -> None:
    z, denoiser = torch.randn(shape), network(4)
    whole = denoiser(z, 0.1)
    assert torch.allclose(Tiles(denoiser, tile, 4)(z, 0.1), whole, atol=1e-5)
    if tile < 20:
        assert not torch.allclose(Tiles(denoiser, tile, 3)(z, 0.1), whole, atol=1e-5)


@pytest.mark.parametrize(("denoiser", "atol"), [(TNRD(), 0.0), (SoftThreshold(), 0.0), (BM3D(stages=1), 1e-5)])
def test_a_finite_reach_is_exact(denoiser: Denoiser, atol: float) -> None:
    z = picture(150, 70)
    assert denoiser.reach is not None
    assert torch.allclose(Tiles(denoiser, 31, denoiser.reach)(z, 0.1), denoiser(z, 0.1), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("denoiser", "sigma", "tol"),
    [(TV(tol=1e-4), 0.1, 1e-3), (NLM(), 0.1, 1e-3), (BM3D(), 0.1, 5e-3), (NLM(guide=picture(120, 90)), 0.1, 1e-3)],
)
def test_the_default_halo_is_near_for_what_sees_everything(denoiser: Denoiser, sigma: float, tol: float) -> None:
    z = picture(120, 90)
    whole = denoiser(z, sigma)
    tiled = Tiles(denoiser, 40)
    assert float((tiled(z, sigma) - whole).norm() / (whole - z).norm()) < tol
    assert not tiled.proximal  # of which nothing is known but that it is near


def test_a_warm_start_goes_through_tiles() -> None:
    """It is that of the whole image, cut and put together, and the next call is done at once."""
    z = picture(50, 60)
    out, warm = Tiles(TV(tol=1e-4), 25, 16).denoise(z, 0.1)
    assert warm is not None
    assert warm.shape == (2, 50, 60)
    hasty = Tiles(TV(tol=3e-4, max_iterations=10), 25, 16)
    again, _ = hasty.denoise(z, 0.1, warm)
    assert torch.allclose(again, out, atol=1e-2)
    with pytest.warns(PlugstreamWarning, match="TV stopped after 10 iterations"):
        hasty.denoise(z, 0.1)


@pytest.mark.parametrize("complex", [False, True])
def test_volumes_are_cut_into_slabs(complex: bool) -> None:
    z = picture(17, 12, 14)
    z = torch.complex(z, picture(17, 12, 14).flip(0)) if complex else z
    for inner, halo in (
        (adapt(network(2), (17, 12, 14), complex=complex), 2),
        (adapt(SoftThreshold(), (17, 12, 14), complex=complex), None),
        (adapt(TV(tol=1e-4), (17, 12, 14), complex=complex), 13),
    ):
        tiled = Tiles(inner, 5, halo)
        assert all(tile.outer[1:] == (slice(0, 12), slice(0, 14)) for tile in tiled.tiles((17, 12, 14)))
        assert torch.allclose(tiled(z, 0.1), inner(z, 0.1), atol=1e-3)
    assert Tiles(Slices(BM3D(), 0), 1).around == 0  # a slice knows nothing of the next
    assert Tiles(SliceMean(TNRD()), 8).around == 30


def test_adapters_stay_inside_tiles() -> None:
    """An algorithm for volumes or complex images adapts what is in the tiles, and keeps these."""
    made = adapt(Tiles(Clip(BM3D()), 16), (12, 40, 40))
    assert isinstance(made, Tiles)
    assert isinstance(made.denoiser, Clip)
    assert made.ndim == 3
    waves = adapt(Tiles(Damping(TNRD(), 0.5), 16), (40, 40), complex=True)
    assert isinstance(waves, Tiles)
    assert waves.around == 30
    guided = Tiles(Slices(NLM(guide=picture(6, 20, 20)), 0), 2)
    assert torch.allclose(guided(picture(6, 20, 20), 0.1), guided.denoiser(picture(6, 20, 20), 0.1), atol=1e-5)


def test_tiles_cover_the_image_once_and_begin_where_they_must() -> None:
    for shape, tile, halo, align in (
        ((37, 50), 10, 3, 1),
        ((37, 50), 16, 5, 8),
        ((9, 9), 1, 0, 1),
        ((8, 100), 3, 1, 3),
    ):
        tiled = Tiles(FromFunction(lambda z: z, min_size=8), tile, halo, align=align)
        count = torch.zeros(shape)
        for one in tiled.tiles(shape):
            count[one.place] += 1
            for place, outer, length in zip(one.place, one.outer, shape, strict=True):
                assert outer.start % align == 0
                assert outer.stop - outer.start >= 8
                assert outer.start <= max(0, place.start - halo)
                assert outer.stop >= min(length, place.stop + halo)
                assert place.stop - place.start <= tile
        assert bool((count == 1).all())


def test_a_network_that_halves_images_needs_tiles_that_begin_on_its_grid() -> None:
    class Halving(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return nn.functional.interpolate(nn.functional.avg_pool2d(z, 4), scale_factor=4)

    z = torch.randn(48, 64)
    denoiser = FromModule(Halving())
    assert torch.equal(Tiles(denoiser, 20, 4, align=4)(z, 0.1), denoiser(z, 0.1))


def test_what_is_known_of_a_denoiser_is_kept_where_tiles_are_exact() -> None:
    soft = Tiles(SoftThreshold(), 10)
    assert (soft.averaged, soft.proximal, soft.around) == (0.5, True, 0)
    assert float(soft.value(torch.ones(4, 4))) == 16  # type: ignore[attr-defined]
    assert Tiles(TV(), 10).averaged is None
    assert Tiles(TV(), 10).value is None
    assert Tiles(Damping(SoftThreshold(), 0.5), 10).averaged == 0.25
    assert BM3D(BM3DProfile(radius=5), 1).reach == 24
    assert RealImaginary(TNRD(), phase="mean").reach is None


def test_memory_is_that_of_tiles() -> None:
    """No call sees more than a tile and its halo."""
    seen: list[int] = []

    def function(z: Tensor) -> Tensor:
        seen.append(z.numel())
        return z

    Tiles(FromFunction(function), 16, 4)(torch.zeros(100, 100), 0.1)
    assert max(seen) <= 24 * 24
    assert len(seen) == math.ceil(100 / 16) ** 2


def test_sigma_may_be_that_of_each_image() -> None:
    z, sigma = torch.randn(3, 20, 20), torch.tensor([0.1, 0.5, 1.0])
    assert torch.equal(Tiles(SoftThreshold(), 7)(z, sigma), SoftThreshold()(z, sigma))
    assert torch.equal(Tiles(SoftThreshold(), 7)(np.ones((9, 9)), 0.1), SoftThreshold()(np.ones((9, 9)), 0.1))


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="how far Sequential looks is not known; give the halo"):
        Tiles(network(2), 10)
    with pytest.raises(InputError, match="at least one pixel"):
        Tiles(TV(), 0)
    with pytest.raises(InputError, match="must be >= 0"):
        Tiles(TV(), 10, -1)


def test_a_reconstruction_on_tiles(regression) -> None:  # type: ignore[no-untyped-def]
    whole = ProximalGradient(regression, SoftThreshold(), sigma=0.1)
    tiled = ProximalGradient(regression, Tiles(SoftThreshold(), 2), sigma=0.1)
    assert torch.equal(tiled.step(tiled.init()).image, whole.step(whole.init()).image)
