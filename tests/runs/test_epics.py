"""A run as PVs: what a client of EPICS sees while it goes on, and what it may do."""

import contextlib
import threading
import time

import numpy as np
import pytest
import torch

from waiting import wait_until

pytest.importorskip("p4p", reason="p4p is not installed; it compiles for half an hour where PyPI has no wheel")

from p4p.client.thread import Context, RemoteError
from p4p.server import Server

from plugstream.images.space import ImageSpace
from plugstream.runs import epics
from plugstream.runs.epics import Publisher, make_plane
from plugstream.runs.event_log import read_events
from plugstream.runs.events import Measurement, Steering, Stop
from small_run import RUN, SMALL, main


@pytest.fixture
def network(monkeypatch):
    """Ports on this machine alone."""
    with Server([], isolate=True) as server:
        conf = server.conf()
    for name, value in conf.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def published(monkeypatch):
    """Calls what is appended to it once PVs are there, before the run begins: clients look for missing ones rarely."""
    calls = []

    class Published(Publisher):
        def __init__(self, *words, **more):
            super().__init__(*words, **more)
            for call in calls:
                call()

    monkeypatch.setattr(epics, "Publisher", Published)
    return calls


class Display:
    """What a client has seen, by PV."""

    def __init__(self, prefix):
        self.context, self.seen, self.kept = Context("pva", nt=False), {}, []
        for name in ("Image", "Step", "Distance", "State", "Verdict"):
            self.seen[name] = []
            self.kept.append(self.context.monitor(prefix + name, self.seen[name].append))
        wait_until(lambda: self.seen["State"])

    def close(self):
        self.context.close()

    def values(self, name):
        return [one["value"] for one in self.seen[name]]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    place = tmp_path_factory.mktemp("scan") / "scan.zarr"
    assert main(["simulate", str(place), *SMALL]) == 0
    return place


def test_a_display_sees_the_run(network, published, scan, tmp_path):
    """Its image is the result's at the end, and the result has the same bits as without."""
    displays = []
    published.append(lambda: displays.append(Display("recon:")))
    words = ["reconstruct", str(scan), *RUN]
    assert main([*words, "--out", str(tmp_path / "run"), "--publish", "recon:"]) in (0, 3)
    (display,) = displays
    display.close()
    assert main([*words, "--out", str(tmp_path / "other")]) in (0, 3)
    result = np.load(tmp_path / "run" / "result.npy")
    assert result.tobytes() == np.load(tmp_path / "other" / "result.npy").tobytes()
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    stop = next(event for event in events if isinstance(event, Stop))
    image = display.seen["Image"][-1]
    assert image["uniqueId"] == stop.image_step
    assert [side["size"] for side in image["dimension"]] == [24, 24]
    assert np.array_equal(image["value"].reshape(24, 24), result.astype(np.float32))
    assert display.values("Step")[-1] == 30
    measured = [event for event in events if isinstance(event, Measurement)]
    assert display.values("Distance")[-1] == measured[-1].values["relative_distance"]
    assert display.values("State")[-1] == "ended"
    assert stop.explanation in display.values("Verdict")[-1]


def test_putting_is_refused_unless_it_is_allowed(network, tmp_path):
    publisher = Publisher("recon:", tmp_path)
    with contextlib.closing(publisher), contextlib.closing(Context("pva")) as client:
        for name, value in (("Step", 3), ("State", "x")):
            with pytest.raises(RemoteError):
                client.put(f"recon:{name}", value, timeout=5)
        with pytest.raises(TimeoutError):
            client.put("recon:Command", "stop", timeout=0.3)
    assert not list(tmp_path.iterdir())


def test_a_run_is_steered_by_pvs(network, published, scan, tmp_path):
    """As by the page: what was put is in the log, and what cannot be is refused."""
    refused = []

    def steer():
        with contextlib.closing(Context("pva")) as client:
            client.get("recon:State", timeout=20)
            for name, value in (("Command", "explode"), ("Sigma", -1.0), ("Sigma", float("nan"))):
                try:
                    client.put(f"recon:{name}", value)
                except RemoteError as error:
                    refused.append(str(error))
            client.put("recon:Sigma", 0.05)
            time.sleep(0.3)
            client.put("recon:Command", "stop")

    thread = threading.Thread(target=steer)
    published.append(thread.start)
    words = ["reconstruct", str(scan), *RUN, "--iterations", "20000", "--out", str(tmp_path / "run")]
    assert main([*words, "--publish", "recon:", "--allow-put"]) in (0, 3)
    thread.join()
    assert len(refused) == 3, refused
    steering = [event for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Steering)]
    assert [(event.action, event.sigma) for event in steering] == [("change", 0.05), ("stop", None)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--publish", "a b"], "cannot publish PVs as 'a b'"),
        (["--publish", ""], "cannot publish PVs as ''"),
        (["--allow-put"], "add --publish PREFIX"),
    ],
)
def test_mistakes_are_one_line(scan, tmp_path, capfd, words, said):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *words]) == 2
    assert said in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (ImageSpace((4, 5), upwards=False), lambda image: image),
        (ImageSpace((4, 5), upwards=True), lambda image: image[::-1]),
        (ImageSpace((3, 4, 5), upwards=False), lambda image: image[1]),
        (ImageSpace((2, 4, 5), channels=True, upwards=False), lambda image: image[0]),
        (ImageSpace((4, 5), is_complex=True, upwards=False), lambda image: np.abs(image)),
        (ImageSpace((2, 3, 4, 5), channels=True, is_complex=True, upwards=False), lambda image: np.abs(image[0, 1])),
    ],
)
def test_planes(space, expected):
    image = torch.rand(space.shape, dtype=torch.complex64 if space.is_complex else torch.float32)
    plane = make_plane(image, space)
    assert plane.dtype == np.float32
    assert np.allclose(plane, expected(image.numpy()))
