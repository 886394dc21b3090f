"""Training of TNRD: gradients against finite differences, stage by stage, resumed to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.cli import main
from plugstream.denoisers.tnrd import TNRD
from plugstream.denoisers.tnrd.influence import influence
from plugstream.errors import InputError
from plugstream.runs.images import save_image
from plugstream.training import tnrd
from plugstream.training.fit import fit
from plugstream.training.patches import Patches
from plugstream.training.tnrd import initial_weights, train_tnrd

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


def test_training_lowers_the_loss_phase_by_phase():
    losses: dict[str, list[float]] = {}

    def note(phase: str, step: int, steps: int, loss: float) -> None:
        losses.setdefault(phase, []).append(loss)

    model = train_tnrd(patches(), 25.0, stages=2, size=3, stage_steps=15, joint_steps=30, batch=4, progress=note)
    assert list(losses) == ["stage 1", "stage 2", "joint"]
    assert losses["stage 1"][0] < 1.0  # of the noisy image it is 1
    assert np.mean(losses["joint"][-5:]) < np.mean(losses["stage 1"][:5])
    assert model.stages == 2
    assert model.sigma == 25.0
    clean = patches().pictures[0]
    noisy = clean + 25 / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    assert (TNRD(model)(noisy, 25 / 255) - clean).square().mean() < 0.7 * (noisy - clean).square().mean()


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
    stage = tnrd._Stage(15.0, 3, "cpu")
    for name in ("coefficients", "log_reaction", "weights"):
        setattr(stage, name, getattr(stage, name).detach().double().requires_grad_(True))
    stage.basis = stage.basis.double()
    rng = torch.Generator().manual_seed(0)
    clean = 255 * torch.rand(2, 9, 8, generator=rng, dtype=torch.float64)
    noisy = clean + 15 * torch.randn(2, 9, 8, generator=rng, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return (stage(stage(noisy, noisy), noisy) - clean).square().mean() / 15**2

    loss().backward()
    for name in ("coefficients", "log_reaction", "weights"):
        leaf = getattr(stage, name)
        direction = torch.randn(leaf.shape, generator=rng, dtype=torch.float64)
        h = 1e-5
        with torch.no_grad():
            leaf += h * direction
            above = float(loss())
            leaf -= 2 * h * direction
            below = float(loss())
            leaf += h * direction
        assert float((leaf.grad * direction).sum()) == pytest.approx((above - below) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("what", ["tnrd", "ridge"])
def test_the_command_trains_and_says_how(tmp_path, what, capsys):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k, picture in enumerate(patches().pictures):
        save_image(picture, folder / f"p{k}")
    for other in (*folder.glob("*.npy"), *folder.glob("*.tif")):
        other.unlink()
    out = tmp_path / "w.safetensors"
    words = ["train", what, str(folder), str(out), "--steps", "2", "--batch", "1", "--patch", "16"]
    if what == "tnrd":
        assert main(words) == 2
        assert "give --sigma" in capsys.readouterr().err
        words += ["--sigma", "25", "--stage-steps", "1"]
    assert main(words) == 0
    assert out.is_file()
    assert not out.with_suffix(".checkpoint").exists()
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words[:3], str(tmp_path / "w.pt"), *words[4:]]) == 2
    assert main([*words[:2], str(tmp_path), str(tmp_path / "x.safetensors"), *words[4:]]) == 2
    assert "holds no pictures" in capsys.readouterr().err
