"""The denoisers by name, and that they are interchangeable: each is made by its name and put to the same tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plugstream import BornGeometry, Denoiser, Grid, InputError, LeastSquares, simulate, solve
from plugstream.base.registry import entries, find
from plugstream.denoisers import facts
from plugstream.denoisers.by_name import make
from plugstream.denoisers.facts import facts_of, unavailable
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.denoisers.networks.unet import save_unet
from plugstream.denoisers.ridge import Ridges, save_ridge
from plugstream.denoisers.tnrd.files import save_model
from plugstream.models.born import BornModel
from plugstream.runs.parts import build_denoiser, prepare
from plugstream.settings import DenoiserSettings, resolve
from small_run import main
from tnrd_models import random_model

NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
    def forward(self, x, sigma):
        return sigma[:, None, None, None] * self.conv(x).tanh()
"""
# Every name, one for each of the three patterns, and forms that options make of them.
CATALOG = entries("denoiser")
NAMES = [
    *(name for name, entry in CATALOG.items() if not entry.is_pattern and name != "pypi-bm3d"),
    pytest.param("pypi-bm3d", marks=pytest.mark.slow),  # seconds for the smallest picture
    "deepinv:DnCNN",
    "net.py:Net",
    "dncnn.pt",
    "nlm guided",
    "bm3d damped",
]


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> DenoiserSettings:
    """Settings of a denoiser by name; trained ones that come without weights get random ones."""
    name, _, how = request.param.partition(" ")
    more: dict[str, object] = {}
    entry = find("denoiser", name)
    if unavailable(entry) is not None and facts_of(entry).files is not None:
        more["weights"] = str(tmp_path / "w.safetensors")
        if name == "tnrd":
            save_model(random_model(stages=1, sigma=25.0), tmp_path / "w.safetensors")
        elif name == "unet":
            save_unet(tmp_path / "w.safetensors", LightUNet((2, 2), (1, 1), "safe"), {}, 0.2)
        else:
            save_ridge(tmp_path / "w.safetensors", Ridges.initial(), {})
    elif unavailable(entry) is not None:
        pytest.skip(str(unavailable(entry)))
    if name == "net.py:Net":
        (tmp_path / "net.py").write_text(NETWORK)
        generator = torch.Generator().manual_seed(0)
        weights = {
            "conv.weight": torch.randn(1, 1, 3, 3, generator=generator),
            "conv.bias": torch.randn(1, generator=generator),
        }
        save_file(weights, str(tmp_path / "net.safetensors"))
        name = f"{tmp_path}/net.py:Net"
        more |= {"weights": str(tmp_path / "net.safetensors"), "condition": "scalar"}
    elif name == "dncnn.pt":
        weights = {"in_conv.weight": torch.randn(2, 1, 3, 3), "out_conv.weight": torch.randn(1, 2, 3, 3)}
        name = f"{tmp_path}/dncnn.pt"
        torch.save(weights, name)
        more["architecture"] = "dncnn"
    elif name == "deepinv:DnCNN":
        model = importlib.import_module("deepinv.models").DnCNN(1, 1, pretrained=None)
        save_file(model.state_dict(), str(tmp_path / "dncnn.safetensors"))
        more["weights"] = str(tmp_path / "dncnn.safetensors")
    if how == "guided":
        np.save(tmp_path / "guide.npy", pictures(16, 17, seed=9).numpy())
        more["guide"] = str(tmp_path / "guide.npy")
    elif how == "damped":
        more["damping"] = 0.4
    return DenoiserSettings.of(name=name, **more)


def pictures(*shape: int, seed: int = 0) -> Tensor:
    """Noisy pictures, with some values below zero."""
    y, x = torch.meshgrid(torch.arange(shape[-2]), torch.arange(shape[-1]), indexing="ij")
    clean = 0.4 + 0.4 * torch.sign(torch.sin(x / 5) * torch.cos(y / 6))
    return clean + 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def samples(denoiser: Denoiser, *shape: int, seed: int = 0) -> Tensor:
    """Such pictures, or volumes of a few of them for a denoiser of volumes."""
    return pictures(*shape[:-2], *([5] if denoiser.ndim == 3 else []), *shape[-2:], seed=seed)


everyone = pytest.mark.parametrize("settings", NAMES, indirect=True)


@everyone
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_batch_axes_dtype_and_device(settings: DenoiserSettings, dtype: torch.dtype) -> None:
    denoiser = build_denoiser(settings)
    z = samples(denoiser, 2, 2, 16, 17).to(dtype)
    out = denoiser(z, 0.1)
    assert (out.shape, out.dtype, out.device) == (z.shape, dtype, z.device)
    assert bool(out.isfinite().all())
    torch.testing.assert_close(denoiser(z[1, 1], 0.1), out[1, 1], atol=1e-5, rtol=0)


