"""`reconstruct` without a denoiser: the search chooses one by held-out views, says so, and goes on to the bit."""

import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from effort import effort
from plugstream import open_scan
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.denoisers import Identity
from plugstream.fidelity import LeastSquares
from plugstream.models.matrix import MatrixModel
from plugstream.runs import commands
from plugstream.runs.advice import advised_settings
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Note
from plugstream.runs.replay import replay
from plugstream.runs.search import heat_margin, make_race
from small_run import SMALL, main

SHORT = ["--batch", "4", "--threads", "1", "--iterations", "102", "--search", "96", "--report", "none"]
RUN = ["--denoiser", "bm3d", "--rivals", "tnrd,ridge", "--every", "6", "--checkpoint", "100", *SHORT]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Of so many views that some of them judge."""
    place = tmp_path_factory.mktemp("choice") / "scan.zarr"
    assert main(["simulate", str(place), *SMALL, "--views", "30", "--input-snr", "20"]) == 0
    return place


@pytest.fixture(scope="module", autouse=True)
def _no_margin():
    """A rival wins by whatever it is better, so that one does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugstream.runs.search.heat_margin", lambda n_data: 0.0)
        yield


@pytest.fixture(scope="module")
def whole(scan, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN]) == 0
    return out


def table_of(folder, section):
    return tomllib.loads((folder / "settings.toml").read_text())[section]


def notes_of(folder):
    return [event.text for event in read_events(folder / "events.jsonl") if isinstance(event, Note)]


def advised(scan, *words):
    typed = [str(scan), "--instrument", "born-2d", *words]
    return advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), open_scan(scan))


def test_a_run_says_which_denoiser_it_chose_and_why_and_can_be_repeated_with_it(scan, whole, tmp_path):
    history = replay(whole / "events.jsonl")
    (chosen,) = history.chosen
    assert chosen.denoiser != "bm3d"  # a rival, or nothing below is tested
    assert chosen.denoiser == min(chosen.misfits, key=chosen.misfits.__getitem__)
    assert list(chosen.misfits) == ["bm3d", "tnrd", "ridge"]
    assert chosen.step == history.trials[-1].step
    (told,) = (text for text in notes_of(whole) if "was chosen" in text)
    assert told.startswith(f"denoiser {chosen.denoiser} was chosen: held-out misfit")
    assert all(f"{name} {misfit:.5g}" in told for name, misfit in chosen.misfits.items())
    denoiser, algorithm = table_of(whole, "denoiser"), table_of(whole, "algorithm")
    assert (denoiser["name"], denoiser["rivals"], denoiser["low"]) == (chosen.denoiser, "none", 0.0)
    assert (algorithm["search"], algorithm["sigma"]) == ("none", history.trials[-1].sigma)
    again = tmp_path / "again"
    words = ["--settings", str(whole / "settings.toml"), "--iterations", "3"]
    assert main(["reconstruct", str(scan), "--out", str(again), *words]) == 0
    assert not replay(again / "events.jsonl").trials
    assert table_of(again, "denoiser") == denoiser


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_that_is_stopped_before_in_or_after_the_heat_goes_on_to_the_bit(scan, whole, tmp_path, stored):
    history = replay(whole / "events.jsonl")
    notes = list(read_events(whole / "events.jsonl"))
    at = next(k for k, event in enumerate(notes) if isinstance(event, Note) and "was chosen" in event.text)
    after = next(event.step for event in notes[at:] if hasattr(event, "round"))
    heat, end = after - 2 * 3, history.trials[-1].step  # a round of two sides later, of three steps each
    assert heat < end
    stops = effort([heat - 3], [heat - 13, heat - 8, heat - 3, heat - 1, heat, end - 1, end, end + 1])
    read = ["--in-memory", "0"] if stored else []
    for stop in [end + 1] if stored else stops:
        out = tmp_path / f"run-{stop}"
        with pytest.MonkeyPatch.context() as patch:
            due = commands.Requests.due
            patch.setattr(commands.Requests, "due", lambda self, k, stop=stop, due=due: k >= stop or due(self, k))
            main(["reconstruct", str(scan), "--out", str(out), *RUN, *read])
        assert replay(out / "events.jsonl").step <= stop + 1
        assert main(["resume", str(out)]) == 0
        assert (out / "result.npy").read_bytes() == (whole / "result.npy").read_bytes()
        assert table_of(out, "denoiser") == table_of(whole, "denoiser")
        assert any("was chosen" in text for text in notes_of(out))
        assert replay(out / "events.jsonl").chosen == history.chosen


def test_a_run_that_has_chosen_can_take_more_steps_with_its_choice(scan, tmp_path):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN]) == 0
    before, denoiser = replay(out / "events.jsonl").step, table_of(out, "denoiser")
    assert main(["resume", str(out), "--iterations", str(before + 4)]) == 0
    assert replay(out / "events.jsonl").step == before + 4
    assert table_of(out, "denoiser") == denoiser


