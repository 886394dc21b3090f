"""A scan belongs to its sender, and acknowledged means that this view is on the disk."""

import os
import re
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
import zmq
import zmq.auth

import warm
from plugstream import InputError, MemoryScan, Receiver, make_keys, open_scan, send_scan
from plugstream.cli import main
from plugstream.instruments.born import born_geometry
from plugstream.scans.keys import ClientKeys, ServerKeys
from plugstream.scans.scan import fingerprint
from streaming import (
    ANY,
    LIMIT,
    SMALL,
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
    taking,
    view,
)

SECRET = "the-name-that-nobody-is-told"


def answer_of(client, frames):
    client.say(frames)
    return client.hear_bytes()


def test_a_stranger_is_told_nothing_and_takes_nothing_over(tmp_path):
    scan, evil, out = make_scan(6), make_scan(6, seed=9), tmp_path / "s.zarr"
    with receiving(out) as receiver, Client(receiver.address) as owner, Client(receiver.address) as stranger:
        assert owner.ask(begin(SECRET, born_geometry(scan), {})) == ("ack", 0)
        for v in range(3):
            assert owner.ask(message(scan, v, SECRET)) == ("ack", v + 1)
        wrong = {"token": "a-token-that-was-guessed"}
        messages = [
            [b"{}"],
            [b"\xff"],
            begin("other", born_geometry(scan), {}, **wrong),
            begin(SECRET, born_geometry(scan), {}, **wrong),  # one that knows the name is not told more
            begin(SECRET, born_geometry(make_scan(6, 8)), {}, **wrong),
            message(evil, 3, SECRET, **wrong),
            message(evil, 3, SECRET),  # one that has even the token, but did not begin
            message(scan, 0, SECRET),
            changed(message(evil, 3, SECRET), type="execute"),
            end(SECRET, 3, **wrong),
        ]
        answers = [answer_of(stranger, frames) for frames in messages]
        for answer in answers:
            assert not any(word in answer for word in (SECRET.encode(), TOKEN.encode(), b"s.zarr", b'"sequence": 4'))
        assert answers[2] == answers[3] == answers[4]  # there is no telling which names exist
        for v in range(3, 6):
            assert owner.ask(message(scan, v, SECRET)) == ("ack", v + 1)
        assert owner.ask(end(SECRET, 6)) == ("ack", 7)
        owner.say(bye(SECRET, 6))
    assert_same(out, scan)
    assert receiver.counts["foreign"] == 3
    assert receiver.counts["accepted"] == 6


def test_the_sender_is_known_again_after_a_restart_and_its_token_is_in_no_file(tmp_path):
    scan, out = make_scan(6), tmp_path / "s.zarr"

    def take(receiver, least):
        while receiver.committed < least:
            receiver._take_batch()

    with Receiver(out, ANY) as first, Client(first.address) as client:
        client.say(begin("scan", born_geometry(scan), {}))
        client.say(message(scan, 0))
        take(first, 1)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    with receiving(out) as receiver:
        with Client(receiver.address) as stranger:
            assert stranger.ask(begin("scan", born_geometry(scan), {}, token="another-token-than-that")) == (
                "refuse",
                0,
            )
        send_scan(scan, receiver.address, name="scan", token=TOKEN)
    assert_same(out, scan)


def test_a_scan_that_does_not_say_whose_it_is_cannot_be_continued(tmp_path):
    from plugstream import ScanWriter

    ScanWriter(tmp_path / "old.zarr", born_geometry(make_scan(2)), provenance={"stream": "scan"}).close()
    with pytest.raises(InputError, match="does not say who sent it"):
        Receiver(tmp_path / "old.zarr", ANY)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("plane", "masked"), [(False, False), (True, True)])
