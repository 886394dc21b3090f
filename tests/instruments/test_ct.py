"""The instrument ct: its scans are stored, read, simulated with photons and masked; what cannot be is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.cli import main
from plugstream.images.simulated import shepp_logan
from plugstream.instruments.base import find_instrument
from plugstream.instruments.ct import CT, CTSimulation, ct_rays
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.models.ct_plausible import outlook
from plugstream.scans import open_scan, save_scan
from plugstream.scans.scan import MemoryScan
from plugstream.scans.simulation import measure

CPU = torch.device("cpu")
BEAMS = ("parallel", "fan", "curved-fan", "cone")


def _simulate(**values: object) -> MemoryScan:
    options = CTSimulation(**{"size": 16, "views": 9, **values})
    experiment = CT.simulate_views(options)
    instrument = experiment.instrument
    model = instrument.build_model(experiment.columns, experiment.n_views, device=CPU, dtype=torch.float32)
    return measure(experiment, model, options)


def _model(scan: MemoryScan) -> object:
    return scan.instrument.build_model(scan.columns, scan.n_views, device=CPU, dtype=torch.float64)


@pytest.mark.parametrize("beam", BEAMS)
def test_a_simulated_scan_is_stored_and_is_the_same_when_read(beam: str, tmp_path: Path) -> None:
    scan = _simulate(beam=beam, slices=5 if beam == "cone" else 0)
    save_scan(scan, tmp_path / "scan.zarr")
    read = open_scan(tmp_path / "scan.zarr")
    assert read.instrument.difference(scan.instrument) == ""
    np.testing.assert_array_equal(ct_rays(read).vectors, ct_rays(scan).vectors)
    np.testing.assert_array_equal(read.read(), scan.data)
    np.testing.assert_array_equal(read.truth, scan.truth)
    assert read.instrument.image.value_unit == "1/m"
    assert read.instrument.describe(read.columns, 9)["views"].startswith("9 over")


@pytest.mark.parametrize("beam", BEAMS)
def test_every_view_sees_all_of_the_image(beam: str) -> None:
    """No voxel is without rays, and no view's outermost pixels see the circle that the image is in."""
    scan = _simulate(beam=beam, slices=4 if beam == "cone" else 0, rows=12 if beam == "cone" else 0)
    model = _model(scan)
    full = torch.ones(model.image_shape, dtype=torch.float64)
    rows = model.forward(full)
    assert float(rows[..., [0, -1]].abs().max()) == 0
    assert float(model.adjoint(torch.ones_like(rows)).min()) > 0


def test_noise_is_that_of_counted_photons() -> None:
    """exp(-y) has the mean exp(-p) and the variance exp(-p) / N."""
    options = CTSimulation(photons=400, seed=3)
    instrument = CT(Voxels((8, 8), 1e-3), 50_000)
    for p in (0.0, 1.0, 2.0):
        noisy = instrument.add_noise(torch.full((1, 50_000), p), {}, options)
        assert noisy.dtype == torch.float32
        share = torch.exp(-noisy.double())
        assert float(share.mean()) == pytest.approx(np.exp(-p), rel=3e-3)
        assert float(share.var()) == pytest.approx(np.exp(-p) / 400, rel=0.03)
    dark = instrument.add_noise(torch.full((1, 50_000), 30.0), {}, options)
    assert bool(torch.isfinite(dark).all())


def test_bad_and_masked_pixels_do_not_count() -> None:
    scan = _simulate()
    good = np.ones((1, scan.data.shape[1]), bool)
    good[0, 7] = False
    mask = np.ones(scan.data.shape, bool)
    mask[2, 3] = False
    rays, voxels = ct_rays(scan), scan.instrument.voxels
    data = scan.data.clone()
    data[2, 3] = torch.nan
    masked = MemoryScan(data, CT.of(rays, voxels, good=good), columns={"rays": rays.vectors, "mask": mask})
    model, whole = _model(masked), _model(scan)
    image = torch.rand(model.image_shape, dtype=torch.float64)
    counts = torch.from_numpy(mask & good)
    torch.testing.assert_close(model.forward(image), whole.forward(image) * counts)
    assert bool(torch.isfinite(model.restrict(masked.data)).all())
    assert "1 of them bad" in masked.instrument.describe(masked.columns, 9)["detector"]
    with pytest.raises(InputError, match="NaN"):
        MemoryScan(data, scan.instrument, columns={"rays": rays.vectors})


