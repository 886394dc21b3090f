"""The CUDA form of BM3D against the torch form: the matching to the bit, the result up to rounding.

Without a GPU the kernels run on the CPU, thread by thread.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cuda_on_cpu import emulated
from cuda_warps_on_cpu import CpuWarps
from effort import effort, thorough
from plugstream.base.errors import InputError
from plugstream.denoisers.bm3d import BM3D, cuda_form, cuda_kernels, reference
from plugstream.denoisers.bm3d.profile import PROFILES, Profile
from plugstream.denoisers.bm3d.transforms import bior15, correlations, dct, haar

NEVER = 0x7FFFFFFF
DOWN = cuda_kernels._DOWN
PROFILE = Profile(step=3, radius=4)
NORMAL = PROFILES["normal"]
LEVELS = 5  # of the tree of a group of 32 blocks


@pytest.fixture(scope="module")
def kernels() -> CpuWarps:
    return CpuWarps(cuda_kernels.read_source(PROFILE, (99, 99)))


def noisy(height: int, width: int, count: int = 1) -> Tensor:
    z = torch.rand(count, height, width, generator=torch.Generator().manual_seed(0))
    z[:, :9, :9] = 0.5  # where distances are equal
    return z


def picture(height: int, width: int, seed: int = 0, count: int = 1) -> Tensor:
    """Waves, an edge, a patch of equal pixels (where distances are equal too) and noise: (count, height, width)."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    clean = 0.5 + 0.3 * torch.sin(20 * x + 9 * y) + 0.2 * (x > y)
    noisy = clean + 0.1 * torch.randn(count, height, width, generator=generator)
    noisy[:, : height // 3, : width // 3] = 0.25
    return noisy


def keys_of(image: Tensor) -> Tensor:
    """The keys of the torch form, where `measure` would leave them: (1, references, DOWN, LANES)."""
    rows, columns = (torch.tensor(reference.reference_positions(s, PROFILE.step)) for s in image.shape)
    span = 2 * PROFILE.radius + 1
    given = reference._keys(image, rows, columns, PROFILE.radius, None).flatten(0, 1).unflatten(1, (span, span))
    keys = torch.full((len(given), DOWN, cuda_kernels.count_lanes(PROFILE.radius)), NEVER, dtype=torch.int32)
    for dy in range(span):
        keys[:, dy % DOWN, dy // DOWN * span : (dy // DOWN + 1) * span] = given[:, dy]
    keys[keys == -1] = NEVER  # the reference itself
    return keys[None]


@emulated
def test_spectra_are_those_of_the_torch_form(kernels):
    z = noisy(11, 17, 2)
    analysis, _, _ = cuda_form.matrices("bior15", 2.25)
    got = cuda_kernels.Launches(z, torch.ones(2), PROFILE, kernels).transform(z, analysis)
    matrix = torch.tensor(list(analysis)).view(8, 8)
    torch.testing.assert_close(got, torch.cat([reference._spectra(image, matrix) for image in z]))


@emulated
@pytest.mark.parametrize("shape", [(16, 22), (8, 11), (29, 17)])
def test_keys_are_those_of_the_torch_form_to_the_bit(kernels, shape):
    z = noisy(*shape)
    launches = cuda_kernels.Launches(z, torch.ones(1), PROFILE, kernels)
    for parts in (1, 2, 9):
        matches, _ = launches.prepare(1)
        for band in launches.bands(parts):
            launches.measure(z, matches, band)
        assert torch.equal(matches.measured, keys_of(z[0]))


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("height", [8, 9, 20, 23, 64])
def test_bands_have_every_reference_once(height, step, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "_HIGH", 5 * step)
    launches = cuda_kernels.Launches(torch.ones(1, height, 19), torch.ones(1), Profile(step=step, radius=4), object())
    groups = (height - 8) // step // 5 + 1
    for parts in (1, 2, 3, 7):
        bands = launches.bands(parts)
        assert [k for band in bands for k in band.references] == list(range(launches.rows * launches.columns))
        for band in bands:  # the groups of rows that are measured have its references
            rows = {row for group in band.rows for row in range(launches.rows)[5 * group : 5 * group + 5]}
            if groups - 1 in band.rows:
                rows.add(launches.rows - 1)
            assert rows == {k // launches.columns for k in band.references}


@emulated
@pytest.mark.parametrize("shape", [(16, 22), (8, 11)])
def test_groups_are_those_of_the_torch_form_and_each_position_has_its_chain(kernels, shape):
    z = noisy(*shape)
    launches = cuda_kernels.Launches(z, torch.ones(1), PROFILE, kernels)
    for most in (1, 2, 16, 32):
        size = reference.group_size(shape, PROFILE.radius, most)
        matches, _ = launches.prepare(size)
        matches.measured.copy_(keys_of(z[0]))
        for band in launches.bands(2):
            launches.choose(matches, band)
        groups = matches.groups
        assert torch.equal(groups[0].long(), reference.match(z[0], PROFILE, most))
        for position, (count, link) in enumerate(matches.heads[0].tolist()):
            found = matches.lists[0, position, :count].tolist()
            while link > 0:
                found.append(link - 1)
                link = int(matches.next.flatten()[link - 1])
            assert sorted(found) == (groups.flatten() == position).nonzero()[:, 0].tolist()


@emulated
def test_blocks_become_the_image_of_the_torch_form(kernels):
    z = noisy(20, 70, 2)
    sigma = torch.tensor([0.1, 0.0])
    launches = cuda_kernels.Launches(z, sigma, PROFILE, kernels)
    rng = torch.Generator().manual_seed(1)
    references, size, positions = launches.rows * launches.columns, 4, launches.down * launches.across
    groups = torch.randint(positions, (2, references, size), generator=rng)
    # Every position has a block, so that no pixel is 0 / 0.
    groups.view(2, -1)[:, ::2] = torch.arange(groups[0].numel() // 2) * 7 % positions
    blocks = torch.randn(2, references, size, 64, generator=rng)
    shares = torch.rand(2, references, generator=rng) + 0.01
    groups[:, : cuda_kernels._LISTED + 9, 1] = 3  # more than are listed
    groups[:, -20:, 3] = 7
    chains, filtered = launches.prepare(size)
    for entry, position in enumerate(groups.flatten().tolist()):
        head = chains.heads[entry // groups[0].numel(), position]
        if head[0] < cuda_kernels._LISTED:
            chains.lists[entry // groups[0].numel(), position, head[0]] = entry
        else:
            chains.next.view(-1)[entry] = head[1]
            head[1] = entry + 1
        head[0] += 1
    analysis, synthesis, window = cuda_form.matrices("dct", PROFILE.kaiser)
    filtered.blocks.copy_(blocks)
    filtered.shares.copy_(shares)
    got = launches.assemble(chains, filtered, torch.ones(2), synthesis, window)
    total = torch.zeros(positions, 64).index_add_(0, groups[0].flatten(), blocks[0].flatten(0, 1))
    weight = torch.zeros(positions).index_add_(0, groups[0].flatten(), shares[0].repeat_interleave(size))
    want = reference._put_together(total, weight, torch.tensor(list(analysis)).view(8, 8), z[0].shape, PROFILE)
    seen = want.isfinite()
    assert seen.float().mean() > 0.9
    torch.testing.assert_close(got[0][seen], want[seen], rtol=1e-4, atol=1e-4)
    assert torch.equal(got[1], z[1])


def test_many_images_go_some_at_a_time_each_with_its_sigma(monkeypatch):
    seen = []

    def call(images, sigma):
        seen.append(len(images))
        return images * sigma[:, None, None]

    monkeypatch.setattr(cuda_form, "graph_call", lambda profile, stages: call)
    monkeypatch.setattr(cuda_form, "AT_ONCE", 3 * 80)
    images, sigma = torch.rand(7, 8, 10), torch.rand(7)
    assert torch.equal(cuda_form.bm3d(images, sigma, PROFILE), images * sigma[:, None, None])
    assert seen == [3, 3, 1]


@thorough
@emulated
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("size", effort([4, 32], [4, 16, 32]))
def test_filtered_groups_are_those_of_the_torch_form(size, first):
    """Blocks close together, of which many overlap, with noise of their own in two images."""
    kernels = CpuWarps(cuda_kernels.read_source(replace(PROFILE, radius=6, group1=size, group2=size), (99, 99)))
    z = noisy(15, 14, 2)
    basic = z.mean((1, 2), keepdim=True) + 0.7 * (z - z.mean((1, 2), keepdim=True))
    sigma = torch.tensor([0.1, 0.03])
    launches = cuda_kernels.Launches(z, sigma, PROFILE, kernels)
    name = "bior15" if first else "dct"
    matrix = torch.tensor(list(cuda_form.matrices(name, 2.25)[0])).view(8, 8)
    rng = torch.Generator().manual_seed(2)
    references, positions = launches.rows * launches.columns, launches.down * launches.across
    groups = torch.stack([torch.randperm(positions, generator=rng)[:size] for _ in range(2 * references)])
    groups = groups.view(2, references, size)
    noisy_spectra, guides = (torch.stack([reference._spectra(image, matrix) for image in x]) for x in (z, basic))
    filtered = launches.prepare(size)[1]
    for band in launches.bands(2):
        common, factor = cuda_form.common_table(name, z.device), 2.7 if first else 0.65
        launches.filter(groups.int(), noisy_spectra, None if first else guides, common, factor, filtered, band)
    blocks, shares = filtered
    along = torch.from_numpy(haar(size)).float()
    white = correlations(name)
    table = torch.from_numpy(np.concatenate([white[:, :0:-1], white], axis=1)).float()
    for n in range(2):
        v = reference._variances(groups[n], launches.across, along, table)
        coefficients = torch.einsum("gk,nkc->ngc", along, noisy_spectra[n][groups[n]])
        energy = torch.einsum("gk,nkc->ngc", along, guides[n][groups[n]]).square()
        if first:
            gain = ((coefficients / (2.7 * sigma[n])).square() > v).float()
        else:
            gain = energy / (energy + 0.65 * sigma[n] ** 2 * v)
        gain[:, 0, 0] = 1
        weight = 1 / (gain.square() * v).sum((1, 2)).clamp_min(1 if first else 1e-38)
        want = torch.einsum("gk,ngc->nkc", along, coefficients * gain) * weight[:, None, None]
        torch.testing.assert_close(shares[n], weight, rtol=1e-4, atol=0)
        torch.testing.assert_close(blocks[n], want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_sums_of_whole_numbers_cannot_overflow() -> None:
    """The bounds that the kernels' comment states, for the largest window that a profile can have, at every pixel."""
    most_groups = 45**2  # of references every pixel, 22 away at most
    for transform in (bior15(8), dct(8)):
        spectrum = np.abs(transform).sum(1).max() ** 2  # of pixels of 1 at most
        block = (LEVELS + 1) * spectrum  # the mean and one difference a level, none enlarged; a group's weight is <= 1
        assert 2 * block < 2**9  # the largest pixel is below twice the power of two that it is measured by
        assert 2 * block * most_groups * 2**42 < 2**63


def test_serves_only_cuda() -> None:
    assert not cuda_form.serves(torch.zeros(1, 8, 8))


@pytest.mark.gpu
def test_whole_numbers_follow_the_scale_of_the_image_and_spread_what_is_not_finite() -> None:
    z, sigma = picture(40, 40).cuda(), torch.tensor([0.1], device="cuda")
    want = cuda_form.bm3d(z, sigma, NORMAL)
    for scale in (2.0**-30, 2.0**30):
        assert torch.equal(cuda_form.bm3d(scale * z, scale * sigma, NORMAL), scale * want)
    assert not cuda_form.bm3d(0 * z, sigma, NORMAL).any()
    for bad in (torch.nan, torch.inf):
        z[0, 20, 20] = bad
        assert not cuda_form.bm3d(z, sigma, NORMAL).isfinite().any()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8, 8), (9, 13), (24, 31), (40, 40), (100, 75), (256, 256), (131, 258)])
@pytest.mark.parametrize("wanted", [16, 32])
def test_matching_is_the_specification_to_the_bit(shape: tuple[int, int], wanted: int) -> None:
    z = picture(*shape, seed=3)[0].cuda()
    assert torch.equal(cuda_form.match(z, NORMAL, wanted), reference.match(z, NORMAL, wanted))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "profile", [PROFILES["fast"], Profile(step=2, radius=4), Profile(step=8, radius=22), Profile(step=1)]
)
def test_matching_with_other_profiles(profile: Profile) -> None:
    z = picture(100, 75, seed=3)[0].cuda()
    assert torch.equal(cuda_form.match(z, profile, 16), reference.match(z, profile, 16))


def assert_close(got: Tensor, want: Tensor, bound: float) -> None:
    """All pixels within `bound` of the range; in a large image, all but 1 %, and those within 1e-2.

    Millions of coefficients meet the threshold, and millions of distances each other: with some, rounding decides, and
    then the pixels of a group differ a little. In stage 2 the specification differs so from itself in float64.
    """
    away = (got - want).abs() / (want.max() - want.min())
    if got.shape[-1] * got.shape[-2] <= 2000:
        assert away.max() <= bound
    else:
        assert (away > bound).float().mean() <= 0.01
        assert away.max() <= 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(9, 13), (40, 40), (100, 75), (256, 256)])
def test_a_batch_with_its_own_sigmas(shape: tuple[int, int]) -> None:
    z = picture(*shape, seed=1, count=3).cuda()
    sigma = torch.tensor([0.1, 0.0, 0.03], device="cuda")
    for stages, bound in ((1, 1e-5), (2, 1e-4)):
        got = cuda_form.bm3d(z, sigma, NORMAL, stages=stages)
        want = reference.bm3d(z, sigma, NORMAL, stages=stages)
        assert_close(got, want, bound)
        assert torch.equal(got[1], z[1])


@pytest.mark.gpu
@pytest.mark.parametrize("profile", [PROFILES["fast"], Profile(step=5, radius=3, group1=1, group2=2), Profile(step=1)])
def test_other_profiles(profile: Profile) -> None:
    z = picture(50, 61, seed=2).cuda()
    sigma = torch.tensor([0.1], device="cuda")
    got, want = cuda_form.bm3d(z, sigma, profile), reference.bm3d(z, sigma, profile)
    assert_close(got, want, 1e-4)


@pytest.mark.gpu
def test_it_gives_the_same_bits_every_time() -> None:
    z = picture(120, 90, count=2).cuda()
    sigma = torch.tensor([0.1, 0.05], device="cuda")
    runs = [cuda_form.bm3d(z, sigma, NORMAL) for _ in range(5)]
    assert all(torch.equal(runs[0], run) for run in runs[1:])


@pytest.mark.gpu
def test_an_image_that_comes_again_is_not_taken_for_another() -> None:
    """What is known of a call by the address of its image holds for other values there, another sigma and shape."""
    cuda_form.graph_call.cache_clear()
    z, d = picture(64, 64)[0].cuda(), BM3D()
    for seed in range(14):
        z.copy_(picture(64, 64, seed=seed)[0])
        for sigma in (0.1, 0.05):
            for image in (z, z.view(32, 128)):
                want = cuda_form.bm3d(image.clone(), torch.tensor([sigma], device="cuda"), NORMAL)
                assert torch.equal(d(image, sigma), want)
    assert cuda_form.graph_call(NORMAL, 2)._known
    with pytest.raises(InputError, match="channels"):
        BM3D(channels=True)(z[None], 0.1)


@pytest.mark.gpu
def test_a_cuda_graph_replays_it() -> None:
    z = picture(64, 64).cuda()
    sigma = torch.tensor([0.1], device="cuda")
    cuda_form.bm3d(z, sigma, NORMAL)  # compiles the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cuda_form.bm3d(z, sigma, NORMAL)
    other = picture(64, 64, seed=9).cuda()
    z.copy_(other)
    sigma.fill_(0.07)
    graph.replay()
    eager = cuda_form.bm3d(other, sigma, NORMAL)
    assert torch.equal(out, eager)
