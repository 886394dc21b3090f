"""A window that slides over a scan that is followed: older views are forgotten, in every step and every measure."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plugstream import ScanWriter, open_scan
from plugstream.runs.events import Views
from plugstream.runs.measuring import MeasuredViews, held_out_views, usable_views
from plugstream.runs.replay import replay
from plugstream.runs.views import GrowingViews
from small_run import main, same_run

CT = ["--instrument", "ct", "--size", "16", "--views", "24", "--order", "golden", "--photons", "1e6"]
RUN = ["--sigma", "2", "--momentum", "none", "--sampler", "all", "--threads", "1"]
RUN += ["--checkpoint", "0", "--preview", "0", "--iterations", "60"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "ct.zarr"
    assert main(["simulate", str(path), *CT]) == 0
    return path


def append(writer: ScanWriter, scan: Path, first: int, last: int) -> None:
    whole = open_scan(scan).load()
    writer.append(whole.data[first:last].numpy(), rays=whole.columns["rays"][first:last])
    writer.commit()


@pytest.fixture
def live(scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scan that has six views, and three more after every four steps of whoever follows it."""
    place = tmp_path / "live.zarr"
    writer = ScanWriter(place, open_scan(scan).instrument)
    append(writer, scan, 0, 6)
    find = GrowingViews.find_views

    def find_views(self: GrowingViews, step: int) -> Views | None:
        self._looked = 0.0  # at every step, however quick
        if step % 4 == 3 and writer.committed < 24:
            append(writer, scan, writer.committed, writer.committed + 3)
            if writer.committed == 24:
                writer.finish()
        return find(self, step)

    monkeypatch.setattr(GrowingViews, "find_views", find_views)
    return place


def test_a_record_with_a_first_view_has_none_before_it() -> None:
    record = Views(0, 20, (12, 15), None, False, first=8)
    assert usable_views(record, None).tolist() == [8, 9, 10, 11, 13, 14, 16, 17, 18, 19]
    assert held_out_views(record, 5).tolist() == [9, 14, 19]
    assert not np.intersect1d(usable_views(record, 5), held_out_views(record, 5)).size


def test_the_image_is_that_of_the_last_views_alone(scan: Path, live: Path, tmp_path: Path) -> None:
    """At the end it is a fixed point of the window's problem, whatever was measured before it."""
    out, last, alone = tmp_path / "run", tmp_path / "last.zarr", tmp_path / "alone"
    assert main(["reconstruct", str(live), "--follow", "--window", "9", "--out", str(out), *RUN]) == 0
    records = replay(out / "events.jsonl").views
    assert [(r.views, r.first) for r in records if r.views < 24] == [(v, max(0, v - 9)) for v in range(6, 24, 3)]
    assert (records[-1].views, records[-1].first, records[-1].ended) == (24, 15, True)
    with ScanWriter(last, open_scan(scan).instrument) as writer:
        append(writer, scan, 15, 24)
        writer.finish()
    step = ["--step-size", repr(1 / records[-1].lipschitz)]
    assert main(["reconstruct", str(last), "--out", str(alone), *RUN, *step]) == 0
    one, other = (np.load(place / "result.npy") for place in (out, alone))
    whole = tmp_path / "whole"
    assert main(["reconstruct", str(scan), "--out", str(whole), *RUN]) == 0
    far = np.linalg.norm(np.load(whole / "result.npy") - other)
    assert np.linalg.norm(one - other) < 0.02 * far  # and not that of all views


def test_a_view_that_has_left_the_window_leaves_its_geometry_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """96 bytes and room for a quarter more, and none of the 4 kB of its data; the log's history is bounded."""
    source, place, held = tmp_path / "wide.zarr", tmp_path / "live.zarr", list[float]()
    assert main(["simulate", str(source), *CT, "--columns", "1024"]) == 0
    whole, writer = open_scan(source).load(), ScanWriter(place, open_scan(source).instrument)
    data, rays = (np.concatenate([part] * 6)[:128] for part in (whole.data.numpy(), whole.columns["rays"]))
    find = GrowingViews.find_views

    def find_views(self: GrowingViews, step: int) -> Views | None:
        self._looked = 0.0
        if writer.committed < 2048 and self.record.views == writer.committed:
            writer.append(data, rays=rays)
            writer.commit()
            if writer.committed == 256:
                tracemalloc.start()
            elif writer.committed in (512, 2048):  # whole shards, of which the writer holds nothing
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        elif writer.committed == 2048:
            tracemalloc.stop()
            writer.finish()
        return find(self, step)

    writer.append(data, rays=rays)
    writer.commit()
    monkeypatch.setattr(GrowingViews, "find_views", find_views)
    words = ["--follow", "--window", "40", "--sigma", "2", "--batch", "4", "--step-size", "1e3", "--threads", "1"]
    words += ["--checkpoint", "0", "--preview", "0", "--report", "none", "--iterations", "1"]
    assert main(["reconstruct", str(place), "--out", str(tmp_path / "run"), *words]) == 0
    assert held[1] - held[0] < 400 * 1536


def test_distance_and_held_out_misfit_are_of_the_window(live: Path, tmp_path: Path) -> None:
    seen: list[tuple[torch.Tensor, int]] = []
    judged: list[tuple[torch.Tensor | None, int]] = []
    use, held_out = GrowingViews._use, MeasuredViews.held_out

    def note(self: GrowingViews, record: Views) -> None:
        use(self, record)
        seen.append((self.fidelity.available, record.views))

    def judge(self: MeasuredViews, fidelity: Any) -> torch.Tensor | None:
        judged.append((held_out(self, fidelity), fidelity.n_views))
        return judged[-1][0]

    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrowingViews, "_use", note)
        patch.setattr(MeasuredViews, "held_out", judge)
        words = ["--follow", "--window", "10", "--hold-out", "4", "--out", str(out)]
        assert main(["reconstruct", str(live), *words, *RUN, "--iterations", "5"]) == 0
    for available, views in seen:
        wanted = [view for view in range(max(0, views - 10), views) if view % 4 != 3]
        assert available.tolist() == wanted
    for views, count in judged:  # while it runs, and for the verdict
        assert views is not None
        assert views.tolist() == [view for view in range(max(0, count - 10), count) if view % 4 == 3]
    assert judged[-1][1] == seen[-1][1]


def test_a_run_with_a_window_is_resumed_to_the_bit(live: Path, tmp_path: Path) -> None:
    """Stopped while views still come, and again later: the log says what the window was at each step."""
    out, again = tmp_path / "run", tmp_path / "again"
    words = ["--follow", "--window", "9", *RUN, "--sampler", "epochs", "--batch", "4"]
    assert main(["reconstruct", str(live), "--out", str(out), *words, "--iterations", "20"]) == 0
    shutil.copytree(out, again)
    for file in sorted((again / "checkpoints").glob("step-*"))[1:]:
        file.unlink()
    (again / "result.npy").unlink()
    assert main(["resume", str(again)]) == 0
    same_run(out, again)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--window", "9"], "--window forgets views of a scan that is followed; add --follow"),
        (["--window", "3", "--follow", "--batch", "4", "--sampler", "epochs"], "smaller than a batch of 4"),
        (["--window", "0", "--follow"], "window"),
    ],
)
def test_windows_that_make_no_sense_are_refused(scan: Path, tmp_path: Path, capsys, words: list[str], why: str) -> None:
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN[:-2], *words]) == 2
    assert why in capsys.readouterr().err
    assert not out.exists()
