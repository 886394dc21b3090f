"""`reconstruct` without a sigma: it finds one by held-out views, says so, goes on to the bit, and can be repeated."""

from __future__ import annotations

import shutil
import tomllib

import numpy as np
import pytest
import torch

from effort import effort
from plugstream import SigmaRace, open_scan
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.models.part import judged_entries
from plugstream.runs import commands
from plugstream.runs.advice import advised_settings
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Note
from plugstream.runs.partition import Partition
from plugstream.runs.replay import replay
from plugstream.runs.search import count_judges, search_interval
from plugstream.scans.store import StoredScan
from plugstream.settings import Settings
from small_run import SMALL, main

RUN = ["--batch", "4", "--threads", "1", "--iterations", "72", "--checkpoint", "100", "--every", "6"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Of 12 views, a tenth of whose data judges."""
    place = tmp_path_factory.mktemp("search") / "scan.zarr"
    assert main(["simulate", str(place), *SMALL, "--input-snr", "20"]) == 0
    return place


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Of so many views that some of them judge."""
    place = tmp_path_factory.mktemp("many") / "scan.zarr"
    assert main(["simulate", str(place), *SMALL, "--views", "30", "--input-snr", "20"]) == 0
    return place


@pytest.fixture(scope="module")
def whole(scan, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN]) == 0
    return out


def settings_of(folder):
    return tomllib.loads((folder / "settings.toml").read_text())


def test_a_run_without_a_sigma_finds_it_and_can_be_repeated_without_a_search(scan, whole, tmp_path):
    history = replay(whole / "events.jsonl")
    assert [trial.round for trial in history.trials] == list(range(1, len(history.trials) + 1))
    last = history.trials[-1]
    assert last.ended
    assert not any(trial.ended for trial in history.trials[:-1])
    assert history.step == last.step + 12  # what comes after the search
    algorithm = settings_of(whole)["algorithm"]
    assert (algorithm["sigma"], algorithm["search"]) == (last.sigma, "none")
    held = [event.step for event in history.measured if event.values.get("held_out") is not None]
    assert held
    assert max(held) <= last.step  # while they were held out
    again = tmp_path / "again"
    assert main(["reconstruct", str(scan), "--settings", str(whole / "settings.toml"), "--out", str(again)]) == 0
    assert not replay(again / "events.jsonl").trials
    one, other = (np.load(folder / "result.npy") for folder in (whole, again))
    assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(other)


def test_views_judge_where_there_are_many_and_a_part_of_each_ones_data_where_there_are_few(
    many, scan, whole, tmp_path, capsys
):
    out = tmp_path / "run"
    assert main(["reconstruct", str(many), "--out", str(out), *RUN]) == 0
    told = capsys.readouterr().err
    assert "by 3 views that no step uses" in told
    assert "with the views that were held out" in told
    notes = [event.text for event in read_events(whole / "events.jsonl") if isinstance(event, Note)]
    assert sum("by a tenth of the data of each of 12 views that no step uses" in note for note in notes) == 1
    assert sum("with the data that were held out" in note for note in notes) == 1


