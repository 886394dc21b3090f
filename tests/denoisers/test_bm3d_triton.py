"""The Triton form of BM3D against the torch form: the matching to the bit, the result up to rounding.

Without a GPU the kernels run in Triton's interpreter, and this file is also the script that a test starts for it.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from effort import effort, thorough
from plugstream.denoisers.bm3d import reference, triton_form
from plugstream.denoisers.bm3d.profile import PROFILES, Profile
from plugstream.denoisers.bm3d.transforms import bior15, correlations, dct
from triton_interpreter import interpret, needs_triton

NORMAL = PROFILES["normal"]
LEVELS = 5  # of the tree of a group of 32 blocks


def picture(height: int, width: int, seed: int = 0, count: int = 1) -> Tensor:
    """Waves, an edge, a patch of equal pixels (where distances are equal too) and noise: (count, height, width)."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    clean = 0.5 + 0.3 * torch.sin(20 * x + 9 * y) + 0.2 * (x > y)
    noisy = clean + 0.1 * torch.randn(count, height, width, generator=generator)
    noisy[:, : height // 3, : width // 3] = 0.25
    return noisy


# Name: (height, width, profile, stages; none for the matching alone). The interpreter takes 0.1 s for each four
# references, hence the long steps of the larger ones.
CASES: dict[str, tuple[int, int, Profile, tuple[int, ...]]] = {
    "8x8": (8, 8, NORMAL, (2,)),
    "8x11": (8, 11, NORMAL, (1, 2)),  # stage 1 in the fixed order, too
    "24x31": (24, 31, Profile(step=8, radius=6), (2,)),
    "groups of 1 and 2": (12, 17, Profile(step=8, radius=3, group1=1, group2=2), (2,)),
    "groups of 4 and 8": (12, 17, Profile(step=8, radius=3, group1=4, group2=8), (2,)),
    "40x40": (40, 40, Profile(step=8, radius=3), ()),
    "step 2": (20, 9, Profile(step=2, radius=2, group1=4, group2=8), ()),
}
INTERPRETED = effort(["8x8"], list(CASES))


def check(name: str) -> dict[str, object]:
    height, width, profile, stages = CASES[name]
    z = picture(height, width)
    sigma = torch.tensor([0.1])
    answer: dict[str, object] = {
        "matching": [torch.equal(triton_form.match(z[0], profile, k), reference.match(z[0], profile, k)) for k in (16,)]
    }
    for stage in stages:
        want = reference.bm3d(z, sigma, profile, stages=stage)
        answer[f"stage {stage}"] = float((triton_form.bm3d(z, sigma, profile, stages=stage) - want).abs().max())
    if name == "8x11":
        fixed = triton_form.bm3d(z, sigma, profile, stages=1, deterministic=True)
        answer["deterministic"] = float((fixed - reference.bm3d(z, sigma, profile, stages=1)).abs().max())
        answer["sigma 0"] = torch.equal(triton_form.bm3d(z, 0 * sigma, profile, stages=1), z)
    return answer


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, object]]:
    """What `check` found in Triton's interpreter, for all cases."""
    found: dict[str, dict[str, object]] = json.loads(interpret(__file__))
    return found


@thorough
@needs_triton
@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted_kernels_match_the_specification(name: str, interpreted: dict[str, dict[str, object]]) -> None:
    found = interpreted[name]
    assert found["matching"] == [True]
    for stage, bound in (("stage 1", 1e-5), ("stage 2", 1e-4), ("deterministic", 1e-5)):
        assert float(str(found.get(stage, 0))) <= bound
    assert found.get("sigma 0", True) is True


@needs_triton
def test_rows_of_pairs() -> None:
    """`filter_groups` finds what two blocks share by one number, for all distances that a group can have."""
    from plugstream.denoisers.bm3d import triton_kernels

    dy, dx = np.mgrid[-44:45, -44:45]
    row = 64 * dy + dx + triton_kernels._MIDDLE.value
    near = row & triton_kernels._FAR.value == 0
    assert np.array_equal(near, (dy >= -8) & (dy < 8) & (dx >= -8) & (dx < 8))
    table = triton_form._correlation_table("bior15", torch.device("cpu")).numpy().reshape(-1, 64)
    got = np.where(near[..., None], table[np.where(near, row, 0)], 0)
    want = correlations("bior15")[np.minimum(np.abs(dy), 8), np.minimum(np.abs(dx), 8)]
    np.testing.assert_allclose(got, want, atol=1e-7)


