"""A live scan: sent from Python as it is measured, waited for until there is a batch, and marked in the report."""

import shutil
import threading

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream import SNR, Born2D, Distance, InputError, Receiver, ScanSender, ScanWriter, open_scan
from plugstream.algorithms.sampling import Epochs, OnceEach, ShiftedViews, Uniform
from plugstream.instruments.born import born_geometry
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Measurement, Views
from plugstream.runs.replay import History, replay
from plugstream.runs.report import _draw_curves
from plugstream.runs.views import wait_for_batch
from plugstream.scans.journal import Journal
from plugstream.settings import resolve
from ports import reserved_port
from small_run import main, open_live, with_all_views
from streaming import ANY, LIMIT, SMALL, TOKEN, acquiring, assert_same, make_scan, receiving, taking
from waiting import wait_until


def setup_of(scan):
    return Born2D.of(born_geometry(scan))


def rows_of(scan, first, last):
    """What `ScanWriter.append` and `ScanSender.append` take of these views."""
    geometry = born_geometry(scan)
    source = "transmitters" if geometry.plane_waves is None else "plane_waves"
    more = {} if geometry.mask is None else {"mask": geometry.mask[first:last]}
    return scan.data[first:last].numpy(), {source: getattr(geometry, source)[first:last], **more}


# ScanSender


@pytest.mark.parametrize(("plane", "masked"), [(False, False), (True, False), (False, True)])
def test_it_is_as_a_writer_that_is_elsewhere(tmp_path, plane, masked):
    """The same calls of a ScanWriter and of a ScanSender leave the same scan."""
    scan = make_scan(40, plane=plane, masked=masked)
    with receiving(tmp_path / "sent.zarr") as receiver:
        where = ScanWriter(tmp_path / "written.zarr", setup_of(scan)), ScanSender(receiver.address, setup_of(scan))
        for one in where:
            with one:
                for first, last in ((0, 1), (1, 2), (2, 20), (20, 40)):
                    data, columns = rows_of(scan, first, last)
                    one.append(data, **columns)
                assert one.appended == 40
                one.finish()
                assert one.committed == 40
    for name in ("sent", "written"):
        assert_same(tmp_path / f"{name}.zarr", scan)


def test_views_are_safe_while_the_instrument_measures(tmp_path, monkeypatch):
    """append does not wait for the disk, and nothing more must be called for a view to arrive."""
    scan, commit, disk = make_scan(3), Journal.commit, threading.Event()

    def commit_slowly(journal):
        assert disk.wait(LIMIT)
        commit(journal)

    monkeypatch.setattr(Journal, "commit", commit_slowly)
    disk.set()
    with receiving(tmp_path / "s.zarr") as receiver, ScanSender(receiver.address, setup_of(scan)) as sender:
        for v in range(3):
            data, columns = rows_of(scan, v, v + 1)
            disk.clear()
            sender.append(data, **columns)
            assert (sender.appended, sender.committed) == (v + 1, v)
            disk.set()
            wait_until(lambda v=v: sender.committed == v + 1)  # measuring
            assert open_scan(tmp_path / "s.zarr").n_views == v + 1
        sender.finish()
    assert_same(tmp_path / "s.zarr", scan)


def test_it_outlives_the_receiver(tmp_path):
    """acquire is killed and started again in the middle: the program that measures does not notice."""
    scan, out = make_scan(30), tmp_path / "s.zarr"
    with reserved_port() as port:
        outlive(scan, out, f"tcp://127.0.0.1:{port}")
    assert_same(out, scan)


