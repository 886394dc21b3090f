"""What is promised of a measured scan, a tooth, by the commands of docs/tomography.md: slow, and only with the data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from small_run import main

pytestmark = pytest.mark.slow

CHOICE = ["--rows", "0", "--size", "384", "--stripes", "21"]
# The best of 35 filters and cutoffs (benchmarks/ct_tooth.py).
BEST = {60: ("shepp-logan", "0.3"), 163: ("ram-lak", "0.3")}


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = Path(__file__).parents[3] / "shared" / "data" / "ct" / "tooth.h5"
    if not file.exists():
        pytest.skip(f"the tooth is not at {file}")
    folder = tmp_path_factory.mktemp("tooth")
    assert main(["import", "ct", str(file), str(folder / "held.zarr"), *CHOICE, "--select", "5::10"]) == 0
    for count in (30, 60, 163):
        words = [str(folder / f"{count}.zarr"), *CHOICE, "--omit", "5::10", "--count", str(count)]
        assert main(["import", "ct", str(file), *words]) == 0
    for count, (name, cutoff) in BEST.items():
        out = str(folder / f"filtered{count}")
        assert main(["baseline", str(folder / f"{count}.zarr"), out, "--filter", name, "--cutoff", cutoff]) == 0
    return folder


def residual(scans: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> float:
    capsys.readouterr()
    assert main(["residual", str(scans / "held.zarr"), str(image)]) == 0
    found = re.match(r"([\d.]+) ", capsys.readouterr().out)
    assert found is not None
    return float(found[1])


def reconstruct(scans: Path, count: int, out: Path, *words: str) -> Path:
    assert main(["reconstruct", str(scans / f"{count}.zarr"), "--out", str(out), "--report", "none", *words]) == 0
    return out


def test_tv_with_its_search_is_far_below_filtered_back_projection(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filtered = {count: residual(scans, scans / f"filtered{count}.npy", capsys) for count in BEST}
    tv = {
        count: residual(scans, reconstruct(scans, count, tmp_path / f"tv{count}", "--denoiser", "tv"), capsys)
        for count in (30, 60)
    }
    assert filtered[60] < 0.0282
    assert filtered[163] < 0.0209
    assert tv[60] < 0.50 * filtered[60]
    assert tv[30] < filtered[163]


@pytest.mark.timeout(900)
def test_bm3d_by_default_is_far_below_filtered_back_projection(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reconstruct(scans, 60, tmp_path / "bm3d", "--denoiser", "bm3d", "--iterations", "150")
    assert residual(scans, found, capsys) < 0.46 * residual(scans, scans / "filtered60.npy", capsys)
    few = reconstruct(scans, 30, tmp_path / "few", "--denoiser", "bm3d", "--iterations", "150")
    assert residual(scans, few, capsys) < 0.75 * residual(scans, scans / "filtered163.npy", capsys)


def test_ten_views_a_step_end_within_a_percent_of_all(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--iterations", "200", "--tol", "1e-4"]
    falling = ["--sigma", "1%", "--sigma-end", "0.3162%", "--step-end", "0.1/L", "--momentum", "nesterov"]
    every = residual(scans, reconstruct(scans, 163, tmp_path / "all", "--sampler", "all", *common), capsys)
    few = residual(scans, reconstruct(scans, 163, tmp_path / "few", *falling, *common), capsys)
    assert few < 1.01 * every
