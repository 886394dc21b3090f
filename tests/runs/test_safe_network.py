"""The paper's iteration with the safe network that ships, on real and simulated scans: it comes to a fixed point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fresnel_files import IMPORTER
from plugstream.runs import answers
from plugstream.runs.replay import replay
from plugstream.solver.verdict import Answer
from small_run import main

# How a small scan of each instrument is made; DATA is the folder of the shared data.
SCANS = {
    "tooth": "import ct DATA/ct/tooth.h5 --rows 0 --size 48 --count 45",
    "cylinder": f"import {IMPORTER} DATA/fresnel/dielTM_dec8f.exp --frequency 2 --size 48",
    "brain": "import mri BRAIN",
    "fpm": "simulate --instrument fpm --size 64 --camera 24 --leds 7 --photons 20000",
    "ptychography": "simulate --instrument ptychography --frame 32 --across 6 --photons 20000",
    "scattering-2d": "simulate --instrument scattering-2d --size 32 --width 0.0227 --views 16 --receivers 60",
    "odt-3d": "simulate --instrument odt-3d --size 16 --views 40 --input-snr 30",
}
LEVELS = {"fpm": 0.1}  # of few views, 0.01 for the others
PIXELS = 48  # of the brain, from the middle of its k-space


def distances(scan: Path, out: Path, *flags: str) -> np.ndarray:
    """Those to a fixed point, relative to the first, in a run of PnP-SGD that ends at 1e-6."""
    run = ["reconstruct", str(scan), "--out", str(out), "--denoiser", "unet", "--momentum", "none", "--threads", "1"]
    run += ["--iterations", "1500", "--report", "none", *flags]
    assert main(run) in (0, 3)  # 3: the verdict does not trust the image
    measured = [m.values for m in replay(out / "events.jsonl").measured]
    return np.array([values["relative_distance"] for values in measured])


def middle_of_brain(shared_data: Path, folder: Path) -> Path:
    samples = np.load(shared_data / "mri" / "cartesian_ksp.npy")
    top, left = (n // 2 - PIXELS // 2 for n in samples.shape[1:])
    np.save(folder / "brain.npy", samples[:, top : top + PIXELS, left : left + PIXELS])
    return folder / "brain.npy"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCANS)
def test_the_safe_network_converges_in_the_loop(shared_data, tmp_path, monkeypatch, name):
    """With all views, and with few whose variance is reduced, to 1e-6; with few views alone to their level, and there.

    That level is high for the cylinder, where views contradict each other, as Born's model explains 60 % of the data,
    and highest for fpm, just below a tenth of the start.
    """
    # A run asks at its end whether sigma suits the data, which takes as long as the run.
    monkeypatch.setattr(answers, "probe_strength", lambda *_, **__: Answer("not asked", None, "not asked here"))
    source = SCANS[name].replace("DATA", str(shared_data))
    if name == "brain":
        source = source.replace("BRAIN", str(middle_of_brain(shared_data, tmp_path)))
    kind, *words = source.split()
    scan = tmp_path / "scan.zarr"
    words.insert(2 if kind == "import" else 0, str(scan))
    assert main([kind, *words]) == 0
    sigma = ["--sigma", "0.02" if name == "scattering-2d" else "2%"]
    ways = {"all": ["--sampler", "all"], "svrg": ["--gradient", "svrg"], "few": ["--iterations", "120"]}
    found = {}
    for way, flags in ways.items():
        limit = [] if way == "few" else ["--distance-limit", "1e-6"]
        found[way] = distances(scan, tmp_path / way, *sigma, *flags, *limit)
        assert np.isfinite(found[way]).all()
    assert found["all"][-1] <= 1e-6
    assert found["svrg"][-1] <= 1e-6
    before, after = np.median(found["few"][1:].reshape(2, -1), axis=1)
    assert after <= min(LEVELS.get(name, 0.01), 2 * before)