def outlive(scan, out, address):
    with acquiring(out, address) as (first, _, _):
        sender = ScanSender(address, setup_of(scan), timeout=LIMIT)
        for v in range(8):
            data, columns = rows_of(scan, v, v + 1)
            sender.append(data, **columns)
        sender.flush()
        first.kill()
        first.wait()
    for v in range(8, 20):  # nobody is there, and whoever waited for somebody would give up
        data, columns = rows_of(scan, v, v + 1)
        sender.append(data, **columns)
    assert (sender.committed, sender.appended) == (8, 20)
    with acquiring(out, address) as (second, _, said):
        assert "going on after 8 views" in said
        data, columns = rows_of(scan, 20, 30)
        with sender:
            sender.append(data, **columns)
            sender.finish()
        assert second.wait(LIMIT) == 0


def test_a_program_that_was_restarted_goes_on(tmp_path):
    scan = make_scan(10)
    with receiving(tmp_path / "s.zarr") as receiver:
        with ScanSender(receiver.address, setup_of(scan)) as sender:
            data, columns = rows_of(scan, 0, 4)
            sender.append(data, **columns)
        with pytest.raises(InputError, match="refuses the scan"):
            ScanSender(receiver.address, setup_of(scan), name=sender.name)  # without the token
        with ScanSender(receiver.address, setup_of(scan), name=sender.name, token=sender.token) as again:
            assert (again.committed, again.appended) == (4, 4)
            data, columns = rows_of(scan, 4, 10)
            again.append(data, **columns)
            again.finish()
            with pytest.raises(InputError, match="is finished; no view can be added"):
                again.append(data, **columns)
            again.finish()  # twice is once
    assert_same(tmp_path / "s.zarr", scan)


def test_what_goes_wrong_is_said_in_one_line(tmp_path):
    scan = make_scan(6)
    setup = setup_of(scan)
    data, columns = rows_of(scan, 0, 2)
    with pytest.raises(InputError, match="nobody answered"):
        ScanSender("tcp://127.0.0.1:9", setup, timeout=0.3)
    with pytest.raises(InputError, match="a token is made of 16 to 128"):
        ScanSender("tcp://127.0.0.1:9", setup, token="short")
    with pytest.raises(InputError, match="cannot be written as JSON"):
        ScanSender("tcp://127.0.0.1:9", setup, provenance={"x": object()})
    with pytest.raises(InputError, match="no receiver would take this scan"):
        ScanSender("tcp://127.0.0.1:9", setup, provenance={"x": 10**70})
    with Receiver(tmp_path / "s.zarr", ANY) as receiver, taking(receiver):
        with ScanSender(receiver.address, setup, name="scan", token=TOKEN, timeout=LIMIT) as sender:
            for bad in (data[:1], data[:, :3], np.full_like(data, np.nan)):
                with pytest.raises(InputError):
                    sender.append(bad, **columns)
            with pytest.raises(InputError, match="has no views, so it cannot be finished"):
                sender.finish()
            assert sender.appended == 0  # nothing was sent
            sender.append(data, **columns)
            with pytest.raises(InputError, match="has transmitters, so plane_waves cannot be added"):
                sender.append(data, plane_waves=columns["transmitters"])
            sender.flush()
        with pytest.raises(InputError, match="is closed; make another to go on"):
            sender.append(data, **columns)
        other = ScanSender(receiver.address, setup, name="scan", token=TOKEN, timeout=LIMIT)
    other.append(data, **columns)  # on its way
    other._link.timeout = 0.3
    with pytest.raises(InputError, match=r"acknowledged nothing new for 0\.3 s"):
        other.flush()
    with pytest.raises(InputError, match=r"acknowledged nothing new for 0\.3 s"):  # and it stays so
        other.append(data, **columns)
    other.close()


def test_memory_is_bounded_where_nobody_takes_views(tmp_path):
    """append waits when as much is not acknowledged as may be kept, and gives up in the end."""
    scan = make_scan(50)
    with Receiver(tmp_path / "s.zarr", ANY) as receiver:
        with taking(receiver):
            setup = setup_of(scan)
            sender = ScanSender(receiver.address, setup, window=4, most_bytes=10 * (9 * 9 + 300), timeout=LIMIT)
        sender._link.timeout = 0.5
        data, columns = rows_of(scan, 0, 50)
        with pytest.raises(InputError, match="acknowledged nothing new"):
            sender.append(data, **columns)
        assert sender.appended == 10
        sender.close()


