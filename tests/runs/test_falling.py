"""`reconstruct --fall`: it finds a step by held-out views, goes on to the bit, can be repeated, and is a default."""

import shlex
import shutil
import tomllib

import numpy as np
import pytest
import torch

from effort import effort
from plugstream import open_scan
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.denoisers import NLM
from plugstream.runs import commands
from plugstream.runs.advice import advised_settings
from plugstream.runs.describe import describe_run
from plugstream.runs.replay import replay
from plugstream.runs.rivals import make_entrants
from small_run import SMALL, main

Net = torch.nn.Identity  # a network in a file of a user's own

RUN = ["--denoiser", "nlm", "--fall", "4", "--iterations", "80", "--threads", "1", "--checkpoint", "99", "--every", "6"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Of so many views that some of them judge."""
    place = tmp_path_factory.mktemp("falling") / "scan.zarr"
    assert main(["simulate", str(place), *SMALL, "--views", "30", "--input-snr", "20"]) == 0
    return place


@pytest.fixture(scope="module")
def whole(scan, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN]) == 0
    return out


def settings_of(folder):
    return tomllib.loads((folder / "settings.toml").read_text())


def test_a_run_finds_its_step_and_the_settings_have_it(whole):
    history = replay(whole / "events.jsonl")
    assert all(trial.step == 4 * trial.round for trial in history.trials)
    assert [found.step for found in history.found_steps] == [history.trials[-1].step]
    assert history.trials[-1].ended
    algorithm = settings_of(whole)["algorithm"]
    assert (algorithm["step_size"], algorithm["fall"]) == (history.found_steps[0].step_size, "none")
    assert (algorithm["name"], algorithm["search"]) == ("inexact-admm", "none")
    assert history.stop is not None
    assert "the step" in str(history.stop.answers)


@pytest.mark.parametrize("found", ["fall", "search"])
def test_what_a_run_prints_gives_its_image_when_it_is_typed_or_loaded(scan, tmp_path, found):
    """A sigma that was found along with its step is another strength without it."""
    usual, few = ["--denoiser", "tv", "--tol", "1e-4", *RUN[6:]], ["--iterations", "150"]
    words = {
        "fall": ["--fall", "6", "--iterations", "150"],
        "search": ["--search", "60", "--fall", "none", "--sampler", "all", *few],
    }[found]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "found"), *usual, *words]) == 0
    printed = shlex.split(describe_run(tmp_path / "found")["settings"])
    for name, how in (("typed", printed), ("loaded", ["--like", str(tmp_path / "found")])):
        assert main(["reconstruct", str(scan), "--out", str(tmp_path / name), *RUN[6:], *few, *how]) == 0
    images = {name: np.load(tmp_path / name / "result.npy") for name in ("found", "typed", "loaded")}
    np.testing.assert_allclose(images["typed"], images["loaded"], rtol=0, atol=1e-5 * images["loaded"].max())
    assert np.linalg.norm(images["typed"] - images["found"]) < 0.01 * np.linalg.norm(images["found"])


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_that_is_stopped_goes_on_to_the_bit(scan, whole, tmp_path, stored):
    read = ["--in-memory", "0"] if stored else []
    end = replay(whole / "events.jsonl").trials[-1].step
    for stop in [end + 1] if stored else effort([6, end], [1, 4, 6, end - 1, end, end + 3]):
        out = tmp_path / f"run-{stop}"
        with pytest.MonkeyPatch.context() as patch:
            due = commands.Requests.due
            patch.setattr(commands.Requests, "due", lambda self, k, stop=stop, due=due: k >= stop or due(self, k))
            main(["reconstruct", str(scan), "--out", str(out), *RUN, *read])
        assert replay(out / "events.jsonl").step <= stop + 1
        assert main(["resume", str(out)]) == 0
        assert (out / "result.npy").read_bytes() == (whole / "result.npy").read_bytes()
        assert settings_of(out)["algorithm"] == settings_of(whole)["algorithm"]


@pytest.mark.parametrize("names", [("bm3d", "tv"), ("tv", "tv-anisotropic"), ("bm3d", "nlm")])
def test_sigma_of_a_rival_is_the_same_from_whichever_one_comes(names):
    def sigma_of(own, other, sigma):
        typed = ["scan.zarr", "--denoiser", own, "--rivals", other, "--fall", "4", "--sigma", "0.1"]
        settings = draft_of(command_parser("reconstruct", typed).parse_args(typed)).settings
        return make_entrants(settings, other, NLM())[0].sigma(sigma)

    assert sigma_of(*reversed(names), sigma_of(*names, 0.08)) == pytest.approx(0.08)


@pytest.mark.parametrize("names", [("nlm", "tv", "bm3d"), ("tv", "nlm")])
def test_of_several_denoisers_the_least_misfit_is_kept_and_goes_on_to_the_bit(
    scan, tmp_path, names, monkeypatch, capsys
):
    monkeypatch.setattr("plugstream.runs.search.heat_margin", lambda n_data: 0.0)
    words = ["--denoiser", names[0], "--rivals", ",".join(names[1:]), "--fall", "4", *RUN[4:]]
    words[words.index("--iterations") + 1] = "160"
    out = tmp_path / "whole"
    assert main(["reconstruct", str(scan), "--out", str(out), *words]) == 0
    history, found = replay(out / "events.jsonl"), settings_of(out)
    (chosen,), end = history.chosen, history.trials[-1].step
    described = describe_run(out)
    assert described["step"].startswith(f"{history.found_steps[-1].step_size}, found")
    assert described["denoiser"].startswith(f"{chosen.denoiser}, chosen by held-out data: misfits {names[0]} ")
    told = capsys.readouterr().err.splitlines()
    whose = [line.split(", with ")[1].split(":")[0] for line in told if line.startswith("run ")]
    assert list(dict.fromkeys(whose)) == list(names)
    # Later steps do not show the last misfit of the search, perhaps of another denoiser, as theirs.
    shown = [line for line in told if line.startswith("step ") and int(line[5:].split("/")[0]) > end]
    assert {"held-out" in line for line in shown} == {False}
    assert set(chosen.misfits) == set(names)
    assert chosen.misfits[chosen.denoiser] == min(chosen.misfits.values())
    assert (found["denoiser"]["name"], found["denoiser"]["rivals"]) == (chosen.denoiser, "none")
    assert (found["algorithm"]["sigma"], found["algorithm"]["fall"]) == (history.trials[-1].sigma, "none")
    for stop in effort([end + 2 if names[0] == "tv" else end - 9], [3, end // 2, end - 9, end - 1, end, end + 2]):
        part = tmp_path / f"run-{stop}"
        with pytest.MonkeyPatch.context() as patch:
            due = commands.Requests.due
            patch.setattr(commands.Requests, "due", lambda self, k, stop=stop, due=due: k >= stop or due(self, k))
            main(["reconstruct", str(scan), "--out", str(part), *words])
        assert main(["resume", str(part)]) == 0
        assert (part / "result.npy").read_bytes() == (out / "result.npy").read_bytes()
        assert settings_of(part) == found


def test_many_good_views_have_a_lower_sigma_and_go_on_to_the_bit(tmp_path):
    """Of 300 views runs use 256; the last sigma is lower than where the search began, and repeats with the step."""
    words = ["--instrument", "ct", "--size", "16", "--views", "300", "--photons", "1e7"]
    assert main(["simulate", str(tmp_path / "scan.zarr"), *words]) == 0
    typed = ["--denoiser", "bm3d", "--fall", "3", "--iterations", "45", "--threads", "1", "--every", "9"]
    for out, stop in (("whole", 99), ("part", 7)):
        with pytest.MonkeyPatch.context() as patch:
            due = commands.Requests.due
            patch.setattr(commands.Requests, "due", lambda self, k, stop=stop, due=due: k >= stop or due(self, k))
            main(["reconstruct", str(tmp_path / "scan.zarr"), "--out", str(tmp_path / out), *typed])
    assert main(["resume", str(tmp_path / "part")]) == 0
    assert (tmp_path / "part" / "result.npy").read_bytes() == (tmp_path / "whole" / "result.npy").read_bytes()
    found, trials = settings_of(tmp_path / "whole")["algorithm"], replay(tmp_path / "part" / "events.jsonl").trials
    assert trials[-1].ended
    assert found["sigma"] == trials[-1].sigma < 0.9 * trials[0].sigma
    assert found == settings_of(tmp_path / "part")["algorithm"]


def test_a_run_that_has_found_its_step_can_take_more(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    before = replay(out / "events.jsonl")
    assert main(["resume", str(out), "--iterations", str(before.step + 5)]) == 0
    assert replay(out / "events.jsonl").step == before.step + 5
    assert settings_of(out)["algorithm"]["step_size"] == before.found_steps[-1].step_size


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fall", "4", "--search", "none", "--sigma", "0.1"], "leave --fall out"),
        (["--fall", "4", "--algorithm", "hqs"], "not for hqs"),
        (["--fall", "30", "--search", "90"], "four runs of --fall take 120 steps"),
        (
            ["--fall", "30", "--search", "230", "--rivals", "bm3d"],
            "four runs of --fall take 120 steps for each denoiser",
        ),
        (["--fall", "4", "--rivals", "tnrd"], "cannot be a rival of itself"),
        (["--fall", "1"], "greater than or equal to 2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(scan, tmp_path, capsys, words, text):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), "--denoiser", "tnrd", *words]) == 2
    assert text in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "fall"),
    [
        (["--denoiser", "bm3d"], 12),
        (["--denoiser", "bm3d", "--fall", "none"], None),
        (["--denoiser", "bm3d", "--sigma", "0.1"], None),
        (["--denoiser", "bm3d", "--batch", "4"], None),
        (["--denoiser", "bm3d", "--iterations", "100"], None),
        (["--denoiser", "bm3d", "--algorithm", "pgm"], None),
        (["--denoiser", "unet"], 12),
        (["--denoiser", "mine.pt", "--architecture", "drunet"], 12),
        (["--denoiser", "mine.pt", "--architecture", "dncnn"], None),  # which is not told of the noise
        (["--denoiser", f"{__file__}:Net", "--condition", "scalar"], 12),
        (["--denoiser", f"{__file__}:Net"], None),
        (["--denoiser", "tnrd"], 12),
        (["--denoiser", "tnrd", "--rivals", "tv,unet"], 12),
        (["--denoiser", "tnrd", "--rivals", "bm3d"], 12),
        (["--denoiser", "tnrd", "--rivals", "bm3d", "--fall", "none"], None),
        (["--denoiser", "bm3d", "--rivals", "tnrd,ridge"], 12),
        (["--denoiser", "ridge"], 12),
        (["--denoiser", "nlm"], None),
        (["--denoiser", "tv"], None),
        ([], 12),  # with unet, or tv
        (["--batch", "4"], None),
    ],
)
def test_it_is_the_default_where_nothing_but_the_denoiser_is_given(scan, words, fall):
    typed = [str(scan), *words]
    draft = draft_of(command_parser("reconstruct", typed).parse_args(typed))
    settings, reasons = advised_settings(draft, open_scan(scan))
    assert settings.algorithm.fall == fall
    assert (settings.algorithm.name == "inexact-admm") == (fall is not None)
    assert any("fall together" in reason for reason in reasons) == (fall is not None)


@pytest.mark.parametrize(
    ("words", "fall"),
    [
        (["--instrument", "ct", "--size", "24", "--views", "40"], 16),
        (["--instrument", "ct", "--size", "24", "--views", "300"], 16),
        (["--instrument", "ct", "--size", "24", "--views", "12"], 16),  # judged by a part of each view's data
        (["--instrument", "born-2d", "--size", "24", "--views", "4"], 12),
        (["--instrument", "ct", "--size", "24", "--views", "2"], None),
        (["--instrument", "ct", "--size", "24", "--views", "40", "--arc", "60"], None),  # angles are missing
        (["--instrument", "mri", "--size", "32", "--acceleration", "1"], 12),
    ],
)
def test_other_images_have_it_and_say_nothing_of_what_is_not_used(tmp_path, words, fall):
    """Each step uses all views, and without momentum, so no reason speaks of batches."""
    assert main(["simulate", str(tmp_path / "scan.zarr"), *words]) == 0
    for more in ([], ["--fall", "30"]) if fall else ([],):
        typed = [str(tmp_path / "scan.zarr"), "--denoiser", "bm3d", *more]
        draft = draft_of(command_parser("reconstruct", typed).parse_args(typed))
        settings, reasons = advised_settings(draft, open_scan(tmp_path / "scan.zarr"))
        assert settings.algorithm.fall == (30 if more else fall)
        if fall is None:
            continue
        # To a share of the range of the first image, which is as large as the last but for waves that scatter.
        assert any(f"starting at {24 if 'born-2d' in words else 8}%" in reason for reason in reasons)
        assert settings.sampler.name == "all"
        assert not [reason for reason in reasons if "--momentum" in reason or "--sampler epochs" in reason]


@pytest.mark.parametrize(
    ("words", "more", "chosen"),
    [
        (["--views", "40"], [], ("tnrd", "bm3d,tv", 16)),
        (["--views", "40"], ["--fall", "5"], ("tnrd", "bm3d,tv", 5)),
        (["--views", "40"], ["--fall", "5", "--denoiser", "tv"], ("tv", None, 5)),
        (["--views", "40"], ["--loss", "gaussian"], ("tnrd", "bm3d,tv", 16)),
        (["--views", "40"], ["--loss", "huber"], ("tv", None, None)),
        (["--views", "40"], ["--loss", "poisson"], ("tv", None, None)),
        (["--views", "40"], ["--denoiser", "tnrd"], ("tnrd", None, 16)),
        (["--views", "40"], ["--rivals", "none"], ("tnrd", None, 16)),
        (["--views", "40"], ["--low", "-1"], ("tnrd", "bm3d,tv", 16)),
        (["--views", "40"], ["--fall", "none"], ("tv", None, None)),
        (["--views", "40"], ["--batch", "4"], ("tv", None, None)),
        (["--views", "40"], ["--sigma", "1%"], ("tv", None, None)),
        (["--views", "40"], ["--iterations", "50"], ("tv", None, None)),
        (["--views", "40"], ["--tol", "1e-3"], ("tv", None, None)),
        (["--views", "24"], [], ("tv", None, None)),
        (["--views", "40", "--arc", "60"], [], ("tv", None, None)),
        (["--views", "1100", "--arc", "60"], [], ("tv", None, None)),
        (["--views", "40", "--slices", "8"], [], ("tv", "bm4d", None)),
    ],
)
def test_tomography_of_images_chooses_among_tnrd_bm3d_and_tv(tmp_path, words, more, chosen):
    """Where nothing is set that means another denoiser, or another algorithm."""
    simulate = ["simulate", str(tmp_path / "scan.zarr"), "--instrument", "ct", "--size", "24", *words]
    assert main(simulate) == 0
    typed = [str(tmp_path / "scan.zarr"), *more]
    draft = draft_of(command_parser("reconstruct", typed).parse_args(typed))
    settings, reasons = advised_settings(draft, open_scan(tmp_path / "scan.zarr"))
    assert (settings.denoiser.name, settings.denoiser.rivals, settings.algorithm.fall) == chosen
    assert any("TV is solved to" in reason for reason in reasons) <= (chosen[0] == "tv")  # which needs no such care


def test_a_network_learns_what_white_is_from_the_first_image(tmp_path):
    """Images of tomography are in 1/m, and those it was trained on from 0 to 1."""
    scan = tmp_path / "scan.zarr"
    assert main(["simulate", str(scan), "--instrument", "ct", "--size", "24", "--views", "40"]) == 0
    stored = open_scan(scan)
    brightest = float(np.asarray(stored.truth).max())
    near = 10.0 ** round(np.log10(brightest))
    assert near != 1
    for words, white, told in (
        (["--denoiser", "unet"], near, True),
        (["--denoiser", "unet", "--white", "3"], 3, False),
        (["--denoiser", "unet", "--sigma", "1%"], near, True),
    ):
        typed = [str(scan), *words]
        settings, reasons = advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), stored)
        assert settings.denoiser.white == pytest.approx(white)
        assert any("white is" in reason for reason in reasons) == told
