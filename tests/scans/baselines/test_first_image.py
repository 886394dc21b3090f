"""Images by command: filtered back-projection and SIRT of a scan, and how well images explain one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream import LeastSquares
from plugstream.base.errors import InputError
from plugstream.cli import main
from plugstream.instruments.ct import CT, CTSimulation
from plugstream.models.ct_beams import helical_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.runs.pages.content import run_content
from plugstream.scans import open_scan
from plugstream.scans.baselines.first_image import form_image, image_range, relative_residual, scan_model, usual_method
from plugstream.scans.scan import MemoryScan
from plugstream.scans.simulation import measure

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


def test_a_volume_larger_than_memory_goes_to_its_file_by_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    place = tmp_path / "v.zarr"
    assert main(["simulate", str(place), *SMALL, "--slices", "9", "--beam", "cone"]) == 0
    assert main(["baseline", str(place), str(tmp_path / "whole")]) == 0
    monkeypatch.setattr("plugstream.base.capacity.free_memory", lambda: 100_000)
    monkeypatch.setattr("plugstream.scans.baselines.filtered.free_memory", lambda: 100_000)
    assert main(["baseline", str(place), str(tmp_path / "parts")]) == 0
    whole, parts = (np.load(tmp_path / f"{name}.npy") for name in ("whole", "parts"))
    np.testing.assert_allclose(parts, whole, atol=1e-5 * np.abs(whole).max())
    for ending in (".png", ".tif"):
        assert (tmp_path / f"parts{ending}").stat().st_size == (tmp_path / f"whole{ending}").stat().st_size
    assert "wrote parts.npy, parts.tif, parts.png" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))


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
        (["baseline", born, tmp_path / "x"], "born-2d has no standard method; there are baselines for ct and mri"),
        (["baseline", born, tmp_path / "x", "--method", "filtered"], "is for scans of ct"),
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


def test_pixels_that_do_not_count_are_filled_before_the_filter() -> None:
    """Filtered back-projection knows no mask: dead pixels and NaN there change the image by little, not all of it."""
    options = CTSimulation(size=32, views=48, photons=1e6)
    made = CT.simulate_views(options)
    model = made.instrument.build_model(made.columns, 48, device=torch.device("cpu"), dtype=torch.float32)
    whole = measure(made, model, options)
    mask, good = np.ones(whole.data.shape, bool), np.ones((1, whole.data.shape[1]), bool)
    mask[3:9, 20], mask[11, :], good[0, 13] = False, False, False
    data = whole.data.clone()
    data[:, 13] = 50.0
    data[~torch.from_numpy(mask)] = torch.nan
    columns = {**whole.columns, "mask": mask}
    part = MemoryScan(data, replace(whole.instrument, good=good), whole.truth, columns=columns)
    one, other = (form_image(scan, filter="hann") for scan in (whole, part))
    assert torch.isfinite(other).all()
    assert float((one - other).norm()) < 0.15 * float(one.norm())
    assert image_range(part) == pytest.approx(image_range(whole), rel=0.1)


@pytest.mark.parametrize(
    ("words", "file", "name"),
    [
        (["--instrument", "ct", "--size", "24", "--views", "40"], "filtered", "filtered back-projection"),
        (
            ["--instrument", "ct", "--size", "16", "--slices", "5", "--views", "9", "--beam", "cone"],
            "filtered",
            "filtered",
        ),
        (["--instrument", "mri", "--size", "24"], "gridding", "gridding"),
        (["--instrument", "born-2d", "--size", "16", "--views", "6"], "backprojection", "first back-projection"),
    ],
)
def test_a_run_is_compared_with_the_usual_method_of_its_field(
    words: list[str], file: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `plugstream baseline` makes it; where there is none, with the back-projection. In figures and on the page."""
    path, run = tmp_path / "s.zarr", tmp_path / "run"
    drawn = []
    monkeypatch.setattr("plugstream.runs.report.draw_report", lambda compared, **_: drawn.append(compared[0]) or b"")
    assert main(["simulate", str(path), *words]) == 0
    quick = ["--iterations", "2", "--sigma", "0.01", "--report", "png"]
    assert main(["reconstruct", str(path), "--out", str(run), *quick]) == 0
    assert drawn[0].startswith(name)
    content = run_content(run)
    assert [role for role in content["roles"] if role not in ("result", "start", "truth")] == [file]
    image, truth = np.load(run / f"{file}.npy"), np.load(run / "truth.npy")
    if file == "backprojection":
        return
    window = ["--filter", "cosine"] if file == "filtered" else []
    assert main(["baseline", str(path), str(tmp_path / "usual"), *window]) == 0
    np.testing.assert_allclose(image, np.load(tmp_path / "usual.npy"), rtol=1e-4, atol=1e-5 * np.abs(image).max())
    scan = open_scan(path).load()
    plain = LeastSquares(scan_model(scan), scan.data).backprojection().numpy()
    assert np.linalg.norm(image - truth) < np.linalg.norm(plain - truth)


def test_a_large_scan_is_compared_by_a_thousand_views(scan: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("plugstream.runs.execution._COMPARED", 12)
    quick = ["--iterations", "2", "--sigma", "1", "--report", "none", "--set", "scan.in_memory=0"]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *quick]) == 0
    assert "filtered back-projection is of 12 views" in (tmp_path / "run" / "events.jsonl").read_text()
    truth, image = open_scan(scan).truth, np.load(tmp_path / "run" / "filtered.npy")
    assert np.linalg.norm(image - truth) < 0.75 * np.linalg.norm(truth)  # on the scale of all views


def test_a_helix_is_compared_with_the_back_projection() -> None:
    rays = helical_beam(np.linspace(0, 9, 12), (4, 9), 1.0, source=60.0, detector=25.0, pitch=4)
    data = np.ones((12, 4, 9), np.float32)
    scan = MemoryScan(data, CT.of(rays, Voxels((3, 6, 6), 1.0)), columns={"rays": rays.vectors})
    assert usual_method(scan) is None
