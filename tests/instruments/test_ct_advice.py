"""Defaults that follow from a tomographic scan, by commands: what nobody says is advised, told and written down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.base.errors import InputError
from plugstream.denoisers.by_name import make
from plugstream.instruments.born import Born2D
from plugstream.instruments.ct import CT
from plugstream.models.ct_geometry import Voxels
from plugstream.scans import open_scan
from plugstream.scans.baselines.first_image import image_range
from plugstream.settings import Settings, resolve, share_of_range
from small_run import main, main as run

SMALL = ["--instrument", "ct", "--size", "24", "--views", "40", "--photons", "1e6"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "s.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


def settings_of(scan: Path, out: Path, *words: str) -> Settings:
    assert run(["reconstruct", str(scan), "--out", str(out), "--iterations", "2", *words]) == 0
    return resolve(out / "settings.toml")


def test_nothing_but_the_scan_is_needed(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found = settings_of(scan, tmp_path / "run")
    told = capsys.readouterr().err
    assert found.sampler.name == "epochs"
    assert "views are many, 10 of 40 a step" in told
    assert (found.momentum.name, found.momentum.momentum_limit) == ("tapered", 20)
    assert "momentum tapered: it grows to 20" in told
    assert found.algorithm.sigma == pytest.approx(0.01 * image_range(open_scan(scan)) ** 0.5)
    assert "1% of the image's range" in told
    assert "1/m" in told
    other = settings_of(scan, tmp_path / "bm3d", "--denoiser", "bm3d")
    assert other.algorithm.sigma == pytest.approx(0.003 * image_range(open_scan(scan)))


def test_momentum_follows_from_the_views_of_a_step(scan: Path, tmp_path: Path) -> None:
    """Up to twice as many as a step has, between 5 and 20; without a bound where it has all; as it is typed."""
    for batch, limit in ((1, 5), (4, 8), (12, 20)):
        momentum = settings_of(scan, tmp_path / f"{batch}", "--batch", f"{batch}", "--sigma", "1").momentum
        assert (momentum.name, momentum.momentum_limit) == ("tapered", limit)
    limited = ["--momentum", "tapered", "--momentum-limit", "7"]
    words = {"all": ["--sampler", "all"], "typed": ["--momentum", "nesterov"], "limit": limited}
    found = {name: settings_of(scan, tmp_path / name, "--sigma", "1", *more).momentum for name, more in words.items()}
    assert found["all"].name == found["typed"].name == "nesterov"
    assert (found["limit"].name, found["limit"].momentum_limit) == ("tapered", 7)


def test_what_is_typed_or_in_a_file_counts(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--sampler", "uniform", "--batch", "2", "--momentum", "none", "--lam", "1e-9"]
    typed = settings_of(scan, tmp_path / "typed", *words)
    assert (typed.sampler.name, typed.momentum.name, typed.algorithm.sigma) == ("uniform", "none", None)
    assert "views are many" not in capsys.readouterr().err
    again = settings_of(scan, tmp_path / "again", "--settings", str(tmp_path / "typed" / "settings.toml"))
    assert again == typed
    few = settings_of(scan, tmp_path / "few", "--batch", "11", "--sigma", "1")  # four steps go through all
    assert few.sampler.name == "epochs"
    assert "every view is used once before any is repeated" in capsys.readouterr().err


def test_sigma_may_be_a_share_of_the_range(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = settings_of(scan, tmp_path / "one", "--sigma", "1%", "--sigma-end", "0.5%")
    whole = image_range(open_scan(scan))
    assert one.algorithm.sigma == pytest.approx(0.01 * whole**0.5)
    assert one.algorithm.sigma_end == pytest.approx(0.005 * whole**0.5)
    other = settings_of(scan, tmp_path / "other", "--sigma", "1%", "--denoiser", "nlm")
    assert other.algorithm.sigma == pytest.approx(0.01 * whole)
    truth = open_scan(scan).truth
    assert truth is not None
    assert 0.3 * truth.max() < whole < 1.5 * truth.max()  # its shell is thinner than a pixel, and blurred
    capsys.readouterr()
    for text in ("x%", "101%"):
        assert main(["reconstruct", str(scan), "--out", str(tmp_path / "no"), "--sigma", text]) == 2
        assert "range" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    with pytest.raises(InputError, match="not known here"):
        resolve(None, [("algorithm", "sigma", "1%")])


def test_a_share_of_the_range_is_for_any_linear_instrument(tmp_path: Path) -> None:
    born = tmp_path / "born.zarr"
    assert main(["simulate", str(born), "--size", "16", "--views", "12", "--receivers", "20"]) == 0
    assert "sigma" not in {advice.key for advice in Born2D.advise(open_scan(born).instrument, 12, 2)}
    found = settings_of(born, tmp_path / "run", "--sigma", "2%")
    assert found.algorithm.sigma == pytest.approx(0.02 * image_range(open_scan(born)) ** 0.5)
    assert found.sampler.name == "epochs"


def test_volumes_are_denoised_in_3d_and_by_slices(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    volume, images = tmp_path / "v.zarr", []
    small = [*SMALL[:2], "--size", "12", "--views", "12", "--slices", "8"]
    assert main(["simulate", str(volume), *small]) == 0
    for number, words in enumerate(([], ["--along", "z"], ["--along", "all"])):
        settings_of(volume, tmp_path / f"run{number}", "--sigma", "2%", *words)
        images.append(np.load(tmp_path / f"run{number}" / "result.npy"))
        assert images[-1].shape == (8, 12, 12)
    told = capsys.readouterr().err
    assert "on the slices along axis 0" in told
    assert "on the slices along the three axes" in told
    assert not any(np.allclose(images[a], images[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_a_search_begins_by_the_range_of_the_image(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--iterations", "5", "--evaluations", "5", "--widenings", "0", "--out", str(tmp_path / "best.toml")]
    assert main(["tune", str(scan), *words]) == 0
    found, whole = resolve(tmp_path / "best.toml"), image_range(open_scan(scan))
    assert found.sampler.name == "epochs"
    assert found.algorithm.sigma is not None
    assert 4.9e-4 < found.algorithm.sigma / whole**0.5 < 0.101


@pytest.mark.parametrize("name", ["tv", "bm3d", "nlm", "soft"])
def test_a_share_does_the_same_whatever_the_unit(name: str) -> None:
    """D(c z, sigma of a range c) = c D(z, sigma of a range 1): images in 1/m and in 1/pixel are denoised alike."""
    rng = np.random.default_rng(0)
    image = torch.from_numpy(np.kron(rng.random((4, 4)), np.ones((6, 6))) + 0.05 * rng.normal(size=(24, 24)))
    denoiser = make(name)
    want = denoiser(image, share_of_range(0.05, 1.0, name))
    assert float((want - image).abs().max()) > 1e-3
    for scale in (0.01, 300.0):
        found = denoiser(scale * image, share_of_range(0.05, scale, name)) / scale
        torch.testing.assert_close(found, want, rtol=0, atol=2e-3)


def test_few_views_of_a_large_image_ask_bm3d_for_more() -> None:
    instrument = CT(Voxels((100, 384), 1.0), 640)

    def shares(views: int) -> dict[str, str]:
        return {a.sigma: a.value for a in instrument.advise(views, 10) if a.key == "sigma"}

    assert [shares(views)["noise"] for views in (1, 8, 30, 60, 163)] == ["1%", "1%", "0.5%", "0.3%", "0.3%"]
    assert {shares(views)["weight"] for views in (1, 30, 163)} == {"1%"}
    (told,) = [a.reason for a in instrument.advise(30, 10) if (a.key, a.sigma) == ("sigma", "noise")]
    assert told.startswith("sigma is 0.5% of the image's range, not 0.3%, since 30 views of 384 pixels leave streaks")
