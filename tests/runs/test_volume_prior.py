"""BM4D as the prior of volumes: tried by itself, kept where held-out views ask for it, and by name everywhere."""

import contextlib
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest

import warm
from effort import effort
from plugstream import open_scan
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.runs import commands
from plugstream.runs.advice import advised_settings
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Note
from plugstream.runs.partition import Partition
from plugstream.runs.replay import replay
from ports import reserved_port
from small_run import main

CT = ["--instrument", "ct", "--beam", "cone", "--size", "12", "--slices", "10", "--views", "30", "--photons", "1e4"]
RUN = ["--rivals", "bm4d", "--search", "108", "--iterations", "112", "--batch", "6", "--threads", "1", "--every", "8"]
PLAIN = ["--sigma", "2%", "--iterations", "4", "--batch", "6", "--threads", "1"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    place = tmp_path_factory.mktemp("prior") / "scan.zarr"
    assert main(["simulate", str(place), *CT]) == 0
    return place


@pytest.fixture(scope="module")
def whole(scan, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, "--checkpoint", "100"]) == 0
    return out


@pytest.fixture(scope="module", autouse=True)
def _no_margin():
    """A rival is ahead by whatever it is better, so that it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugstream.runs.search.heat_margin", lambda n_data: 0.0)
        yield


def notes_of(folder):
    return [event.text for event in read_events(folder / "events.jsonl") if isinstance(event, Note)]


def advised(scan, *words):
    typed = [str(scan), "--instrument", open_scan(scan).instrument.name, *words]
    return advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), open_scan(scan))


def test_nothing_set_means_that_held_out_views_are_asked_about_bm4d(scan):
    settings, notes = advised(scan)
    assert (settings.denoiser.name, settings.denoiser.rivals) == ("tv", "bm4d")
    alone, _ = advised(scan, "--denoiser", "tv")
    assert alone.denoiser.rivals is None
    assert alone.algorithm.search == 250
    assert settings.algorithm.search == 250 + 250 * (1 + 3 + 12) // 20
    (why,) = (note for note in notes if "bm4d" in note)
    assert why.startswith("denoiser tv: it needs no training, unless held-out views ask for bm4d, about 0.00")


def test_where_a_call_takes_long_it_is_not_tried_and_the_reason_says_how_long(scan, monkeypatch):
    monkeypatch.setattr("plugstream.runs.rivals._SECONDS", {"cpu": 1.0, "cuda": 1.0})
    settings, notes = advised(scan, "--threads", "2")
    assert (settings.denoiser.name, settings.denoiser.rivals) == ("tv", None)
    assert settings.algorithm.search == 250
    (why,) = (note for note in notes if "bm4d" in note)
    assert why.startswith("denoiser tv: ")
    assert why.endswith("bm4d is not tried, since a call would take about 7.2e+02 s here (--denoiser)")


@pytest.mark.parametrize(
    "words",
    [["--sigma", "1%"], ["--iterations", "80"], ["--search", "60"], ["--along", "z"], ["--tol", "1e-3"]],
    ids=lambda words: words[0],
)
def test_what_a_person_says_decides(scan, words):
    settings, notes = advised(scan, *words)
    assert (settings.denoiser.name, settings.denoiser.rivals) == ("tv", None)
    assert not any("unless held-out views" in note for note in notes)


def test_thin_volumes_keep_tv_and_images_have_other_rivals(tmp_path):
    for slices, chosen in (("7", ("tv", None)), ("0", ("tnrd", "bm3d,tv"))):
        place = tmp_path / slices
        words = ["--instrument", "ct", "--size", "12", "--slices", slices, "--views", "30"]
        assert main(["simulate", str(place), *words]) == 0
        settings, notes = advised(place)
        assert (settings.denoiser.name, settings.denoiser.rivals) == chosen
        assert not any("not tried" in note for note in notes)


def test_the_rival_is_tried_and_kept_only_where_its_misfit_is_below(whole):
    history = replay(whole / "events.jsonl")
    (chosen,) = history.chosen
    assert list(chosen.misfits) == ["tv", "bm4d"]
    notes = notes_of(whole)
    (heat,) = (text for text in notes if "held-out misfit after as many steps" in text)
    assert all(f"{name} {misfit:.5g}" in heat for name, misfit in chosen.misfits.items())
    assert heat.startswith("denoiser bm4d is ahead, and looks for its sigma: ")  # or nothing below is tested
    (proof,) = (text for text in notes if "was chosen: bm4d came to a held-out misfit" in text)
    misfit = float(proof.split("held-out misfit ")[1].split()[0])
    assert chosen.denoiser == ("bm4d" if misfit < chosen.misfits["tv"] else "tv")
    settings = tomllib.loads((whole / "settings.toml").read_text())
    assert (settings["denoiser"]["name"], settings["denoiser"]["rivals"]) == (chosen.denoiser, "none")
    assert settings["algorithm"]["sigma"] == history.trials[-1].sigma or chosen.denoiser == "tv"


def test_a_run_that_is_stopped_on_the_way_goes_on_to_the_bit(scan, whole, tmp_path):
    events = list(read_events(whole / "events.jsonl"))
    at = next(k for k, event in enumerate(events) if isinstance(event, Note) and "is ahead" in event.text)
    after = next(event.step for event in events[at:] if hasattr(event, "round"))
    for stop in effort([after - 2], range(after - 12, after + 4, 2)):
        out = tmp_path / f"run-{stop}"
        with pytest.MonkeyPatch.context() as patch:
            due = commands.Requests.due
            patch.setattr(commands.Requests, "due", lambda self, k, stop=stop, due=due: k >= stop or due(self, k))
            main(["reconstruct", str(scan), "--out", str(out), *RUN])
        assert replay(out / "events.jsonl").step <= stop + 1
        assert main(["resume", str(out)]) == 0
        assert (out / "result.npy").read_bytes() == (whole / "result.npy").read_bytes()
        assert replay(out / "events.jsonl").chosen == replay(whole / "events.jsonl").chosen


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--instrument", "odt-3d", "--size", "12", "--views", "12"], "float32"),
        (["--instrument", "mri", "--size", "12", "--slices", "8", "--coils", "2", "--acceleration", "2"], "complex64"),
    ],
    ids=["odt-3d", "mri"],
)
def test_volumes_of_other_instruments_are_reconstructed_with_it(tmp_path, words, kind):
    """It is not TV under another name, it brings the image nearer, and tiles do not change a voxel."""
    place = tmp_path / "scan.zarr"
    assert main(["simulate", str(place), *words]) == 0
    settings, _ = advised(place)
    assert settings.denoiser.rivals == "bm4d"
    images = []
    for number, more in enumerate(([], ["--tile", "6"])):
        out = tmp_path / str(number)
        run = ["--denoiser", "bm4d", "--sigma", "2%", "--iterations", "6", "--threads", "1", "--every", "6", *more]
        assert main(["reconstruct", str(place), "--out", str(out), *run]) == 0
        images.append(np.load(out / "result.npy"))
    assert images[0].dtype == kind
    first, last = (replay(out / "events.jsonl").measured[k].values["snr"] for k in (0, -1))
    assert last > first + 3
    np.testing.assert_allclose(images[0], images[1], atol=1e-5 * np.abs(images[0]).max())


def test_by_blocks_of_slices_it_is_bm3d_on_each_and_in_3d_it_is_refused(tmp_path, monkeypatch, capsys):
    """Blocks share nothing, so that only slices on their own can go by them."""
    place = tmp_path / "scan.zarr"
    assert main(["simulate", str(place), "--instrument", "ct", "--size", "12", "--slices", "16", "--views", "10"]) == 0
    for name, cut in (("bm3d", None), ("bm4d", Partition((0, 8, 16), note="cut"))):
        monkeypatch.setattr("plugstream.runs.plan.choose_partition", lambda *_, cut=cut: cut)
        words = ["--denoiser", name, "--out", str(tmp_path / name), *PLAIN, "--along", "z"]
        assert main(["reconstruct", str(place), *words]) == 0
    results = [(tmp_path / name / "result.npy").read_bytes() for name in ("bm3d", "bm4d")]
    assert results[0] == results[1]
    monkeypatch.undo()
    capsys.readouterr()
    words = ["--denoiser", "bm4d", *PLAIN, "--memory", "1MB"]
    assert main(["reconstruct", str(place), "--out", str(tmp_path / "large"), *words]) == 2
    assert "--along z" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_ranks_share_its_slabs(scan, tmp_path):
    words = ["reconstruct", str(scan), "--denoiser", "bm4d", *PLAIN, "--tile", "5", "--deterministic"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "plugstream", *words, "--out", str(tmp_path / "two"), "--report", "none"]
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = []
        for rank in range(2):
            mine = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(warm.Popen(command, env=mine, stderr=subprocess.PIPE, text=True))
            stack.callback(ranks[-1].kill)
        said = [rank.communicate(timeout=180)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert (tmp_path / "two" / "result.npy").read_bytes() == (tmp_path / "one" / "result.npy").read_bytes()
