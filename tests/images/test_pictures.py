"""Pictures stand as the physics has them, with axes, a unit and a scale, and a result shows itself."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import re
import struct
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
import zarr
from PIL import Image

import plugstream as ps
from effort import effort, thorough
from plugstream import Born2D, ring
from plugstream.base.capacity import reading_at_most
from plugstream.base.errors import InputError
from plugstream.base.files import write_whole
from plugstream.cli import main
from plugstream.images.drawing import Panel, Shades, draw_rows
from plugstream.images.pictures import load_picture, picture_y_axis, read_tiff, save_image
from plugstream.images.space import ImageSpace
from plugstream.images.volumes import read_volume
from plugstream.scans.importers.picture_stack import Stack
from small_run import SMALL

GRID = ps.Grid((12, 9), pixel=0.2 / 64, center=(0.004, -0.002))


def space(y: str) -> ImageSpace:
    scan = SimpleNamespace(instrument=Born2D(ring(4, 1.0), 0.03, GRID), provenance={"y_axis": y})
    return ImageSpace.of(scan)


def bright(i: int, j: int) -> torch.Tensor:
    image = torch.zeros(GRID.shape)
    image[i, j] = 1.0
    return image


def place(i: int, j: int) -> tuple[float, float]:
    """x and y of a pixel in metres, by the grid."""
    x, y = GRID.points().reshape(*GRID.shape, 2)[i, j]
    return float(x), float(y)


@pytest.mark.parametrize("y", ["up", "down"])
@pytest.mark.parametrize("pixel", [(0, 0), (10, 2), (11, 8), (6, 4)])
def test_tiff_tells_imagej_where_a_pixel_is(tmp_path, y, pixel):
    ps.save_image(bright(*pixel), tmp_path / "a", space(y))
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        about, page = file.imagej_metadata, file.pages[0]
        row, column = np.argwhere(page.asarray() == 1.0)[0]
        over, under = page.tags["XResolution"].value
        assert page.tags["ResolutionUnit"].value == 3  # centimetres
    assert about["unit"] == "cm"
    width = under / over
    # How ImageJ's Calibration turns columns and rows into positions.
    x = (column - about["xorigin"]) * width
    down = (row - about["yorigin"]) * width
    found = x / 100, (-down if about.get("inverty") else down) / 100
    assert found == pytest.approx(place(*pixel), abs=1e-9)


def test_png_has_its_scale(tmp_path):
    ps.save_image(bright(10, 2), tmp_path / "a", space("up"))
    content = (tmp_path / "a.png").read_bytes()
    at = content.index(b"pHYs") + 4
    assert struct.unpack(">IIB", content[at : at + 9]) == (320, 320, 1)  # pixels a metre
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.info["plugstream:pixel"] == f"{GRID.pixel!r} x {GRID.pixel!r} m"
        assert picture.info["plugstream:quantity"] == "permittivity contrast"
        row, column = np.argwhere(np.asarray(picture) == 255)[0]
    assert (row, column) == (1, 2)  # y up: the second row from above is the last but one of the array


@pytest.mark.parametrize("pixel", [1e-12, 1e-9, 5.5e-7, 3.0, 1e12])
def test_any_size_of_a_pixel_can_be_written(tmp_path, pixel):
    image = torch.rand(5, 4)
    ps.save_image(image, tmp_path / "a", ImageSpace((5, 4), spacing=(pixel, 2 * pixel), origin=(0.0, 0.0)))
    assert np.array_equal(tifffile.imread(tmp_path / "a.tif"), image.numpy()[::-1])


@pytest.mark.parametrize("y", ["up", "down"])
def test_what_is_saved_is_loaded_again(tmp_path, y):
    image = torch.rand(GRID.shape)
    ps.save_image(image, tmp_path / "a", space(y))
    assert ps.load_picture(tmp_path / "a.npy").equal(image)
    assert ps.load_picture(tmp_path / "a.tif").equal(image)
    assert ps.load_picture(tmp_path / "a.png").sub(image / image.max()).abs().max() < 1 / 255
    assert picture_y_axis(tmp_path / "a.tif") == picture_y_axis(tmp_path / "a.png") == y
    assert np.array_equal(np.load(tmp_path / "a.npy"), image.numpy())


def test_without_a_space_an_image_is_a_picture(tmp_path):
    image = torch.rand(5, 4)
    ps.save_image(image, tmp_path / "a.png")
    assert {path.name for path in tmp_path.iterdir()} == {"a.npy", "a.png", "a.tif"}
    assert np.array_equal(tifffile.imread(tmp_path / "a.tif"), image.numpy())


@pytest.mark.parametrize(("y", "above"), [("up", True), ("down", False)])
def test_a_point_is_drawn_where_it_is(y, above):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    image = bright(10, 2).numpy()
    draw_rows(figure, [[Panel("one", image, Shades.of(image, "permittivity contrast"))]], space(y))
    canvas.draw()
    axes = figure.axes[0]
    x, y_there = (1000 * value for value in place(10, 2))
    column, row = axes.transData.transform((x, y_there))
    pixels = np.asarray(canvas.buffer_rgba())
    assert pixels[len(pixels) - 1 - int(row), int(column), 0] == 255, "the bright pixel is not at its place on the axes"
    middle = axes.transData.transform((0.0, 1000 * GRID.center[1]))[1]
    assert (row > middle) == above
    assert axes.get_xlabel() == "x (mm)"
    assert axes.get_ylabel() == "y (mm)"
    assert any(child.get_ylabel() == "permittivity contrast" for child in axes.child_axes)


@pytest.mark.parametrize(
    ("pixel", "unit"), [(0.18 / 256, "mm"), (0.2 / 64, "mm"), (1.4e-7, "µm"), (1e-9, "nm"), (0.1, "m"), (1e-15, "nm")]
)
def test_the_unit_suits_the_size(pixel, unit):
    half = -32 * pixel
    assert ImageSpace((64, 64), spacing=(pixel, pixel), origin=(half, half)).scale()[0] == unit
    inner = ImageSpace((64, 64), spacing=(pixel * 1e3,) * 2, origin=(half * 1e3,) * 2, unit="mm")
    assert inner.scale()[0] == unit
    assert inner.extent() == pytest.approx(
        ImageSpace((64, 64), spacing=(pixel, pixel), origin=(half, half)).extent(), rel=1e-12
    )


@pytest.mark.parametrize(
    ("provenance", "y"),
    [({}, "up"), ({"y_axis": "down"}, "down"), ({"instrument": {"y_axis": "down"}}, "down"), ({"y_axis": 3}, "up")],
)
def test_a_scan_says_which_way_y_points(provenance, y):
    scan = SimpleNamespace(instrument=Born2D(ring(4, 1.0), 0.03, GRID), provenance=provenance)
    assert ImageSpace.of(scan).upwards == (y == "up")


@pytest.mark.slow
def test_a_photograph_is_upright_in_a_run(tmp_path):
    photograph = np.zeros((24, 24), dtype=np.uint8)
    photograph[3:7, 8:16] = 200  # near the top
    Image.fromarray(photograph).save(tmp_path / "in.png")
    words = ["demo", "--out", str(tmp_path / "run"), *SMALL, "--picture", str(tmp_path / "in.png"), "--size", "24"]
    assert main([*words, "--sigma", "0.01", "--iterations", "3", "--report", "svg,PDF"]) == 0
    with Image.open(tmp_path / "run" / "truth.png") as picture:
        assert np.array_equal(np.asarray(picture) > 100, photograph > 100)
    assert (tmp_path / "run" / "report.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "run" / "report.pdf").read_bytes().startswith(b"%PDF")
    assert not (tmp_path / "run" / "report.png").exists()


def test_an_unknown_report_is_refused(scan, tmp_path, capsys):
    words = ["reconstruct", str(scan), "--sigma", "0.01", "--out", str(tmp_path / "run"), "--report", "docx"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "png, pdf and svg" in error
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def solved():
    grid = ps.Grid((16, 20), pixel=0.01)
    model = ps.BornModel(ps.BornGeometry.rings(grid, 0.05, views=6, receivers=12, radius=0.5))
    truth = torch.zeros(16, 20)
    truth[10:14, 3:8] = 0.5
    scan = ps.simulate(model, truth, snr=30)
    algorithm = ps.ProximalGradient(ps.LeastSquares(model, scan.data), ps.TV(low=0.0), sigma=0.02)
    return scan, ps.solve(algorithm, iterations=6, every=2, monitors=[ps.SNR(truth), ps.Distance()])


def test_a_result_is_one_short_line(solved):
    text = repr(solved[1])
    assert len(text) < 250
    assert "\n" not in text
    for part in ("16 x 20 float32", "6 steps", "all iterations were done", "snr", "relative_distance"):
        assert part in text


def test_what_is_not_of_the_images_shape_is_refused(solved, tmp_path):
    for call in (
        lambda: solved[1].plot(truth=np.ones((7, 7))),
        lambda: solved[1].plot(space=ImageSpace((3, 3))),
        lambda: ps.save_image(np.ones((3, 4)), tmp_path / "a", ImageSpace((3, 3))),
    ):
        with pytest.raises(ps.InputError, match="must be alike"):
            call()
    assert not list(tmp_path.iterdir())


def test_an_image_of_nan_is_written_without_a_word(tmp_path):
    image = np.array([[np.nan, 1.0], [2.0, -np.inf]])
    assert ps.save_image(image, tmp_path / "a") == (0.0, 2.0)
    with Image.open(tmp_path / "a.png") as picture:
        assert np.asarray(picture).tolist() == [[0, 128], [255, 0]]


@thorough
def test_a_result_draws_itself(solved, tmp_path):
    scan, result = solved
    figure = result.plot(scan)
    labels = {axes.get_xlabel() for axes in figure.axes} | {axes.get_title() for axes in figure.axes}
    assert {"x (mm)", "iteration", "truth", "result", "SNR (dB)"} <= labels
    top = figure.axes[0].get_ylim()
    assert top[1] > top[0]  # y up
    figure.set_layout_engine("none")
    for kind, start in effort({"svg": b"<?xml"}, {"pdf": b"%PDF", "svg": b"<?xml"}).items():
        figure.savefig(tmp_path / f"r.{kind}")
        assert (tmp_path / f"r.{kind}").read_bytes().startswith(start)
    assert result._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("image", "titles"),
    [
        (torch.zeros(16, 20), ["result"]),
        (torch.rand(2, 4, 16, 20), [f"image {number}" for number in range(6)]),
        (torch.full((16, 20), 1e30), ["result"]),
        (torch.polar(torch.rand(16, 20), torch.rand(16, 20)), ["result, magnitude", "result, phase"]),
        (torch.full((16, 20), torch.nan), ["result"]),
        (-torch.rand(1, 300), ["result"]),
    ],
    ids=["zero", "many", "huge", "complex", "nan", "negative line"],
)
def test_any_image_can_be_drawn(solved, image, titles):
    history = solved[1].history if image.is_complex() else {}  # of which the curves take most of the time
    changed = dataclasses.replace(solved[1], image=image, history=history)
    figure = changed.plot()
    panels = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_title() for axes in panels] == titles
    first = (image.abs() if image.is_complex() else image).reshape(-1, *image.shape[-2:])[0]
    np.testing.assert_allclose(np.ma.filled(panels[0].get_images()[0].get_array(), np.nan), first, rtol=1e-6)
    drawn = io.BytesIO()
    figure.set_layout_engine("none")  # which takes most of the time
    figure.savefig(drawn, dpi=40)
    with Image.open(drawn) as picture:
        assert min(picture.size) > 50
    if image.is_complex():
        with Image.open(io.BytesIO(changed._repr_png_())) as picture:
            assert min(picture.size) > 500
    assert len(repr(changed)) < 300


def test_where_the_array_of_an_image_is_its_pictures_are(tmp_path, monkeypatch):
    """A run that is killed while it writes an image writes all of it when it goes on."""

    def fail_at_pictures(path, parts):
        if path.suffix == ".tif":
            raise OSError(errno.ENOSPC, "no space left")
        write_whole(path, parts)

    monkeypatch.setattr("plugstream.images.pictures.write_whole", fail_at_pictures)
    with pytest.raises(OSError, match="no space"):
        save_image(torch.rand(4, 5), tmp_path / "truth")
    assert not (tmp_path / "truth.npy").exists()


@pytest.mark.parametrize("name", ["camera", "coins", "moon"])
def test_our_pictures_are_those_of_scikit_image_at_256(name):
    data, transform = pytest.importorskip("skimage.data"), pytest.importorskip("skimage.transform")
    original = getattr(data, name)() / 255.0
    side = min(original.shape)
    row, column = ((n - side) // 2 for n in original.shape)
    square = original[row : row + side, column : column + side]
    theirs = transform.resize(square, (256, 256), anti_aliasing=True)
    assert np.abs(ps.load_picture(name).numpy() - theirs).max() <= 0.5001 / 255


@pytest.mark.parametrize("size", [5, 77, 256, 300])
def test_pictures_are_resampled_as_scikit_image_does(tmp_path, size):
    transform = pytest.importorskip("skimage.transform")
    pixels = np.random.default_rng(size).random((131, 131))
    np.save(tmp_path / "noise.npy", pixels)
    theirs = transform.resize(pixels, (size, size), anti_aliasing=True)
    assert np.allclose(ps.load_picture(tmp_path / "noise.npy", size).numpy(), theirs, atol=1e-6)


def test_without_scikit_image_defaults_work_and_its_pictures_say_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    small = {
        "born-2d": SMALL,
        "fpm": ["--size", "24", "--camera", "8", "--leds", "3"],
        "ptychography": ["--frame", "8", "--across", "2"],
    }
    for instrument, words in small.items():
        scan = str(tmp_path / f"{instrument}.zarr")
        assert main(["simulate", scan, "--instrument", instrument, *words]) == 0, instrument
    capsys.readouterr()
    assert main(["simulate", str(tmp_path / "grass.zarr"), "--picture", "grass"]) == 2
    assert "pip install 'plugstream[pictures]'" in capsys.readouterr().err


def test_a_photograph_is_as_the_camera_was_held_and_its_cut_is_said(tmp_path):
    """By the orientation of EXIF and TIFF; 6 says that the picture's top is at the right of the file's."""
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    exif = Image.Exif()
    for exif[274], turn, name in ((8, 1, "held.tif"), (3, 2, "held.tif"), (6, -1, "held.tif"), (6, -1, "held.png")):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
        assert np.array_equal(ps.load_picture(tmp_path / name).numpy() * 255, np.rot90(pixels, turn)), (name, turn)
    with pytest.warns(ps.PlugstreamWarning, match="4 rows and 3 columns: its middle 3 x 3 is used"):
        assert np.allclose(ps.load_picture(tmp_path / "held.png", 3).numpy() * 255, np.rot90(pixels, -1)[:3])


def hollow_tiff(strips, compression):
    """A TIFF of 65000 x 65000 pixels of 16 bits, whose four strips have these bytes."""
    tags = [(256, 4, 1, 65000), (257, 4, 1, 65000), (258, 3, 1, 16), (259, 3, 1, compression), (262, 3, 1, 1)]
    tags += [(273, 4, 4, 8 + 2 + 12 * 9 + 4), (277, 3, 1, 1), (278, 4, 1, 16250), (279, 4, 4, 8 + 2 + 12 * 9 + 4 + 16)]
    start = 8 + 2 + 12 * 9 + 4 + 32
    begins = [start + sum(map(len, strips[:n])) for n in range(4)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    places = struct.pack("<8I", *begins, *map(len, strips))
    return b"II*\0" + struct.pack("<IH", 8, 9) + entries + bytes(4) + places + b"".join(strips)


@pytest.mark.parametrize(
    ("strips", "compression", "said"),
    [
        ([b""] * 4, 1, "it has 154 of 155 bytes"),
        ([b"x" * 9] * 4, 1, "it claims 8.45 GB, and 0.036 kB hold it"),
        ([zlib.compress(bytes(1 << 20))] * 4, 8, "it claims 8.45 GB"),
    ],
)
def test_a_tiff_that_claims_more_than_its_file_holds_is_refused(tmp_path, strips, compression, said):
    """As a picture, a volume, and a projection in a folder."""
    refuse_tiff(tmp_path, hollow_tiff(strips, compression), said)


def test_a_tiff_whose_directories_go_round_is_refused(tmp_path):
    """tifffile follows them for ever."""
    directory = struct.pack("<HHHIII", 1, 256, 4, 1, 9, 122)
    refuse_tiff(tmp_path, hollow_tiff([b""] * 4, 1)[:118] + struct.pack("<I", 122) + directory, "its directories take")


def test_a_strip_that_unpacks_to_more_than_its_picture_is_refused(tmp_path):
    content = hollow_tiff([zlib.compress(bytes(1 << 20))] * 4, 8)
    small = content.replace(struct.pack("<I", 65000), struct.pack("<I", 8)).replace(
        struct.pack("<I", 16250), b"\2\0\0\0"
    )
    with reading_at_most(1 << 16):
        refuse_tiff(tmp_path, small, "unpack to more than 65536")


def test_a_zarr_that_claims_more_than_it_holds_is_refused(tmp_path):
    zarr.create_array(store=tmp_path / "hollow.zarr", shape=(20, 100, 100), dtype="f4")
    with reading_at_most(1 << 16), pytest.raises(InputError, match=r"it claims 0.8 MB|it claims 800 kB"):
        read_volume(tmp_path / "hollow.zarr")


def refuse_tiff(tmp_path, content, said):
    path = tmp_path / "hollow.tif"
    path.write_bytes(content)
    for read in (load_picture, read_volume, lambda path: Stack(tmp_path, "*.tif", "it")):
        with pytest.raises(InputError, match=re.escape(said)):
            read(path)


def test_a_pipe_among_projections_is_refused(tmp_path):
    os.mkfifo(tmp_path / "proj_0.tif")
    with pytest.raises(InputError, match="it is no file"):
        Stack(tmp_path, "*.tif", "it")


@pytest.mark.parametrize("how", [{}, {"imagej": True}, {"compression": "zlib"}, {"ome": True}, {"tile": (16, 16)}])
def test_a_tiff_that_is_whole_is_read(tmp_path, how):
    values = np.arange(40 * 20 * 30, dtype=np.float32).reshape(40, 20, 30)
    tifffile.imwrite(tmp_path / "whole.tif", values, photometric="minisblack", **how)
    assert (read_tiff(tmp_path / "whole.tif") == values).all()


@pytest.mark.parametrize("size", [(48, 96), (20, 10), (64, 64)])
def test_a_picture_is_cut_to_the_shape_that_is_asked_for(size):
    """The largest centred part of that shape, resampled as scikit-image does."""
    whole = ps.load_picture("camera").numpy()
    scale = min(n / side for n, side in zip(whole.shape, size, strict=True))
    tops = [(n - round(scale * side)) // 2 for n, side in zip(whole.shape, size, strict=True)]
    part = whole[tops[0] : whole.shape[0] - tops[0], tops[1] : whole.shape[1] - tops[1]]
    expected = pytest.importorskip("skimage.transform").resize(part, size, anti_aliasing=True)
    assert np.allclose(ps.load_picture("camera", size).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("instrument", ["ct", "mri", "born-2d", "scattering-2d", "odt-3d", "fpm"])
def test_scans_of_rectangles_are_simulated(instrument, tmp_path, capsys):
    """Pixels stay square; where only squares can be simulated, that is said."""
    words = ["simulate", str(tmp_path / "s.zarr"), "--instrument", instrument, "--size", "24,32"]
    if instrument in ("odt-3d", "fpm"):
        assert main(words) == 2
        assert "only square images are simulated here; give one number" in capsys.readouterr().err
        return
    assert main([*words, "--picture", "camera"]) == 0
    scan = ps.open_scan(tmp_path / "s.zarr")
    assert scan.truth is not None
    assert scan.truth.shape == scan.instrument.image.shape == (24, 32)
    assert scan.instrument.image.spacing[0] == pytest.approx(scan.instrument.image.spacing[1])
    # The picture covers all of it but what lies outside the circle that every view of ct sees.
    assert (np.abs(scan.truth) > 0).mean() > 0.7
