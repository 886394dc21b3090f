"""What tests of streams share: quick looks, and the same frames in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from growing_files import Writer
from plugstream.scans.importers import following


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_LOOK", 0.03)
    monkeypatch.setattr(following, "_LONGEST_LOOK", 0.03)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same frames in a file."""
    path = tmp_path_factory.mktemp("file") / "scan.h5"
    writer = Writer(path, "nexus")
    writer.fields("darks")
    writer.fields("flats")
    for n in range(20):
        writer.view(n)
    writer.file.close()
    return path
