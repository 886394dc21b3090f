"""Defaults that follow from a scan of ptychography: a loss by its photons, and a sigma by its dose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugstream.algorithms import ProximalGradient
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.denoisers import Identity
from plugstream.fidelity.by_loss import LossFidelity
from plugstream.fidelity.losses import Amplitude, Poisson
from plugstream.instruments.ptychography import Ptychography, PtychographySimulation
from plugstream.models.ptychography import PtychographyModel
from plugstream.runs import commands
from plugstream.runs.advice import advised_settings
from plugstream.runs.replay import replay
from plugstream.runs.search import advised_sigma, make_race
from plugstream.scans import open_scan
from plugstream.settings import resolve
from small_run import main

SMALL = ["--instrument", "ptychography", "--frame", "16", "--across", "6"]


def make_instrument(photons: float, frame: int = 16) -> tuple[Ptychography, dict[str, np.ndarray], int]:
    experiment = Ptychography.simulate_views(PtychographySimulation(frame=frame, across=6, photons=photons))
    return experiment.instrument, experiment.columns, experiment.n_views


def advice_of(photons: float, frame: int = 16) -> dict[tuple[str, str], object]:
    instrument, columns, n_views = make_instrument(photons, frame)
    found = instrument.advise_scan(columns, n_views, 10)
    return {(one.section, one.key): one.value for one in reversed(found) if not one.search}  # what comes first counts


def test_few_photons_a_pixel_are_compared_by_their_likelihood_and_many_by_their_roots():
    assert advice_of(19 * 256)["loss", "name"] == "poisson"
    assert advice_of(21 * 256)["loss", "name"] == "amplitude"
    assert advice_of(21 * 256, 32)["loss", "name"] == "poisson"  # as many photons on four times as many pixels


def test_sigma_falls_as_the_fifth_root_of_the_dose_however_it_came_together():
    instrument, columns, n_views = make_instrument(1000.0)
    one, more = (advice_of(photons)["algorithm", "sigma"] for photons in (1000.0, 32_000.0))
    assert one / more == pytest.approx(2, rel=0.05)
    twice = {"positions": np.concatenate([columns["positions"]] * 32)}
    found = advised_sigma(resolve(), instrument, twice, 32 * n_views)
    assert found.value == pytest.approx(more, rel=0.05)


def test_a_sigma_of_tv_is_advised_to_no_denoiser_that_takes_a_noise_level():
    instrument, columns, n_views = make_instrument(1000.0)
    weight, noise = (resolve(None, [("denoiser", "name", name)]) for name in ("tv", "bm3d"))
    assert advised_sigma(weight, instrument, columns, n_views) is not None
    assert advised_sigma(noise, instrument, columns, n_views) is None


@pytest.mark.parametrize(("loss", "darker"), [(Amplitude(), True), (Poisson(floor=0.02), False)])
def test_roots_of_few_photons_make_the_object_darker_and_their_likelihood_does_not(loss, darker):
    instrument, columns, _ = make_instrument(50.0)
    model = PtychographyModel(columns["positions"], instrument.probe, instrument.image.shape)
    counts = np.random.default_rng(3).poisson(model.forward(model.start_image()).abs().square().sum(-3).numpy())
    fidelity = LossFidelity(model, torch.from_numpy(counts).float(), loss)
    algorithm = ProximalGradient(fidelity, Identity(), sigma=0.0, step_size="overlap")
    state = algorithm.init()
    for _ in range(30):
        state = algorithm.step(state)
    light = fidelity.overlap()
    lit = light > 0.3 * light.max()
    power = float((state.image.abs() ** 2)[lit].mean())  # 1, and more by what noise adds
    assert (power < 0.8) == darker


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    place = tmp_path_factory.mktemp("scan") / "s.zarr"
    assert main(["simulate", str(place), *SMALL, "--photons", "500"]) == 0
    return place


def advised(place, *words):
    typed = [str(place), *words]
    return advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), open_scan(place))


def test_nothing_but_the_scan_is_needed_and_the_floor_is_that_of_waves(small):
    settings, told = advised(small)
    assert "the beam has 2 photons a pixel, whose roots would be biased (--loss poisson)" in told
    assert any("the first 144 steps search for it, starting at 0.07" in text for text in told)
    assert (settings.denoiser.name, settings.algorithm.name, settings.algorithm.fall) == ("tnrd", "inexact-admm", 24)
    for words in (["--fall", "60"], ["--loss", "poisson"], ["--loss", "amplitude"]):  # which mean no other algorithm
        typed = advised(small, *words)[0]
        assert (typed.denoiser.name, typed.algorithm.fall) == ("tnrd", 60 if "--fall" in words else 24)
    _, told = advised(small, "--denoiser", "tv")
    assert any("the first 250 steps search for it, starting at 0.0" in text for text in told)
    assert (settings.loss.name, settings.loss.floor) == ("poisson", 0.02)


def test_a_loss_that_is_typed_counts_and_has_no_floor_of_another(small):
    settings, _ = advised(small, "--loss", "amplitude")
    assert settings.loss.name == "amplitude"


def test_a_probe_that_is_refined_keeps_to_roots(small):
    settings, told = advised(small, "--refine", "probe", "--sigma", "0.02")
    assert settings.loss.name == "amplitude"
    assert not any("--loss poisson" in text for text in told)


def test_a_search_with_an_expected_sigma_goes_on_to_the_bit(small, tmp_path, monkeypatch):
    words = ["--search", "20", "--iterations", "24", "--threads", "1", "--checkpoint", "0"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["reconstruct", str(small), "--out", str(whole), *words]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(commands.Requests, "due", lambda self, k: k >= 9)
        main(["reconstruct", str(small), "--out", str(parts), *words])
    assert replay(parts / "events.jsonl").step < 20
    assert main(["resume", str(parts)]) == 0
    assert (parts / "result.npy").read_bytes() == (whole / "result.npy").read_bytes()


def test_the_race_trusts_the_advice_as_a_prior_of_its_logarithm(small):
    scan = open_scan(small)
    for loss, nats in (("poisson", 1.0), ("amplitude", 4.0)):
        settings, _ = advised(small, "--loss", loss, "--fall", "none")
        sigma = advised_sigma(settings, scan.instrument, scan.columns, scan.n_views)
        views = torch.arange(36)
        model = scan.instrument.build_model(scan.columns, 36, device=torch.device("cpu"), dtype=torch.float32)
        fidelity = LossFidelity(model, scan.read().float(), settings.loss.build(), available=views[3:])
        race = make_race(settings, ProximalGradient(fidelity, Identity(), sigma=0.1), views[:3], sigma)
        assert race.expected == sigma.value
        assert race.pull == pytest.approx(1 / (nats * 3 * sigma.spread**2))
