"""Scans over ZeroMQ: real sockets on loopback, and whatever a sender may do wrong."""

import json
import random
import re
import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
import zmq

from plugstream import BornGeometry, InputError, MemoryScan, open_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry
from plugstream.scans import ScanWriter, receive
from plugstream.scans.keys import make_keys
from plugstream.scans.parts import MOST_BYTES, checksum
from plugstream.scans.receive import Receiver
from plugstream.scans.send import send_scan
from streaming import (
    ANY,
    LIMIT,
    TOKEN,
    Client,
    assert_same,
    begin,
    bye,
    changed,
    end,
    make_scan,
    message,
    receiving,
    view,
)


@pytest.mark.parametrize(("plane", "masked"), [(False, False), (True, False), (False, True)])
def test_a_fast_sender(tmp_path, plane, masked):
    scan = make_scan(100, 50, plane=plane, masked=masked)
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address, window=64)
    assert_same(tmp_path / "s.zarr", scan)
    assert receiver.counts["accepted"] == 100
    assert set(receiver.counts) <= {"accepted", "repeated"}  # repeated only where the disk was slower than the patience
    provenance = open_scan(tmp_path / "s.zarr").provenance
    assert provenance["instrument"] == {"seed": 0}


def test_a_slow_sender_and_that_acknowledged_means_on_disk(tmp_path):
    scan = make_scan(12)
    seen = []

    def progress(acknowledged):
        seen.append(acknowledged)
        stored = open_scan(tmp_path / "s.zarr")
        assert stored.n_views >= acknowledged
        if acknowledged:
            assert torch.equal(
                stored.read(torch.tensor([acknowledged - 1])), scan.data[acknowledged - 1 : acknowledged]
            )

    start = time.monotonic()
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address, rate=20, window=1, progress=progress)
    assert time.monotonic() - start >= 11 / 20
    assert seen == list(range(13))  # one at a time, since no more may be under way
    assert_same(tmp_path / "s.zarr", scan)


def test_everything_a_message_can_have_wrong_is_counted_refused_and_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(receive, "_GRACE", LIMIT)  # in which the end is sent again
    scan = make_scan(6)
    good = message(scan, 1)
    head, data, source = good
    nan = view("scan", 1, np.full(9, np.nan, np.complex64), np.zeros(2))
    bad = [
        ("damaged", [head, data[:-1] + bytes([data[-1] ^ 1]), source]),
        ("damaged", [head, data, source[:-1] + bytes([source[-1] ^ 1])]), ("damaged", changed(good, crc32c=0)),
        ("truncated", [head, data[:-8], source]), ("truncated", [head, data]), ("truncated", [head]),
        ("oversized", [head, data + data, source]), ("oversized", [head, data, source, b"more"]),
        ("oversized", [head, *[b"x"] * 1000]), ("oversized", [b" " * 70_000]),
        ("mistyped", changed(good, dtype="complex128")), ("mistyped", changed(good, dtype="object")),
        ("mistyped", changed(good, shape=[10**15])), ("mistyped", changed(good, shape=[9, 1])),
        ("mistyped", changed(good, shape=[9.0])), ("mistyped", changed(good, shape=None)),
        ("mistyped", changed(good, view=7)), ("mistyped", changed(good, view=-1)),
        ("mistyped", changed(good, view="1")), ("mistyped", changed(good, columns=1)),
        ("mistyped", changed(good, crc32c="all right")), ("mistyped", changed(good, sequence=True)),
        ("mistyped", changed(good, sequence=2.0)), ("mistyped", changed(good, sequence=-1, view=-2)),
        ("mistyped", changed(good, type="end", sequence=-1, views=-2)), ("mistyped", changed(good, scan=None)),
        ("mistyped", changed(good, type="execute")), ("mistyped", changed(good, plugstream=1)),
        ("mistyped", changed(good, plugstream=True)), ("mistyped", changed(good, plugstream=2.0)),
        ("mistyped", [b"[]"]), ("mistyped", nan), ("mistyped", changed(end("scan", 1), views=5)), ("unreadable", [b""]),
        ("unreadable", [b"\x80\x04\x95pickle"]), ("unreadable", [b"[" * 60_000]),
        ("unreadable", [b'{"plugstream": NaN}']), ("unannounced", changed(good, scan="other")),
        ("early", message(scan, 3)), ("early", end("scan", 6)),
    ]  # fmt: skip
    expected = {"accepted": 6, "repeated": 2}
    with receiving(tmp_path / "s.zarr") as receiver, Client(receiver.address) as client:
        assert client.ask(good) == ("nak", 0)  # a scan must be begun
        expected["unannounced"] = 1
        assert client.ask(begin("scan", born_geometry(scan), {})) == ("ack", 0)
        assert client.ask(message(scan, 0)) == ("ack", 1)
        for number, (kind, frames) in enumerate(bad):
            if kind == "early":
                time.sleep(1.25 * receive._PATIENCE)  # within that time it asks once
            assert client.ask(frames) == ("nak", 2), (number, kind)
            expected[kind] = expected.get(kind, 0) + 1
            assert receiver.counts[kind] == expected[kind], (number, kind)
        with Client(receiver.address) as stranger:  # who knows the scan's name, and did not begin it
            assert stranger.ask(good) == ("nak", 0)
            expected["unannounced"] += 1
        assert client.ask(message(scan, 0)) == ("ack", 1)  # repeated: acknowledged again, written once
        for v in range(1, 6):
            assert client.ask(message(scan, v)) == ("ack", v + 1)
        assert client.ask(bye("scan", 6)) == ("nak", 7)  # too soon
        expected["early"] += 1
        assert client.ask(end("scan", 6)) == ("ack", 7)
        assert client.ask(end("scan", 6)) == ("ack", 7)
        client.say(bye("scan", 6))
    assert_same(tmp_path / "s.zarr", scan)
    assert receiver.counts == expected


