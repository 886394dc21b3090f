"""Scans of what a detector counted: integers on the disk, line integrals where they are used, Poisson's likelihood."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from plugstream.fidelity.by_loss import LossFidelity
from plugstream.fidelity.losses import Transmission
from plugstream.models.ct import CTModel
from plugstream.scans import open_scan
from plugstream.scans.baselines.first_image import relative_residual, scan_model
from small_run import main, main as run

VIEWS, COLUMNS = 40, 33


def write(path: Path, photons: float, *, kind: type = np.uint16, seed: int | None = None) -> None:
    """Counts of a disc with a hole, in a beam that is seven times as strong at one end of the detector."""
    angles = np.pi * np.arange(VIEWS) / VIEWS
    place = np.arange(COLUMNS) - 16.0
    hole = place - 5 * np.cos(angles)[:, None]
    p = 0.16 * (np.sqrt(np.maximum(13.0**2 - place**2, 0)) - np.sqrt(np.maximum(4.0**2 - hole**2, 0)))
    beam = photons * np.linspace(0.25, 1.75, COLUMNS)
    counts = beam * np.exp(-p)
    if seed is not None:
        counts = np.random.default_rng(seed).poisson(counts)
    with h5py.File(path, "w") as file:
        file["exchange/data"] = np.rint(counts + 10)[:, None].astype(kind)
        file["exchange/data_white"] = (beam + 10)[None, None].astype(np.float32)
        file["exchange/data_dark"] = np.full((1, 1, COLUMNS), 10.0, np.float32)
        file["exchange/theta"] = np.rad2deg(angles)


def import_both(file: Path, folder: Path) -> tuple[Path, Path]:
    both = folder / "integrals.zarr", folder / "counts.zarr"
    for out, words in zip(both, ([], ["--counts"]), strict=True):
        assert main(["import", "ct", str(file), str(out), "--center", "16", "--air", "0", *words]) == 0
    return both


def test_integers_stay_on_the_disk_and_are_the_same_integrals(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", 20_000)
    plain, counts = map(open_scan, import_both(tmp_path / "a.h5", tmp_path))
    with h5py.File(tmp_path / "a.h5") as file:
        stored = counts.read()
        assert stored.dtype == torch.uint16
        np.testing.assert_array_equal(stored.numpy(), file["exchange/data"][:, 0])
    assert counts.instrument.name == "ct-counts"
    assert counts.nbytes == plain.nbytes // 2
    model = scan_model(counts)
    assert isinstance(model, CTModel)
    torch.testing.assert_close(model.convert(stored.float()), plain.read(), atol=1e-5, rtol=0)
    some = torch.tensor([7, 3])
    torch.testing.assert_close(model.convert(stored[some].float(), some), plain.read(some), atol=1e-5, rtol=0)
    assert {"step": "counts", "kept": "uint16"} in counts.provenance["steps"]


def test_commands_take_counts_as_they_take_integrals(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "a.h5", 20_000)
    images = []
    for scan in import_both(tmp_path / "a.h5", tmp_path):
        assert main(["baseline", str(scan), str(scan.with_suffix(""))]) == 0
        words = ["--sigma", "0.002", "--iterations", "8", "--out", str(scan.with_suffix(".run"))]
        assert run(["reconstruct", str(scan), *words]) == 0
        assert main(["info", str(scan)]) == 0
        images.append([np.load(scan.with_suffix(".npy")), np.load(scan.with_suffix(".run") / "result.npy")])
    for one, other in zip(*images, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(one).max())
    image = torch.from_numpy(images[0][1])
    left = [relative_residual(open_scan(tmp_path / name), image) for name in ("integrals.zarr", "counts.zarr")]
    assert left[0] == pytest.approx(left[1], rel=1e-4)


def test_the_transmission_loss_of_counts_is_their_poisson_likelihood(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", 100, seed=0)
    scan = open_scan(import_both(tmp_path / "a.h5", tmp_path)[1])
    field, raw = scan.instrument.field, scan.instrument.raw(scan.columns)
    model = scan_model(scan)
    fidelity = LossFidelity(model, scan.read(), Transmission())
    image = torch.full(model.image_shape, 0.05).requires_grad_()
    views = torch.tensor([2, 30])
    photons = (scan.read(views).double() - 10).clamp_min(0.5)
    beam = torch.from_numpy(field.flats[0, 0] - field.dark[0]).double()
    lines = CTModel(model.rays, model.voxels, dtype=torch.float64).forward(image.double(), views)
    expected = beam * torch.exp(-lines)
    likelihood = (expected - photons * torch.log(expected)).sum() / len(views) / raw.usual
    (want,) = torch.autograd.grad(likelihood, image)
    found = fidelity.gradient(image.detach(), views)
    torch.testing.assert_close(found, want, atol=1e-4 * float(want.abs().max()), rtol=0)
    assert fidelity.curvature == pytest.approx(1.75, rel=1e-5)
    assert fidelity.lipschitz_max == pytest.approx(1.75 * float(model.squared_norm_bounds(torch.arange(40)).max()))


def test_what_holds_no_counts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "a.h5", 20_000)
    write(tmp_path / "floats.h5", 20_000, kind=np.float32)
    for file, words, why in (
        ("a.h5", ["--stripes", "5"], "leave them out"),
        ("a.h5", ["--air", "3"], "leave them out"),
        ("floats.h5", [], "not integers"),
    ):
        assert main(["import", "ct", str(tmp_path / file), str(tmp_path / "x.zarr"), "--counts", *words]) == 2
        assert why in capsys.readouterr().err
        assert not (tmp_path / "x.zarr").exists()
