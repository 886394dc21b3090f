"""A small scan and a run of it that was never stopped, for all tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugstream.cli import main
from small_run import RUN, SMALL


@pytest.fixture(scope="session")
def scan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "small.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


@pytest.fixture(scope="session")
def whole(scan, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN]) == 0
    return folder
