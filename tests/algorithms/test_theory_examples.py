"""The propositions, each by the quick version of its script in examples/theory."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "theory"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def quick(name: str):
    script = importlib.import_module(name)
    return script, script.measure(quick=True)


def test_proposition_1_fixed_points_of_a_prox_are_minimisers():
    _, found = quick("proposition_1")
    assert max(found.apart) < 1e-9
    assert max(found.at_minimiser) < 1e-12
    assert min(found.beside) > 1e-4


def test_proposition_2_holds_for_a_denoiser_that_is_no_prox():
    _, found = quick("proposition_2")
    assert found.asymmetry > 0.1
    assert (found.average <= found.bounds).all()
    # 1/t times a sum that settles: the slope comes near -1 from above.
    assert -1.02 < found.slope.mean < -0.85


def test_proposition_3_admm_has_the_same_fixed_points():
    _, found = quick("proposition_3")
    assert max(found.distance) < 1e-9
    assert max(found.apart) < 1e-8
    assert max(found.moved) < 1e-12


def test_proposition_4_hubers_counterexample_diverges_as_computed():
    script, found = quick("proposition_4")
    assert found.boundedness == pytest.approx(script.C)
    t, first = np.arange(found.sizes.shape[2]), np.abs(found.starts)[:, None]
    for sigma, sizes in zip(found.sigmas, found.sizes, strict=True):
        drift = sigma * math.sqrt(script.C) - script.GAMMA
        if sigma > script.THRESHOLD:
            assert (sizes >= first + t * drift - 1e-9).all()
            assert (sizes[:, -1] > sizes[:, 0]).all()
        else:
            assert (sizes <= np.maximum(first, 1) + 1e-12).all()


@pytest.mark.slow
def test_proposition_5_bounds_the_mean_over_seeds():
    _, cases = quick("proposition_5")
    for case in cases:
        assert (case.mean + case.half <= case.bounds).all()
    floor = {(case.multiple, case.batch): case.floor for case in cases}
    assert floor[0.25, 16] < floor[0.25, 1]  # more views, a lower floor
    assert floor[1.0, 16] < floor[1.0, 1]


@pytest.mark.slow
def test_the_corollarys_rates():
    script, found = quick("corollary")
    for (name, where), case in found.items():
        assert (case.values.mean(0) + case.half <= case.bounds).all()
        if where == "far":  # from a fixed point four seeds tell little, and the full script has more
            assert case.slope.mean + case.slope.half <= script.RATES[name] + 0.1


@pytest.mark.slow
def test_a_script_runs_as_a_program():
    done = subprocess.run([sys.executable, FOLDER / "proposition_4.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("diverges") == 3
    assert done.stdout.count("bounded") == 3


def test_the_certificates_of_the_docs_are_those_of_the_command():
    script = importlib.import_module("certificates")
    page = (script.DOCS / "theory.md").read_text()
    assert script.tables() in page
    names = {file.stem for file in script.FOLDER.glob("*.json")}
    assert {"tv", "bm3d", "nlm-with-a-guide"} <= names