def test_reordered_views_are_asked_for_in_order_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr(receive, "_PATIENCE", LIMIT)  # until it asks again
    scan = make_scan(8)
    with receiving(tmp_path / "s.zarr") as receiver, Client(receiver.address) as client:
        assert client.ask(begin("scan", born_geometry(scan), {})) == ("ack", 0)
        for v in (3, 1, 2, 5, 4):
            client.say(message(scan, v))
        assert client.hear() == ("nak", 1)
        for v in range(8):
            client.say(message(scan, v))
        client.say(end("scan", 8))
        answers = [client.hear()]
        while answers[-1] != ("ack", 9):
            answers.append(client.hear())
        assert {kind for kind, _ in answers} == {"ack"}
        client.say(bye("scan", 8))
    assert receiver.counts == {"early": 5, "accepted": 8}
    assert_same(tmp_path / "s.zarr", scan)


def with_grid(**changes):
    return {"grid": {"shape": [8, 6], "pixel": 0.01, "center": [0.1, 0.2], **changes}}


def test_a_begin_that_describes_no_scan_makes_none(tmp_path):
    """Each is whole but for one thing; the receiver refuses it and lives on."""
    scan = make_scan(3)
    header, receivers, good = begin("scan", born_geometry(scan), {})
    changes = [
        {"wavelength": -1},
        {"wavelength": "0.03"},
        {"wavelength": True},
        {"wavelength": "INFINITE"},
        {"wavelength": 10**400},
        {"background": 0},
        {"far_field": "false"},
        {"far_field": None},
        {"columns": "transmitters"},
        {"columns": ["nothing"]},
        {"columns": [["transmitters"]]},
        {"dtype": "complex128"},
        {"instrument": "ct-2d"},
        {"attributes": []},
        {"attributes": {}},
        {"grid": 3},
        with_grid(shape=[8.7, 6]),
        with_grid(shape=["INFINITE", 6]),
        with_grid(shape=[True, True]),
        with_grid(shape=[8]),
        with_grid(shape=[10**9, 10**9]),
        with_grid(shape=[0, 6]),
        with_grid(pixel="INFINITE"),
        with_grid(center=["INFINITE", 0]),
        with_grid(center=["0", "0"]),
        {"provenance": {"a": [[[[[[[[[[[]]]]]]]]]]]}},
        {"provenance": [["a", 1]]},
        {"provenance": {"a": "INFINITE"}},
        {"provenance": {"a": "\ud800"}},  # half of a character, which cannot be written anywhere
    ]
    told = json.loads(good)
    texts = []
    for change in changes:
        inner = (
            {"attributes": {**told["attributes"], **change}} if change.keys() & told["attributes"].keys() else change
        )
        texts.append(json.dumps({**told, **inner}).replace('"INFINITE"', "1e400").encode())
    texts += [b"", b"{}", b"[]", b"[" * 5000]
    texts += [
        json.dumps({k: v for k, v in json.loads(good).items() if k != name}).encode() for name in json.loads(good)
    ]
    with receiving(tmp_path / "s.zarr") as receiver, Client(receiver.address) as client:
        for number, text in enumerate(texts):
            parts = [receivers, text]
            assert client.ask([changed([header], crc32c=checksum(parts))[0], *parts]) == ("nak", 0), text
            assert receiver.counts == {"mistyped": number + 1}
        for name in ("", "../up", "x" * 65):
            assert client.ask(changed([header, receivers, good], scan=name)) == ("nak", 0)
        for shape in ([10**12, 2], [9, 2.0], [9], [], [True, 2], None):
            assert client.ask(changed([header, receivers, good], arrays={"receivers": shape})) == ("nak", 0)
        assert client.ask([header, np.full((9, 2), np.nan).tobytes(), good]) == ("nak", 0)
        assert list(tmp_path.iterdir()) == []
        send_scan(scan, receiver.address)
    assert_same(tmp_path / "s.zarr", scan)


