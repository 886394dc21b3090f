"""The fused forms of the light U-Net against its torch form in double precision."""

from __future__ import annotations

import copy
import json
import pickle
import threading

import pytest
import torch
from torch import Tensor

from effort import effort, thorough
from native_build import LEVELS, needs_native
from plugstream.denoisers.networks import fused
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.denoisers.networks.triton_form import Triton
from plugstream.denoisers.networks.unet import UNet
from triton_interpreter import DEVICE, emulated, interpret, needs_triton

FORMS = ("free", "safe")


def network(form: str, channels: tuple[int, ...] = (32, 96, 64), blocks: tuple[int, ...] = (1, 2, 1)) -> LightUNet:
    """A small one with random weights, whose residual is far from 0."""
    torch.manual_seed(0)
    net = LightUNet(channels, blocks, form)
    net.tail.data *= 100
    return net.requires_grad_(False)


def images(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(shape[0], 1, *shape[1:], generator=generator), torch.linspace(0.02, 0.2, shape[0])


def relative_error(removed: Tensor, net: LightUNet, z: Tensor, sigma: Tensor) -> float:
    exact = copy.deepcopy(net).double()
    expected = (exact.noise if net.form == "free" else exact.gradient)(z.double(), sigma.double())
    assert removed.shape == z.shape
    return float((removed.cpu() - expected).norm() / expected.norm())


@needs_native
@pytest.mark.usefixtures("one_thread")
@thorough
@pytest.mark.parametrize(
    ("form", "shape"),
    effort(
        [("free", (1, 8, 8)), ("safe", (2, 9, 30)), ("free", (1, 32, 80)), ("safe", (1, 71, 24))],
        [(form, shape) for form in FORMS for shape in ((1, 8, 8), (2, 9, 30), (1, 64, 80), (1, 71, 24))],
    ),
)
def test_the_native_kernel_is_the_torch_form(form, shape):
    net, (z, sigma) = network(form), images(*shape)
    for level in LEVELS:
        native = fused.Native(net, level)
        removed = native(z, sigma)
        assert relative_error(removed, net, z, sigma) < 1e-5, level
        for threads in (2, 5) if level == LEVELS[0] else (3,):
            torch.set_num_threads(threads)
            assert torch.equal(native(z, sigma), removed), (level, threads)


@needs_native
def test_the_denoiser_uses_it_follows_its_weights_and_is_copied_without_them():
    net = network("safe")
    denoiser, (z, sigma) = UNet(net), images(2, 24, 32)
    before = denoiser(z[:, 0], sigma)
    assert relative_error((z[:, 0] - before)[:, None], net, z, sigma) < 1e-5
    copied = pickle.dumps(denoiser)
    assert len(copied) < 3 * sum(4 * value.numel() for value in net.parameters())
    assert torch.equal(pickle.loads(copied)(z[:, 0], sigma), before)
    net.body[0].first.mul_(2)
    assert relative_error((z[:, 0] - denoiser(z[:, 0], sigma))[:, None], net, z, sigma) < 1e-5
    assert not torch.allclose(denoiser(z[:, 0], sigma), before, rtol=1e-3)
    small = UNet(network("safe", (3, 4, 5)))  # which it cannot take
    assert bool(small(z[:, 0], sigma).isfinite().all())


@needs_native
def test_threads_do_not_mix_their_images():
    native, (z, sigma) = fused.Native(network("safe")), images(4, 24, 32)
    expected, got = native(z, sigma), {}

    def work(n: int) -> None:
        got[n] = torch.stack([native(z[n : n + 1], sigma[n : n + 1]) for _ in range(3)])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(part, expected[n : n + 1]) for n in range(4) for part in got[n])


@needs_native
def test_layers_that_do_not_fit_are_refused():
    native = fused.Native(network("free", (32, 32), (1, 1)))
    held = native._hold(8, 8)
    for column, value, message in ((0, 3, "kind"), (2, 64, "memory"), (4, 8, "channels"), (7, 10**9, "weights")):
        table = held.tables[0].clone()
        table[0, column] = value
        with pytest.raises(ValueError, match=message):
            fused.forms.call_native("unet", held.memory, native.weights, table)


def check_triton() -> dict[str, float]:
    """Relative errors in single precision."""
    answer = {}
    for form in FORMS:
        net, (z, sigma) = network(form, (32, 64), (1, 1)), images(2, 6, 7)
        if form == "free":  # of the second image all is twenty times as large, and so is what is removed
            z[1], sigma[1] = 20 * z[1], 20 * sigma[1]
        removed = Triton(copy.deepcopy(net).to(DEVICE))(z.to(DEVICE), sigma.to(DEVICE))
        answer[form] = relative_error(removed, net, z, sigma)
    return answer


@emulated
def test_the_triton_kernel_is_the_torch_form_in_the_interpreter():
    errors = json.loads(interpret(__file__))
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.gpu
@needs_triton
def test_the_triton_kernel_is_the_torch_form_on_a_gpu():
    assert max(check_triton().values()) < 5e-3  # products of 11 bits


@pytest.mark.gpu
@needs_triton
def test_on_a_gpu_images_of_a_loop_and_weights_that_change_are_followed():
    net = network("safe")
    denoiser, z = UNet(net), torch.empty(48, 64, device="cuda")
    for k in range(14):  # at one address, which a graph of its own then reads
        z.copy_(images(1, 48, 64)[0][0, 0].roll(k, 0))
        assert torch.equal(denoiser(z, 0.1), UNet(net)(z, 0.1)), k
    before = denoiser(z, 0.1)
    net.body[0].first.mul_(2)
    assert torch.equal(denoiser(z, 0.1), UNet(net)(z, 0.1))
    assert not torch.allclose(denoiser(z, 0.1), before, rtol=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(check_triton()))
