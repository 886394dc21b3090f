"""Scans over ZeroMQ when something breaks: connections, processes, disks, and people who wait for an answer."""

import errno
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import warm
from plugstream import InputError, MemoryScan, open_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry
from plugstream.scans import link, receive
from plugstream.scans.receive import Receiver
from plugstream.scans.send import ScanSender, send_scan
from ports import reserved_port
from streaming import (
    ANY,
    LIMIT,
    SMALL,
    TOKEN,
    Client,
    acquiring,
    assert_same,
    begin,
    bye,
    end,
    make_scan,
    message,
    receiving,
    taking,
)


def test_the_end_is_acknowledged_until_the_sender_knows(tmp_path, monkeypatch):
    """The answer to the end may be lost with its connection: whoever asks again is told, and then it is over."""
    monkeypatch.setattr(receive, "_GRACE", 10 * LIMIT)  # longer than `receiving` waits for it to be over
    scan = make_scan(3)
    with receiving(tmp_path / "s.zarr") as receiver:
        with Client(receiver.address) as deaf:
            for frames in [
                begin("scan", born_geometry(scan), {}),
                *(message(scan, v) for v in range(3)),
                end("scan", 3),
            ]:
                deaf.say(frames)
            while not receiver.finished:
                time.sleep(0.01)
        time.sleep(0.5)  # longer than a sender waits until it tries again
        with Client(receiver.address) as again:
            assert again.ask(end("scan", 3)) == ("nak", 0)
            assert again.ask(begin("scan", born_geometry(scan), {})) == ("ack", 4)
            again.say(bye("scan", 3))
    assert_same(tmp_path / "s.zarr", scan)


def test_connections_that_break_lose_nothing(tmp_path):
    """A proxy that cuts the line every few thousand bytes, in the middle of messages."""
    scan = make_scan(80, 60)
    server = socket.create_server(("127.0.0.1", 0))
    cuts = 0

    def pump(source, sink, budget):
        nonlocal cuts
        try:
            while content := source.recv(1000):
                sink.sendall(content)
                budget -= len(content)
                if budget < 0:
                    cuts += 1
                    break
        except OSError:
            pass
        for end_ in (source, sink):
            with suppress(OSError):
                end_.shutdown(socket.SHUT_RDWR)

    def proxy(port):
        rng = random.Random(0)
        while True:
            try:
                near, _ = server.accept()
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                return
            threading.Thread(target=pump, args=(near, far, rng.randrange(8_000, 20_000)), daemon=True).start()
            threading.Thread(target=pump, args=(far, near, 10**9), daemon=True).start()

    with receiving(tmp_path / "s.zarr") as receiver:
        threading.Thread(target=proxy, args=(int(receiver.address.rsplit(":", 1)[1]),), daemon=True).start()
        send_scan(scan, f"tcp://127.0.0.1:{server.getsockname()[1]}", window=8)
    server.close()
    assert cuts >= 3
    assert_same(tmp_path / "s.zarr", scan)
    assert receiver.counts["accepted"] == 80


def test_a_receiver_that_is_killed_goes_on_where_it_was(tmp_path):
    scan = make_scan(60)
    out = tmp_path / "s.zarr"
    result, gate = [], threading.Event()

    def hold(acknowledged):
        if acknowledged >= 10:  # the rest comes when the receiver was killed, however slow the machine
            assert gate.wait(LIMIT)

    def send(address):
        result.append(send_scan(scan, address, rate=50, window=8, timeout=2 * LIMIT, progress=hold))

    with reserved_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        with acquiring(out, address) as (first, _, _):
            sender = threading.Thread(target=send, args=(address,))
            sender.start()
            while not (out.exists() and open_scan(out).n_views >= 10):
                time.sleep(0.01)
            first.kill()
            first.wait()
        gate.set()
        before = open_scan(out).n_views
        assert 10 <= before < 60
        assert not open_scan(out).complete
        with acquiring(out, address) as (second, _, said):
            assert f"going on after {before} views" in said
            sender.join(LIMIT)
            assert second.wait(LIMIT) == 0
            assert "60 views in" in second.stderr.read()
    assert len(result) == 1
    assert_same(out, scan)


