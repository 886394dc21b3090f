"""A global phase means nothing where the data leave it free: in what is measured, drawn and shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from plugstream import (
    PSNR,
    SNR,
    ImageSpace,
    InputError,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    SoftThreshold,
    align_phase,
    psnr,
    snr,
    solve,
)
from plugstream.images.planes import turn_image, turn_images

SHAPE = (6, 7)


def wave(seed: int = 0, *lead: int, dtype: torch.dtype = torch.complex128) -> torch.Tensor:
    return torch.randn(*lead, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def turned(image: torch.Tensor, angle: float) -> torch.Tensor:
    return image * torch.exp(torch.tensor(1j * angle, dtype=image.dtype))


@given(seed=st.integers(0, 1000), angle=st.floats(-4, 4))
def test_no_turn_is_closer_than_the_aligned_one(seed, angle):
    truth = wave(seed)
    image = turned(truth + 0.5 * wave(seed + 1), angle)
    angles = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
    errors = (torch.polar(torch.ones_like(angles), angles)[:, None, None] * image - truth).flatten(1).norm(dim=1)
    best = (align_phase(image, truth) - truth).norm()
    assert float(best) <= float(errors.min()) * (1 + 1e-12)
    assert float(best) == pytest.approx(float(errors.min()), rel=1e-4)  # half a degree from it
    want = 20 * torch.log10(truth.norm() / best)
    assert torch.allclose(snr(image, truth), want, rtol=1e-10)
    assert torch.allclose(snr(turned(image, 1.0), truth), want, rtol=1e-10)
    assert float(want) >= float(snr(image, truth, phase="measured"))
    top = truth.abs().max()
    assert torch.allclose(psnr(image, truth), 20 * torch.log10(top / (best / math.sqrt(truth.numel()))), rtol=1e-10)


def test_each_image_has_its_own_turn():
    truth, angles = wave(1), torch.tensor([0.3, -2.0, 3.0], dtype=torch.float64)
    images = truth * torch.polar(torch.ones(3, dtype=torch.float64), angles)[:, None, None]
    assert torch.allclose(align_phase(images, truth), truth.expand(3, *SHAPE), atol=1e-12)
    assert (snr(images, truth) > 250).all()
    volume = wave(2, 4)  # one turn for all of a volume
    assert torch.allclose(align_phase(turned(volume, 1.7), volume, ndim=3), volume, atol=1e-12)


def test_real_images_are_compared_as_they_are():
    truth, image = wave(1).real.contiguous(), wave(2).real.contiguous()
    assert align_phase(image, truth) is image
    want = 20 * torch.log10(torch.linalg.vector_norm(truth) / torch.linalg.vector_norm(image - truth))
    assert torch.equal(snr(image, truth), want)
    assert torch.equal(snr(-image, truth), snr(-image, truth, phase="measured"))  # a sign is no phase
    assert torch.equal(psnr(image, truth), psnr(image, truth, phase="measured"))


def test_where_nothing_is_alike_nothing_is_turned():
    image = torch.tensor([[1.0, 1j]], dtype=torch.complex128)
    truth = torch.tensor([[1.0, -1j]], dtype=torch.complex128)  # <truth, image> = 0
    assert torch.equal(align_phase(image, truth), image)
    assert torch.equal(align_phase(torch.zeros_like(image), truth), torch.zeros_like(image))
    broken = image * math.nan
    assert align_phase(broken, truth).isnan().all()


def problem() -> tuple[ProximalGradient, torch.Tensor]:
    truth = wave(3, dtype=torch.complex64)
    model = MatrixModel([np.eye(42, dtype=np.complex64)], SHAPE, dtype=torch.complex64)
    fidelity = LeastSquares(model, turned(truth, 2.0).reshape(1, 42))
    return ProximalGradient(fidelity, SoftThreshold(), sigma=0.01), truth


def test_monitors_say_what_they_leave_out():
    algorithm, truth = problem()
    result = solve(algorithm, iterations=5, monitors=[SNR(truth), PSNR(truth)])
    series = result.history["snr"]
    assert series.quantity.title == "SNR up to a global phase"
    assert series.quantity.text(21.3) == "SNR up to a global phase 21.30 dB"
    assert result.history["psnr"].quantity.title == "PSNR up to a global phase"
    assert series.value[-1] > 40
    assert series.value[-1] == pytest.approx(float(snr(result.image, truth)))
    result = solve(algorithm, iterations=5, monitors=[SNR(truth, phase="measured"), PSNR(truth.real)])
    assert result.history["snr"].quantity.title == "SNR"
    assert result.history["snr"].value[-1] < 0  # it is turned by two radians
    assert result.history["psnr"].quantity.title == "PSNR"
    assert SNR.measures[0].title == "SNR"
    for wrong in (lambda: SNR(truth, phase="lost"), lambda: snr(truth, truth, phase="lost")):
        with pytest.raises(InputError, match="phase must be free or measured, not 'lost'"):
            wrong()
    with pytest.raises(InputError, match="free or measured"):
        ImageSpace(SHAPE, phase="lost")


def test_what_is_shown_has_a_real_mean_or_is_turned_to_the_truth():
    space = ImageSpace(SHAPE, is_complex=True)
    truth, image = wave(4).numpy(), wave(5).numpy()
    shown, angle = turn_image(image, space)
    assert shown.mean() == pytest.approx(abs(image.mean()))
    assert np.allclose(shown, image * np.exp(1j * angle))
    (_, known), (_, result) = turn_images([("truth", truth), ("result", truth * np.exp(2j))], space, truth)
    assert known.mean() == pytest.approx(abs(truth.mean()))
    assert np.allclose(result, known)  # so that their difference is that of the images, and not of a phase
    measured = ImageSpace(SHAPE, is_complex=True, phase="measured")
    assert turn_image(image, measured) == (image, 0.0)
    real = image.real
    assert turn_image(real, ImageSpace(SHAPE)) == (real, 0.0)
