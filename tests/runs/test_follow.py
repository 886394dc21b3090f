"""Runs that read their scan as they go: larger than memory, still being measured, damaged. Real files and processes."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import warm
from plugstream import TV, BornModel, LeastSquares, ProximalGradient, ScanWriter, Uniform, open_scan, snr
from plugstream.base.errors import DamagedError, InputError
from plugstream.instruments.base import find_instrument
from plugstream.instruments.born import born_geometry
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Views
from plugstream.runs.replay import replay
from plugstream.runs.views import GrowingViews, wait_for_batch, wait_for_scan
from plugstream.settings import resolve
from small_run import main, open_live, with_all_views

PLAYER = Path(__file__).parents[1] / "helpers" / "play_scan.py"
SMALL = ["--size", "24", "--views", "24", "--receivers", "30", "--radius", "0.4", "--wavelength", "0.03"]
RUN = [
    "--report", "none", "--sigma", "0.01", "--batch", "4", "--threads", "1", "--checkpoint", "0", "--iterations", "30",
]  # fmt: skip


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "small.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


def play(source: Path, target: Path, pause: float | str, *more: object) -> subprocess.Popen[str]:
    words = [sys.executable, str(PLAYER), str(source), str(target), str(pause), *map(str, more)]
    process = warm.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def reconstruct(scan: Path, folder: Path, *more: str) -> int:
    return main(["reconstruct", str(scan), "--out", str(folder), *RUN, *more])


def records(folder: Path) -> list[Views]:
    return replay(folder / "events.jsonl").views


def same_run(one: Path, other: Path) -> None:
    assert np.array_equal(np.load(one / "result.npy"), np.load(other / "result.npy"))
    a, b = replay(one / "events.jsonl").measured, replay(other / "events.jsonl").measured
    assert [(e.step, e.values) for e in a] == [(e.step, e.values) for e in b]


def last_snr(folder: Path) -> float:
    return float(replay(folder / "events.jsonl").measured[-1].values["snr"])


def test_data_on_disk_gives_what_data_in_memory_gives(scan, tmp_path):
    for sampler in ("uniform", "epochs"):
        for where, limit in (("memory", "256"), ("disk", "0")):
            out = tmp_path / f"{sampler}-{where}"
            few = ["--iterations", "20", "--checkpoint", "100"]
            assert reconstruct(scan, out, "--sampler", sampler, "--in-memory", limit, *few) == 0
        one, other = (np.load(tmp_path / f"{sampler}-{where}" / "result.npy") for where in ("memory", "disk"))
        assert np.array_equal(one, other)
        assert records(tmp_path / f"{sampler}-disk")[0].views == 24


@pytest.mark.slow
def test_bounded_momentum_is_quicker_than_none_and_does_not_gather_noise(scan):
    """Few views a step and many steps, as where a scan is followed: Nesterov's momentum loses what it had won."""
    stored = open_scan(scan)
    truth, fidelity = torch.from_numpy(stored.truth), LeastSquares(BornModel(born_geometry(stored)), stored.read())
    early, late = {}, {}
    for momentum in ("none", "bounded", "nesterov"):
        algorithm = ProximalGradient(fidelity, TV(low=0.0), sigma=0.01, sampler=Uniform(4), momentum=momentum)
        state, values = algorithm.init(), []
        for _ in range(500):
            state = algorithm.step(state)
            values.append(float(snr(state.image, truth)))
        early[momentum], late[momentum] = np.mean(values[20:40]), np.mean(values[-100:])
    assert early["bounded"] > early["none"] + 3
    assert late["bounded"] > late["none"] - 3
    assert late["bounded"] > late["nesterov"] + 5


@pytest.fixture
def measured_slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[[subprocess.Popen[str]], None]:
    """Has an instrument measure four views, and one more whenever the run has taken ten steps with those there are."""

    def slow_down(player: subprocess.Popen[str]) -> None:
        assert player.stdin is not None
        stdin, find, told = player.stdin, GrowingViews.find_views, (4, 0)

        def find_views(self: GrowingViews, step: int) -> Views | None:
            nonlocal told
            if self.record.views == told[0] < 24 and step >= told[1] + 10:
                told = (told[0] + 1, step)
                print(file=stdin, flush=True)
            return find(self, step)

        monkeypatch.setattr(GrowingViews, "find_views", find_views)
        print("\n" * 3, file=stdin, flush=True)

    return slow_down


