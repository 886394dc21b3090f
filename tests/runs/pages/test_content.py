"""What pages show of a run comes from its folder alone, whatever state it is in, and its pictures are its images."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from page_runs import ball, noisy, write_channels, write_run, write_volume, write_wave
from plugstream import ImageSpace, InputError
from plugstream.base.tensors import save_tensors
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Forecast, Heartbeat, Measurement, Note, Preview, Resume, Views
from plugstream.runs.liveness import this_process
from plugstream.runs.pages.content import run_content
from plugstream.runs.pages.pictures import make_picture, run_picture
from plugstream.runs.pages.report import view_usage
from plugstream.runs.preview import Previews
from plugstream.runs.replay import History, replay
from plugstream.settings import Settings


def decode(panel: dict[str, Any]) -> np.ndarray:
    """The values of a panel, as the module says that they are written."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(panel["data"])), np.uint8).reshape(2, -1)
    differences = planes[0].astype(np.uint16) * 256 + planes[1]
    levels = np.cumsum(differences, dtype=np.uint16)
    values = panel["low"] + levels.astype(np.float64) * panel["scale"]
    return np.where(levels == 65535, np.nan, values).reshape(panel["shape"])


def near(panel: dict[str, Any], image: np.ndarray) -> None:
    """Equal to half a level, and not finite in the same places."""
    finite, values = np.isfinite(image), decode(panel)
    assert np.array_equal(np.isfinite(values), finite)
    assert np.abs(values[finite] - image[finite]).max(initial=0) <= 0.51 * panel["scale"]
    if finite.any():
        assert panel["range"] == [image[finite].min(), image[finite].max()]


@pytest.mark.parametrize("kind", ["plain", "holes", "constant", "nothing", "free", "measured", "channels", "volume"])
def test_a_picture_gives_its_image_back_to_half_of_a_level(kind):
    rng = np.random.default_rng(0)
    image: Any = rng.standard_normal((12, 9)).astype(np.float32)
    space = ImageSpace((12, 9))
    if kind == "holes":
        image[3, 4], image[5, 6], image[7, 8] = np.nan, np.inf, -np.inf
    elif kind == "constant":
        image[:] = 3.5
    elif kind == "nothing":
        image[:] = np.nan
    elif kind in ("free", "measured"):
        image = image * np.exp(1j * rng.uniform(-3, 3, image.shape))
        space = ImageSpace((12, 9), is_complex=True, phase=kind)
    elif kind == "channels":
        image, space = rng.standard_normal((3, 4, 5)), ImageSpace((3, 4, 5), channels=True)
    elif kind == "volume":
        image, space = rng.standard_normal((3, 4, 5)), ImageSpace((3, 4, 5), spacing=(1.0, 2.0, 3.0))
    picture = make_picture(image, space, "result")
    if kind == "free":  # its mean is real
        assert picture["panels"][1]["turned"] == pytest.approx(-np.angle(image.mean()))
        image = image * np.exp(-1j * np.angle(image.mean()))
    parts = [np.abs(image), np.angle(image)] if np.iscomplexobj(image) else [image]
    assert [panel["cyclic"] for panel in picture["panels"]] == [False, True][: len(parts)]
    for panel, part in zip(picture["panels"], parts, strict=True):
        near(panel, part)
        assert [axis["size"] for axis in panel["axes"]] == panel["shape"]
    json.dumps(picture, allow_nan=False)


def test_a_large_image_is_shown_by_means_over_blocks_that_lie_where_it_does():
    image = np.arange(5 * 2051, dtype=np.float32).reshape(5, 2051)
    space = ImageSpace((5, 2051), spacing=(1.0, 0.5), origin=(0.0, 10.0))
    (panel,) = make_picture(image, space, "result")["panels"]
    assert panel["shape"] == [5, 684]
    means = [image[0, 3 * n : 3 * n + 3].mean() for n in range(684)]  # the last one of two
    assert np.allclose(decode(panel)[0], means, atol=panel["scale"])
    assert panel["axes"][1] == {"name": "x", "unit": "m", "origin": 10.5, "spacing": 1.5, "size": 684}
    volume = make_picture(np.ones((2, 300, 2)), ImageSpace((2, 300, 2)), "result")["panels"][0]
    assert volume["shape"] == [2, 100, 2]


def test_an_image_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"the image result is \(3, 4\), but its space is of \(4, 3\)"):
        make_picture(np.ones((3, 4)), ImageSpace((4, 3)), "result")


