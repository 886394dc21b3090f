"""A scan much larger than memory: what it takes to reconstruct from it, against the same with the data in memory.

Writes a synthetic scan of the paper's image (256 x 256, wavelength of six pixels) with 36,000 receivers, or as many as
asked for, and as many views as give the size asked for, through `ScanWriter`: 64 views are simulated and measured
again and again with other noise. With the paper's 360 receivers 20 GB are 7 million views. Then one process runs PnP-
SGD with ten views an iteration and TV straight from the disk, and its memory is the peak of what it has resident,
above what it had after torch was imported and had worked. Another process runs the same from the disk and, with as
many views as fit, from memory, in turns, so that whatever else the machine does slows both; the first steps of a turn,
for which data was read during the other's turn, are not counted. Beside the time of an iteration stands its processor
time, of all threads, which says more where others use the machine too. From the disk means past the page cache, as
`open_scan` reads a scan that is larger than half of the memory, whatever size this one has; a third turn goes through
the page cache, for comparison. The kernel is asked to forget the scan's files first, and again before every turn.

The bars: under 1 GB, and at least 90 % of the speed in memory, for small views (`--receivers 360`) too; the exit status
is 1 where one is missed.

    python benchmarks/outofcore.py [--gigabytes 4] [--receivers 36000] [--turns 30] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plugstream as ps

SPEED, MEMORY = 0.9, 1e9  # what is promised: the part of the speed in memory that reading leaves, and bytes
SIZE = 256
SIMULATED = 64
WAYS = ("disk", "memory", "disk through the page cache")
IN_MEMORY = 2_000  # views: 0.58 GB, as many as fit easily, so that drawing from them misses the caches as well


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the scan (4); the bar is meant for 20")
    parser.add_argument(
        "--turns", type=int, default=30, help="turns of each (30), of 30 steps, the last 20 being timed"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room for it")
    parser.add_argument("--receivers", type=int, default=36_000, help="of every view (36000; the paper has 360)")
    parser.add_argument("--denoiser", default="tv")
    parser.add_argument("--work", choices=["write", "memory", "speed"], help=argparse.SUPPRESS)
    parser.add_argument("--scan", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work == "write":
        write(options.scan, int(options.gigabytes * 1e9 / (8 * options.receivers)), options.receivers)
    elif options.work == "memory":
        print(json.dumps(memory(options.scan, options.denoiser)))
    elif options.work == "speed":
        print(json.dumps(speed(options.scan, options.turns, options.denoiser)))
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    room = shutil.disk_usage(options.folder).free / 1e9
    if room < options.gigabytes + 5:
        sys.exit(f"{options.folder} has {room:.0f} GB left, too little for {options.gigabytes:.0f} GB")
    place = Path(tempfile.mkdtemp(prefix="plugstream-outofcore-", dir=options.folder))
    scan = place / "scan.zarr"
    try:
        begin = time.perf_counter()
        work(options, "write", scan)
        seconds = time.perf_counter() - begin
        size = sum(file.stat().st_size for file in scan.rglob("*") if file.is_file()) / 1e9
        print(f"wrote {size:.1f} GB in {seconds:.0f} s, {size / seconds:.2f} GB/s")
        peak = json.loads(work(options, "memory", scan))
        times = json.loads(work(options, "speed", scan))
        for where in WAYS:
            share = 100 * times[where + " ratio"]
            used = 1e3 * times[where + " processor"]
            print(
                f"from {where}: {1e3 * times[where]:.1f} ms an iteration, {share:.0f} % of the speed in memory, "
                f"{used:.1f} ms of processor time"
            )
        fast, small = times["disk ratio"] >= SPEED, peak["peak"] <= MEMORY
        print(f"{_verdict(fast)}: {100 * times['disk ratio']:.0f} % of the speed in memory, promised {100 * SPEED:g} %")
        print(
            f"{_verdict(small)}: resident memory {peak['peak'] / 1e9:.2f} GB above torch's own, promised "
            f"{MEMORY / 1e9:g} GB, for {size:.1f} GB of data; "
            f"{peak['model'] / 1e9:.2f} GB are the model's tables for {peak['views']} views; SNR {peak['snr']:.1f} dB"
        )
    finally:
        shutil.rmtree(place)
    sys.exit(0 if fast and small else 1)


def _verdict(kept: bool) -> str:
    return "pass" if kept else "FAIL"


def work(options: argparse.Namespace, what: str, scan: Path) -> str:
    words = ["--work", what, "--scan", str(scan), "--gigabytes", str(options.gigabytes)]
    words += ["--turns", str(options.turns), "--denoiser", options.denoiser, "--receivers", str(options.receivers)]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def write(path: Path, views: int, receivers: int) -> None:
    """Simulate a few views, and write as many as asked for."""
    import torch

    import plugstream as ps

    width = 0.18
    grid = ps.Grid((SIZE, SIZE), width / SIZE)
    wavelength = 6 * width / 256
    few = ps.BornGeometry.rings(grid, wavelength, views=SIMULATED, receivers=receivers, radius=1.6)
    image = ps.load_picture("camera", SIZE)
    clean = ps.BornModel(few).forward(image).numpy()
    level = np.float32(1e-2 * np.sqrt(np.mean(np.abs(clean) ** 2)))
    at_once = SIMULATED * max(1, 36_000 // receivers)
    clean = np.tile(clean, (at_once // SIMULATED, 1))
    places = np.tile(ps.ring(SIMULATED, 1.6), (at_once // SIMULATED, 1))
    noise = level * torch.randn((clean.size * 2,), generator=torch.Generator().manual_seed(0)).numpy()
    with ps.ScanWriter(path, few, truth=image.numpy(), provenance={"made_by": "outofcore.py"}) as writer:
        for start in range(0, views, at_once):
            count = min(at_once, views - start)
            # The same noise from another place on: random numbers for 20 GB would take longer than all the rest.
            moved = np.roll(noise, 2 * 977 * (start // at_once)).view(np.complex64).reshape(clean.shape)
            writer.append((clean + moved)[:count], places[:count])
        writer.finish()


def make(stored: ps.StoredScan, denoiser: str, in_memory: int | None) -> Any:
    """PnP-SGD(10) from the disk, or from the first views in memory."""
    import torch

    import plugstream as ps
    from plugstream.algorithms.sampling import Announcer
    from plugstream.scans.prefetch import Prefetcher

    geometry, sampler = ps.born_geometry(stored), ps.Uniform(10)
    prior = {"tv": ps.TV(low=0.0), "bm3d": ps.Clip(ps.BM3D(), 0.0)}[denoiser]
    if in_memory is not None:
        data = stored.read(torch.arange(in_memory))
        fidelity = ps.LeastSquares(ps.BornModel(geometry.with_views(np.arange(in_memory))), data)
        return ps.ProximalGradient(fidelity, prior, sigma=0.01, sampler=sampler)
    source = Prefetcher(stored, threads=2)
    fidelity = ps.LeastSquares(ps.BornModel(geometry), source)
    return ps.ProximalGradient(fidelity, prior, sigma=0.01, sampler=Announcer(sampler, source.expect, 2))


def memory(path: Path, denoiser: str) -> dict[str, float]:
    """The peak of resident memory of a reconstruction from the disk."""
    import torch

    import plugstream as ps

    torch.fft.rfft(torch.randn(512, 512) @ torch.randn(512, 512)).abs().sum()  # torch has its threads and buffers
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    stored = ps.open_scan(path, direct=True)
    algorithm = make(stored, denoiser, None)
    state = algorithm.init()
    for _ in range(100):
        state = algorithm.step(state)
    return {
        "peak": _status("VmHWM") - before,
        "model": algorithm.fidelity.model.held,
        "views": stored.n_views,
        "snr": float(ps.snr(state.image, torch.from_numpy(np.asarray(stored.truth)))),
    }


def speed(path: Path, turns: int, denoiser: str) -> dict[str, float]:
    """Seconds an iteration from the disk and from memory, in turns."""
    import plugstream as ps

    stored, cached = ps.open_scan(path, direct=True), ps.open_scan(path, direct=False)
    each = (
        make(stored, denoiser, None),
        make(stored, denoiser, min(IN_MEMORY, stored.n_views)),
        make(cached, denoiser, None),
    )
    algorithms = dict(zip(WAYS, each, strict=True))
    states = {where: algorithm.init() for where, algorithm in algorithms.items()}
    times: dict[str, list[float]] = {where: [] for where in algorithms}
    processor: dict[str, list[float]] = {where: [] for where in algorithms}
    for _ in range(turns):
        drop_cache(path)
        for where, algorithm in algorithms.items():
            turn = []
            for number in range(30):
                if number == 10:
                    used = time.process_time()
                begin = time.perf_counter()
                states[where] = algorithm.step(states[where])
                turn.append(time.perf_counter() - begin)
            times[where].append(statistics.median(turn[10:]))
            processor[where].append((time.process_time() - used) / 20)
    out = {where: statistics.median(values) for where, values in times.items()}
    for where, values in times.items():
        # A turn against the one right beside it, so that what the machine does besides falls on both alike.
        ratios = [m / t for t, m in zip(values, times["memory"], strict=True)]
        out[where + " ratio"] = statistics.median(ratios)
        out[where + " processor"] = statistics.median(processor[where])
    return out


def drop_cache(path: Path) -> None:
    """Ask the kernel to forget the scan's files, so that they come from the disk."""
    for file in (path / "data" / "c").rglob("0"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    main()
