"""Published layouts by their weights, against small networks written here; tests/bridges has deepinv's own."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.denoisers.networks.published import from_weights
from plugstream.denoisers.networks.unet import save_unet
from small_run import main

WIDTHS, BLOCKS = (3, 4, 5, 6), 2


def drunet_state(images: int = 1) -> dict[str, Tensor]:
    """The names of KAIR's UNetRes, with random weights."""
    rng = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> Tensor:
        return (0.3 * torch.randn(*shape, generator=rng)).double()

    state = {"m_head.weight": weight(WIDTHS[0], images + 1, 3, 3), "m_tail.weight": weight(images, WIDTHS[0], 3, 3)}
    for level, (thin, wide) in enumerate(itertools.pairwise(WIDTHS), 1):
        for block in range(BLOCKS):
            for part in (0, 2):
                state[f"m_down{level}.{block}.res.{part}.weight"] = weight(thin, thin, 3, 3)
                state[f"m_up{level}.{block + 1}.res.{part}.weight"] = weight(thin, thin, 3, 3)
        state[f"m_down{level}.{BLOCKS}.weight"] = weight(wide, thin, 2, 2)
        state[f"m_up{level}.0.weight"] = weight(wide, thin, 2, 2)
    for block in range(BLOCKS):
        for part in (0, 2):
            state[f"m_body.{block}.res.{part}.weight"] = weight(WIDTHS[3], WIDTHS[3], 3, 3)
    return state


def drunet(state: dict[str, Tensor], image: Tensor, sigma: float, smooth: bool = False) -> Tensor:
    """What the paper's figure shows, from the state by functions; (C, H, W), sides multiples of 8."""
    activation = F.elu if smooth else F.relu

    def block(x: Tensor, name: str) -> Tensor:
        inner = activation(F.conv2d(x, state[f"{name}.res.0.weight"], padding=1))
        return x + F.conv2d(inner, state[f"{name}.res.2.weight"], padding=1)

    x = torch.cat([image, torch.full_like(image[:1], sigma)])[None]
    levels = [F.conv2d(x, state["m_head.weight"], padding=1)]
    for level in (1, 2, 3):
        x = levels[-1]
        for number in range(BLOCKS):
            x = block(x, f"m_down{level}.{number}")
        levels.append(F.conv2d(x, state[f"m_down{level}.{BLOCKS}.weight"], stride=2))
    x = levels[3]
    for number in range(BLOCKS):
        x = block(x, f"m_body.{number}")
    for level in (3, 2, 1):
        x = F.conv_transpose2d(x + levels[level], state[f"m_up{level}.0.weight"], stride=2)
        for number in range(BLOCKS):
            x = block(x, f"m_up{level}.{number + 1}")
    return F.conv2d(x + levels[0], state["m_tail.weight"], padding=1)[0]


def picture(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_drunet(tmp_path: Path):
    state, z = drunet_state(), picture(16, 24)
    wanted = drunet(state, z[None], 0.1)[0]
    torch.save(state, tmp_path / "a.pt")
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "b.ckpt")
    torch.save({"params": state}, tmp_path / "c.pth")
    save_file(state, str(tmp_path / "d.safetensors"))
    for file in ("a.pt", "b.ckpt", "c.pth", "d.safetensors"):
        denoiser = from_weights(tmp_path / file, "drunet")
        torch.testing.assert_close(denoiser(z, 0.1), wanted)
    scaled = from_weights(tmp_path / "a.pt", "drunet", white=255.0)
    torch.testing.assert_close(scaled(255 * z, 25.5), 255 * wanted)
    assert denoiser(picture(2, 13, 9), 0.1).shape == (2, 13, 9)
    padded = F.pad(picture(1, 1, 13, 9), (0, 7, 0, 3), mode="replicate")[0]
    torch.testing.assert_close(denoiser(picture(13, 9), 0.1), drunet(state, padded, 0.1)[0, :13, :9])


def test_a_network_of_colour_gets_grey_three_times(tmp_path: Path):
    state, z = drunet_state(3), picture(16, 16)
    torch.save(state, tmp_path / "a.pt")
    wanted = drunet(state, z.expand(3, -1, -1), 0.1).mean(0)
    torch.testing.assert_close(from_weights(tmp_path / "a.pt", "drunet")(z, 0.1), wanted)


def test_gs_drunet_is_a_gradient_step(tmp_path: Path):
    state, z = drunet_state(), picture(16, 16).requires_grad_()
    torch.save({f"student_grad.model.{name}": value for name, value in state.items()}, tmp_path / "a.ckpt")
    value = 0.5 * (z - drunet(state, z[None], 0.1, smooth=True)[0]).square().sum()
    (gradient,) = torch.autograd.grad(value, z)
    denoiser = from_weights(tmp_path / "a.ckpt", "gs-drunet")
    torch.testing.assert_close(denoiser(z.detach(), 0.1), (z - gradient).detach())
    torch.testing.assert_close(denoiser.potential(z.detach(), 0.1), value.detach())
    out = denoiser(z, 0.1)
    assert out.requires_grad  # so that `certify` has its Jacobian


