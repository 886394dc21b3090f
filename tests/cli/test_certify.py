"""`plugstream certify` as a person uses it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from plugstream import BM4D, TV
from plugstream.algorithms.pairs import measure
from plugstream.cli import main

QUICK = ["--size", "16", "--products", "6"]


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        Image.fromarray((255 * rng.random((20, 24))).astype(np.uint8)).save(folder / f"{name}.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.mark.slow
def test_it_prints_a_table_draws_a_picture_and_writes_json(pictures, tmp_path, capsys):
    out = tmp_path / "c"
    words = ["certify", "--denoiser", "tv", "--sigma", "0.2", "--tol", "1e-4", "--images", str(pictures), *QUICK]
    assert main([*words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for part in ("proved by construction", "0.5-averaged", "measured, as a lower bound", "refuted by a pair", "open"):
        assert part in said
    told = json.loads((out / "certificate.json").read_text())
    assert told["proved"]["averaged"] == 0.5
    assert told["proved"]["proximal"] is True
    assert told["images"] == ["one", "two"]
    assert told["dtype"] == "float64"
    assert (told["nonexpansive"], told["theta_averaged"], told["contradicted"]) == ("proved", "proved", False)
    with Image.open(out / "certificate.png") as picture:
        assert min(picture.size) > 300
    assert (out / "certificate.txt").read_text().strip() == said.strip()
    with np.load(out / "witnesses.npz") as arrays:
        first, second = (torch.from_numpy(arrays[f"theta_{end}"]) for end in ("first", "second"))
    again = measure(TV(tol=1e-4, max_iterations=20_000), 0.2, first, second)
    assert again.theta == pytest.approx(told["measured"]["theta"]["at_least"], rel=0.05)


def test_a_guide_makes_nlm_averaged_by_construction(pictures, tmp_path, capsys):
    words = ["certify", "--denoiser", "nlm", "--sigma", "0.1", "--images", str(pictures), *QUICK, "--products", "3"]
    assert main([*words, "--nlm-guide", "camera", "--out", str(tmp_path / "a")]) == 0
    assert "nlm, with camera as its guide" in capsys.readouterr().out
    told = json.loads((tmp_path / "a" / "certificate.json").read_text())
    assert told["theta_averaged"] == "proved"
    assert told["measured"]["theta"]["at_least"] <= 0.5


def test_a_denoiser_of_volumes_is_certified_on_volumes(tmp_path, capsys):
    words = ["certify", "--denoiser", "bm4d", "--sigma", "0.06", "--dtype", "float32", "--size", "9", "--products", "3"]
    assert main([*words, "--out", str(tmp_path / "c")]) == 0
    told = json.loads((tmp_path / "c" / "certificate.json").read_text())
    assert (told["denoiser"], told["shape"], told["images"]) == ("bm4d", [9, 9, 9], ["head", "cell"])
    assert told["proved"]["averaged"] is None
    assert told["nonexpansive"] == "refuted"
    with np.load(tmp_path / "c" / "witnesses.npz") as arrays:
        first, second = (torch.from_numpy(arrays[f"lipschitz_{end}"]) for end in ("first", "second"))
    again = measure(BM4D(), 0.06, first, second)
    assert again.lipschitz == pytest.approx(told["measured"]["lipschitz"]["at_least"], rel=1e-3)
    assert again.lipschitz > 1
    assert main([*words, "--images", str(tmp_path), "--out", str(tmp_path / "d")]) == 2
    assert "bm4d is for volumes, and --images are pictures" in capsys.readouterr().err


def test_a_network_of_ones_own_is_differentiated(pictures, tmp_path):
    code = "import torch\ndef make():\n    torch.manual_seed(0)\n    return torch.nn.Conv2d(1, 1, 3, padding=1)\n"
    (tmp_path / "net.py").write_text(code)
    words = ["certify", "--denoiser", f"{tmp_path / 'net.py'}:make", "--sigma", "0.1", "--size", "12"]
    (pictures / "two.png").unlink()  # a linear map has one Lipschitz constant, whatever the picture
    assert main([*words, "--images", str(pictures), "--products", "18", "--out", str(tmp_path / "c")]) == 0
    told = json.loads((tmp_path / "c" / "certificate.json").read_text())
    assert told["jacobian"] == "automatic differentiation"
    assert told["proved"]["averaged"] is None
    torch.manual_seed(0)
    net = torch.nn.Conv2d(1, 1, 3, padding=1).double()
    with torch.no_grad():
        basis = torch.eye(144, dtype=torch.float64).reshape(-1, 1, 12, 12)
        matrix = (net(basis) - net(torch.zeros_like(basis))).reshape(144, 144)
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert told["measured"]["lipschitz"]["at_least"] == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sigma", "0"], "sigma must be a number > 0"),
        (["--sigma", "lots"], "sigma must be a number > 0"),
        (["--sigma", "0.1", "--images", "nowhere"], "no folder nowhere"),
        (["--sigma", "0.1", "--products", "1"], "--products"),
        (["--sigma", "0.1", "--nlm-guide", "camera"], "choose nlm"),
        (["--sigma", "0.1", "--denoiser", "nonsense"], "no denoiser 'nonsense'"),
        ([], "--sigma"),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_made(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["certify", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
