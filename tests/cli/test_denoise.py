"""`plugstream denoise` on real files of every kind it promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
import zarr
from PIL import Image

from native_build import needs_native
from plugstream import (
    BM3D,
    BM4D,
    TV,
    Anscombe,
    InputError,
    RealImaginary,
    RotatedChannels,
    SliceMean,
    Slices,
    Tiles,
    adapt,
    bm3d_rgb,
)
from plugstream.base.progress import listening
from plugstream.cli import main
from plugstream.denoisers.bm3d.transforms import dct
from plugstream.denoisers.pictures import denoise_picture, denoise_volume
from plugstream.images.volumes import read_volume

SIGMA = 15 / 255


@pytest.fixture
def grey() -> np.ndarray:
    """A noisy 40 x 37 picture with values in [0, 1]."""
    rng = np.random.default_rng(0)
    clean = np.add.outer(np.arange(40) // 9 % 2, np.arange(37) // 7 % 2) / 2
    return np.clip(0.1 + 0.8 * clean + SIGMA * rng.standard_normal((40, 37)), 0, 1)


def ours(pixels: np.ndarray) -> np.ndarray:
    return BM3D()(torch.from_numpy(pixels).float(), SIGMA).double().numpy()


def run(source, target, *more) -> int:
    return main(["denoise", str(source), str(target), "--denoiser", "bm3d", "--sigma", "15/255", *more])


def test_grey_pictures_of_8_and_16_bits(grey, tmp_path):
    eight, sixteen = np.rint(255 * grey).astype(np.uint8), np.rint(65535 * grey).astype(np.uint16)
    Image.fromarray(eight).save(tmp_path / "8.png")
    Image.fromarray(sixteen).save(tmp_path / "16.png")
    tifffile.imwrite(tmp_path / "8.tif", eight)
    tifffile.imwrite(tmp_path / "16.tif", sixteen)
    for name, stored in (("8.png", eight), ("16.png", sixteen), ("8.tif", eight), ("16.tif", sixteen)):
        most = np.iinfo(stored.dtype).max
        target = tmp_path / f"out-{name}"
        assert run(tmp_path / name, target) == 0
        got = tifffile.imread(target) if name.endswith("tif") else np.asarray(Image.open(target))
        assert got.dtype == stored.dtype
        want = np.clip(ours(stored / most), 0, 1) * most
        assert np.abs(got - want).max() <= 0.51 + most * 1e-6


def test_floats_keep_their_range(grey, tmp_path):
    wide = (grey - 3).astype(np.float32)
    tifffile.imwrite(tmp_path / "f.tif", wide)
    np.save(tmp_path / "f.npy", wide)
    for name in ("f.tif", "f.npy"):
        assert run(tmp_path / name, tmp_path / f"out-{name}") == 0
    assert np.allclose(tifffile.imread(tmp_path / "out-f.tif"), ours(wide.astype(np.float64)), atol=1e-5)
    assert np.load(tmp_path / "out-f.npy").min() < -2.5


def test_colour_goes_through_an_opponent_space(grey, tmp_path):
    opponent = dct(3)
    assert np.allclose(opponent @ opponent.T, np.eye(3))
    rgb = np.stack([grey, grey[::-1], 1 - grey], axis=-1)
    eight = np.rint(255 * rgb).astype(np.uint8)
    Image.fromarray(eight).save(tmp_path / "c.png")
    assert run(tmp_path / "c.png", tmp_path / "o.png") == 0
    got = np.asarray(Image.open(tmp_path / "o.png"))
    assert np.abs(got - 255 * np.clip(bm3d_rgb(eight / 255, SIGMA), 0, 1)).max() <= 0.51
    # With another denoiser each channel is on its own.
    words = ["denoise", str(tmp_path / "c.png"), str(tmp_path / "tv.png"), "--sigma", "0.1", "--denoiser", "tv"]
    assert main([*words, "--tol", "1e-4"]) == 0
    stack = torch.from_numpy(np.moveaxis((eight / 255) @ opponent.T, -1, 0).copy()).float()
    alone = np.moveaxis(TV(tol=1e-4)(stack, 0.1).double().numpy(), 0, -1) @ opponent
    assert np.abs(np.asarray(Image.open(tmp_path / "tv.png")) - 255 * np.clip(alone, 0, 1)).max() <= 0.52
    # Bounds are those of the picture, not of the opponent space.
    assert run(tmp_path / "c.png", tmp_path / "low.png", "--low", "0", "--high", "1") == 0
    assert np.array_equal(np.asarray(Image.open(tmp_path / "low.png")), got)
    # The noise goes: what is left differs from the clean picture by less than what came in.
    flat = np.full((24, 24, 3), 0.5) + SIGMA * np.random.default_rng(1).standard_normal((24, 24, 3))
    assert denoise_picture(flat, BM3D(), SIGMA).std() < flat.std() / 3


def test_transparency_is_kept(grey, tmp_path):
    rgba = np.rint(255 * np.stack([grey, grey, grey, grey[:, ::-1]], axis=-1)).astype(np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    assert run(tmp_path / "a.png", tmp_path / "o.png") == 0
    assert np.array_equal(np.asarray(Image.open(tmp_path / "o.png"))[..., 3], rgba[..., 3])


def test_other_denoisers(grey, tmp_path):
    np.save(tmp_path / "a.npy", grey)
    words = ["denoise", str(tmp_path / "a.npy"), str(tmp_path / "o.npy"), "--sigma", "0.2", "--denoiser", "tv"]
    assert main([*words, "--tol", "1e-4"]) == 0
    want = TV(tol=1e-4)(torch.from_numpy(grey).float(), 0.2).numpy()
    assert np.allclose(np.load(tmp_path / "o.npy"), want, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.png", "o.png", "--sigma", "0.1"], "there is no picture"),
        (["a.npy", "o.npy"], "give --sigma"),
        (["a.npy", "o.npy", "--sigma", "lots"], "sigma must be a number >= 0 such as 15/255, not lots"),
        (["a.npy", "o.npy", "--sigma=-1/255"], "sigma must be a number >= 0"),
        (["a.npy", "a.npy", "--sigma", "0.1"], "exists already"),
        (["a.npy", "o.png", "--sigma", "0.1"], "a PNG cannot hold floating point values"),
        (["a.npy", "o.jpg", "--sigma", "0.1"], "the ending must be .png, .tif or .npy"),
        (["tiny.npy", "o.npy", "--sigma", "0.1"], "5 x 37, but the denoiser needs at least 8 pixels a side"),
        (["nan.npy", "o.npy", "--sigma", "0.1"], "NaN or infinity"),
        (["a.npy", "o.npy", "--sigma", "0.1", "--profile", "slow"], "denoiser.profile = 'slow' cannot be used"),
    ],
)
def test_mistakes(grey, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", grey)
    np.save("tiny.npy", grey[:5])
    np.save("nan.npy", np.full((9, 9), np.nan))
    before = sorted(p.name for p in tmp_path.iterdir())
    assert main(["denoise", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_denoiser_of_volumes_is_refused():
    with pytest.raises(InputError, match="is for volumes, and a picture has two axes"):
        denoise_picture(np.zeros((8, 9)), TV(ndim=3), 0.1)


def test_complex_arrays_are_denoised_without_their_mean_phase(grey, tmp_path, capsys):
    wave = (grey * np.exp(0.4j * grey + 2j)).astype(np.complex64)
    np.save(tmp_path / "wave.npy", wave)
    assert run(tmp_path / "wave.npy", tmp_path / "out.npy") == 0
    assert "on real and imaginary part after the mean phase was taken out; not known" in capsys.readouterr().err
    got = np.load(tmp_path / "out.npy")
    assert got.dtype == np.complex64
    want = RealImaginary(BM3D(), phase="mean")(torch.from_numpy(wave), SIGMA)
    assert np.allclose(got, want, atol=1e-6)
    assert run(tmp_path / "wave.npy", tmp_path / "kept.npy", "--parts", "real-imaginary") == 0
    want = torch.complex(*(BM3D()(torch.from_numpy(part.copy()), SIGMA) for part in (wave.real, wave.imag)))
    assert np.allclose(np.load(tmp_path / "kept.npy"), want, atol=1e-6)
    np.save(tmp_path / "real.npy", grey)
    np.save(tmp_path / "stack.npy", wave[None])
    capsys.readouterr()
    for words, message in (
        (["wave.npy", "no.tif"], "complex numbers are written as .npy"),
        (["real.npy", "no.npy", "--parts", "mean-phase"], "--parts is for complex images, and this one is real"),
        (["stack.npy", "no.tif"], "complex numbers are written as .npy or .zarr"),
        (["stack.npy", "no.npy", "--counts"], "holds complex numbers, and counts are real"),
    ):
        assert run(tmp_path / words[0], tmp_path / words[1], *words[2:]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
        assert not list(tmp_path.glob("no.*"))


@pytest.fixture
def solid() -> np.ndarray:
    """A noisy volume of 10 x 22 x 19 voxels with values in [0, 1]."""
    rng = np.random.default_rng(3)
    clean = 0.2 + 0.5 * (np.add.outer(np.arange(10), np.add.outer(np.arange(22), np.arange(19))) // 9 % 2)
    return np.clip(clean + SIGMA * rng.standard_normal(clean.shape), 0, 1).astype(np.float32)


def test_volumes_in_every_format(solid, tmp_path, capsys):
    want = SliceMean(BM3D())(solid, SIGMA).numpy()
    tifffile.imwrite(tmp_path / "v.tif", solid)
    np.save(tmp_path / "v.npy", solid)
    zarr.save_array(tmp_path / "plain.zarr", solid)
    for source in ("v.tif", "v.npy", "plain.zarr"):
        for end in ("tif", "npy", "zarr"):
            target = tmp_path / f"{source}-out.{end}"
            assert run(tmp_path / source, target) == 0
            got = read_volume(target)
            assert np.allclose(got.values, want, atol=1e-6)
            assert got.values.dtype == np.float32
            assert got.axes == "zyx"
    assert "10 x 22 x 19: the mean of BM3D on the slices along the three axes" in capsys.readouterr().err
    assert run(tmp_path / "v.npy", tmp_path / "y.npy", "--along", "y") == 0
    assert np.allclose(np.load(tmp_path / "y.npy"), Slices(BM3D(), 1)(solid, SIGMA).numpy(), atol=1e-6)
    eight = np.rint(255 * solid).astype(np.uint8)
    tifffile.imwrite(tmp_path / "8.tif", eight, photometric="minisblack")
    assert run(tmp_path / "8.tif", tmp_path / "o.tif", "--low", "0") == 0
    got = tifffile.imread(tmp_path / "o.tif")
    assert got.dtype == np.uint8
    assert np.abs(got - 255 * SliceMean(BM3D())(eight / np.float32(255), SIGMA).clip(0, 1).numpy()).max() < 0.51


def test_ome_zarr_keeps_its_axes_and_scale(solid, tmp_path):
    axes = [{"name": "c", "type": "channel"}] + [{"name": a, "type": "space", "unit": "micrometer"} for a in "zyx"]
    scale = [{"type": "scale", "scale": [1.0, 2.0, 0.5, 0.5]}]
    datasets = [{"path": "full", "coordinateTransformations": scale}]
    for version in (2, 3):
        image = {"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]}
        place = tmp_path / f"in-{version}.zarr"
        attributes = image if version == 2 else {"ome": {"version": "0.5", **image}}
        group = zarr.open_group(place, mode="w", zarr_format=version, attributes=attributes)
        group.create_array("full", data=np.stack([solid, 2 * solid]))
        assert run(place, tmp_path / f"out-{version}.zarr") == 0
        ome = zarr.open_group(tmp_path / f"out-{version}.zarr", mode="r").attrs["ome"]["multiscales"][0]
        assert ome["axes"] == axes
        assert ome["datasets"][0]["coordinateTransformations"] == scale
        got = read_volume(tmp_path / f"out-{version}.zarr")
        assert got.axes == "czyx"
        assert np.allclose(got.values[1], SliceMean(BM3D())(2 * solid, SIGMA).numpy(), atol=1e-5)


def test_volumes_are_for_bm4d_unless_slices_or_a_denoiser_are_asked_for(solid, tmp_path, capsys):
    np.save(tmp_path / "v.npy", solid)
    np.save(tmp_path / "thin.npy", solid[:3])
    for name, more, want in (
        ("v", [], BM4D()),
        ("v", ["--along", "y"], Slices(BM3D(), 1)),
        ("v", ["--denoiser", "bm3d"], SliceMean(BM3D())),
        ("thin", [], Slices(BM3D(), 0)),
    ):
        target = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}.npy"
        assert main(["denoise", str(tmp_path / f"{name}.npy"), str(target), "--sigma", "15/255", *more]) == 0
        values = np.load(tmp_path / f"{name}.npy")
        assert np.allclose(np.load(target), want(values, SIGMA).numpy(), atol=1e-5)
        assert want.describe() in capsys.readouterr().err


def test_a_series_of_pictures_is_no_volume(solid, tmp_path):
    tifffile.imwrite(tmp_path / "t.tif", solid, imagej=True, metadata={"axes": "TYX"})
    assert run(tmp_path / "t.tif", tmp_path / "o.tif") == 0
    got = read_volume(tmp_path / "o.tif")
    assert got.axes == "tyx"
    assert np.allclose(got.values, BM3D()(solid, SIGMA).numpy(), atol=1e-6)


def test_complex_volumes(solid, tmp_path, capsys):
    wave = (solid * np.exp(1j * solid)).astype(np.complex64)
    np.save(tmp_path / "w.npy", wave)
    words = ["denoise", str(tmp_path / "w.npy"), "--sigma", "15/255"]
    assert main([*words, str(tmp_path / "o.npy")]) == 0
    got = np.load(tmp_path / "o.npy")
    assert got.dtype == np.complex64
    assert np.array_equal(got, BM4D()(wave, SIGMA).numpy())
    assert main([*words, str(tmp_path / "o.zarr"), "--along", "z", "--parts", "real-imaginary"]) == 0
    want = RealImaginary(Slices(BM3D(), 0))(wave, SIGMA).numpy()
    assert np.allclose(read_volume(tmp_path / "o.zarr").values, want, atol=1e-6)
    assert "on real and imaginary part" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["energies", "times", "coils"])
def test_channels_share_their_groups(solid, tmp_path, kind):
    how = "opp" if kind == "times" else "principal"
    series = solid[:5] * (np.exp(1j * np.arange(5))[:, None, None] if kind == "coils" else 1)
    series = series.astype(np.complex64 if kind == "coils" else np.float32)
    if kind == "times":
        tifffile.imwrite(tmp_path / "s.tif", series, imagej=True, metadata={"axes": "TYX"})
    else:
        np.save(tmp_path / "s.npy", series)
    source = tmp_path / ("s.tif" if kind == "times" else "s.npy")
    words = ["denoise", str(source), str(tmp_path / "o.npy"), "--sigma", "15/255", "--channels", how]
    assert main(words) == 0
    want = np.moveaxis(bm3d_rgb(np.moveaxis(series, 0, -1), SIGMA, colorspace=how), -1, 0)
    assert np.allclose(np.load(tmp_path / "o.npy"), want, atol=1e-5)
    got = adapt(RotatedChannels(BM3D(), how), series.shape, channels=True, complex=kind == "coils")(series, SIGMA)
    assert np.allclose(got.numpy(), want, atol=1e-5)


def test_tiles_and_the_order_of_axes(solid, tmp_path, capsys):
    np.save(tmp_path / "v.npy", solid)
    words = ["denoise", "--sigma", "15/255"]
    assert main([*words, str(tmp_path / "v.npy"), str(tmp_path / "t.npy"), "--tile", "4", "--halo", "3"]) == 0
    assert np.array_equal(np.load(tmp_path / "t.npy"), Tiles(BM4D(), 4, 3)(solid, SIGMA).numpy())
    tifffile.imwrite(tmp_path / "zc.tif", np.stack([solid] * 2, 1), imagej=True, metadata={"axes": "ZCYX"})
    capsys.readouterr()
    assert main([*words, str(tmp_path / "zc.tif"), str(tmp_path / "o.tif")]) == 0
    assert "2 x 10 x 22 x 19: BM4D" in capsys.readouterr().err
    assert np.allclose(read_volume(tmp_path / "o.tif").values[1], BM4D()(solid, SIGMA).numpy(), atol=1e-6)


def test_progress_counts_slices(solid):
    heard = []
    with listening(lambda *words: heard.append(words)):
        denoise_volume(solid[None].repeat(2, 0), BM3D(), SIGMA)
    assert heard[0] == ("denoising", 0, 102)
    assert heard[-1] == ("denoising", 102, 102)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    assert len({done for _, done, _ in heard}) == 7


@needs_native
def test_progress_of_bm4d_goes_through_a_volume():
    """In slices' worth of work, and the result is the same."""
    volume = np.random.default_rng(0).standard_normal((48, 40, 40)).astype(np.float32)
    heard = []
    with listening(lambda *words: heard.append(words)):
        clean, _ = denoise_volume(volume, BM4D("fast"), 1.0)
    assert np.array_equal(clean, BM4D("fast")(volume, 1.0).numpy())
    assert heard[0] == ("denoising", 0, 48)
    assert heard[-1] == ("denoising", 48, 48)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["v.npy", "o.png"], "for a volume the ending must be .npy, .tif or .zarr"),
        (["v.npy", "v.npy"], "exists already"),
        (["v.npy", "o.npy", "--parts", "mean-phase"], "--parts is for complex images"),
        (["nan.npy", "o.npy"], "NaN or infinity"),
        (["group.zarr", "o.npy"], "no multiscales"),
        (["small.npy", "o.npy", "--denoiser", "bm3d"], "the denoiser needs at least"),
        (["8.npy", "o.npy", "--sigma", "15"], "did you mean 15/255"),
        (["cut.tif", "o.npy"], "cannot read the volume cut.tif"),
        (["v.npy", "o.npy", "--halo", "3"], "a halo was asked for, but no tiles"),
        (["v.npy", "o.npy", "--memory", "1GB"], "use --tile here"),
        (["v.npy", "o.npy", "--rivals", "tv"], "leave --rivals out here"),
        (["flat.npy", "o.npy", "--channels", "opp"], "--channels is for a stack of pictures"),
        (["four.npy", "o.npy", "--channels", "opp"], "the channels of volumes are denoised each on its own"),
        (["v.npy", "o.npy", "--channels", "opp", "--along", "z"], "leave one of them out"),
        (["v.npy", "o.npy", "--channels", "opp", "--denoiser", "bm4d"], "needs a denoiser of images"),
    ],
)
def test_mistakes_with_volumes(solid, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", solid)
    np.save("nan.npy", np.full((9, 9, 9), np.nan))
    np.save("small.npy", solid[:, :6, :7])
    np.save("8.npy", np.rint(255 * solid).astype(np.uint8))
    np.save("flat.npy", solid[0])
    np.save("four.npy", solid[None])
    tifffile.imwrite("whole.tif", solid)
    Path("cut.tif").write_bytes(Path("whole.tif").read_bytes()[:3000])
    zarr.open_group("group.zarr", mode="w")
    assert main(["denoise", "--sigma", "0.1", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("o.*"))
    assert not list(tmp_path.glob(".*"))


def test_counts(tmp_path, capsys):
    truth = 3 + 20 * (np.add.outer(np.arange(24), np.arange(30)) // 8 % 2)
    counts = np.random.default_rng(4).poisson(truth)
    Image.fromarray(counts.astype(np.uint8)).save(tmp_path / "c.png")
    np.save(tmp_path / "c.npy", (0.5 * counts).astype(np.float32))
    np.save(tmp_path / "v.npy", np.stack([counts] * 9).astype(np.uint16))
    words = ["denoise", str(tmp_path / "c.png"), str(tmp_path / "o.png"), "--counts"]
    assert main(words) == 0
    want = Anscombe(BM3D())(counts.astype(np.float32), 1.0).numpy()
    assert np.abs(np.asarray(Image.open(tmp_path / "o.png")) - want).max() <= 0.51
    assert main(["denoise", str(tmp_path / "c.npy"), str(tmp_path / "o.npy"), "--counts", "--gain", "0.5"]) == 0
    assert np.allclose(np.load(tmp_path / "o.npy"), want / 2, atol=1e-3)
    assert main(["denoise", str(tmp_path / "v.npy"), str(tmp_path / "ov.npy"), "--counts", "--along", "z"]) == 0
    assert np.abs(np.load(tmp_path / "ov.npy") - want).max() <= 0.51
    capsys.readouterr()
    rgb = np.zeros((9, 9, 3), np.uint8)
    Image.fromarray(rgb).save(tmp_path / "rgb.png")
    for more, message in (
        (["c.png", "no.png", "--gain", "2", "--sigma", "0.1"], "--gain and --read-noise are for counts"),
        (["rgb.png", "no.png", "--counts"], "not a grey picture of real numbers, as counts are"),
        (["c.png", "no.png", "--counts", "--gain", "0"], "counts need a gain > 0"),
    ):
        assert main(["denoise", str(tmp_path / more[0]), str(tmp_path / more[1]), *more[2:]]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