@everyone
def test_is_pure(settings: DenoiserSettings) -> None:
    denoiser = build_denoiser(settings)
    z = samples(denoiser, 2, 16, 17)
    before = z.clone()
    first = denoiser(z, 0.1)
    assert torch.equal(z, before)
    denoiser(samples(denoiser, 1, 16, 17, seed=1), 0.3)  # neither another image nor another sigma leaves a trace
    denoiser(z, 0.01)
    # PyPI's bm3d adds up in an order of chance, so that its last digits change from call to call.
    atol = 1e-5 if settings.name == "pypi-bm3d" else 0
    torch.testing.assert_close(denoiser(z, 0.1), first, atol=atol, rtol=0)
    torch.testing.assert_close(build_denoiser(settings)(z, 0.1), first, atol=atol, rtol=0)


@everyone
def test_takes_a_sigma_for_each_image(settings: DenoiserSettings) -> None:
    denoiser = build_denoiser(settings)
    z = samples(denoiser, 3, 16, 17)
    sigma = torch.tensor([0.05, 0.1, 0.3])
    out = denoiser(z, sigma)
    for k in range(3):
        torch.testing.assert_close(denoiser(z[k], float(sigma[k])), out[k], atol=1e-5, rtol=0)
    with pytest.raises(InputError, match="sigma"):
        find_sigma_user(settings.name, denoiser)(z, torch.tensor([0.1, 0.2]))


def find_sigma_user(name: str, denoiser: Denoiser) -> Denoiser:
    """The denoiser, or for those that do not look at sigma another, so that the test has one rule."""
    return make("soft") if facts_of(find("denoiser", name)).sigma == "unused" else denoiser


@everyone
def test_reconstructs(settings: DenoiserSettings) -> None:
    geometry = BornGeometry.rings(Grid((16, 17), 0.01), 0.05, views=3, receivers=8, radius=0.3)
    model = BornModel(geometry)
    fidelity = LeastSquares(model, simulate(model, pictures(16, 17)).data)
    words = [("algorithm", "sigma", 0.02), ("sampler", "batch", 2)]
    words += [("denoiser", key, value) for key, value in settings.model_dump(exclude_unset=True).items()]
    result = solve(prepare(resolve(None, words)).algorithm(fidelity), iterations=3)
    assert result.state.k == 3
    assert result.image.shape == (16, 17)
    assert bool(result.image.isfinite().all())


def test_the_bounds_hold_before_or_within_every_denoiser() -> None:
    z = pictures(20, 18)
    for name in ("tv", "box", "bm3d", "soft"):
        assert float(make(name, low=0.2, high=0.7)(z, 0.05).min()) >= 0.2 - 0.05**2 - 1e-2


def test_what_is_said_of_averagedness_is_what_they_say_themselves(tmp_path: Path) -> None:
    save_ridge(tmp_path / "w.safetensors", Ridges.initial(), {})
    for name, entry in CATALOG.items():
        if entry.is_pattern or (unavailable(entry) is not None and name != "ridge"):
            continue
        options = {"weights": str(tmp_path / "w.safetensors")} if name == "ridge" else {}
        assert make(name, **options).averaged == facts_of(entry).averaged, name
    np.save(tmp_path / "guide.npy", pictures(20, 18).numpy())
    assert make("nlm", guide=str(tmp_path / "guide.npy")).averaged == 0.5


def test_weights_are_looked_for_where_they_are_installed() -> None:
    from plugstream.denoisers.ridge import PROFILES
    from plugstream.denoisers.tnrd.denoiser import _SHIPPED as FOLDER

    here = Path(facts.__file__).parent
    assert (here / str(facts_of(CATALOG["tnrd"]).files)).parent == FOLDER
    assert set(here.glob(str(facts_of(CATALOG["ridge"]).files))) == set(PROFILES.values())


def test_what_weights_were_trained_for_is_read_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_ROOM", tmp_path)
    assert unavailable(CATALOG["tnrd"]) is not None
    assert facts_of(CATALOG["tnrd"]).trained_for is None
    (tmp_path / "tnrd" / "weights").mkdir(parents=True)
    (tmp_path / "weights").mkdir()
    for sigma in (5.0, 25.0):
        save_model(random_model(stages=1, sigma=sigma), tmp_path / "tnrd" / "weights" / f"sigma={sigma:g}.safetensors")
    save_ridge(tmp_path / "weights" / "ridge.safetensors", Ridges.initial(levels=(0.01, 0.1)), {})
    assert unavailable(CATALOG["tnrd"]) is None
    assert facts_of(CATALOG["tnrd"]).trained_for == pytest.approx((5 / 255, 25 / 255))
    assert facts_of(CATALOG["ridge"]).trained_for == pytest.approx((0.01, 0.1))


