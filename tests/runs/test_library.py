"""A reconstruction from Python is the command's, and a result is read from disk as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream.cli import main

SHORT = {"sigma": 0.02, "batch": 4, "iterations": 20, "threads": 1}


@pytest.fixture(scope="module")
def by_command(scan, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("command") / "run"
    words = [f"--{name}={value}" for name, value in SHORT.items()]
    assert main(["reconstruct", str(scan), "--out", str(folder), *words]) == 0
    return folder


def test_without_a_folder_the_image_is_that_of_the_command(scan, by_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ps.reconstruct(scan, **SHORT)
    assert np.array_equal(result.image.numpy(), np.load(by_command / "result.npy"))
    assert list(tmp_path.iterdir()) == []
    assert set(result.verdict.answers) == set(ps.load_result(by_command).verdict.answers)


@pytest.mark.parametrize("kind", ["path", "opened", "memory"])
def test_with_a_folder_it_leaves_what_the_command_leaves(scan, by_command, tmp_path, kind, capsys):
    given = {"path": str(scan), "opened": ps.open_scan(scan), "memory": ps.open_scan(scan).load()}[kind]
    result = ps.reconstruct(given, tmp_path / "run", **SHORT)
    names = {path.name for path in (tmp_path / "run").iterdir()} - {"scan.zarr"}
    assert names == {path.name for path in by_command.iterdir()}
    assert (tmp_path / "run" / "scan.zarr").exists() == (kind == "memory")
    assert np.array_equal(np.load(tmp_path / "run" / "result.npy"), result.image.numpy())
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "run"), "--iterations", "25"]) == 0
    assert ps.load_result(tmp_path / "run").state.k == 25


def test_nothing_set_is_what_the_command_chooses(scan, tmp_path):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--denoiser", "tv", "--threads", "1"]) == 0
    result = ps.reconstruct(scan, denoiser="tv", threads=1)
    assert np.array_equal(result.image.numpy(), np.load(tmp_path / "run" / "result.npy"))
    assert str(result.verdict.strength) == str(ps.load_result(tmp_path / "run").verdict.strength)


def test_a_result_is_read_as_it_was_written(scan, by_command, tmp_path):
    loaded = ps.load_result(by_command)
    loaded.save(tmp_path / "again")
    again = ps.load_result(tmp_path / "again")
    for one in (loaded, again):
        assert torch.equal(one.image, torch.from_numpy(np.load(by_command / "result.npy")))
        assert one.state.k == SHORT["iterations"]
        assert one.space == ps.ImageSpace.of(ps.open_scan(scan))
        assert one.history["snr"].value[-1] > one.history["snr"].value[0]
    assert loaded.verdict == again.verdict
    assert loaded.measured() == again.measured()
    assert (by_command / "result.tif").read_bytes() == (tmp_path / "again" / "result.tif").read_bytes()
    html = again._repr_html_()
    assert all(question in html for question in again.verdict.answers)
    assert "data:image/png" in html


def test_several_images_are_saved_too(regression, tmp_path):
    algorithm = ps.ProximalGradient(regression, ps.TV(), sigma=0.1, sampler=2)
    result = ps.solve(algorithm, np.zeros((3, 4, 5)), iterations=4, monitors=[ps.Distance()], every=2)
    result.save(tmp_path / "several")
    loaded = ps.load_result(tmp_path / "several")
    assert torch.equal(loaded.image, result.image)
    assert np.array_equal(loaded.history["distance"].value, result.history["distance"].value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda scan, place: ps.reconstruct(scan, sigmaa=1), "there is no setting 'sigmaa'; did you mean sigma?"),
        (lambda scan, place: ps.reconstruct(scan, sigma="much"), "sigma"),
        (lambda scan, place: ps.reconstruct(scan, denoiser="tvv"), "tvv"),
        (lambda scan, place: ps.reconstruct(scan, place, sigma=0.02), "exists already"),
        (lambda scan, place: ps.reconstruct(scan, sigma=0.02, follow=True), "plugstream follow"),
        (lambda scan, place: ps.reconstruct("nowhere.zarr"), "nowhere.zarr"),
        (lambda scan, place: ps.reconstruct(np.zeros((4, 4))), "a scan, or where it lies"),
        (lambda scan, place: ps.load_result(place), "no result.json"),
        (lambda scan, place: ps.load_result(scan), "no result.json"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(scan, tmp_path, call, words):
    with pytest.raises(ps.InputError, match=words) as error:
        call(scan, tmp_path)
    assert len(str(error.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["", "{}", "[" * 5000, '{"steps": 1}'])
def test_a_damaged_result_gets_one_line(by_command, tmp_path, damage):
    (tmp_path / "result.json").write_text(damage)
    (tmp_path / "result.npy").write_bytes((by_command / "result.npy").read_bytes())
    with pytest.raises(ps.InputError, match="cannot be read"):
        ps.load_result(tmp_path)


def test_what_is_no_number_is_no_number_in_json(by_command):
    """Of measurements that are not there; standard JSON has no NaN."""
    json.loads((by_command / "result.json").read_text(), parse_constant=lambda text: pytest.fail(text))
