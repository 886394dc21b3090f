"""The default bounds come from the data: negative contrast is not cut off, and what is non-negative stays as it was."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from effort import effort, thorough
from fresnel_files import import_fresnel
from plugstream import BornGeometry, BornModel, Grid, LeastSquares, MatrixModel, save_scan
from plugstream.base.errors import InputError
from plugstream.fidelity.sign_test import Preference, on_bounds, prefer_bounds
from plugstream.images.pictures import load_picture
from plugstream.instruments.born import born_geometry
from plugstream.models import CTModel
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.runs.event_log import read_events
from plugstream.scans.simulation import simulate
from plugstream.settings import resolve
from plugstream.studies.tuning.scan import Search, tune_scan
from small_run import content, main

RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "20"]
FEW = [*RUN, "--iterations", "8"]  # too few for an answer on more than bounds


def discs(size: int, *discs: tuple[float, float, float, float]) -> torch.Tensor:
    """Discs of (x, y, radius, contrast) on zero, in units of half the image's width."""
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return sum(c * ((x - a) ** 2 + (y - b) ** 2 < r * r).float() for a, b, r, c in discs)


def rings(size: int = 32, views: int = 12, receivers: int = 40) -> BornModel:
    grid = Grid((size, size), 0.18 / size)
    return BornModel(
        BornGeometry.rings(grid, 6 * 0.18 / size, views=views, receivers=receivers, radius=1.6), dtype=torch.float32
    )


def preference(model: BornModel, image: torch.Tensor, snr: float) -> float | None:
    return prefer_bounds(LeastSquares(model, simulate(model, image, snr=snr).read())).low


CAMERA = load_picture("camera", 32)
POSITIVE = {
    "camera": CAMERA,
    "disc": discs(32, (-0.3, 0, 0.3, 1.0)),
    "two": discs(32, (-0.4, 0, 0.2, 1.0), (0.4, 0.2, 0.25, 0.5)),
}
SIGNED = {
    "negative": -CAMERA,
    "without mean": CAMERA - CAMERA.mean(),
    "hole": discs(32, (-0.3, 0, 0.3, -1.0)),
    "both": discs(32, (-0.4, 0, 0.2, 1.0), (0.4, 0.2, 0.25, -1.0)),
    "mostly positive": discs(32, (-0.4, 0, 0.2, 1.0), (0.4, 0.2, 0.25, -0.3)),
}


@thorough
@pytest.mark.parametrize(
    ("views", "snr"), effort([(2, 20.0), (12, 40.0)], [(2, 20.0), (2, 40.0), (12, 20.0), (12, 40.0)])
)
def test_the_data_tells_its_sign(views, snr):
    model = rings(views=views, receivers=effort(60, 90))
    for name, image in POSITIVE.items():
        assert preference(model, image, snr) == 0, name
    for name, image in SIGNED.items():
        assert preference(model, image, snr) is None, name


def test_contrast_of_any_scale_tells_the_same():
    model = rings()
    for scale in (1e-4, 1e4):
        assert preference(model, scale * POSITIVE["two"], 30) == 0
        assert preference(model, scale * SIGNED["both"], 30) is None


@pytest.mark.filterwarnings("ignore:the incident field:plugstream.PlugstreamWarning")
def test_real_targets_are_found_non_negative(shared_data):
    """At every frequency, also where the Born model explains next to nothing and the free image is the better fit."""
    every = (("FoamDielIntTM.txt", (2, 8)), ("dielTM_dec8f.exp", (1, 4, 8)), ("twodielTM_8f.exp", (1,)))
    for name, frequencies in effort([("FoamDielIntTM.txt", (8,)), ("dielTM_dec8f.exp", (8,))], every):
        for frequency in frequencies:
            scan = import_fresnel(shared_data / "fresnel" / name, frequency, size=48, width=0.2)
            chosen = prefer_bounds(LeastSquares(BornModel(born_geometry(scan)), scan.read()))
            assert chosen.low == 0, (name, frequency, chosen.reason)