@pytest.mark.parametrize("memory", [1000, 0])
def test_no_step_of_a_search_sees_the_data_that_judges_and_those_after_it_do(scan, tmp_path, memory):
    """Changed so little that every round is decided alike."""
    read, seed = StoredScan.read, 5
    words = [*RUN, "--sigma", "0.3", "--low", "0", "--search", "40", "--seed", f"{seed}", "--in-memory", f"{memory}"]

    def changed(self, views=None):
        data = read(self, views)
        numbers = range(self.n_views) if views is None else views.tolist()
        judged = torch.stack([judged_entries(seed, view, data.shape[1:]) for view in numbers])
        return torch.where(judged, data * (1 + 1e-4), data)

    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "one"), *words]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredScan, "read", changed)
        assert main(["reconstruct", str(scan), "--out", str(tmp_path / "other"), *words]) == 0
    one, other = (replay(tmp_path / name / "events.jsonl") for name in ("one", "other"))
    assert [trial.sigma for trial in one.trials] == [trial.sigma for trial in other.trials]
    assert [trial.misfit for trial in one.trials] != [trial.misfit for trial in other.trials]
    end = one.trials[-1].step
    for before, after in zip(one.measured, other.measured, strict=True):
        same = before.values["snr"] == after.values["snr"]
        assert same == (before.step <= end)


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_that_is_stopped_while_it_searches_or_later_goes_on_to_the_bit(scan, whole, tmp_path, stored):
    read = ["--in-memory", "0"] if stored else []
    end = replay(whole / "events.jsonl").trials[-1].step
    stops = effort([7, end], [1, 7, end - 1, end, end + 3])
    for stop in [end + 1] if stored else stops:
        out = tmp_path / f"run-{stop}"
        words = ["reconstruct", str(scan), "--out", str(out), *RUN, *read]
        with pytest.MonkeyPatch.context() as patch:
            due = commands.Requests.due
            patch.setattr(commands.Requests, "due", lambda self, k, stop=stop, due=due: k >= stop or due(self, k))
            assert main(words) != 0 or replay(out / "events.jsonl").stop is not None
        assert replay(out / "events.jsonl").step <= stop + 1
        assert main(["resume", str(out)]) == 0
        assert (out / "result.npy").read_bytes() == (whole / "result.npy").read_bytes()
        assert settings_of(out)["algorithm"] == settings_of(whole)["algorithm"]


def test_a_run_that_has_found_sigma_can_take_more_steps(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    before = replay(out / "events.jsonl")
    assert main(["resume", str(out), "--iterations", str(before.step + 20)]) == 0
    after = replay(out / "events.jsonl")
    assert after.step == before.step + 20
    assert settings_of(out)["algorithm"]["sigma"] == before.trials[-1].sigma


def test_views_that_are_held_out_to_the_end_judge_and_stay_out(scan, tmp_path):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, "--hold-out", "3"]) == 0
    history = replay(out / "events.jsonl")
    assert history.trials[-1].ended
    assert history.measured[-1].values["held_out"] is not None
    assert history.measured[-1].step == history.step


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--search", "80", "--iterations", "80"], "takes 80 of 80 steps"),
        (["--search", "40", "--sigma", "0"], "starts from a sigma > 0"),
        (["--search", "40", "--sigma", "0.1", "--sigma-end", "0.01"], "leave --sigma-end out"),
        (["--search", "40", "--sigma", "0.1", "--distance-limit", "0.1"], "leave --distance-limit out"),
        (["--search", "40", "--sigma", "0.1", "--follow"], "wait for its end"),
        (["--search", "40", "--lam", "0.1"], "starts from a sigma, and not from a lam"),
        (["--search", "40", "--stages", "all: 80"], "leave stages out"),
        (["--search", "40", "--opening", "tv", "--denoiser", "bm3d"], "leave --opening out"),
        (["--opening", "tv", "--denoiser", "bm3d"], "it is not clear how strongly to denoise"),
        (["--iterations", "20"], "it is not clear how strongly to denoise"),
        (["--search", "19"], "greater than or equal to 20"),
        (["--search", "none"], "it is not clear how strongly to denoise"),
        (["--follow"], "it is not clear how strongly to denoise"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(scan, tmp_path, capsys, words, text):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *words]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert text in told[-1]
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "words", "search"),
    [
        ("ct", ["--size", "16", "--views", "24", "--photons", "1e4"], []),
        ("mri", ["--size", "16", "--coils", "2", "--acceleration", "1"], ["--search", "20"]),
    ],
)
def test_a_sigma_that_an_instrument_advises_is_where_the_search_begins(tmp_path, capsys, name, words, search):
    place, out, plain = (str(tmp_path / part) for part in ("scan.zarr", "run", "plain"))
    quiet = ["--report", "none", "--threads", "1"]
    assert main(["simulate", place, "--instrument", name, *words]) == 0
    assert main(["reconstruct", place, "--out", plain, "--iterations", "24", *quiet]) == 0
    known = settings_of(tmp_path / "plain")["algorithm"]
    assert known["search"] == "none"  # steps that are asked for have the sigma that is advised
    assert not replay(tmp_path / "plain" / "events.jsonl").trials
    capsys.readouterr()
    assert main(["reconstruct", place, "--out", out, *search, *quiet]) == 0
    told = capsys.readouterr().err
    assert f"the first {20 if search else 250} steps search for it, starting at " in told
    assert "of the image's range" not in told  # it is no more than where the search begins
    trials = replay(tmp_path / "run" / "events.jsonl").trials
    assert trials[-1].ended
    reach = 2 ** len(trials)
    assert known["sigma"] / reach <= trials[-1].sigma <= known["sigma"] * reach
    assert settings_of(tmp_path / "run")["algorithm"]["sigma"] == trials[-1].sigma
    assert settings_of(tmp_path / "run")["sampler"]["name"] == "epochs"
    typed = [place, "--instrument", name, "--denoiser", "bm3d", "--fall", "none"]  # whose sigma is a noise level
    settings, _ = advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), open_scan(place))
    assert (settings.algorithm.search, settings.algorithm.iterations) == (250, 750)  # the last a limit