def test_dncnn_in_both_layouts(tmp_path: Path):
    rng = torch.Generator().manual_seed(0)
    z = picture(1, 1, 9, 12)

    def layer(out: int, into: int) -> dict[str, Tensor]:
        weight, bias = torch.randn(out, into, 3, 3, generator=rng), torch.randn(out, generator=rng)
        return {"weight": weight.double(), "bias": bias.double()}

    layers = [layer(4, 1), layer(4, 4), layer(1, 4)]
    theirs = dict(zip(("in_conv", "conv_list.0", "out_conv"), layers, strict=True))
    kair = {f"model.{2 * number}": each for number, each in enumerate(layers)}
    chain = z
    for number, each in enumerate(layers):
        chain = F.conv2d(F.relu(chain) if number else chain, **each, padding=1)
    for names, sign in ((theirs, 1.0), (kair, -1.0)):
        state = {f"{name}.{part}": value for name, each in names.items() for part, value in each.items()}
        torch.save(state, tmp_path / "a.pt")
        torch.testing.assert_close(from_weights(tmp_path / "a.pt", "dncnn")(z, 0.1), z + sign * chain)


def test_dncnn_with_batch_normalisation(tmp_path: Path):
    rng = torch.Generator().manual_seed(0)
    weights = [torch.randn(*s, 3, 3, generator=rng).double() for s in ((4, 1), (4, 4), (1, 4))]
    mean, variance, scale, shift = (torch.rand(4, generator=rng).double() for _ in range(4))
    state = {"model.0.weight": weights[0], "model.2.weight": weights[1], "model.5.weight": weights[2]}
    state |= {"model.3.running_mean": mean, "model.3.running_var": variance, "model.3.weight": scale,
              "model.3.bias": shift, "model.3.num_batches_tracked": torch.tensor(7)}  # fmt: skip
    torch.save(state, tmp_path / "a.pt")
    z = picture(1, 1, 9, 12)
    inner = F.conv2d(F.relu(F.conv2d(z, weights[0], padding=1)), weights[1], padding=1)
    m, v, g, b = (value[:, None, None] for value in (mean, variance, scale, shift))
    inner = g * (inner - m) / (v + 1e-4).sqrt() + b
    wanted = z - F.conv2d(F.relu(inner), weights[2], padding=1)
    torch.testing.assert_close(from_weights(tmp_path / "a.pt", "dncnn")(z, 0.1), wanted)


class Trap:
    """What a pickle can do."""

    def __reduce__(self):
        return (print, ("this ran",))


def test_mistakes_are_answered_in_a_line_and_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = drunet_state()
    torch.save(whole, tmp_path / "drunet.pt")
    torch.save({name: value for name, value in whole.items() if name != "m_up2.1.res.0.weight"}, tmp_path / "cut.pt")
    torch.save(drunet_state(2), tmp_path / "two.pt")
    torch.save({"a": 3}, tmp_path / "numbers.pt")
    torch.save(torch.nn.Conv2d(1, 1, 3), tmp_path / "module.pt")
    (tmp_path / "trap.pt").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "text.pt").write_text("weights")
    (tmp_path / "text.safetensors").write_text("weights")
    for file, architecture, message in (
        ("nowhere.pt", "drunet", "there are no weights at"),
        ("drunet.pt", None, "does not say which network it is for; give --architecture"),
        ("drunet.pt", "dncnn", "cannot be used as dncnn: it has no convolution 'model.0.weight'"),
        ("drunet.pt", "swinir", "architectures are drunet"),
        ("cut.pt", "drunet", r"cannot be used as drunet: Missing key\(s\).*m_up2.1.res.0.weight"),
        ("two.pt", "drunet", "its images have 2 channels"),
        ("numbers.pt", "drunet", "holds no state dictionary"),
        ("module.pt", "drunet", "holds more than tensors, and can run any code when it is opened"),
        ("trap.pt", "drunet", "holds more than tensors, and can run any code when it is opened"),
        ("text.pt", "drunet", "text.pt "),
        ("text.safetensors", "drunet", "cannot be read as safetensors"),
        ("drunet.pt", "unet", "cannot be used"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            from_weights(tmp_path / file, architecture)
        assert "\n" not in str(caught.value)
    assert "this ran" not in capsys.readouterr().out


def test_the_commands_take_a_file_of_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import numpy as np

    z = picture(16, 16).numpy()
    np.save(tmp_path / "z.npy", z)
    torch.save(drunet_state(), tmp_path / "drunet.pt")
    words = ["denoise", str(tmp_path / "z.npy"), str(tmp_path / "o.npy"), "--sigma", "0.1", "--denoiser"]
    assert main([*words, str(tmp_path / "drunet.pt")]) == 2
    assert "give --architecture" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "drunet.pt"), "--architecture", "drunet"]) == 0
    wanted = drunet(drunet_state(), torch.from_numpy(z)[None], 0.1)[0]
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), wanted.numpy(), rtol=1e-3, atol=1e-4)
    save_unet(tmp_path / "mine.safetensors", LightUNet((2, 2), (1, 1), "safe"), {}, 0.2)
    (tmp_path / "o.npy").unlink()
    assert main([*words, str(tmp_path / "mine.safetensors")]) == 0