# Two views come within a quarter of a second, and the last of 40 after ten.
SLOWLY = ["--rate", "4"]


def test_a_sender_that_is_killed_is_started_again(tmp_path):
    """Real processes on both sides: acquire, and simulate --stream, killed in the middle and run again."""
    out = tmp_path / "s.zarr"
    with acquiring(out) as (receiver, address, _):
        words = [sys.executable, "-m", "plugstream", "simulate", *SMALL, "--stream", address, *SLOWLY]
        sender = warm.Popen(words, stderr=subprocess.DEVNULL)
        while not (out.exists() and open_scan(out).n_views >= 2):
            assert sender.poll() is None
            time.sleep(0.01)
        sender.send_signal(signal.SIGKILL)
        sender.wait()
        assert open_scan(out).n_views < 40
        assert main(["simulate", str(tmp_path / "direct.zarr"), *SMALL, "--stream", address]) == 0
        assert receiver.wait(LIMIT) == 0
        said = receiver.stderr.read()
    assert "40 views in" in said
    assert "complete; not used: " in said
    assert_same(out, open_scan(tmp_path / "direct.zarr"))


def test_ctrl_c_says_how_to_go_on_and_that_works(tmp_path):
    out = tmp_path / "a scan.zarr"
    with reserved_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        words = [sys.executable, "-m", "plugstream", "simulate", *SMALL, "--stream", address]
        with acquiring(out, address) as (receiver, _, _):
            sender = warm.Popen([*words, *SLOWLY], stderr=subprocess.PIPE, text=True)
            while not (out.exists() and open_scan(out).n_views >= 2):
                assert sender.poll() is None
                time.sleep(0.01)
            sender.send_signal(signal.SIGINT)
            said = sender.communicate(timeout=LIMIT)[1]
            found = re.search(
                r"^interrupted; (\d+) views are acknowledged, and sending the same scan again", said, re.M
            )
            assert found, said
            receiver.send_signal(signal.SIGINT)
            assert (sender.returncode, receiver.wait(LIMIT)) == (130, 130)
            said = receiver.stderr.read().splitlines()
        views = open_scan(out).n_views
        assert int(found[1]) <= views < 40
        assert f"{views} views in {out}, not complete" in said[-2]
        again = shlex.split(said[-1].removeprefix("next: "))
        assert again == ["plugstream", "acquire", str(out), "--listen", address]
        with warm.Popen([*words, "--timeout", str(LIMIT)], stderr=subprocess.DEVNULL) as sender:
            assert main([*again[1:], "--timeout", str(LIMIT)]) == 0
            assert sender.wait(LIMIT) == 0
    assert open_scan(out).complete
    assert open_scan(out).n_views == 40


def test_another_scan_is_refused(tmp_path):
    scan, other = make_scan(5), make_scan(5, 8)
    with receiving(tmp_path / "s.zarr") as receiver:
        with Client(receiver.address) as client:
            assert client.ask(begin("scan", born_geometry(scan), {})) == ("ack", 0)
            assert client.ask(begin("other", born_geometry(scan), {})) == ("refuse", 0)
        with pytest.raises(InputError, match=r"refuses the scan: s.zarr was begun with other receivers"):
            send_scan(other, receiver.address, name="scan", token=TOKEN)
        send_scan(scan, receiver.address, name="scan", token=TOKEN)
    assert receiver.counts["foreign"] == 2
    assert_same(tmp_path / "s.zarr", scan)


def break_off(views):
    if views == 2:
        raise KeyboardInterrupt


def test_a_scan_that_begins_alike_is_another(tmp_path):
    """The same data and setup, other positions of the transmitters after the first."""
    scan = make_scan(5)
    places = born_geometry(scan).transmitters.copy()
    places[1:] += 0.1
    other = MemoryScan(scan.data, replace(born_geometry(scan), transmitters=places))
    with receiving(tmp_path / "s.zarr") as receiver:
        with pytest.raises(KeyboardInterrupt):
            send_scan(scan, receiver.address, window=1, progress=break_off)
        with pytest.raises(InputError, match="refuses the scan"):
            send_scan(other, receiver.address)
        send_scan(scan, receiver.address)
    assert_same(tmp_path / "s.zarr", scan)


