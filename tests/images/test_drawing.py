"""Pictures of volumes, complex images and channels: which panels there are, where, and what their axes say."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import plugstream as ps
from effort import effort, thorough
from plugstream.images.drawing import arrange_panels, draw_rows, figure_size, with_error
from plugstream.images.pictures import save_image
from plugstream.images.planes import cut_planes, split_parts
from plugstream.images.space import ImageSpace
from plugstream.runs.replay import History
from plugstream.runs.report import draw_report

VOLUME = ImageSpace(
    (4, 6, 8), spacing=(2e-3, 1e-3, 1e-3), origin=(-4e-3, 0.0, 0.0), quantity="attenuation", value_unit="1/m"
)
CHANNELS = ImageSpace((3, 6, 8), channels=True)


def numbers(*shape: int, waves: bool = False) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    values = rng.random(shape) + (1j * rng.standard_normal(shape) if waves else 0)
    return values.astype(np.complex64 if waves else np.float32)


def test_a_volume_is_cut_through_its_middle():
    volume = numbers(4, 6, 8)
    ((z, y, x),) = cut_planes(volume, VOLUME)
    assert [plane.title for plane in (z, y, x)] == ["z = 0 mm", "y = 3 mm", "x = 4 mm"]
    assert np.array_equal(z.values, volume[2])
    assert np.array_equal(y.values, volume[:, 3])
    assert np.array_equal(x.values, volume[:, :, 4])
    assert [plane.space.axes for plane in (z, y, x)] == [("y", "x"), ("z", "x"), ("z", "y")]
    assert y.space.spacing == (2e-3, 1e-3)
    assert y.space.extent() == pytest.approx((-0.5, 7.5, -5.0, 3.0))


def test_without_a_spacing_a_slice_has_its_index():
    rows = cut_planes(numbers(2, 4, 6, 8), ImageSpace((2, 4, 6, 8), channels=True))
    assert [plane.title for plane in rows[1]] == ["channel 1, z = 2", "channel 1, y = 3", "channel 1, x = 4"]


def test_parts_make_up_complex_values():
    wave = numbers(6, 8, waves=True)
    (_, size, free), (_, phase, fixed) = split_parts(wave)
    assert np.allclose(size * np.exp(1j * phase), wave, atol=1e-6)
    assert (free, fixed) == (None, (-np.pi, np.pi))


@pytest.mark.parametrize(
    ("space", "waves", "images", "shape"),
    [
        (ImageSpace((6, 8)), False, 2, (1, 2)),
        (ImageSpace((6, 8)), True, 1, (1, 2)),
        (ImageSpace((6, 8)), True, 3, (2, 3)),
        (VOLUME, False, 1, (1, 3)),
        (VOLUME, False, 2, (2, 3)),
        (VOLUME, True, 2, (4, 3)),
        (CHANNELS, False, 2, (2, 3)),
        (ImageSpace((2, 4, 6, 8), channels=True), True, 1, (4, 3)),
    ],
)
def test_panels_stand_in_rows(space, waves, images, shape):
    shown = [(f"image {n}", numbers(*space.shape, waves=waves)) for n in range(images)]
    rows = arrange_panels(shown, space)
    assert (len(rows), {len(row) for row in rows}) == (shape[0], {shape[1]})
    titles = [panel.title for row in rows for panel in row]
    assert all(any(title.startswith(name) for title in titles) for name, _ in shown)
    assert sum("phase" in title for title in titles) >= images * waves
    assert all(0 < inches < 60 for inches in figure_size(rows))
    own = with_error(rows, shown[0][1] - shown[-1][1], space)
    assert sum(map(len, own)) > sum(map(len, rows))
    assert not any(np.iscomplexobj(panel.image) for row in own for panel in row)


def test_a_phase_is_not_drawn_where_there_is_nothing():
    wave = np.zeros((6, 8), dtype=np.complex64)
    wave[2:4, 2:4] = 1j
    ((_, phase),) = arrange_panels([("wave", wave)], ImageSpace((6, 8), is_complex=True))
    assert np.isfinite(phase.image).sum() == 4
    assert np.allclose(phase.image[2:4, 2:4], np.pi / 2)
    assert phase.shades.colours == "twilight_shifted"


def solved(shape: tuple[int, ...], dtype: torch.dtype, channels: bool = False):
    model = ps.FunctionModel(
        lambda image, views: image[..., None, *[slice(None)] * len(shape)].expand(
            *image.shape[: image.ndim - len(shape)], len(views), *shape
        ),
        n_views=2, image_shape=shape, data_shape=shape, linear=True, dtype=dtype, channels=channels,
    )  # fmt: skip
    truth = torch.ones(shape, dtype=dtype)
    algorithm = ps.ProximalGradient(ps.LeastSquares(model, truth.expand(2, *shape)), ps.TV(), sigma=0.01)
    return truth, ps.solve(algorithm, iterations=3, every=1, monitors=[ps.Distance(), ps.SNR(truth)])


@pytest.mark.parametrize(
    ("space", "dtype", "titles"),
    [
        (VOLUME, torch.float32, {"truth\nz = 0 mm", "result\nz = 0 mm", "y = 3 mm", "x = 4 mm"}),
        (ImageSpace((6, 8)), torch.complex64, {"truth, magnitude", "truth, phase", "result, magnitude"}),
        (CHANNELS, torch.float32, {"truth\nchannel 0", "result\nchannel 0", "channel 1", "channel 2"}),
    ],
    ids=["volume", "complex", "channels"],
)
def test_a_result_draws_itself(space, dtype, titles):
    truth, result = solved(space.shape, dtype, space.channels)
    figure = result.plot(space=space, truth=truth)
    assert titles <= {axes.get_title() for axes in figure.axes}
    if space is VOLUME:
        labels = {(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes}
        assert {("y (mm)", "x (mm)"), ("z (mm)", "x (mm)"), ("z (mm)", "y (mm)")} <= labels
        bars = {child.get_ylabel() for axes in figure.axes for child in axes.child_axes}
        assert bars == {"attenuation (1/m)"}
    if space is VOLUME:
        assert result._repr_png_().startswith(b"\x89PNG")  # which knows a volume from several images


SPACES = {
    "plane": ImageSpace((6, 8)),
    "flat": ImageSpace((6, 80), quantity="permittivity contrast"),
    "tall": ImageSpace((80, 6), spacing=(1e-3, 1e-3), quantity="permittivity contrast"),
    "waves": ImageSpace((6, 8), is_complex=True, quantity="transmission"),
    "flat waves": ImageSpace((6, 80), is_complex=True, quantity="transmission"),
    "volume": VOLUME,
    "channels": CHANNELS,
}


@thorough
@pytest.mark.parametrize("name", effort([name for name in SPACES if name not in ("plane", "flat", "waves")], SPACES))
def test_every_scale_has_a_bar_every_axis_a_name_and_no_text_covers_another(name):
    """As matplotlib lays it out, for images of all shapes; waves have panels of a plane and of something flat."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    space = SPACES[name]
    truth = numbers(*space.shape, waves=space.is_complex)
    images = [("truth", truth), ("first back-projection, -12.34 dB", truth / 2), ("result, 12.34 dB", 0.9 * truth)]
    rows = with_error(arrange_panels(images, space, truth), -0.1 * truth, space)
    figure = Figure(figsize=figure_size(rows), layout="constrained")
    draw_rows(figure, rows, space)
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    shown = [axes for axes in figure.axes if axes.images]
    bars = [child for axes in shown for child in axes.child_axes]
    texts = [axes.title for axes in shown] + [
        label for axes in [*shown, *bars] for label in (axes.xaxis.label, axes.yaxis.label)
    ]
    assert len(shown) == sum(map(len, rows))
    assert {panel.shades.label for row in rows for panel in row} == {
        axes.get_xlabel() or axes.get_ylabel() for axes in bars
    }
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts if text.get_text() and text.get_visible()]
    boxes += [axes.get_window_extent() for axes in bars]
    for number, box in enumerate(boxes):
        assert not [other for other in boxes[:number] if box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9))]
        assert box.x0 > -3
        assert box.y0 > -3
        assert box.x1 < figure.bbox.x1 + 3
        assert box.y1 < figure.bbox.y1 + 3