def test_public_names():
    assert ps.ScanSender is ScanSender
    assert "ScanSender" in ps.__all__


# Batches larger than the views so far

RUN = ["--sigma", "0.01", "--threads", "1", "--checkpoint", "0", "--iterations", "30"]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "small.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path


def grow(source, writer, first, last):
    writer.append(source.read(torch.arange(first, last)).numpy(), born_geometry(source).transmitters[first:last])
    writer.commit()


def test_fewer_views_than_a_batch_are_each_drawn_once():
    for sampler in (Uniform(10), Epochs(10), ShiftedViews(10)):
        capped = OnceEach(sampler, 10)
        for step in range(5):
            assert capped.draw(step, torch.arange(3)).views.tolist() == [0, 1, 2]
            assert capped.draw(step, torch.tensor([4, 7])).views.tolist() == [4, 7]
            for n in (10, 24):
                assert torch.equal(capped.draw(step, torch.arange(n)).views, sampler.draw(step, torch.arange(n)).views)


def test_a_run_waits_for_a_batch_of_views_that_can_be_used(scan, tmp_path):
    """Views that are damaged do not count, and a run that is begun from Python waits as well."""
    source, live = open_scan(scan), tmp_path / "live.zarr"
    changes = [("algorithm", "sigma", 0.01), ("sampler", "batch", 6), ("scan", "follow", True)]
    changes += [("scan", "skip_damaged", True)]
    settings, said = resolve(None, changes), []
    with ScanWriter(live, born_geometry(source), views_per_shard=4) as writer:
        grow(source, writer, 0, 8)
        file = live / "data" / "c" / "0" / "0"
        content = bytearray(file.read_bytes())
        for view in (0, 2, 3):
            content[view * (20 + 30 * 8 + 4) + 27] ^= 16
        file.write_bytes(content)
        stored = open_live(live, settings, said.append)
        assert stored.n_views == 8  # of which five are left

        def grow_when_asked(text):
            said.append(text)
            grow(source, writer, 8, 9)

        wait_for_batch(stored, settings, grow_when_asked)
        assert stored.n_views == 9
        assert said == [f"waiting for 1 more views of {live}, to have a batch of 6; press Ctrl-C to stop"]
        stored = open_scan(live)
        wait_for_batch(
            stored, resolve(None, [*changes, ("sampler", "batch", 9), ("scan", "patience", 0.2)]), said.append
        )
        writer.finish()
    stored.refresh()
    wait_for_batch(stored, resolve(None, [*changes, ("sampler", "batch", 20)]), said.append)  # no more are coming