def take(receiver, views):
    """Receive until so many views are safe."""
    while receiver.committed < views:
        receiver._take_batch()


def test_both_sides_give_up_in_one_line(tmp_path):
    scan = make_scan(4)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # it accepts, and says nothing
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(
            InputError, match=r"nobody answered at tcp://127.0.0.1:.* for 0.5 s; start 'plugstream acquire'"
        ):
            send_scan(scan, address, timeout=0.5)
    with Receiver(tmp_path / "s.zarr", ANY) as receiver:
        with pytest.raises(InputError, match=r"nothing was received for 0.2 s; no scan was begun at tcp://127.0.0.1:"):
            receiver.run(timeout=0.2)
        with Client(receiver.address) as client:
            client.say(begin("scan", born_geometry(scan), {}))
            client.say(message(scan, 0))
            take(receiver, 1)
            with pytest.raises(InputError, match=r"nothing was received for 0.3 s; 1 views are in"):
                receiver.run(timeout=0.3)
    assert torch.equal(open_scan(tmp_path / "s.zarr").read(), scan.data[:1])


class Clock:
    """Stands in for `time` in a module; the test moves it on."""

    def __init__(self):
        self.later = 0.0

    def monotonic(self):
        return time.monotonic() + self.later


def test_a_sender_whose_view_cannot_be_used_says_why_when_it_gives_up(tmp_path, monkeypatch):
    """Its time is up once it has heard the reason, however slow the machine."""
    nan, clock, listen = make_scan(4), Clock(), link.Link._listen
    nan.data[2, 3] = np.nan

    def hear(self):
        listen(self)
        clock.later += 1000 if self._reason else 0

    monkeypatch.setattr(link, "time", clock)
    monkeypatch.setattr(link.Link, "_listen", hear)
    with (
        Receiver(tmp_path / "n.zarr", ANY) as receiver,
        taking(receiver),
        pytest.raises(
            InputError, match=r"acknowledged nothing new for 600 s .view 2 of the scan holds NaN or infinity"
        ),
    ):
        send_scan(nan, receiver.address, timeout=600)
    assert open_scan(tmp_path / "n.zarr").n_views == 2


def test_time_in_which_the_receiver_did_not_listen_is_no_silence(tmp_path, monkeypatch):
    """It was stopped, or its disk was busy, for longer than it waits; what came meanwhile is taken."""
    scan, clock = make_scan(3), Clock()
    monkeypatch.setattr(receive, "time", clock)
    with Receiver(tmp_path / "s.zarr", ANY) as receiver, Client(receiver.address) as client:
        wait, take_batch = receiver._wait, receiver._take_batch

        def stopped(seconds):
            clock.later += 1000
            return wait(seconds) if clock.later % 2000 == 0 else False

        def busy():
            clock.later += 1000
            return take_batch()

        monkeypatch.setattr(receiver, "_wait", stopped)
        monkeypatch.setattr(receiver, "_take_batch", busy)
        for frames in [begin("scan", born_geometry(scan), {}), *(message(scan, v) for v in range(3)), end("scan", 3)]:
            client.say(frames)
        client.say(bye("scan", 3))
        receiver.run(timeout=LIMIT)
    assert_same(tmp_path / "s.zarr", scan)


def test_time_in_which_the_sender_did_not_listen_is_no_silence(tmp_path, monkeypatch):
    """It was stopped for longer than it waits, and the answer lies in its socket."""
    scan, clock = make_scan(3), Clock()
    monkeypatch.setattr(link, "time", clock)
    with receiving(tmp_path / "s.zarr") as receiver:
        sender = ScanSender(receiver.address, born_geometry(scan), timeout=600)
        for v in range(3):
            sender._push({"data": scan.data[v].numpy(), "transmitters": born_geometry(scan).transmitters[v]})
        while sender.committed < 3:
            assert sender._link._socket.poll(1000 * LIMIT)
            clock.later += 1000
            sender._pump(0.0)
        sender.finish()
    assert open_scan(tmp_path / "s.zarr").complete


