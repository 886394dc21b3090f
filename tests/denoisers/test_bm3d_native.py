"""The native form of BM3D does what the torch form says: the same blocks to the bit, the same values closely."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from effort import effort, thorough
from native_build import LEVELS, across_levels, needs_native
from plugstream import _native
from plugstream.denoisers.bm3d import native, reference
from plugstream.denoisers.bm3d.profile import PROFILES, Profile
from plugstream.denoisers.bm3d.transforms import native_matrices

pytestmark = [needs_native, pytest.mark.usefixtures("one_thread")]

PROFILES_TO_TRY = [
    Profile(),
    PROFILES["fast"],
    Profile(step=8, radius=22, group1=8, group2=32),
    Profile(step=1, radius=3, group1=4, group2=2, kaiser=0.5),
    Profile(step=5, radius=7, group1=1, group2=16, threshold=1.0),
]
SHAPES = [(8, 8), (8, 9), (9, 40), (40, 9), (27, 33), (31, 49)]


def picture(height: int, width: int, seed: int = 0, noise: float = 0.1) -> Tensor:
    """Edges, a texture and noise, so that there are blocks alike and blocks unlike."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    clean = 0.5 + 0.2 * torch.sin(x / 3 + y / 11) + 0.2 * torch.sign(torch.sin(x / 9) * torch.sin(y / 7))
    return clean + noise * torch.randn(height, width, generator=torch.Generator().manual_seed(seed))


def apart(a: Tensor, b: Tensor, image: Tensor) -> float:
    """The largest difference, in parts of the image's range."""
    return float((a - b).abs().max() / (image.max() - image.min()).clamp_min(1e-30))


BOTH = [((11, 13), PROFILES_TO_TRY[4])]
# The torch form is slow with wide searches in the larger images, of which each has one.
PAIRS = [(shape, profile) for shape in SHAPES for profile in PROFILES_TO_TRY]
SLOW = {(4, 0), (4, 2), (5, 0), (5, 1), (5, 2)}
QUICK = [pair for n, pair in enumerate(PAIRS) if n % 2 == 0 and divmod(n, len(PROFILES_TO_TRY)) not in SLOW]


@thorough
@pytest.mark.parametrize(("shape", "profile"), effort(QUICK, PAIRS))
def test_finds_the_same_blocks(shape: tuple[int, int], profile: Profile) -> None:
    for seed, steps in enumerate((None, 2)):
        guide = picture(*shape, seed=seed)
        if steps is not None:  # few values, so that most distances have their equal
            guide = (guide * steps).round() / steps
        expected = reference.match(guide, profile, 32)
        for wanted in (32, 16, 2):
            for level in LEVELS:
                found = native.match(guide, profile, wanted, level=level)
                assert torch.equal(found, expected[:, :wanted])


@pytest.mark.parametrize("shape", [(90, 80), (8, 310)])
def test_finds_the_same_blocks_across_tiles(shape: tuple[int, int]) -> None:
    guide, profile = picture(*shape), Profile(radius=9)
    assert torch.equal(native.match(guide, profile, 16), reference.match(guide, profile, 16))


@thorough
@pytest.mark.parametrize(
    ("shape", "profile"), effort([(SHAPES[n == 3], one) for n, one in enumerate(PROFILES_TO_TRY)] + BOTH, PAIRS)
)
def test_equals_its_torch_form(shape: tuple[int, int], profile: Profile) -> None:
    images = torch.stack([picture(*shape, seed=1), picture(*shape, seed=2)])
    sigma = torch.tensor([0.1, 0.02])
    basic = reference.bm3d(images, sigma, profile, stages=1)
    for level in LEVELS:
        first = native.bm3d(images, sigma, profile, stages=1, level=level)
        both = native.bm3d(images, sigma, profile, stages=2, level=level)
        assert apart(first, basic, images) <= 1e-5
        # Stage 2 by itself: a distance on the edge between two keys may fall either way when the basic estimates differ
        # by a rounding, and another order of blocks is another filter.
        for k in range(2):
            expected = reference.bm3d(images[k : k + 1], sigma[k : k + 1], profile, basic=first[k : k + 1])[0]
            assert apart(both[k], expected, images) <= 1e-5


def test_equals_its_torch_form_in_both_stages_and_across_tiles() -> None:
    image, sigma = picture(75, 32)[None], torch.tensor([0.1])
    for profile in (Profile(radius=11), Profile(step=1, radius=3, group1=4, group2=4)):
        expected = reference.bm3d(image, sigma, profile)
        assert apart(native.bm3d(image, sigma, profile), expected, image) <= 1e-4


@pytest.mark.parametrize("scale", [2.0**-50, 2.0**-20, 2.0**8, 2.0**50])
def test_any_range_of_values(scale: float) -> None:
    # Powers of two, which change no digit and so no key's order.
    image, sigma = picture(40, 30)[None], torch.tensor([0.1])
    expected = native.bm3d(image, sigma, Profile())
    scaled = native.bm3d(image * scale, sigma * scale, Profile())
    assert apart(scaled / scale, expected, image) <= 1e-5