def test_a_slow_scan_is_followed_to_its_end(scan, tmp_path, capsys, measured_slowly):
    live, out = tmp_path / "live.zarr", tmp_path / "run"
    player = play(scan, live, "told")
    measured_slowly(player)
    plain = (
        "--momentum",
        "none",
        "--set",
        "run.checkpoint=30",
        "--every",
        "100",
        "--iterations",
        "60",
    )  # momentum enlarges the noise of small batches, the more the longer it runs
    assert reconstruct(live, out, "--follow", *plain) == 0
    assert player.wait() == 0
    found = records(out)
    assert found[0].step == 0
    assert found[0].views == 4  # it began with the first views
    counts = [record.views for record in found]
    assert counts == sorted(counts)
    assert set(counts) == set(range(4, 25))  # and used others as they came
    assert (found[-1].views, found[-1].ended) == (24, True)
    assert all(a.lipschitz <= b.lipschitz for a, b in itertools.pairwise(found))
    (stop,) = (e for e in read_events(out / "events.jsonl") if e.kind == "stop")
    assert stop.step == found[-1].step + 60  # as many iterations after the end as were asked for
    assert "and no more to come" in capsys.readouterr().err
    assert reconstruct(scan, tmp_path / "whole", *plain, "--iterations", str(stop.step)) == 0
    assert last_snr(out) > last_snr(tmp_path / "whole") - 1


def test_a_fast_scan_and_a_finished_one_are_followed(scan, tmp_path):
    live = tmp_path / "live.zarr"
    player = play(scan, live, 0.0)
    assert reconstruct(live, tmp_path / "run", "--follow") == 0
    assert player.wait() == 0
    assert records(tmp_path / "run")[-1].views == 24
    words = ["reconstruct", str(live), "--out", str(tmp_path / "again"), *RUN, "--follow"]
    assert main(with_all_views(words)) == 0
    (record,) = records(tmp_path / "again")
    assert (record.views, record.ended) == (24, True)


def test_views_that_come_faster_than_they_can_be_taken_in_wait_and_none_is_lost(scan, tmp_path, monkeypatch):
    """Two a step here: steps, and so pictures, go on between them, and the run ends with all views."""
    monkeypatch.setattr("plugstream.runs.views._AT_LEAST", 2)
    monkeypatch.setattr("plugstream.runs.views._INTAKE", 0.0)
    monkeypatch.setattr(
        GrowingViews, "_taken", property(lambda self: math.inf, lambda self, value: None), raising=False
    )
    monkeypatch.setattr("plugstream.runs.views._LOOK", 0.0)
    source, place = open_scan(scan), tmp_path / "live.zarr"
    geometry = born_geometry(source)
    with ScanWriter(place, geometry) as writer:
        writer.append(source.read(torch.arange(4)).numpy(), geometry.transmitters[:4])
        writer.commit()

        def finish() -> None:
            while not (tmp_path / "run" / "events.jsonl").exists():
                time.sleep(0.01)
            writer.append(source.read(torch.arange(4, 24)).numpy(), geometry.transmitters[4:])
            writer.commit()
            writer.finish()

        late = threading.Thread(target=finish)
        late.start()
        assert reconstruct(place, tmp_path / "run", "--follow") == 0
        late.join()
    found = records(tmp_path / "run")
    assert found[-1].views == 24
    assert [record.ended for record in found] == [False] * (len(found) - 1) + [True]
    grown = np.diff([record.views for record in found])
    assert grown.max() <= 8
    assert (grown[1:-1] <= 2).all()
    steps = [record.step for record in found]
    assert all(later > before for before, later in itertools.pairwise(steps[1:]))


def start_run(live: Path, out: Path) -> subprocess.Popen[bytes]:
    words = ["reconstruct", str(live), "--out", str(out), *RUN, "--follow"]
    return warm.Popen([sys.executable, "-m", "plugstream", *words], stderr=subprocess.DEVNULL)


def early_checkpoint(out: Path, keep: Path, views: int) -> None:
    """Copy a checkpoint of a running run that has come to so many views; files come and go meanwhile."""
    keep.mkdir()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = records(out) if (out / "events.jsonl").exists() else []
        files = sorted((out / "checkpoints").glob("step-*.safetensors"))
        if found and found[-1].views >= views and len(files) > 1:  # the run is beyond the first
            try:
                shutil.copyfile(files[0], keep / files[0].name)  # not its mode, when it may be gone
            except FileNotFoundError:
                continue
            return
        time.sleep(0.005)
    raise AssertionError("the run did not get there")


