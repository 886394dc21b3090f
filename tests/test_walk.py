"""The walk of a run in CONTRIBUTING.md is true: its files are called, in that order, and are few enough to read."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import plugstream
from small_run import main

HOME = Path(plugstream.__file__).parent
TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = TEXT[TEXT.index("## The walk of a run") : TEXT.index("## How we write")]
RUN, SIGMA, VIEWS = (
    [(file, name) for file, name in re.findall(r"^\| `([\w/]+\.py)` \| (?:`(\w+)`)? ?\|", part, re.MULTILINE)]
    for part in re.split(r"^How `\w+` gets? .*$", WALK, flags=re.MULTILINE)
)
# A sigma that nothing else is, so that it can be followed.
NUMBER = 0.0123456789


class Trace:
    """The functions of ours that a run calls: when each was first called, and which of them had sigma at hand."""

    def __init__(self) -> None:
        self.handed_sigma: set[str] = set()
        self.first: dict[tuple[str, str], int] = {}
        self.later: dict[tuple[str, str], list[int]] = {}
        self.had_sigma: set[tuple[str, str]] = set()
        self.count = 0

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(HOME)):
            return
        function = (str(Path(code.co_filename).relative_to(HOME)), code.co_name)
        if event == "call":
            self.count += 1
            self.first.setdefault(function, self.count)
            if any(type(argument) is float and argument == NUMBER for argument in _arguments(frame)):
                self.handed_sigma.add(function[0])
            if function in WATCHED:
                self.later.setdefault(function, []).append(self.count)
        if function in WATCHED and any(map(_has_sigma, [*frame.f_locals.values(), value])):
            self.had_sigma.add(function)

    def follow(self, functions: list[tuple[str, str]]) -> int:
        """Call number of the last of these, each called after the one before."""
        at = 0
        for function in functions:
            at = next(number for number in self.later[function] if number > at)
        return at


WATCHED = {*SIGMA, *VIEWS}


def _arguments(frame: FrameType) -> list[Any]:
    """What a function is called with, by keyword too."""
    code, local = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    keywords = local[code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]] if _has_keywords(code) else {}
    return [*(local.get(name) for name in code.co_varnames[:count]), *keywords.values()]


def _has_keywords(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_VARKEYWORDS)


def _has_sigma(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_sigma, value))
    if isinstance(value, dict):
        return any(map(_has_sigma, value.values()))
    return bool(value == NUMBER) if isinstance(value, float) else getattr(value, "sigma", None) == NUMBER


def trace(words: list[str]) -> Trace:
    calls, before = Trace(), sys.getprofile()
    sys.setprofile(calls)
    try:
        assert main(words) == 0
    finally:
        sys.setprofile(before)
    return calls


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("walk")
    place, out = str(folder / "scan.zarr"), folder / "run"
    assert main(["simulate", place, "--instrument", "ct", "--size", "16", "--views", "20"]) == 0
    calls = trace(["reconstruct", place, "--out", str(out), "--sigma", str(NUMBER), "--iterations", "4"])
    assert (out / "result.npy").exists()
    return calls


def test_a_run_comes_to_the_files_in_this_order(calls: Trace) -> None:
    assert 20 <= len(RUN) <= 25
    assert [one for one in RUN if one not in calls.first] == []
    assert sorted(RUN, key=calls.first.__getitem__) == RUN


def test_sigma_goes_through_these(calls: Trace) -> None:
    assert len(SIGMA) == 6
    (declared, nothing), *through = SIGMA
    assert "sigma:" in (HOME / declared).read_text(encoding="utf-8")
    assert nothing == ""
    assert [one for one in through if one not in calls.had_sigma] == []
    calls.follow(through)


def test_no_other_file_is_handed_sigma(calls: Trace) -> None:
    besides = re.search(r"^Besides these, sigma is handed only to (.*?)\n\n", WALK, re.MULTILINE | re.DOTALL)
    assert besides is not None
    helpers = set(re.findall(r"`([\w/]+\.py)`", besides[1]))
    assert calls.handed_sigma <= helpers | {file for file, _ in SIGMA}


def test_views_go_through_these_within_a_step(calls: Trace) -> None:
    assert len(VIEWS) == 6
    assert calls.follow(VIEWS) < calls.later[VIEWS[0]][1]
