"""A command resolves its settings once, into one plan; what is added later is checked where it is added."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from plugstream.base.errors import InputError
from plugstream.instruments.ct import CT
from plugstream.runs.plan import plan
from plugstream.settings import Draft, SettingsFile, resolve
from small_run import main

COUNTED = {Draft.of.__code__: "resolved", plan.__code__: "planned", CT.check_model.__code__: "checked"}


def count_calls(words: list[str]) -> Counter[str]:
    """How often a command resolves settings, makes a plan and checks its model, counted in a real run."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and frame.f_code in COUNTED:
            counts[COUNTED[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert main(words) == 0
    finally:
        sys.setprofile(before)
    return counts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scan") / "scan.zarr"
    assert main(["simulate", str(place), "--instrument", "ct", "--size", "12", "--views", "8"]) == 0
    return place


@pytest.mark.parametrize("words", [[], ["--sigma", "1%"], ["--search", "20"]])
def test_a_run_resolves_its_settings_once_into_one_plan(words: list[str], place: Path, tmp_path: Path) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    once = {"resolved": 1, "planned": 1, "checked": 1}
    assert count_calls(["reconstruct", str(place), "--out", str(run), "--iterations", "24", *words]) == once
    repeat = ["--settings", str(run / "settings.toml")]
    assert count_calls(["reconstruct", str(place), "--out", str(again), *repeat]) == once
    if "--search" not in words:
        assert np.array_equal(np.load(run / "result.npy"), np.load(again / "result.npy"))


def test_going_on_resolves_once(place: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert main(["reconstruct", str(place), "--out", run, "--iterations", "3", "--sigma", "1"]) == 0
    assert count_calls(["resume", run, "--iterations", "5"])["resolved"] == 1


def test_what_is_typed_stays_when_more_is_added() -> None:
    typed, seed, name = ("sampler", "batch", 3), ("sampler", "seed", 5), ("sampler", "name", "epochs")
    draft = Draft.of(None, [typed])
    assert draft.add([("sampler", "batch", 7), seed, name]).settings == resolve(None, [typed, seed, name])
    assert draft.settings == resolve(None, [typed])


def test_momentum_and_sigma_follow_what_is_added() -> None:
    draft = Draft.of()
    assert draft.settings.momentum.name == "tapered"
    assert draft.add([("sampler", "name", "all")]).settings.momentum.name == "nesterov"
    box = draft.add([("denoiser", "name", "box")])
    assert box.settings.algorithm.sigma == 0
    assert box.add([("denoiser", "name", "tv")]).settings.algorithm.sigma is None
    assert box.add([("algorithm", "sigma", 0.5)]).settings.algorithm.sigma == 0.5


def test_options_that_an_added_entry_lacks_are_left_out_unless_typed() -> None:
    draft = Draft.of(None, presets=[("sampler", "batch", 3)])
    assert draft.add([("sampler", "name", "all")]).settings.sampler.model_dump() == {"name": "all", "seed": 0}
    with pytest.raises(InputError, match="the sampler all has no use for batch"):
        Draft.of(None, [("sampler", "batch", 3)]).add([("sampler", "name", "all")])


def test_shares_are_numbers_once_the_range_is_known(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[algorithm]\nsigma = "4%"\n')
    drafts = [Draft.of(None, [("algorithm", "sigma", "4%")]), Draft.of(SettingsFile(tmp_path / "s.toml"))]
    for draft in drafts:
        assert draft.settings.algorithm.sigma == 0.04
        assert draft.for_range(lambda: 100.0).algorithm.sigma == pytest.approx(0.4)
        noise = draft.add([("denoiser", "name", "bm3d")])
        assert noise.for_range(lambda: 100.0).algorithm.sigma == pytest.approx(4)
        with pytest.raises(InputError, match="a share of the first image's range, which is not known here"):
            draft.for_range(None)
    assert drafts[1].add([("algorithm", "sigma", 0.3)]).for_range(None).algorithm.sigma == 0.3
    advised = Draft.of().add([("algorithm", "sigma", "4%")])
    assert advised.add([("algorithm", "sigma", 0.3)]).for_range(None).algorithm.sigma == 0.3