def test_a_followed_run_is_resumed_to_the_bit(scan, tmp_path):
    """From a checkpoint of when the scan was running, with all of the scan there: the record tells what there was."""
    live, out, early = tmp_path / "live.zarr", tmp_path / "run", tmp_path / "early"
    source = open_scan(scan)
    with ScanWriter(live, born_geometry(source), truth=source.truth, views_per_shard=4) as writer:
        for view in range(24):
            writer.append(
                source.read(torch.tensor([view])).numpy(), born_geometry(source).transmitters[view : view + 1]
            )
            writer.commit()
            if view == 5:
                run = start_run(live, out)
                early_checkpoint(out, early, 6)  # so that views come after it, however slow the machine
            time.sleep(0.01 if view > 5 else 0)
        writer.finish()
    assert run.wait() == 0
    again = shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(again / "checkpoints")
    shutil.copytree(early, again / "checkpoints")
    (again / "result.npy").unlink()
    (step,) = (int(p.stem.split("-")[1]) for p in early.iterdir())
    assert step < records(out)[-1].step, "the checkpoint was to be of when views were still coming"
    assert main(["resume", str(again)]) == 0
    same_run(again, out)
    assert records(again) == records(out)  # nothing was added


def test_a_followed_run_that_was_killed_goes_on(scan, tmp_path):
    live, out, early = tmp_path / "live.zarr", tmp_path / "run", tmp_path / "early"
    player = play(scan, live, "told")
    assert player.stdin is not None
    print("\n" * 7, file=player.stdin, flush=True)  # eight views
    run = start_run(live, out)
    early_checkpoint(out, early, 8)
    run.send_signal(signal.SIGKILL)
    run.wait()
    before = records(out)
    rest = threading.Timer(0.1, lambda: print("\n" * 15, file=player.stdin, flush=True))
    rest.start()
    assert main(["resume", str(out)]) == 0
    rest.join()
    assert player.wait() == 0
    after = records(out)
    assert after[: len(before)] == before
    assert (after[-1].views, after[-1].ended) == (24, True)
    again = shutil.copytree(out, tmp_path / "again")  # and once more, from before it was killed
    shutil.rmtree(again / "checkpoints")
    shutil.copytree(early, again / "checkpoints")
    assert main(["resume", str(again)]) == 0
    assert np.array_equal(np.load(again / "result.npy"), np.load(out / "result.npy"))


def test_a_scan_whose_writer_dies_is_used_as_far_as_it_came(scan, tmp_path):
    live, out = tmp_path / "live.zarr", tmp_path / "run"
    player = play(scan, live, 0.0, 9)
    assert player.wait() == -signal.SIGKILL  # first, since one that is only slow looks the same
    assert reconstruct(live, out, "--follow", "--patience", "0.2") == 0
    before = records(out)
    assert (before[-1].views, before[-1].ended) == (10, True)
    early = shutil.copytree(out / "checkpoints", tmp_path / "early")
    assert main(["resume", str(out)]) == 0  # the writer is still dead, and nothing is left to do
    assert records(out) == before
    player = play(scan, live, 0.0)  # it is repaired, and the run sees all of it
    assert player.wait() == 0
    assert torch.equal(open_scan(live).read(), open_scan(scan).read())
    assert main(["resume", str(out)]) == 0
    *earlier, last = records(out)
    assert earlier == before
    assert (last.views, last.ended) == (24, True)
    stops = [e.step for e in read_events(out / "events.jsonl") if e.kind == "stop"]
    assert stops == [before[-1].step + 30, before[-1].step + 30, last.step + 30]
    again = shutil.copytree(out, tmp_path / "again")  # and once more, from before the scan was repaired
    shutil.rmtree(again / "checkpoints")
    shutil.copytree(early, again / "checkpoints")
    assert main(["resume", str(again)]) == 0
    same_run(again, out)


def test_a_scan_that_is_not_there_yet_is_waited_for(scan, tmp_path):
    live, said = tmp_path / "live.zarr", []
    settings = resolve(None, [("algorithm", "sigma", 0.01), ("sampler", "batch", 4), ("scan", "follow", True)])
    maker = threading.Thread(target=lambda: play(scan, live, 0.0).wait())

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 1:  # it has seen that there is none
            maker.start()

    stored = open_live(live, settings, say)
    assert stored.n_views >= 4
    assert said[0] == f"waiting for the scan {live}, which is not there yet; press Ctrl-C to stop"
    maker.join()
    assert open_live(live, settings, said.append).n_views == 24
    with pytest.raises(InputError, match="there is no scan at"):  # nor could one be made there
        open_live(tmp_path / "nowhere" / "live.zarr", settings, said.append)


