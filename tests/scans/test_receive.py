"""No message, and no crowd, ends a receiver: each is answered, and the instrument's scan arrives whole afterwards."""

import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

import warm
from effort import effort, thorough
from plugstream import InputError, Limits, open_scan, send_scan
from plugstream.base.files import load_json
from plugstream.instruments.born import born_geometry
from plugstream.scans import receive
from plugstream.scans.parts import checksum
from plugstream.scans.receive import Receiver
from streaming import (
    ANY,
    LIMIT,
    Client,
    acquiring,
    assert_same,
    begin,
    changed,
    end,
    make_scan,
    message,
    receiving,
    taking,
)
from waiting import wait_until

NINES = b"9" * 4300


def with_raw(frames, name, value):
    """A message whose header has this text as the value of a field, whatever JSON makes of it."""
    head = json.dumps({**json.loads(frames[0]), name: "RAW"}).encode()
    return [head.replace(b'"RAW"', value), *frames[1:]]


def with_text(frames, text):
    parts = [frames[1], text]
    return [*changed(frames[:1], crc32c=checksum(parts)), *parts]


def nested(depth):
    return b"[" * depth + b"]" * depth


def hostile(scan):
    """Messages that ended the receiver, and their relatives: in every field that is printed, compared or multiplied."""
    first = begin("scan", born_geometry(scan), {})
    other = message(scan, 0)
    text = json.loads(first[2])
    yield with_raw(first, "arrays", b'{"receivers": [' + NINES + b", 2]}")
    yield with_raw(first, "arrays", b'{"receivers": [9, ' + nested(986) + b"]}")
    for depth in range(900, 1000, 7):  # wherever the stack is nearly full
        yield with_raw(first, "arrays", nested(depth))
        yield with_raw(other, "dtype", nested(depth))
    for frames in (first, other, end("scan", 5)):
        for name in json.loads(frames[0]):
            for value in (
                NINES,
                b"-" + NINES,
                b"1e999",
                nested(400),
                b"1." + NINES,
                b'"' + b"x" * 50_000 + b'"',
                b"{}",
            ):
                yield with_raw(frames, name, value)
    for value in (NINES, b"1e" + NINES, nested(2000), b'{"a":' * 500 + b"1" + b"}" * 500):
        for name in text:
            yield with_text(first, json.dumps({**text, name: "RAW"}).encode().replace(b'"RAW"', value))
    grid = {"shape": [1 << 20, 1 << 20], "pixel": 0.1, "center": [0, 0]}
    yield with_text(first, json.dumps({**text, "attributes": {**text["attributes"], "grid": grid}}).encode())
    yield [first[0].decode().encode("utf-16"), *first[1:]]
    yield [b"\xef\xbb\xbf" + first[0], *first[1:]]
    yield [b'{"plugstream": 3, "a": "' + b'\\"' * 20_000]


def test_each_message_is_answered_and_the_scan_arrives_whole(tmp_path):
    scan = make_scan(5)
    with acquiring(tmp_path / "s.zarr") as (process, address, _), Client(address) as client:
        sent = 0
        for frames in hostile(scan):
            assert client.ask(frames) == ("nak", 0), frames[0][:100]
            sent += 1
        assert sent > 150
        assert process.poll() is None
        assert list(tmp_path.iterdir()) == []  # none of them began a scan
        send_scan(scan, address, timeout=LIMIT)
        assert process.wait(LIMIT) == 0
    assert_same(tmp_path / "s.zarr", scan)


def test_the_same_in_the_middle_of_a_scan(tmp_path):
    """Also of the sender that is trusted: what it gets wrong is asked for again."""
    scan = make_scan(5)
    with receiving(tmp_path / "s.zarr") as receiver:
        with Client(receiver.address) as client:
            assert client.ask(begin("scan", born_geometry(scan), {})) == ("ack", 0)
            assert client.ask(message(scan, 0)) == ("ack", 1)
            for frames in hostile(scan):
                assert client.ask(frames)[0] in ("nak", "refuse", "conflict")
        send_scan(scan, receiver.address, name="scan", token="the-secret-of-the-sender")
    assert_same(tmp_path / "s.zarr", scan)
    assert receiver.counts["failed"] == 0  # each was foreseen


def test_an_error_of_our_own_is_answered_and_told_of(tmp_path, monkeypatch, caplog):
    """Whatever fails at one message: the sender is answered, a line says where, and nothing is half-written."""
    import plugstream.scans.journal as journal

    scan, true = make_scan(6), journal.checksum_of
    calls = 0

    def failing(*columns):
        nonlocal calls
        calls += 1
        if calls in (2, 3):  # after the view was added to the writer, and before it was journalled
            raise ZeroDivisionError("a bug")
        return true(*columns)

    monkeypatch.setattr(journal, "checksum_of", failing)
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address, window=1)
    assert receiver.counts["failed"] == 2
    assert_same(tmp_path / "s.zarr", scan)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert re.search(r"plugstream failed at test_receive.py:\d+: ZeroDivisionError\('a bug'\)", told[0])