def test_outlook_tells_angles_magnification_and_pixels() -> None:
    angles = np.deg2rad([10.0, 55.0, 130.0])
    voxels = Voxels((4, 6, 6), 1e-3)
    seen = outlook(cone_beam(angles, (4, 9), 2e-3, source=0.3, detector=0.2, axis=0.01), voxels)
    np.testing.assert_allclose(seen.angles, angles)
    np.testing.assert_allclose(seen.magnification, 5 / 3)
    np.testing.assert_allclose(seen.pixel, 2e-3 * 3 / 5)
    whole = outlook(parallel_beam(np.arange(36) * np.pi / 18, 9, 1e-3), Voxels((6, 6), 1e-3))
    assert whole.arc == pytest.approx(360)
    part = outlook(parallel_beam(np.deg2rad(np.linspace(0, 90, 31)), 9, 1e-3), Voxels((6, 6), 1e-3))
    assert part.arc == pytest.approx(90)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="no rows"):  # two-dimensional rays that leave the plane
        CT(Voxels((8, 8), 1.0), 5).check_views({"rays": np.arange(24.0).reshape(2, 4, 3)})
    with pytest.raises(InputError, match="sees a volume"):
        CT(Voxels((8, 8), 1.0), 5, 5)
    with pytest.raises(InputError, match="m, or in pixel"):
        CT(Voxels((8, 8), 1.0), 5, unit="mm")
    with pytest.raises(InputError, match="good has shape"):
        CT(Voxels((8, 8), 1.0), 5, good=np.ones((1, 6), bool))
    with pytest.raises(InputError, match="slices"):
        CT.simulate_views(CTSimulation(beam="cone"))
    with pytest.raises(InputError, match="use --beam cone"):
        CT.simulate_views(CTSimulation(beam="fan", slices=3))
    with pytest.raises(InputError, match="inside the image"):
        CT.simulate_views(CTSimulation(beam="fan", source=0.01))
    with pytest.raises(InputError, match="no X-rays"):
        ct_rays(MemoryScan(*_born()))


def _born() -> tuple[np.ndarray, object]:
    from plugstream import BornGeometry, Grid

    geometry = BornGeometry.rings(Grid((8, 8), 0.01), 0.03, views=2, receivers=3, radius=0.5)
    return np.zeros((2, 3), np.complex64), geometry


@pytest.mark.parametrize(
    ("rays", "spacing", "why"),
    [
        (fan_beam([0.0], 9, 1.0, source=3.0, detector=5.0), 1.0, "inside the image"),
        (fan_beam([0.0], 9, 1.0, source=50.0, detector=-20.0), 1.0, "not between"),
        (parallel_beam([0.0], 9, 1e-6), 1.0, "in one unit"),
        (parallel_beam([0.0], 9, 1.0, center=200.0), 1.0, "no view sees"),
    ],
)
def test_a_forgotten_unit_is_noticed(rays: object, spacing: float, why: str) -> None:
    if why == "not between":
        rays = rays.translate([0.0, 300.0, 0.0])
    instrument = CT.of(rays, Voxels((16, 16), spacing))
    with pytest.raises(InputError, match=why):
        instrument.check_plausible({"rays": rays.vectors})


def test_images_that_do_not_fit_are_refused_before_they_are_made() -> None:
    rays = parallel_beam([0.0, 1.0], (4, 9), 1.0)
    huge = CT.of(rays, Voxels((4000, 4000, 4000), 1.0))
    with pytest.raises(InputError, match="3 images of 4000 x 4000 x 4000 takes about"):
        huge.check_model({"rays": rays.vectors}, 2, device=CPU, dtype=torch.float32)
    CT.of(rays, Voxels((4, 8, 8), 1.0)).check_model({"rays": rays.vectors}, 2, device=CPU, dtype=torch.float32)


