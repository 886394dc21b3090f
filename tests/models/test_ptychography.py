"""The model of ptychography against direct sums and autograd, and what follows from its overlap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from plugstream import Amplitude, InputError, LossFidelity, Poisson
from plugstream.models.ptychography import PtychographyModel, mode_powers, probe_modes

N, SHAPE = 6, (13, 11)
POSITIONS = np.array([[0.0, 0.0], [3.0, 2.0], [2.4, 4.7], [7.0, 5.0], [5.49, 0.25]])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)


def model(modes: int = 2, whole: bool = False, **options) -> PtychographyModel:
    places = np.rint(POSITIONS) if whole else POSITIONS
    return PtychographyModel(places, random(modes, N, N, seed=1), SHAPE, dtype=torch.float64, **options)


def shifted_by_sums(mode: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """A mode moved down and right by parts of a pixel, by its trigonometric interpolation at every pixel."""
    k = np.fft.fftfreq(N) * N
    spectrum = np.fft.fft2(mode) / N**2
    y, x = np.arange(N) - shift[0], np.arange(N) - shift[1]
    return np.exp(2j * np.pi * np.outer(y, k) / N) @ spectrum @ np.exp(2j * np.pi * np.outer(k, x) / N)


@pytest.mark.parametrize("modes", [1, 3])
def test_predictions_are_the_direct_sum(modes):
    m, x = model(modes), random(*SHAPE)
    found = m.forward(x).numpy()
    j = np.arange(N)
    kernel = np.exp(-2j * np.pi * np.outer(j, j) / N) / math.sqrt(N)
    for view, place in enumerate(POSITIONS):
        corner = np.rint(place).astype(int)
        patch = x.numpy()[corner[0] : corner[0] + N, corner[1] : corner[1] + N]
        for mode in range(modes):
            beam = shifted_by_sums(m.probe[mode].numpy(), place - corner)
            assert np.abs(found[view, mode] - kernel @ (beam * patch) @ kernel.T).max() < 1e-12


@pytest.mark.parametrize("masked", [False, True])
def test_the_adjoint_is_one_with_leading_axes_too(masked):
    good = np.random.default_rng(0).random((N, N)) > 0.3 if masked else None
    m = model(2, mask=good)
    x, z, views = random(2, *SHAPE), random(2, 3, 2, N, N, seed=3), [4, 0, 2]
    left = (m.forward(x, views).conj() * z).sum()
    right = (x.conj() * m.adjoint(z, views)).sum()
    assert abs(left - right) < 1e-10 * abs(left)
    for one in range(2):
        assert torch.allclose(m.forward(x, views)[one], m.forward(x[one], views), atol=1e-13)


def test_masks_by_view_set_predictions_to_zero():
    mask = np.random.default_rng(1).random((len(POSITIONS), N, N)) > 0.5
    whole, part = model(2).forward(random(*SHAPE)), model(2, mask=mask).forward(random(*SHAPE))
    assert torch.equal(part, torch.where(torch.from_numpy(mask)[:, None], whole, torch.zeros(())))


@pytest.mark.parametrize("whole", [False, True])
def test_the_overlap_is_the_diagonal_of_the_normal_operator_and_its_largest_value_is_l(whole):
    m, weights, views = model(3, whole), torch.tensor([0.5, 0.2, 0.3]), [0, 1, 1]
    x = random(*SHAPE)
    direct = sum(w * m.adjoint(m.forward(x, [i]), [i]) for w, i in zip(weights.tolist(), views, strict=True))
    assert torch.allclose(m.overlap(views, weights) * x, direct, atol=1e-12)
    assert torch.allclose(m.normal(views, weights)(x), direct, atol=1e-12)
    assert torch.allclose(m.overlap(), sum(m.overlap([i]) for i in range(m.n_views)))
    largest = [float(m.overlap([i]).max()) for i in range(m.n_views)]
    assert np.allclose(m.squared_norms(torch.arange(m.n_views), 1e-3).numpy(), largest)


@pytest.mark.parametrize("loss", [Amplitude(), Poisson(floor=0.05, background=0.1)], ids=["amplitude", "poisson"])
@pytest.mark.parametrize("modes", [1, 3])
def test_gradients_are_those_of_autograd(loss, modes):
    m = model(modes)
    counts = torch.poisson(m.forward(random(*SHAPE)).abs().square().sum(-3), torch.Generator().manual_seed(0))
    fidelity = LossFidelity(m, counts, loss)
    x = random(*SHAPE, seed=5).requires_grad_()
    (direct,) = torch.autograd.grad(fidelity.value(x, [0, 2, 4]), x)
    found = fidelity.gradient(x.detach(), [0, 2, 4])
    assert float((found - direct).abs().max()) < 1e-10 * float(direct.abs().max())


@pytest.mark.parametrize("loss", [Amplitude(), Poisson(floor=0.05)], ids=["amplitude", "poisson"])
def test_several_modes_that_are_one_in_parts_are_as_that_one(loss):
    one, x = model(1), random(*SHAPE)
    parts = one.with_parameters({"probe": torch.cat([0.6 * one.probe, 0.8j * one.probe])})
    counts = torch.poisson(one.forward(x).abs().square().sum(-3), torch.Generator().manual_seed(0))
    first, second = LossFidelity(one, counts, loss), LossFidelity(parts, counts, loss)
    assert torch.allclose(first.value(1 + x), second.value(1 + x))
    assert torch.allclose(first.gradient(1 + x), second.gradient(1 + x))
    assert first.fit_curvature == second.fit_curvature


def test_the_curvature_at_a_fit_is_that_of_the_loss_there():
    p, h = torch.tensor([1.7 + 0.4j], dtype=torch.complex128), 1e-4
    along = p / p.abs()
    for loss in (Amplitude(), Poisson(floor=1e-9)):
        y = p.abs().square()
        second = (loss.derivative(p + h * along, y) - loss.derivative(p - h * along, y)) / (2 * h)
        assert float((second / along).real) == pytest.approx(loss.fit_curvature(waves=True), rel=1e-5)


@pytest.mark.parametrize("whole", [False, True])
def test_a_step_on_the_probe_is_down_its_gradient_and_towards_the_truth(whole):
    m, x = model(2, whole), 1 + 0.3 * random(*SHAPE)
    counts = m.forward(x).abs().square().sum(-3)
    wrong = m.probe * (1 + 0.1 * random(2, N, N, seed=7))  # of the same power, which is not refined
    off = m.with_parameters({"probe": wrong * torch.linalg.norm(m.probe) / torch.linalg.norm(wrong)})
    fidelity, views = LossFidelity(off, counts, Amplitude()), torch.tensor([3, 1, 0])
    probe = off.probe.clone().requires_grad_()
    weights = torch.ones(3, dtype=torch.float64)
    lossy = LossFidelity(off.with_parameters({"probe": probe}), counts, Amplitude())
    (slope,) = torch.autograd.grad(lossy.value(x, views, weights), probe)
    new = fidelity.refine(x, views, ("probe",))["probe"]
    light = sum(m._patches(x, torch.tensor([i]))[0].abs().square() for i in views.tolist())
    moved = off.probe - slope / (light + 0.1 * light.max())
    assert torch.allclose(new, moved * torch.linalg.norm(off.probe) / torch.linalg.norm(moved), atol=1e-12)
    for _ in range(200):
        fidelity = fidelity.with_parameters(fidelity.refine(x, None, ("probe",)))
    assert float(fidelity.value(x)) < 1e-3 * float(LossFidelity(off, counts, Amplitude()).value(x))


def test_modes_are_orthogonal_and_keep_the_power():
    probe = random(N, N).numpy()
    modes = probe_modes(probe, 5)
    gram = np.einsum("mij,nij->mn", modes.conj(), modes)
    assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-5 * np.abs(gram).max()
    assert np.abs(modes).astype(float).__pow__(2).sum() == pytest.approx((np.abs(probe) ** 2).sum(), rel=1e-5)
    powers = np.diag(gram).real
    assert (np.diff(powers) < 0).all()
    assert powers[0] > 0.8 * powers.sum()
    assert np.allclose(
        probe_modes(modes, 2)[0] / np.linalg.norm(probe_modes(modes, 2)), modes[0] / np.linalg.norm(modes[:2])
    )


def test_modes_made_orthogonal_have_the_same_intensities():
    mixed = random(3, N, N)
    modes, powers = mode_powers(mixed)
    assert torch.allclose(modes.abs().square().sum(0), mixed.abs().square().sum(0))
    gram = modes.reshape(3, -1) @ modes.reshape(3, -1).conj().T
    assert torch.allclose(gram, torch.diag(torch.diag(gram)), atol=1e-10)
    assert float(powers.sum()) == pytest.approx(1)
    assert powers[0] >= powers[1] >= powers[2]


def test_what_is_no_scan_is_refused():
    with pytest.raises(InputError, match="leaves the image"):
        PtychographyModel(POSITIONS + 4, random(N, N), SHAPE)
    with pytest.raises(InputError, match="row and column"):
        PtychographyModel(POSITIONS[:, :1], random(N, N), SHAPE)


@pytest.mark.gpu
def test_cuda_gives_what_the_cpu_gives():
    here, there = model(2), model(2, device="cuda")
    x = 1 + 0.3 * random(*SHAPE)
    counts = here.forward(x).abs().square().sum(-3)
    assert torch.allclose(there.forward(x.cuda()).cpu(), here.forward(x), atol=1e-12)
    assert torch.allclose(there.overlap([0, 2]).cpu(), here.overlap([0, 2]), atol=1e-12)
    one, other = (LossFidelity(m, counts, Poisson(floor=0.05)) for m in (here, there))
    assert torch.allclose(other.gradient(x.cuda(), [1, 3]).cpu(), one.gradient(x, [1, 3]), atol=1e-10)
    refined = [f.refine(x.to(f.device), None, ("probe",))["probe"].cpu() for f in (one, other)]
    assert torch.allclose(*refined, atol=1e-10)
