"""Equivariant denoisers: the mean commutes with turns, is the mean of what is drawn, and keeps what is known of D."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream import (
    NLM,
    TV,
    Channels,
    Clip,
    Damping,
    Equivariant,
    FromFunction,
    InputError,
    ProximalGradient,
    SoftThreshold,
    adapt,
)
from plugstream.cli import main
from plugstream.denoisers.by_name import make
from plugstream.denoisers.equivariant import orientations
from plugstream.runs.parts import prepare
from plugstream.settings import resolve


def drift(z, sigma):
    """A map that prefers one direction: it mixes each pixel with the one before it, a little differently by axis."""
    return z + sigma * (z.roll(1, -1) - z) + 0.5 * sigma * (z.roll(1, -2) - z).abs()


DRIFT = FromFunction(drift)


def turns(image: np.ndarray) -> list[np.ndarray]:
    """The eight images of a square, by NumPy."""
    return [np.rot90(one, n) for one in (image, image[:, ::-1]) for n in range(4)]


def back(images: list[np.ndarray]) -> list[np.ndarray]:
    quarter = [np.rot90(image, -(n % 4)) for n, image in enumerate(images)]
    return [one if n < 4 else one[:, ::-1] for n, one in enumerate(quarter)]


def test_the_mean_over_the_square():
    z = torch.randn(7, 7, dtype=torch.float64)
    each = [drift(torch.from_numpy(one.copy()), 0.3).numpy() for one in turns(z.numpy())]
    np.testing.assert_allclose(Equivariant(DRIFT)(z, 0.3).numpy(), np.mean(back(each), 0), rtol=1e-12)


@pytest.mark.parametrize(("shape", "count"), [((6, 6), 8), ((5, 6), 4), ((4, 4, 4), 8)])
def test_it_commutes_with_every_orientation(shape, count):
    ways = orientations(shape)
    assert len(set(ways)) == count
    z = torch.randn(2, *shape, dtype=torch.float64)
    denoiser = Equivariant(FromFunction(drift, ndim=len(shape)))
    want = denoiser(z, 0.3)
    for way in ways:
        assert torch.equal(way.undo(way.apply(z)), z)
        torch.testing.assert_close(denoiser(way.apply(z), 0.3), way.apply(want))
    assert not torch.allclose(drift(z.flip(-1), 0.3), drift(z, 0.3).flip(-1))


@pytest.mark.parametrize("shape", [(6, 6), (5, 6)])
def test_draws_are_orientations_whose_mean_it_is(shape):
    z = torch.randn(*shape, dtype=torch.float64)
    denoiser = Equivariant(DRIFT, "random", seed=4)
    each = [way.undo(drift(way.apply(z), 0.3)) for way in orientations(shape)]
    seen = []
    for step in range(60):
        drawn = denoiser.draw(step)
        out = drawn(z, 0.3)
        assert torch.equal(out, denoiser.draw(step)(z, 0.3))
        seen.append(next(n for n, one in enumerate(each) if torch.equal(one, out)))
    assert set(seen) == set(range(len(each)))
    torch.testing.assert_close(denoiser(z, 0.3), torch.stack(each).mean(0))
    assert Equivariant(DRIFT).draw(3).how == "mean"


def test_large_images_and_those_with_a_sigma_each_are_the_same(monkeypatch):
    z = torch.randn(2, 6, 6, dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.4], dtype=torch.float64)
    denoiser = Equivariant(TV(tol=1e-5, max_iterations=5000))
    whole, warm = denoiser.denoise(z, sigma)
    assert warm is not None
    assert warm.shape[:2] == (2, 8)
    again, _ = denoiser.denoise(z, sigma, warm)
    monkeypatch.setattr("plugstream.denoisers.equivariant._PIXELS", 0)
    one_by_one, other = denoiser.denoise(z, sigma)
    assert other is not None
    assert other.shape == warm.shape
    for result in (one_by_one, again, denoiser.denoise(z, sigma, other)[0]):
        torch.testing.assert_close(result, whole, rtol=1e-4, atol=1e-4)


def test_averagedness_is_kept():
    for how in ("mean", "random"):
        denoiser = Equivariant(Damping(SoftThreshold(), 0.4), how)
        assert denoiser.averaged == denoiser.draw(0).averaged == pytest.approx(0.2)
        assert Equivariant(TV(), how).proximal
        assert Equivariant(DRIFT, how).averaged is None
    a, b = torch.randn(2, 6, 6, dtype=torch.float64)
    denoiser = Equivariant(TV(tol=1e-5, max_iterations=5000))
    move, rest = denoiser(a, 0.4) - denoiser(b, 0.4), (a - denoiser(a, 0.4)) - (b - denoiser(b, 0.4))
    assert float((move**2).sum() + (rest**2).sum()) <= float(((a - b) ** 2).sum()) * (1 + 1e-3)


def test_it_stays_outside_adapters_and_is_drawn_through_wrappers():
    made = adapt(Clip(Equivariant(DRIFT, "random")), (2, 6, 6), channels=True)
    assert isinstance(made, Clip)
    assert isinstance(made.denoiser, Equivariant)
    assert isinstance(made.denoiser.denoiser, Channels)
    z = torch.rand(2, 6, 6)
    outs = {tuple(made.draw(step)(z, 0.3).flatten().tolist()) for step in range(30)}
    assert len(outs) == 8
    waves = adapt(Equivariant(DRIFT), (6, 6), complex=True)
    z = torch.randn(6, 6, dtype=torch.complex128)
    torch.testing.assert_close(waves(z, 0.3).real, Equivariant(DRIFT)(z.real, 0.3))


def test_steps_draw_and_two_and_two_of_them_are_four(regression):
    denoiser = Equivariant(DRIFT, "random", seed=1)
    algorithm = ProximalGradient(regression, denoiser, sigma=0.2, sampler=2)

    def run(steps, state):
        for _ in range(steps):
            state = algorithm.step(state)
        return state

    whole, halves = run(4, algorithm.init()), run(2, run(2, algorithm.init()))
    assert torch.equal(whole.image, halves.image)
    state = algorithm.init(torch.ones(4, 5))
    views = algorithm.sampler.draw(0, regression.available).views
    gamma, _ = algorithm.parameters(1)
    z = state.image - gamma * regression.gradient(state.image, views)
    assert torch.equal(algorithm.step(state).image, denoiser.draw(0)(z, 0.2))


def test_by_name_and_refused():
    assert make("tv", low=0.0, equivariant="mean").describe().endswith("the mean over turns and mirror images")
    with pytest.raises(InputError, match="equivariant must be mean or random, not 'all'"):
        Equivariant(TV(), "all")
    with pytest.raises(InputError, match="has a guide, which lies one way"):
        Equivariant(Clip(NLM(torch.rand(8, 8))))
    given = [("algorithm", "sigma", 0.1), ("denoiser", "equivariant", "random")]
    assert prepare(resolve(None, given)).denoiser().how == "random"


def test_the_command_denoises_by_the_mean_only(tmp_path, capsys):
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((12, 12)))
    words = ["denoise", str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), "--sigma", "0.1"]
    assert main([*words, "--equivariant", "random"]) == 2
    assert "use --equivariant mean here" in capsys.readouterr().err
