"""The fuzzing of streams and files: a few cases of each kind, the same every time, and what counts as a failure."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from plugstream.base.errors import InputError

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
REST = ["pva", "cbf", "hdf5", "npz", "matlab"]  # each takes seconds to load


@pytest.mark.parametrize("kinds", [["dectris", "tiff"], pytest.param(REST, marks=pytest.mark.slow)])
def test_a_few_cases_of_each_kind(tmp_path: Path, kinds: list[str]) -> None:
    words = [sys.executable, str(FUZZ), "--cases", "30", "--seed", "50", "--out", str(tmp_path), "--kind", *kinds]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 FAILED") == len(kinds)
    assert list(tmp_path.iterdir()) == []


def test_what_counts_as_a_failure() -> None:
    """Any error that no command tells in one line, and one for want of memory, whatever it became."""
    check_refusal = runpy.run_path(str(FUZZ))["check_refusal"]
    check_refusal(InputError("no picture"))
    with pytest.raises(ValueError, match="a bug"):
        check_refusal(ValueError("a bug"))
    hidden = InputError("cannot be read")
    hidden.__cause__ = MemoryError()
    with pytest.raises(MemoryError):
        check_refusal(hidden)