def test_the_content_of_a_run_is_what_its_log_tells(whole):
    content = run_content(whole)
    history = replay(whole / "events.jsonl")
    assert (content["state"], content["step"], content["iterations"]) == ("ended", 30, 30)
    assert content["measured"]["step"] == [event.step for event in history.measured]
    assert content["measured"]["values"]["snr"][-1] == history.measured[-1].values["snr"]
    assert [quantity["name"] for quantity in content["quantities"]] == ["relative_distance", "snr", "to_go"]
    assert content["views"] | {"arrivals": 0} == {
        "arrivals": 0, "now": 12, "total": 12, "damaged": [], "ended": True, "batch": 4, "hold_out": None,
    }  # fmt: skip
    assert content["roles"] == ["result", "backprojection", "start", "truth"]
    assert content["stop"]["reason"] == "all iterations were done"
    assert content["settings"]["algorithm"]["sigma"] == 0.02
    assert content["command"].startswith("plugstream reconstruct")
    assert content["machine"]["cores"] >= 1
    assert content["space"]["shape"] == (24, 24)
    json.dumps(content, allow_nan=False)


def test_the_first_image_is_kept_and_a_run_that_goes_on_leaves_it(whole):
    start = np.load(whole / "start.npy")
    near(run_picture(whole, "start", None)["panels"][0], start)
    assert start.shape == np.load(whole / "result.npy").shape


def test_a_long_history_is_thinned_to_its_ends(tmp_path):
    folder = write_volume(tmp_path / "run")
    content = run_content(folder, most=4)
    assert content["measured"]["step"] == [0, 20, 40, 50]
    assert all(len(values) == 4 for values in content["measured"]["values"].values())


def test_a_run_is_known_by_what_it_did_last(tmp_path):
    truth = ball((20, 20))
    folder = write_run(tmp_path / "run", ImageSpace((20, 20)), noisy(truth), truth, stopped=False)
    assert run_content(folder)["state"] == "running"  # elsewhere, and heard of a moment ago
    me = this_process()
    log = EventLog(folder / "events.jsonl")
    log.add(Heartbeat(25, 50, 10.0, 2.5, pid=me.pid, started=me.started, machine=me.machine))
    content = run_content(folder)
    assert (content["state"], content["speed"], content["left"]) == ("running", 2.5, 0.0)
    for end, at_most, left in ((75, True, 10.0), (60, False, 4.0), (50, False, 0.0)):
        log.add(Forecast(50, end, at_most))
        content = run_content(folder)
        assert (content["left"], content["at_most"], content["iterations"]) == (left, at_most, 50)
    log.add(Heartbeat(25, 50, 10.0, 2.5, pid=2**22 + 1, started=1, machine=me.machine))
    assert run_content(folder)["state"] == "killed"
    log.close()


def test_a_scan_that_is_followed_has_no_end_until_it_says_so(tmp_path):
    folder = write_run(tmp_path / "run", ImageSpace((4, 4)), np.ones((4, 4)), stopped=False)
    text = (folder / "settings.toml").read_text()
    (folder / "settings.toml").write_text(text.replace("follow = false", "follow = true"))
    assert run_content(folder)["iterations"] == 20 + 50  # all views were there from step 20 on
    history = replay(folder / "events.jsonl")
    history.views = [Views(0, 8, (), 1.0, False)]
    content = run_content(folder, history)
    assert (content["iterations"], content["left"], content["views"]["total"]) == (None, None, None)


def test_of_a_run_without_an_end_the_newest_image_comes_first(tmp_path):
    truth = ball((20, 20))
    folder = write_run(tmp_path / "run", ImageSpace((20, 20)), noisy(truth), truth, stopped=False)
    (folder / "checkpoints").mkdir()
    image = torch.randn(20, 20)
    content = {"state": {"k": 40}, "complex": []}
    header = {"format": "plugstream-checkpoint", "version": "3", "content": json.dumps(content)}
    save_tensors(folder / "checkpoints" / "step-00000040.safetensors", {"state.image": image}, header)
    assert run_content(folder)["roles"][0] == "checkpoint"
    picture = run_picture(folder, "checkpoint", ImageSpace((20, 20)))
    assert picture["step"] == 40
    near(picture["panels"][0], image.numpy())
    log = EventLog(folder / "events.jsonl")
    Previews(folder, ImageSpace((20, 20)), log, 1.0).write(44, 2 * image)
    log.close()
    assert run_content(folder)["roles"][:2] == ["preview", "checkpoint"]
    assert isinstance(replay(folder / "events.jsonl").preview, Preview)
    picture = run_picture(folder, "preview", ImageSpace((20, 20)))
    assert picture["step"] == 44
    near(picture["panels"][0], 2 * image.numpy())


