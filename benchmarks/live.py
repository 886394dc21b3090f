"""From a frame's arrival to a picture on the page that it had a part in: latencies of a live reconstruction.

    python benchmarks/live.py [--case 2d] [--rate 10 100 1000] [--seconds 15]
    python benchmarks/live.py --long 20000

An instrument in another process hands views to `plugstream acquire` over ZeroMQ at a fixed rate; `reconstruct --follow
--serve` forms the image, and a page in a third process asks for a picture whenever the server tells of a new one, as a
browser does, and unpacks it. The time of a view is that from its `append` at the instrument to the first picture of a
step that could draw it, by the run's own log; views count once the page has its first picture. Drawing on the screen is
not counted. 2d: 1024 x 1024 pixels; 3d: 256^3 voxels, of which three slices are shown. Views are those of 200 golden
angles, 40 of the volume, over and over, as of a sample that turns.

--long sends so many small views as fast as they are taken, with a page open, and prints the memory of all processes
over time: what grows shows in the last column. `views` must equal what was sent: pictures are dropped, views never.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plugstream.runs.event_log import read_events
from plugstream.runs.events import Preview
from plugstream.runs.replay import replay
from plugstream.scans import open_scan
from plugstream.scans.layout import Commit

PLUGSTREAM = [sys.executable, "-m", "plugstream"]
FIRST = 20
PARTS = ("to the run", "to the picture", "to the page")
_STAMP = re.compile(r'"preview": "([0-9a-f-]+)"')


class Case(NamedTuple):
    """What is scanned and how it is reconstructed, in words of the commands."""

    simulate: str
    reconstruct: str
    angles: int = 200


CASES = {
    "2d": Case("--size 1024", "--sigma 0.5 --batch 10"),
    "3d": Case("--size 256 --slices 256", "--sigma 0.5 --batch 4", 40),
    "small": Case("--size 64", "--sigma 0.5 --batch 4"),
}


def send(scan: Path, address: str, rate: float, count: int) -> None:
    """Be the instrument: a few views, and after a line on standard input the rest at a rate, 0 for as fast as they go.

    Prints when each was handed over.
    """
    from plugstream.scans.send import ScanSender

    source = open_scan(scan).load()
    data, columns = source.read().numpy(), {name: np.asarray(rows[:]) for name, rows in source.columns.items()}
    begin, times = 0.0, []
    with ScanSender(address, source.instrument, timeout=300) as sender:
        for n in range(count):
            if n == FIRST:
                sys.stdin.readline()
                begin = time.time() - n / rate if rate else 0.0
            time.sleep(max(0.0, begin + n / rate - time.time()) if rate else 0.0)
            times.append(time.time())
            one = slice(n % len(data), n % len(data) + 1)
            sender.append(data[one], **{name: rows[one] for name, rows in columns.items()})
        sender.finish()
    print(*times)


class Page(threading.Thread):
    """A page: time and step of every picture that came to it. Arguments: port of the server."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.seen, self.first = port, list[tuple[float, int]](), threading.Event()

    def run(self) -> None:
        events = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        events.request("GET", "/api/events")
        answer, stamp = events.getresponse(), ""
        while line := answer.readline():
            stamps = _STAMP.findall(line.decode())
            if not stamps or stamps[-1] == stamp:
                continue
            stamp = stamps[-1]
            pictures = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            pictures.request("GET", f"/api/picture?role=preview&stamp={stamp}")
            reply = pictures.getresponse()
            picture = json.loads(reply.read() if reply.status == 200 else "null")
            pictures.close()
            if picture is None:  # the run is over
                continue
            for panel in picture["panels"]:
                zlib.decompress(b64decode(panel["data"]))
            self.seen.append((time.time(), picture["step"]))
            self.first.set()


