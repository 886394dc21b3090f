"""Training of TNRD: gradients against finite differences, stage by stage, resumed to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.base.errors import InputError
from plugstream.denoisers.tnrd import TNRD
from plugstream.denoisers.tnrd.influence import influence
from plugstream.studies.training import graphed
from plugstream.studies.training.fit import fit
from plugstream.studies.training.patches import Patches
from training import tnrd
from training.tnrd import initial_weights, train_tnrd

SMALL = {"stages": 2, "size": 3, "stage_steps": 4, "joint_steps": 6, "batch": 2, "rate": 0.01}


def patches() -> Patches:
    y, x = torch.meshgrid(torch.arange(30.0), torch.arange(28.0), indexing="ij")
    return Patches([(torch.sin(x / (2 + k)) * torch.cos(y / 5) > 0).float() * 0.8 + 0.1 for k in range(3)], 20)


def test_training_begins_with_a_function_that_shrinks_noise_and_spares_edges():
    weights = initial_weights(15.0, 48)
    assert weights.shape == (48, 63)
    x = torch.tensor([-200.0, -15.0, 0.0, 15.0, 200.0]).expand(1, 48, 1, 5)
    phi = influence(x, weights)[0, 0, 0]
    wanted = 0.5 / 49 * 15 / (1 + 1 / 9)
    assert phi[2].abs() < 1e-3
    assert torch.allclose(phi[3], torch.tensor(wanted), rtol=0.1)
    assert torch.allclose(phi, -phi.flip(0), atol=1e-4)
    assert phi[4] < 0.5 * phi[3] * 200 / 15


@pytest.mark.slow
def test_training_lowers_the_loss_phase_by_phase():
    losses: dict[str, list[float]] = {}

    def note(phase: str, step: int, steps: int, loss: float) -> None:
        losses.setdefault(phase, []).append(loss)

    model = train_tnrd(patches(), 25.0, stages=2, size=3, stage_steps=10, joint_steps=15, batch=4, progress=note)
    assert list(losses) == ["stage 1", "stage 2", "joint"]
    assert losses["stage 1"][0] < 1.0  # of the noisy image it is 1
    assert np.mean(losses["joint"][-5:]) < np.mean(losses["stage 1"][:5])
    assert model.stages == 2
    assert model.sigma == 25.0
    clean = patches().pictures[0]
    noisy = clean + 25 / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    assert (TNRD(model)(noisy, 25 / 255) - clean).square().mean() < 0.7 * (noisy - clean).square().mean()


@pytest.mark.slow
def test_training_resumes_to_the_bit(tmp_path, monkeypatch):
    whole = train_tnrd(patches(), 15.0, **SMALL)
    monkeypatch.setattr(tnrd, "fit", lambda *a, **k: fit(*a, **k, every=1))

    class Stopped(Exception):
        pass

    def stop(phase: str, step: int, steps: int, loss: float) -> None:
        if (phase, step) in stops:
            stops.remove((phase, step))
            raise Stopped

    stops = {("stage 1", 2), ("stage 2", 3), ("joint", 5)}
    for _ in range(3):
        with pytest.raises(Stopped):
            train_tnrd(patches(), 15.0, checkpoint=tmp_path / "c", progress=stop, **SMALL)
    again = train_tnrd(patches(), 15.0, checkpoint=tmp_path / "c", progress=stop, **SMALL)
    for name in ("coefficients", "log_reaction", "weights"):
        assert torch.equal(getattr(whole, name), getattr(again, name)), name
    with pytest.raises(InputError, match=r"rate = 0\.01, not 0\.02"):
        train_tnrd(patches(), 15.0, checkpoint=tmp_path / "c", **{**SMALL, "rate": 0.02})


def test_gradients_are_those_of_finite_differences():
    one = tnrd._Stages.initial(3, "cpu")
    stages = tnrd._Stages(*(leaf.double() for leaf in tnrd._Stages.joined([one, one]).parameters().values()))
    rng = torch.Generator().manual_seed(0)
    clean = 255 * torch.rand(2, 9, 8, generator=rng, dtype=torch.float64)
    noisy = clean + 15 * torch.randn(2, 9, 8, generator=rng, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return (stages(noisy, noisy) - clean).square().mean() / 15**2

    loss().backward()
    for name in ("coefficients", "log_reaction", "weights"):
        leaf = getattr(stages, name)
        direction = torch.randn(leaf.shape, generator=rng, dtype=torch.float64)
        h = 1e-5
        with torch.no_grad():
            leaf += h * direction
            above = float(loss())
            leaf -= 2 * h * direction
            below = float(loss())
            leaf += h * direction
        assert float((leaf.grad * direction).sum()) == pytest.approx((above - below) / (2 * h), rel=1e-6)


def test_training_from_a_model_begins_as_that_model_scaled():
    start = train_tnrd(patches(), 15.0, **SMALL)
    assert start.sigma * start.scale == pytest.approx(15)  # the noise inside
    first: list[float] = []
    for sigma in (15.0, 3.0):
        still = train_tnrd(patches(), sigma, start=start, **{**SMALL, "joint_steps": 1, "rate": 1e-12},
                           progress=lambda phase, step, steps, loss: first.append(loss))  # fmt: skip
        assert (still.sigma, still.sigma * still.scale) == (sigma, pytest.approx(15))
        image = patches().pictures[1]
        torch.testing.assert_close(TNRD(still)(image, sigma / 255), TNRD(start)(image, sigma / 255))
        # The loss is that of the denoiser on the patches of the phase, in parts of the noise's.
        at = SMALL["stages"] * 1_000_000
        clean, noise = patches().draw(at, 2), patches().noise(at, 2)[0]
        error = TNRD(start)(clean + sigma / 255 * noise, sigma / 255) - clean
        assert first[-1] == pytest.approx(float(error.square().mean()) / (sigma / 255) ** 2, rel=1e-4)


def test_a_checkpoint_from_another_start_is_refused(tmp_path):
    short = {**SMALL, "stage_steps": 1, "joint_steps": 1}
    one, two = (train_tnrd(patches(), sigma, **short) for sigma in (15.0, 25.0))
    train_tnrd(patches(), 20.0, start=one, checkpoint=tmp_path / "c", **short)
    with pytest.raises(InputError, match="start"):
        train_tnrd(patches(), 20.0, start=two, checkpoint=tmp_path / "c", **short)


def test_a_loss_that_is_nan_ends_the_training_with_its_step(tmp_path):
    broken = patches()
    broken._all[:] = torch.nan
    with pytest.raises(InputError, match=r"the loss became nan at step 0; use a smaller rate than 0\.01"):
        train_tnrd(broken, 15.0, checkpoint=tmp_path / "c", **SMALL)
    with pytest.raises(InputError, match="patches of at least 6"):
        train_tnrd(Patches(patches().pictures, 5), 15.0, **{**SMALL, "size": 7})


@pytest.mark.gpu
def test_on_a_gpu_training_is_the_same_with_and_without_graphs_and_resumed(tmp_path, monkeypatch):
    there = Patches(patches().pictures, 20, device="cuda")
    options = {**SMALL, "size": 7, "stage_steps": 60, "joint_steps": 120, "device": "cuda"}
    losses: list[float] = []
    whole = train_tnrd(there, 15.0, **options, progress=lambda phase, step, steps, loss: losses.append(loss))
    assert len(losses) == 2 * 60 + 120
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    monkeypatch.setattr(tnrd, "fit", lambda *a, **k: fit(*a, **k, every=40))

    class Stopped(Exception):
        pass

    def stop(phase: str, step: int, steps: int, loss: float) -> None:
        if (phase, step) == ("joint", 90):
            raise Stopped

    with pytest.raises(Stopped):
        train_tnrd(there, 15.0, **options, checkpoint=tmp_path / "c", progress=stop)
    resumed = train_tnrd(there, 15.0, **options, checkpoint=tmp_path / "c")
    monkeypatch.setattr(graphed, "_EAGER_STEPS", 10**9)
    eager = train_tnrd(there, 15.0, **options)
    for name in ("coefficients", "log_reaction", "weights"):
        assert torch.equal(getattr(resumed, name), getattr(eager, name)), name
        assert torch.equal(getattr(whole, name), getattr(eager, name)), name
