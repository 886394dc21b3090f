"""Training of TNRD: gradients against finite differences, stage by stage, resumed to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.base.errors import InputError
from plugstream.cli import main
from plugstream.denoisers.tnrd import TNRD
from plugstream.denoisers.tnrd.files import load_card
from plugstream.denoisers.tnrd.influence import influence
from plugstream.images.pictures import save_image
from plugstream.studies.training import fit as fit_module, graphed, tnrd
from plugstream.studies.training.fit import Training, fit
from plugstream.studies.training.patches import Patches
from plugstream.studies.training.tnrd import initial_weights, train_tnrd

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


def test_losses_read_late_are_all_told_and_still_guard_the_checkpoint(tmp_path, monkeypatch):
    """As on a GPU, where they are read 50 at a time."""
    monkeypatch.setattr(fit_module, "_on_gpu", lambda loss: True)
    leaf = torch.zeros(2, requires_grad=True)
    told: list[tuple[int, float]] = []

    def gradients(step: int) -> torch.Tensor:
        leaf.grad = torch.full((2,), torch.nan if step == 130 else 1.0)
        return torch.tensor(torch.nan if step == 130 else float(step), dtype=torch.float64)

    options = {"steps": 300, "rate": 0.1, "checkpoint": tmp_path / "c.safetensors", "every": 60}
    with pytest.raises(InputError, match=r"nan at step 130; .* the last checkpoint is .*c\.safetensors"):
        fit(Training({"x": leaf}, {}), gradients, **options, progress=lambda *said: told.append(said))
    assert told == [(step + 1, step) for step in range(120)]
    fresh = torch.ones(2, requires_grad=True)
    again = Training({"x": fresh}, {})
    again.load(tmp_path / "c.safetensors")
    assert again.step == 120
    assert fresh.isfinite().all()


def test_progress_can_end_a_training_with_a_checkpoint(tmp_path):
    leaf = torch.zeros(2, requires_grad=True)

    def gradients(step: int) -> float:
        leaf.grad = torch.ones(2)
        return 1.0

    training = Training({"x": leaf}, {})
    fit(training, gradients, steps=9, rate=0.1, checkpoint=tmp_path / "c", progress=lambda step, loss: step == 4)
    assert training.step == 4
    assert (tmp_path / "c").exists()


def test_patches_are_windows_of_the_pictures_laid_in_all_eight_ways():
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.rand(20 + k, 25 - k, generator=generator) for k in range(3)]
    ways = {}
    for number, picture in enumerate(pictures):
        windows = picture.unfold(0, 9, 1).unfold(1, 9, 1).reshape(-1, 9, 9)
        for turns in range(4):
            for mirrored in (False, True):
                laid = torch.rot90(windows, turns, (1, 2))
                laid = laid.flip(1) if mirrored else laid
                ways |= {w.numpy().tobytes(): (number, turns, mirrored) for w in laid.contiguous()}
    drawn = [ways[patch.numpy().tobytes()] for patch in Patches(pictures, 9).draw(5, 300)]
    assert len(set(drawn)) == 24


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
    more = [*words[:3], str(tmp_path / "again.safetensors"), *words[4:], "--start"]
    if what == "tnrd":
        assert main([*more, str(out)]) == 0
        (model,) = TNRD.load(tmp_path / "again.safetensors").models
        assert (model.sigma, model.stages) == (25, 5)
        assert load_card(tmp_path / "again.safetensors")["data"] == "3 pictures of pictures"
    assert main([*more, str(tmp_path / "nowhere.safetensors")]) == 2
    assert "--start must be the file of a TNRD model" in capsys.readouterr().err
    assert main([*words[:3], str(tmp_path / "w.pt"), *words[4:]]) == 2
    assert main([*words[:2], str(tmp_path), str(tmp_path / "x.safetensors"), *words[4:]]) == 2
    assert "holds no pictures" in capsys.readouterr().err


@pytest.mark.parametrize("written", [False, True])
def test_ctrl_c_is_told_as_what_it_came_to(tmp_path, monkeypatch, capsys, written):
    """It may come when the weights are in their place already: then the same command would refuse to go on."""
    out, folder = tmp_path / "w.safetensors", tmp_path / "pictures"
    folder.mkdir()
    save_image(patches().pictures[0], folder / "p")

    def train(parsed, patches, checkpoint):
        checkpoint.mkdir()
        if written:
            out.write_bytes(b"whole")
        raise KeyboardInterrupt

    monkeypatch.setattr("plugstream.cli.train._train", train)
    assert main(["train", "ridge", str(folder), str(out), "--batch", "1", "--patch", "16"]) == (0 if written else 130)
    said = capsys.readouterr().err
    assert (f"wrote {out}" in said, "the same command goes on" in said) == (written, not written)
    assert out.with_suffix(".checkpoint").exists() != written