def test_a_repeated_view_is_compared_with_the_disk(tmp_path, plane, masked, restarted):
    """Its data, its source and its mask; what is the same is acknowledged again, and the rest is named."""
    scan, out = make_scan(4, plane=plane, masked=masked), tmp_path / "s.zarr"
    source = "plane_waves" if plane else "transmitters"
    place, mask = getattr(born_geometry(scan), source)[1], None if not masked else born_geometry(scan).mask[1]
    data = scan.data[1].numpy()
    other = data.copy()
    other[0 if mask is None else int(np.argmax(mask))] += 1e-3

    def one(data=data, place=place, mask=mask):
        return view("scan", 1, data, place, mask, source)

    if restarted:
        with Receiver(out, ANY) as first, Client(first.address) as client:
            for frames in [begin("scan", born_geometry(scan), {}, source), *(message(scan, v) for v in range(3))]:
                client.say(frames)
            while first.committed < 3:
                first._take_batch()
    with receiving(out) as receiver, Client(receiver.address) as client:
        sequence = 3 if restarted else 0
        assert client.ask(begin("scan", born_geometry(scan), {}, source)) == ("ack", sequence)
        if not restarted:
            for v in range(3):
                assert client.ask(message(scan, v)) == ("ack", v + 1)
        assert client.ask(one()) == ("ack", 3)
        cases = [("data", one(data=other)), (source, one(place=np.array([0.6, 0.8])))]
        if masked:
            more = mask.copy()
            more[np.argmax(mask)] = False
            cases.append(("mask", one(mask=more)))
            cases.append(("mask", one(data=np.nan_to_num(data), mask=None)))
        else:
            cases.append(("mask", one(mask=np.arange(9) > 0)))
            assert client.ask(one(mask=np.ones(9, bool))) == ("ack", 3)  # which says the same as none
        if plane:
            assert client.ask(one(place=3 * place)) == ("ack", 3)  # a direction of another length
        for name, frames in cases:
            client.say(frames)
            answer = client.hear_all()
            assert (answer["type"], answer["sequence"]) == ("conflict", 3)
            assert re.search(rf"view 1 is on the disk with other .*{name}", answer["reason"])
        assert client.ask(end("scan", 2)) == ("conflict", 3)
        assert client.ask(message(scan, 3)) == ("ack", 4)
        assert client.ask(end("scan", 4)) == ("ack", 5)
        assert client.ask(end("scan", 5)) == ("conflict", 5)
        assert client.ask(message(make_scan(9, plane=plane, masked=masked), 4)) == ("conflict", 5)
        client.say(changed(end("scan", 4), type="bye", sequence=6))
    assert receiver.counts["conflicting"] == len(cases) + 3
    assert_same(out, scan)


def test_what_is_not_the_same_scan_is_not_taken_for_acknowledged(tmp_path):
    """A sender that comes back is told a checksum of all that is there, and compares it with what it has."""
    scan = make_scan(6)
    data = scan.data.clone()
    data[1, 2] += 1e-4
    other = MemoryScan(data, born_geometry(scan))
    moved = MemoryScan(scan.data, replace(born_geometry(scan), transmitters=born_geometry(scan).transmitters + 1e-9))
    with receiving(tmp_path / "s.zarr") as receiver:
        with pytest.raises(KeyboardInterrupt):
            send_scan(scan, receiver.address, name="scan", token=TOKEN, window=1, progress=break_off)
        for wrong in (other, moved):
            with pytest.raises(InputError, match="has other views of scan scan"):
                send_scan(wrong, receiver.address, name="scan", token=TOKEN)
        send_scan(scan, receiver.address, name="scan", token=TOKEN)
    assert_same(tmp_path / "s.zarr", scan)


def test_a_scan_is_named_after_its_contents(tmp_path):
    scan = make_scan(3)
    with receiving(tmp_path / "s.zarr") as receiver:
        send_scan(scan, receiver.address)
    assert open_scan(tmp_path / "s.zarr").provenance["stream"] == receiver.scan == fingerprint(scan)


def break_off(views):
    if views == 3:
        raise KeyboardInterrupt


def test_a_view_that_was_damaged_on_the_disk_is_not_acknowledged_again(tmp_path):
    scan, out = make_scan(71), tmp_path / "s.zarr"  # more than a shard has, of which the last is read in any case
    with Receiver(out, ANY) as first, Client(first.address) as client:
        for frames in [begin("scan", born_geometry(scan), {}), *(message(scan, v) for v in range(70))]:
            client.say(frames)
        while first.committed < 70:
            first._take_batch()
    file = out / "data" / "c" / "0" / "0"
    content = bytearray(file.read_bytes())
    content[20 + 9 * 8 + 4 + 25] ^= 1  # of view 1
    file.write_bytes(content)
    with pytest.raises(InputError):
        open_scan(out).check()
    with Receiver(out, ANY) as receiver, taking(receiver), Client(receiver.address) as client:
        client.say(begin("scan", born_geometry(scan), {}))
        answer = client.hear_all()
        assert (answer["sequence"], "crc32c" in answer) == (70, False)
        assert client.ask(message(scan, 0)) == ("ack", 70)
        assert client.ask(message(scan, 1)) == ("conflict", 70)
        assert client.ask(message(scan, 70)) == ("ack", 71)  # the measurement goes on


