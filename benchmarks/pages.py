"""How much a run is slowed down by 50 open pages of it.

python benchmarks/pages.py [--pages 50] [--size 256] [--seconds 3] [--rounds 12]

One run on all cores, `reconstruct --serve`, and in turn no page and many of them. A page is what its browser asks of
the server: the stream of events, and a picture whenever there is a new preview, every second here and every five by
default; the browsers themselves are on other machines, so that readers of low priority, which throw away what they get,
stand for them. The speed is that of the steps in the run's own log, the median over the rounds. It may fall by 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from plugstream.runs.replay import HistoryReader

LIMIT = 0.05
_STAMP = re.compile(rb'"preview": "([0-9a-f-]+)"')


class Pages:
    """Pages that are opened and closed, in a process of their own, of low priority."""

    def __init__(self, port: int, count: int) -> None:
        words = [sys.executable, __file__, "--readers", str(port), "--pages", str(count)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> int:
        """Open or close them: the bytes that came to them since they were opened."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


async def _read(port: int, count: int) -> None:
    """Be so many pages, when the standard input says so, until it ends."""
    total, there = 0, 0
    loop = asyncio.get_running_loop()

    async def page() -> None:
        nonlocal total, there
        head = f" HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        events, writer = await asyncio.open_connection("127.0.0.1", port)
        pictures, asks = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /api/events{head}".encode())
        stamp, first = b"", True
        try:
            while part := await events.read(1 << 20):
                total += len(part)
                there, first = there + first, False
                stamps = _STAMP.findall(part)
                if stamps and stamps[-1] != stamp:
                    stamp = stamps[-1]
                    asks.write(f"GET /api/picture?role=preview{head}".encode())
                    answer = await pictures.readuntil(b"\r\n\r\n")
                    length = int(answer.lower().partition(b"content-length:")[2].split()[0])
                    total += len(await pictures.readexactly(length))
        finally:
            writer.close()
            asks.close()

    tasks: list[asyncio.Task[None]] = []
    while (asked := (await loop.run_in_executor(None, sys.stdin.readline)).strip()) != "":
        if asked == "open":
            total = there = 0
            tasks = [asyncio.create_task(page()) for _ in range(count)]
            while there < count:
                await asyncio.sleep(0.05)
        else:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        print(total, flush=True)


def _processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _server_of(pid: int) -> int:
    """The process that this one started to serve its page."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            if parent == pid and "pages.listening" in (path / "cmdline").read_text():
                return int(path.name)
        except (OSError, IndexError):
            continue
    raise SystemExit("there is no server")


def _speed(log: Path, seconds: float) -> float:
    """Steps a second of the run, over so many seconds."""
    reader = HistoryReader(log)
    reader.read()
    first, begun = reader.history.measured[-1], time.monotonic()
    last = first
    while last is first or time.monotonic() - begun < seconds:
        time.sleep(0.05)
        reader.read()
        last = reader.history.measured[-1]
    return (last.step - first.step) / (last.at - first.at)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--readers", type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.readers is not None:
        os.nice(19)
        asyncio.run(_read(parsed.readers, parsed.pages))
        return
    plugstream = [sys.executable, "-m", "plugstream"]
    with tempfile.TemporaryDirectory() as place:
        scan, folder, said = Path(place) / "scan.zarr", Path(place) / "run", Path(place) / "said"
        subprocess.run(
            [*plugstream, "simulate", str(scan), "--size", str(parsed.size)], check=True, capture_output=True
        )
        words = [*plugstream, "reconstruct", str(scan), "--out", str(folder), "--sigma", "0.016", "--batch", "10"]
        words += ["--iterations", "1000000", "--preview", "1", "--every", "2", "--serve", "--port", "0"]
        with said.open("w") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the run ends, too
        try:
            until = time.monotonic() + 120
            while not folder.exists() or len(list(folder.glob("preview.safetensors"))) == 0:
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit(said.read_text())
                time.sleep(0.1)
            address = next(word for word in said.read_text().split() if word.startswith("http://"))
            _compare(parsed, folder, process.pid, urlsplit(address).port or 0)
        finally:
            process.kill()
            process.wait()


def _compare(parsed: argparse.Namespace, folder: Path, pid: int, port: int) -> None:
    server, log, pages = _server_of(pid), folder / "events.jsonl", Pages(port, parsed.pages)
    without, beside, loads, volumes = [], [], [], []
    for number in range(parsed.rounds + 1):
        alone = _speed(log, parsed.seconds)
        pages.ask("open")
        begun, used = time.monotonic(), _processor_seconds(server)
        together = _speed(log, parsed.seconds)
        passed, taken = time.monotonic() - begun, _processor_seconds(server) - used
        sent = pages.ask("close")
        if number:  # the first time everything is loaded
            without.append(alone)
            beside.append(together)
            loads.append(taken / passed)
            volumes.append(sent / passed)
    slower = 1 - statistics.median(b / a for a, b in zip(without, beside, strict=True))
    print(f"a run of {parsed.size} x {parsed.size} pixels on {os.cpu_count()} cores, {parsed.rounds} rounds")
    print(f"no page open      {statistics.median(without):8.2f} steps a second")
    print(f"{parsed.pages} pages open     {statistics.median(beside):8.2f} steps a second")
    load, volume = 100 * statistics.median(loads), statistics.median(volumes) / 1e6
    print(f"the server took {load:.1f} % of a core and sent {volume:.2f} MB/s")
    within = "within" if slower < LIMIT else "BEYOND"
    print(f"slower by {100 * slower:.1f} %   ({within} the {100 * LIMIT:g} % that it may be)")


if __name__ == "__main__":
    main()