def test_voxels_that_are_much_too_fine_are_warned_of() -> None:
    rays = parallel_beam([0.0, 1.0], 9, 1.0)
    with pytest.warns(PlugstreamWarning, match="covers 50 voxels"):
        CT.of(rays, Voxels((16, 16), 0.02)).warn_if_implausible({"rays": rays.vectors})


def test_the_phantom_is_the_same_in_the_middle_slice_of_a_volume() -> None:
    flat, volume = shepp_logan((65, 65)), shepp_logan((65, 65, 65))
    np.testing.assert_array_equal(volume[32], flat)
    assert flat.min() == 0
    assert flat.max() == pytest.approx(1)
    assert flat[33, 33] == pytest.approx(0.2)


def test_pictures_are_simulated_and_the_name_leads_here() -> None:
    assert find_instrument("ct") is CT
    scan = _simulate(picture="camera", slices=3, beam="parallel")
    assert scan.truth.shape == (3, 16, 16)
    assert scan.truth[1, 0, 0] == 0  # outside of the circle that every view sees
    assert scan.provenance["y_axis"] == "down"


def test_volumes_are_reconstructed_by_command_and_resumed_to_the_bit(tmp_path: Path) -> None:
    """Also that a volume's bounds are asked of the data, which had taken images for two-dimensional."""
    from plugstream.cli import main

    scan, words = str(tmp_path / "s.zarr"), ["--sigma", "0.5", "--batch", "4", "--report", "none"]
    sizes = ["--size", "12", "--slices", "4", "--beam", "cone", "--views", "12"]
    assert main(["simulate", scan, "--instrument", "ct", *sizes]) == 0
    assert main(["reconstruct", scan, *words, "--iterations", "12", "--out", str(tmp_path / "whole")]) == 0
    assert main(["reconstruct", scan, *words, "--iterations", "5", "--out", str(tmp_path / "part")]) == 0
    assert main(["resume", str(tmp_path / "part"), "--iterations", "12"]) == 0
    whole, part = (np.load(tmp_path / name / "result.npy") for name in ("whole", "part"))
    np.testing.assert_array_equal(whole, part)
    truth = open_scan(scan).truth
    assert np.linalg.norm(whole - truth) < 0.8 * np.linalg.norm(truth)


@pytest.mark.parametrize("unit", ["m", "pixel"])
def test_info_tells_lengths_in_the_unit_of_the_scan(
    unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the size of a pixel is not known nothing is in metres: neither rays nor curvature, voxels nor detector."""
    rays = fan_beam(np.linspace(0, 6, 5), 9, 1.0, source=60.0, detector=25.0, curved=True)
    instrument = CT.of(rays, Voxels((6, 6), (1.0, 1.0)), unit=unit)
    save_scan(MemoryScan(np.ones((5, 9), np.float32), instrument, columns={"rays": rays.vectors}), tmp_path / "s.zarr")
    assert main(["info", str(tmp_path / "s.zarr")]) == 0
    rows = {line.split(" ", 1)[0]: line for line in capsys.readouterr().out.splitlines()}
    assert f"of float64 in {unit}," in rows["rays"]
    for name in ("curvature", "detector", "image"):
        found = re.findall(r"[\d.]+ (m|pixel)\b", rows[name])
        assert found == [unit], rows[name]


def test_verify_refuses_geometry_that_cannot_be(tmp_path: Path, monkeypatch, capsys) -> None:
    """A scan that others wrote was never asked whether it can be; its bytes alone do not tell."""
    rays = parallel_beam(np.linspace(0, 3, 5), 9, 1e-6)
    instrument = CT.of(rays, Voxels((6, 6), (1.0, 1.0)))  # voxels in another unit than the detector
    scan = MemoryScan(np.ones((5, 9), np.float32), instrument, columns={"rays": rays.vectors})
    with monkeypatch.context() as patch:
        for name in ("check_plausible", "warn_if_implausible"):
            patch.setattr(CT, name, lambda *_: None)
        save_scan(scan, tmp_path / "s.zarr")
    assert main(["verify", str(tmp_path / "s.zarr")]) == 2
    assert "unit" in capsys.readouterr().err