@needs_triton
def test_sums_of_whole_numbers_cannot_overflow() -> None:
    """The bounds that the kernels' comment states, for the largest window that a profile can have, at every pixel."""
    from plugstream.denoisers.bm3d import triton_kernels

    most_groups = 45**2  # of references every pixel, 22 away at most
    for transform in (bior15(8), dct(8)):
        spectrum = np.abs(transform).sum(1).max() ** 2  # of pixels of 1 at most
        block = (LEVELS + 1) * spectrum  # the mean and one difference a level, none enlarged; a group's weight is <= 1
        assert 2 * block < 2**9  # the largest pixel is below twice the power of two that it is measured by
        assert 2 * block * most_groups * triton_kernels._ONE.value < 2**63


@pytest.mark.gpu
@needs_triton
def test_whole_numbers_follow_the_scale_of_the_image_and_spread_what_is_not_finite() -> None:
    z, sigma = picture(40, 40).cuda(), torch.tensor([0.1], device="cuda")
    want = triton_form.bm3d(z, sigma, NORMAL, deterministic=True)
    for scale in (2.0**-30, 2.0**30):
        assert torch.equal(triton_form.bm3d(scale * z, scale * sigma, NORMAL, deterministic=True), scale * want)
    assert not triton_form.bm3d(0 * z, sigma, NORMAL, deterministic=True).any()
    for bad in (torch.nan, torch.inf):
        z[0, 20, 20] = bad
        assert not triton_form.bm3d(z, sigma, NORMAL, deterministic=True).isfinite().any()


def test_serves_only_cuda() -> None:
    assert not triton_form.serves(torch.zeros(1, 8, 8))


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("shape", [(8, 8), (9, 13), (24, 31), (40, 40), (100, 75), (256, 256), (131, 258)])
@pytest.mark.parametrize("wanted", [16, 32])
def test_matching_is_the_specification_to_the_bit(shape: tuple[int, int], wanted: int) -> None:
    z = picture(*shape, seed=3)[0].cuda()
    assert torch.equal(triton_form.match(z, NORMAL, wanted), reference.match(z, NORMAL, wanted))


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize(
    "profile", [PROFILES["fast"], Profile(step=2, radius=4), Profile(step=8, radius=22), Profile(step=1)]
)
def test_matching_with_other_profiles(profile: Profile) -> None:
    z = picture(100, 75, seed=3)[0].cuda()
    assert torch.equal(triton_form.match(z, profile, 16), reference.match(z, profile, 16))


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
@needs_triton
@pytest.mark.parametrize("shape", [(9, 13), (40, 40), (100, 75), (256, 256)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_batch_with_its_own_sigmas(shape: tuple[int, int], deterministic: bool) -> None:
    z = picture(*shape, seed=1, count=3).cuda()
    sigma = torch.tensor([0.1, 0.0, 0.03], device="cuda")
    for stages, bound in ((1, 1e-5), (2, 1e-4)):
        got = triton_form.bm3d(z, sigma, NORMAL, stages=stages, deterministic=deterministic)
        want = reference.bm3d(z, sigma, NORMAL, stages=stages)
        assert_close(got, want, bound)
        assert torch.equal(got[1], z[1])


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("profile", [PROFILES["fast"], Profile(step=5, radius=3, group1=1, group2=2), Profile(step=1)])
def test_other_profiles(profile: Profile) -> None:
    z = picture(50, 61, seed=2).cuda()
    sigma = torch.tensor([0.1], device="cuda")
    got, want = triton_form.bm3d(z, sigma, profile), reference.bm3d(z, sigma, profile)
    assert_close(got, want, 1e-4)


@pytest.mark.gpu
@needs_triton
def test_deterministic_gives_the_same_bits() -> None:
    z = picture(120, 90, count=2).cuda()
    sigma = torch.tensor([0.1, 0.05], device="cuda")
    runs = [triton_form.bm3d(z, sigma, NORMAL, deterministic=True) for _ in range(5)]
    assert all(torch.equal(runs[0], run) for run in runs[1:])


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_cuda_graph_replays_it(deterministic: bool) -> None:
    z = picture(64, 64).cuda()
    sigma = torch.tensor([0.1], device="cuda")
    triton_form.bm3d(z, sigma, NORMAL, deterministic=deterministic)  # compiles the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = triton_form.bm3d(z, sigma, NORMAL, deterministic=deterministic)
    other = picture(64, 64, seed=9).cuda()
    z.copy_(other)
    sigma.fill_(0.07)
    graph.replay()
    eager = triton_form.bm3d(other, sigma, NORMAL, deterministic=deterministic)
    if deterministic:
        assert torch.equal(out, eager)
    assert_close(out, eager, 1e-4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: check(name) for name in INTERPRETED}))
