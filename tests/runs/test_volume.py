"""A volume by blocks of slices is the volume at once, to the bit, also where it was killed on the way."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warm
from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.base.volume_file import make_volume, open_volume
from plugstream.denoisers import TV, Clip, Tiles, adapt
from plugstream.denoisers.bm3d import cuda_form
from plugstream.instruments.ct import ct_rays
from plugstream.instruments.ct_counts import CTCounts
from plugstream.models.ct_line_integrals import FlatField
from plugstream.runs.agreement import Agreement
from plugstream.runs.commands import Command, send_command
from plugstream.runs.context import RunContext
from plugstream.runs.execution import execute
from plugstream.runs.footprint import Footprint, warm_fields
from plugstream.runs.pages.pictures import run_picture
from plugstream.runs.partition import Partition, choose_partition
from plugstream.runs.parts import prepare
from plugstream.runs.plan import plan
from plugstream.runs.replay import replay
from plugstream.runs.terminal import describe_verdict
from plugstream.runs.volume import Relay
from plugstream.scans import open_scan, save_scan
from plugstream.scans.scan import MemoryScan
from plugstream.settings import Settings, resolve
from ports import reserved_port
from small_run import main

RUN = ["--sigma", "0.05", "--sampler", "epochs", "--batch", "4", "--iterations", "9", "--every", "3", "--along", "z"]
RUN += ["--threads", "1"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 slices of 24 x 24 voxels, 10 views."""
    place = tmp_path_factory.mktemp("volume") / "scan.zarr"
    words = ["--instrument", "ct", "--size", "24", "--slices", "25", "--views", "10", "--photons", "1e4"]
    assert main(["simulate", str(place), *words]) == 0
    return place