FULL = """
mkdir "$1/disk" && mount -t tmpfs -o size=3m tmpfs "$1/disk" || exit 77
head -c 2400k /dev/zero > "$1/disk/other"
"$2" -m plugstream acquire "$1/disk/s.zarr" --listen tcp://127.0.0.1:"$3" --keep-free 0MB --timeout 60 2> "$1/said" &
acquire=$!
"$2" -c "$4" tcp://127.0.0.1:"$3" &
for turn in $(seq 300); do grep -q "is full" "$1/said" && break; sleep 0.1; done
grep -q "is full" "$1/said" || exit 3
kill -0 $acquire || exit 4
rm "$1/disk/other"
wait $acquire || exit 5
"$2" -m plugstream verify "$1/disk/s.zarr"
"""
SEND = """
import sys
from plugstream.scans.send import send_scan
from streaming import TOKEN, make_scan
send_scan(make_scan(40, 4000), sys.argv[1], name="scan", token=TOKEN, timeout=60)
"""


@pytest.mark.slow
def test_on_a_disk_that_is_full_it_asks_again_until_there_is_room(tmp_path):
    """A real one, of 3 MB, on which a shard is longer than what is kept free."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    try:
        with reserved_port() as port:
            words = ["unshare", "-rm", "sh", "-c", FULL, "sh", str(tmp_path), sys.executable, str(port), SEND]
            done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False, env=environment)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode in (1, 77) and "plugstream" not in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, (done.stderr, (tmp_path / "said").read_text())


@pytest.mark.parametrize("when", ["begin", "view", "end"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_for(tmp_path, monkeypatch, when, number):
    import plugstream.scans.writer as writer

    scan, whole = make_scan(2), writer.write_whole
    frames = {"begin": begin("scan", born_geometry(scan), {}), "view": message(scan, 0), "end": end("scan", 2)}
    before = {"begin": [], "view": [frames["begin"]], "end": [frames["begin"], message(scan, 0), message(scan, 1)]}

    def full(path, parts):
        raise OSError(number, "it is full")

    with Receiver(tmp_path / "s.zarr", ANY) as receiver, taking(receiver), Client(receiver.address) as client:
        for one in before[when]:
            assert client.ask(one)[0] == "ack"
        safe = receiver.committed
        monkeypatch.setattr(writer, "write_whole", full)
        client.say(frames[when])
        answer = client.hear_all()
        assert (answer["type"], "full" in answer["reason"]) == ("nak", True)
        assert (receiver.committed, receiver.finished) == (safe, False)
        monkeypatch.setattr(writer, "write_whole", whole)
        rest = [frames["begin"], message(scan, 0), message(scan, 1), frames["end"]]
        for one in rest[len(before[when]) :]:
            assert client.ask(one)[0] == "ack"
        assert receiver.finished
    assert_same(tmp_path / "s.zarr", scan)


def test_a_disk_that_fails_ends_it_in_one_line(tmp_path, monkeypatch):
    import plugstream.scans.writer as writer

    scan, whole = make_scan(4), writer.write_whole
    with Receiver(tmp_path / "s.zarr", ANY) as receiver, Client(receiver.address) as client:
        client.say(begin("scan", born_geometry(scan), {}))
        client.say(message(scan, 0))
        take(receiver, 1)

        def full(path, parts):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(writer, "write_whole", full)
        client.say(message(scan, 1))
        with pytest.raises(InputError, match="Input/output error"):
            receiver.run(timeout=LIMIT)
        monkeypatch.setattr(writer, "write_whole", whole)
    with receiving(tmp_path / "s.zarr") as receiver:
        assert receiver.committed == 1
        send_scan(scan, receiver.address, name="scan", token=TOKEN)
    assert_same(tmp_path / "s.zarr", scan)
