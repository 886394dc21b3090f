"""The native form of TNRD does what the torch form says, on every instruction set, for any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from native_build import LEVELS, across_levels, needs_native
from plugstream import _native
from plugstream.denoisers.tnrd import native
from tnrd_models import picture, random_model

pytestmark = [needs_native, pytest.mark.usefixtures("one_thread")]

MODEL = random_model()


@pytest.fixture(scope="module")
def prepared() -> dict[str, Tensor]:
    return native.prepare(MODEL)


def reference(images: Tensor, gain: Tensor) -> Tensor:
    scale = gain.double()[:, None, None]
    return MODEL(images.double() * scale) / scale


# Widths around multiples of 4, 8 and 16 lanes and of blocks of three vectors; heights around one and two bands.
SHAPES = [(7, 7), (7, 8), (9, 16), (8, 17), (12, 31), (11, 48), (9, 49), (50, 10), (49, 7), (7, 66), (8, 100)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_its_torch_form(shape: tuple[int, int], prepared: dict[str, Tensor]) -> None:
    images, gain = picture(2, *shape), torch.tensor([1.0, 0.3])
    expected = reference(images, gain)
    torch.set_num_threads(2)
    for level in LEVELS:
        got = native.tnrd(images, gain, prepared, level=level)
        # A random model drives far harder than a trained one: 1e-5 of the range here, 1e-6 there.
        assert float((got - expected).abs().max()) <= 1e-5 * 255, level


@pytest.mark.parametrize("gain", [3.0, 10.0, 1e3, 1e6])
def test_responses_beyond_all_bumps(gain: float, prepared: dict[str, Tensor]) -> None:
    images, gains = picture(1, 20, 41), torch.tensor([gain])
    expected = reference(images, gains)
    for level in LEVELS:
        got = native.tnrd(images, gains, prepared, level=level)
        assert float((got - expected).abs().max()) <= 2e-5 * 255, level


def test_every_response_has_its_own_cell(prepared: dict[str, Tensor]) -> None:
    # A ramp of amplitudes: responses of all sizes, on both sides of where tables go from registers to memory.
    image = torch.zeros(1, 8, 900)
    image[0, 4, 4::8] = torch.linspace(-900, 900, 112)
    expected = reference(image, torch.ones(1))
    for level in LEVELS:
        assert float((native.tnrd(image, torch.ones(1), prepared, level=level) - expected).abs().max()) <= 5e-3, level


@pytest.mark.parametrize("shape", [(1, 130, 40), (3, 64, 33), (5, 20, 20), (1, 9, 300), (1, 300, 9), (7, 50, 9)])
def test_the_same_bits_for_any_number_of_threads(shape: tuple[int, int, int], prepared: dict[str, Tensor]) -> None:
    images, gain = picture(*shape), torch.linspace(0.5, 2, shape[0])
    one = native.tnrd(images, gain, prepared)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for _ in range(2):  # who does what differs from run to run
            assert torch.equal(native.tnrd(images, gain, prepared), one)


def test_an_image_has_the_same_bits_alone_and_in_a_batch(prepared: dict[str, Tensor]) -> None:
    images, gain = picture(5, 60, 30), torch.tensor([1.0, 0.0, 2.0, 0.1, 1.0])
    torch.set_num_threads(2)
    together = native.tnrd(images, gain, prepared)
    for k in range(5):
        assert torch.equal(native.tnrd(images[k : k + 1], gain[k : k + 1], prepared)[0], together[k])
    assert torch.equal(together[1], images[1])


@across_levels
def test_instruction_sets_agree(prepared: dict[str, Tensor]) -> None:
    image = picture(1, 40, 61)
    expected = native.tnrd(image, torch.ones(1), prepared, level=LEVELS[-1])
    for level in LEVELS:
        assert float((native.tnrd(image, torch.ones(1), prepared, level=level) - expected).abs().max()) <= 1e-5 * 255


def test_an_empty_batch(prepared: dict[str, Tensor]) -> None:
    assert native.tnrd(torch.empty(0, 10, 12), torch.empty(0), prepared).shape == (0, 10, 12)


def test_calls_of_other_shapes_leave_no_trace(prepared: dict[str, Tensor]) -> None:
    calls = [picture(1, 60, 90), picture(2, 7, 7), picture(3, 20, 150), picture(1, 64, 31)]
    ones = [torch.ones(len(z)) for z in calls]
    before = [native.tnrd(z, g, prepared) for z, g in zip(calls, ones, strict=True)]
    for z, g, expected in zip(reversed(calls), reversed(ones), reversed(before), strict=True):
        native.tnrd(torch.full_like(z, torch.nan), g, prepared)
        assert torch.equal(native.tnrd(z, g, prepared), expected)


def test_a_nan_spreads_as_in_the_torch_form(prepared: dict[str, Tensor]) -> None:
    image = picture(1, 40, 50)
    image[0, 5, 30] = torch.nan
    expected = reference(image, torch.ones(1)).isnan()
    assert 0 < int(expected.sum()) < image.numel()
    for level in LEVELS:
        assert torch.equal(native.tnrd(image, torch.ones(1), prepared, level=level).isnan(), expected), level


def test_values_that_are_not_finite_do_no_harm(prepared: dict[str, Tensor]) -> None:
    """Neither to the image that has them nor to the next one."""
    fine = picture(1, 20, 30)
    for level in LEVELS:
        expected = native.tnrd(fine, torch.ones(1), prepared, level=level)
        for value in (torch.inf, -torch.inf, 1e38, -3e38):
            image = fine.clone()
            image[0, 3:5, 7] = value
            before = image.clone()
            native.tnrd(image, torch.ones(1), prepared, level=level)
            assert torch.equal(image, before)
            assert torch.equal(native.tnrd(fine, torch.ones(1), prepared, level=level), expected)


def test_calls_from_several_threads_at_once(prepared: dict[str, Tensor]) -> None:
    torch.set_num_threads(2)
    images = [picture(1, 30 + 9 * k, 90 - 7 * k, seed=k) for k in range(6)]
    expected = [native.tnrd(z, torch.ones(1), prepared) for z in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            found = list(pool.map(lambda z: native.tnrd(z, torch.ones(1), prepared), images))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_arrays_that_do_not_fit_are_refused(prepared: dict[str, Tensor]) -> None:
    module = _native.load()
    assert module is not None
    images, gain = picture(1, 10, 12).numpy(), np.ones(1, np.float32)
    options = {name: value.numpy() for name, value in prepared.items()} | {"threads": 1}
    out = np.zeros_like(images)
    module.tnrd(images, gain, out, **options)
    for arrays in ((images[:, :6].copy(), gain, out[:, :6].copy()), (images, np.ones(2, np.float32), out),
                   (images, gain, out[:, :9].copy()), (images.astype(np.float64), gain, out),
                   (images[:, :, ::-1], gain, out)):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            module.tnrd(*arrays, **options)
    for name in ("forward", "backward", "reaction", "table"):
        with pytest.raises(ValueError, match="must have"):
            module.tnrd(images, gain, out, **(options | {name: options[name][:1]}))
    for wrong in ({"reaction": np.ones(0, np.float32)}, {"level": "abacus"}):
        with pytest.raises(ValueError, match=r"must|no such"):
            module.tnrd(images, gain, out, **(options | wrong))


def test_serves_plain_cpu_tensors() -> None:
    image = picture(1, 8, 8)
    assert native.serves(image, MODEL)
    assert not native.serves(image.double(), MODEL)
    assert not native.serves(image.to("meta"), MODEL)
    assert not native.serves(image.clone().requires_grad_(), MODEL)
    assert not native.serves(image, random_model(5))
    trained = random_model().requires_grad_()
    assert not native.serves(image, trained)
    with torch.no_grad():
        assert native.serves(image, trained)
