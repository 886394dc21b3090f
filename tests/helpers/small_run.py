"""A run that takes a second, and what is compared of two runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from effort import effort
from plugstream.cli import main as plugstream_main
from plugstream.runs.parts import prepare
from plugstream.runs.plan import plan
from plugstream.runs.replay import replay
from plugstream.runs.views import wait_for_scan, wait_for_views
from plugstream.scans.store import StoredScan, open_scan
from plugstream.settings import Settings
from plugstream.solver.verdict import strength

RING = ["--size", "24", "--views", "12", "--receivers", "30", "--radius", "0.4", "--wavelength", "0.03"]
SMALL = ["--instrument", "born-2d", *RING]
RUN = [
    "--report", "none", "--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "30", "--checkpoint", "0",
]  # fmt: skip


def main(words: list[str]) -> int:
    """The command line in this process, without what takes most of the time of a run of a few steps.

    Runs draw no report unless they are asked to, and ask held-out data about their strength in one step a side, rather
    than six; `solver/verdict` tests what that says.
    """
    draws = words[0] in ("reconstruct", "demo") and not any(word.startswith("--report") for word in words)
    quick = effort({"_LEAST": 1, "_USUAL": 1, "_PART": 10**9}, {"_LEAST": strength._LEAST})
    with patch.multiple(strength, **quick):
        return plugstream_main([words[0], *(["--report", "none"] if draws else []), *words[1:]])


def same_run(one: Path, other: Path) -> None:
    assert np.array_equal(np.load(one / "result.npy"), np.load(other / "result.npy"))
    a, b = replay(one / "events.jsonl").measured, replay(other / "events.jsonl").measured
    assert [(e.step, e.values) for e in a] == [(e.step, e.values) for e in b]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def with_all_views(words: list[str]) -> list[str]:
    """The words of a command with all views in every step, instead of a batch."""
    kept = [word for before, word in zip(["", *words], words, strict=False) if "--batch" not in (before, word)]
    return [*kept, "--sampler", "all"]


def open_live(place: Path, settings: Settings, say: Callable[[str], None]) -> StoredScan:
    """A scan to follow, opened as `reconstruct --follow` does."""
    parts = prepare(settings)
    wait_for_scan(place, settings.scan.patience, say)
    scan = open_scan(place)
    wait_for_views(scan, plan(parts, scan), say)
    return scan
