"""Movies of a run: what they show, in both formats, for every kind of image, and what is refused in one line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from effort import effort, thorough
from plugstream.base.quantities import Quantity
from plugstream.images.space import ImageSpace
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Measurement, Quantities, Stop
from plugstream.runs.frames import frame_steps
from plugstream.runs.movie import _Tale as Tale, make_movie
from plugstream.runs.preview import Previews
from small_run import main

VOLUME = ImageSpace((6, 10, 14), spacing=(2e-3, 1e-3, 1e-3), origin=(0.0, 0.0, 0.0), quantity="index")


def pictures(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """The frames of a GIF in RGB, and how many milliseconds each is shown."""
    with Image.open(path) as movie:
        out, times = [], []
        for number in range(movie.n_frames):
            movie.seek(number)
            out.append(np.asarray(movie.convert("RGB")).copy())
            times.append(movie.info["duration"])
    return out, times


def fake_run(folder: Path, space: ImageSpace, *, steps: int = 4) -> Path:
    """The folder of a run as far as a movie needs it, whose image grows from zero."""
    folder.mkdir()
    (folder / "run.json").write_text('{"scan": "scan.zarr", "command": "plugstream reconstruct"}')
    log = EventLog(folder / "events.jsonl")
    log.add(Quantities(({"name": "snr", "title": "SNR", "unit": "dB", "form": ".2f", "needs_truth": True},)))
    dtype = torch.complex64 if space.is_complex else torch.float32
    whole = torch.rand(space.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    previews = Previews(folder, space, log, 1.0)
    for step in range(steps):
        previews.write(step, whole * step / (steps - 1))
        log.add(Measurement(step, 0.1 * step, {"snr": 5.0 * step}))
    log.close()
    return folder


@pytest.fixture(scope="module")
def movie(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("movie") / "m.gif"
    assert main(["movie", str(whole), "--out", str(out), "--size", "216"]) == 0
    return out


def test_a_gif_shows_the_image_forming_and_holds_its_end(whole, movie):
    frames, times = pictures(movie)
    assert len(frames) == len(frame_steps(whole))
    assert times[-1] == 2000
    assert set(times[:-1]) == {times[0]}
    assert max(frames[0].shape) > 216
    moved = [np.abs(frame.astype(int) - frames[-1]).mean() for frame in frames]
    assert moved[0] > moved[-1] == 0  # on a busy machine there may be no other
    assert (frames[-1][0, 0] == 255).all()  # on white paper


def test_half_way_an_image_is_nearer_to_its_end(tmp_path):
    run = fake_run(tmp_path / "run", ImageSpace((40, 40)), steps=9)
    assert main(["movie", str(run), "--out", str(tmp_path / "m.gif"), "--size", "216"]) == 0
    frames, _ = pictures(tmp_path / "m.gif")
    moved = [np.abs(frame.astype(int) - frames[-1]).mean() for frame in frames]
    assert len(frames) == 9
    assert moved[0] > 2 * moved[5] > moved[-1] == 0


def test_the_last_frame_is_the_result(whole, movie):
    """Its pixels are squares of one grey, in rows that go as the scan says."""
    result = np.load(whole / "result.npy")
    grey = np.rint(255 * (result - min(0, result.min())) / (result.max() - min(0, result.min())))
    frame = pictures(movie)[0][-1].astype(float).mean(axis=2)
    size = 216 // 24
    # The image is where it fits best.
    best = np.inf
    for flipped in (grey, grey[::-1]):
        wanted = np.kron(flipped, np.ones((size, size)))
        for top in range(100):
            for left in range(100):
                here = frame[top : top + 216, left : left + 216]
                if abs(here[110, 110] - wanted[110, 110]) < 8 and abs(here[22, 162] - wanted[22, 162]) < 8:
                    best = min(best, np.abs(here[2:-2, 2:-2] - wanted[2:-2, 2:-2]).mean())
    assert best < 4


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed here")
def test_an_mp4_has_the_frames_and_holds_the_last(tmp_path):
    run = fake_run(tmp_path / "run", ImageSpace((10, 14)))
    made = make_movie(run, tmp_path / "m.mp4", fps=10.0, size=60)
    assert made.seconds == pytest.approx(0.3 + 2.0)
    assert [path.name for path in tmp_path.iterdir() if "m.mp4" in path.name] == ["m.mp4"]  # nothing else is left
    probe = ["ffprobe", "-v", "error", "-count_frames", "-show_entries", "stream=codec_name,nb_read_frames,pix_fmt"]
    said = subprocess.run([*probe, "-of", "csv", str(made.path)], capture_output=True, text=True, timeout=60).stdout
    assert "yuv420p" in said
    assert said.strip().endswith("23")


def test_without_ffmpeg_an_mp4_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["movie", str(tmp_path / "none"), "--out", str(tmp_path / "m.mp4")]) == 2
    assert "needs ffmpeg, which is not installed here" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed here")
def test_where_ffmpeg_fails_its_reason_is_told_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    run = fake_run(tmp_path / "run", ImageSpace((10, 14)))
    fake = tmp_path / "bin" / "ffmpeg"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'Unknown encoder' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    (tmp_path / "out").mkdir()
    assert main(["movie", str(run), "--out", str(tmp_path / "out" / "m.mp4")]) == 2
    assert "Unknown encoder" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


SPACES = {
    "volume": VOLUME,
    "complex": ImageSpace((10, 14), is_complex=True),
    "channels": ImageSpace((3, 10, 14), channels=True),
    "everything": ImageSpace((2, 6, 10, 14), channels=True, is_complex=True),
}


@thorough
@pytest.mark.parametrize("kind", effort(["volume", "complex"], list(SPACES)))
def test_every_kind_of_image_has_a_movie(tmp_path, kind):
    run = fake_run(tmp_path / "run", SPACES[kind], steps=3)
    made = make_movie(run, run / "movie.gif", size=60)
    assert (made.frames, made.first, made.last) == (3, 0, 2)
    first, *_, last = pictures(made.path)[0]
    assert (first != last).any(axis=2).mean() > 0.05


def test_a_frame_tells_its_step_the_views_by_then_and_what_was_measured_last():
    quantities = [Quantity("distance", short="far", form=".1e"), Quantity("snr", "SNR", unit="dB", needs_truth=True)]
    points = {"snr": [(0, 1.5), (10, 8.25)], "distance": [(5, 0.5)]}
    tale = Tale(points, quantities, [(0, 4), (8, 12)], 100)
    blank = "\u2007"
    assert tale.curve == quantities[1]
    assert tale.tell(0).split("    ") == [f"step {blank}{blank}0", f"{blank}4 views", "SNR 1.5 dB"]
    assert tale.tell(9).split("    ") == [f"step {blank}{blank}9", "12 views", "SNR 1.5 dB", "far 5.0e-01"]
    assert tale.tell(100).split("    ") == ["step 100", "12 views", "SNR 8.25 dB", "far 5.0e-01"]
    assert "views" not in Tale(points, quantities, [(0, 4)], 100).tell(9)


def test_frames_that_are_damaged_or_beyond_the_image_that_was_kept_are_left_out(tmp_path):
    run = fake_run(tmp_path / "run", ImageSpace((10, 14)))
    path = run / "previews" / "000000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    log = EventLog(run / "events.jsonl")
    log.add(Stop(3, 2, 0.3, 0.3, "the image grew without bound", True))
    log.close()
    made = make_movie(run, tmp_path / "m.gif", size=40)
    assert (made.frames, made.first, made.last) == (2, 0, 2)


def test_a_title_with_dollars_is_no_formula(tmp_path):
    run = fake_run(tmp_path / "run", ImageSpace((10, 14)), steps=2)
    assert make_movie(run, tmp_path / "m.gif", title="$\\frac{$", size=20).frames == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "--out", "m.avi"], "the ending must be .gif or .mp4"),
        (["{run}", "--out", "gone/m.gif"], "does not exist; make it first"),
        (["{run}", "--fps", "1000"], "must be from 0.1 to 60"),
        (["{run}", "--title", "\udcff"], "holds bytes that are not UTF-8"),
        (["nowhere"], "is not the folder of a run"),
        (["{empty}"], "has no previews, so there is nothing to make a movie of"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(whole, tmp_path, monkeypatch, capsys, words, message):
    empty = fake_run(tmp_path / "empty", ImageSpace((10, 14)))
    shutil.rmtree(empty / "previews")
    monkeypatch.chdir(tmp_path)
    assert main(["movie", *(word.format(run=whole, empty=empty) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert {path.name for path in tmp_path.iterdir()} == {"empty"}


def test_a_folder_of_frames_that_is_a_link_is_refused(tmp_path, capsys):
    run = fake_run(tmp_path / "run", ImageSpace((10, 14)))
    (run / "previews").rename(tmp_path / "elsewhere")
    (run / "previews").symlink_to(tmp_path / "elsewhere")
    assert main(["movie", str(run)]) == 2
    assert "is a link instead of a folder" in capsys.readouterr().err