def test_a_hostile_crowd_does_not_change_a_bit(tmp_path):
    """Garbage on the socket, garbage in messages, flipped bits, huge frames, while an honest sender sends."""
    scan = make_scan(60, 40)
    stop = threading.Event()
    rng = random.Random(1)
    valid = [
        begin("scan", born_geometry(scan), {}),
        *(message(scan, v) for v in range(60)),
        end("scan", 60),
        end("scan", 1),
    ]

    def hostile(address):
        host, port = re.fullmatch(r"tcp://(.*):(\d+)", address).groups()
        with Client(address, linger=0.5) as client:
            while not stop.is_set():
                kind = rng.random()
                frames = [bytearray(part) for part in rng.choice(valid)]
                if kind < 0.3:
                    frames = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 6))]
                elif kind < 0.6:
                    part = rng.choice(frames)
                    part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
                elif kind < 0.65:
                    # It may be shut out before it has said anything.
                    with suppress(OSError), socket.create_connection((host, int(port))) as raw:
                        raw.sendall(rng.randbytes(5000))
                    continue
                elif kind < 0.67:
                    with Client(address, linger=0.5) as other:
                        other.say([b"{}", bytes(MOST_BYTES + 1)])
                    continue
                client.say([bytes(part) for part in frames])
                time.sleep(0.001)

    with receiving(tmp_path / "s.zarr") as receiver:

        def enough():
            others = sum(receiver.counts[kind] for kind in ("foreign", "damaged", "mistyped"))
            return receiver.counts["unannounced"] > 5 and receiver.counts["unreadable"] > 5 and others > 0

        def hold(acknowledged):  # the last views come when all kinds have been there, however slow the machine
            until = time.monotonic() + LIMIT  # and before the sender takes the receiver for gone
            while acknowledged > 30 and not enough() and time.monotonic() < until:
                time.sleep(0.01)

        # The honest one is first; a second that begins the same scan by a guessed name would be taken for it.
        honest = {"name": "honest", "rate": 60, "progress": hold, "timeout": 2 * LIMIT}
        sender = threading.Thread(target=send_scan, args=(scan, receiver.address), kwargs=honest)
        sender.start()
        while receiver.committed == 0:
            time.sleep(0.01)
        enemy = threading.Thread(target=hostile, args=(receiver.address,))
        enemy.start()
        sender.join(2 * LIMIT)
        stop.set()
        enemy.join(LIMIT)
    assert_same(tmp_path / "s.zarr", scan)
    assert receiver.counts["accepted"] == 60
    assert enough()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["acquire", "{tmp}/s.zarr", "--listen", "tcp://0.0.0.0:5599"], "may be reached from other machines"),
        (["acquire", "{tmp}/s.zarr", "--listen", "tcp://*:5599"], "allow it by --remote"),
        (["acquire", "{tmp}/s.zarr", "--listen", "tcp://[::]:5599"], "may be reached from other machines"),
        (["acquire", "{tmp}/s.zarr", "--listen", "127.0.0.1:5599"], "write tcp://HOST:PORT"),
        (["acquire", "{tmp}/s.zarr", "--listen", "tcp://127.0.0.1:99999"], "write tcp://HOST:PORT"),
        (["acquire", "{tmp}/s.zarr", "--listen", "tcp://127.0.0.1:{port}"], "Address already in use"),
        (["acquire", "{tmp}/a/s.zarr"], "does not exist; make it first"),
        (["acquire", "{tmp}/s.zarr", "--listen", "tcp://127.0.0.1:*", "--timeout", "0.1"], "nothing was received"),
        (
            ["acquire", "{tmp}/s.zarr", "--listen", "tcp://127.0.0.1:*", "--timeout", "-1"],
            "must be a number of seconds",
        ),
        (
            ["acquire", "{tmp}/s.zarr", "--listen", "tcp://127.0.0.1:*", "--timeout", "nan"],
            "must be a number of seconds",
        ),
        (["simulate"], "give the scan to make"),
        (["simulate", "{tmp}/s.zarr", "--rate", "3"], "--rate is for a scan that is sent"),
        (["simulate", "{tmp}/s.zarr", "--timeout", "3"], "--timeout is for a scan that is sent"),
        (["simulate", "--stream", "here"], "write tcp://HOST:PORT"),
        (["simulate", "--stream", "tcp://127.0.0.1:*"], "names no port to send to"),
        (["simulate", "--stream", "tcp://127.0.0.1:0"], "names no port to send to"),
        (["simulate", "--stream", "tcp://127.0.0.1:9", "--rate", "0"], "the rate must be"),
        (["simulate", "--stream", "tcp://127.0.0.1:9", "--rate", "nan"], "the rate must be"),
        (["simulate", "--stream", "tcp://127.0.0.1:9", "--timeout", "0"], "the timeout must be"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, capsys, words, text):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([word.format(tmp=tmp_path, port=port) for word in words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert text in said[-1]
    assert said[-1].startswith("plugstream: ")
    assert all(line.startswith("listening on") for line in said[:-1])
    assert list(tmp_path.iterdir()) == []


def test_only_unfinished_scans_of_its_own_are_continued(tmp_path):
    scan = make_scan(3)
    with ScanWriter(tmp_path / "w.zarr", born_geometry(scan)) as writer:
        writer.append(scan.data[:1], born_geometry(scan).transmitters[:1])
    with pytest.raises(InputError, match="was not made by 'plugstream acquire'"):
        Receiver(tmp_path / "w.zarr", ANY)
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address)
    with pytest.raises(InputError, match="is finished; choose another name"):
        Receiver(tmp_path / "s.zarr", ANY)
    with pytest.raises(InputError, match="--remote lets other machines in, so it needs keys"):
        Receiver(tmp_path / "r.zarr", "tcp://0.0.0.0:*", remote=True)
    make_keys(tmp_path / "keys")
    with Receiver(tmp_path / "r.zarr", "tcp://0.0.0.0:*", remote=True, keys=tmp_path / "keys") as receiver:
        assert receiver.address.startswith("tcp://0.0.0.0:")


def test_fields_are_streamed_where_a_message_has_room_for_them(small_geometry, tmp_path, monkeypatch):
    fields = np.random.default_rng(0).standard_normal((7, 12, 10)).astype(np.complex64)
    geometry = BornGeometry(
        receivers=small_geometry.receivers, wavelength=0.05, grid=small_geometry.grid, fields=fields
    )
    scan = MemoryScan(torch.zeros(7, 9, dtype=torch.complex64), geometry)
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address)
    assert_same(tmp_path / "s.zarr", scan)
    assert np.array_equal(born_geometry(open_scan(tmp_path / "s.zarr")).fields, fields)
    monkeypatch.setattr("plugstream.scans.parts.MOST_BYTES", 959)
    with pytest.raises(InputError, match="fields take 960 bytes, and a message has room for 959"):
        send_scan(scan, "tcp://127.0.0.1:9")