def _beam_data(fringe: float = 0.0, noise: float = 0.006, views: int = 20, columns: int = 200) -> np.ndarray:
    """Line integrals of a disc off the axis, with noise, and beside its edge a bright fringe two columns wide."""
    angles = np.pi * np.arange(views) / views
    off = np.arange(columns) - 99.5 - 15 * np.cos(angles)[:, None]
    data = 0.02 * np.sqrt(np.maximum(60.0**2 - off**2, 0))
    data = data - fringe * ((np.abs(off) > 60) & (np.abs(off) < 62))
    return data + noise * np.random.default_rng(0).normal(size=data.shape)


def _beam_preference(data: np.ndarray) -> Preference:
    rays = parallel_beam(np.pi * np.arange(len(data)) / len(data), data.shape[1], 1.0)
    return prefer_bounds(LeastSquares(CTModel(rays, Voxels((128, 128), 1.0)), data.astype(np.float32)))


def test_line_integrals_below_zero_ask_for_negative_values() -> None:
    """As refraction makes them; noise, an air that was not subtracted, a bad column and single pixels do not."""
    chosen = _beam_preference(_beam_data(fringe=0.06))
    assert chosen.low is None
    assert "below zero by more than noise" in chosen.reason
    column, pixels, offset = (_beam_data() for _ in range(3))
    column[:, 20:22] -= 0.1
    pixels.reshape(-1)[[300, 1000, 1717, 2500, 3333]] -= 1.0
    offset -= 0.02
    for data in (_beam_data(), column, pixels, offset, _beam_data(noise=0.2), np.abs(_beam_data())):
        assert _beam_preference(data).low == 0


def test_little_or_no_data_and_views_that_cannot_be_read():
    model = MatrixModel([np.ones((1, 4))], (2, 2))
    assert prefer_bounds(LeastSquares(model, torch.ones(1, 1))).low == 0
    model = rings()
    assert prefer_bounds(LeastSquares(model, torch.zeros(12, 40, dtype=torch.complex64))).low == 0

    class Half:
        """A scan of which every other view is damaged."""

        n_views = 12
        scan = simulate(model, SIGNED["both"], snr=30)

        def read(self, views=None):
            if any(int(view) % 2 for view in views):
                raise InputError("damaged")
            return self.scan.read(views)

    assert prefer_bounds(LeastSquares(model, Half())).low is None


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    model = rings()
    for name, image in (("positive", POSITIVE["two"]), ("negative", SIGNED["hole"])):
        save_scan(simulate(model, image, snr=40), folder / f"{name}.zarr")
    return folder


