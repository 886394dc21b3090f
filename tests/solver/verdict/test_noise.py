"""The noise of data, estimated from the data alone, beside the noise that was added."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ellipses import BODIES, chords, counted
from plugstream.solver.verdict.noise import (
    band_noise,
    count_law,
    difference_noise,
    photon_noise,
    ring_level,
    steady_noise,
    structure,
)


def _smooth(views: int, samples: int) -> torch.Tensor:
    """Humps of several widths, far wider than a sample."""
    t = torch.linspace(0, 1, samples, dtype=torch.float64)
    turns = torch.arange(views)[:, None] / views
    return torch.exp(-((t - 0.3 - 0.4 * turns) ** 2) / 0.02) + 0.5 * torch.exp(-((t - 0.6) ** 2) / 0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("level", [1e-3, 1e-2, 0.1])
def test_differences_find_white_noise_of_smooth_data(dtype: torch.dtype, level: float) -> None:
    clean = _smooth(24, 200).to(dtype)
    noise = level * torch.randn(clean.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    data = clean + noise
    true = float(noise.abs().square().sum() / data.abs().square().sum())
    for estimate in (difference_noise(data), band_noise(data)):
        assert estimate is not None
        assert estimate.at_most
        assert estimate.fraction == pytest.approx(true, rel=0.2)


def test_differences_pass_over_edges_and_masked_samples() -> None:
    clean = _smooth(16, 256)
    clean[:, 100:140] += 2.0
    noise = 0.01 * torch.randn(clean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = clean + noise
    true = float(noise[:, 60:].square().sum() / data[:, 60:].square().sum())
    data[:, :60] = 0  # as a mask leaves them
    estimate = difference_noise(data)
    assert estimate is not None
    assert estimate.fraction == pytest.approx(true, rel=0.25)


@pytest.mark.parametrize("shape", [(4, 5), (3,), (0, 20)])
def test_too_little_data_tells_nothing(shape: tuple[int, ...]) -> None:
    assert difference_noise(torch.ones(shape)) is None
    assert difference_noise(torch.zeros(4, 40)) is None


@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_what_all_spokes_measure_tells_the_noise(offset: float) -> None:
    """Also where k = 0 lies half-way between two samples, however much the spokes differ elsewhere."""
    rng = np.random.default_rng(0)
    k = np.arange(-32, 32) + offset
    angles = np.pi * np.arange(40)[:, None] / 40
    y, x = rng.uniform(-0.3, 0.3, (2, 12))[..., None, None]
    spokes = np.exp(2j * np.pi * 0.02 * k * (np.cos(angles) * x + np.sin(angles) * y) * 16).sum(0)
    clean = torch.from_numpy(np.stack([spokes, 0.5j * spokes], 1))
    noise = 0.01 * torch.randn(clean.shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    data = clean + noise
    data[..., :3] = 0  # as a mask leaves them
    estimate = steady_noise(data)
    assert estimate is not None
    true = float(noise[..., 3:].abs().square().sum() / data.abs().square().sum())
    assert estimate.fraction == pytest.approx(true, rel=0.5 if offset else 0.3)
    assert steady_noise(data.real) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_what_is_left_is_noise_or_smooth(dtype: torch.dtype) -> None:
    """Also noise whose strength differs from sample to sample; of a smooth part half as strong a quarter is told."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 128, dtype=dtype, generator=draw)
    assert structure(noise) == pytest.approx(1, abs=0.1)
    uneven = noise * torch.exp(torch.linspace(-1, 1.5, 128)) * torch.linspace(0.3, 2, 60)[:, None]
    uneven[:, 40:50] = 0  # as a mask leaves them
    assert structure(uneven) == pytest.approx(1, abs=0.1)
    smooth = torch.randn(60, 16, dtype=dtype, generator=draw).repeat_interleave(8, 1)
    assert structure(noise + 0.5 * smooth) > 1.15
    assert structure(noise + smooth) > 1.5
    assert structure(noise[:, :6]) == 1  # too few to say


@pytest.mark.parametrize("photons", [0.05, 0.5, 3.0, 11.0, 13.0, 200.0])
def test_photon_noise_is_that_of_the_roots(photons: float) -> None:
    counts = np.random.default_rng(0).poisson(photons, (40, 64, 64))
    roots = np.sqrt(counts) - np.sqrt(photons)
    true = float((roots**2).sum() / counts.sum())
    estimate = photon_noise(torch.from_numpy(counts))
    assert estimate is not None
    # The mean of nine pixels stands for the expected count, which is noisy itself where hardly any photon comes.
    assert estimate.fraction == pytest.approx(true, rel=0.25 if photons < 1 else 0.05)


def test_data_that_was_not_counted_has_no_photons() -> None:
    assert photon_noise(torch.full((2, 8, 8), 0.5)) is None


@pytest.mark.parametrize("photons", [300.0, 500.0, 1e5])
def test_a_wrong_dark_field_shows_in_how_noise_grows(photons: float) -> None:
    """Counts have an offset of 50, of which 0 or 80 are subtracted. Noise that is alike everywhere is not theirs."""
    clean = 2.6 * _smooth(60, 64) / 1.5
    draws = np.random.default_rng(3)
    counts = draws.poisson(photons * np.exp(-clean.numpy())) + 50.0

    def law(dark: float) -> float | None:
        flat = photons + 50 - dark
        made, kept = (np.maximum(n - dark, 0.5) for n in (counts, photons * np.exp(-clean.numpy()) + 50))
        line, level = (torch.from_numpy(-np.log(part / flat)) for part in (made, kept))
        return count_law(line - level, level)

    assert law(50.0) is None
    if photons < 1e4:
        assert law(0.0) is not None
        assert law(80.0) is not None
    assert count_law(0.1 * torch.from_numpy(draws.standard_normal(clean.shape)), clean) is None


def test_noise_that_grows_has_a_median_at_each_level() -> None:
    clean = 3 * _smooth(60, 64) / 1.5
    noise = 0.02 * (clean / 2).exp() * torch.randn(clean.shape, generator=torch.Generator().manual_seed(2))
    plain, by_level = difference_noise(clean + noise), difference_noise(clean + noise, clean)
    assert plain is not None
    assert by_level is not None
    true = float(noise.square().sum() / (clean + noise).square().sum())
    assert plain.fraction < 0.8 * true
    assert by_level.fraction == pytest.approx(true, rel=0.15)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("photons", [3e3, 3e4, 1e6, 1e15])
def test_rings_are_told_from_edges(body: str, photons: float) -> None:
    """Bodies of ellipses leave noise in the means of elements; gains of 1 and 2 % do not, and are measured."""
    integrals = chords(np.arange(120) * np.pi / 120, (np.arange(128) - 63.5) / 2, BODIES[body])
    level, seen = ring_level(torch.from_numpy(counted(integrals, photons)))
    assert level < 1e-3 if photons > 1e9 else seen < 1.6
    for gain in (0.01, 0.02):
        gains = 1 + gain * np.random.default_rng(3).standard_normal(128)
        level, seen = ring_level(torch.from_numpy(counted(integrals - np.log(gains), photons)))
        assert seen > (2.2 if gain**2 * photons > 1 else 1.4)
        assert photons < 1e4 or gain / 1.5 < level < 1.5 * gain
