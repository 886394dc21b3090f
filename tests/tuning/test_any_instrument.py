"""sigma is searched for scans of any instrument: here one of integer data, a complex volume and a nonlinear model."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugstream.cli import main
from plugstream.settings import resolve

TOY = f"{Path(__file__).parents[1] / 'toy_holograph.py'}:ToyHolograph"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.zarr"
    assert main(["simulate", str(path), "--instrument", TOY]) == 0
    return path


@pytest.mark.parametrize("by", [["snr"], ["held-out"], ["discrepancy", "--noise", "20"]])
def test_sigma_is_found(toy: Path, tmp_path: Path, by: list[str]) -> None:
    words = ["--iterations", "3", "--evaluations", "5", "--widenings", "0", "--threads", "1", "--by", *by]
    assert main(["tune", str(toy), "--instrument", TOY, "--out", str(tmp_path / "t.toml"), *words]) == 0
    settings = resolve(tmp_path / "t.toml", trust=True)
    assert settings.algorithm.sigma is not None
    assert 5e-4 <= settings.algorithm.sigma <= 0.1
    assert settings.denoiser.low is None  # complex values have no order
