"""K-space of others as scans: grids by points and lines, paths, stacks, ISMRMRD; each gives its image back."""

import numpy as np
import pytest
import torch

from ismrmrd_files import header, write
from plugstream import InputError, open_scan, snr
from plugstream.cli import main
from plugstream.images.simulated import shepp_logan
from plugstream.instruments.mri_simulation import ring_coils
from plugstream.models.kspace import centered_voxels
from plugstream.models.mri import MRIModel
from plugstream.models.trajectories import radial_spokes
from plugstream.scans.baselines.first_image import form_image
from plugstream.scans.importers.base import describe_file, import_file

SHAPE, COILS, CPU = (32, 28), 3, torch.device("cpu")


def picture(shape=SHAPE):
    return (shepp_logan(shape) * np.exp(0.8j * np.linspace(0, 1, shape[-1]))).astype(np.complex64)


def kspace(image, maps):
    axes = (-2, -1)
    return np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(maps * image, axes), axes=axes, norm="ortho"), axes).astype(
        np.complex64
    )


def full_grid():
    maps = ring_coils(SHAPE, COILS)[:, 0]
    return kspace(picture(), maps), maps


def image_of(path):
    """The least-squares image of a fully sampled scan."""
    scan = open_scan(path)
    model = scan.instrument.build_model(scan.columns, scan.n_views, device=CPU, dtype=torch.float32)
    data = model.restrict(scan.read())
    return model, data, scan


def test_points_of_a_grid(tmp_path, capsys):
    grid, maps = full_grid()
    rng = np.random.default_rng(0)
    sampled = rng.random(SHAPE) < 0.4
    sampled[10:22, 8:20] = True
    np.save(tmp_path / "k.npy", grid * sampled)
    for name, more in (("kept", []), ("held", ["--held-out"])):
        words = ["--leave-out", "0.2", "--calibration", "12", "--kernel", "4", "--scale", "none", *more]
        assert main(["import", "mri", str(tmp_path / "k.npy"), str(tmp_path / name), *words]) == 0
    kept, held = open_scan(tmp_path / "kept"), open_scan(tmp_path / "held")
    count = {name: int(scan.columns["mask"][:][:, 0].sum()) for name, scan in (("kept", kept), ("held", held))}
    assert count["kept"] + count["held"] == sampled.sum()
    assert count["held"] == round(0.2 * (sampled.sum() - 144))
    places = [
        {tuple(k) for k in np.round(scan.columns["trajectory"][:][scan.columns["mask"][:][:, 0]], 6).tolist()}
        for scan in (kept, held)
    ]
    assert not places[0] & places[1]
    # What the image predicts is what was measured, up to the maps being estimated.
    model, data, _ = image_of(tmp_path / "held")
    estimated = model.coil_maps.numpy()
    image = (estimated.conj() * maps * picture()).sum(0)
    assert float((model.forward(torch.from_numpy(image)) - data).norm() / data.norm()) < 0.2


def test_lines_of_a_grid_with_maps(tmp_path):
    grid, maps = full_grid()
    grid[:, 1::3] = 0
    np.savez(tmp_path / "k.npz", kspace=grid, coil_maps=maps, pixel=2e-3, truth=picture(), traj=[0])
    about, lines = describe_file(tmp_path / "k.npz")
    assert "plugstream import mri" in about
    assert "on a grid" in lines[0]
    target, found = import_file("mri", tmp_path / "k.npz", tmp_path / "lines.zarr", {"scale": "none"})
    model, data, scan = image_of(target)
    assert found.remarks[0].startswith("not used: traj; the places of samples are called trajectory")
    assert found.views == scan.n_views == 32 - 11
    assert scan.instrument.samples == 28
    assert scan.instrument.voxels.spacing == (2e-3, 2e-3)
    assert float((model.forward(torch.from_numpy(picture())) - data).norm()) < 1e-5 * float(data.norm())
    import_file("mri", tmp_path / "k.npz", tmp_path / "groups.zarr", {"groups": 5})
    model, data, scan = image_of(tmp_path / "groups.zarr")
    assert scan.n_views == 5
    truth = torch.from_numpy(np.asarray(scan.truth))
    assert float((model.forward(truth) - data).norm()) < 1e-5 * float(data.norm())


