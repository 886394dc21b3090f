"""The walk-throughs of docs/, from a file to an image, as they stand there, on files that field_files.py makes.

Runs are short here, and those of `make test-slow` exactly as written. `make test-peers` has the files written by
nexusformat, ismrmrd and qpimage, and runs deepinv's walk-through.
"""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import field_files
import plugstream as ps
from effort import THOROUGH, effort, thorough
from plugstream import cli, open_scan
from printed import section

pytestmark = [thorough, pytest.mark.timeout(effort(180, 900))]
DOCS = Path(__file__).parents[1] / "docs"
ALL = ["--sampler", "all", "--iterations", "40"]
QUICK = ["--report", "none", "--threads", "1"]


def commands(page: str, title: str) -> list[list[str]]:
    """The commands of a section; a backslash at its end continues a line."""
    text = re.sub(r" \\\n +", " ", section(DOCS / page, title))
    return [shlex.split(line) for line in re.findall(r"^    plugstream (.*)$", text, re.MULTILINE)]


@pytest.fixture
def walk(tmp_path, monkeypatch, capsys):
    """Runs the commands of a section: what they print, by the words of each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(page: str, title: str, *short: str) -> dict[str, str]:
        said = {}
        for words in commands(page, title):
            more = [] if THOROUGH or words[0] != "reconstruct" else [*QUICK, *short]
            assert cli.main([*words, *more]) == 0, (words, capsys.readouterr())
            shown = capsys.readouterr()
            said[" ".join(words)] = shown.out + shown.err
        return said

    return run


def residuals(said: dict[str, str]) -> dict[str, float]:
    """By `plugstream residual`, of each image."""
    shown = "".join(text for words, text in said.items() if words.startswith("residual"))
    return {name: float(value) for value, name in re.findall(r"^([\d.]+)  (\S+)$", shown, re.MULTILINE)}


def quality(found: Any, truth: Any) -> float:
    """SNR of an image up to a factor, in dB."""
    factor = np.vdot(found, truth) / np.vdot(found, found).real
    return float(ps.snr(np.abs(factor * found - truth) + np.abs(truth), np.abs(truth)))


def test_a_nexus_file(walk):
    truth = field_files.write_nexus(Path("scan.nxs"))
    said = walk("tomography.md", "A NeXus file", "--iterations", "40")
    assert "NXtomo: 60 projections" in said["info scan.nxs"]
    judged = residuals(said)
    assert judged["run"] < 0.6 * judged["first.npy"]
    assert ps.snr(np.load("run/result.npy"), truth) > ps.snr(np.load("first.npy"), truth) + 3


def test_a_folder_of_tiffs_with_its_axis_off_centre(walk):
    title = "A folder of TIFFs, its rotation axis off centre"
    description = section(DOCS / "tomography.md", title).strip().split("\n\n")[1]
    truth = field_files.write_tiffs(Path("tiffs"), description.replace("    ", ""))
    said = walk("tomography.md", title)
    axis = re.findall(r"the rotation axis is seen at column ([\d.]+)", " ".join(said.values()))[0]
    assert float(axis) == pytest.approx(field_files.AXIS, abs=0.1)
    judged = residuals(said)
    assert judged["found.npy"] < 0.7 * judged["middle.npy"]
    assert ps.snr(np.load("found.npy"), truth) > 15


def test_an_ismrmrd_file(walk):
    truth = field_files.write_ismrmrd(Path("scan.h5"))
    said = walk("mri.md", "An ISMRMRD file", *ALL)
    assert "ISMRMRD, cartesian" in said["info scan.h5"]
    judged = residuals(said)
    assert judged["run"] < 0.8 * judged["cg.npy"]
    assert quality(np.abs(np.load("run/result.npy")), truth) > 25


def test_plain_arrays_of_kspace(walk):
    truth = field_files.write_kspace(Path("kspace.npy"))
    said = walk("mri.md", "Plain arrays", *ALL)
    assert "import mri kspace.npy" in said["info kspace.npy"]
    assert "4 coils of a grid of 64 x 64" in " ".join(said.values())
    assert residuals(said)["grid-run"] < 0.4
    assert quality(np.abs(np.load("grid-run/result.npy")), truth) > 25


def _object(found: Any, truth: Any) -> float:
    """SNR of the middle of an object, up to a factor and a shift by a few pixels, which the beam may have instead."""
    half, margin = 4, 16
    wanted = truth[margin:-margin, margin:-margin]
    first = (np.array(found.shape) - wanted.shape) // 2
    return max(
        quality(found[a : a + wanted.shape[0], b : b + wanted.shape[1]], wanted)
        for a in range(first[0] - half, first[0] + half + 1)
        for b in range(first[1] - half, first[1] + half + 1)
    )


PROBE = ["--sigma", "0.01", "--iterations", "60"]


def test_cxi_and_ptypy(walk):
    truth = field_files.write_cxi(Path("scan.cxi"))
    field_files.write_ptyd(Path("scan.ptyd"))
    said = walk("ptychography.md", "A CXI file, or one of ptypy", *PROBE)
    assert "CXI: 100 frames of 32 x 32 pixels, no probe" in said["info scan.cxi"]
    assert "it has no probe: a first one" in " ".join(said.values())
    assert residuals(said)["run"] < 0.12
    assert Path("run/refined-probe.png").exists()
    assert _object(np.load("run/result.npy"), truth) > 12
    one, other = open_scan("seen.zarr"), open_scan("ptypy.zarr")
    assert np.array_equal(one.read(), other.read())
    np.testing.assert_allclose(one.columns["positions"][:], other.columns["positions"][:], atol=1e-6)


def test_own_hdf5_with_a_mapping_and_a_probe_made_for_it(walk):
    truth = field_files.write_own_hdf5(Path("own.h5"))
    said = walk("ptychography.md", "An HDF5 file of your own", *PROBE)
    assert "/scan/frames  (100, 32, 32) uint16" in said["info own.h5"]
    assert "it has no probe: a first one" in " ".join(said.values())
    assert _object(np.load("own-run/result.npy"), truth) > 12


def test_pictures_under_leds(walk):
    truth = np.angle(field_files.write_leds(Path("leds.mat"), camera=24, across=5))
    said = walk("fourier-ptychography.md", "From a file to an image", "--iterations", "60")
    assert "25 pictures of 24 x 24 pixels under one LED each" in said["info leds.mat"]
    assert "assumed, in metres" in " ".join(said.values())
    assert residuals(said)["run"] < 0.05
    from skimage.transform import resize

    scan, image = open_scan("seen.zarr"), np.load("run/result.npy")
    guard = scan.instrument.guard * image.shape[0] // (24 + 2 * scan.instrument.guard)
    image = image[guard:-guard, guard:-guard]
    phase = np.angle(image * np.exp(-1j * np.angle(image.sum())))
    assert np.corrcoef(resize(phase, truth.shape).ravel(), truth.ravel())[0, 1] > 0.8


def test_holograms_of_a_turning_cell(walk):
    inside = field_files.write_series(Path("cell"), size=effort(20, 32))
    said = walk("odt.md", "From a file to an image", "--iterations", "12")
    assert f"qpimage series of 24 views, {effort(20, 32)} x {effort(20, 32)} pixels" in said["info cell/series.h5"]
    assert residuals(said)["run"] < 0.2
    index = field_files.CELL["medium index"] * np.sqrt(1 + np.load("run/result.npy"))
    step = field_files.CELL_INDEX - field_files.CELL["medium index"]
    assert (index[inside].mean() - field_files.CELL["medium index"]) / step == pytest.approx(1, abs=0.2)
    assert index[~inside].mean() - field_files.CELL["medium index"] < 0.2 * step


def test_fields_of_antennas(walk):
    truth = field_files.write_scattering(Path("lab.npz"))
    said = walk("born.md", "From a file to an image", "--sigma", "0.01", "--iterations", "25", "--sampler", "all")
    assert "E_tot  (16, 48) complex128" in said["info lab.npz"]
    assert "off by 0.00 of the modelled one" in " ".join(said.values())
    assert residuals(said)["run"] < 0.3
    assert np.corrcoef(np.load("run/result.npy").ravel(), truth.ravel())[0, 1] > 0.9


def _run_python(page: str, word: str) -> dict[str, Any]:
    """The names that the Python of a page with this word leaves."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if word in block)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    return names


