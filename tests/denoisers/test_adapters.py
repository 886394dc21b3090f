"""Denoisers of others: real packages where they are installed, real files, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from plugstream import TV, InputError, SoftThreshold
from plugstream.denoisers.adapters import (
    FromNumpy,
    as_module,
    deepinv_by_name,
    from_bm3d,
    from_deepinv,
    from_file,
    from_skimage,
)

NETWORK = """
import torch
from torch import nn
from plugstream import TV

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    def forward(self, x):
        return self.conv(x)

class Needs(nn.Module):
    def __init__(self, size):
        super().__init__()

tv = TV()
number = 3
"""


class Scaled(nn.Module):
    """A denoiser as deepinv has them: x / (1 + sigma)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x, sigma):
        assert x.shape[1] == self.channels
        return x / (1 + sigma.reshape(-1, 1, 1, 1))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(NETWORK)
    return path


@pytest.mark.parametrize("channels", [1, 3])
def test_a_deepinv_denoiser_gets_each_images_sigma(channels):
    z = torch.rand(2, 3, 5, 6)
    sigma = torch.tensor([[0.0, 1.0, 3.0], [1.0, 1.0, 0.0]])
    out = from_deepinv(Scaled(channels), channels=channels)(z, sigma)
    assert torch.allclose(out, z / (1 + sigma[..., None, None]))
    with pytest.raises(InputError, match="1 or 3"):
        from_deepinv(Scaled(2), channels=2)


def test_a_deepinv_denoiser_with_memory_is_pure_as_ours():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = None

        def forward(self, x, sigma):
            self.last = x if self.last is None else self.last + x
            return self.last

    z = torch.rand(2, 5, 6)
    denoiser = from_deepinv(Remembers())
    assert torch.equal(denoiser(z, 0.1), z)
    assert torch.equal(denoiser(z, 0.1), z)


@pytest.mark.parametrize("name", ["TVDenoiser", "TGVDenoiser", "MedianFilter"])
def test_deepinvs_own_are_pure_as_ours(name):
    pytest.importorskip("deepinv", reason="deepinv is not installed")
    denoiser, z = deepinv_by_name(name), torch.rand(1, 12, 13, generator=torch.Generator().manual_seed(0))
    first = denoiser(z, 0.1)
    denoiser(z + 1, 0.3)
    assert torch.equal(denoiser(z, 0.1), first)


def test_ours_as_a_module_for_deepinv():
    x = torch.randn(2, 3, 8, 9)
    module = as_module(SoftThreshold())
    assert isinstance(module, nn.Module)
    assert torch.allclose(module(x, 0.5), SoftThreshold()(x, 0.5))
    assert torch.allclose(module(x, torch.tensor([0.5, 0.1]))[1], SoftThreshold()(x[1], 0.1))
    assert torch.allclose(module(x, torch.tensor(0.5)), SoftThreshold()(x, 0.5))


def test_deepinv_itself_accepts_ours():
    dinv = pytest.importorskip("deepinv", reason="deepinv is not installed")
    prior = dinv.optim.prior.PnP(denoiser=as_module(TV()))
    x = torch.rand(1, 1, 16, 16)
    assert torch.allclose(prior.prox(x, 0.1), TV()(x, 0.1), atol=1e-5)


def test_numpy_functions_see_one_image_and_its_level():
    seen = []

    def function(z, sigma):
        seen.append((z.shape, z.dtype, sigma))
        return z * sigma

    z = torch.rand(2, 4, 5)
    out = FromNumpy(function)(z, torch.tensor([2.0, 0.0]))
    assert out.dtype == torch.float32
    assert torch.allclose(out[0], 2 * z[0])
    assert torch.equal(out[1], z[1])
    assert seen == [((4, 5), np.float64, 2.0)]
    with pytest.raises(InputError, match="returned"):
        FromNumpy(lambda z, s: z[:2])(z, 1.0)


def test_pypis_bm3d_denoises_where_it_is_installed():
    pytest.importorskip("bm3d", reason="PyPI bm3d is not installed")
    clean = torch.zeros(24, 24)
    clean[:, 12:] = 1
    noisy = clean + 0.1 * torch.randn(24, 24, generator=torch.Generator().manual_seed(0))
    assert (from_bm3d()(noisy, 0.1) - clean).square().mean() < (noisy - clean).square().mean() / 4