@pytest.mark.parametrize("unit", ["1/m", "pixel", "fov", "radians"])
def test_a_path_in_any_unit(tmp_path, unit):
    voxels = centered_voxels((32, 32), 1.5e-3)
    maps, path = ring_coils((32, 32), COILS)[:, 0], radial_spokes(voxels, 40)
    data = MRIModel(path, voxels, maps).forward(torch.from_numpy(picture((32, 32)))).numpy()
    scale = {"1/m": 1, "pixel": 1.5e-3, "fov": 32 * 1.5e-3, "radians": 2 * np.pi * 1.5e-3}[unit]
    own = {} if unit == "fov" else {"coil_maps": maps}  # estimating them takes most of the time
    np.savez(tmp_path / "k.npz", data=data, trajectory=scale * path, size=32, pixel=1.5e-3, **own)
    import_file("mri", tmp_path / "k.npz", tmp_path / "k.zarr", {} if own else {"kernel": 4, "calibration": 12})
    scan = open_scan(tmp_path / "k.zarr")
    assert np.allclose(scan.columns["trajectory"][:], path)
    if unit != "fov":
        return
    assert main(["baseline", str(tmp_path / "k.zarr"), str(tmp_path / "cg"), "--method", "cg-sense"]) == 0
    found = np.abs(np.load(tmp_path / "cg.npy"))
    true = np.abs(picture((32, 32)))
    assert snr(found * (found * true).sum() / (found**2).sum(), true) > 10  # a disc of k-space


def test_samples_of_spokes_are_never_taken_for_a_grid(tmp_path):
    """An NPY says nothing of its axes: with a trajectory it is along that, without one it is refused, or said."""
    voxels = centered_voxels((32, 32), 1.5e-3)
    maps, path = ring_coils((32, 32), 6)[:, 0], radial_spokes(voxels, 40)
    data = MRIModel(path, voxels, maps).forward(torch.from_numpy(picture((32, 32)))).numpy()
    np.save(tmp_path / "k.npy", data)
    np.save(tmp_path / "path.npy", path * 1.5e-3)
    assert data.shape[:2] == (40, 6)
    with pytest.raises(InputError, match=r"40 coils of 6 x .*--trajectory FILE\.npy"):
        import_file("mri", tmp_path / "k.npy", tmp_path / "k.zarr")
    values = {"size": 32, "pixel": 1.5e-3, "kernel": 4, "calibration": 12}
    given = values | {"trajectory": str(tmp_path / "path.npy")}
    import_file("mri", tmp_path / "k.npy", tmp_path / "npy.zarr", given)
    np.savez(tmp_path / "both.npz", kspace=data, trajectory=path * 1.5e-3)  # which was a grid, whatever else it had
    import_file("mri", tmp_path / "both.npz", tmp_path / "both.zarr", values)
    np.savez(tmp_path / "apart.npz", data=data)
    import_file("mri", tmp_path / "apart.npz", tmp_path / "apart.zarr", given)
    for name in ("npy", "both", "apart"):
        scan = open_scan(tmp_path / f"{name}.zarr")
        assert scan.n_views == 40
        assert scan.instrument.coils == 6
        assert np.allclose(scan.columns["trajectory"][:], path)
    with pytest.raises(InputError, match="a trajectory of its own; leave out"):
        import_file("mri", tmp_path / "both.npz", tmp_path / "k.zarr", given)
    np.save(tmp_path / "path.npy", path[1:])
    with pytest.raises(InputError, match="for this trajectory must be"):
        import_file("mri", tmp_path / "k.npy", tmp_path / "k.zarr", given)


def test_what_was_made_of_axes_and_phase_is_said(tmp_path):
    grid, _ = full_grid()
    np.save(tmp_path / "k.npy", grid)
    small = {"calibration": 12, "kernel": 4}
    target, found = import_file("mri", tmp_path / "k.npy", tmp_path / "a.zarr", small)
    said = " ".join(found.remarks)
    assert f"taken for {len(grid)} coils of a grid of 32 x 28" in said
    assert "smooth phase is in the coil maps" in said
    assert open_scan(target).provenance["steps"]["smooth phase"] == "in the coil maps"
    for more in ({"keep_phase": True}, {"maps": "adaptive"}):
        target, found = import_file(
            "mri", tmp_path / "k.npy", tmp_path / f"{len(more)}{next(iter(more))}", small | more
        )
        assert "smooth phase" not in " ".join(found.remarks)
        assert "smooth phase" not in open_scan(target).provenance["steps"]


def test_a_stack(tmp_path):
    maps = ring_coils((3, *SHAPE), 2)
    image = picture((3, *SHAPE))
    np.savez(tmp_path / "k.npz", kspace=kspace(image, maps), coil_maps=maps)
    import_file("mri", tmp_path / "k.npz", tmp_path / "k.zarr", {"stack": True, "scale": "none"})
    model, data, scan = image_of(tmp_path / "k.zarr")
    assert scan.instrument.data_shape == (3, 2, 28)
    assert float((model.forward(torch.from_numpy(image)) - data).norm()) < 1e-5 * float(data.norm())


