"""Images that explain their data, and scans that say something wrong of it, of every instrument."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from plugstream.fidelity.by_loss import make_fidelity
from plugstream.fidelity.losses import Amplitude
from plugstream.instruments.base import find_instrument
from plugstream.runs.answers import explain_result
from plugstream.scans import MemoryScan
from plugstream.scans.simulation import measure
from plugstream.solver.verdict.explanation import Explanation
from plugstream.solver.verdict.trials import refit

TINY: dict[str, dict[str, Any]] = {
    "ct": {"size": 24, "views": 30, "photons": 1e5},
    "born-2d": {"size": 24, "wavelength": 0.03, "views": 16, "receivers": 60, "snr": 40.0},
    "scattering-2d": {"size": 16, "views": 9, "receivers": 24, "wavelength": 0.1},
    "ptychography": {"frame": 24, "across": 5, "photons": 2e5},
    "fpm": {"size": 48, "camera": 16, "leds": 5, "photons": 1e6},
    "mri": {"size": 24, "coils": 4, "acceleration": 1.5},
    "odt-3d": {"size": 16, "views": 16},
}


def _simulated(name: str, **options: Any) -> MemoryScan:
    cls = find_instrument(name)
    chosen = cls.simulation(**{**TINY[name], **options})
    experiment = cls.simulate_views(chosen)
    device = torch.device("cpu")
    model = experiment.instrument.build_model(
        experiment.columns, experiment.n_views, device=device, dtype=torch.float32
    )
    return measure(experiment, model, chosen)


def _with(scan: MemoryScan, columns: dict[str, Any] | None = None, data: Any = None, **parts: Any) -> MemoryScan:
    """The scan with something else said of its views."""
    return MemoryScan(
        data=scan.data if data is None else data,
        instrument=replace(scan.instrument, **parts),  # type: ignore[type-var]
        truth=scan.truth,
        columns={**scan.columns, **(columns or {})},
    )


def _explain(scan: MemoryScan, *, fitted: bool = True, **bounds: float) -> Explanation:
    """Whether the best image of a scan explains it: the truth, or a fit to all views as the scan says."""
    instrument: Any = scan.instrument
    model = instrument.build_model(scan.columns, scan.n_views, device=torch.device("cpu"), dtype=torch.float32)
    fidelity = make_fidelity(model, scan, Amplitude() if model.intensities else None)
    image = torch.from_numpy(scan.truth).to(model.dtype)
    if fitted:
        image = _fit(model, fidelity.data(None), image)
    return explain_result(fidelity, image, instrument, scan.columns, **bounds)  # type: ignore[arg-type]


@torch.no_grad()
def _fit(model: Any, data: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """A few gradient steps by all views from the truth: what a run would come to."""
    x = image
    for _ in range(12):
        prediction, pullback = model.linearize(x, None)
        slope = Amplitude().for_model(model).derivative(prediction, data) if model.intensities else prediction - data
        direction = pullback(model.restrict(slope))
        change = model.derivative(x, direction, None)
        x = x - float((direction.abs() ** 2).sum() / (change.abs() ** 2).sum()) * direction
    return x


@pytest.mark.parametrize("name", list(TINY))
def test_the_truth_explains_the_data_of_every_instrument(name: str) -> None:
    found = _explain(_simulated(name), fitted=False)
    assert found.explained, found.text
    assert found.noise is not None
    assert found.factor is not None
    assert found.factor < 1.3
    assert found.causes == ()


def _axis(scan: MemoryScan) -> MemoryScan:
    rays = scan.instrument.rays(scan.columns).shift_detector(columns=2.0)  # type: ignore[attr-defined]
    return _with(scan, {"rays": rays.vectors})


def _dark(scan: MemoryScan) -> MemoryScan:
    """Of a dense sample in a weak beam, whose dark field was subtracted twice."""
    clean = 8 * scan.data.double().numpy()
    counts = np.random.default_rng(0).poisson(3000 * np.exp(-clean)) + 300.0
    line = -np.log(np.maximum(counts - 600, 1) / 2700)
    return _with(scan, data=torch.from_numpy(line.astype(np.float32)))


def _dead(scan: MemoryScan) -> MemoryScan:
    data = scan.data.clone()
    data[7] = 0
    return _with(scan, data=data)


def _wave(scan: MemoryScan) -> MemoryScan:
    return _with(scan, wavelength=1.05 * scan.instrument.wavelength)  # type: ignore[attr-defined]


def _conjugate(scan: MemoryScan) -> MemoryScan:
    return _with(scan, data=scan.data.conj().resolve_conj())


def _probe(scan: MemoryScan) -> MemoryScan:
    return _with(scan, probe=np.abs(scan.instrument.probe).astype(np.complex64))  # type: ignore[attr-defined]


def _maps(scan: MemoryScan) -> MemoryScan:
    return _with(scan, coil_maps=np.roll(scan.instrument.coil_maps, 1, axis=0))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "spoil", "cause"),
    [
        ("ct", _axis, "axis"),
        ("ct", _dead, "view"),
        ("ct", _dark, "bright or too dark"),
        ("ct", lambda s: _with(s, data=s.data + 0.03 * torch.arange(s.data.shape[1]).square().sin()), "rings"),
        ("born-2d", _wave, "wavelength"),
        ("born-2d", _conjugate, "conjugate"),
        ("ptychography", _probe, "probe"),
        ("mri", _maps, "coil maps"),
    ],
)
def test_what_a_scan_says_wrongly_is_named(name: str, spoil: Any, cause: str) -> None:
    found = _explain(spoil(_simulated(name)))
    assert not found.explained, found.text
    assert any(cause in one.name for one in found.causes[:2]), found.text
    assert cause in found.text
    assert found.content()["causes"][0]["advice"]


def _spokes(scan: MemoryScan) -> MemoryScan:
    """Spokes of MRI that are 3 degrees off, each by itself."""
    turn = np.deg2rad(3) * np.random.default_rng(0).standard_normal((scan.n_views, 1))
    y, x = np.moveaxis(np.array(scan.columns["trajectory"]), -1, 0)
    c, s = np.cos(turn), np.sin(turn)
    return _with(scan, {"trajectory": np.stack([c * y - s * x, s * y + c * x], -1)})


@pytest.mark.parametrize("snr", [35.0, 20.0])
def test_what_is_beyond_the_noise_is_not_called_explained(snr: float) -> None:
    """And the noise of k-space is known, since all spokes measure its middle."""
    scan = _simulated("mri", size=48, snr=snr)
    good, bad = _explain(scan, fitted=False), _explain(_spokes(scan))
    assert good.noise is not None
    assert good.noise.fraction == pytest.approx(10 ** (-snr / 10), rel=0.3)
    assert good.word == "explained"
    assert bad.beyond or not bad.explained
    assert bad.word != "explained"
    assert bad.factor is not None
    assert bad.factor > 1.3


def test_a_bound_that_hides_values_is_named() -> None:
    scan = _simulated("ct", photons=1e6)
    truth = np.array(scan.truth)
    truth[8:14, 8:14] -= 2 * truth.max()
    instrument: Any = scan.instrument
    model = instrument.build_model(scan.columns, scan.n_views, device=torch.device("cpu"), dtype=torch.float32)
    data = model.forward(torch.from_numpy(truth))
    spoilt = MemoryScan(data=data, instrument=instrument, truth=truth.clip(0), columns=scan.columns)
    found = _explain(spoilt, fitted=False, low=0.0)
    assert not found.explained
    assert any("bound" in one.name for one in found.causes[:2]), found.text


def test_an_image_that_is_far_too_smooth_blames_the_denoiser() -> None:
    scan = _simulated("born-2d", receivers=160)
    truth = torch.from_numpy(scan.truth)
    smooth = torch.nn.functional.avg_pool2d(truth[None, None], 7, 1, 3, count_include_pad=False)[0, 0]
    found = _explain(_with(scan), fitted=False)
    assert found.explained
    blurred = MemoryScan(data=scan.data, instrument=scan.instrument, truth=smooth, columns=scan.columns)
    found = _explain(blurred, fitted=False)
    assert not found.explained
    assert "denoiser" in found.causes[0].name


@pytest.mark.slow
def test_a_metallic_target_is_one_that_the_model_or_its_bound_cannot_have() -> None:
    scan = _simulated("scattering-2d", discs="0.02,0.01,0.03,-60")
    empty = MemoryScan(data=scan.data, instrument=scan.instrument, truth=0 * scan.truth, columns=scan.columns)
    found = _explain(empty, fitted=False, low=0.0)
    assert not found.explained
    assert any("metal" in one.name for one in found.causes[:2]), found.text


def test_a_fit_of_a_linear_model_is_that_of_conjugate_gradients() -> None:
    """Independent reference: the best of each Krylov space, by dense least squares."""
    from plugstream.models import MatrixModel

    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 6, 9, dtype=torch.float64, generator=draw)
    model = MatrixModel(matrix, (3, 3))
    data = torch.randn(4, 6, dtype=torch.float64, generator=draw)
    views = torch.arange(4)
    with torch.no_grad():
        left = list(itertools.islice(refit(model, data, torch.zeros(3, 3, dtype=torch.float64), views), 5))
    a, y = matrix.reshape(24, 9).numpy(), data.reshape(24).numpy()
    basis = [a.T @ y]
    for steps in range(1, 5):
        space = a @ np.stack(basis, 1)
        rest = y - space @ np.linalg.lstsq(space, y, rcond=None)[0]
        assert left[steps] == pytest.approx(float(rest @ rest / (y @ y)), rel=1e-6)
        basis.append(a.T @ (a @ basis[-1]))