def test_a_forward_model_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    truth = field_files.write_shots(Path("shots.npz"))
    result = _run_python("guide.md", "shots.npz")["result"]
    assert float(re.findall(r"([\d.]+)% of the frames left out", capsys.readouterr().out)[0]) < 4
    assert ps.snr(result.image, truth) > 20
    assert Path("result.png").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)  # two and a half minutes on two busy ARM cores
def test_a_network_of_ones_own_from_training_to_certificate_to_reconstruction(walk, tmp_path, monkeypatch):
    title = "The whole way, with a network of your own"
    (code,) = re.findall(r"```python\n(.*?)```", section(DOCS / "networks.md", title), re.DOTALL)
    (tmp_path / "net.py").write_text(code)
    (tmp_path / "Train400").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(255, size=(48, 50), dtype=np.uint8)).save("Train400/one.png")
    monkeypatch.setattr("sys.argv", ["net.py", "Train400", "3"])
    runpy.run_path("net.py", run_name="__main__")
    said = walk("networks.md", title, "--fall", "12", "--search", "48", "--iterations", "50", "--arrive", "none")
    assert len(said) == 3
    assert "proved by construction\n  nothing" in next(text for words, text in said.items() if "certify" in words)
    assert (tmp_path / "scan-run" / "result.npy").exists()


def test_a_user_of_deepinv(tmp_path, monkeypatch, capsys):
    pytest.importorskip("deepinv", reason="deepinv is not installed; `make test-peers` has it")
    monkeypatch.chdir(tmp_path)
    _run_python("bridges.md", "dinv.physics.Tomography(")
    ours, filtered = map(float, re.findall(r"([\d.]+) dB", capsys.readouterr().out))
    assert ours > filtered + 10
    assert Path("result.png").exists()