def test_noise_that_was_measured_evens_coils_out(tmp_path):
    """Of coils with common noise, one of them bad: after import it is independent, and CG-SENSE better."""
    grid, maps = full_grid()
    draw = np.random.default_rng(3)
    mix = np.array([[1, 0.6, 0], [0, 1, 0.3j], [0, 0, 12]])

    def noise(*shape):
        white = draw.standard_normal((COILS, *shape)) + 1j * draw.standard_normal((COILS, *shape))
        return 0.01 * np.tensordot(mix, white, 1)

    seen = (grid + noise(*SHAPE)).astype(np.complex64)
    np.savez(tmp_path / "k.npz", kspace=seen, coil_maps=maps, noise=noise(4000), truth=picture())
    found = {}
    for name, words in (("even", {}), ("kept", {"keep_noise": True})):
        target, said = import_file("mri", tmp_path / "k.npz", tmp_path / name, {"scale": "none"} | words)
        model, data, scan = image_of(target)
        assert any("noise is independent" in remark for remark in said.remarks) == (name == "even")
        left = (data - model.forward(torch.from_numpy(np.asarray(scan.truth)))).movedim(1, 0).flatten(1).numpy()
        spread = left @ left.conj().T / left.shape[1]
        spread = spread / np.trace(spread).real * COILS
        assert (np.abs(spread - np.eye(COILS)).max() < 0.15) == (name == "even")
        found[name] = float(snr(form_image(scan, "cg-sense", iterations=20), picture()))
    assert found["even"] > found["kept"] + 3
    np.savez(tmp_path / "few.npz", kspace=seen, coil_maps=maps, noise=noise(5))
    _, said = import_file("mri", tmp_path / "few.npz", tmp_path / "few", {})
    assert any("coils stay as they are: 5 samples" in remark for remark in said.remarks)
    np.savez(tmp_path / "other.npz", kspace=seen, coil_maps=maps, noise=noise(50)[:2])
    with pytest.raises(InputError, match="noise is of 2 coils"):
        import_file("mri", tmp_path / "other.npz", tmp_path / "other", {})


def test_a_noisy_coil_counts_less(tmp_path):
    """Without samples of noise: found in the outer part of k-space. A gain is no noise."""
    y, x = (np.linspace(-3, 3, count) for count in SHAPE)
    smooth, maps = np.exp(-np.add.outer(y**2, x**2)), ring_coils(SHAPE, COILS)[:, 0]
    white = np.random.default_rng(3).standard_normal((2, COILS, *SHAPE)) * 0.005
    seen = kspace(smooth, maps) + white[0] + 1j * white[1]
    noisy = seen.copy()
    noisy[2] += 20 * (white[0] + 1j * white[1])[2]
    known = {"noise": (white[0] + 1j * white[1]).reshape(COILS, -1) * [[1], [1], [20]]}
    gains = np.array([1, 3, 1])[:, None, None]
    found = {}
    for name, data, more, words in (
        ("gain", gains * seen, {"coil_maps": gains * maps}, {}),
        ("noisy", noisy, {}, {}),
        ("kept", noisy, {}, {"keep_noise": True}),
        ("known", noisy, known, {}),
    ):
        np.savez(tmp_path / "k.npz", **{"kspace": data.astype(np.complex64), "coil_maps": maps} | more)
        target, said = import_file("mri", tmp_path / "k.npz", tmp_path / name, words)
        steps = open_scan(target).provenance["steps"]
        assert any("coils with more noise" in remark for remark in said.remarks) == (name == "noisy")
        assert ("noisy coils" in steps) == (name == "noisy")
        image = np.asarray(form_image(open_scan(target), "cg-sense", iterations=20)) / steps["scale"]
        found[name] = float(snr(image, smooth))
    assert list(open_scan(tmp_path / "noisy").provenance["steps"]["noisy coils"]) == ["2"]
    assert found["noisy"] > found["known"] - 1
    assert found["noisy"] > found["kept"] + 3


SPACES = ((56, 32, 1), (84, 64, 5), (28, 32, 1), (42, 64, 5))  # encoded and of the image: samples, mm