def wait_for(text: Path, pattern: str, process: subprocess.Popen[Any], seconds: float = 100) -> str:
    """What a process says, by a pattern."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if (found := re.search(pattern, text.read_text())) is not None:
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"nothing like {pattern}: {text.read_text()[-2000:]}")


class Setting:
    """The processes of one measurement, in a folder."""

    def __init__(self, folder: Path, case: Case, more: str = "") -> None:
        self.scan, self.out = folder / "live.zarr", folder / "run"
        self.processes: list[subprocess.Popen[Any]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:  # known in advance, so that all start at the same time
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.acquire = self._start(folder / "acquire", "acquire", str(self.scan), "--listen", self.address)
        words = ["--follow", str(self.scan), "--out", str(self.out), "--serve", "--port", "0"]
        words += [*case.reconstruct.split(), "--report", "none", "--iterations", "20"]
        words += ["--progress", "plain", *more.split()]
        self.run = self._start(folder / "said", "reconstruct", *words)
        self.folder = folder

    def _start(self, said: Path, *words: str) -> subprocess.Popen[Any]:
        with said.open("w") as file:
            self.processes.append(subprocess.Popen([*PLUGSTREAM, *words], stdout=file, stderr=file))
        return self.processes[-1]

    def instrument(self, source: Path, rate: float, count: int) -> subprocess.Popen[str]:
        words = [sys.executable, __file__, "--send", str(source), self.address, str(rate), str(count)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def page(self) -> Page:
        address = wait_for(self.folder / "said", r"http://127.0.0.1:(\d+)", self.run)
        page = Page(int(address))
        page.start()
        return page

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def measure(name: str, rate: float, seconds: float, source: Path, more: str) -> None:
    """Print the latencies of one case at one rate."""
    count, begun = max(20, round(rate * seconds)), time.time()
    with tempfile.TemporaryDirectory() as place:
        setting = Setting(Path(place), CASES[name], more)
        try:
            instrument = setting.instrument(source, rate, count)
            page = setting.page()
            page.first.wait(60)
            begun = time.time() - begun
            sent = np.array([float(word) for word in instrument.communicate("go\n")[0].split()])
            time.sleep(3)  # for the last pictures
            log = setting.out / "events.jsonl"
            history, seen = replay(log), list(page.seen)
            pictures = {event.step: event.at for event in read_events(log) if isinstance(event, Preview)}
            views = open_scan(setting.scan).n_views
        finally:
            setting.close()
    known = [(record.step, record.views, record.at) for record in history.views]
    steps, times = (np.array(column) for column in zip(*((step, when) for when, step in seen), strict=True))
    waits, parts = [], []
    for n, at in enumerate(sent[FIRST:], FIRST):
        step, entered = next(((step, when) for step, views, when in known if views > n), (history.step, np.inf))
        shown = np.flatnonzero((steps > step) & (times > at))
        if len(shown):
            waits.append(1000 * (times[shown[0]] - at))
            written = min(pictures.get(int(steps[shown[0]]), np.nan), times[shown[0]])
            parts.append([1000 * part for part in (entered - at, written - entered, times[shown[0]] - written)])
    gaps = np.diff([sent[FIRST], *(when for when, _ in seen if when > sent[FIRST])])
    words = [f"{value:7.0f}" for value in (*np.quantile(waits, (0.5, 0.95)), max(waits))]
    pace = (seen[-1][1] - seen[0][1]) / max(1e-9, seen[-1][0] - seen[0][0])
    print(
        f"{name:5} {rate:6g} Hz  {len(sent)} sent, {views} on disk, {len(waits) + FIRST} shown  {' '.join(words)} ms  "
        f"first picture {begun:.0f} s after the start, one every {np.median(gaps):.2f} s ({gaps.max():.2f}), "
        f"{pace:.1f} steps a second; medians of parts: "
        + ", ".join(f"{value:.0f} ms {name}" for value, name in zip(np.nanmedian(parts, 0), PARTS, strict=True)),
        flush=True,
    )


def resident(pid: int) -> float:
    """Memory of a process in MB."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in text.read_text().split()] if text.exists() else []


def run_long(count: int, source: Path, more: str) -> None:
    """Print the memory of the processes while so many views come as fast as they are taken."""
    begun = time.time()
    print("views on disk, step, seconds; MB of acquire, run, page server; pictures on the page")
    with tempfile.TemporaryDirectory() as place:
        setting = Setting(Path(place), CASES["small"], more)
        try:
            instrument = setting.instrument(source, 0, count)
            page = setting.page()
            drain = threading.Thread(target=instrument.communicate, args=["go\n"])
            drain.start()
            following, marks = 0, np.linspace(0.05, 1, 20) * count
            while setting.run.poll() is None and len(marks):
                time.sleep(0.2)
                views = Commit.parse((setting.scan / "commit.json").read_bytes()).views
                if views >= marks[0]:
                    marks = marks[marks > views]
                    following = page.seen[-1][1] if page.seen else 0
                    server = sum(map(resident, children(setting.run.pid)))
                    memory = [resident(setting.acquire.pid), resident(setting.run.pid), server]
                    words = f"{time.time() - begun:6.0f}  " + "  ".join(f"{value:6.1f}" for value in memory)
                    print(f"{views:8d} {following:8d}  {words}  {len(page.seen):6d}", flush=True)
            setting.run.wait(timeout=600)
            print(f"{open_scan(setting.scan).n_views} of {count} views taken")
        finally:
            setting.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=["2d", "3d"])
    parser.add_argument("--rate", nargs="+", type=float, default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--long", type=int, metavar="VIEWS")
    parser.add_argument("--scans", type=Path, help="where simulated scans are kept between two calls")
    parser.add_argument("--more", default="", help="more words for reconstruct")
    parser.add_argument("--send", nargs=4, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.send:
        scan, address, rate, count = parsed.send
        send(Path(scan), address, float(rate), int(count))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end, too
    with tempfile.TemporaryDirectory() as place:
        folder = parsed.scans or Path(place)
        for name in ["small"] if parsed.long else parsed.case:
            source = folder / f"{name}.zarr"
            if not source.exists():
                words = ["simulate", str(source), "--instrument", "ct", "--order", "golden"]
                words += ["--views", str(CASES[name].angles), *CASES[name].simulate.split()]
                subprocess.run([*PLUGSTREAM, *words], check=True, capture_output=True)
            if parsed.long:
                run_long(parsed.long, source, parsed.more)
                continue
            print(
                "median, 95 % and longest time from a view's arrival to the page; seconds between pictures", flush=True
            )
            for rate in parsed.rate:
                measure(name, rate, parsed.seconds, source, parsed.more)


if __name__ == "__main__":
    main()
