"""The training loop and its patches: losses that are no numbers, checkpoints, and what a patch is."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from plugstream.base.errors import InputError
from plugstream.studies.training import fit as fit_module
from plugstream.studies.training.fit import Training, fit
from plugstream.studies.training.patches import Patches


def test_a_loss_that_is_not_a_number_stops_and_says_so():
    training = Training({"p": torch.zeros(2, requires_grad=True)}, {})
    with pytest.raises(InputError, match="nan at step 0"):
        fit(training, lambda step: float("nan"), steps=3, rate=0.1)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    file = tmp_path / "c.safetensors"
    Training({"p": torch.zeros(2)}, {"seed": 1}).save(file)
    with pytest.raises(InputError, match="seed = 1, not 2"):
        Training({"p": torch.zeros(2)}, {"seed": 2}).load(file)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(InputError, match="cannot be read"):
        Training({"p": torch.zeros(2)}, {"seed": 1}).load(file)


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


def test_patches_are_a_function_of_seed_and_step(tmp_path):
    p = Patches([torch.rand(20, 22), torch.rand(24, 18)], 12)
    assert torch.equal(p.draw(3, 4), p.draw(3, 4))
    assert not torch.equal(p.draw(3, 4), p.draw(4, 4))
    with pytest.raises(InputError, match="no folder"):
        Patches.from_folder(tmp_path / "nowhere", 8)
    with pytest.raises(InputError, match="no pictures"):
        Patches.from_folder(tmp_path, 8)
    Image.new("L", (9, 7)).save(tmp_path / "few.png")
    with pytest.raises(InputError, match=r"few.png is 7x9, and a patch 8x8; use a smaller --patch"):
        Patches.from_folder(tmp_path, 8)
