"""BM4D: what it must do whatever the form, and the native form against the torch form, its specification."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import plugstream as ps
from effort import effort, thorough
from plugstream import _native
from plugstream.base.errors import InputError
from plugstream.denoisers.bm4d import native, reference
from plugstream.denoisers.bm4d.profile import Profile, candidate_order, fixed_matrices
from plugstream.denoisers.by_name import make

SMALL = Profile(step1=3, radius=3, group2=16)
needs_native = pytest.mark.skipif(_native.load() is None, reason="the native kernels are not built")


def ball(*shape: int) -> Tensor:
    """A ball of 1 in a ramp."""
    axes = torch.meshgrid(*(torch.linspace(-1, 1, size) for size in shape), indexing="ij")
    return (sum(axis.square() for axis in axes) < 0.5).float() + 0.2 * axes[1]


def noisy(*shape: int, sigma: float = 0.1, seed: int = 0) -> Tensor:
    return ball(*shape) + sigma * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def level(sigma: float) -> Tensor:
    return torch.full((1, 1, 1, 1), sigma)


def distance(a: Tensor, b: Tensor) -> float:
    """The root mean square difference."""
    return float((a - b).abs().square().mean().sqrt())


def nearest(guide: Tensor, profile: Profile, corner: tuple[int, int, int], floor: float) -> list[int]:
    """The group of a cube in double precision, straight from the definition."""
    depth, height, width = guide.shape
    z, y, x = corner
    cube = guide[z : z + 4, y : y + 4, x : x + 4].double()
    span, found = 2 * profile.radius + 1, []
    for rank, number in enumerate(candidate_order(profile.radius).tolist()):
        a = z + number // span**2 - profile.radius
        b, c = y + number // span % span - profile.radius, x + number % span - profile.radius
        if 0 <= a <= depth - 4 and 0 <= b <= height - 4 and 0 <= c <= width - 4:
            other = guide[a : a + 4, b : b + 4, c : c + 4].double()
            found.append(
                (max(float((cube - other).square().sum()), floor), rank, (a * (height - 3) + b) * (width - 3) + c)
            )
    return [position for _, _, position in sorted(found)[: profile.group1]]


def test_groups_are_the_nearest_cubes_and_among_equals_those_that_overlap_least() -> None:
    guide = noisy(7, 9, 10)
    for alike in (0.0, 1.5):
        profile = replace(SMALL, alike1=alike)
        groups = reference.match(guide[None], level(0.1)[0], profile, 1)
        places = [reference.reference_positions(size, 3) for size in guide.shape]
        corners = [(z, y, x) for z in places[0] for y in places[1] for x in places[2]]
        same = [
            set(nearest(guide, profile, corner, alike * 64 * 0.01)) == set(group)
            for corner, group in zip(corners, groups.tolist(), strict=True)
        ]
        assert np.mean(same) > 0.9  # keys have eleven bits for the distance, so that near ties go by rank


def test_equals_that_come_first_share_no_voxel() -> None:
    order = candidate_order(6)
    assert sorted(order) == list(range(13**3))
    offsets = np.stack(np.unravel_index(order[:27], (13, 13, 13)), 1) - 6
    assert (offsets[0] == 0).all()
    apart = np.abs(offsets[:, None] - offsets[None]).max(-1)
    assert (apart[~np.eye(27, dtype=bool)] >= 4).all()


def test_it_removes_noise_and_keeps_what_has_none() -> None:
    clean, z = ball(20, 22, 24), noisy(20, 22, 24)
    out = ps.BM4D()(z, 0.1)
    assert distance(out, clean) < 0.35 * distance(z, clean)
    assert distance(ps.BM4D(stages=1)(z, 0.1), clean) > distance(out, clean)
    assert torch.equal(ps.BM4D()(z, 0.0), z)


def test_a_constant_volume_stays() -> None:
    constant = torch.full((9, 10, 12), 0.7)
    torch.testing.assert_close(ps.BM4D()(constant, 0.3), constant, rtol=1e-6, atol=0)


def test_it_commutes_with_shifts_of_value_and_scaling() -> None:
    z = noisy(16, 17, 18)
    out = ps.BM4D()(z, 0.1)
    assert torch.equal(ps.BM4D()(2 * z, 0.2), 2 * out)
    assert torch.equal(ps.BM4D()(z / 4, 0.025), out / 4)
    assert distance(ps.BM4D()(z + 0.5, 0.1), out + 0.5) < 2e-3  # rounding moves a few cubes into other groups
    assert distance(ps.BM4D()(3 * z, 0.3), 3 * out) < 6e-3


def test_a_turned_volume_gives_the_turned_result() -> None:
    z = noisy(16, 16, 16)  # whose grid of references is its own mirror image
    out = ps.BM4D()(z, 0.1)
    for turned in (lambda v: v.transpose(0, 2), lambda v: v.rot90(1, (1, 2)), lambda v: v.flip(0)):
        assert distance(ps.BM4D()(turned(z).contiguous(), 0.1), turned(out)) < 0.01
        assert (
            abs(
                distance(ps.BM4D()(turned(z).contiguous(), 0.1), turned(ball(16, 16, 16)))
                / distance(out, ball(16, 16, 16))
                - 1
            )
            < 0.03
        )


def test_a_map_of_one_value_is_that_value() -> None:
    z = noisy(12, 13, 14)
    assert torch.equal(ps.BM4D()(z, torch.full(z.shape, 0.1)), ps.BM4D()(z, 0.1))


def test_a_map_says_where_the_noise_is() -> None:
    clean = ball(20, 20, 32)
    sigma = torch.linspace(0.02, 0.2, 32).expand(20, 20, 32).clone()
    sigma[:4] = 0
    z = clean + sigma * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    out = ps.BM4D()(z, sigma)
    assert torch.equal(out[:4], z[:4])
    assert distance(out, clean) < 0.9 * distance(ps.BM4D()(z, float(sigma.square().mean().sqrt())), clean)


def test_complex_volumes_are_matched_by_both_parts() -> None:
    clean = torch.polar(1 + 0.5 * ball(16, 18, 20), ball(16, 18, 20))
    z = clean + 0.1 * torch.view_as_complex(torch.randn(16, 18, 20, 2, generator=torch.Generator().manual_seed(2)))
    out = ps.BM4D()(z, 0.1)
    apart = ps.RealImaginary(ps.BM4D())(z, 0.1)
    assert out.dtype == z.dtype
    assert distance(out, clean) < 1.02 * distance(apart, clean) < 0.4 * distance(z, clean)


def test_tiles_with_the_halo_give_the_whole_result() -> None:
    profile = Profile(step1=2, step2=3, radius=2, group1=8, group2=8)
    z = noisy(64, 10, 10)
    sigma = torch.linspace(0.05, 0.1, 64)[:, None, None].expand(64, 10, 10).contiguous()
    for noise in (0.1, sigma):
        whole, tiled = ps.BM4D(profile)(z, noise), ps.Tiles(ps.BM4D(profile), 12)(z, noise)
        assert distance(whole, tiled) < 1e-6
    assert ps.BM4D(profile).reach == 20


def test_each_volume_of_a_stack_is_its_own() -> None:
    stack = torch.stack([noisy(9, 9, 9), noisy(9, 9, 9, seed=1)])
    out = ps.BM4D()(stack, torch.tensor([0.1, 0.2]))
    assert torch.equal(out[1], ps.BM4D()(stack[1], 0.2))
    assert ps.BM4D()(stack.double(), 0.1).dtype == torch.float64


def test_what_it_cannot_take_is_refused() -> None:
    for bad, message in (
        (torch.zeros(3, 9, 9), "at least 4"),
        (torch.zeros(9, 9, 9, dtype=torch.int32), "floating point"),
        (torch.full((9, 9, 9), torch.nan), "NaN"),
    ):
        with pytest.raises(InputError, match=message):
            ps.BM4D()(bad, 0.1)
    with pytest.raises(InputError, match="sigma"):
        ps.BM4D()(torch.zeros(9, 9, 9), torch.full((9, 9, 9), -1.0))
    with pytest.raises(InputError, match="map of sigma"):
        ps.BM4D()(torch.zeros(2, 9, 9, 9), torch.ones(3, 9, 9, 9))
    with pytest.raises(InputError, match="no BM4D profile"):
        ps.BM4D("best")
    with pytest.raises(InputError, match="steps"):
        Profile(step1=5)
    with pytest.raises(InputError, match="radius"):
        Profile(radius=7)


def test_it_is_the_denoiser_of_volumes_by_name_and_bm3d_of_images() -> None:
    denoiser = make("bm4d", profile="fast")
    assert ps.adapt(denoiser, (9, 9, 9), complex=True) is denoiser
    assert ps.adapt(denoiser, (64, 64)) == ps.BM3D("fast")
    for volume in ("mean", 1):  # asked for slices, it is BM3D on them
        slices = [ps.adapt(one, (9, 9, 9), volume=volume, complex=True) for one in (denoiser, ps.BM3D("fast"))]
        assert slices[0].describe() == slices[1].describe()
    assert ps.adapt(denoiser, (3, 9, 9, 9), channels=True).describe() == "BM4D, channel by channel"
    with pytest.raises(InputError, match="for volumes"):
        ps.adapt(ps.BM4D(SMALL), (64, 64))


# The last is which sigma, a number or a map, is enough.
CASES = [
    ((5, 6, 37), Profile(radius=3), 1, 0),
    ((6, 36, 5), replace(SMALL, radius=2), 2, 1),
    ((4, 5, 6), Profile(group1=2, group2=4), 1, 1),
    ((5, 7, 8), Profile(step1=4, step2=1, radius=3, group1=32, group2=1, alike1=0, alike2=0), 1, 0),
]


@needs_native
@thorough
@pytest.mark.parametrize(("shape", "profile", "channels", "which"), CASES)
def test_the_native_form_finds_the_same_cubes_and_the_same_volume(
    shape: tuple[int, ...], profile: Profile, channels: int, which: int
) -> None:
    z = torch.stack([noisy(*shape, seed=k) for k in range(channels)])
    sigmas = (level(0.1)[0], 0.05 + 0.1 * torch.rand(shape, generator=torch.Generator().manual_seed(3)))
    for sigma in effort(sigmas[which : which + 1], sigmas):
        for stage in (1, 2):
            expected = reference.match(z, sigma, profile, stage)
            for instructions in _native.kernels().levels():
                assert torch.equal(native.match(z, sigma, profile, stage, level=instructions), expected)
        one = reference.bm4d(z[None], sigma[None], profile, stages=1)
        for instructions in _native.kernels().levels():
            out = native.bm4d(z[None], sigma[None], profile, stages=1, level=instructions)
            torch.testing.assert_close(out, one, rtol=0, atol=2e-5)
        both = reference.bm4d(z[None], sigma[None], profile)
        # Rounding may put a cube into another group of stage 2.
        assert distance(native.bm4d(z[None], sigma[None], profile), both) < 1e-3


@needs_native
def test_the_number_of_threads_changes_no_bit() -> None:
    z = noisy(20, 22, 26)[None, None]
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(native.bm4d(z, level(0.1), SMALL))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@needs_native
def test_an_exception_of_its_progress_stops_it() -> None:
    """As Ctrl-C does; the next call is as any other."""
    z, parts = torch.randn(1, 1, 64, 64, 64), []

    def stop(part: float) -> None:
        parts.append(part)
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        native.bm4d(z, level(1.0), Profile(), progress=stop)
    assert len(parts) == 1
    assert 0 < parts[0] < 1
    small = z[..., :12, :12, :12].contiguous()
    assert torch.equal(native.bm4d(small, level(1.0), SMALL), native.bm4d(small, level(1.0), SMALL, progress=print))


@needs_native
def test_the_kernel_refuses_arrays_that_do_not_fit() -> None:
    from plugstream.denoisers.bm4d.profile import native_settings

    z = np.zeros((1, 1, 8, 8, 8), np.float32)
    sigma = np.full((1, 1, 1, 1), 0.1, np.float32)
    options = native_settings(SMALL) | {"stages": 2, "threads": 1}
    with pytest.raises(ValueError, match="out must"):
        _native.kernels().bm4d(z, sigma, np.zeros((1, 1, 8, 8, 7), np.float32), **options)
    with pytest.raises(ValueError, match="sigma must"):
        _native.kernels().bm4d(z, np.zeros((1, 8, 8, 7), np.float32), z.copy(), **options)
    with pytest.raises(ValueError, match="order must"):
        _native.kernels().bm4d(z, sigma, z.copy(), **(options | {"radius": 4}))


def test_the_fixed_matrices_undo_each_other() -> None:
    matrices = fixed_matrices(2.0)
    for analysis, synthesis in zip(matrices["analysis"], matrices["synthesis"], strict=True):
        np.testing.assert_allclose(analysis @ synthesis, np.eye(4), atol=1e-6)
