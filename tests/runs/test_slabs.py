"""A run whose volume is larger than its GPU: in slabs, with the result of a run on all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.denoisers import TV
from plugstream.denoisers.tiles import Tiles
from plugstream.models.ct_slabs import SlabbedCT
from plugstream.runs import slabs
from plugstream.runs.footprint import Footprint
from plugstream.runs.parts import prepare
from plugstream.runs.plan import plan
from plugstream.scans import open_scan
from plugstream.settings import resolve
from small_run import main

RUN = ["--sigma", "0.05", "--sampler", "epochs", "--batch", "4", "--iterations", "6", "--every", "3", "--threads", "1"]
RUN += ["--tile", "5", "--halo", "1"]
SHAPE = (14, 16, 16)


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cone") / "scan.zarr"
    words = ["--instrument", "ct", "--beam", "cone", "--size", "16", "--slices", "14", "--views", "12"]
    assert main(["simulate", str(place), *words, "--photons", "1e4"]) == 0
    return place


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device, here the CPU, that has room for a few slices; the words that say so."""
    monkeypatch.setattr(slabs, "is_gpu", lambda device: True)
    monkeypatch.setattr("plugstream.runs.footprint.process_memory", lambda device: 0.0)
    monkeypatch.setattr("plugstream.models.ct_slabs.slices_at_once", lambda *_: 5)
    part = Footprint.of(TV(ndim=3), SHAPE, torch.float32, 0.0, in_memory=False, device=torch.device("cuda"))
    return ["--memory", f"{(part.fixed + 18 * (slabs.ON_GPU + 9) * part.slice) / 1e3:.3f}kB"]


@pytest.mark.parametrize("words", [[], ["--along", "z"]])
def test_the_image_is_that_of_a_run_on_all_of_it(scan, tmp_path, small_gpu, monkeypatch, capsys, words):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "slabs"), *RUN, *small_gpu, *words]) == 0
    assert "stays in the CPU's memory" in capsys.readouterr().err
    monkeypatch.setattr(slabs, "is_gpu", lambda device: False)
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "whole"), *RUN, *words]) == 0
    got, want = (np.load(tmp_path / name / "result.npy") for name in ("slabs", "whole"))
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


def test_a_run_that_goes_on_has_the_same_bits(scan, tmp_path, small_gpu):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "whole"), *RUN, *small_gpu]) == 0
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "part"), *RUN, *small_gpu, "--iterations", "3"]) == 0
    assert main(["resume", str(tmp_path / "part"), "--iterations", "6"]) == 0
    got, want = (np.load(tmp_path / name / "result.npy") for name in ("part", "whole"))
    assert np.array_equal(got, want)


def test_the_plan_has_a_model_and_a_denoiser_by_slabs(scan, small_gpu):
    asked = [
        ("algorithm", "sigma", 0.05),
        ("algorithm", "iterations", 2),
        ("compute", "tile", 9),
        ("compute", "halo", 1),
    ]
    asked.append(("compute", "memory", small_gpu[1]))
    settings = resolve(None, asked, instrument="ct")
    stored = open_scan(scan)
    made = plan(prepare(settings), stored)
    model = made.model(stored.columns, stored.n_views)
    assert isinstance(model, SlabbedCT)
    assert isinstance(made.denoiser, Tiles)
    assert (made.denoiser.tile, made.denoiser.device) == (9, torch.device("cpu"))
    assert made.revise(settings).parts.worker == made.parts.worker


def test_too_little_memory_of_the_cpu_is_said(scan, small_gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(slabs, "free_memory", lambda: 1e6)
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, *small_gpu]) == 2
    assert "of the CPU's, and" in capsys.readouterr().err