def test_json_of_strangers_is_bounded_before_it_is_parsed():
    def load(text):
        return load_json(text, most_bytes=1000, most_depth=4, most_digits=10)

    assert load(b'{"a": [1, {"b": ["[[[[[[[[\\"[[[[ 12345678901234567890"]}]}') == {
        "a": [1, {"b": ['[[[[[[[["[[[[ 12345678901234567890']}]
    }
    assert load(b"[[1], [2], [3], [4], [5]]") == [[1], [2], [3], [4], [5]]  # many, but not deep
    assert load(b"[-1234567890, 1e5]") == [-1234567890, 1e5]
    for bad in (b"[[[[[1]]]]]", b"12345678901", b"0.12345678901", b"NaN", b"[Infinity]", b"", b"\xff", b" " * 1001):
        with pytest.raises(ValueError, match=r"^it "):
            load(bad)
    with pytest.raises(ValueError, match=r"^it "):
        load("[1]".encode("utf-16"))  # in which digits do not stand side by side
    start = time.thread_time()
    for text in (b'"' * 60_000, b'"\\' * 30_000, b'["' * 30_000, b"[]" * 30_000, b"\\" * 60_000):
        with pytest.raises(ValueError, match=r"^it "):
            load_json(text, most_bytes=1 << 16)
    assert time.thread_time() - start < 1


def limited(out, files, *more):
    words = [sys.executable, "-m", "plugstream", "acquire", str(out), "--listen", ANY, "--timeout", "60", *more]
    return warm.Popen(words, stderr=subprocess.PIPE, text=True, limits={resource.RLIMIT_NOFILE: files})