@pytest.fixture(scope="module")
def negative(scans: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the negative scan that says nothing of bounds, which tests leave as it is."""
    folder = tmp_path_factory.mktemp("negative") / "run"
    assert main(["reconstruct", str(scans / "negative.zarr"), "--out", str(folder), *RUN]) == 0
    return folder


def low_of(folder: Path) -> object:
    return tomllib.loads((folder / "settings.toml").read_text())["denoiser"]["low"]


def test_negative_contrast_is_reconstructed_by_default(scans, negative, tmp_path):
    """It failed, or gave an empty image with status 0."""
    notes = [event.text for event in read_events(negative / "events.jsonl") if event.kind == "note"]
    assert any("the image may be negative" in text for text in notes)
    assert low_of(negative) == "none"
    truth, image = np.load(negative / "truth.npy"), np.load(negative / "result.npy")
    assert 20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(truth - image)) > 10
    asked = tmp_path / "asked"
    assert main(["reconstruct", str(scans / "negative.zarr"), "--out", str(asked), "--low", "none", *RUN]) == 0
    assert np.array_equal(np.load(asked / "result.npy"), image)


@pytest.mark.parametrize("stored", [[], ["--set", "scan.in_memory=0"]])
def test_a_non_negative_scan_gives_the_same_bits_as_with_low_0(scans, tmp_path, stored):
    for name, extra in (("auto", []), ("zero", ["--low", "0"])):
        words = ["reconstruct", str(scans / "positive.zarr"), "--out", str(tmp_path / name), *FEW, *stored, *extra]
        assert main(words) == 0
        assert low_of(tmp_path / name) == 0
    a, b = (np.load(tmp_path / name / "result.npy") for name in ("auto", "zero"))
    assert np.array_equal(a, b)
    assert a.min() == 0


def test_what_was_chosen_is_not_chosen_again(scans, negative, tmp_path, monkeypatch):
    """Neither by resuming nor by repeating."""
    out = shutil.copytree(negative, tmp_path / "run")
    monkeypatch.setattr("plugstream.runs.plan.prefer_bounds", None)  # whoever calls it now fails
    again = tmp_path / "again"
    words = ["reconstruct", str(scans / "negative.zarr"), "--settings", str(out / "settings.toml")]
    assert main([*words, "--out", str(again), "--iterations", "22"]) == 0
    assert main(["resume", str(out), "--iterations", "22"]) == 0
    assert np.array_equal(np.load(again / "result.npy"), np.load(out / "result.npy"))


def test_a_run_that_had_not_chosen_yet_chooses_when_it_goes_on(negative, tmp_path):
    """Killed between its first file and the choice: there is no checkpoint, and the settings still say "auto"."""
    out = shutil.copytree(negative, tmp_path / "run")
    settings = out / "settings.toml"
    settings.write_text(settings.read_text().replace('low = "none"', 'low = "auto"'))
    for file in (out / "checkpoints").iterdir():
        file.unlink()
    assert main(["resume", str(out)]) == 0
    assert low_of(out) == "none"
    assert np.array_equal(np.load(negative / "result.npy"), np.load(out / "result.npy"))


def test_tuning_asks_the_data_too(tmp_path):
    scan = simulate(rings(), SIGNED["hole"], snr=30)
    settings = resolve(None, [("algorithm", "iterations", 10), ("sampler", "batch", 4)])
    said: list[str] = []
    plan = Search(low=1e-3, high=0.1, evaluations=5)
    best, score = tune_scan(scan, settings, plan, tmp_path / "journal.jsonl", said.append)
    assert best.denoiser.low is None
    assert score > 3
    assert any("may be negative" in text for text in said)
    before = content(tmp_path)
    again, _ = tune_scan(scan, settings, plan, tmp_path / "journal.jsonl", said.append)
    assert again == best
    assert content(tmp_path) == before


def test_settings_of_bounds():
    assert resolve().denoiser.low == "auto"
    assert resolve().denoiser.least == 0
    assert resolve(None, [("denoiser", "low", "none")]).denoiser.least is None
    assert resolve(None, [("denoiser", "low", -0.5)]).denoiser.least == -0.5
    assert resolve(None, [("denoiser", "high", -1.0)]).denoiser.least is None
    with pytest.raises(InputError, match=r"denoiser\.low = 'nothing'"):
        resolve(None, [("denoiser", "low", "nothing")])


def test_an_image_below_zero_alone_can_be_asked_for(scans, tmp_path):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scans / "negative.zarr"), "--out", str(out), "--high", "0", *FEW]) == 0
    assert low_of(out) == "none"
    assert np.load(out / "result.npy").max() == 0


def test_an_image_on_its_bound_is_told_of(scans, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scans / "positive.zarr"), "--out", str(out), *RUN]) == 0
    image = np.load(out / "result.npy")
    part = 100 * float((image <= 1e-4 * image.max()).mean())
    said = capsys.readouterr().err
    assert f"{part:.3g} % of the image sits on its lower bound 0" in said
    assert "--low none" in said
    assert any("sits on its lower bound" in getattr(e, "text", "") for e in read_events(out / "events.jsonl"))


def test_the_part_on_a_bound():
    image = torch.tensor([[0.0, 1.0], [0.0, 0.5]])
    assert on_bounds(image, 0.0, 1.0) == [("low", 0.0, 0.5), ("high", 1.0, 0.25)]
    assert on_bounds(image, None, 2.0) == [("high", 2.0, 0.0)]
    assert on_bounds(torch.zeros(2, 2), 0.0, None) == [("low", 0.0, 1.0)]