@pytest.mark.parametrize("name", ["tv", "nlm", "wavelet", "bilateral"])
def test_scikit_images_denoisers_denoise(name):
    if name == "wavelet":
        pytest.importorskip("pywt", reason="PyWavelets is not installed")
    clean = torch.zeros(32, 32) - 0.5
    clean[:, 16:] = 0.5
    noisy = clean + 0.1 * torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    out = from_skimage(name)(noisy, 0.3 if name in ("tv", "bilateral") else 0.1)
    assert (out - clean).square().mean() < (noisy - clean).square().mean() / 1.5
    with pytest.raises(InputError, match="tv, nlm"):
        from_skimage("median")


def test_scikit_images_tv_is_our_tv():
    z = torch.rand(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = from_skimage("tv", eps=1e-12, max_num_iter=20_000)(z, 0.3)
    assert torch.allclose(theirs, TV(tol=1e-7, max_iterations=20_000)(z, 0.3), atol=1e-4)


def test_a_network_from_a_file_with_its_weights(file, tmp_path):
    kernel = torch.rand(1, 1, 3, 3)
    save_file({"conv.weight": kernel}, str(tmp_path / "w.safetensors"))
    z = torch.rand(2, 7, 8)
    out = from_file(f"{file}:Net", tmp_path / "w.safetensors")(z, 0.1)
    assert torch.allclose(out, torch.nn.functional.conv2d(z[:, None], kernel, padding=1)[:, 0], atol=1e-6)
    assert isinstance(from_file(f"{file}:tv"), TV)


def test_a_function_of_an_image_and_a_noise_level_from_a_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "def shrink(z, sigma):\n    return z / (1 + sigma)\n\n\ndef half(z):\n    return z / 2\n\n\n"
        "def make():\n    return shrink\n\n\n"
        "class Scale:\n    def __call__(self, z, sigma):\n        return z / (1 + sigma)\n"
    )
    z = torch.rand(2, 7, 8)
    for name, want in (("shrink", z / 1.1), ("half", z / 2), ("make", z / 1.1), ("Scale", z / 1.1)):
        assert torch.allclose(from_file(f"{file}:{name}")(z, 0.1), want)
    for more in ({"weights": tmp_path / "w.safetensors"}, {"residual": True}, {"condition": "map"}):
        with pytest.raises(InputError, match="is a function; weights, condition and residual are for networks"):
            from_file(f"{file}:shrink", **more)


def test_a_pickle_is_opened_only_when_told(file, tmp_path):
    weights = tmp_path / "w.pt"
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    torch.save({"state_dict": {"conv.weight": torch.zeros(1, 1, 3, 3)}, "x": Evil()}, weights)
    with pytest.raises(InputError, match="can run any code"):
        from_file(f"{file}:Net", weights)
    assert not marker.exists()
    out = from_file(f"{file}:Net", weights, unpickle=True)(torch.rand(5, 5), 0.1)
    assert not out.any()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("net.py", "write file.py:Name"),
        ("nowhere.py:Net", "no file"),
        ("net.py:Nothing", "has no Nothing"),
        ("net.py:number", "is int"),
        ("net.py:Needs", "without arguments"),
        ("broken.py:Net", "cannot be run: SyntaxError"),
    ],
)
def test_wrong_names_are_one_line(file, tmp_path, where, message, monkeypatch):
    (tmp_path / "broken.py").write_text("def (:")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        from_file(where)
    assert "\n" not in str(caught.value)


def test_wrong_weights_are_one_line(file, tmp_path):
    save_file({"conv.weight": torch.zeros(2, 2)}, str(tmp_path / "shape.safetensors"))
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "shape.safetensors").read_bytes()[:20])
    for name, message in (("shape", "do not fit"), ("cut", "cannot be read"), ("none", "no weights")):
        with pytest.raises(InputError, match=message) as caught:
            from_file(f"{file}:Net", tmp_path / f"{name}.safetensors")
        assert "\n" not in str(caught.value)