def test_what_no_receiver_could_take_is_not_sent():
    address = "tcp://127.0.0.1:9"
    many = make_scan(1, MOST_BYTES // 16 + 1)
    with pytest.raises(InputError, match=r"receivers take 8388624 bytes, and a message has room for 8388608"):
        send_scan(many, address)
    scan = make_scan(2)
    for provenance, text in (
        ({"log": "x" * 70_000}, "provenance take .* bytes"),
        ({"x": float("nan")}, "cannot be written as JSON"),
        ({"x": object()}, "cannot be written as JSON"),
    ):
        with pytest.raises(InputError, match=text):
            send_scan(MemoryScan(scan.data, born_geometry(scan), provenance=provenance), address)


def test_a_folder_that_cannot_be_written_to_is_refused_before_anybody_sends(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write wherever it likes
    with pytest.raises(InputError, match="nothing can be written to the folder"):
        Receiver(tmp_path / "s.zarr", ANY)


def test_answers_that_are_none_are_passed_over():
    """Whoever listens at the address may say anything; what is no answer is as good as silence."""
    answers = [
        b"",
        b"\xff",
        b"[" * 60_000,
        b"[]",
        b'{"type": "ack"}',
        b'{"type": "ack", "sequence": 1e400}',
        b'{"type": "ack", "sequence": "4"}',
        b'{"type": "ack", "sequence": true}',
        b'{"type": "nak", "sequence": -5}',
        b'{"type": [], "sequence": 3}',
        json.dumps({"type": "refuse", "sequence": 0, "reason": "not\nyou"}).encode(),
    ]
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"

        def answer():
            peer = router.recv_multipart()[0]
            for text in answers:
                router.send_multipart([peer, text])

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match=r"refuses the scan: not you$"):
            send_scan(make_scan(3), address, timeout=LIMIT)
        thread.join()


def test_a_shorter_scan_of_the_same_name_is_told_so(tmp_path):
    scan = make_scan(6)
    with receiving(tmp_path / "s.zarr") as receiver:
        with Client(receiver.address) as client:
            assert client.ask(begin("scan", born_geometry(scan), {})) == ("ack", 0)
            for v in range(5):
                assert client.ask(message(scan, v)) == ("ack", v + 1)
        with pytest.raises(InputError, match="has 5 views of scan scan, more than are sent"):
            send_scan(make_scan(2), receiver.address, name="scan", token=TOKEN)
        send_scan(scan, receiver.address, name="scan", token=TOKEN)
    assert_same(tmp_path / "s.zarr", scan)


def test_a_scan_that_another_made_meanwhile_is_not_mixed_with_ours(tmp_path):
    """Two that listen for one new scan: the second finds what the first has left, and takes that scan only."""
    scan, path = make_scan(4), tmp_path / "s.zarr"
    with receiving(path) as second:
        with Receiver(path, ANY) as first, Client(first.address) as client:
            client.say(begin("scan", born_geometry(scan), {}))
            client.say(message(scan, 0))
            while first.committed < 1:
                first._take_batch()
        with Client(second.address) as client:
            assert client.ask(begin("other", born_geometry(scan), {})) == ("refuse", 0)
        send_scan(scan, second.address, name="scan", token=TOKEN)
    assert_same(path, scan)
    assert open_scan(path).provenance["stream"] == "scan"
