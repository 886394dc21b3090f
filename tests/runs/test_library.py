"""A reconstruction from Python is the command's, and a result is read from disk as it was written."""

import json

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream.cli import main

SHORT = {"sigma": 0.02, "batch": 4, "iterations": 20, "threads": 1}


@pytest.fixture(scope="module")
def by_command(scan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("command") / "run"
    words = [f"--{name}={value}" for name, value in SHORT.items()]
    assert main(["reconstruct", str(scan), "--out", str(folder), *words]) == 0
    return folder


def test_nothing_set_and_no_folder_is_what_the_command_chooses(scan, tmp_path, monkeypatch):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--denoiser", "tv", "--threads", "1"]) == 0
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result, written = ps.reconstruct(scan, denoiser="tv", threads=1), ps.load_result(tmp_path / "run")
    assert torch.equal(result.image, written.image)
    assert str(result.verdict.strength) == str(written.verdict.strength)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("kind", ["path", "opened", "memory"])
def test_with_a_folder_it_leaves_what_the_command_leaves(scan, by_command, tmp_path, kind):
    given = {"path": str(scan), "opened": ps.open_scan(scan), "memory": ps.open_scan(scan).load()}[kind]
    result = ps.reconstruct(given, tmp_path / "run", **SHORT)
    left = {path.name for path in (tmp_path / "run").iterdir()} - {"scan.zarr"}
    assert left == {path.name for path in by_command.iterdir()}
    assert (tmp_path / "run" / "scan.zarr").exists() == (kind == "memory")
    assert np.array_equal(np.load(by_command / "result.npy"), result.image.numpy())
    assert main(["resume", str(tmp_path / "run"), "--iterations", "25"]) == 0
    assert ps.load_result(tmp_path / "run").state.k == 25


def test_a_result_is_read_as_it_was_written(scan, by_command, tmp_path, regression):
    json.loads((by_command / "result.json").read_text(), parse_constant=pytest.fail)  # standard JSON has no NaN
    loaded = ps.load_result(by_command)
    loaded.save(tmp_path / "again")
    again = ps.load_result(tmp_path / "again")
    assert torch.equal(again.image, torch.from_numpy(np.load(by_command / "result.npy")))
    assert (again.state.k, again.space, again.verdict) == (20, ps.ImageSpace.of(ps.open_scan(scan)), loaded.verdict)
    assert again.measured() == loaded.measured()
    assert all(question in again._repr_html_() for question in again.verdict.answers)
    algorithm = ps.ProximalGradient(regression, ps.TV(), sigma=0.1, sampler=2)
    several = ps.solve(algorithm, np.zeros((3, 4, 5)), iterations=4, monitors=[ps.Distance()], every=2)
    several.save(tmp_path / "several")
    assert torch.equal(ps.load_result(tmp_path / "several").image, several.image)
    (tmp_path / "again" / "result.json").write_text("[" * 5000)
    with pytest.raises(ps.InputError, match="cannot be read"):
        ps.load_result(tmp_path / "again")


MISTAKES = {
    "did you mean sigma": lambda scan, place: ps.reconstruct(scan, sigmaa=1),
    "tvv": lambda scan, place: ps.reconstruct(scan, denoiser="tvv"),
    "exists already": lambda scan, place: ps.reconstruct(scan, place, sigma=0.02),
    "plugstream follow": lambda scan, place: ps.reconstruct(scan, sigma=0.02, follow=True),
    "must be a scan .see open_scan. or text or a path": lambda scan, place: ps.reconstruct(np.zeros((4, 4))),
    "is a scan; choose a folder": lambda scan, place: ps.reconstruct(scan, sigma=0.02, iterations=1).save(scan),
    "no result.json": lambda scan, place: ps.load_result(scan),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_get_one_line_and_leave_nothing(scan, tmp_path, words):
    with pytest.raises(ps.InputError, match=words) as error:
        MISTAKES[words](scan, tmp_path)
    assert len(str(error.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