@pytest.mark.parametrize("name", ["median", "deepinv", "deepinv:", "net.py", ":Net", "net.py:", "net.py:3", "bm3"])
def test_a_wrong_name_is_answered_with_the_right_ones_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=r"there is no denoiser .* tv, .* FILE\.py:NAME") as caught:
        find("denoiser", name)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="there is no denoiser") as caught:
        resolve(None, [("denoiser", "name", name)])
    assert "\n" not in str(caught.value)
    if name == "bm3":
        assert "did you mean 'bm3d'?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bm3d", {"weights": "w"}, "no use for weights; leave it out, or choose tnrd or ridge or unet or deepinv"),
        ("tv", {"guide": "g.npy"}, "tv has no use for guide; leave it out, or choose nlm"),
        ("nlm", {"unpickle": True}, "no use for unpickle"),
        ("tnrd", {"condition": "map"}, "no use for condition"),
        ("tv", {"low": 1.0, "high": 0.0}, "must be below"),
        ("nowhere.py:Net", {}, "no file nowhere.py"),
        ("tnrd", {"weights": "nowhere.mat"}, "no TNRD model"),
        ("ridge", {"weights": "fast"}, "no ridge weights at fast; .* or take a profile of ours: normal or fast"),
        ("ridge", {"weights": "w.safetensors", "profile": "fast"}, "leave out profile, or weights"),
    ],
)
def test_options_that_cannot_be_used_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make(name, **options)
    assert "\n" not in str(caught.value)


def test_a_deepinv_name_without_deepinv_says_how_to_get_it() -> None:
    if importlib.util.find_spec("deepinv") is None:
        with pytest.raises(InputError, match="deepinv is not installed; pip install deepinv"):
            make("deepinv:DRUNet")
    else:
        with pytest.raises(InputError, match="is not trained as it is"):
            make("deepinv:DnCNN")
        with pytest.raises(InputError, match=r"deepinv has no denoiser 'Dncnn'; it has .*DnCNN"):
            make("deepinv:Dncnn")
        with pytest.raises(InputError, match="cannot be made by its name"):
            make("deepinv:EDMPrecond")


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["denoisers"]) == 0
    text = capsys.readouterr().out
    for name, entry in CATALOG.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert facts_of(entry).licence in line
        assert entry.help in line
        assert (" yes " in line) == (unavailable(entry) is None)
    assert main(["denoisers", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(listed) == list(CATALOG)
    assert listed["tv"]["averaged"] == 0.5
    assert listed["bm3d"]["averaged"] is None
    assert (listed["bm3d"]["forms_here"]["cuda"] is None) == (not torch.cuda.is_available())


def test_reading_settings_imports_no_torch() -> None:
    code = "import sys; from plugstream.settings import resolve; resolve(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_commands_take_a_network_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "z.npy", pictures(20, 18).numpy())
    (tmp_path / "net.py").write_text(NETWORK)
    module = {"conv.weight": torch.zeros(1, 1, 3, 3), "conv.bias": torch.full((1,), 0.5)}
    save_file(module, str(tmp_path / "net.safetensors"))
    torch.save(module, tmp_path / "net.pt")
    torch.save({"state_dict": module, "by": Path("me")}, tmp_path / "more.pt")
    words = ["denoise", str(tmp_path / "z.npy"), str(tmp_path / "o.npy"), "--sigma", "2"]
    words += ["--denoiser", f"{tmp_path}/net.py:Net", "--condition", "scalar", "--weights"]
    assert main([*words, str(tmp_path / "net.safetensors")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), 2 * np.tanh(0.5), rtol=1e-6)
    (tmp_path / "o.npy").unlink()
    assert main([*words, str(tmp_path / "net.pt")]) == 0  # tensors alone, which no code is run for
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), 2 * np.tanh(0.5), rtol=1e-6)
    (tmp_path / "o.npy").unlink()
    assert main([*words, str(tmp_path / "more.pt")]) == 2
    line = capsys.readouterr().err
    assert "can run any code" in line
    assert "--unpickle" in line
    assert main([*words, str(tmp_path / "more.pt"), "--unpickle"]) == 0


def test_a_guide_of_another_size_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "g.npy", np.zeros((9, 9)))
    words = ["demo", "--out", str(tmp_path / "run"), "--size", "16", "--denoiser", "nlm"]
    assert main([*words, "--nlm-guide", str(tmp_path / "g.npy")]) == 2
    assert "the guide is 9 x 9, but the image 16 x 16" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
