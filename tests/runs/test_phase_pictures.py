"""Phases in pictures: colours that close from pi to -pi, grey without a magnitude, and no phase that is free."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from matplotlib import colormaps
from PIL import Image

from page_runs import write_run
from plugstream import ImageSpace, load_picture, save_image
from plugstream.images.planes import CYCLIC, NOTHING, color_phase, cyclic_table
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Quantities, Stop
from plugstream.runs.frames import is_phase, read_moments
from plugstream.runs.movie import make_movie
from plugstream.runs.pages import read_asset
from plugstream.runs.preview import Previews, make_panels, show_panel
from plugstream.runs.replay import replay
from plugstream.runs.tensorboard import _picture

SHAPE = (16, 20)
SPACE = ImageSpace(SHAPE, is_complex=True, spacing=(1e-6, 1e-6), origin=(0.0, 0.0), quantity="transmission")
MEASURED = ImageSpace(SHAPE, is_complex=True, phase="measured")


def wave(angle: float = 0.0) -> np.ndarray:
    """A phase through a whole turn, with a mean that is not zero, in the middle of nothing."""
    row, column = np.indices(SHAPE)
    inside = (row > 2) & (row < 13) & (column > 3)
    image = inside * (1 + 0.5 * (column > 8)) * np.exp(1j * (0.3 * column - 2.8 + angle))
    return image.astype(np.complex64)


def test_the_colours_are_those_of_figures_and_of_the_page():
    table = cyclic_table(256).astype(int)
    figures = np.rint(255 * colormaps["twilight_shifted"](np.linspace(0, 1, 256))[:, :3])
    assert np.abs(table - figures).max() <= 2
    assert np.array_equal(table[0], table[-1])  # pi is -pi
    steps = np.abs(np.diff(np.concatenate([table, table[:1]]), axis=0)).max()
    assert steps < 10  # so that no edge is seen where it wraps
    assert table[128].min() > 200  # and no phase, as that of empty space, is pale
    script = read_asset("picture.js")
    page = re.search(r"cyclic: \[(.*?)\]", script, re.S)
    assert page is not None
    assert bytes.fromhex("".join(re.findall(r'"#(\w{6})"', page[1]))) == CYCLIC


def test_a_phase_is_a_number_of_a_colour():
    phase = np.linspace(-np.pi, np.pi, 255)[None]
    numbers, colours = color_phase(phase)
    assert np.array_equal(numbers[0], np.arange(255))
    assert color_phase(np.array([[np.nan, np.inf]]))[0].tolist() == [[255, 255]]
    assert tuple(colours[255]) == NOTHING


@pytest.mark.parametrize("space", [SPACE, MEASURED], ids=["free", "measured"])
def test_files_have_the_numbers_and_the_png_the_colours(tmp_path: Path, space: ImageSpace) -> None:
    image = wave(1.0)
    save_image(image, tmp_path / "x", space)
    assert np.array_equal(np.load(tmp_path / "x.npy"), image)  # whatever is shown
    size, phase = (load_picture(tmp_path / f"x-{part}.tif").numpy() for part in ("magnitude", "phase"))
    assert np.allclose(size * np.exp(1j * phase), image, atol=1e-6)
    with tifffile.TiffFile(tmp_path / "x-phase.tif") as file:
        assert file.imagej_metadata is not None
        assert (file.imagej_metadata["quantity"], file.imagej_metadata["value_unit"]) == (
            f"{space.quantity}, phase",
            "rad",
        )
    turned = image * np.exp(-1j * np.angle(image.mean())) if space.free_phase else image
    with Image.open(tmp_path / "x-phase.png") as picture:
        assert picture.mode == "P"
        about = picture.info
        angle = float(about["plugstream:turned"].split()[0])
        numbers, colours = np.asarray(picture)[::-1], np.asarray(picture.convert("RGB"))[::-1]
    assert angle == pytest.approx(-np.angle(image.mean()) if space.free_phase else 0.0, abs=1e-6)
    assert about["plugstream:unit"] == "rad"
    seen = np.abs(image) > 0
    assert (numbers[~seen] == 255).all()
    assert (colours[~seen] == NOTHING).all()
    error = np.exp(1j * (numbers / 254 * 2 * np.pi - np.pi)) / np.exp(1j * np.angle(turned))
    assert np.abs(np.angle(error[seen])).max() <= np.pi / 254 + 1e-6
    assert (colours[seen] == cyclic_table()[numbers[seen]]).all()


def test_previews_do_not_change_with_a_phase_that_is_free():
    one, two = (make_panels(torch.from_numpy(wave(angle)), SPACE) for angle in (0.0, 2.0))
    (magnitude, phase), panels = one[0].values(), one[1]
    assert [is_phase(panel) for panel in panels] == [False, True]
    assert panels[1]["turned"] == pytest.approx(-np.angle(wave().mean()), abs=1e-6)
    assert torch.allclose(magnitude, two[0]["magnitude"], atol=1e-6)
    assert torch.allclose(torch.polar(magnitude, phase), torch.polar(magnitude, two[0]["phase"]), atol=1e-5)
    shown = show_panel(panels[1], one[0])
    assert np.array_equal(np.isnan(shown), wave() == 0)
    kept, about = make_panels(torch.from_numpy(wave(2.0)), MEASURED)
    assert "turned" not in about[1]
    assert np.allclose(kept["phase"], np.angle(wave(2.0)), atol=1e-6)


def write_frames(folder: Path, space: ImageSpace) -> Path:
    """A run whose image grows, and turns as a whole while it does."""
    truth = wave()
    write_run(folder, space, truth, truth, stopped=False)
    log = EventLog(folder / "events.jsonl")
    previews = Previews(folder, space, log, 1.0)
    for step in range(5):
        image = wave(0.7 * step) * np.float32(1 - 0.5**step)
        image[3] *= 1j if step == 1 else 1  # by which the mean phase is not that of the last one
        previews.write(step, torch.from_numpy(image))
    log.add(Quantities(()))
    log.add(Stop(4, 4, 1.0, 1.2, "all iterations were done", False, "converged", True, "it fell"))
    log.close()
    return folder


@pytest.mark.parametrize("space", [SPACE, MEASURED], ids=["free", "measured"])
def test_a_movie_turns_frames_to_the_last_one(tmp_path: Path, space: ImageSpace) -> None:
    folder = write_frames(tmp_path / "run", space)
    moments, _ = read_moments(folder, replay(folder / "events.jsonl"))
    assert [moment.step for moment in moments] == [0, 1, 2, 3, 4]
    last = moments[-1].image
    assert last is not None
    for moment in moments[1:]:
        assert moment.image is not None
        angle = float(np.angle(np.vdot(moment.image, last)))
        if space.free_phase:
            assert angle == pytest.approx(0.0, abs=1e-3)
        elif moment.step > 1:
            assert angle == pytest.approx(0.7 * (4 - moment.step), abs=1e-3)


def test_a_movie_has_shades_for_magnitudes_beside_the_colours_of_a_phase(tmp_path: Path) -> None:
    folder = write_frames(tmp_path / "run", SPACE)
    assert make_movie(folder, tmp_path / "movie.gif", size=40).frames == 5
    with Image.open(tmp_path / "movie.gif") as movie:
        movie.seek(movie.n_frames - 1)
        colours = np.unique(np.asarray(movie.convert("RGB")).reshape(-1, 3), axis=0).astype(int)
    greys = colours[np.ptp(colours, axis=1) == 0]
    assert greys.max() == 255  # the paper
    assert len(greys) > 40
    assert len(colours) - len(greys) > 40


def test_tensorboard_gets_colours_for_phases():
    content = _picture("image/phase", np.angle(wave()), None, upwards=True)
    png = content[content.index(b"\x89PNG") :]
    with Image.open(io.BytesIO(png)) as picture:
        assert (picture.mode, picture.size) == ("RGB", SHAPE[::-1])
        pixels = np.asarray(picture)[::-1]
    numbers, colours = color_phase(np.angle(wave()))
    assert np.array_equal(pixels, colours[numbers])