# Keys


def test_keys_are_for_their_owner_and_never_written_over(tmp_path, capsys):
    folder = tmp_path / "keys"
    before = os.umask(0)  # whatever it is
    try:
        assert main(["keys", str(folder)]) == 0
    finally:
        os.umask(before)
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    assert set(files) == {"server.key", "instrument.key", "clients/instrument.pub"}
    for name, path in files.items():
        assert stat.S_IMODE(path.stat().st_mode) == (0o644 if name.endswith(".pub") else 0o600)
        public, secret = zmq.auth.load_certificate(path)  # ZeroMQ's own reader understands them
        assert (secret is None) == name.endswith(".pub")
        assert secret is None or zmq.curve_public(secret) == public
    contents = {path: path.read_bytes() for path in files.values()}
    assert main(["keys", str(folder)]) == 2
    assert "keys are never written over" in capsys.readouterr().err.splitlines()[-1]
    assert main(["keys", str(folder), "--client", "second"]) == 0
    for path, content in contents.items():
        assert path.read_bytes() == content
    server = ServerKeys.load(folder)
    assert set(server.clients.values()) == {"instrument", "second"}
    for name in ("instrument", "second"):
        client = ClientKeys.load(folder / f"{name}.key")
        assert client.server == server.public
        assert server.clients[client.public] == name
        assert client.secret not in repr(client)
    (tmp_path / "elsewhere").write_text("mine")
    (folder / "third.key").symlink_to(tmp_path / "elsewhere")
    for client in ("third", "server", "../up", "a b", ""):
        assert main(["keys", str(folder), "--client", client]) == 2
    assert (tmp_path / "elsewhere").read_text() == "mine"
    files["server.key"].chmod(0o640)
    with pytest.raises(InputError, match=r"others may read; run: chmod 600 "):
        ServerKeys.load(folder)
    files["server.key"].chmod(0o600)
    os.mkfifo(folder / "fifo.key", 0o600)
    for path in (folder / "clients", folder / "fifo.key", folder / "clients" / "instrument.pub", folder / "none"):
        with pytest.raises(InputError):
            ClientKeys.load(path)
    text = files["instrument.key"].read_text()
    files["instrument.key"].write_text(text.replace(ClientKeys.load(folder / "second.key").public, "x" * 40))
    secret = re.search(r'secret-key = "(.*)"', (folder / "second.key").read_text())[1]
    files["instrument.key"].write_text(re.sub(r'secret-key = ".*"', lambda _: f'secret-key = "{secret}"', text))
    with pytest.raises(InputError, match="do not belong together"):
        ClientKeys.load(files["instrument.key"])


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path / "keys")
    make_keys(tmp_path / "keys", "second")
    make_keys(tmp_path / "others")
    return tmp_path / "keys"