@pytest.fixture(scope="module")
def at_once(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of all slices at once."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN]) == 0
    return folder


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes go by blocks of 8, 8 and 9 slices, whatever memory there is."""
    monkeypatch.setattr("plugstream.runs.plan.choose_partition", lambda *_: Partition((0, 8, 16, 25), note="cut"))


class Killed(BaseException):
    """What nobody catches, as little as a SIGKILL."""


def run_until(step: int, monkeypatch: pytest.MonkeyPatch, scan: Path, folder: Path) -> None:
    """A run that ends all at once after this step of all blocks."""

    def die(self: Relay, progress: Any) -> None:
        if self.before + progress.state.k >= step:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Relay, "after_step", die)
        with pytest.raises(Killed):
            main(["reconstruct", str(scan), "--out", str(folder), *RUN, "--checkpoint", "0"])


@pytest.mark.parametrize("formats", ["html", pytest.param("png,svg", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("cut")
def test_blocks_make_the_volume_that_all_slices_at_once_make(
    scan: Path, at_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, formats: str
) -> None:
    monkeypatch.setattr("plugstream.models.ct_geometry.Rays.unseen", lambda self: (10.0, 60.0))
    folder = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN, "--report", formats]) == 0
    assert (folder / "result.npy").read_bytes() == (at_once / "result.npy").read_bytes()
    names = {path.name for path in folder.iterdir()}
    assert {"result.tif", "result.png", "history.csv", "settings.toml"} <= names
    assert {f"report.{ending}" for ending in formats.split(",")} <= names
    assert {path.name for path in (folder / "blocks").iterdir()} == {"0000", "0001", "0002", "sums.npy"}
    assert not list(folder.rglob("*.safetensors"))  # states of blocks that have finished are gone
    history = replay(folder / "events.jsonl")
    assert history.start is not None
    assert history.start.iterations == 27
    assert [event.step for event in history.measured] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert history.stop is not None
    assert (history.stop.step, history.stop.reason) == (27, "all iterations were done")
    assert "edges along 10 to 60 degrees were not measured" in describe_verdict(history.stop)[0][0]
    whole = replay(at_once / "events.jsonl").measured[-1].values["snr"]
    assert f"SNR {whole:.2f} dB of all slices together" in [note.text for note in history.notes]
    known = json.loads((folder / "blocks.json").read_text())
    said = json.loads((at_once / "run.json").read_text())["step"]["lipschitz"]
    assert known["lipschitz"] == said  # the largest of all blocks is that of the volume
    import tifffile

    np.testing.assert_array_equal(tifffile.imread(folder / "result.tif")[:, ::-1], np.load(folder / "result.npy"))


@pytest.mark.parametrize("step", [pytest.param(4, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow), 14])
@pytest.mark.usefixtures("cut")
def test_killed_and_gone_on_with_it_is_the_same(
    scan: Path, at_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    folder = tmp_path / "run"
    run_until(step, monkeypatch, scan, folder)
    finished = [path.parent.name for path in sorted(folder.rglob("finished.json"))]
    assert finished == ["0000"][: step // 10]
    stamps = {name: (folder / "blocks" / name / "events.jsonl").stat().st_mtime_ns for name in finished}
    assert main(["info", str(folder)]) == 0
    assert main(["resume", str(folder)]) == 0
    assert (folder / "result.npy").read_bytes() == (at_once / "result.npy").read_bytes()
    for name, stamp in stamps.items():
        assert (folder / "blocks" / name / "events.jsonl").stat().st_mtime_ns == stamp  # not run again
    steps = [event.step for event in replay(folder / "events.jsonl").measured]
    assert steps == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["gaussian", "transmission"])
@pytest.mark.usefixtures("cut")
def test_masks_and_losses_that_look_at_the_data_leave_no_seams(scan: Path, tmp_path: Path, loss: str) -> None:
    """Slices differ in their masks, and blocks in the curvature of the loss: L is that of all of the volume."""
    stored, rng = open_scan(scan), np.random.default_rng(0)
    data = stored.read().numpy()
    columns = {"rays": stored.columns["rays"][:], "mask": rng.random(data.shape) > 0.1 * rng.random((25, 1))}
    place = tmp_path / "masked.zarr"
    save_scan(MemoryScan(data, stored.instrument, columns=columns), place)
    words = ["reconstruct", str(place), *RUN, "--loss", loss, "--low", "0"]
    assert main([*words, "--out", str(tmp_path / "blocks")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugstream.runs.plan.choose_partition", lambda *_: None)
        assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    one, other = (np.load(tmp_path / name / "result.npy") for name in ("blocks", "whole"))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("loss", ["gaussian", pytest.param("transmission", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("cut")
def test_counts_go_by_blocks_without_seams(scan: Path, tmp_path: Path, loss: str) -> None:
    """The beam falls off from the first row to the last, so that blocks by themselves would weigh counts otherwise."""
    stored, rng = open_scan(scan), np.random.default_rng(0)
    rays = ct_rays(stored)
    beam = np.linspace(9000, 2000, 25)[:, None] * np.linspace(1, 0.7, rays.detector[1])
    field = FlatField.from_frames([20 + beam[None], 20 + 0.9 * beam[None]], 20 + 0 * beam[None], (0.0, 10.0))
    counts = rng.poisson(20 + field.beam(np.arange(10)) * np.exp(-stored.read().numpy())).astype(np.uint16)
    columns = {"rays": rays.vectors, "place": np.arange(10.0)}
    instrument = CTCounts.of_counts(rays, stored.instrument.voxels, field)
    save_scan(MemoryScan(counts, instrument, columns=columns), tmp_path / "counts.zarr")
    words = ["reconstruct", str(tmp_path / "counts.zarr"), *RUN, "--loss", loss, "--report", "none"]
    assert main([*words, "--out", str(tmp_path / "blocks")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugstream.runs.plan.choose_partition", lambda *_: None)
        assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    one, other = (np.load(tmp_path / name / "result.npy") for name in ("blocks", "whole"))
    np.testing.assert_array_equal(one, other)
    assert float(one.max()) > 30


@pytest.mark.slow
@pytest.mark.usefixtures("cut")
def test_nothing_of_a_block_is_in_memory_when_the_next_begins(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[Any]] = []
    counts = []
    opens = Agreement.open

    def look(self: Agreement, number: int) -> Any:
        counts.append(sum(ref() is not None for ref in alive))
        return opens(self, number)

    def note(run: RunContext) -> Any:
        result = execute(run)
        alive.extend(weakref.ref(one) for one in (run, run.scan, result, result.image, result.state.image))
        return result

    monkeypatch.setattr(Agreement, "open", look)
    monkeypatch.setattr("plugstream.runs.run.execute", note)
    gc.disable()
    try:
        assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--low", "0"]) == 0
    finally:
        gc.enable()
    assert len(alive) == 15
    assert counts == [0, 0, 0]


@pytest.mark.parametrize("how", [pytest.param("Ctrl-C", marks=pytest.mark.slow), "stop"])
@pytest.mark.usefixtures("cut", "own_ctrl_c")
def test_stopped_in_a_block_it_goes_on_there(
    scan: Path, at_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = tmp_path / "run"

    def stop(self: Relay, progress: Any) -> None:
        if self.before + progress.state.k == 12:
            if how == "stop":
                send_command(folder, Command("change", sigma=1.0))  # which is refused
                send_command(folder, Command("stop"))
            else:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("plugstream.runs.commands._EVERY", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Relay, "after_step", stop)
        words = ["reconstruct", str(scan), "--out", str(folder), *RUN]
        assert main(words) == (130 if how == "Ctrl-C" else 0)
    history = replay(folder / "events.jsonl")
    assert history.stop is not None
    assert 12 <= history.stop.step <= 13
    assert history.stop.verdict is None
    assert any("all blocks of a volume have one sigma" in note.text for note in history.notes) == (how == "stop")
    assert main(["resume", str(folder)]) == 0
    assert (folder / "result.npy").read_bytes() == (at_once / "result.npy").read_bytes()


@pytest.mark.usefixtures("cut")
def test_what_a_run_by_blocks_cannot_do_is_refused(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run_until(4, monkeypatch, scan, folder)
    assert main(["resume", str(folder), "--iterations", "20"]) == 2
    assert "start a new run with more --iterations" in capsys.readouterr().err
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "b"), *RUN, "--live-zarr", str(tmp_path / "z")]) == 2
    assert "leave --live-zarr out" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.usefixtures("cut")
def test_damaged_views_are_refused_or_left_out(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "scan.zarr"
    shutil.copytree(scan, place)
    file = next(path for path in (place / "data").rglob("*") if path.is_file() and path.name != "zarr.json")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert main(["reconstruct", str(place), "--out", str(tmp_path / "a"), *RUN]) == 2
    said = capsys.readouterr().err
    assert "fails its checksum" in said
    assert "--skip-damaged" in said
    assert main(["reconstruct", str(place), "--out", str(tmp_path / "b"), *RUN, "--skip-damaged"]) == 0
    assert json.loads((tmp_path / "b" / "blocks.json").read_text())["damaged"] == [5]
    whole = [*RUN, "--skip-damaged", "--out", str(tmp_path / "c")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugstream.runs.plan.choose_partition", lambda *_: None)
        assert main(["reconstruct", str(place), *whole]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "b" / "result.npy"), np.load(tmp_path / "c" / "result.npy"))


def settings(*words: str) -> Settings:
    pairs = [word.split("=") for word in words]
    given = [(*name.split("."), value) for name, value in pairs]
    return resolve(None, [("algorithm", "sigma", 0.05), *given], instrument="ct")  # type: ignore[list-item]


class OneOfTwo(Group):
    """A process whose other one waits for what this one decides, and answers nothing."""

    size = 2

    def share(self, *_: Any) -> Any:
        raise AssertionError("nobody listens")

    gather = share


def test_memory_is_asked_of_tiles_that_processes_share_without_them() -> None:
    whole = adapt(TV(), (25, 24, 24))
    tiles = Tiles(whole, 8, group=OneOfTwo())
    with pytest.raises(AssertionError, match="nobody listens"):
        tiles.denoise(torch.zeros(25, 24, 24), 0.1)
    assert warm_fields(tiles) == warm_fields(Clip(tiles, 0.0)) == warm_fields(whole) > 0


def test_memory_decides_and_what_does_not_fit_is_refused(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = open_scan(scan)
    monkeypatch.setattr("plugstream.runs.footprint.process_memory", lambda _: 0.0)
    assert plan(settings("compute.memory=2GB"), stored, divide=True).partition is None
    assert plan(settings(), stored, divide=True).partition is None
    denoiser = plan(settings("denoiser.along=z"), stored).denoiser
    takes = Footprint.of(denoiser, (25, 24, 24), torch.float32, stored.nbytes / 25, in_memory=True)
    limit = f"compute.memory={takes.bytes(9) / 1e3:.3f}kB"
    small = (limit, "denoiser.along=z")
    made = plan(settings(*small), stored, divide=True).partition
    assert made is not None
    assert made.edges[0] == 0
    assert made.edges[-1] == 25
    sizes = np.diff(made.edges)
    assert sizes.max() - sizes.min() <= 1
    assert 9 >= sizes.max() > 4
    assert "are available" in made.note
    for words, advice in (
        ((limit,), "--along z"),
        ((*small, "algorithm.time_limit=5"), "leave --time-limit out"),
        ((*small, "momentum.restart=gradient"), "leave --restart out"),
        (("compute.memory=100MB", "denoiser.along=z"), "allow more --memory"),
    ):
        with pytest.raises(InputError, match=advice):
            plan(settings(*words), stored, divide=True)
    with pytest.raises(InputError, match="not a size of memory"):
        settings("compute.memory=much")


def test_without_a_limit_what_may_not_fit_is_tried(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of memory errs on the safe side, so that it alone refuses nothing that would fit."""
    stored = open_scan(scan)
    made = plan(prepare(settings()), stored)
    monkeypatch.setattr("plugstream.runs.footprint.process_memory", lambda _: 0.0)
    monkeypatch.setattr("plugstream.runs.footprint.free_on_device", lambda _: 130e6)
    monkeypatch.setattr("plugstream.runs.partition.free_on_device", lambda _: 1e9)
    assert choose_partition(made, stored) is None
    monkeypatch.setattr("plugstream.runs.partition.free_on_device", lambda _: 50e6)
    with pytest.raises(InputError, match="denoise slices by --along z"):
        choose_partition(made, stored)


def test_a_gpu_s_memory_decides_where_a_run_computes_there(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is needed to ask: what is free on one is given here."""
    for module in ("footprint", "partition"):
        monkeypatch.setattr(f"plugstream.runs.{module}.free_on_device", lambda device: {"cuda": 1e8}[device.type])
    monkeypatch.setattr("plugstream.runs.footprint.process_memory", lambda device: {"cuda": 0.0}[device.type])
    cone = tmp_path / "cone.zarr"
    words = ["--instrument", "ct", "--size", "24", "--slices", "25", "--views", "10", "--beam", "cone"]
    assert main(["simulate", str(cone), *words]) == 0

    def choose(place: Path, *words: str) -> Partition | None:
        stored = open_scan(place)
        made = plan(prepare(settings(*words)), stored)
        on_gpu = replace(made, parts=replace(made.parts, device=torch.device("cuda")))
        return choose_partition(on_gpu, stored)

    stored, gpu = open_scan(scan), torch.device("cuda")
    denoiser = plan(settings("denoiser.along=z"), stored).denoiser
    each = stored.nbytes / 25
    takes = Footprint.of(denoiser, (25, 24, 24), torch.float32, each, in_memory=True, device=gpu)
    of_blocks = plan(settings("denoiser.along=z", "denoiser.name=bm3d"), stored).denoiser
    more = Footprint.of(of_blocks, (25, 24, 24), torch.float32, each, in_memory=True, device=gpu).fixed - takes.fixed
    assert more == 4 * cuda_form.NUMBERS * 25 * 24 * 24
    limit = f"compute.memory={takes.bytes(9) / 1e3:.3f}kB"
    found = choose(scan, "denoiser.along=z", limit)
    assert found is not None
    assert max(np.diff(found.edges)) == 9
    assert "of the GPU's memory" in found.note
    assert choose(scan, "denoiser.along=z", "compute.memory=1GB") is None
    with pytest.raises(InputError, match=r"of the GPU's memory, .*denoise slices by --along z"):
        choose(scan, limit)
    monkeypatch.setattr("plugstream.runs.partition.free_on_device", lambda _: 50e6)
    with pytest.raises(InputError, match="so use a GPU with more memory or --device cpu"):
        choose(cone, "denoiser.along=z")


@pytest.mark.gpu
def test_blocks_on_a_gpu_make_the_volume_that_it_makes_at_once(scan: Path, tmp_path: Path) -> None:
    stored, gpu = open_scan(scan), torch.device("cuda", 0)
    denoiser = plan(settings("denoiser.along=z"), stored).denoiser
    words: tuple[str, ...] = ()
    for name in ("whole", "parts"):
        folder = tmp_path / name
        assert main(["reconstruct", str(scan), "--out", str(folder), *RUN, "--device", "cuda", *words]) == 0
        gc.collect()  # what earlier tests and this run left on the GPU, which would count as taken
        takes = Footprint.of(denoiser, (25, 24, 24), torch.float32, stored.nbytes / 25, in_memory=True, device=gpu)
        words = ("--memory", f"{takes.bytes(9) / 1e3:.3f}kB")
    assert len(json.loads((tmp_path / "parts" / "blocks.json").read_text())["edges"]) > 2
    whole, parts = (np.load(tmp_path / name / "result.npy") for name in ("whole", "parts"))
    assert np.abs(whole - parts).max() <= 1e-5 * np.abs(whole).max()


def test_a_volume_in_its_file_is_judged_and_shown_as_one_in_memory(
    scan: Path, at_once: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space = replay(at_once / "events.jsonl").space
    said, shown = [], []
    for large in (1 << 40, 0):
        monkeypatch.setattr("plugstream.cli.residual._LARGE", large)
        monkeypatch.setattr("plugstream.scans.baselines.first_image._SLICES_BYTES", 4 * 24 * 24 * 7)
        monkeypatch.setattr("plugstream.runs.pages.pictures._LARGE", large)
        monkeypatch.setattr("plugstream.runs.pages.pictures._VOLUME_SIDE", 10)
        monkeypatch.setattr("plugstream.base.volume_file._PORTION", 4 * 24 * 24 * 7)
        assert main(["residual", str(scan), str(at_once), str(at_once / "truth.npy")]) == 0
        said.append(capsys.readouterr().out)
        shown.append(run_picture(at_once, "result", space))
    assert said[0] == said[1]
    assert shown[0] == shown[1]


def test_a_volume_file_is_npy_and_is_written_in_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((7, 4, 5)).astype(np.float32)
    volume = make_volume(tmp_path / "v.npy", (7, 4, 5))
    for first in (3, 0, 6):
        volume.write(first, values[first : first + 3])
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), values)
    again = make_volume(tmp_path / "v.npy", (7, 4, 5))  # which is kept
    np.testing.assert_array_equal(again.read(2, 5), values[2:5])
    np.testing.assert_array_equal(np.concatenate([part for _, part in open_volume(volume.path).portions()]), values)
    with pytest.raises(InputError, match="do not fit a volume"):
        volume.write(6, values[:2])
    np.save(tmp_path / "flat.npy", values[0])
    with pytest.raises(InputError, match="not a volume"):
        open_volume(tmp_path / "flat.npy")


_CODE = """
import sys
import plugstream.runs.plan as plans
from plugstream.cli import main
from plugstream.runs.partition import Partition

edges = tuple(map(int, sys.argv[1].split(",")))
plans.choose_partition = lambda *_: Partition(edges) if len(edges) > 1 else None
sys.exit(main(sys.argv[2:]))
"""


def run_ranks(words: list[str], edges: str) -> None:
    """A command by two processes that find each other by gloo."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = []
        for rank in range(2):
            ranks.append(
                warm.Popen(
                    [sys.executable, "-c", _CODE, edges, *words],
                    env={**common, "RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(ranks[-1].kill)
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)


def test_ranks_take_blocks_in_turn(scan: Path, at_once: Path, tmp_path: Path) -> None:
    """The volume of one process, to the bit; each block's log tells which process ran it."""
    folder = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(folder), "--report", "none", *RUN]
    run_ranks(words, "0,8,16,25")
    assert (folder / "result.npy").read_bytes() == (at_once / "result.npy").read_bytes()
    pids = [replay(folder / "blocks" / f"{n:04d}" / "events.jsonl").start for n in range(3)]
    numbers = [start.pid for start in pids if start is not None]
    assert numbers[0] == numbers[2] != numbers[1]
    stop = replay(folder / "events.jsonl").stop
    assert stop is not None
    assert (stop.step, stop.failed) == (27, False)


@pytest.mark.slow
def test_ranks_share_views_where_the_volume_fits(scan: Path, at_once: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["reconstruct", str(scan), "--out", str(folder), "--report", "none", *RUN]
    run_ranks(words, "0")
    one, two = np.load(at_once / "result.npy"), np.load(folder / "result.npy")
    assert not (folder / "blocks").exists()
    assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()


@pytest.mark.slow
def test_a_torchrun_command_goes_by_blocks_where_memory_is_short(tmp_path: Path) -> None:
    """Two ranks of a real torchrun, each with as much memory as its refusal of less says that a slice takes."""
    place, folder = tmp_path / "scan.zarr", tmp_path / "run"
    size = ["--size", "96", "--slices", "24", "--views", "20"]
    assert main(["simulate", str(place), "--instrument", "ct", *size]) == 0
    words = ["reconstruct", str(place), "--sigma", "0.1", "--iterations", "6", "--low", "0", "--along", "z"]
    words += ["--report", "none", "--threads", "1", "--step", "1e-3"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "plugstream"]

    def launch(memory: str) -> subprocess.CompletedProcess[str]:
        command = [*torchrun, *words, "--out", str(folder), "--memory", memory]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    told = launch("100MB").stderr
    takes = re.search(r"one slice of 96 x 96 takes about ([\d.]+) MB", told)
    assert takes is not None, told
    done = launch(f"{float(takes[1]) + 12:.0f}MB")
    assert done.returncode == 0, done.stderr
    assert len(json.loads((folder / "blocks.json").read_text())["edges"]) > 2
    assert "results are in" in done.stderr
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    whole, parts = (np.load(path / "result.npy") for path in (tmp_path / "one", folder))
    assert np.abs(whole - parts).max() <= 1e-5 * np.abs(whole).max()


_MEASURE = """
import re
import sys
from pathlib import Path
import plugstream.runs.partition as partition
from plugstream.cli import main

class Told(partition.Footprint):
    def bytes(self, slices):
        takes = super().bytes(slices)
        print("takes", slices, takes, flush=True)
        return takes

partition.Footprint = Told
status = main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())  # ru_maxrss has the parent's, too
print("peak", 1024 * int(peak[1]))
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--along", "z"), ("--along", "all"), (), ("--denoiser", "bm3d", "--along", "z")])
def test_a_run_takes_no_more_memory_than_its_model_says(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Of a fresh process, which has nothing of other tests: at most that, and not much less."""
    place = tmp_path / "scan.zarr"
    size = ["--size", "256", "--slices", "48", "--columns", "256", "--views", "60"]
    assert main(["simulate", str(place), "--instrument", "ct", *size]) == 0
    words = ["reconstruct", str(place), "--out", str(tmp_path / "run"), "--report", "none", "--sigma", "0.05"]
    words += ["--batch", "10", "--iterations", "4", "--every", "2", "--low", "0", "--threads", "1", *how]
    done = subprocess.run([sys.executable, "-c", _MEASURE, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    said = {row[0]: float(row[-1]) for row in rows if row[0] in ("takes", "peak")}
    assert 0.6 * said["takes"] < said["peak"] <= said["takes"]
