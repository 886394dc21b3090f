"""Diffraction patterns of a small object, from which its phase is found up to a turn of all of it.

Whatever is done to an image by steps, denoisers, monitors and figures commutes with such a turn, so that two runs whose
starts differ by one say the same of the object in everything that a person sees.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import (
    SNR,
    TV,
    Amplitude,
    Denoiser,
    Epochs,
    ImageSpace,
    LossFidelity,
    MatrixModel,
    ProximalGradient,
    RealImaginary,
    Result,
    SoftThreshold,
    snr,
    solve,
)

SIDE, BEAM, STEP = 12, 6, 2
TURN = complex(np.exp(2.2j))


def object_and_model() -> tuple[torch.Tensor, MatrixModel]:
    """A bar in the phase and another in the magnitude; far fields of a beam that goes over them, overlapping."""
    truth = np.ones((SIDE, SIDE), dtype=np.complex128)
    truth[4:8] *= np.exp(0.9j)
    truth[:, 3:6] *= 0.5
    y, x = np.indices((BEAM, BEAM)) - (BEAM - 1) / 2
    probe = np.exp(-(y**2 + x**2) / 20 + 0.15j * (y**2 - x * y))
    fourier = np.kron(*[np.fft.fft(np.eye(BEAM), norm="ortho")] * 2)
    matrices = []
    for top in range(0, SIDE - BEAM + 1, STEP):
        for left in range(0, SIDE - BEAM + 1, STEP):
            pixels = np.arange(SIDE**2).reshape(SIDE, SIDE)[top : top + BEAM, left : left + BEAM].ravel()
            matrix = np.zeros((BEAM**2, SIDE**2), dtype=np.complex128)
            matrix[:, pixels] = fourier * probe.ravel()
            matrices.append(matrix)
    return torch.from_numpy(truth), MatrixModel(matrices, (SIDE, SIDE), dtype=torch.complex128)


def retrieve(denoiser: Denoiser, sigma: float, start: complex, iterations: int) -> tuple[Result, torch.Tensor]:
    truth, model = object_and_model()
    fidelity = LossFidelity(model, model.forward(truth).abs().square(), Amplitude())
    algorithm = ProximalGradient(fidelity, denoiser, sampler=Epochs(4, seed=1), sigma=sigma, momentum="bounded")
    # A plain start would have fields that are zero but for rounding, whose phases any rounding turns.
    texture = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    state = algorithm.init(start * (1 + 0.1 * texture))
    monitors = [SNR(truth, every=iterations // 10)]
    return solve(algorithm, state=state, iterations=iterations, monitors=monitors), truth


def test_the_object_is_found_up_to_a_global_phase():
    result, truth = retrieve(TV(tol=1e-4), 0.003, TURN, 200)
    history = result.history["snr"]
    assert history.quantity.title == "SNR up to a global phase"
    assert history.value[-1] > 20
    assert float(snr(result.image, truth, phase="measured")) < 5  # the turn of the start is still there


@pytest.mark.parametrize(
    "denoiser", [TV(tol=1e-5), RealImaginary(SoftThreshold(), phase="mean")], ids=["tv", "turned parts"]
)
def test_a_turn_of_the_start_turns_every_image_and_no_snr(denoiser):
    (one, _), (other, _) = (retrieve(denoiser, 0.05, start, 40) for start in (1.0 + 0j, TURN))
    assert torch.allclose(other.image, TURN * one.image, atol=1e-3)
    assert np.allclose(one.history["snr"].value, other.history["snr"].value, atol=1e-3)


def test_two_runs_that_differ_by_a_turn_look_the_same():
    threshold = RealImaginary(SoftThreshold(), phase="mean")
    (one, truth), (other, _) = (retrieve(threshold, 0.05, start, 10) for start in (1.0 + 0j, TURN))
    space = ImageSpace((SIDE, SIDE), is_complex=True, upwards=False)
    figures = [result.plot(space=space, truth=truth) for result in (one, other)]
    mine, yours = ([axes.images[0].get_array() for axes in figure.axes if axes.images] for figure in figures)
    assert len(mine) == len(yours) == 4
    for a, b in zip(mine, yours, strict=True):
        assert np.allclose(np.exp(1j * a.filled(0)), np.exp(1j * b.filled(0)), atol=1e-4)
    bars = [child.get_ylabel() for axes in figures[0].axes for child in axes.child_axes]
    assert "phase (rad), mean taken out" in bars
