"""Algorithms are entries: what one needs is a fact of it, and one of one's own is one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plugstream.base.registry import entries
from plugstream.runs.results import title_of
from plugstream.settings import AlgorithmSettings, resolve
from small_run import main

RUN = ["--sigma", "0.02", "--threads", "1"]

RELAXED = '''
"""Proximal gradient, of which each step goes a part of the way: x^k = (1 - t) x^{k-1} + t D(x^{k-1} - gamma grad d)."""

from dataclasses import dataclass

import torch

from plugstream.algorithms import PlugAndPlay


@dataclass(frozen=True)
class Where:
    k: int
    image: torch.Tensor
    warm: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Relaxed(PlugAndPlay):
    part: float = 0.5

    def init(self, image=None):
        return Where(0, self._start_image(image))

    def step(self, state):
        gamma, sigma = self.parameters(state.k + 1)
        batch = self.sampler.draw(state.k, self.fidelity.available)
        g = self.fidelity.gradient(state.image, batch.views, batch.weights)
        x, warm = self.denoiser.denoise(state.image - gamma * g, sigma, state.warm)
        return Where(state.k + 1, state.image + self.part * (x - state.image), warm)


def whole(fidelity, denoiser, **parts):
    return Relaxed(fidelity, denoiser, part=1.0, **parts)
'''


def reconstruct(scan: Path, out: Path, *words: str) -> np.ndarray:
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, *words]) == 0
    image: np.ndarray = np.load(out / "result.npy")
    return image


def test_an_algorithm_of_ones_own_is_one_file(scan, tmp_path):
    own = tmp_path / "relaxed.py"
    own.write_text(RELAXED)
    halves = reconstruct(scan, tmp_path / "halves", "--algorithm", f"{own}:Relaxed", "--iterations", "6")
    whole = reconstruct(scan, tmp_path / "whole", "--algorithm", f"{own}:whole", "--iterations", "6")
    plain = reconstruct(scan, tmp_path / "pgm", "--momentum", "none", "--iterations", "6")
    assert not np.array_equal(halves, whole)
    np.testing.assert_allclose(whole, plain, atol=1e-5 * np.abs(plain).max())
    events = (tmp_path / "halves" / "events.jsonl").read_text()
    assert "distance" in events  # of its own map
    reconstruct(scan, tmp_path / "half", "--algorithm", f"{own}:Relaxed", "--iterations", "3")
    assert main(["resume", str(tmp_path / "half"), "--iterations", "6"]) == 2  # the file is run with consent only
    assert main(["resume", str(tmp_path / "half"), "--iterations", "6", "--trust"]) == 0
    assert np.array_equal(np.load(tmp_path / "half" / "result.npy"), halves)


def test_what_an_algorithm_needs_is_a_fact_of_it():
    facts = {name: entry.facts for name, entry in entries("algorithm").items()}
    assert [name for name in facts if facts[name].get("prox")] == ["admm", "hqs", "ipa", "inexact-admm", "block-admm"]
    assert facts["pgm"]["uses"] == ("momentum", "gradient")


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ([], "PnP-SGD, accelerated, tv, 10 views a step (uniform)"),
        ([("momentum", "name", "none"), ("gradient", "name", "saga")], "PnP-SAGA, tv, 10 views a step (uniform)"),
        ([("sampler", "name", "all")], "PnP-FISTA, tv, all views"),
        ([("sampler", "name", "fixed"), ("momentum", "name", "none")], "PnP-ISTA, tv, 10 views a step (fixed)"),
        ([("algorithm", "name", "hqs")], "PnP-HQS, tv, 10 views a step (uniform)"),
    ],
)
def test_reports_call_it_by_its_name(words, title):
    assert title_of(resolve(None, words)) == title


def test_settings_that_are_none_are_left_out():
    text = (
        'name = "hqs"\nstep_size = "0.5/L"\nstep_size_end = "none"\nsigma = 0.02\nsigma_end = "none"\n'
        'sigma_steps = "none"\nlam = "none"\nchanges = "none"\n'
        'iterations = 6\ntime_limit = "none"\ndistance_limit = "none"\n'
    )
    import tomllib

    values = [("algorithm", key, value) for key, value in tomllib.loads(text).items()]
    algorithm = resolve(None, values).algorithm
    assert algorithm == AlgorithmSettings.of(name="hqs", step_size="0.5/L", sigma=0.02, iterations=6)