def test_a_scan_that_was_made_while_the_process_was_stopped_is_found(scan, tmp_path, monkeypatch):
    """Its patience is over when it goes on, and it looks once more."""
    live, later = tmp_path / "live.zarr", [0.0]

    def sleep(seconds: float) -> None:
        shutil.copytree(scan, live)
        later[0] = 1000.0

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=sleep)
    monkeypatch.setattr("plugstream.runs.views.time", clock)
    wait_for_scan(live, 10.0, lambda text: None)
    assert later == [1000.0]


def test_views_that_came_while_the_process_was_stopped_are_in_the_first_batch(scan, tmp_path, monkeypatch):
    source, settings = open_scan(scan), resolve(None, [("sampler", "batch", 4), ("scan", "patience", 10.0)])
    with ScanWriter(tmp_path / "live.zarr", born_geometry(source)) as writer:
        writer.append(source.read(torch.arange(2)).numpy(), born_geometry(source).transmitters[:2])
        writer.commit()
        live = open_scan(tmp_path / "live.zarr")
        writer.append(source.read(torch.arange(2, 4)).numpy(), born_geometry(source).transmitters[2:4])
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000.0, sleep=time.sleep)
    monkeypatch.setattr("plugstream.runs.views.time", clock)
    wait_for_batch(live, settings, lambda text: None)
    assert live.n_views == 4


def test_waiting_for_views_has_an_end_too(scan, tmp_path):
    source, live, said = open_scan(scan), tmp_path / "live.zarr", []
    changes = [("algorithm", "sigma", 0.01), ("sampler", "batch", 4), ("scan", "follow", True)]
    patient = resolve(None, [*changes, ("scan", "patience", 0.2)])
    with pytest.raises(InputError, match=r"no scan was made at .* for 0.2 s"):
        open_live(live, patient, said.append)
    with ScanWriter(live, born_geometry(source)) as writer:
        with pytest.raises(InputError, match=r"no view came to .* for 0.2 s"):
            open_live(live, patient, said.append)
        with pytest.raises(InputError, match="cannot take views that are still to come"):  # before there is one
            open_live(live, resolve(None, [*changes, ("sampler", "name", "fixed")]), said.append)
        writer.append(source.read(torch.arange(2)).numpy(), born_geometry(source).transmitters[:2])
    assert open_live(live, patient, said.append).n_views == 2  # fewer than a batch, and no more are coming
    shutil.rmtree(live)
    ScanWriter(live, born_geometry(source)).close()
    with pytest.raises(InputError, match=r"cannot be followed: .*No such file.*; fix that, and start again"):
        open_live(live, resolve(None, changes), lambda _: shutil.rmtree(live))


@pytest.mark.parametrize("instrument", ["born-2d", "scattering-2d"])
def test_the_command_waits_for_the_first_view_of_a_scan_that_has_none(scan, tmp_path, capsys, instrument):
    kind = find_instrument(instrument)
    geometry = born_geometry(open_scan(scan))
    live = tmp_path / "live.zarr"
    given = ["--sigma", "0.01", "--batch", "4", "--follow", "--patience", "0.2"]
    with ScanWriter(live, kind(geometry.receivers, geometry.wavelength, geometry.grid)):
        assert main(["reconstruct", str(live), "--out", str(tmp_path / "run"), *given]) == 2
    assert re.search(r"no view came to .* for 0.2 s", capsys.readouterr().err)


def test_a_scan_that_is_spoilt_while_it_is_followed_ends_the_run_in_one_line(scan, tmp_path, capsys):
    source, live, out = open_scan(scan), tmp_path / "live.zarr", tmp_path / "run"
    with ScanWriter(live, born_geometry(source)) as writer:
        writer.append(source.read(torch.arange(8)).numpy(), born_geometry(source).transmitters[:8])

    def spoil() -> None:
        while not (out / "checkpoints").exists():
            time.sleep(0.01)
        (live / "commit.json").write_text('{"views"')

    thread = threading.Thread(target=spoil)
    thread.start()
    assert reconstruct(live, out, "--follow") == 2
    thread.join()
    said = capsys.readouterr().err.splitlines()[-1]
    assert "cannot be followed: JSONDecodeError" in said
    assert said.endswith(f"fix that, and go on with 'plugstream resume {out}'")