@pytest.mark.parametrize(("denoiser", "growing"), [("tv", False), ("bm3d", True)])
def test_rounds_grow_where_sigma_is_a_level_of_noise(scan, tmp_path, monkeypatch, denoiser, growing):
    class Noted(SigmaRace):
        def __post_init__(self):
            seen.append(self.growing)
            super().__post_init__()

    seen: list = []
    monkeypatch.setattr("plugstream.runs.search.SigmaRace", Noted)
    words = ["--denoiser", denoiser, "--search", "20", "--iterations", "24", "--report", "none"]
    words += ["--batch", "4", "--threads", "1"]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *words]) == 0
    assert set(seen) == {growing}


def test_an_instrument_may_advise_not_to_search(tmp_path):
    place, words = str(tmp_path / "scan.zarr"), ["--size", "12", "--views", "6", "--receivers", "12", "--width", "0.01"]
    assert main(["simulate", place, "--instrument", "scattering-2d", *words]) == 0
    parser = command_parser("reconstruct", typed := [place, "--instrument", "scattering-2d"])
    settings, notes = advised_settings(draft_of(parser.parse_args(typed)), open_scan(place))
    assert (settings.algorithm.search, settings.algorithm.sigma, settings.algorithm.iterations) == (None, 0.03, 500)
    assert any("--search 250" in note for note in notes)
    typed += ["--search", "50"]
    settings, _ = advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), open_scan(place))
    assert (settings.algorithm.search, settings.algorithm.sigma, settings.algorithm.iterations) == (50, 0.03, 550)


def test_a_volume_that_goes_by_blocks_takes_what_is_advised(tmp_path, monkeypatch):
    place, out = str(tmp_path / "scan.zarr"), tmp_path / "run"
    words = ["--size", "8", "--slices", "2", "--views", "12"]
    assert main(["simulate", place, "--instrument", "ct", *words]) == 0
    monkeypatch.setattr("plugstream.runs.plan.choose_partition", lambda *_: Partition((0, 1, 2), note="cut"))
    with monkeypatch.context() as patch:
        patch.setattr(commands.Requests, "due", lambda self, k: k >= 9)
        assert main(["reconstruct", place, "--out", str(out), "--report", "none", "--threads", "1"]) == 130
    found = settings_of(out)["algorithm"]
    assert (found["search"], found["iterations"], found["arrive"]) == ("none", 500, 0.01)
    assert found["sigma"] > 0
    assert main(["reconstruct", place, "--out", str(tmp_path / "asked"), "--search", "24"]) == 2