def test_a_scan_that_ends_early_is_used_whole_and_resumed_to_the_bit(scan, tmp_path, capsys):
    """Three views, a batch of ten: the run waits for its patience, uses each of the three in every step, and ends;
    when the instrument goes on after all it draws batches of ten, and what it did is repeated to the bit."""
    source, live, out = open_scan(scan), tmp_path / "live.zarr", tmp_path / "run"
    with ScanWriter(live, born_geometry(source), truth=source.truth) as writer:
        grow(source, writer, 0, 3)
    words = ["reconstruct", str(live), "--out", str(out), *RUN, "--batch", "10", "--follow", "--patience", "0.3"]
    assert main(words) == 0
    assert "there are 3 views, fewer than a batch of 10: a step uses each of them" in capsys.readouterr().err
    (record,) = replay(out / "events.jsonl").views
    assert (record.step, record.views, record.ended) == (0, 3, True)
    stops = [event.step for event in read_events(out / "events.jsonl") if event.kind == "stop"]
    assert stops == [30]  # a number of steps that does not depend on the clock
    again = tmp_path / "again"
    assert main([*words[:3], str(again), *words[4:]]) == 0
    assert np.array_equal(np.load(out / "result.npy"), np.load(again / "result.npy"))
    assert main(with_all_views([*words[:3], str(tmp_path / "whole"), *words[4:]])) == 0
    curves = [[e.values for e in replay(run / "events.jsonl").measured][:3] for run in (out, tmp_path / "whole")]
    for one, other in zip(*curves, strict=True):  # the same as all views in every step
        for values in (one, other):
            values.pop("to_go", None)  # which counts from the step at which the run noticed that the scan had ended
        assert one == pytest.approx(other, rel=1e-3, abs=1e-9)
    early = shutil.copytree(out / "checkpoints", tmp_path / "early")
    with ScanWriter(live) as writer:
        grow(source, writer, 3, 40)
        writer.finish()
    assert main(["resume", str(out)]) == 0
    records = replay(out / "events.jsonl").views
    assert [record.views for record in records] == [3, 40]
    shutil.rmtree(again)
    shutil.copytree(out, again)
    shutil.rmtree(again / "checkpoints")
    shutil.copytree(early, again / "checkpoints")
    assert main(["resume", str(again)]) == 0
    assert np.array_equal(np.load(out / "result.npy"), np.load(again / "result.npy"))
    assert replay(again / "events.jsonl").views == records


# The report


def test_arrivals_are_the_steps_from_which_on_there_were_more_views():
    def past(*records):
        return History(views=[Views(step, views, (), None, ended) for step, views, ended in records])

    assert past().arrivals() == []
    assert past((0, 5, False), (7, 8, False), (7, 9, False), (12, 9, True)).arrivals() == [(0, 5), (7, 9)]


def test_arrivals_are_marked_in_the_curves():
    from matplotlib.figure import Figure

    measured = [Measurement(10 * k, 0.0, {"relative_distance": 0.5**k, "snr": 2.0 * k}) for k in range(6)]
    views = [Views(step, count, (), None, False) for step, count in ((0, 4), (12, 9), (33, 20))]
    quantities = [*Distance.measures, *SNR.measures]
    figure = Figure()
    _draw_curves(figure, History(measured=measured, quantities=quantities, views=views))
    curves = [axes for axes in figure.axes if axes.get_title()]
    others = [axes for axes in figure.axes if not axes.get_title()]
    assert len(curves) == len(others) == 2
    for axes in curves:
        _, ticks = axes.get_lines()
        assert list(ticks.get_xdata()) == [12, 33]
    for axes in others:
        (line,) = axes.get_lines()
        assert list(line.get_xdata()) == [0, 12, 33, 50]
        assert list(line.get_ydata()) == [4, 9, 20, 20]
        assert line.get_drawstyle() == "steps-post"
        assert axes.get_ylabel() == "views that have come"
    plain = Figure()
    from_the_start = History(measured=measured, quantities=quantities, views=views[:1])
    _draw_curves(plain, from_the_start)
    assert len(plain.axes) == 2


@pytest.mark.slow
def test_the_report_of_a_followed_run_is_drawn(scan, tmp_path):
    source, live, out = open_scan(scan), tmp_path / "live.zarr", tmp_path / "run"
    with ScanWriter(live, born_geometry(source), truth=source.truth) as writer:
        grow(source, writer, 0, 6)

        def measure():
            wait_until((out / "checkpoints").exists)
            grow(source, writer, 6, 40)
            writer.finish()

        thread = threading.Thread(target=measure)
        thread.start()
        words = ["reconstruct", str(live), "--out", str(out), *RUN, "--batch", "4", "--follow", "--patience", "60"]
        assert main([*words, "--report", "png"]) == 0
        thread.join(150)
    arrivals = replay(out / "events.jsonl").arrivals()
    assert [views for _, views in arrivals] == [6, 40]
    assert (out / "report.png").stat().st_size > 10_000
