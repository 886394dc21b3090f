"""Anscombe's transform against draws of counts, its inverse against sums over Poisson's, and the wrapper."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch

from plugstream import BM3D, Anscombe, Identity, InputError, anscombe, inverse_anscombe
from plugstream.denoisers.counts import mean_of_transform


def by_scipy(mean: float) -> float:
    counts = np.arange(2000)
    return float(scipy.stats.poisson.pmf(counts, mean) @ (2 * np.sqrt(counts + 0.375)))


def test_the_noise_is_white_after_it():
    rng = np.random.default_rng(0)
    for mean in (3.0, 10.0, 300.0):
        assert np.std(anscombe(rng.poisson(mean, 200_000))) == pytest.approx(1, abs=0.04)
        z = 2.5 * rng.poisson(mean, 200_000) + 3.0 * rng.standard_normal(200_000)
        assert np.std(anscombe(z, gain=2.5, read_noise=3.0)) == pytest.approx(1, abs=0.04)


def test_the_inverse_is_that_of_the_mean():
    means = np.concatenate([[1e-6, 0.01, 0.1], np.linspace(0.3, 49, 60), [51.0, 60.0, 200.0, 1000.0]])
    exact = np.array([by_scipy(mean) for mean in means])
    assert np.allclose(mean_of_transform(means)[0], exact, atol=1e-12)
    back = inverse_anscombe(exact)
    assert np.abs(back - means)[means < 50].max() < 1e-9
    assert np.abs(back - means)[means > 50].max() < 7e-6
    assert np.abs(exact**2 / 4 - 0.375 - means).max() > 0.2  # the algebraic inverse is biased
    assert inverse_anscombe(np.array([0.0, 1.0])).tolist() == pytest.approx([0, 0], abs=1e-12)
    assert np.abs(inverse_anscombe(exact.astype(np.float32)) - means)[means < 50].max() < 2e-5
    assert torch.equal(inverse_anscombe(torch.from_numpy(exact)), torch.from_numpy(back))


def test_read_noise_and_gain_are_part_of_the_inverse():
    """The mean of the transform over draws leads back to the mean of the counts."""
    rng = np.random.default_rng(1)
    for mean, gain, noise in ((0.7, 1.0, 0.5), (5.0, 0.01, 0.02), (80.0, 3.0, 10.0)):
        z = gain * rng.poisson(mean, 2_000_000) + noise * rng.standard_normal(2_000_000)
        got = inverse_anscombe(np.mean(anscombe(z, gain, noise)), gain, noise)
        assert float(got) == pytest.approx(gain * mean, rel=5e-3)
    means = np.linspace(0, 400, 300)
    for spread in (0.3, 2.0, 10.0):
        error = np.abs(inverse_anscombe(mean_of_transform(means, spread)[0], 1.0, spread) - means)
        assert error[means < 50].max() < 1e-9
        assert (error / np.maximum(means, 1)).max() < 2e-5


def test_it_wraps_any_denoiser():
    y, x = np.mgrid[:48, :40]
    truth = 2.0 + 6 * (np.hypot(y - 20, x - 18) < 12) + 2 * (x > 30)
    counts = torch.from_numpy(np.random.default_rng(2).poisson(truth, (2, *truth.shape))).float()
    got = Anscombe(BM3D())(counts, 1.0)
    white = BM3D()(counts, float(counts.mean()) ** 0.5)
    means = torch.from_numpy(truth).float()
    assert ((got - means) ** 2).mean() < 0.8 * ((white - means) ** 2).mean()
    assert abs(float(got.mean() - counts.mean())) < 0.03 * float(counts.mean())  # unbiased, other than f^-1
    assert torch.allclose(Anscombe(BM3D(), gain=0.25)(counts / 4, 1.0), got / 4, atol=1e-5)
    assert torch.equal(Anscombe(BM3D())(counts, 0.0), counts)
    both = Anscombe(BM3D())(counts, torch.tensor([0.0, 1.0]))
    assert torch.equal(both[0], counts[0])
    assert torch.equal(both[1], got[1])
    assert "Anscombe" in Anscombe(Identity()).describe()
    assert Anscombe(BM3D()).averaged is None


def test_arrays_need_no_torch():
    code = "import sys, numpy as np\nfrom plugstream import anscombe, inverse_anscombe, bm3d\n"
    code += "inverse_anscombe(bm3d(anscombe(np.ones((9, 9))), 1.0)); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("gain", "noise"), [(0, 0), (-1, 0), (1, -1), (float("nan"), 0), (1, 1e3)])
def test_impossible_detectors_are_refused(gain, noise):
    for call in (lambda: anscombe(np.ones(3), gain, noise), lambda: Anscombe(BM3D(), gain, noise)):
        with pytest.raises(InputError, match=r"gain > 0|read noise"):
            call()