def test_only_whoever_has_a_key_delivers_a_view(tmp_path, keys):
    scan, out = make_scan(5), tmp_path / "s.zarr"
    right, others = keys / "instrument.key", tmp_path / "others" / "instrument.key"
    mixed = tmp_path / "mixed.key"  # a pair of its own, and the right key of the receiver
    text = others.read_text().replace(ClientKeys.load(others).server, ClientKeys.load(right).server)
    mixed.write_text(text)
    mixed.chmod(0o600)
    with Receiver(out, "tcp://0.0.0.0:*", remote=True, keys=keys) as receiver:
        address = receiver.address.replace("0.0.0.0", "127.0.0.1")
        thread = threading.Thread(target=receiver.run, kwargs={"timeout": LIMIT})
        thread.start()
        for key in (None, others, mixed):
            with pytest.raises(InputError, match="nobody answered at"):
                send_scan(scan, address, key=key, timeout=0.4)
            assert not out.exists()
        end = time.monotonic() + LIMIT
        while not receiver.counts["unauthorised"] and time.monotonic() < end:  # it may take longer to be turned away
            with pytest.raises(InputError, match="nobody answered at"):
                send_scan(scan, address, key=mixed, timeout=0.4)
        assert receiver.counts["unauthorised"] > 0
        with pytest.raises(KeyboardInterrupt):
            send_scan(scan, address, key=right, name="scan", token=TOKEN, window=1, progress=break_off)
        with pytest.raises(InputError, match="refuses the scan"):  # let in, and even with the token it is not its scan
            send_scan(scan, address, key=keys / "second.key", name="scan", token=TOKEN)
        send_scan(scan, address, key=right, name="scan", token=TOKEN)
        thread.join(2 * LIMIT)
    assert_same(out, scan)
    assert receiver.counts["accepted"] == 5


def test_remote_needs_keys_on_the_command_line(tmp_path, capsys, keys):
    anywhere = ["acquire", str(tmp_path / "s.zarr"), "--listen", "tcp://*:0", "--remote"]
    assert main(anywhere) == 2
    assert "make them with 'plugstream keys FOLDER'" in capsys.readouterr().err.splitlines()[-1]
    assert main([*anywhere, "--keys", str(tmp_path / "none")]) == 2
    assert "cannot read the keys" in capsys.readouterr().err.splitlines()[-1]
    for path in (keys / "clients").iterdir():
        path.unlink()
    assert main([*anywhere, "--keys", str(keys)]) == 2
    assert "nobody could send" in capsys.readouterr().err.splitlines()[-1]
    assert main(["simulate", str(tmp_path / "s.zarr"), "--key", "x.key"]) == 2
    assert "--key is for a scan that is sent" in capsys.readouterr().err.splitlines()[-1]
    for flag, value in (
        ("--max-bytes", "much"),
        ("--max-views", "0"),
        ("--keep-free", "-1"),
        ("--max-connections", "1"),
    ):
        assert main(["acquire", str(tmp_path / "s.zarr"), flag, value]) == 2
    assert not (tmp_path / "s.zarr").exists()


def test_real_commands_with_keys(tmp_path, keys):
    out = tmp_path / "s.zarr"
    words = [sys.executable, "-m", "plugstream", "acquire", str(out), "--listen", "tcp://127.0.0.1:*"]
    words += ["--keys", str(keys), "--timeout", "60", "--max-bytes", "1GB", "--max-views", "1000"]
    receiver = warm.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"tcp://\S+\d", receiver.stderr.readline())[0]
        small = ["simulate", str(tmp_path / "direct.zarr"), *SMALL, "--stream", address]
        assert main([*small, "--key", str(keys / "instrument.key")]) == 0
        assert receiver.wait(LIMIT) == 0
    finally:
        receiver.kill()
        receiver.wait()
        receiver.stderr.close()
    assert_same(out, open_scan(tmp_path / "direct.zarr"))
    assert torch.equal(open_scan(out).read(), open_scan(tmp_path / "direct.zarr").read())


def test_a_gate_that_is_besieged_lets_the_right_one_in(tmp_path, keys):
    """Connections without a key keep coming while the instrument sends."""
    scan, stop = make_scan(20), threading.Event()
    with Receiver(tmp_path / "s.zarr", ANY, keys=keys) as receiver:
        thread = threading.Thread(target=receiver.run, kwargs={"timeout": LIMIT})
        thread.start()

        def besiege():
            while not stop.is_set():
                with Client(receiver.address) as client:
                    client.socket.linger = 0
                    with suppress(zmq.Again):  # once it is shut out
                        client.socket.send_multipart(begin("scan", born_geometry(scan), {}), zmq.NOBLOCK)
                    time.sleep(0.02)

        enemy = threading.Thread(target=besiege)
        enemy.start()
        send_scan(scan, receiver.address, key=keys / "instrument.key", rate=30)
        stop.set()
        enemy.join(LIMIT)
        thread.join(2 * LIMIT)
    assert_same(tmp_path / "s.zarr", scan)
    assert receiver.counts["accepted"] == 20