@pytest.mark.parametrize("shape", [(1, 130, 120), (3, 64, 70), (5, 20, 20), (1, 9, 700), (1, 700, 9)])
def test_the_same_bits_for_any_number_of_threads(shape: tuple[int, int, int]) -> None:
    images = torch.stack([picture(*shape[1:], seed=k) for k in range(shape[0])])
    sigma = torch.linspace(0.05, 0.15, shape[0])
    one = native.bm3d(images, sigma, Profile())
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for _ in range(2):  # who does what differs from run to run
            assert torch.equal(native.bm3d(images, sigma, Profile()), one)


def test_an_image_has_the_same_bits_alone_and_in_a_batch() -> None:
    images, sigma = torch.stack([picture(70, 75, seed=k) for k in range(4)]), torch.tensor([0.1, 0.0, 0.02, 0.3])
    together = native.bm3d(images, sigma, Profile())
    for k in range(4):
        assert torch.equal(native.bm3d(images[k : k + 1], sigma[k : k + 1], Profile())[0], together[k])
    assert torch.equal(together[1], images[1])


@across_levels
def test_instruction_sets_agree() -> None:
    image, sigma = picture(61, 83)[None], torch.tensor([0.1])
    expected = native.bm3d(image, sigma, Profile(), stages=1, level=LEVELS[-1])
    for level in LEVELS:
        assert apart(native.bm3d(image, sigma, Profile(), stages=1, level=level), expected, image) <= 1e-6


def test_sigma_zero_returns_the_image() -> None:
    images = torch.stack([picture(20, 21), picture(20, 21, seed=1)])
    for stages in (1, 2):
        assert torch.equal(native.bm3d(images, torch.zeros(2), Profile(), stages=stages), images)


def test_constant_images_stay_as_they_are() -> None:
    for value in (0.0, 3.0):
        image = torch.full((1, 40, 41), value)
        torch.testing.assert_close(native.bm3d(image, torch.tensor([0.1]), Profile()), image, atol=1e-6, rtol=1e-6)


def test_an_empty_batch() -> None:
    assert native.bm3d(torch.empty(0, 10, 12), torch.empty(0), Profile()).shape == (0, 10, 12)


def test_calls_of_other_shapes_leave_no_trace() -> None:
    kinds = [
        (100, 90, 0.1, Profile(), 2),
        (8, 8, 0.2, Profile(), 2),
        (40, 150, 0.1, PROFILES["fast"], 1),
        (64, 31, 0.05, Profile(step=8), 2),
    ]
    calls = [(picture(h, w)[None], torch.tensor([s]), p, stages) for h, w, s, p, stages in kinds]
    before = [native.bm3d(z.clone(), s, p, stages=stages) for z, s, p, stages in calls]
    for (z, s, p, stages), expected in zip(reversed(calls), reversed(before), strict=True):
        kept = z.clone()
        assert torch.equal(native.bm3d(z, s, p, stages=stages), expected)
        assert torch.equal(z, kept)


def test_values_that_are_not_finite_do_no_harm() -> None:
    image = picture(60, 50)[None]
    expected = native.bm3d(image, torch.tensor([0.1]), Profile())
    for value in (torch.nan, torch.inf, -torch.inf, 1e38):
        broken = image.clone()
        broken[0, 20:23, 30] = value
        native.bm3d(broken, torch.tensor([0.1]), Profile())
        native.bm3d(torch.full_like(image, value), torch.tensor([0.1]), Profile())
    assert torch.equal(native.bm3d(image, torch.tensor([0.1]), Profile()), expected)


def test_calls_from_several_threads_at_once() -> None:
    images = [picture(30 + 9 * k, 90 - 7 * k, seed=k)[None] for k in range(6)]
    sigma = torch.tensor([0.1])
    expected = [native.bm3d(z, sigma, Profile()) for z in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            found = list(pool.map(lambda z: native.bm3d(z, sigma, Profile()), images))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_arrays_that_do_not_fit_are_refused() -> None:
    module = _native.load()
    assert module is not None
    images, sigma = picture(10, 12).numpy()[None], np.ones(1, np.float32)
    options = {"step": 3, "radius": 19, "group1": 16, "group2": 32, "threshold": 2.9, "wiener": 0.7, "stages": 2,
               "threads": 1} | native_matrices(2.0)  # fmt: skip
    out = np.zeros_like(images)
    module.bm3d(images, sigma, out, **options)
    for arrays in ((images[:, :7].copy(), sigma, out[:, :7].copy()), (images, np.ones(2, np.float32), out),
                   (images, sigma, out[:, :9].copy()), (images.astype(np.float64), sigma, out),
                   (images[:, :, ::-1], sigma, out)):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            module.bm3d(*arrays, **options)
    for wrong in ({"step": 9}, {"radius": 23}, {"group1": 3}, {"group2": 64}, {"stages": 4}, {"level": "abacus"},
                  {"channels": 2}, {"offsets": np.ones((2, 1521), np.float32)}, {"kaiser": np.ones(7, np.float32)},
                  {"offsets": np.ones((2, 9), np.float32), "shared": np.ones((2, 1, 3, 5, 64), np.float32)},
                  ):  # fmt: skip
        with pytest.raises(ValueError, match=r"must|no such|given together"):
            module.bm3d(images, sigma, out, **(options | wrong))


def test_serves_plain_cpu_tensors() -> None:
    image = picture(8, 8)[None]
    assert native.serves(image)
    assert not native.serves(image.double())
    assert not native.serves(image.to("meta"))
    assert not native.serves(image.clone().requires_grad_())
