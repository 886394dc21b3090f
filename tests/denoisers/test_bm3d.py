"""BM3D's torch form against its definition, written out here pixel by pixel, and the properties of the denoiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given, settings, strategies as st

from plugstream import BM3D, BM3DProfile, InputError, load_picture
from plugstream.denoisers.bm3d import reference
from plugstream.denoisers.bm3d.transforms import bior15, dct, haar, kaiser_window

SMALL = BM3DProfile(step=3, radius=5, group1=4, group2=8)


def test_the_dct_is_scipys():
    x = np.random.default_rng(0).standard_normal(8)
    assert np.allclose(dct(8) @ x, scipy.fft.dct(x, norm="ortho"), atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_haar_is_orthonormal_and_sees_what_it_should(size):
    h = haar(size)
    assert np.allclose(h @ h.T, np.eye(size), atol=1e-14)
    assert np.allclose(h[0], size**-0.5)
    if size > 1:
        assert np.allclose(h[size // 2 :].sum(1), 0)
        assert np.count_nonzero(h[-1]) == 2  # the finest differences are of neighbours


def test_bior15_has_unit_rows_and_its_details_ignore_constants():
    b = bior15(8)
    assert np.allclose(np.linalg.norm(b, axis=1), 1)
    assert np.linalg.cond(b) < 10
    assert np.allclose(b[1:] @ np.ones(8), 0, atol=1e-14)
    # The finest details are Haar's; the smoothing is what sets it apart.
    assert np.allclose(np.abs(b[4:]), np.abs(haar(8)[4:]), atol=1e-14)
    assert np.allclose(b[0], 8**-0.5)
    assert np.abs(np.abs(b[1:4]) - np.abs(haar(8)[1:4])).max() > 0.05


def test_kaiser_window_is_numpys():
    assert np.allclose(kaiser_window(8, 2.0), np.outer(np.kaiser(8, 2.0), np.kaiser(8, 2.0)))


def by_definition(z: np.ndarray, sigma: float, profile: BM3DProfile, basic: np.ndarray | None = None) -> np.ndarray:
    """One stage with loops over references, blocks and pixels, in double precision."""
    guide = z if basic is None else basic
    height, width = z.shape
    wanted = profile.group1 if basic is None else profile.group2
    analysis = bior15(8) if basic is None else dct(8)
    back, window = np.linalg.inv(analysis), np.outer(np.kaiser(8, profile.kaiser), np.kaiser(8, profile.kaiser))
    least = math.prod(min(profile.radius + 1, n - 7) for n in z.shape)
    count = min(wanted, 2 ** int(math.log2(least)))
    above, below = np.zeros_like(z), np.zeros_like(z)

    def corners(size):
        return sorted({*range(0, size - 7, profile.step), size - 8})

    for y in corners(height):
        for x in corners(width):
            candidates = []
            for v in range(max(0, y - profile.radius), min(height - 8, y + profile.radius) + 1):
                for u in range(max(0, x - profile.radius), min(width - 8, x + profile.radius) + 1):
                    distance = ((guide[y : y + 8, x : x + 8] - guide[v : v + 8, u : u + 8]) ** 2).sum()
                    # Distances count to 12 bits of their mantissa; equal ones go by position, row by row.
                    rounded = int(np.float32(distance).view(np.int32)) >> 11
                    candidates.append((rounded if (v, u) != (y, x) else -1, v, u))
            group = sorted(candidates)[:count]

            def spectrum(image, group=group):
                blocks = np.stack([analysis @ image[v : v + 8, u : u + 8] @ analysis.T for _, v, u in group])
                return np.tensordot(haar(count), blocks, 1)

            # Every coefficient as a sum over pixels: white noise gives it the sum of squares of its factors.
            factors = np.zeros((count, 64, height, width))
            for k, (_, v, u) in enumerate(group):
                factors[k, :, v : v + 8, u : u + 8] = np.kron(analysis, analysis).reshape(64, 8, 8)
            variance = (np.tensordot(haar(count), factors, 1) ** 2).sum((2, 3)).reshape(count, 8, 8)

            noisy = spectrum(z)
            if basic is None:
                kept = np.abs(noisy) > profile.threshold * sigma * np.sqrt(variance)
                kept[0, 0, 0] = True  # the mean of all pixels of the group
                shrunk, weight = noisy * kept, 1 / max(1, variance[kept].sum())
            else:
                gain = spectrum(basic) ** 2 / (spectrum(basic) ** 2 + profile.wiener * sigma**2 * variance)
                gain[0, 0, 0] = 1
                shrunk, weight = noisy * gain, 1 / (gain**2 * variance).sum()
            for (_, v, u), block in zip(group, np.tensordot(haar(count).T, shrunk, 1), strict=True):
                above[v : v + 8, u : u + 8] += weight * window * (back @ block @ back.T)
                below[v : v + 8, u : u + 8] += weight * window
    return above / below


@pytest.mark.parametrize(("shape", "sigma"), [((8, 8), 0.4), ((9, 8), 0.05), ((12, 17), 0.4), ((16, 13), 0.05)])
def test_both_stages_are_as_defined(shape, sigma):
    rng = np.random.default_rng(1)
    z = (np.add.outer(np.arange(shape[0]) // 5, np.arange(shape[1]) // 4) % 3) / 2 + sigma * rng.standard_normal(shape)
    basic = by_definition(z, sigma, SMALL)
    final = by_definition(z, sigma, SMALL, basic)
    one, level = torch.from_numpy(z).float()[None], torch.tensor([sigma])
    assert np.abs(reference.bm3d(one, level, SMALL, stages=1)[0].numpy() - basic).max() < 2e-5
    assert np.abs(reference.bm3d(one, level, SMALL)[0].numpy() - final).max() < 2e-5


@pytest.mark.parametrize("added", [-3.0, 0.5, 20.0])
def test_adding_a_constant_adds_it_to_the_result(added):
    z = torch.rand(40, 33, generator=torch.Generator().manual_seed(4))
    z = (z * 2**16).round() / 2**16  # so that the sum is not rounded, and the same blocks are found
    moved = BM3D(stages=1)(z + added, 0.2) - added - BM3D(stages=1)(z, 0.2)
    assert moved.abs().max() < 1e-6 * (1 + abs(added))
    # Stage 2 matches on a result that was rounded otherwise, so that blocks as near as each other may change places.
    assert (BM3D()(z + added, 0.2) - added - BM3D()(z, 0.2)).abs().median() < 1e-6 * (1 + abs(added))


@given(height=st.integers(8, 24), width=st.integers(8, 24), radius=st.integers(1, 18), seed=st.integers(0, 9))
@settings(max_examples=6)
def test_groups_are_the_nearest_blocks_reference_first(height, width, radius, seed):
    image = torch.rand(height, width, generator=torch.Generator().manual_seed(seed))
    profile = BM3DProfile(radius=radius, step=4)
    found = reference.match(image, profile, 16)
    across = width - 7
    corners = [
        (y, x) for y in reference.reference_positions(height, 4) for x in reference.reference_positions(width, 4)
    ]
    assert len(found) == len(corners)
    blocks = image.unfold(0, 8, 1).unfold(1, 8, 1).flatten(0, 1).flatten(1).double()
    for (y, x), group in zip(corners, found.tolist(), strict=True):
        assert group[0] == y * across + x
        assert len(set(group)) == len(group)
        inside = [
            v * across + u
            for v in range(max(0, y - radius), min(height - 8, y + radius) + 1)
            for u in range(max(0, x - radius), min(width - 8, x + radius) + 1)
        ]
        assert set(group) <= set(inside)
        distance = (blocks[inside] - blocks[group[0]]).square().sum(1).sort().values
        mine = (blocks[group] - blocks[group[0]]).square().sum(1)
        # Keys carry 12 bits of the distance, so the order is right to one part in 4096.
        assert torch.allclose(mine, distance[: len(group)], rtol=2**-11, atol=1e-9)


def test_ties_go_by_position():
    found = reference.match(torch.zeros(16, 16), BM3DProfile(radius=2, step=8), 4)
    assert found[0].tolist() == [0, 1, 2, 9]


def test_shifted_values_give_shifted_results_and_scaling_scales():
    z = load_picture("camera", 48) + 0.1 * torch.randn(48, 48, generator=torch.Generator().manual_seed(3))
    out = BM3D()(z, 0.1)
    assert torch.equal(BM3D()(z * 256, 25.6) / 256, BM3D()(z, 25.6 / 256))
    # Other factors and shifts change which of two equally near blocks comes first, and with it the last few per cent
    # of what one noise level is.
    for other in (BM3D()(z * 255, 25.5) / 255, BM3D()(z + 5, 0.1) - 5):
        assert float((other - out).square().mean().sqrt()) < 0.02 * 0.1


@pytest.mark.parametrize("value", [0.0, -3.0, 1e4])
def test_constant_images_stay_constant(value):
    z = torch.full((20, 25), value)
    assert torch.allclose(BM3D()(z, 0.2), z, rtol=1e-5, atol=1e-5)


def test_batches_sigmas_and_types():
    z = torch.rand(2, 2, 16, 20)
    sigma = torch.tensor([[0.1, 0.0], [0.3, 0.05]])
    out = BM3D()(z, sigma)
    assert torch.equal(out[0, 1], z[0, 1])
    for i in range(2):
        for j in range(2):
            assert torch.equal(out[i, j], BM3D()(z[i, j], float(sigma[i, j])))
    double = BM3D()(z[0, 0].double(), 0.1)
    assert double.dtype == torch.float64
    assert torch.allclose(double.float(), out[0, 0], atol=1e-6)


def test_it_removes_noise():
    truth = load_picture("camera", 96)
    noisy = truth + 25 / 255 * torch.randn(96, 96, generator=torch.Generator().manual_seed(0))

    def psnr(image):
        return -10 * math.log10(float((image - truth).square().mean()))

    one, two = psnr(BM3D(stages=1)(noisy, 25 / 255)), psnr(BM3D()(noisy, 25 / 255))
    assert psnr(noisy) < 21
    assert one > 26
    assert two > one
    assert psnr(BM3D("fast")(noisy, 25 / 255)) > two - 0.3


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="at least 8 x 8 pixels"):
        BM3D()(torch.zeros(7, 20), 0.1)
    with pytest.raises(InputError, match="NaN or infinity"):
        BM3D()(torch.full((9, 9), math.nan), 0.1)
    with pytest.raises(InputError, match="floating point"):
        BM3D()(torch.zeros(9, 9, dtype=torch.uint8), 0.1)
    with pytest.raises(InputError, match="no BM3D profile 'slow'"):
        BM3D("slow")
    with pytest.raises(InputError, match="stages 1 and 2"):
        BM3D(stages=3)
    for wrong in ({"step": 9}, {"radius": 30}, {"group1": 12}, {"threshold": -1.0}):
        with pytest.raises(InputError, match="BM3D's"):
            BM3DProfile(**wrong)


def test_scaling_bm3d_is_exact_for_powers_of_two_only():
    """What its docstring says: to the bit for powers of two, and about a hundredth of the noise for others."""
    rows = torch.linspace(0, 1, 48)
    z = (rows[:, None] * 3 % 1).round() * rows + 0.1 * torch.randn(48, 48, generator=torch.Generator().manual_seed(3))
    out = BM3D()(z, 0.125)
    for factor in (2.0**-20, 0.25, 2.0, 2.0**30):
        assert torch.equal(BM3D()(z * factor, 0.125 * factor) / factor, out)
    for factor in (0.1, 3.0, 255.0):
        other = BM3D()(z * factor, 0.125 * factor) / factor
        assert float((other - out).norm() / out.norm()) < 5e-3
    assert "power of two" in " ".join((BM3D.__doc__ or "").split())


def test_channels_share_groups_and_keep_batches_and_sigmas_apart():
    z = torch.rand(2, 3, 20, 17, generator=torch.Generator().manual_seed(0))
    joint = BM3D(SMALL, channels=True)
    got = joint(z, torch.tensor([0.1, 0.0]))
    assert torch.equal(got[1], z[1])
    assert torch.equal(got[0], joint(z[0], 0.1))
    assert torch.equal(got[0, 0], BM3D(SMALL)(z[0, 0], 0.1))  # which is their guide
    assert not torch.equal(got[0, 1], BM3D(SMALL)(z[0, 1], 0.1))
    alike = z[0, :1].expand(3, -1, -1)
    assert torch.equal(joint(alike, 0.1), BM3D(SMALL)(alike, 0.1))
    with pytest.raises(InputError, match="channels x H x W"):
        joint(z[0, 0], 0.1)
