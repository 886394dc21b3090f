"""Images by command: filtered back-projection and SIRT of a scan, and how well images explain one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.cli import main
from plugstream.errors import InputError
from plugstream.first_image import form_image, relative_residual, scan_model
from plugstream.scans import open_scan

SMALL = ["--instrument", "ct", "--size", "32", "--views", "48", "--photons", "1e6"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "s.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


def test_both_methods_make_an_image_near_the_truth(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    truth = open_scan(scan).truth
    for words in (["--filter", "hann"], ["--method", "sirt", "--iterations", "30", "--low", "0"]):
        out = tmp_path / words[1]
        assert main(["baseline", str(scan), str(out), *words]) == 0, capsys.readouterr().err
        image = np.load(out.with_suffix(".npy"))
        assert np.linalg.norm(image - truth) < 0.65 * np.linalg.norm(truth)
        assert out.with_suffix(".png").exists()
        assert "unexplained" in capsys.readouterr().err
    np.save(tmp_path / "truth.npy", truth)
    names = [str(tmp_path / f"{name}.npy") for name in ("hann", "sirt", "truth")]
    assert main(["residual", str(scan), *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "truth.npy" in lines[0]
    assert [float(line.split()[0]) for line in lines] == sorted(float(line.split()[0]) for line in lines)


def test_the_residual_is_that_of_its_formula(scan: Path) -> None:
    opened = open_scan(scan)
    model = scan_model(opened)
    image = form_image(opened, "sirt", iterations=2)
    data = opened.read()
    want = float((data - model.forward(image)).norm() / data.norm())
    assert relative_residual(opened, image) == pytest.approx(want, rel=1e-5)
    assert relative_residual(opened, torch.zeros_like(image)) == pytest.approx(1.0)


def test_mistakes_are_told_and_nothing_is_written(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    born = tmp_path / "born.zarr"
    assert main(["simulate", str(born), "--size", "16", "--views", "3", "--receivers", "4"]) == 0
    (tmp_path / "there.npy").write_bytes(b"")
    np.save(tmp_path / "wrong.npy", np.zeros((3, 3)))
    capsys.readouterr()
    for words, why in (
        (["baseline", born, tmp_path / "x"], "is for scans of ct"),
        (["baseline", born, tmp_path / "x", "--method", "sirt"], "without negative entries"),
        (["baseline", scan, tmp_path / "there"], "exists already"),
        (["baseline", scan, tmp_path / "no" / "x"], "does not exist"),
        (["baseline", scan, tmp_path / "x", "--iterations", "3"], "has no use for --iterations"),
        (["baseline", scan, tmp_path / "x", "--cutoff", "2"], "from 0.001 to 1"),
        (["residual", scan, tmp_path / "wrong.npy"], "is (3, 3), but the scan's images are (32, 32)"),
        (["residual", scan, tmp_path / "there.npy"], "cannot read the image"),
        (["residual", scan, tmp_path], "cannot read the image"),
    ):
        assert main([str(word) for word in words]) == 2
        assert why in capsys.readouterr().err
    assert not list(tmp_path.glob("x*"))
    with pytest.raises(InputError, match="no method"):
        form_image(open_scan(scan), "magic")
