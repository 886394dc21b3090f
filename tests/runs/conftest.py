"""A run of the small scan that was never stopped, for all tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_run import RUN, main


@pytest.fixture(scope="session")
def whole(scan, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN]) == 0
    return folder