def test_what_is_missing_or_damaged_is_told_in_a_line(tmp_path, whole):
    with pytest.raises(InputError, match="is not the folder of a run"):
        run_content(tmp_path)
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    with pytest.raises(InputError, match=r"has no image '\.\./truth'"):
        run_picture(folder, "../truth", None)
    (folder / "truth.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read"):
        run_picture(folder, "truth", None)


@pytest.mark.parametrize("sampler", ["uniform", "epochs", "shifted", "fixed", "all"])
def test_views_are_counted_as_the_run_drew_them(sampler):
    """What the sampler of an algorithm was asked for, step by step, while views came and one was left out."""
    settings = Settings.model_validate({"sampler": {"name": sampler, **({} if sampler == "all" else {"batch": 4})}})
    history = History(step=60)
    history.views = [
        Views(0, 3 if sampler in ("uniform", "epochs") else 10, (), 1.0, False),
        Views(20, 10, (7,), 1.0, True),
    ]
    if sampler == "fixed":
        history.views = [Views(0, 10, (), 1.0, True)]
    usage = view_usage(history, settings)
    made = settings.sampler.build(SimpleNamespace(n_views=history.views[0].views))
    expected = np.zeros(10)
    for step in range(60):
        record = history.views[-1] if step >= 20 else history.views[0]
        available = torch.tensor([n for n in range(record.views) if n not in record.damaged])
        drawn = available if len(available) < 4 else made.draw(step, available).views
        for view in available if drawn is None else drawn:
            expected[view] += 1
    assert usage == {"size": 1, "counts": expected.tolist(), "unused": int((expected == 0).sum())}


def test_views_that_cannot_be_counted_quickly_are_not():
    history = History(step=60)
    history.views = [Views(0, 10, (), 1.0, True)]
    settings = Settings.model_validate({"sampler": {"name": "importance"}})
    assert view_usage(history, settings) is None
    history.step = 10**9
    assert view_usage(history, Settings()) is None
    history.step, history.views = 3, [Views(0, 1000, (), 1.0, True)]
    usage = view_usage(history, Settings.model_validate({"sampler": {"name": "all"}}))
    assert usage == {"size": 4, "counts": [3.0] * 250, "unused": 0}


@pytest.mark.parametrize("write", [write_volume, write_wave, write_channels])
def test_every_kind_of_image_has_its_axes(tmp_path, write):
    folder = write(tmp_path / "run")
    space = replay(folder / "events.jsonl").space
    panel = run_picture(folder, "truth", space)["panels"][0]
    assert panel["quantity"].startswith(space.quantity)
    spatial = panel["axes"][int(space.channels) :]
    assert [axis["name"] for axis in spatial] == list(space.axes)
    assert [axis["spacing"] for axis in spatial] == list(space.spacing or [None] * len(space.axes))


def test_what_pages_know_of_a_run_does_not_grow_with_its_views():
    """The history of pages keeps so many of all measurements and arrivals; both ends, and the order, stay."""
    few, all_of_it = History(most=20), History()
    sizes = []
    for k in range(1, 4001):
        for history in (few, all_of_it):
            history.add(Views(k, 3 * k, (), 1.0, k == 4000))
            history.add(Measurement(k, k / 10, {"distance": 1.0 / k}))
            history.add(Note(f"note {k}"))
        sizes.append(len(few.views) + len(few.measured) + len(few.notes))
        assert (few.views[-1], few.measured[-1], few.notes[-1]) == (
            all_of_it.views[-1],
            all_of_it.measured[-1],
            all_of_it.notes[-1],
        )
    assert max(sizes) <= 100
    assert few.arrivals()[0] == all_of_it.arrivals()[0]
    assert set(few.arrivals()) <= set(all_of_it.arrivals())
    assert few.step == all_of_it.step
    for history in (few, all_of_it):  # a run that goes on from a checkpoint
        history.add(Resume(1000))
        history.add(Views(1500, 4600, (), 1.0, False))
    assert all(event.step <= 1000 for event in few.measured)
    assert few.views[-1] == all_of_it.views[-1]
