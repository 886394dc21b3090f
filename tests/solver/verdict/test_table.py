"""The bars of benchmarks/verdicts.py: every spoilt scan is flagged with its cause, and hardly any good one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HOME = Path(__file__).parents[3]


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdicts", HOME / "benchmarks" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdicts"] = module  # which its dataclasses ask for
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "missed"),
    # LEDs that are mirrored leave 1.08 times the noise at 3e5 photons a frame, which is nothing but noise; at 1e6 1.75.
    [("cases", 0), ("other_cases", 1)],
)
def test_spoilt_scans_are_flagged_and_good_ones_are_not(which: str, missed: int, tmp_path: Path) -> None:
    table = _benchmark()
    if not table.PICTURES.exists():
        pytest.skip("the pictures of ../shared are not here")
    wrong, flagged, good = [], [], 0
    for number, case in enumerate(getattr(table, which)()):
        folder = tmp_path / str(number)
        table.run_case(case, folder)
        _, found = table.judge_run(folder)
        if case.cause:
            named = any(case.cause in cause.name for cause in found.causes[:2])
            wrong += [] if named and not found.explained else [f"{case.name}: {found.text}"]
        else:
            good += 1
            flagged += [] if found.explained else [f"{case.name}: {found.text}"]
    assert len(wrong) <= missed, "\n".join(wrong)
    assert len(flagged) <= good / 30, "\n".join(flagged)
