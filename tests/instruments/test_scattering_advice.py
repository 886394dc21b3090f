"""Defaults that follow from a scan with multiple scattering, by commands: of several frequencies the low ones first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.runs import commands
from plugstream.runs.search import sigma_limits
from plugstream.scans import open_scan
from plugstream.settings import Settings, resolve
from plugstream.solver.monitors import snr
from small_run import main

SMALL = ["--instrument", "scattering-2d", "--size", "12", "--views", "5", "--receivers", "9"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "s.zarr"
    assert main(["simulate", str(path), *SMALL, "--frequencies", "1,2,3GHz"]) == 0
    return path


def settings_of(scan: Path, out: Path, *words: str) -> Settings:
    assert main(["reconstruct", str(scan), "--out", str(out), *words]) == 0
    return resolve(out / "settings.toml")


def test_nothing_but_the_scan_is_needed(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found = settings_of(scan, tmp_path / "run", "--iterations", "4")
    told = capsys.readouterr().err
    assert (found.algorithm.sigma, found.algorithm.hop) == (0.03, "auto")
    assert (found.sampler.name, found.sampler.views) == ("epochs", 12)
    assert "there are 3 frequencies: the low ones come first" in told
    assert "stage 3 of 3" in told


def test_what_is_typed_counts_and_stages_leave_no_hop(scan: Path, tmp_path: Path) -> None:
    words = ["--stages", "2GHz: 1; all", "--iterations", "2", "--lam", "1e-4", "--sampler", "uniform"]
    found = settings_of(scan, tmp_path / "run", *words)
    assert (found.algorithm.hop, found.algorithm.sigma, found.sampler.name) == (None, None, "uniform")
    assert found.sampler.views == 10
    once = settings_of(scan, tmp_path / "once", "--distance-limit", "0.9", "--iterations", "2")
    assert once.algorithm.hop is None


def test_one_frequency_is_advised_a_sigma_and_no_hop(tmp_path: Path) -> None:
    assert main(["simulate", str(tmp_path / "s.zarr"), *SMALL]) == 0
    found = settings_of(tmp_path / "s.zarr", tmp_path / "run", "--iterations", "1", "--batch", "4")
    assert (found.algorithm.sigma, found.algorithm.hop, found.sampler.name) == (0.03, None, "epochs")


def test_one_frequency_falls_with_tv_better_than_before_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    scan, discs = tmp_path / "s.zarr", ["--width", "0.2", "--discs", "0,0.02,0.04,0.4; -0.02,-0.04,0.02,0.2"]
    assert main(["simulate", str(scan), *SMALL[:2], "--size", "16", "--views", "12", "--receivers", "16", *discs]) == 0
    found = settings_of(scan, tmp_path / "run", "--threads", "1")
    assert (found.algorithm.name, found.denoiser.name) == ("inexact-admm", "tv")
    settings_of(scan, tmp_path / "plain", "--fall", "none", "--threads", "1")
    truth = torch.from_numpy(np.asarray(open_scan(scan).truth))
    images = (torch.from_numpy(np.load(tmp_path / name / "result.npy")) for name in ("run", "plain"))
    ours, plain = (float(snr(image, truth, 2)) for image in images)
    assert ours > plain
    with pytest.MonkeyPatch.context() as patch:
        due = commands.Requests.due
        patch.setattr(commands.Requests, "due", lambda self, k: k >= 41 or due(self, k))
        main(["reconstruct", str(scan), "--out", str(tmp_path / "part"), "--threads", "1"])
    assert main(["resume", str(tmp_path / "part")]) == 0
    assert (tmp_path / "part" / "result.npy").read_bytes() == (tmp_path / "run" / "result.npy").read_bytes()


@pytest.mark.parametrize(
    ("words", "sampler", "text"),
    [
        ([], ("all", None), "steps have 5 views, fewer than a usual batch of 10, so that each uses all"),
        (["--hold-out", "4"], ("all", None), "steps have 4 views, fewer than a usual batch of 10"),
        (["--sampler", "epochs"], ("epochs", 5), "there are 5 views, of which a step uses 5"),
        (["--batch", "3"], ("epochs", 3), None),
    ],
)
def test_fewer_views_than_a_usual_batch_need_no_batch(
    words: list[str], sampler: tuple[str, int | None], text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["simulate", str(tmp_path / "s.zarr"), *SMALL]) == 0
    found = settings_of(tmp_path / "s.zarr", tmp_path / "run", "--iterations", "1", *words)
    assert (found.sampler.name, found.sampler.views) == sampler
    told = capsys.readouterr().err
    assert text in told if text is not None else "steps have" not in told
    assert main(["reconstruct", str(tmp_path / "s.zarr"), "--out", str(tmp_path / "no"), "--batch", "6"]) == 2


def test_a_search_goes_by_numbers_and_has_no_stages(scan: Path, tmp_path: Path) -> None:
    assert sigma_limits(open_scan(scan), None, None, "tv") == (5e-4, 0.1)
    words = ["--iterations", "2", "--evaluations", "5", "--widenings", "0", "--out", str(tmp_path / "best.toml")]
    assert main(["tune", str(scan), *words]) == 0
    assert resolve(tmp_path / "best.toml").algorithm.hop is None
