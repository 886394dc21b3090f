"""Training of the light U-Net: its gradients and norms by other means, resumed to the bit, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from plugstream.base.errors import InputError
from plugstream.cli import main
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.denoisers.networks.unet import UNet, load_unet, save_unet
from plugstream.studies.training.patches import Patches
from plugstream.studies.training.quality import mean_psnr
from plugstream.studies.training.unet import HIGHEST, AveragedTraining, _Loss, jacobian_norm, train_unet, typical_error

SMALL = {"channels": (4, 6), "blocks": (1, 1), "batch": 4, "rate": 3e-3}


def patches(size: int = 16, seed: int = 0) -> Patches:
    y, x = torch.meshgrid(torch.arange(30.0), torch.arange(28.0), indexing="ij")
    pictures = [(torch.sin(x / (2 + k)) * torch.cos(y / 5) > 0).float() * 0.8 + 0.1 for k in range(3)]
    return Patches(pictures, size, seed=seed)


def write_pictures(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(patches().pictures):
        Image.fromarray((255 * picture).byte().numpy()).save(folder / f"{number}.png")


def weights(network: LightUNet) -> torch.Tensor:
    return torch.cat([value.flatten() for value in network.state_dict().values()])


@pytest.mark.parametrize("form", ["free", "safe"])
def test_training_lowers_the_error(form):
    losses: list[float] = []
    options = {"channels": (8, 8), "blocks": (1, 1), "batch": 4, "rate": 0.01, "steps": 100, "average": 0.9}
    network, done = train_unet(patches(), form=form, **options, progress=lambda step, loss: losses.append(loss))
    assert done == len(losses) == 100
    assert np.mean(losses[60:80]) < 0.9 * np.mean(losses[:20])
    clean = patches().pictures
    denoised, noisy = (mean_psnr(call, clean, levels=(50,))[50] for call in (UNet(network), lambda z, s: z))
    assert denoised > noisy + 0.5
    assert not any(value.requires_grad for value in network.parameters())


def test_training_resumes_to_the_bit(tmp_path):
    options = {**SMALL, "steps": 12, "penalty": 0.1, "form": "safe"}
    whole, _ = train_unet(patches(), **options)
    file, seen = tmp_path / "c.safetensors", []

    def stop(step: int, loss: float) -> bool:
        seen.append(step)
        return step in (5, 10)

    for expected in (5, 10, 12):
        part, done = train_unet(patches(), checkpoint=file, every=4, progress=stop, **options)
        assert done == expected
    assert seen == list(range(1, 13))
    assert torch.equal(weights(whole), weights(part))
    for change in ({"rate": 1e-3}, {"form": "free"}, {"start": whole}):
        with pytest.raises(InputError, match="was trained with"):
            train_unet(patches(), checkpoint=file, **{**options, **change})
    assert not torch.equal(weights(whole), weights(train_unet(patches(seed=1), **options)[0]))


def test_a_step_is_that_of_adamw_and_the_mean_follows():
    rng = torch.Generator().manual_seed(0)
    values = {name: torch.randn(5, generator=rng, dtype=torch.float64) for name in "ab"}
    theirs = {name: value.clone().requires_grad_() for name, value in values.items()}
    ours = {name: value.clone().requires_grad_() for name, value in values.items()}
    peer = torch.optim.AdamW(theirs.values(), lr=0.02, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    training = AveragedTraining(ours, {}, decay=0.1, average=0.5, warm_up=1)
    mean = {name: value.clone() for name, value in values.items()}
    for step in range(1, 6):
        for name in values:
            theirs[name].grad = torch.randn(5, generator=rng, dtype=torch.float64)
            ours[name].grad = theirs[name].grad.clone()
        peer.step()
        training.update(0.02)
        weight = min(0.5, (1 + step) / (10 + step))
        for name in values:
            mean[name] = weight * mean[name] + (1 - weight) * theirs[name].detach()
            torch.testing.assert_close(ours[name], theirs[name])
            torch.testing.assert_close(training.averages[name], mean[name])


@pytest.mark.parametrize("form", ["free", "safe"])
def test_the_norm_in_the_penalty_is_that_of_the_jacobian(form):
    torch.manual_seed(0)
    network = LightUNet((3, 4), (1, 1), form).double()
    network.tail.data *= 100  # so that the Jacobian is far from the identity
    image, start = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.2], dtype=torch.float64)
    a, b = (1.0, -1.0) if form == "safe" else (0.7, 0.3)
    how = {"identity": a, "jacobian": b, "symmetric": form == "safe", "iterations": 150}
    norm = jacobian_norm(lambda z: network(z, sigma), image, start, **how)

    def total_norm() -> torch.Tensor:
        return jacobian_norm(lambda z: network(z, sigma), image, start, **how).sum()

    for k in range(2):
        whole = torch.autograd.functional.jacobian(lambda z, k=k: network(z[None], sigma[k, None])[0], image[k])
        matrix = a * torch.eye(64, dtype=torch.float64) + b * whole.reshape(64, 64)
        assert norm[k].item() == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-3)
    parameter = network.head
    (slope,) = torch.autograd.grad(total_norm(), parameter)
    direction, h, ends = torch.randn_like(parameter), 1e-5, []
    for sign in (1, -1):
        parameter.data += sign * h * direction
        ends.append(total_norm().item())
        parameter.data -= sign * h * direction
    assert (slope * direction).sum().item() == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=2e-2)


@pytest.mark.parametrize(("form", "limit"), [("safe", 0.3), ("safe", 1.1), ("free", 0.4)])
def test_the_penalty_is_what_exceeds_the_limit(form, limit):
    torch.manual_seed(1)
    network = LightUNet((4, 6), (1, 1), form)
    network.tail.data *= 100  # so that its Jacobian is far from the identity
    clean, (noise, place) = patches().draw(0, 5), patches().noise(0, 5)
    loss = _Loss(network, 2.0, limit, False)
    plain, more = (loss(clean, noise, 0.2 * place, True, penalised) for penalised in (False, True))
    spread = (3 * 0.2 * place).clamp(max=HIGHEST)[:, None, None]
    noisy = (clean + spread * noise)[:1, None]  # a quarter of the patches, the first the noisiest
    a, b, most = (1.0, -1.0, limit) if form == "safe" else (limit, 1 - limit, 1.0)
    norm = jacobian_norm(
        lambda z: network(z, 0.2 * place[:1]), noisy, noise[:1, None], identity=a, jacobian=b, symmetric=form == "safe"
    )
    assert norm.item() > most
    assert (more - plain).item() == pytest.approx(4 * 2 * np.log(norm.item() / most), rel=1e-4)  # of four steps


def test_each_level_counts_by_its_psnr():
    level = torch.tensor([5.0, 15.0, 25.0, 50.0]) / 255
    psnr = -20 * torch.log10(typical_error(level))
    torch.testing.assert_close(psnr, torch.tensor([37.8, 31.6, 29.1, 26.1]), atol=0.5, rtol=0)


def test_the_command_trains_stops_goes_on_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_pictures(tmp_path / "pictures")
    out = tmp_path / "w.safetensors"
    words = ["train", "unet", str(tmp_path / "pictures"), str(out), "--steps", "6", "--batch", "2", "--patch", "16"]
    words += ["--channels", "2", "3", "--blocks", "1", "1", "--form", "safe", "--judge", str(tmp_path / "pictures")]
    assert main([*words, "--time-limit", "1e-9"]) == 0
    assert "the time is over; the same command goes on" in capsys.readouterr().err
    assert not out.exists()
    assert main(words) == 0
    network, card = load_unet(out)
    assert (network.form, network.channels, network.blocks) == ("safe", (2, 3), (1, 1))
    assert card["data"] == "3 pictures of pictures"
    assert set(card["psnr"]) == {"5", "15", "25", "50"}
    assert (card["seed"], card["steps"], card["patch"]) == (0, 6, 16)
    assert "PSNR on 3 pictures" in capsys.readouterr().err
    assert not out.with_suffix(".checkpoint").exists()
    again = tmp_path / "again.safetensors"
    assert main([*words[:3], str(again), *words[4:]]) == 0
    assert torch.equal(weights(load_unet(again)[0]), weights(network))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--blocks", "1", "1"], "a number for each level"),
        (["--channels", "2", "3", "--blocks", "1"], "a number for each level"),
        (["--judge", "nowhere"], "there is no folder nowhere"),
        (["--start", "nowhere.safetensors"], "must be the file of a U-Net"),
        (["--penalty", "1", "--limit", "1", "--patch", "16"], "must be > 0, for the free form also < 1"),
        (["--patch", "8"], "patches of at least 16"),
    ],
)
def test_mistakes_are_answered_in_a_line(tmp_path, capsys, words, message):
    write_pictures(tmp_path)
    assert main(["train", "unet", str(tmp_path), str(tmp_path / "w.safetensors"), "--patch", "20", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error.splitlines()[-1]
    assert not (tmp_path / "w.checkpoint").exists()


@pytest.mark.parametrize("what", ["tnrd", "ridge"])
def test_what_is_trained_in_a_checkout_is_told(tmp_path, capsys, what):
    assert main(["train", what, str(tmp_path), "w.safetensors", "--sigma", "25"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"in a checkout of plugstream, by 'python training/run.py {what} PICTURES OUT'" in line


@pytest.mark.parametrize("written", [False, True])
def test_ctrl_c_is_told_as_what_it_came_to(tmp_path, monkeypatch, capsys, written):
    """It may come when the weights are in their place already: then the same command would refuse to go on."""
    out, folder = tmp_path / "w.safetensors", tmp_path / "pictures"
    write_pictures(folder)

    def train(parsed, patches, checkpoint, card):
        checkpoint.mkdir()
        if written:
            out.write_bytes(b"whole")
        raise KeyboardInterrupt

    monkeypatch.setattr("plugstream.cli.train._train", train)
    assert main(["train", "unet", str(folder), str(out), "--batch", "1", "--patch", "16"]) == (0 if written else 130)
    said = capsys.readouterr().err
    assert (f"wrote {out}" in said, "the same command goes on" in said) == (written, not written)
    assert out.with_suffix(".checkpoint").exists() != written


def test_weights_of_sixteen_bits_with_their_card(tmp_path):
    network = LightUNet((2, 3), (1, 1))
    save_unet(tmp_path / "w.safetensors", network, {"seed": 3}, 0.2)
    assert (tmp_path / "w.safetensors").stat().st_size < 2 * weights(network).numel() + 3000
    loaded, card = load_unet(tmp_path / "w.safetensors")
    assert card == json.loads('{"seed": 3}')
    torch.testing.assert_close(weights(loaded), weights(network), rtol=1e-3, atol=1e-6)
    assert load_unet(tmp_path / "w.safetensors", "safe")[0].form == "safe"
    content = bytearray((tmp_path / "w.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="fails its checksum"):
        UNet(tmp_path / "w.safetensors")


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["free", "safe"])
def test_on_a_gpu_a_step_is_a_graph_and_resumes(form, tmp_path):
    options = {**SMALL, "form": form, "steps": 30, "penalty": 0.1}
    pictures = Patches(patches().pictures, 16, device="cuda")
    losses: list[float] = []
    whole, _ = train_unet(pictures, **options, progress=lambda step, loss: losses.append(loss))
    assert len(losses) == 30
    assert all(np.isfinite(losses))
    file = tmp_path / "c.safetensors"
    for _ in range(3):
        part, done = train_unet(pictures, checkpoint=file, every=10, progress=lambda step, loss: step == 10, **options)
    assert done == 30
    torch.testing.assert_close(weights(part), weights(whole), atol=1e-2, rtol=0.1)  # its sums are of no fixed order
    z = patches().pictures[0] + 0.1
    torch.testing.assert_close(UNet(whole)(z.cuda(), 0.1).cpu(), UNet(whole)(z, 0.1), atol=5e-3, rtol=0)


@pytest.mark.parametrize("clip", [None, 3.0])
def test_a_rare_long_gradient_is_shortened(clip):
    """Adam goes on along it for ten steps; shortened it is one gradient among others."""
    weight = torch.zeros(50, requires_grad=True)
    training = AveragedTraining({"w": weight}, {}, decay=0.0, average=0.9, warm_up=5, clip=clip)
    draw = torch.Generator().manual_seed(0)
    spike = torch.randn(50, generator=draw)
    for step in range(60):
        weight.grad = 1e3 * spike if step == 40 else torch.randn(50, generator=draw)
        training.update(1e-3)
        if step == 39:
            before = weight.detach().clone()
    moved = float((weight.detach() - before) @ spike.sign()) / 50
    assert abs(moved) > 4e-3 if clip is None else abs(moved) < 2.5e-3