@thorough
def test_more_idle_connections_than_files(tmp_path):
    """With so many files to open: the instrument that was there stays, and one that comes later gets in."""
    scan, out = make_scan(12), tmp_path / "s.zarr"
    files = effort(256, 1024)
    process = limited(out, files)
    crowd = []
    try:
        address = re.search(r"tcp://\S+\d", process.stderr.readline())[0]
        place = ("127.0.0.1", int(address.rsplit(":", 1)[1]))

        def come(count):
            with suppress(ConnectionError):  # when all is received
                for _ in range(count):
                    crowd.append(socket.create_connection(place, timeout=LIMIT))

        with Client(address) as client:
            assert client.ask(begin("scan", born_geometry(scan), {})) == ("ack", 0)
            come(files + 76)
            for v in range(3):
                assert client.ask(message(scan, v)) == ("ack", v + 1)
        come(files // 3)
        thread = threading.Thread(target=come, args=(files // 5,))
        thread.start()
        send_scan(scan, address, name="scan", token="the-secret-of-the-sender", rate=20, timeout=LIMIT)
        thread.join(2 * LIMIT)
        assert process.wait(LIMIT) == 0
        assert "crowded" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        for connection in crowd:
            connection.close()
    assert_same(out, scan)


def test_no_files_left_to_open(tmp_path, monkeypatch):
    """Should a crowd take every file all the same: strangers leave, and the view is asked for again."""
    from plugstream.scans import chunks, writer

    scan, whole, calls = make_scan(8), writer.write_whole, 0

    def crowded(path, parts):
        nonlocal calls
        calls += 1
        if calls in (9, 16):
            raise OSError(24, "Too many open files")
        whole(path, parts)

    for module in (writer, chunks):
        monkeypatch.setattr(module, "write_whole", crowded)
    with receiving(tmp_path / "s.zarr") as receiver:
        idle = socket.create_connection(("127.0.0.1", int(receiver.address.rsplit(":", 1)[1])))
        send_scan(scan, receiver.address, window=1)
        idle.settimeout(LIMIT)
        while idle.recv(100):  # ZeroMQ's greeting, and then the end
            pass
        idle.close()
    assert calls > 16
    assert_same(tmp_path / "s.zarr", scan)


def test_zeromq_peers_that_say_nothing_make_room_too(tmp_path):
    """They shake hands and answer heartbeats, so that no timeout of ZeroMQ's ends them."""
    scan = make_scan(6)
    with receiving(tmp_path / "s.zarr") as receiver:
        idle = [Client(receiver.address) for _ in range(40)]

        def crowd(views):
            if views == 3:  # so many connections are not made in an instant, nor is each seen at once
                wait_until(lambda: receiver.counts["crowded"] >= 8)

        send_scan(scan, receiver.address, rate=10, progress=crowd)
        for client in idle:
            client.close()
    assert receiver.counts["crowded"] >= 8
    assert_same(tmp_path / "s.zarr", scan)


def send_until_shut_out(raw, large, small):
    """Large parts of a message, and then small ones for as long as nobody ends the connection."""
    for _ in range(9):
        raw.sendall(large)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        raw.sendall(small)
        time.sleep(0.005)


def test_a_message_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    """ZeroMQ gathers the parts of a message until the last: whoever sends 32 MB before a scan is begun is shut out."""
    monkeypatch.setattr(receive, "_HANDSHAKE", 1000 * LIMIT)  # or a pause of ours in the handshake would end it sooner
    scan = make_scan(4)
    with receiving(tmp_path / "s.zarr") as receiver:
        with socket.create_connection(("127.0.0.1", int(receiver.address.rsplit(":", 1)[1])), timeout=LIMIT) as raw:
            # ZMTP 3.0 by hand, since ZeroMQ itself sends a message only when it is whole.
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
            raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
            # More parts follow each of them.
            large, small = (b"\x03" + size.to_bytes(8, "big") + bytes(size) for size in (4 << 20, 1 << 16))
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                send_until_shut_out(raw, large, small)
        assert receiver.counts["oversized"] >= 1
        send_scan(scan, receiver.address)
    assert_same(tmp_path / "s.zarr", scan)


def test_views_and_bytes_have_quotas(tmp_path):
    scan = make_scan(10)
    size = 8 * 9 + 16
    for name, limits, views in (("views", Limits(views=4), 4), ("bytes", Limits(nbytes=5 * size + 3), 5)):
        with (
            Receiver(tmp_path / f"{name}.zarr", ANY, limits=limits) as receiver,
            taking(receiver),
            pytest.raises(InputError, match=f"refuses the scan: no more than .* {name} are taken here"),
        ):
            send_scan(scan, receiver.address, timeout=LIMIT)
        assert open_scan(tmp_path / f"{name}.zarr").n_views == views
    with pytest.raises(InputError, match="limit of views must be at least 1"):
        Limits(views=0)
    with pytest.raises(InputError, match="at least 2 connections"):
        Receiver(tmp_path / "c.zarr", ANY, limits=Limits(connections=1))
    with pytest.raises(InputError, match="ulimit -n"):
        Receiver(tmp_path / "c.zarr", ANY, limits=Limits(connections=10**9))


def test_a_disk_that_is_nearly_full_waits_for_room(tmp_path, monkeypatch):
    import shutil

    import plugstream.scans.journal as limits

    usage = shutil.disk_usage(tmp_path)
    scan, full = make_scan(6), threading.Event()
    monkeypatch.setattr(limits, "_LOOK", 0.0)  # at every view, however fast they come
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: usage._replace(free=1000 if full.is_set() else 1 << 40))
    with receiving(tmp_path / "s.zarr") as receiver:
        seen = []

        def make_room():
            wait_until(lambda: receiver.counts["waiting"] > 0)
            full.clear()

        def progress(views):
            seen.append(views)
            if views == 2:
                full.set()
                threading.Thread(target=make_room).start()

        send_scan(scan, receiver.address, rate=5, window=1, progress=progress)
    assert receiver.counts["waiting"] > 0
    assert seen[-1] == 6
    assert_same(tmp_path / "s.zarr", scan)


def test_random_headers_never_end_it(tmp_path):
    """Well-formed headers of random values, by the thousand: no line of ours is reached that did not expect them."""
    scan = make_scan(3)
    rng = np.random.default_rng(11)
    values = [
        None, True, -1, 0, 1, 2, 3, 2**53 + 1, 10**40, 1.5, 1e308, "", "scan", "é" * 60, "\ud800", [], [9], [9, 2], {},
        [[]],
    ]  # fmt: skip
    values += ["begin", "view", "end", "bye", "complex64", "transmitters", "the-secret-of-the-sender", False]
    good = [begin("scan", born_geometry(scan), {}), message(scan, 0), message(scan, 1), end("scan", 3)]
    with receiving(tmp_path / "s.zarr") as receiver, Client(receiver.address) as client:
        for _ in range(1500):
            frames = good[rng.integers(4)]
            names = list(json.loads(frames[0]))
            wrong = {
                names[rng.integers(len(names))]: values[rng.integers(len(values))] for _ in range(rng.integers(1, 4))
            }
            client.say(changed(frames, **wrong))
        assert client.ask([b"{}"])
        while client.socket.poll(300):
            client.socket.recv()
        send_scan(scan, receiver.address, name="scan", token="the-secret-of-the-sender")
    assert receiver.counts["failed"] == 0
    assert_same(tmp_path / "s.zarr", scan)
