"""Scans that are sent and received on loopback, for the tests of streams: real sockets and processes."""

import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import torch
import zmq

import warm
from plugstream import BornGeometry, Grid, InputError, MemoryScan, open_scan, ring
from plugstream.instruments.born import born_geometry
from plugstream.scans import stream
from plugstream.scans.receive import Receiver

ANY = "tcp://127.0.0.1:*"
TOKEN = "the-secret-of-the-sender"
LIMIT = 60  # seconds for what takes none on a quiet machine: a disk may be slow, and a process stopped for a while
SMALL = ["--size", "24", "--views", "40", "--receivers", "30", "--radius", "0.4", "--wavelength", "0.03"]


def make_scan(views=20, receivers=9, *, plane=False, masked=False, seed=0):
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((views, receivers)) + 1j * rng.standard_normal((views, receivers))
    sources = {"plane_waves" if plane else "transmitters": ring(views, 1.0, start=7)}
    mask = rng.random((views, receivers)) < 0.7 if masked else None
    if masked:
        data[~mask] = np.nan
    geometry = BornGeometry(
        receivers=ring(receivers, 0.5), wavelength=0.03, grid=Grid((8, 6), 0.01, (0.1, 0.2)), mask=mask, **sources
    )
    return MemoryScan(torch.from_numpy(data.astype(np.complex64)), geometry, provenance={"seed": seed})


def assert_same(path, scan):
    got = open_scan(path)
    assert got.complete
    got.check()
    assert got.read().numpy().tobytes() == scan.read().numpy().tobytes()  # to the bit, NaN where it is masked too
    for name in ("receivers", "transmitters", "plane_waves", "mask"):
        assert np.array_equal(getattr(born_geometry(got), name), getattr(born_geometry(scan), name)), name
    assert born_geometry(got).grid == born_geometry(scan).grid
    assert born_geometry(got).wavelength == born_geometry(scan).wavelength


@contextmanager
def receiving(path):
    """A receiver that runs in a thread."""
    with Receiver(path, ANY) as receiver:
        errors = []

        def run():
            try:
                receiver.run(timeout=LIMIT)
            except InputError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield receiver
        finally:
            thread.join(2 * LIMIT)
            assert not thread.is_alive()
            assert not errors


@contextmanager
def taking(receiver):
    """A receiver takes what comes for as long as the block lasts, however long it is silent; the scan need not end."""
    over = threading.Event()

    def run():
        while not over.is_set():
            if receiver._wait(0.02):
                receiver._take_batch()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


@contextmanager
def acquiring(out, listen=ANY):
    """A real `plugstream acquire`, and where it listens."""
    words = [sys.executable, "-m", "plugstream", "acquire", str(out), "--listen", listen, "--timeout", "60"]
    process = warm.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        yield process, re.search(r"tcp://\S+\d", line)[0], line
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


class Client:
    """A sender that sends whatever it is told to; `linger`, seconds that what it said last may take to leave."""

    def __init__(self, address, linger=LIMIT):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = int(1000 * linger)  # nothing is waited for that has left
        self.socket.connect(address)

    def say(self, frames):
        self.socket.send_multipart(frames)

    def ask(self, frames):
        """Send, and return the answer: its type and sequence."""
        self.say(frames)
        return self.hear()

    def hear(self):
        answer = self.hear_all()
        return answer["type"], answer["sequence"]

    def hear_all(self):
        return json.loads(self.hear_bytes())

    def hear_bytes(self):
        assert self.socket.poll(1000 * LIMIT), "no answer"
        return self.socket.recv()

    def close(self):
        self.socket.close()
        self.context.term()

    __enter__ = lambda self: self  # noqa: E731
    __exit__ = lambda self, *_: self.close()  # noqa: E731


def begin(name, geometry, provenance, source="transmitters", token=TOKEN):
    return stream.begin(stream.Name(name, token), geometry, provenance, None if source is None else [source])


def view(name, number, data, source, mask=None, kind="transmitters", token=TOKEN):
    columns = {"data": data, kind: source} | ({} if mask is None else {"mask": mask})
    return stream.view(stream.Name(name, token), number, columns)


def end(name, views, token=TOKEN):
    return stream.end(stream.Name(name, token), views)


def bye(name, views, token=TOKEN):
    return stream.bye(stream.Name(name, token), views)


def message(scan, number, name="scan", token=TOKEN):
    geometry = born_geometry(scan)
    mask = None if geometry.mask is None else geometry.mask[number]
    kind = "transmitters" if geometry.plane_waves is None else "plane_waves"
    return view(name, number, scan.data[number].numpy(), getattr(geometry, kind)[number], mask, kind, token)


def changed(frames, **fields):
    """A message with other claims in its header."""
    return [json.dumps({**json.loads(frames[0]), **fields}).encode(), *frames[1:]]