def test_ismrmrd_lines_read_twice_as_wide(tmp_path):
    voxels = centered_voxels(SHAPE, (2e-3, 1.5e-3))
    maps = ring_coils(SHAPE, COILS)[:, 0]
    ky, kx = (np.arange(32) - 16) / 0.064, (np.arange(56) - 28) / 0.084
    path = np.stack(np.broadcast_arrays(ky[:, None], kx), 2)
    data = MRIModel(path, voxels, maps, dtype=torch.float64).forward(torch.from_numpy(picture())).numpy()
    noise = [({"flags": ["noise"]}, None, np.ones((COILS, 56)))]
    rows = [({"kspace_encode_step_1": n}, None, data[n]) for n in range(32)]
    write(tmp_path / "k.h5", noise + rows, header(*SPACES, centers=(16, 0)))
    assert "makes a scan of it" in describe_file(tmp_path / "k.h5")[0]
    _, found = import_file("mri", tmp_path / "k.h5", tmp_path / "k.zarr", {"kernel": 4, "calibration": 16})
    assert found.views == 32
    assert any("1 acquisitions of noise" in remark for remark in found.remarks)
    _, stored, scan = image_of(tmp_path / "k.zarr")
    assert np.allclose(scan.columns["trajectory"][:], path)
    assert np.allclose(scan.instrument.voxels.spacing, (2e-3, 1.5e-3))
    scale = scan.provenance["steps"]["scale"]
    assert np.allclose(stored.numpy(), scale * data, atol=1e-5 * float(stored.abs().max()))


def test_ismrmrd_spokes_of_slices(tmp_path):
    voxels = centered_voxels((32, 28), (2e-3, 1.5e-3))
    path = radial_spokes(voxels, 24, 40)
    maps = ring_coils((2, *SHAPE), COILS)
    image = picture((2, *SHAPE))
    data = MRIModel(path, centered_voxels((2, *SHAPE), (5e-3, 2e-3, 1.5e-3)), maps, dtype=torch.float64)
    data = data.forward(torch.from_numpy(image)).numpy()
    parts = path[:, :, ::-1] * np.array([0.084 / 56, 0.064 / 32])  # of the encoded matrix, x first
    rows = [({"slice": z}, parts[n], data[n, z]) for n in range(24) for z in range(2)]
    write(tmp_path / "k.h5", rows, header(*SPACES, kind="radial"))
    words = {"kernel": 4, "calibration": 12, "scale": "none"}
    import_file("mri", tmp_path / "k.h5", tmp_path / "k.zarr", words)
    model, stored, scan = image_of(tmp_path / "k.zarr")
    assert scan.instrument.stack
    assert model.data_shape == (2, COILS, 40)
    assert np.allclose(scan.columns["trajectory"][:], path, atol=1e-3)
    assert np.allclose(stored.numpy(), data, atol=1e-5 * np.abs(data).max())


@pytest.mark.parametrize(
    ("arrays", "values", "said"),
    [
        ({"kspace": np.ones((3, 4, 5, 6, 7), complex)}, {}, "k-space on a grid is"),
        ({"kspace": np.zeros((3, 8, 8), complex)}, {}, "all zero"),
        ({"data": np.ones((4, 2, 5), complex)}, {}, r"k.npz has data \(4, 2, 5\); it must have kspace"),
        ({"data": np.ones((4, 2, 5), complex), "trajectory": np.ones((4, 6, 2))}, {}, "data is"),
        ({"data": np.ones((4, 2, 5), complex), "trajectory": np.ones((4, 5, 2))}, {}, "--size"),
        ({"data": np.ones((4, 2, 5), complex), "trajectory": np.full((4, 5, 2), 77.0), "size": 8}, {}, "fits no unit"),
        ({"kspace": np.ones((3, 8, 8), complex)}, {"held_out": True}, "--leave-out"),
        ({"kspace": np.ones((3, 8, 8), complex), "coil_maps": np.ones((2, 8, 8), complex)}, {}, "coil_maps are"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, arrays, values, said):
    np.savez(tmp_path / "k.npz", **arrays)
    with pytest.raises(InputError, match=said):
        import_file("mri", tmp_path / "k.npz", tmp_path / "k.zarr", values)
    assert not (tmp_path / "k.zarr").exists()


@pytest.mark.parametrize(
    ("size", "answer"),
    [("", "--size 128 or --size 96,128, and of a pixel"), ("4,5,6", "2 axes"), ("1", "from 2 to 16384, not 1,1")],
)
def test_what_a_path_does_not_say_is_asked_for_at_once_and_images_may_be_rectangles(tmp_path, capsys, size, answer):
    place, draw = tmp_path / "spokes.npz", np.random.default_rng(0)
    np.savez(place, data=draw.standard_normal((4, 1, 5)) + 1j, trajectory=draw.uniform(-0.5, 0.5, (4, 5, 2)))
    words = ["import", "mri", str(place), str(tmp_path / "s.zarr")]
    assert main([*words, *(["--size", size] if size else [])]) == 2
    assert answer in capsys.readouterr().err
    assert main([*words, "--size", "12,16"]) == 0
    assert open_scan(tmp_path / "s.zarr").instrument.image.shape == (12, 16)
    assert "so its unit is taken to be pixel (--unit)" in capsys.readouterr().err