@pytest.mark.slow
@thorough
@pytest.mark.parametrize(
    ("waves", "linear"), effort([(True, True)], [(w, k) for w in (False, True) for k in (False, True)])
)
def test_a_report_of_a_volume(waves, linear):
    volume = numbers(4, 6, 8, waves=waves)
    content = draw_report(
        title="a volume",
        space=VOLUME,
        result=volume,
        compared=("first back-projection", volume) if linear else None,
        truth=2 * volume,
        history=History(),
    )
    with Image.open(io.BytesIO(content)) as picture:
        assert min(picture.size) > 500


def test_a_volume_is_saved_as_a_stack_and_its_middle_slice(tmp_path):
    volume = numbers(4, 6, 8)
    low, high = save_image(volume, tmp_path / "v", VOLUME)
    assert {path.name for path in tmp_path.iterdir()} == {"v.npy", "v.tif", "v.png"}
    assert np.array_equal(np.load(tmp_path / "v.npy"), volume)
    with tifffile.TiffFile(tmp_path / "v.tif") as file:
        assert np.array_equal(file.asarray(), volume[:, ::-1])  # y up
        assert file.series[0].axes == "ZYX"
        assert file.imagej_metadata["spacing"] == pytest.approx(0.2)  # centimetres
    with Image.open(tmp_path / "v.png") as picture:
        grey = np.asarray(picture).astype(float)[::-1] / 255
    assert np.allclose(low + grey * (high - low), volume[2], atol=1 / 255)


def test_complex_volumes_and_channels_are_saved_whole(tmp_path):
    wave = numbers(4, 6, 8, waves=True)
    save_image(wave, tmp_path / "w", VOLUME)
    parts = [tifffile.imread(tmp_path / f"w-{part}.tif")[:, ::-1] for part in ("magnitude", "phase")]
    assert np.allclose(parts[0] * np.exp(1j * parts[1]), wave, atol=1e-6)
    assert {path.suffix for path in tmp_path.glob("w-phase*")} == {".png", ".tif"}
    colours = numbers(3, 6, 8)
    save_image(colours, tmp_path / "c", CHANNELS)
    assert {path.name for path in tmp_path.glob("c*.png")} == {f"c-channel-{n}.png" for n in range(3)}
    with tifffile.TiffFile(tmp_path / "c.tif") as file:
        assert file.series[0].axes == "CYX"
        assert np.array_equal(file.asarray(), colours[:, ::-1])


def test_an_image_that_is_not_of_its_space_is_refused(tmp_path):
    for image in (numbers(6, 8), numbers(2, 4, 6, 8), numbers(5, 6, 8)):
        with pytest.raises(ps.InputError, match=r"must be \(4, 6, 8\)|must be alike"):
            save_image(image, tmp_path / "v", VOLUME)
    assert not list(tmp_path.iterdir())
