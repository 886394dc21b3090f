"""The U-Nets that ship: size, card, what they make of pictures nobody trained on, and their form for GPUs."""

import pickle

import pytest
import torch

import plugstream as ps
from plugstream.denoisers.networks.unet import FOLDER, PROFILES, UNet, load_unet
from plugstream.images.pictures import load_picture

MEGABYTES = 10  # 16 bits, so half of what 32 would take


@pytest.mark.parametrize("profile", PROFILES)
def test_they_are_small_and_say_where_they_come_from(profile):
    file = FOLDER / f"unet-{profile}.safetensors"
    network, card = load_unet(file)
    assert file.stat().st_size < MEGABYTES * 1e6
    assert network.form == profile
    assert {"data", "seed", "steps", "command", "psnr_bsd68"} <= set(card)
    assert f"--form {profile}" in card["command"]


@pytest.mark.parametrize("profile", PROFILES)
def test_on_bsd68_they_do_what_their_card_says(profile, shared_data):
    """Three pictures against BM3D, whose mean on all 68 is 0.4 to 0.6 dB lower than on their cards."""
    files = sorted((shared_data / "images" / "BSD68").glob("*.png"))[5::25]
    noise = torch.Generator().manual_seed(3)
    card = load_unet(FOLDER / f"unet-{profile}.safetensors")[1]["psnr_bsd68"]
    for noise_level, least in (("15", 31.62), ("25", 29.15), ("50", 26.2)):
        assert card[noise_level] >= least
    gains, network = [], UNet(profile)
    for file in files:
        clean = load_picture(file)[:80, :80]
        for level in (15 / 255, 50 / 255):
            z = clean + level * torch.randn(clean.shape, generator=noise)
            errors = [(denoiser(z, level) - clean).square().mean() for denoiser in (network, ps.BM3D())]
            gains.append(float(-10 * torch.log10(errors[0] / errors[1])))
    assert min(gains) > -0.1
    assert sum(gains) / len(gains) > 0.3


def test_a_constant_picture_and_a_black_one_hardly_change():
    for profile in PROFILES:
        network = UNet(profile)
        z = torch.tensor([0.0, 0.5, 1.0])[:, None, None].expand(3, 16, 24)
        out = network(z, 0.05)
        assert float((out - z).abs().max()) < 0.02
        assert float((out - z).square().mean((1, 2)).sqrt().max()) < 0.005


@pytest.mark.gpu
@pytest.mark.parametrize("profile", PROFILES)
def test_on_a_gpu_it_is_that_of_the_cpu_but_for_16_bits(profile):
    denoiser = UNet(profile)
    noise = torch.Generator().manual_seed(1)
    clean = torch.linspace(0, 1, 96)[:, None] * torch.ones(2, 96, 81)
    z = clean + 0.1 * torch.randn(clean.shape, generator=noise)
    levels = torch.tensor([0.1, 0.05])
    for scale in (1.0, 1.0, 1.0, 1.0, 100.0):  # the fourth is a graph, and so is the fifth
        here, there = denoiser(scale * z, scale * levels), denoiser(scale * z.cuda(), scale * levels.cuda())
        again = denoiser(scale * z.cuda(), scale * levels.cuda())
        assert torch.equal(there, again)
        if scale == 1 or profile == "free":  # the safe form is for values from 0 to white
            assert float((there.cpu() - here).norm()) < 0.01 * float((scale * z - here).norm())
        assert bool(there.isfinite().all())
    copied = pickle.loads(pickle.dumps(denoiser))
    assert torch.equal(copied(z.cuda(), 0.1), denoiser(z.cuda(), 0.1))
    x = z.cuda().double().requires_grad_()
    (gradient,) = torch.autograd.grad(denoiser(x, 0.1).square().sum(), x)
    assert bool(gradient.isfinite().all())
