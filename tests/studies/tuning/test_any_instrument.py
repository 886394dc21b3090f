"""sigma is searched for scans of any instrument: here one of integer data, a complex volume and a nonlinear model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from effort import effort
from plugstream import FunctionModel, LeastSquares
from plugstream.cli import main
from plugstream.scans.simulation import add_noise
from plugstream.settings import resolve
from plugstream.studies.tuning import held_out_score, residual_excess

TOY = f"{Path(__file__).parents[2] / 'helpers' / 'toy_holograph.py'}:ToyHolograph"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.zarr"
    assert main(["simulate", str(path), "--instrument", TOY]) == 0
    return path


@pytest.mark.parametrize("by", [["snr"], ["held-out"], ["race"], ["discrepancy", "--noise", "20"]])
def test_sigma_is_found(toy: Path, tmp_path: Path, by: list[str]) -> None:
    words = ["--iterations", "3", "--evaluations", "5", "--widenings", "0", "--threads", "1", "--by", *by]
    words += [] if by == ["snr"] else effort(["--step-size", "2e-5"], [])  # the data's own takes most of the time
    assert main(["tune", str(toy), "--instrument", TOY, "--out", str(tmp_path / "t.toml"), *words]) == 0
    settings = resolve(tmp_path / "t.toml", trust=True)
    assert settings.algorithm.sigma is not None
    highest = 0.2 if by == ["race"] else 0.1  # which is where a race begins: it may go up from there
    assert 5e-4 <= settings.algorithm.sigma <= highest
    assert settings.denoiser.low is None  # complex values have no order


def test_the_true_image_of_a_nonlinear_model_leaves_the_noise() -> None:
    """The energy is that of the data, also where the model predicts something of an image of zeros."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 200, 12, generator=generator, dtype=torch.float64)

    def forward(image: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        return (3 + torch.einsum("bdn,...n->...bd", matrix[views], image.flatten(-2))) ** 2

    model = FunctionModel(forward, n_views=6, image_shape=(3, 4), data_shape=(200,), dtype=torch.float64)
    truth = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    fidelity = LeastSquares(model, add_noise(model.forward(truth), 30.0))
    assert abs(float(residual_excess(fidelity, truth, 30.0))) < 0.1
    assert float(held_out_score(fidelity, truth, torch.tensor([1, 4]))) == pytest.approx(30, abs=1)