def test_a_followed_run_is_like_an_earlier_one(scan, tmp_path, capsys):
    """With its algorithm, prior, strength and step, and the same image when all views are there."""
    earlier, live, out = tmp_path / "earlier", tmp_path / "live.zarr", tmp_path / "out"
    strong = [
        "--algorithm", "inexact-admm", "--sampler", "all", "--step", "20/L", "--sigma", "0.03", "--denoiser", "tv",
    ]  # fmt: skip
    few = ["--iterations", "40", "--report", "none", "--threads", "1"]
    assert main(["reconstruct", str(scan), "--out", str(earlier), *strong, *few, "--hold-out", "6"]) == 0
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "full"), "--like", str(earlier), *few]) == 0
    player = play(scan, live, 0.02)
    assert main(["reconstruct", str(live), "--follow", "--out", str(out), "--like", str(earlier), *few]) == 0
    assert player.wait() == 0
    assert records(out)[0].views < 24 == records(out)[-1].views
    settings = [resolve(folder / "settings.toml") for folder in (earlier, out)]
    for section in ("algorithm", "sampler", "denoiser", "loss", "instrument"):
        assert getattr(settings[0], section) == getattr(settings[1], section)
    assert settings[1].monitor.hold_out is None  # which is about one scan
    image, full = (np.load(folder / "result.npy") for folder in (out, tmp_path / "full"))
    assert np.linalg.norm(image - full) < 1e-2 * np.linalg.norm(full)
    begun = earlier / "settings.toml"
    begun.write_text(begun.read_text().replace('search = "none"', "search = 40"))
    assert main(["reconstruct", str(scan), "--like", str(earlier)]) == 2
    assert "has not found its strength yet" in capsys.readouterr().err


def test_what_cannot_be_followed_is_refused(scan, tmp_path, capsys):
    for sampler in ("fixed", "importance"):
        assert reconstruct(scan, tmp_path / "run", "--follow", "--sampler", sampler) == 2
        assert "cannot take views that are still to come" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def damage(scan: Path, target: Path, *views: int) -> Path:
    shutil.copytree(scan, target)
    file = target / "data" / "c" / "0" / "0"
    content = bytearray(file.read_bytes())
    for view in views:
        content[view * (20 + 30 * 8 + 4) + 27] ^= 16
    file.write_bytes(content)
    return target


@pytest.mark.parametrize("limit", ["256", "0"])
def test_damaged_data_stops_a_run_with_the_views_number(scan, tmp_path, capsys, limit):
    broken = damage(scan, tmp_path / "broken.zarr", 5)
    assert reconstruct(broken, tmp_path / "run", "--in-memory", limit) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "view 5 of" in said
    assert "checksum" in said
    assert "--skip-damaged" in said


def test_damaged_views_are_left_out_if_asked_for(scan, tmp_path, capsys):
    broken = damage(scan, tmp_path / "broken.zarr", 0, 5, 17)
    out = tmp_path / "run"
    assert reconstruct(broken, out, "--skip-damaged") == 0
    assert "3 damaged views are left out: 0, 5, 17" in capsys.readouterr().err
    (record,) = records(out)
    assert (record.views, record.damaged) == (24, (0, 5, 17))
    assert last_snr(out) > 10
    # The data term is that of a scan that never had those views.
    stored, good = open_scan(broken), [i for i in range(24) if i not in (0, 5, 17)]
    fidelity = LeastSquares(BornModel(born_geometry(stored)), stored, available=torch.tensor(good))
    whole = open_scan(scan)
    left = LeastSquares(BornModel(born_geometry(whole).with_views(good)), whole.read(torch.tensor(good)))
    x = torch.rand(24, 24, generator=torch.Generator().manual_seed(0))
    for name in ("value", "gradient"):
        torch.testing.assert_close(getattr(fidelity, name)(x), getattr(left, name)(x))
    torch.testing.assert_close(fidelity.prox(x, 10.0), left.prox(x, 10.0))
    torch.testing.assert_close(fidelity.backprojection(), left.backprojection())
    assert fidelity.lipschitz_max == pytest.approx(left.lipschitz_max, rel=1e-3)
    assert fidelity.lipschitz == pytest.approx(left.lipschitz, rel=0.02)
    with pytest.raises(DamagedError, match=r"view 5 of"):
        fidelity.gradient(x, [3, 5])


@pytest.mark.slow
def test_data_that_becomes_damaged_stops_a_run_that_can_go_on_without_it(scan, tmp_path, capsys):
    fine = shutil.copytree(scan, tmp_path / "scan.zarr")
    out = tmp_path / "run"
    assert reconstruct(fine, out, "--in-memory", "0") == 0
    shutil.rmtree(fine)
    damage(scan, fine, 3)
    assert main(["resume", str(out), "--iterations", "200"]) == 2
    assert "view 3 of" in capsys.readouterr().err
    assert main(["resume", str(out), "--iterations", "200", "--skip-damaged"]) == 0
    found = records(out)
    assert [record.damaged for record in found] == [(), (3,)]
    assert found[-1].step >= 30
