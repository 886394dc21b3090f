"""A package of others, installed by pip, adds a denoiser and a sampler by its entry points."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warm

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "medians"
version = "1.0"

[project.entry-points."plugstream.denoisers"]
median = "medians"
absent = "not_there_at_all"

[project.entry-points."plugstream.samplers"]
middle = "medians"
"""
# What setuptools or hatchling would do, neither of which need be there: a module, its metadata and entry points.
BACKEND = """
import tomllib
import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open("pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    points = "".join(
        f"[{group}]\\n" + "".join(f"{name} = {where}\\n" for name, where in named.items())
        for group, named in project["entry-points"].items()
    )
    about = f"{project['name']}-{project['version']}.dist-info"
    metadata = f"Metadata-Version: 2.1\\nName: {project['name']}\\nVersion: {project['version']}\\n"
    wheel = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files = {f"{about}/METADATA": metadata, f"{about}/WHEEL": wheel, f"{about}/entry_points.txt": points}
    with open("medians.py") as file:
        files["medians.py"] = file.read()
    files[f"{about}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{about}/RECORD"])
    name = f"{project['name']}-{project['version']}-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
    return name
"""
MEDIANS = """
from plugstream.base.registry import Field, Options, register


class MedianOptions(Options):
    size: int = Field(3, ge=1, description="pixels a side of the window")


@register("denoiser", "median", "the median of a window", options=MedianOptions, licence="MIT", sigma="unused")
def build_median(options):
    import torch

    def median(z, sigma):
        half = options.size // 2
        rows = [torch.roll(z, (i, j), (-2, -1)) for i in range(-half, half + 1) for j in range(-half, half + 1)]
        return torch.stack(rows).median(0).values

    return median


@register("sampler", "middle", "the views in the middle")
def build_middle(options, fidelity):
    from plugstream.algorithms.sampling import FixedViews

    return FixedViews(tuple(range(fidelity.n_views // 4, 3 * fidelity.n_views // 4)))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder that pip installed the package into, beside what is installed here; no network is used."""
    folder = tmp_path_factory.mktemp("others")
    package = folder / "medians"
    package.mkdir()
    for name, text in {"pyproject.toml": PYPROJECT, "backend.py": BACKEND, "medians.py": MEDIANS}.items():
        (package / name).write_text(text)
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    words = [sys.executable, "-m", "pip", "install", *flags, "--target", str(folder / "site"), str(package)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "site"


# plugstream, once for each list of words: what it returns, prints and says.
COMMANDS = """
import contextlib, io, json, sys
sys.path.append(sys.argv[2])
from plugstream.cli import main

answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    answers.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(site, scan, tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """What plugstream says, in a process of its own, where the package is; `folder` is that of its run."""
    folder = tmp_path_factory.mktemp("answers")
    words = ["reconstruct", str(scan), "--out", str(folder / "run"), "--sigma", "0.02", "--iterations", "4"]
    asked = {
        "help": ["reconstruct", "--denoiser", "median", "--help"],
        "denoisers": ["denoisers"],
        "samplers": ["samplers"],
        "run": [*words, "--denoiser", "median", "--size", "5", "--sampler", "middle", "--report", "none"],
        "absent": ["reconstruct", str(scan), "--sigma", "1", "--denoiser", "absent"],
    }
    command = [sys.executable, "-c", COMMANDS, json.dumps(list(asked.values())), str(site)]
    done = warm.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = dict(zip(asked, map(tuple, json.loads(done.stdout)), strict=True))
    assert found["run"][0] == 0, found["run"][2]
    return {**found, "folder": (0, str(folder / "run"), "")}


def test_a_package_of_others_adds_a_denoiser_and_a_sampler(answers):
    (line,) = [line for line in answers["denoisers"][1].splitlines() if line.startswith("median ")]
    assert "--size" in line
    assert "MIT" in line
    assert any(line.startswith("middle ") for line in answers["samplers"][1].splitlines())
    folder = Path(answers["folder"][1])
    text = (folder / "settings.toml").read_text()
    assert 'name = "median"' in text
    assert "size = 5" in text
    assert 'name = "middle"' in text
    assert np.isfinite(np.load(folder / "result.npy")).all()


def test_help_shows_its_options_and_what_cannot_be_loaded_is_told(answers):
    assert "--size" in answers["help"][1]
    status, _, said = answers["absent"]
    assert status == 2
    assert "'absent' of an installed package cannot be loaded: ModuleNotFoundError" in said


def test_it_is_not_there_without_its_package(scan, capsys):
    from plugstream.cli import main

    assert main(["reconstruct", str(scan), "--sigma", "1", "--denoiser", "median"]) == 2
    assert "there is no denoiser 'median'" in capsys.readouterr().err
