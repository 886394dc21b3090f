"""The watch over the theory counts steps, not looks: the last step is looked at again when it has been measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugstream.runs.event_log import read_events
from small_run import SMALL, main


@pytest.mark.parametrize("every", [1, 4, 5, 100])
def test_as_many_steps_as_were_taken(tmp_path: Path, every: int) -> None:
    scan, out = tmp_path / "scan.zarr", tmp_path / "run"
    assert main(["simulate", str(scan), *SMALL]) == 0
    words = ["reconstruct", str(scan), "--out", str(out), "--sigma", "0.05", "--batch", "4", "--threads", "1"]
    assert main([*words, "--iterations", "10", "--every", str(every), "--watch-theory", "--momentum", "none"]) == 0
    events = list(read_events(out / "events.jsonl"))
    assert [event.steps for event in events if event.kind == "watched"][-1] == 10
    assert any("none of 10 steps" in event.text for event in events if event.kind == "note")