def test_a_tenth_of_views_judges_and_of_many_as_many_as_two_steps_use():
    settings = Settings.model_validate({"algorithm": {"name": "pgm", "sigma": 0.1, "search": 20}})
    batch = settings.sampler.views
    counts = {n_views: count_judges(settings, n_views) for n_views in (1, 4, 24, 25, 60, 1000, 100_000)}
    assert counts[1] == counts[4] == counts[24] == 0  # but a part of each one's data
    assert counts[25] == 2
    assert counts[60] == 6
    assert counts[100_000] == 2 * batch
    assert search_interval(Settings(), 3) is None
    kept = settings.model_copy(update={"monitor": settings.monitor.model_copy(update={"hold_out": 2})})
    assert count_judges(kept, 4) == 2  # views that a person holds out judge in any case


def test_one_view_is_enough_to_search_by_and_ten_data_are_not(tmp_path, capsys):
    place, words = str(tmp_path / "scan.zarr"), ["--iterations", "48", "--threads", "1"]
    assert main(["simulate", place, *SMALL, "--views", "1", "--receivers", "200"]) == 0
    assert main(["reconstruct", place, "--out", str(tmp_path / "run"), *words]) == 0
    assert "by a tenth of the data of 1 view that no step uses" in capsys.readouterr().err
    assert replay(tmp_path / "run" / "events.jsonl").trials[-1].ended
    assert settings_of(tmp_path / "run")["sampler"]["name"] == "all"
    few = str(tmp_path / "few.zarr")
    assert main(["simulate", few, *SMALL, "--views", "2", "--receivers", "5"]) == 0
    assert main(["reconstruct", few, "--out", str(tmp_path / "few"), *words, "--search", "40"]) == 2
    assert "have 10 data, a tenth of which is too few" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [20, 30, 40])
def test_the_sigma_found_is_as_good_as_the_best_one(shared_data, tmp_path, level):
    """Two pictures: SNR within 0.3 dB of the best sigma found with the truth, by 100 steps each."""
    behind = []
    for name in ("house", "parrot"):
        place = tmp_path / f"{name}.zarr"
        picture = str(shared_data / "paper-images" / f"{name}.png")
        assert main(["simulate", str(place), "--picture", picture, "--size", "128", "--input-snr", str(level)]) == 0
        truth = open_scan(place).truth

        def snr(*words, place=place, truth=truth):
            out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
            assert main(["reconstruct", str(place), "--out", str(out), *words]) == 0
            image = np.load(out / "result.npy")
            return 20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(image - truth)), replay(out / "events.jsonl")

        best = max(snr("--sigma", str(sigma))[0] for sigma in np.geomspace(0.004, 0.2, 12))
        found, history = snr()
        assert history.step <= 300  # denoiser calls, of which a plain run takes 100
        behind.append(best - found)
    assert np.mean(behind) < 0.3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sigma_found_of_ct_is_nearly_the_best_where_the_advised_one_is_not(shared_data, tmp_path):
    place, picture = str(tmp_path / "scan.zarr"), str(shared_data / "paper-images" / "house.png")
    words = ["--size", "64", "--views", "60", "--photons", "1e4"]
    assert main(["simulate", place, "--instrument", "ct", "--picture", picture, *words]) == 0
    truth = open_scan(place).truth

    def snr(*words):
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        assert main(["reconstruct", place, "--out", str(out), "--report", "none", *words]) == 0
        image = np.load(out / "result.npy")
        return 20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(image - truth)), replay(out / "events.jsonl")

    best = max(snr("--iterations", "100", "--sigma", f"{sigma}%")[0] for sigma in np.geomspace(0.5, 4, 10))
    advised, _ = snr("--iterations", "100")
    found, history = snr()
    assert history.step <= 300
    assert found > best - 0.3
    assert advised < best - 1