def test_nothing_set_means_the_safe_network_and_where_sigma_falls_tv_as_its_rival(scan):
    falling, notes = advised(scan)
    assert (falling.denoiser.name, falling.denoiser.rivals, falling.algorithm.fall) == ("unet", "tv", 12)
    assert sum("unless held-out views ask for tv" in note for note in notes) == 1
    settings, notes = advised(scan, "--fall", "none")
    assert (settings.denoiser.name, settings.denoiser.rivals, settings.denoiser.damping) == ("unet", None, 0.3)
    assert not any("(--rivals)" in note for note in notes)
    three, _ = advised(scan, "--denoiser", "tnrd", "--rivals", "bm3d,ridge", "--fall", "none")
    assert [one.algorithm.search for one in (settings, three)] == [200, 270]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--denoiser", "tv"], "tv"),
        (["--denoiser", "bm3d"], "bm3d"),
        (["--sigma", "0.1"], "tv"),
        (["--search", "none", "--sigma", "0.1"], "tv"),
        (["--iterations", "80"], "tv"),
        (["--search", "60"], "tv"),
        (["--tol", "1e-3"], "tv"),
    ],
)
def test_what_a_person_says_decides(scan, words, name):
    settings, notes = advised(scan, *words)
    assert (settings.denoiser.name, settings.denoiser.rivals) == (name, None)
    assert not any("(--denoiser, --rivals)" in note for note in notes)


def test_few_views_and_small_images_keep_the_usual_denoiser(scan, tmp_path, monkeypatch):
    few = tmp_path / "few.zarr"
    assert main(["simulate", str(few), *SMALL, "--views", "20"]) == 0
    monkeypatch.setattr("plugstream.instruments.advice._LEAST_SIDE", 25)  # pixels more than the image has
    for place in (few, scan):
        settings, _ = advised(place)
        assert (settings.denoiser.name, settings.denoiser.rivals) == ("tv", None)
        assert settings.algorithm.search is not None


def test_white_goes_with_the_values_of_the_image(tmp_path):
    """A scan of an image a hundred times as faint, whose reconstruction should be the same but for that."""
    found = []
    for contrast in ("1", "0.01"):
        place = tmp_path / f"{contrast}.zarr"
        assert main(["simulate", str(place), *SMALL, "--views", "30", "--contrast", contrast]) == 0
        found.append(advised(place)[0])
    one, other = (settings.denoiser.white for settings in found)
    assert (one, other) == (1.0, pytest.approx(0.01))
    bm3d = found[0].denoiser.chosen("bm3d")  # which has no white, and another kind of profile
    assert (bm3d.name, found[0].denoiser.profile, bm3d.profile) == ("bm3d", "safe", "normal")
    assert found[0].denoiser.chosen("ridge").white == one


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--denoiser", "tnrd", "--rivals", "tnrd"], "cannot be a rival of itself"),
        (["--denoiser", "tv", "--rivals", "tnrd"], "sigma of tnrd means something else than that of tv"),
        (["--denoiser", "tnrd", "--rivals", "tnrt"], "tnrt"),
        (["--denoiser", "tnrd", "--rivals", "bm3d", "--sigma", "0.1", "--search", "none"], "leave --rivals out"),
        (["--denoiser", "tnrd", "--rivals", "bm3d", "--search", "20"], "with 1 rivals it takes at least 26 steps"),
    ],
)
def test_rivals_that_cannot_be_are_refused_in_one_line(scan, tmp_path, capsys, words, text):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *words]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert text in told[-1]
    assert not out.exists()


def test_the_margin_is_a_third_of_what_noise_gives_the_misfit():
    """The mean of n squares of noise has the relative standard deviation sqrt(2 / n)."""
    n = 400
    draws = np.random.default_rng(0).standard_normal((4000, n))
    means = (draws**2).mean(1)
    assert heat_margin(n) == pytest.approx(means.std() / 3, rel=0.05)
    assert heat_margin(1) <= 0.5


@pytest.mark.parametrize("white", ["1", "0.01"])
@pytest.mark.parametrize(("own", "rivals"), [("tnrd", "bm3d,ridge"), ("ridge", "tnrd,bm3d"), ("bm3d", "ridge,tnrd")])
def test_what_goes_with_a_sigma_of_tnrd_is_the_same_from_whichever_one_comes(scan, white, own, rivals):
    """And goes with the values of images, as sigma does."""
    words = ["--denoiser", own, "--rivals", rivals, "--sigma", "0.01", "--search", "100"]
    settings, _ = advised(scan, *words, *(["--white", white] if own != "bm3d" else []))
    unit = float(white) if own != "bm3d" else 1.0  # bm3d has no white, and its rivals then have that of 1
    known = {"tnrd": 0.01, "bm3d": 0.014, "ridge": 2.5 * 0.01**1.25}
    algorithm = SimpleNamespace(sigma=unit, fidelity=SimpleNamespace(model=MatrixModel(torch.eye(4)[None], (2, 2))))
    judge = LeastSquares(algorithm.fidelity.model, torch.zeros(1, 4))
    made = make_race(settings, algorithm, torch.tensor([0]), None, judge, [Identity(), Identity()])
    assert len(made.rivals) == 2
    for rival in made.rivals:
        assert rival.sigma(unit * known[own]) == pytest.approx(unit * known[rival.name])
