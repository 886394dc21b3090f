"""A denoiser that another one precedes: which steps call which, and with what warm start."""

import pytest
import torch

from plugstream import (
    TV,
    FromFunction,
    InputError,
    NonNegative,
    Opening,
    ProximalGradient,
    RealImaginary,
    SoftThreshold,
    adapt,
)


def halve(image, sigma):
    return image / 2 + sigma


def test_steps_call_the_one_and_then_the_other():
    both = Opening(FromFunction(halve), SoftThreshold(), 2, factor=3.0)
    image = torch.linspace(-2, 2, 12).reshape(3, 4)
    for step in range(4):
        want = SoftThreshold()(image, 0.6) if step < 2 else halve(image, 0.2)
        assert torch.equal(both.draw(step)(image, 0.2), want)
    assert torch.equal(both(image, 0.2), halve(image, 0.2))  # by itself it is the one whose fixed points are sought


def test_a_run_is_the_two_one_after_the_other(regression):
    """And so that it is the same to the bit, the second begins without the first one's warm start."""
    parts = {"sigma": 0.1, "step_size": 0.1}
    state = ProximalGradient(regression, Opening(TV(tol=1e-5), TV(low=0.0), 3, 2.0), **parts).init()
    first = ProximalGradient(regression, TV(low=0.0), sigma=0.2, step_size=0.1)
    second = ProximalGradient(regression, TV(tol=1e-5), **parts)
    other = first.init()
    for _ in range(3):
        other = first.step(other)
    other = second.renew(other)
    other = type(other)(**{**vars(other), "warm": None})
    for _ in range(2):
        other = second.step(other)
    algorithm = ProximalGradient(regression, Opening(TV(tol=1e-5), TV(low=0.0), 3, 2.0), **parts)
    for _ in range(5):
        state = algorithm.step(state)
    assert torch.equal(state.image, other.image)
    assert float(algorithm.residual(state)) == pytest.approx(float(second.residual(other)), rel=1e-3)


def test_it_is_what_the_second_is():
    both = Opening(TV(), NonNegative(), 4)
    assert both.averaged == TV().averaged
    assert both.proximal
    assert both.describe() == f"{TV().describe()}, after {NonNegative().describe()} in the first 4 steps"


def test_both_are_for_the_same_images():
    volume = adapt(Opening(TV(), TV(low=0.0), 1), (4, 5, 6))
    assert volume.ndim == volume.first.ndim == 3
    waves = adapt(Opening(FromFunction(halve), SoftThreshold(), 1), (4, 5), complex=True)
    assert waves.takes_complex
    z = torch.complex(torch.randn(4, 5), torch.randn(4, 5))
    assert waves.draw(0).denoise(z, 0.1)[0].is_complex()
    assert waves.draw(1).denoise(z, 0.1)[0].is_complex()
    plain = adapt(Opening(FromFunction(halve), FromFunction(halve), 1), (4, 5), complex=True)
    assert isinstance(plain.first, RealImaginary)
    with pytest.raises(InputError, match="has no form for images of 3 axes"):
        adapt(Opening(TV(), FromFunction(halve), 1), (4, 5, 6))


@pytest.mark.parametrize(("steps", "factor"), [(0, 1.0), (1, 0.0), (1, float("inf"))])
def test_what_makes_no_sense_is_refused(steps, factor):
    with pytest.raises(InputError):
        Opening(TV(), TV(), steps, factor)
